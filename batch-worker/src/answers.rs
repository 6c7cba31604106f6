//! Answers questions of job services about a batch whose job does not exist yet: whether it can be
//! split, and into what.

use std::fmt;
use std::time::Duration;

use contract::{BatchAnswer, BatchQuery, BatchRefusal, BatchTask, Explanation, Question};
use framework::TaskError;
use framework::queries::{Answerer, Answering, Asked};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::SplitError;
use crate::explain::explain_or_refuse;
use crate::reading::Readers;
use crate::splitter::{Known, Splitter, problem_of, target_of, too_large};

/// How many batches are explained at the same time, so that the splits of running jobs go on.
/// Others wait, but for half of their time at the most: an explanation without time would find
/// nothing.
const EXPLAINED_AT_ONCE: usize = 2;
/// How long before the end of the time an explanation ends: its answer has to arrive.
const RESERVE: Duration = Duration::from_millis(1500);

/// How many questions may read at the same time. A worker answers twice as many at once, so that
/// those that do not read go on.
const READ_AT_ONCE: usize = 8;

/// Answers questions about batches.
pub struct Answers {
    splitter: Splitter,
    readers: Readers,
    explaining: Semaphore,
}

impl Answers {
    pub fn of(splitter: Splitter) -> Self {
        Self {
            readers: splitter.readers.beside(READ_AT_ONCE),
            splitter,
            explaining: Semaphore::new(EXPLAINED_AT_ONCE),
        }
    }

    async fn answer_now(&self, question: &[u8], about: Asked<'_>) -> Option<BatchAnswer> {
        let query: BatchQuery = serde_json::from_slice(question).ok()?;
        let explains = match query.question {
            Question::Check => false,
            Question::Explain => true,
            Question::CheckItems | Question::Other => return None,
        };
        let task: BatchTask = match serde_json::from_str(query.task.get()) {
            Ok(task) => task,
            Err(error) => {
                return Some(refused(format!("the task data is no batch: {error}")));
            }
        };
        Some(match self.explained(&query, &task, about, explains).await {
            Ok(explanation) => BatchAnswer {
                explanation,
                ..BatchAnswer::default()
            },
            Err(answer) => answer,
        })
    }

    /// Checks a batch, and explains it if that is asked.
    async fn explained(
        &self,
        query: &BatchQuery,
        task: &BatchTask,
        about: Asked<'_>,
        explains: bool,
    ) -> Result<Option<Explanation>, BatchAnswer> {
        let target = target_of(task).map_err(refused)?;
        about.check_pipe(target).map_err(refused)?;
        if let Some(bytes) = query.definition_bytes {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let unseen = || doubtful("its definition is too large for a question");
            return Err(too_large(bytes).map_or_else(unseen, refused));
        }
        let known = self
            .splitter
            .known(task, query.partition.as_deref())
            .map_err(|error| error_of(&error))?;
        if !explains {
            let reading = known.begin_soon(&self.readers).await;
            let reading = reading.map_err(|error| refusal_of(known, error))?;
            let known = known.read_for(&reading);
            let checked = known.plugin.check(known.batch).await;
            checked.map_err(|error| refusal_of(known, error))?;
            return Ok(None);
        }
        let until = about.until.checked_sub(RESERVE).unwrap_or(about.until);
        let now = Instant::now();
        let latest = now + until.saturating_duration_since(now) / 2;
        let Ok(Ok(_slot)) = timeout_at(latest, self.explaining.acquire()).await else {
            return Err(doubtful("the batch worker explains other batches now"));
        };
        let explanation = explain_or_refuse(known, task, (until, &self.readers)).await;
        let explanation = explanation.map_err(|error| refusal_of(known, error))?;
        Ok(Some(explanation))
    }
}

impl Answerer for Answers {
    fn answer<'a>(&'a self, question: &'a [u8], about: Asked<'a>) -> Answering<'a> {
        Box::pin(async move {
            let answer = self.answer_now(question, about).await?;
            serde_json::to_vec(&answer).ok()
        })
    }
}

fn refused(message: impl fmt::Display) -> BatchAnswer {
    BatchAnswer {
        refusal: Some(BatchRefusal {
            message: message.to_string(),
            missing: false,
        }),
        ..BatchAnswer::default()
    }
}

fn doubtful(doubt: &str) -> BatchAnswer {
    BatchAnswer {
        doubt: Some(doubt.to_owned()),
        ..BatchAnswer::default()
    }
}

fn error_of(error: &TaskError) -> BatchAnswer {
    refused(error.chain())
}

