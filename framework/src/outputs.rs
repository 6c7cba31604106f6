//! Reads the outputs of a worker from their pipe: for programs that use the results of jobs.
//!
//! What must stay true:
//! - An output that its reader has not settled with [`Output::done`] comes again, also after a
//!   crash.
//! - No message stops the reader. One that is not an output of this type goes to the invalid pipe,
//!   with the reason.
//! - No broker gives up on an output because its readers crash: it is published anew when it has
//!   come back often.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use contract::headers::{FIRST_TASK, JOB_HEADER, LABEL_HEADER, TASK_HEADER, job_and_path};
use contract::rest::LetterCause;
use contract::{TaskData, TaskMessage, TaskStatus};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::Settings;
use crate::broker::{Broker, Delivery, HeaderValue, Headers, Outgoing, PublishError};
use crate::health::Health;
use crate::pipeline::intake::{Bundles, Intake, consume_bundles};
use crate::pipeline::unpacked::{KnownBundles, OnTheirOwn};
use crate::runtime::{Runtime, RuntimeError};
use crate::steps::explanation::Explanation;
use crate::steps::task_data;

/// How many outputs a reader holds that it has not settled, unless [`Settings::prefetch`] says
/// otherwise.
const PREFETCH: u32 = 100;
/// The pause after the invalid pipe did not take a message.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads the outputs of a worker, whose type is `T`, from their pipe.
///
/// Every output is either the result of a task or its failure, and knows its job, its task and the
/// label of the item. An output may come twice, with the same [`Output::task_id`], because a task
/// may run twice.
///
/// In a program of its own, on RabbitMQ, the settings come from the environment
/// (`BATCHWRIGHT_BROKER`, `BATCHWRIGHT_INPUT_PIPE`, …):
///
/// ```no_run
/// # use batchwright_framework as batchwright;
/// # use batchwright::{Runtime, TaskData};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Amount { value: String }
/// # impl TaskData for Amount { const CLASSIFIER: &'static str = "ListItem"; const API_VERSION: i32 = 1; }
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut outputs = Runtime::from_env()?.outputs::<Amount>().await?;
/// while let Some(output) = outputs.next().await? {
///     match &output.result {
///         Ok(amount) => println!("{}: {}", output.name(), amount.value),
///         Err(failure) => eprintln!("{} has failed: {failure}", output.name()),
///     }
///     output.done();
/// }
/// # Ok(()) }
/// ```
///
/// In the process that runs the whole system, [`Outputs::of`] reads from its broker:
///
/// ```
/// # use batchwright_framework as batchwright;
/// # use std::sync::Arc;
/// # use batchwright::broker::{Broker, Outgoing, memory::Memory};
/// # use batchwright::TaskData;
/// # use batchwright::contract::{RangeItem, TaskMessage, TaskStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let broker: Arc<dyn Broker> = Arc::new(Memory::new());
/// # let item = RangeItem { number: 42, params: [].into() };
/// # let output = TaskMessage { task_status: Some(TaskStatus::ResultSuccess), ..TaskMessage::new("t", "doubled", &item)? };
/// # broker.publish(Outgoing::new("doubled", output.encode())).await?;
/// use batchwright::Outputs;
///
/// let mut outputs = Outputs::<RangeItem>::of(&broker, "doubled").await?;
/// let output = outputs.next().await?.unwrap();
/// assert_eq!(output.result.as_ref().unwrap().number, 42);
/// output.done();
/// # Ok(()) }
/// ```
pub struct Outputs<T> {
    intake: Intake,
    /// What the intake has given at once.
    received: VecDeque<Delivery>,
    /// What gives back members of bundles runs here.
    tasks: TaskTracker,
    /// Cancelled when they are no longer waited for.
    stop: CancellationToken,
    broker: Arc<dyn Broker>,
    owns_broker: bool,
    invalid: String,
    max_body: usize,
    health: Health,
    of: PhantomData<fn() -> T>,
}

/// An output: the result of a task, or its failure.
///
/// Settle it with [`Self::done`] once its content is safe. An output that is dropped instead comes
/// again, at once.
#[must_use = "an output that is dropped comes again; settle it with `done`"]
pub struct Output<T> {
    /// The result of the task, or why it has failed.
    pub result: Result<T, Failure>,
    /// The task is done, and its worker says that the result is a negative one
    /// ([`Reply::failure`](crate::Reply::failure)).
    pub is_negative: bool,
    /// The partition of the job; `None` if the message does not tell its job.
    ///
    /// Workers of ours tell job, task and label. CAF's do not: then the job and the task are known
    /// only if the tracking of the message does not end in this pipe, or if the output came through
    /// the tracking worker.
    pub partition: Option<String>,
    /// The id of the job; `None` if the message does not tell it.
    pub job: Option<String>,
    /// The path from the job to the task, e.g. `3.17`; `0` for the first task of the job; `None` if
    /// the message does not tell it.
    pub task: Option<String>,
    /// The label of the item; `None` if it has none, or the message does not tell it.
    pub label: Option<String>,
    /// The id of the message. A repeated output has the same.
    pub task_id: String,
    /// The correlation id of the request that created the job, if it had one.
    pub correlation_id: Option<String>,
    /// The name of the worker that sent the output, if it says so.
    pub worker: Option<String>,
    delivery: Delivery,
}

