//! What a worker author writes: one trait, one reply type, one error type.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use contract::{Condition, TaskData};
use serde::{Deserialize, Serialize};

use crate::Context;
use crate::queries::Answerer;

/// Does one kind of task.
///
/// One value serves all tasks of a process, many at the same time, so its state is shared. A task
/// may run more than once, for example after a crash. Whatever `run` does outside of the process
/// must therefore be idempotent.
///
/// ```
/// # use batchwright_framework as batchwright;
/// use batchwright::{Context, OrFail, Reply, TaskData, TaskError, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Shout { text: String }
/// impl TaskData for Shout { const CLASSIFIER: &'static str = "Shout"; const API_VERSION: i32 = 1; }
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct Shouted { text: String }
/// impl TaskData for Shouted { const CLASSIFIER: &'static str = "Shouted"; const API_VERSION: i32 = 1; }
///
/// struct Shouter;
/// impl Worker for Shouter {
///     type Input = Shout;
///     type Output = Shouted;
///     async fn run(&self, task: Shout, _: Context) -> Result<Reply<Shouted>, TaskError> {
///         let loud = task.text.parse::<u64>().map(|_| "numbers cannot shout").or_fail().err();
///         Ok(Reply::send(Shouted { text: loud.map_or("?".into(), |_| task.text.to_uppercase()) }))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let run = batchwright::testing::run(&Shouter, Shout { text: "hey".into() }).await;
/// assert_eq!(run.sent().unwrap().text, "HEY");
/// # }
/// ```
pub trait Worker: Send + Sync + 'static {
    /// The task data that the worker takes.
    type Input: TaskData;
    /// The task data that the worker sends to its output pipe; [`NoOutput`] if it sends nothing.
    type Output: TaskData;
    /// Whether the time limit that a job sets for its tasks (`taskTimeLimit`) holds for those of
    /// this worker. It does not for the splits of the batch worker, whose time depends on all that
    /// is behind them.
    const IS_LIMITED_BY_JOB: bool = true;
    /// Whether the worker also takes bundles: messages with many small tasks of one split. What a
    /// worker with long tasks gets in a bundle it sends on, message by message, to whoever has a
    /// slot for it.
    const TAKES_BUNDLES: bool = true;

    /// Does one task. An error propagated with `?` means that the task runs again later; see
    /// [`TaskError`].
    fn run(
        &self,
        task: Self::Input,
        ctx: Context,
    ) -> impl Future<Output = Result<Reply<Self::Output>, TaskError>> + Send;

    /// Returns what answers the questions of job services about tasks of this worker that are not
    /// there yet. By default nobody asks.
    fn answerer(&self) -> Option<Arc<dyn Answerer>> {
        None
    }
}

/// The result of a task that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<O>(pub(crate) ReplyKind<O>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplyKind<O> {
    Send {
        output: O,
        to: Option<String>,
        is_failure: bool,
        ends_tracking: bool,
        note: Option<Vec<u8>>,
        /// The output is dropped if there is no pipe for it.
        if_wanted: bool,
    },
    None,
    PassOn,
}

impl<O> Reply<O> {
    /// Sends the output to the worker's output pipe. The task is complete.
    pub const fn send(output: O) -> Self {
        Self(ReplyKind::Send {
            output,
            to: None,
            is_failure: false,
            ends_tracking: false,
            note: None,
            if_wanted: false,
        })
    }

    /// Sends a negative result to the worker's output pipe. The task is complete, not failed; to
    /// fail it, use [`OrFail`].
    pub const fn failure(output: O) -> Self {
        Self(ReplyKind::Send {
            output,
            to: None,
            is_failure: true,
            ends_tracking: false,
            note: None,
            if_wanted: false,
        })
    }

    /// Sends nothing. The task is complete.
    pub const fn none() -> Self {
        Self(ReplyKind::None)
    }

