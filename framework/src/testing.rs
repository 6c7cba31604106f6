//! Runs a worker without a broker, for its author's tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use contract::{Condition, ContextData, TaskData, TaskMessage, TaskTimeLimit, Tracking};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Outgoing};
use crate::clock::Clock;
use crate::config::Route;
use crate::context::{MemosHere, Shared};
use crate::current::CurrentMessage;
use crate::health::Health;
use crate::job_service::JobServiceClient;
use crate::meters::Counters;
use crate::process_name::ProcessName;
use crate::steps::output::{WorkerIdentity, label_in, new_message};
use crate::steps::report_buffer::ReportBuffer;
use crate::steps::resumption::Resumption;
use crate::tls::Tls;
use crate::worker::{ReplyKind, TaskErrorKind};
use crate::{Context, Reply, RetryPolicy, Settings, TaskError, Worker};

/// Runs one task and returns what the worker did. A panic of the worker fails the test.
///
/// The task is untracked, and this is its first attempt; [`task`] has tasks that differ.
pub async fn run<W: Worker>(worker: &W, input: W::Input) -> Run<W::Output> {
    task(input).run(worker).await
}

/// Returns a task for a test.
///
/// ```
/// # use batchwright_framework as batchwright;
/// use std::time::Duration;
/// use batchwright::contract::RangeItem;
/// use batchwright::testing::{self, Outcome};
/// use batchwright::{Context, NoOutput, Reply, TaskError, Worker};
///
/// /// Waits for better times, but not for ever.
/// struct Patient;
///
/// impl Worker for Patient {
///     type Input = RangeItem;
///     type Output = NoOutput;
///     async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
///         ctx.check_cancelled()?;
///         match ctx.attempt() {
///             1..5 => Err(TaskError::snooze(Duration::from_secs(60))),
///             _ => Err(TaskError::failed("the times do not get better")),
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # fn item() -> RangeItem { serde_json::from_str(r#"{"number": 7}"#).unwrap() }
/// let run = testing::task(item()).run(&Patient).await;
/// assert_eq!(run.outcome(), Outcome::Snoozed(Duration::from_secs(60)));
/// let run = testing::task(item()).attempt(5).run(&Patient).await;
/// assert_eq!(run.outcome(), Outcome::Failed("the times do not get better".into()));
/// let run = testing::task(item()).cancelled().run(&Patient).await;
/// assert_eq!(run.outcome(), Outcome::Cancelled);
/// # }
/// ```
pub const fn task<T: TaskData>(input: T) -> TestTask<T> {
    TestTask {
        input,
        attempt: 1,
        blocks: 0,
        dispatched_before: 0,
        job_task_id: None,
        note: None,
        memos: BTreeMap::new(),
        is_cancelled: false,
        time_limit: None,
        job_time_limit: None,
    }
}

/// A task for a test; see [`task`].
#[derive(Debug, Clone)]
pub struct TestTask<T> {
    input: T,
    attempt: u32,
    blocks: u32,
    dispatched_before: u32,
    job_task_id: Option<String>,
    note: Option<Vec<u8>>,
    memos: BTreeMap<String, String>,
    is_cancelled: bool,
    time_limit: Option<Duration>,
    job_time_limit: Option<TaskTimeLimit>,
}