/// Why a task has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason, as the worker gave it.
    pub reason: String,
    /// The worker has not understood the task.
    pub is_invalid: bool,
}

impl Runtime {
    /// Reads the input pipe of the settings ([`Settings::input`]) as outputs of the type `T`. What
    /// is not one goes to [`Settings::invalid`].
    ///
    /// # Errors
    ///
    /// Returns an error if the broker cannot be used.
    pub async fn outputs<T: TaskData>(self) -> Result<Outputs<T>, RuntimeError> {
        let Self {
            settings,
            broker,
            owns_broker,
        } = self;
        let prefetch = settings.prefetch.unwrap_or(PREFETCH);
        let single = broker.consume(&settings.input, prefetch).await?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let bundles = consume_bundles(&*broker, &settings, prefetch).await?;
        let on_their_own = OnTheirOwn {
            broker: Arc::clone(&broker),
            input: settings.input.as_str().into(),
            retry: settings.retry,
            tasks: tasks.clone(),
            runtime: Handle::current(),
            shutdown: stop.clone(),
            abort: stop.clone(),
            known: KnownBundles::default(),
        };
        let bundles = bundles.map(|consumer| Bundles::new(consumer, on_their_own, prefetch));
        Ok(Outputs {
            intake: Intake::of(single, bundles),
            received: VecDeque::new(),
            tasks,
            stop,
            broker,
            owns_broker,
            invalid: settings.invalid,
            max_body: settings.max_body,
            health: settings.health,
            of: PhantomData,
        })
    }
}

impl<T: TaskData> Outputs<T> {
    /// Reads a pipe of a broker that others may share. What is no output of this type goes to the
    /// pipe `<pipe>-invalid`.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker cannot be used.
    pub async fn of(broker: &Arc<dyn Broker>, pipe: &str) -> Result<Self, RuntimeError> {
        let settings = Settings {
            input: pipe.to_owned(),
            ..Settings::new(pipe)
        };
        Runtime::new(settings, Arc::clone(broker)).outputs().await
    }

    /// Waits for the next output. Returns `None` once the broker is closed.
    ///
    /// Cancel safe: if the future is dropped, no output is lost.
    ///
    /// # Errors
    ///
    /// Returns an error if the process gives up ([`Settings::health`]).
    pub async fn next(&mut self) -> Result<Option<Output<T>>, RuntimeError> {
        loop {
            if self.received.is_empty() {
                let mut received = Vec::new();
                tokio::select! {
                    biased;
                    reason = self.health.given_up() => return Err(RuntimeError::GaveUp(reason)),
                    _ = self.intake.next_many(&mut received, 1) => {}
                }
                self.received.extend(received);
            }
            let Some(delivery) = self.received.pop_front() else {
                return Ok(None);
            };
            // If its pipe is full, it is read all the same.
            if delivery.came_back_often() && self.broker.publish(delivery.anew()).await.is_ok() {
                delivery.ack();
                continue;
            }
            match read(&delivery, self.max_body) {
                Ok((result, message)) => return Ok(Some(Output::new(result, message, delivery))),
                Err(reason) => self.refuse(delivery, &reason).await,
            }
        }
    }

    /// Sends what was settled to the broker, and closes the broker if it was opened for this
    /// reader. Outputs that are settled right before the process ends without this may come again.
    pub async fn close(self) {
        drop((self.received, self.intake));
        self.tasks.close();
        // A bundle whose members cannot be given back one by one goes back as a whole.
        if timeout(PAUSE, self.tasks.wait()).await.is_err() {
            self.stop.cancel();
            self.tasks.wait().await;
        }
        if self.owns_broker {
            self.broker.close().await;
        }
    }

