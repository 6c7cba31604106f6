//! Asks batch workers about a batch before there is a job: whether it can be split, and what it
//! would be split into.
//!
//! What must stay true:
//! - A job is refused only because a batch worker says why. Without an answer it is created, with a
//!   note.
//! - A batch worker that does not answer holds up few jobs: its pipe is not asked about for a
//!   while.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::ErrorCode;
use contract::{
    BatchAnswer, BatchQuery, BatchRefusal, BatchTask, Explanation, PartitionId, Question,
    TaskData as _,
};
use framework::broker::{Broker, Unanswered};
use parking_lot::{Mutex, MutexGuard};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::http::{ApiError, ApiResult};
use crate::jobs::new_job::FirstTask;

/// How long the service waits for an answer.
pub const LIMIT: Duration = Duration::from_secs(5);
/// The least time after which a pipe without an answer counts as silent.
const TIME_TO_ANSWER: Duration = Duration::from_millis(2500);
/// How many batches are checked at the same time. Others wait.
const CHECKED_AT_ONCE: usize = 64;
/// How many are explained.
const EXPLAINED_AT_ONCE: usize = 4;
/// How long an explanation waits for others: what is left must be enough to find something.
const WAIT_TO_EXPLAIN: Duration = Duration::from_secs(1);
/// For how long a pipe is not asked about after there was no answer in time.
const SILENCE: Duration = Duration::from_secs(15);
/// How many such pipes are remembered.
const SILENT_PIPES: usize = 1000;
/// The most bytes of task data that are sent. Without its definition, a batch has seldom more than
/// a few hundred.
const MOST_BYTES: usize = 5 * 1024 * 1024;

/// The questions that this service asks.
#[derive(Debug)]
pub struct BatchQuestions {
    checking: Semaphore,
    explaining: Semaphore,
    /// When pipes were found silent.
    silent: Mutex<BTreeMap<String, Instant>>,
}

/// What is known of a batch before its job is created.
#[derive(Debug)]
pub enum Checked {
    /// The task is no batch, or the batch can be split.
    Fine,
    /// It cannot be split.
    Refused(BatchRefusal),
    /// Nobody knows, for this reason.
    Unknown(String),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error(
        "no worker of the pipe '{0}' answered lately; it is asked again after {seconds} seconds",
        seconds = SILENCE.as_secs()
    )]
    Silent(String),
    #[error("too many batches are asked about at the same time")]
    Busy,
    #[error("the task data has too many bytes for a question")]
    TooLarge,
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

impl Default for BatchQuestions {
    fn default() -> Self {
        Self {
            checking: Semaphore::new(CHECKED_AT_ONCE),
            explaining: Semaphore::new(EXPLAINED_AT_ONCE),
            silent: Mutex::default(),
        }
    }
}

impl BatchQuestions {
    /// Asks whether the batch of a new job can be split, if its first task is one.
    pub async fn check(
        &self,
        broker: &dyn Broker,
        own_pipe: &str,
        partition: &PartitionId,
        task: &FirstTask,
    ) -> Checked {
        if !is_batch(task) {
            return Checked::Fine;
        }
        match self.ask(broker, Question::Check, partition, task).await {
            Ok(answer) => match (answer.refusal, answer.doubt) {
                (Some(refusal), _) => Checked::Refused(refusal),
                (None, Some(doubt)) => Checked::Unknown(doubt),
                (None, None) => self.check_items(broker, partition, task).await,
            },
            // Batch workers of other makes answer no questions, and those who have them need not be
            // told of each job.
            Err(NoAnswer::Unanswered(Unanswered::Nobody(pipe))) if pipe != own_pipe => {
                Checked::Fine
            }
            Err(reason) => Checked::Unknown(reason.to_string()),
        }
    }

    /// Asks the workers of the items whether these would run, if the batch has parameters for them.
    /// Few workers answer such questions, and what they do not say is not missed.
    async fn check_items(
        &self,
        broker: &dyn Broker,
        partition: &PartitionId,
        task: &FirstTask,
    ) -> Checked {
        let batch = serde_json::from_slice::<BatchTask>(&task.data).unwrap_or_default();
        let has_params = batch.task_message_params.is_some_and(|it| !it.is_empty());
        let Some(pipe) = batch.target_pipe.filter(|_| has_params) else {
            return Checked::Fine;
        };
        let items = FirstTask {
            pipe,
            ..task.clone()
        };
        let answer = self.ask(broker, Question::CheckItems, partition, &items);
        match answer.await {
            Ok(BatchAnswer {
                refusal: Some(refusal),
                ..
            }) => Checked::Refused(refusal),
            _ => Checked::Fine,
        }
    }