fn refusal_of(Known { plugin, .. }: Known<'_>, error: SplitError) -> BatchAnswer {
    let (problem, missing) = match error {
        SplitError::Definition(problem) => (problem, false),
        SplitError::Missing(problem) => (problem, true),
        SplitError::Temporary(error) => {
            return doubtful(&TaskError::retry(error).chain());
        }
    };
    BatchAnswer {
        refusal: Some(BatchRefusal {
            message: problem_of(plugin, &problem),
            missing,
        }),
        ..BatchAnswer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, BatchPlugin, BatchWorker, Glob, Lines, List, Part, Range, Reading};
    use framework::broker::Broker as _;
    use framework::broker::memory::Memory;
    use framework::{Runtime, Settings};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use parking_lot::Mutex;

    /// Asks a batch worker that runs.
    async fn ask(broker: &Memory, question: &Value) -> Option<BatchAnswer> {
        let body = question.to_string();
        let answer = broker.ask("batch", body.into(), Duration::from_mins(1));
        serde_json::from_slice(&answer.await.ok()?).unwrap()
    }

    /// A plugin that takes longer than anybody waits. An explanation does not ask it for a check
    /// besides.
    struct Slow;

    impl BatchPlugin for Slow {
        const NAME: &'static str = "slow";

        async fn split(&self, _: Batch<'_>) -> Result<Vec<Part>, SplitError> {
            std::future::pending().await
        }

        async fn check(&self, _: Batch<'_>) -> Result<(), SplitError> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_explanation_that_would_begin_too_late_is_refused_and_does_not_say_that_nothing_was_found()
     {
        let worker = BatchWorker::new(10).with(Slow).with(Range);
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let settings = Settings {
            input: "batch".into(),
            ..Settings::new("batch-worker")
        };
        let running = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
        let running = TaskTracker::new().spawn(running.run_until(stop.clone()));
        let about = |question: &str, batch_type: &str| {
            let task =
                json!({"batchType": batch_type, "batchDefinition": "1-2", "targetPipe": "items"});
            json!({"question": question, "task": task})
        };
        let (check, explain) = (about("check", "range"), about("explain", "slow"));
        harness::wait_for("a worker that answers", async || {
            let answer = ask(&broker, &check).await;
            answer.ok_or_else(|| "nobody answers".to_owned())
        })
        .await;
        let (one, two, three) = tokio::join!(
            ask(&broker, &explain),
            ask(&broker, &explain),
            ask(&broker, &explain)
        );
        let (explained, refused): (Vec<_>, Vec<_>) = [one, two, three]
            .into_iter()
            .flatten()
            .partition(|answer| answer.explanation.is_some());
        assert_eq!((explained.len(), refused.len()), (EXPLAINED_AT_ONCE, 1));
        let doubt = refused[0].doubt.as_deref().unwrap();
        assert!(doubt.contains("explains other batches"), "{doubt}");
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// A plugin whose checks block their threads until the test ends.
    struct Blocked {
        begun: mpsc::UnboundedSender<()>,
        end: Arc<Mutex<Receiver<()>>>,
    }

    impl BatchPlugin for Blocked {
        const NAME: &'static str = "blocked";

        async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
            let (begun, end) = (self.begun.clone(), Arc::clone(&self.end));
            let block = move |_: &Reading| {
                begun.send(())?;
                let _ = end.lock().recv();
                Ok(Vec::new())
            };
            batch.read(block).await
        }
    }

    #[tokio::test]
    async fn questions_that_read_and_hang_leave_those_that_do_not_read_alone() {
        let (begun, mut begins) = mpsc::unbounded_channel();
        let (ends, end) = channel::<()>();
        let blocked = Blocked {
            begun,
            end: Arc::new(Mutex::new(end)),
        };
        let worker = BatchWorker::new(10).with(blocked).with(Range);
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let settings = Settings {
            input: "batch".into(),
            ..Settings::new("batch-worker")
        };
        let (tasks, running) = (TaskTracker::new(), TaskTracker::new());
        let service = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
        let running = running.spawn(service.run_until(stop.clone()));
        let check = |batch_type: &str| {
            let task =
                json!({"batchType": batch_type, "batchDefinition": "1-2", "targetPipe": "items"});
            json!({"question": "check", "task": task})
        };
        let (range, blocked) = (check("range"), check("blocked"));
        harness::wait_for("a worker that answers", async || {
            let answer = ask(&broker, &range).await;
            answer.ok_or_else(|| "nobody answers".to_owned())
        })
        .await;
        for _ in 0..READ_AT_ONCE {
            let (broker, blocked) = (broker.clone(), blocked.clone());
            tasks.spawn(async move { ask(&broker, &blocked).await });
            harness::in_time("a check to block", begins.recv()).await;
        }
        let further = harness::in_time("an answer", ask(&broker, &blocked)).await;
        let doubt = further.unwrap().doubt.unwrap();
        assert!(doubt.contains("reads for other questions now"), "{doubt}");
        let answer = harness::in_time("an answer", ask(&broker, &range)).await;
        assert_eq!(answer.unwrap(), BatchAnswer::default());
        drop(ends);
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// A plugin with a bug.
    struct Panics;

    impl BatchPlugin for Panics {
        const NAME: &'static str = "panics";

        async fn split(&self, _: Batch<'_>) -> Result<Vec<Part>, SplitError> {
            panic!("a bug of the plugin")
        }
    }

    #[tokio::test]
    async fn what_cannot_be_split_is_refused_with_the_reason_of_the_plugin() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "one\n").unwrap();
        let worker = BatchWorker::new(10)
            .with(Panics)
            .with(Range)
            .with(List)
            .with(Lines::new(root.path()))
            .with(Glob::new(root.path()));
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let settings = Settings {
            input: "batch".into(),
            ..Settings::new("batch-worker")
        };
        let running = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
        let running = TaskTracker::new().spawn(running.run_until(stop.clone()));
        let check = |batch_type: &str, definition: &str| {
            let task = json!({"batchType": batch_type, "batchDefinition": definition, "targetPipe": "items"});
            json!({"question": "check", "task": task})
        };
        harness::wait_for("a worker that answers", async || {
            let answer = ask(&broker, &check("range", "1-2")).await;
            answer.ok_or_else(|| "nobody answers".to_owned())
        })
        .await;
        let too_large = {
            let mut question = check("list", "");
            question["definitionBytes"] = 5_000_000.into();
            question
        };
        let reserved = json!({"question": "check", "task": {
            "batchType": "range", "batchDefinition": "1-2", "targetPipe": "x.suspects"}});
        for (question, reason, missing) in [
            (check("range", "1-1000000"), "", false),
            (check("list", "[1, 2]"), "", false),
            (check("lines", r#"{"files": ["a"]}"#), "", false),
            (check("glob", r#"{"folder": "."}"#), "", false),
            (
                check("range", "2-1"),
                "batch definition of range: the range begins with 2",
                false,
            ),
            (check("range", "1-10000000001"), "(--max-items)", false),
            (check("list", "[1,"), "line 1 column 3", false),
            (
                check("lines", r#"{"files": ["b"]}"#),
                "there is no file \"b\"",
                true,
            ),
            (
                check("lines", r#"{"files": ["../b"]}"#),
                "not a path below the root folder",
                false,
            ),
            (
                check("glob", r#"{"folder": "none"}"#),
                "there is no file \"none\"",
                true,
            ),
            (
                check("glob", r#"{"folder": "a"}"#),
                "is not a folder",
                false,
            ),
            (
                check("nothing", "1-2"),
                "knows glob, lines, list, panics, range",
                false,
            ),
            (
                too_large,
                "the batch definition has 5000000 bytes; the limit is 4194304",
                false,
            ),
            (reserved, "the pipe 'x.suspects'", false),
            (
                json!({"question": "check", "task": {"batchType": "range"}}),
                "no targetPipe",
                false,
            ),
            (
                json!({"question": "check", "task": []}),
                "no targetPipe",
                false,
            ),
            (
                json!({"question": "check", "task": {"batchType": 1}}),
                "the task data is no batch",
                false,
            ),
        ] {
            let answer = ask(&broker, &question).await.unwrap();
            assert_eq!((answer.doubt, answer.explanation), (None, None));
            let refusal = answer.refusal.unwrap_or_default();
            assert!(refusal.message.contains(reason), "{question}: {refusal:?}");
            assert_eq!(
                refusal.message.is_empty(),
                reason.is_empty(),
                "{question}: {refusal:?}"
            );
            assert_eq!(refusal.missing, missing, "{question}");
        }
        assert_eq!(ask(&broker, &check("panics", "")).await, None);
        // Another version may ask more.
        let mut unknown = check("range", "1-2");
        unknown["question"] = "weigh".into();
        assert_eq!(ask(&broker, &unknown).await, None);
        let explain = async |batch_type: &str, definition: &str| {
            let mut question = check(batch_type, definition);
            question["question"] = "explain".into();
            ask(&broker, &question).await.unwrap()
        };
        let explained = explain("list", "[1, 2]").await.explanation.unwrap();
        assert_eq!((explained.items, explained.exact), (2, true));
        // What a job may not have is explained all the same, and what is wrong otherwise is not.
        let explained = explain("range", "1-1000000000000000").await;
        let explained = explained.explanation.unwrap();
        assert_eq!(explained.items, 1_000_000_000_000_000);
        assert!(explained.exact && explained.splits > explained.items / 10);
        let refusal = explained.refusal.unwrap();
        assert!(
            refusal.ends_with("at most 10000000000 (--max-items)"),
            "{refusal}"
        );
        let refusal = explain("range", "2-1").await.refusal.unwrap().message;
        assert!(refusal.contains("the range begins with 2"), "{refusal}");
        assert_eq!(broker.depth("batch").await.unwrap(), 0);
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