    /// Moves a message that is no output of this type to the invalid pipe.
    async fn refuse(&self, delivery: Delivery, reason: &str) {
        warn!(pipe = %delivery.pipe, reason, "an output cannot be understood; it goes to {}", self.invalid);
        let copy = |mut headers: Headers| {
            let explanation = Explanation {
                cause: LetterCause::NotUnderstood,
                reason,
                worker: None,
            };
            explanation.set_on_invalid(&mut headers, &delivery);
            self.broker.publish(Outgoing {
                headers,
                ..Outgoing::new(self.invalid.as_str(), delivery.body())
            })
        };
        let mut moved = copy(delivery.headers.clone()).await;
        if matches!(moved, Err(PublishError::Unacceptable { .. })) {
            // Its own headers leave no room for ours.
            moved = copy(Headers::default()).await;
        }
        match moved {
            Ok(()) => delivery.ack(),
            // The consumer says so, too.
            Err(PublishError::Closed) => {}
            Err(error) => {
                warn!(pipe = %delivery.pipe, %error, "it cannot go there, and comes again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl<T> Output<T> {
    fn new(result: Result<T, Failure>, message: TaskMessage, delivery: Delivery) -> Self {
        let tracked = message.job_task_id().and_then(job_and_path);
        let (job, task) = tracked.unzip();
        let job = text(&delivery, JOB_HEADER).or(job.as_deref());
        let (partition, job) = job.and_then(|job| job.split_once(':')).unzip();
        let task = text(&delivery, TASK_HEADER).or(task.as_deref());
        Self {
            result,
            is_negative: message.task_status == Some(TaskStatus::ResultFailure),
            partition: partition.map(str::to_owned),
            job: job.map(str::to_owned),
            task: task.map(str::to_owned),
            label: text(&delivery, LABEL_HEADER).map(str::to_owned),
            worker: message
                .source_info
                .and_then(|source| source.name)
                .map(Into::into),
            task_id: message.task_id,
            correlation_id: message.correlation_id.map(Into::into),
            delivery,
        }
    }

    /// Settles the output: the broker forgets it.
    pub fn done(self) {
        self.delivery.ack();
    }

    /// Settles the output and returns its result: for what may be lost if the process ends now.
    pub fn take(self) -> Result<T, Failure> {
        self.delivery.ack();
        self.result
    }

    /// Returns what a person calls the item: its label, or the path of its task, or else the id of
    /// the message.
    pub fn name(&self) -> &str {
        let path = self.task.as_deref().filter(|path| *path != FIRST_TASK);
        self.label.as_deref().or(path).unwrap_or(&self.task_id)
    }
}

/// Reads an output. Returns why the message is none of this type.
fn read<T: TaskData>(
    delivery: &Delivery,
    max_body: usize,
) -> Result<(Result<T, Failure>, TaskMessage), String> {
    let body = delivery.body();
    if body.len() > max_body {
        return Err(format!(
            "the body has {} bytes; the limit is {max_body}",
            body.len()
        ));
    }
    let message = TaskMessage::decode(&body).map_err(|error| error.to_string())?;
    let status = message.task_status.filter(|status| status.is_failure());
    let result = match status {
        Some(status) => Err(Failure {
            reason: reason(message.task_data.as_deref().unwrap_or_default()),
            is_invalid: status == TaskStatus::InvalidTask,
        }),
        None => Ok(task_data::decode(&message)?),
    };
    Ok((result, message))
}

/// Reads the reason of a failure: text, or text in JSON.
fn reason(data: &[u8]) -> String {
    serde_json::from_slice(data).unwrap_or_else(|_| String::from_utf8_lossy(data).into_owned())
}

fn text<'a>(delivery: &'a Delivery, header: &str) -> Option<&'a str> {
    match delivery.headers.get(header)? {
        HeaderValue::Text(text) => Some(text),
        HeaderValue::Integer(_) => None,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Failure {}

impl<T> fmt::Debug for Outputs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs")
            .field("waiting", &self.received.len())
            .field("invalid", &self.invalid)
            .finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Output<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("result", &self.result)
            .field("job", &self.job)
            .field("task", &self.task)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use contract::RangeItem;
    use proptest::prelude::*;

    use super::*;
    use crate::broker::{Settlement, Settler};

    struct Nowhere;

    impl Settler for Nowhere {
        fn settle(&self, _: u64, _: Settlement) {}
    }

    fn delivery(body: impl Into<Bytes>, headers: Headers) -> Delivery {
        Delivery::new("out".into(), body.into(), headers, 0, 1, Arc::new(Nowhere))
    }

    #[test]
    fn reason_of_a_failure_is_shown_without_its_quotes() {
        assert_eq!(reason(br#""no \"word\"""#), "no \"word\"");
        assert_eq!(reason(b"plain"), "plain");
        assert_eq!(reason(b"{\"a\":1}"), "{\"a\":1}");
        assert_eq!(reason(b"\xff"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn whatever_comes_it_is_read_or_refused(
            status in 0_u8..7,
            data in proptest::collection::vec(any::<u8>(), 0..64),
            id in ".{0,40}",
            job in ".{0,20}",
        ) {
            let body = serde_json::json!({
                "taskId": "t", "taskStatus": status, "taskData": data, "taskClassifier": RangeItem::CLASSIFIER,
                "tracking": {"jobTaskId": id},
            });
            let mut headers = Headers::default();
            headers.set(JOB_HEADER, HeaderValue::Text(job.into()));
            headers.set(TASK_HEADER, HeaderValue::Integer(7));
            let delivery = delivery(body.to_string(), headers);
            if let Ok((result, message)) = read::<RangeItem>(&delivery, 10_000) {
                let output = Output::new(result, message, delivery);
                prop_assert_eq!(output.partition.is_some(), output.job.is_some());
                output.done();
            }
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read::<RangeItem>(&delivery(body, Headers::default()), 100);
        }
    }
}