    /// Asks what the batch of a job would be split into.
    ///
    /// # Errors
    /// Returns 400 if the task is no batch, or one that cannot be split, and 503 if nobody explains
    /// it.
    pub async fn explain(
        &self,
        broker: &dyn Broker,
        partition: &PartitionId,
        task: &FirstTask,
    ) -> ApiResult<Explanation> {
        if !is_batch(task) {
            let (classifier, batch) = (&task.classifier, BatchTask::CLASSIFIER);
            return Err(invalid(format!(
                "The task of the job is not split: its taskClassifier is '{classifier}', and that of a batch is '{batch}'."
            )));
        }
        let answer = match self.ask(broker, Question::Explain, partition, task).await {
            Ok(answer) => answer,
            Err(NoAnswer::Busy) => {
                return Err(ApiError::Busy("as many batches to explain as it may have"));
            }
            Err(reason) => return Err(ApiError::NotExplained(reason.to_string())),
        };
        match answer {
            BatchAnswer {
                refusal: Some(refusal),
                ..
            } => Err(refused(&refusal)),
            BatchAnswer {
                explanation: Some(explanation),
                ..
            } => Ok(explanation),
            BatchAnswer { doubt, .. } => Err(ApiError::NotExplained(doubt.unwrap_or_else(|| {
                "the batch worker of another version does not explain it".to_owned()
            }))),
        }
    }

    async fn ask(
        &self,
        broker: &dyn Broker,
        question: Question,
        partition: &PartitionId,
        task: &FirstTask,
    ) -> Result<BatchAnswer, NoAnswer> {
        let (questions, pipe) = (self, &task.pipe);
        // A person who waits for an explanation may try it at any time.
        if question != Question::Explain && questions.is_silent(pipe) {
            return Err(NoAnswer::Silent(pipe.clone()));
        }
        let (slots, wait) = match question {
            Question::Explain => (&questions.explaining, WAIT_TO_EXPLAIN),
            Question::Check | Question::CheckItems | Question::Other => {
                (&questions.checking, LIMIT)
            }
        };
        let now = Instant::now();
        let until = now + LIMIT;
        let Ok(Ok(_slot)) = timeout_at(now + wait, slots.acquire()).await else {
            return Err(NoAnswer::Busy);
        };
        let body = body(question, partition, task).ok_or(NoAnswer::TooLarge)?;
        let left = until.saturating_duration_since(Instant::now());
        let answered = broker.ask(pipe, body.into(), left).await;
        // That an explanation takes long says nothing of a check, and neither does a worker that
        // had little time because others waited.
        let had_time = question != Question::Explain && left >= TIME_TO_ANSWER;
        if had_time && matches!(answered, Err(Unanswered::InTime(..))) {
            questions.found_silent(pipe);
        }
        Ok(serde_json::from_slice(&answered?)?)
    }
}

/// Returns the error for a batch that cannot be split.
pub fn refused(refusal: &BatchRefusal) -> ApiError {
    let mut text = refusal.message.clone();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    invalid(format!("{}.", text.trim_end_matches('.')))
}

/// Returns the note for a job whose batch nobody has checked.
pub fn unchecked(reason: &str) -> String {
    format!("The batch was not checked before the job was created: {reason}.")
}

/// Returns the note for a job whose source may be there when it starts.
pub fn missing_yet(refusal: &BatchRefusal) -> String {
    format!(
        "The batch cannot be split yet, and the job fails if it still cannot be when it starts: {}.",
        refusal.message
    )
}

fn invalid(message: String) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidBatch, message)
}

/// Returns whether a task is a batch as batch workers of this version understand it.
fn is_batch(task: &FirstTask) -> bool {
    task.classifier == BatchTask::CLASSIFIER && task.api_version == BatchTask::API_VERSION
}

/// Returns the question. The definition of a batch that is too large is left out; `None` if it is
/// too large without it.
fn body(question: Question, partition: &PartitionId, task: &FirstTask) -> Option<Vec<u8>> {
    let mut query = BatchQuery {
        question,
        task: RawValue::NULL.to_owned(),
        definition_bytes: None,
        partition: Some(partition.to_string()),
    };
    query.task = if task.data.len() <= MOST_BYTES {
        // What is not JSON is not a batch, which the worker says.
        serde_json::from_slice(&task.data).unwrap_or(query.task)
    } else {
        let mut batch: BatchTask = serde_json::from_slice(&task.data).ok()?;
        let definition = batch.batch_definition.take();
        query.definition_bytes = definition.map(|definition| definition.len() as u64);
        serde_json::value::to_raw_value(&batch).ok()?
    };
    let body = serde_json::to_vec(&query).ok()?;
    (body.len() <= MOST_BYTES + 1024).then_some(body)
}

impl BatchQuestions {
    fn is_silent(&self, pipe: &str) -> bool {
        let mut silent = self.lock();
        let since = silent.get(pipe).copied();
        let is_silent = since.is_some_and(|since| since.elapsed() < SILENCE);
        if since.is_some() && !is_silent {
            silent.remove(pipe);
        }
        is_silent
    }