    /// Sends nothing, and leaves the task open. Something that this worker has started must report
    /// it under its job task id.
    pub const fn pass_on() -> Self {
        Self(ReplyKind::PassOn)
    }

    /// Sends the output to this pipe instead of the worker's output pipe.
    #[must_use]
    pub fn to(mut self, pipe: impl Into<String>) -> Self {
        if let ReplyKind::Send { to, .. } = &mut self.0 {
            *to = Some(pipe.into());
        }
        self
    }

    /// Sends the output only if there is a pipe for it: one of this reply, of the worker or of the
    /// job. Otherwise the task is complete without it; by default it fails.
    #[must_use]
    pub fn if_wanted(mut self) -> Self {
        if let ReplyKind::Send { if_wanted, .. } = &mut self.0 {
            *if_wanted = true;
        }
        self
    }

    /// Completes the task with this output, regardless of where its tracking was to end. Workers
    /// downstream are no longer part of the job.
    #[must_use]
    pub fn and_complete(mut self) -> Self {
        if let ReplyKind::Send { ends_tracking, .. } = &mut self.0 {
            *ends_tracking = true;
        }
        self
    }

    /// Leaves a note in the message for a later task of this service; see [`Context::note`].
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Vec<u8>>) -> Self {
        if let ReplyKind::Send { note: own, .. } = &mut self.0 {
            *own = Some(note.into());
        }
        self
    }
}

/// The output type of a worker that sends none. It has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoOutput {}

impl TaskData for NoOutput {
    const CLASSIFIER: &'static str = "None";
    const API_VERSION: i32 = 1;
}