impl<T: TaskData> TestTask<T> {
    /// Sets the number of the attempt, from 1.
    #[must_use]
    pub const fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Says how often the task has waited for a condition before.
    #[must_use]
    pub const fn blocked_before(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Says how many of its subtasks an earlier delivery has dispatched ([`Context::resume`]).
    #[must_use]
    pub const fn dispatched_before(mut self, subtasks: u32) -> Self {
        self.dispatched_before = subtasks;
        self
    }

    /// Makes it a task of a job, by its job task id: `partition:job`, and behind a point the path
    /// of the task, e.g. `acme:reindex.102.3`.
    #[must_use]
    pub fn of_job(mut self, job_task_id: impl Into<String>) -> Self {
        self.job_task_id = Some(job_task_id.into());
        self
    }

    /// Adds the note that an earlier task has left for this one ([`Context::note`]).
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Vec<u8>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Lets an earlier attempt have done a part of it, with this result ([`Context::once`]). Only a
    /// task of a job has such parts.
    ///
    /// # Panics
    /// If the result cannot be written as JSON.
    #[must_use]
    pub fn with_memo<R: Serialize>(mut self, key: impl Into<String>, result: &R) -> Self {
        #[expect(clippy::expect_used, reason = "this is how a test fails")]
        let result = serde_json::to_string(result).expect("the result as JSON");
        self.memos.insert(key.into(), result);
        self
    }

    /// Lets its job have ended before it runs.
    #[must_use]
    pub const fn cancelled(mut self) -> Self {
        self.is_cancelled = true;
        self
    }

    /// Limits the time of the attempt, as [`Settings::time_limit`] does. Without it there is no
    /// limit.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// # use batchwright::{Context, NoOutput, Reply, Settings, TaskError, Worker, testing};
    /// # use batchwright::contract::RangeItem;
    /// use std::time::Duration;
    ///
    /// /// Waits for an answer that never comes.
    /// struct Stuck;
    ///
    /// impl Worker for Stuck {
    ///     type Input = RangeItem;
    ///     type Output = NoOutput;
    ///     async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         std::future::pending().await
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let item = serde_json::from_str(r#"{"number": 7}"#).unwrap();
    /// let mut settings = Settings::new("stuck");
    /// settings.time_limit = Some(Duration::from_millis(5));
    /// let run = testing::task(item).time_limit(settings.time_limit).run(&Stuck).await;
    /// assert_eq!(run.retry().unwrap(), "the task took longer than its time limit of 5ms");
    /// # }
    /// ```
    #[must_use]
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.time_limit = limit.into();
        self
    }

    /// Limits the time of the attempt, as a job does that sets a limit for its tasks
    /// (`taskTimeLimit`). Subtasks inherit it. If there is a [`Self::time_limit`], too, the smaller
    /// one counts.
    #[must_use]
    pub fn job_time_limit(mut self, limit: impl Into<Option<TaskTimeLimit>>) -> Self {
        self.job_time_limit = limit.into();
        self
    }

    /// Runs the task and returns what the worker did. A panic of the worker fails the test.
    pub async fn run<W: Worker<Input = T>>(self, worker: &W) -> Run<W::Output> {
        let recorder = Arc::new(Recorder::default());
        let memos = MemosHere(Arc::new(Mutex::new(self.memos.clone())));
        let shared = Arc::new(Shared {
            memos: Some(memos.clone()),
            ..shared(Arc::clone(&recorder) as _)
        });
        let ctx = Context::new(
            self.message(&shared),
            (self.attempt, self.blocks),
            self.job_time_limit,
            (self.dispatched_before > 0).then_some(Resumption {
                count: self.dispatched_before,
                digest: None,
            }),
            shared,
        );
        if self.is_cancelled {
            ctx.end();
        }
        let run = worker.run(self.input, ctx.clone());
        let run = ctx.within_limit::<W, _>(self.time_limit, run).await;
        let result = run.and_then(|result| result);
        let published = recorder.published.lock();
        let published = published;
        let messages = published.iter();
        let memos = memos.0.lock();
        Run {
            result,
            memos: memos.clone(),
            dispatched: messages
                .filter_map(|message| {
                    let label = label_in(&message.headers).map(str::to_owned);
                    Some((TaskMessage::decode(&message.body).ok()?, label))
                })
                .collect(),
        }
    }

    /// Returns the message that the task comes in.
    fn message(&self, shared: &Shared) -> Arc<CurrentMessage> {
        let data = serde_json::to_vec(&self.input).unwrap_or_default();
        let mut message = new_message::<T>("test".into(), "test-in", data);
        message.tracking = self.job_task_id.clone().map(|id| Tracking {
            job_task_id: Some(id),
            ..Tracking::default()
        });
        let note = self.note.clone().map(ContextData);
        let service = shared.identity.service_path.clone();
        message.context.extend(note.map(|note| (service, note)));
        CurrentMessage::new("test-in".into(), message, self.attempt, None, false)
    }
}

/// What a worker did with a task; see [`run`].
///
/// ```
/// # use batchwright_framework as batchwright;
/// use batchwright::contract::RangeItem;
/// use batchwright::testing::{self, Outcome};
/// use batchwright::{Context, Reply, TaskError, Worker};
///
/// /// Dispatches each page of a document, and tells the next worker that it has.
/// struct Pages;
///
/// impl Worker for Pages {
///     type Input = RangeItem;
///     type Output = RangeItem;
///     async fn run(&self, document: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
///         for page in 1..=2 {
///             ctx.dispatch_labelled("page-in", &document, &format!("page {page}")).await?;
///         }
///         Ok(Reply::send(document).to("index-in").with_note("2 pages"))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let document: RangeItem = serde_json::from_str(r#"{"number": 7}"#).unwrap();
/// let run = testing::run(&Pages, document.clone()).await;
/// assert!(matches!(run.outcome(), Outcome::Sent(sent) if sent.number == 7));
/// assert_eq!(run.sent_to(), Some("index-in"));
/// assert_eq!(run.note(), Some(&b"2 pages"[..]));
/// assert!(!run.ends_tracking());
/// let (pipe, _) = &run.dispatched::<RangeItem>()[0];
/// assert_eq!(pipe, "page-in");
/// assert_eq!(run.dispatched_labels(), [Some("page 1"), Some("page 2")]);
/// # }
/// ```
#[derive(Debug)]
pub struct Run<O> {
    /// What [`Worker::run`] returned.
    pub result: Result<Reply<O>, TaskError>,
    /// The results of parts, as JSON.
    memos: BTreeMap<String, String>,
    /// The subtasks, with their labels.
    dispatched: Vec<(TaskMessage, Option<String>)>,
}

/// How a task ends, by what the worker returned; see [`Run::outcome`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<'a, O> {
    /// It is complete, with this output ([`Reply::send`]).
    Sent(&'a O),
    /// It is complete, with this negative result ([`Reply::failure`]).
    SentFailure(&'a O),
    /// It is complete, without an output ([`Reply::none`]).
    Done,
    /// It stays open ([`Reply::pass_on`]).
    PassedOn,
    /// It runs again, for this reason (`?`).
    Retried(String),
    /// It has failed, for this reason.
    Failed(String),
    /// It has failed as an invalid task, for this reason.
    Invalid(String),
    /// It waits until this is available.
    Unavailable(String),
    /// It runs again after this time.
    Snoozed(Duration),
    /// It has dispatched a part of its subtasks, and goes on after this time
    /// ([`TaskError::go_on`]).
    GoesOn(Duration),
    /// It waits for a condition: its code, and the reason; see [`Run::blocked`].
    Blocked(String),
    /// It is dropped, because its job has ended.
    Cancelled,
}

impl<O> Run<O> {
    /// Returns how the task ends.
    pub fn outcome(&self) -> Outcome<'_, O> {
        match &self.result {
            Ok(Reply(ReplyKind::Send {
                output, is_failure, ..
            })) if *is_failure => Outcome::SentFailure(output),
            Ok(Reply(ReplyKind::Send { output, .. })) => Outcome::Sent(output),
            Ok(Reply(ReplyKind::None)) => Outcome::Done,
            Ok(Reply(ReplyKind::PassOn)) => Outcome::PassedOn,
            Err(error) => match error.kind {
                TaskErrorKind::Retry => Outcome::Retried(error.chain()),
                TaskErrorKind::Failed => Outcome::Failed(error.chain()),
                TaskErrorKind::Invalid => Outcome::Invalid(error.chain()),
                TaskErrorKind::Unavailable => Outcome::Unavailable(error.chain()),
                TaskErrorKind::Snooze(delay) => Outcome::Snoozed(delay),
                TaskErrorKind::GoOn(delay) => Outcome::GoesOn(delay),
                TaskErrorKind::Blocked => Outcome::Blocked(error.chain()),
                TaskErrorKind::Cancelled => Outcome::Cancelled,
            },
        }
    }

    /// Returns the output, if the worker sent one.
    pub fn sent(&self) -> Option<&O> {
        match &self.result {
            Ok(Reply(ReplyKind::Send { output, .. })) => Some(output),
            _ => None,
        }
    }

    /// Returns the pipe that the worker named for its output ([`Reply::to`]), if it did.
    pub fn sent_to(&self) -> Option<&str> {
        match &self.result {
            Ok(Reply(ReplyKind::Send { to, .. })) => to.as_deref(),
            _ => None,
        }
    }

    /// Returns whether the worker completed the task with its output, wherever its tracking was to
    /// end ([`Reply::and_complete`]).
    pub const fn ends_tracking(&self) -> bool {
        matches!(
            self.result,
            Ok(Reply(ReplyKind::Send {
                ends_tracking: true,
                ..
            }))
        )
    }

    /// Returns the note that the worker left for a later task ([`Reply::with_note`]), if it did.
    pub fn note(&self) -> Option<&[u8]> {
        match &self.result {
            Ok(Reply(ReplyKind::Send { note, .. })) => note.as_deref(),
            _ => None,
        }
    }

    /// Returns the result of a part that is done ([`Context::once`]), of this run or an earlier
    /// one; `None` if the part is not done, or its result is of another type.
    pub fn memo<R: DeserializeOwned>(&self, key: &str) -> Option<R> {
        serde_json::from_str(self.memos.get(key)?).ok()
    }

    /// Returns the keys of the parts that are done, in order.
    pub fn memo_keys(&self) -> Vec<&str> {
        self.memos.keys().map(String::as_str).collect()
    }

    /// Returns why the task failed (`or_fail`, `or_invalid`), if it did.
    pub fn failure(&self) -> Option<String> {
        match self.outcome() {
            Outcome::Failed(reason) | Outcome::Invalid(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns why the task would run again (`?`), if it would.
    pub fn retry(&self) -> Option<String> {
        match self.outcome() {
            Outcome::Retried(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the condition that the task waits for ([`TaskError::blocked`]), if it waits for one.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// use batchwright::contract::RangeItem;
    /// use batchwright::testing::{self, Outcome};
    /// use batchwright::{Condition, ConditionCode, Context, NoOutput, Reply, TaskError, Worker};
    ///
    /// /// Needs a database that is away.
    /// struct Orders;
    ///
    /// impl Worker for Orders {
    ///     type Input = RangeItem;
    ///     type Output = NoOutput;
    ///     async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         let away = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE);
    ///         Err(TaskError::blocked(away.parameter("database", "orders")?.because("no route to host")))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let run = testing::run(&Orders, serde_json::from_str(r#"{"number": 7}"#).unwrap()).await;
    /// assert_eq!(run.outcome(), Outcome::Blocked("DATABASE_NOT_AVAILABLE (no route to host)".into()));
    /// assert_eq!(run.blocked().unwrap().parameters()["database"], "orders");
    /// # }
    /// ```
    pub fn blocked(&self) -> Option<&Condition> {
        self.result.as_ref().err()?.condition()
    }

    /// Returns the dispatched subtasks of this type with their pipes, in order.
    pub fn dispatched<T: TaskData>(&self) -> Vec<(String, T)> {
        let messages = self.dispatched.iter().map(|(message, _)| message);
        let of_type =
            |message: &&TaskMessage| message.task_classifier.as_deref() == Some(T::CLASSIFIER);
        let decoded = |message: &TaskMessage| {
            let data = serde_json::from_slice(message.task_data.as_deref()?).ok()?;
            Some((message.to.as_ref()?.to_string(), data))
        };
        messages.filter(of_type).filter_map(decoded).collect()
    }

    /// Returns the labels of the dispatched subtasks ([`Context::dispatch_labelled`]), in order.
    pub fn dispatched_labels(&self) -> Vec<Option<&str>> {
        let labels = self.dispatched.iter().map(|(_, label)| label.as_deref());
        labels.collect()
    }

    /// Returns how many subtasks were dispatched.
    pub fn dispatched_count(&self) -> usize {
        self.dispatched.len()
    }
}

/// Returns what a worker shares between its tasks.
fn shared(broker: Arc<dyn Broker>) -> Shared {
    let tasks = TaskTracker::new();
    Shared {
        identity: Arc::new(WorkerIdentity {
            name: "test".into(),
            version: "1".into(),
            zero_progress: false,
            service_path: "batchwright/test".into(),
            route: Route::Direct,
            clock: Clock::system(),
            process: ProcessName::default(),
        }),
        reports: ReportBuffer::start(
            Arc::clone(&broker),
            Arc::default(),
            (&tasks, &CancellationToken::new()),
            Health::default(),
            "reports".into(),
        ),
        broker,
        job_service: JobServiceClient::new(
            Duration::from_secs(1),
            &Tls::default(),
            Clock::system(),
            &tasks,
        ),
        gauges: Arc::default(),
        bundling: Arc::default(),
        reserved: Arc::new(Settings::new("test").all_reserved_pipes()),
        has_paused_pipe: true,
        retry: RetryPolicy::default(),
        counters: Counters::of("test"),
        running: Arc::default(),
        memos: None,
        shutdown: CancellationToken::new(),
    }
}

/// A broker that records what is published and delivers nothing.
#[derive(Debug, Default)]
struct Recorder {
    published: Mutex<Vec<Outgoing>>,
}

impl Broker for Recorder {
    fn publish(&self, message: Outgoing) -> Confirm {
        self.published.lock().push(message);
        Confirm::ready(Ok(()))
    }

    fn consume<'a>(&'a self, _: &'a str, _: u32) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        Box::pin(async { Err(BrokerError::Closed) })
    }

    fn announce(&self, _: Bytes) -> Confirm {
        Confirm::ready(Ok(()))
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        Box::pin(async { Err(BrokerError::Closed) })
    }

    fn depth<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async { Ok(0) })
    }

    fn state(&self) -> BrokerState {
        BrokerState::Connected
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn kind(&self) -> &'static str {
        "recorder"
    }
}

#[cfg(test)]
mod tests {
    use contract::RangeItem;

    use super::*;
    use crate::NoOutput;

    /// Works on another thread, and never ends by itself.
    struct Endless(Arc<Mutex<Option<Context>>>);

    impl Worker for Endless {
        type Input = RangeItem;
        type Output = NoOutput;
        async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
            *self.0.lock() = Some(ctx);
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_exceeds_the_smaller_limit_is_dropped_and_its_context_says_so() {
        let seconds = |seconds| Duration::from_secs(seconds);
        for (own, job, reason) in [
            (seconds(90), None, "its time limit of 90s"),
            (
                seconds(90),
                Some(30),
                "the time limit of 30s that its job sets",
            ),
            (seconds(30), Some(90), "its time limit of 30s"),
        ] {
            let left = Arc::default();
            let item = serde_json::from_str::<RangeItem>(r#"{"number": 7}"#).unwrap();
            let task = task(item).time_limit(own);
            let task = task.job_time_limit(job.and_then(TaskTimeLimit::of_seconds));
            let run = task.run(&Endless(Arc::clone(&left))).await;
            let reason = format!("the task took longer than {reason}");
            assert_eq!(run.outcome(), Outcome::Retried(reason.clone()));
            // What it has left behind learns that it must stop.
            let left = left.lock().take().unwrap();
            assert_eq!(left.check_cancelled().unwrap_err().chain(), reason);
        }
    }
}