    fn found_silent(&self, pipe: &str) {
        let mut silent = self.lock();
        if silent.len() >= SILENT_PIPES {
            silent.retain(|_, since| since.elapsed() < SILENCE);
        }
        if silent.len() < SILENT_PIPES {
            silent.insert(pipe.to_owned(), Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.silent.lock()
    }
}

#[cfg(test)]
mod tests {
    use framework::broker::memory::Memory;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_does_not_answer_holds_up_few_jobs() {
        let partition = PartitionId::parse("p").unwrap();
        let (broker, questions) = (Memory::new(), BatchQuestions::default());
        let task = |pipe: &str| FirstTask {
            classifier: "BatchWorker".to_owned(),
            api_version: 1,
            data: b"{}".to_vec(),
            pipe: pipe.to_owned(),
            target_pipe: None,
        };
        let check = async |pipe: &str| {
            let began = Instant::now();
            let note = match questions
                .check(&broker, "batch-in", &partition, &task(pipe))
                .await
            {
                Checked::Unknown(note) => note,
                Checked::Fine => "fine".to_owned(),
                Checked::Refused(refusal) => refusal.message,
            };
            (began.elapsed(), note)
        };
        let (no_time, nobody) = (Duration::ZERO, "no running worker of the pipe 'batch-in'");
        let (time, note) = check("batch-in").await;
        assert!(time == no_time && note.starts_with(nobody), "{note}");
        // Another pipe is that of a batch worker of another make.
        assert_eq!(check("java-in").await, (no_time, "fine".to_owned()));
        let mut queries = broker.queries("batch-in").await.unwrap();
        let in_time = "no worker of the pipe 'batch-in' answered within 5.0s";
        assert_eq!(check("batch-in").await, (LIMIT, in_time.to_owned()));
        let (time, note) = check("batch-in").await;
        assert_eq!(time, no_time);
        assert!(note.contains("asked again after 15 seconds"), "{note}");
        tokio::time::advance(SILENCE).await;
        // The question that nobody answered.
        drop(queries.next().await);
        let answer = async {
            let query = queries.next().await.unwrap();
            query.answer("{}".into());
        };
        let ((_, note), ()) = tokio::join!(check("batch-in"), answer);
        assert_eq!(note, "fine");
    }

    /// Returns a batch for the pipe `batch-in`.
    fn batch() -> FirstTask {
        FirstTask {
            classifier: "BatchWorker".to_owned(),
            api_version: 1,
            data: b"{}".to_vec(),
            pipe: "batch-in".to_owned(),
            target_pipe: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pipe_that_had_little_time_to_answer_is_asked_again() {
        let partition = PartitionId::parse("p").unwrap();
        let (broker, questions) = (Memory::new(), BatchQuestions::default());
        let _nobody_answers = broker.queries("batch-in").await.unwrap();
        let task = batch();
        let others = questions.checking.acquire_many(64).await.unwrap();
        let others = async {
            tokio::time::advance(LIMIT.mul_f64(0.8)).await;
            drop(others);
        };
        let check = || questions.check(&broker, "batch-in", &partition, &task);
        let (late, ()) = tokio::join!(check(), others);
        for (checked, text) in [
            (late, "answered within 1.0s"),
            (check().await, "answered within 5.0s"),
            (check().await, "answered lately"),
        ] {
            assert!(
                matches!(&checked, Checked::Unknown(note) if note.contains(text)),
                "{text}: {checked:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn explanations_beyond_those_that_are_made_at_once_are_refused_soon() {
        let partition = PartitionId::parse("p").unwrap();
        let (broker, questions) = (Memory::new(), BatchQuestions::default());
        let _nobody_answers = broker.queries("batch-in").await.unwrap();
        let task = batch();
        let began = Instant::now();
        let asked = (0..100).map(|_| async {
            let explained = questions.explain(&broker, &partition, &task).await;
            (explained.unwrap_err(), began.elapsed())
        });
        let refused = futures_util::future::join_all(asked).await;
        let is_busy = |error: &ApiError| matches!(error, ApiError::Busy(_));
        let busy = refused.iter().filter(|(error, _)| is_busy(error));
        let times: Vec<Duration> = busy.map(|(_, time)| *time).collect();
        assert_eq!(times.len(), 100 - EXPLAINED_AT_ONCE);
        assert!(
            times.iter().all(|time| *time == WAIT_TO_EXPLAIN),
            "{times:?}"
        );
    }

    #[test]
    fn a_definition_that_is_too_large_is_told_and_not_sent() {
        let definition = "9".repeat(12_000_000);
        let task = FirstTask {
            classifier: "BatchWorker".to_owned(),
            api_version: 1,
            data: serde_json::json!({"batchType": "list", "batchDefinition": definition})
                .to_string()
                .into_bytes(),
            pipe: "batch-in".to_owned(),
            target_pipe: None,
        };
        let partition = PartitionId::parse("p").unwrap();
        let body = body(Question::Check, &partition, &task).unwrap();
        let query: BatchQuery = serde_json::from_slice(&body).unwrap();
        assert_eq!(query.definition_bytes, Some(12_000_000));
        assert!(body.len() < 1000, "{}", body.len());
    }
}