/// Why a task was not done, and what happens to it.
///
/// The operator `?` converts any error into one that means *run again*: each `std::error::Error`, a
/// boxed one, a text, and those of `anyhow` and `eyre`. [`OrFail`] converts it into one that means
/// *failed* or *invalid* instead.
///
/// ```
/// # use batchwright_framework as batchwright;
/// use batchwright::{OrFail, TaskError};
///
/// fn size_of(path: &str) -> anyhow::Result<u64> {
///     Ok(std::fs::metadata(path)?.len())
/// }
///
/// fn twice_the_size(path: &str) -> Result<u64, TaskError> {
///     if path.is_empty() {
///         Err("there is no path").or_fail()?;
///     }
///     Ok(2 * size_of(path)?)
/// }
///
/// assert!(format!("{:?}", twice_the_size("").unwrap_err()).starts_with("Failed: there is no path"));
/// assert!(format!("{:?}", twice_the_size("/none").unwrap_err()).starts_with("Retry: "));
/// ```
pub struct TaskError {
    pub(crate) kind: TaskErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskErrorKind {
    Retry,
    Failed,
    Invalid,
    Unavailable,
    Snooze(Duration),
    GoOn(Duration),
    Blocked,
    Cancelled,
}

/// What a task waits for, and the pipe to which it goes meanwhile, once that is known.
#[derive(Debug, thiserror::Error)]
#[error("{} ({})", self.condition.code(), self.condition.reason())]
struct WaitsFor {
    condition: Condition,
    pipe: Option<String>,
}

impl TaskError {
    /// The task runs again, after the delays and as often as the worker's [`crate::RetryPolicy`]
    /// allows. After that it fails, with a copy for the reject pipe.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Retry,
            source: reason.into(),
        }
    }

    /// The task fails. Running it again would not help.
    pub fn failed(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Failed,
            source: reason.into(),
        }
    }

    /// The task was not understood. It fails as an invalid task.
    pub fn invalid(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Invalid,
            source: reason.into(),
        }
    }

    /// Something that the worker depends on is unavailable, for any task. The worker takes no new
    /// tasks and reports that it is not ready. It runs this task again, with growing delays, until
    /// it is available. No attempt is counted.
    pub fn unavailable(what: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Unavailable,
            source: what.into(),
        }
    }

    /// The task runs again after this delay. Nothing is wrong, and no attempt is counted.
    pub fn snooze(delay: Duration) -> Self {
        Self {
            kind: TaskErrorKind::Snooze(delay),
            source: "the task is snoozed".into(),
        }
    }

    /// The task has dispatched a part of its subtasks. It runs again after this delay, and goes on
    /// behind them ([`Context::resume`]). They run meanwhile. Nothing is wrong, and no attempt is
    /// counted.
    pub fn go_on(delay: Duration) -> Self {
        Self {
            kind: TaskErrorKind::GoOn(delay),
            source: "the task goes on later".into(),
        }
    }

    /// The task waits for a condition outside of it, such as a database that is away, while other
    /// tasks run. The job service keeps the task, tests the condition, and sends the task again
    /// once it has passed; if the condition expires, the task fails. No attempt is counted.
    ///
    /// A task of no job runs again like after `?`, and so does one whose job service keeps no such
    /// tasks.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// use batchwright::{Condition, ConditionCode, TaskError, Tester};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
    ///     .parameter("database", "orders")?
    ///     .tested_by(Tester::Tcp { host: "db.example.com".into(), port: 5432 })?
    ///     .because("connection refused");
    /// let error = TaskError::blocked(condition);
    /// assert_eq!(error.to_string(), "DATABASE_NOT_AVAILABLE (connection refused)");
    /// # Ok(()) }
    /// ```
    pub fn blocked(condition: Condition) -> Self {
        let pipe = None;
        Self {
            kind: TaskErrorKind::Blocked,
            source: Box::new(WaitsFor { condition, pipe }),
        }
    }

    fn waits_for(&self) -> Option<&WaitsFor> {
        self.source.downcast_ref()
    }

    /// Returns the condition that the task waits for, if it waits for one.
    pub(crate) fn condition(&self) -> Option<&Condition> {
        self.waits_for().map(|it| &it.condition)
    }

    /// Returns the pipe to which the task goes while it waits, once that is known.
    pub(crate) fn waits_in(&self) -> Option<&str> {
        self.waits_for()?.pipe.as_deref()
    }

    /// Says to which pipe the task goes while it waits.
    pub(crate) fn waiting_in(mut self, pipe: String) -> Self {
        if let Some(waits_for) = self.source.downcast_mut::<WaitsFor>() {
            waits_for.pipe = Some(pipe);
        }
        self
    }

    pub(crate) fn cancelled() -> Self {
        Self {
            kind: TaskErrorKind::Cancelled,
            source: "the job has ended".into(),
        }
    }

    /// Returns the text of the deepest source of the error.
    pub(crate) fn root(&self) -> String {
        let mut deepest: &(dyn Error + 'static) = &*self.source;
        while let Some(source) = deepest.source() {
            deepest = source;
        }
        deepest.to_string()
    }

    /// Returns the text of the error and of all its sources, outermost first.
    pub fn chain(&self) -> String {
        let mut text = self.source.to_string();
        let mut source = self.source.source();
        while let Some(error) = source {
            let shown = error.to_string();
            // The `Display` of some errors repeats their source.
            if !text.ends_with(&shown) {
                text.push_str(": ");
                text.push_str(&shown);
            }
            source = error.source();
        }
        text
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.chain())
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain())
    }
}

/// Converts an error into a [`TaskError`] that does not let the task run again.
pub trait OrFail<T> {
    /// Fails the task; see [`TaskError::failed`].
    fn or_fail(self) -> Result<T, TaskError>;
    /// Fails the task as an invalid one; see [`TaskError::invalid`].
    fn or_invalid(self) -> Result<T, TaskError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrFail<T> for Result<T, E> {
    fn or_fail(self) -> Result<T, TaskError> {
        self.map_err(TaskError::failed)
    }

    fn or_invalid(self) -> Result<T, TaskError> {
        self.map_err(TaskError::invalid)
    }
}
