//! What a worker author writes: one trait, one answer type, one error type.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use contract::TaskData;
use serde::{Deserialize, Serialize};

use crate::Context;

/// Does one kind of task.
///
/// One worker serves all tasks of a process, many at a time, so its state is shared. Work may be repeated: after a crash
/// a task comes again, so what `run` does outside should bear being done twice.
///
/// ```
/// use framework::{Context, OrFail, Reply, TaskData, TaskError, Worker};
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
/// let run = framework::testing::run(&Shouter, Shout { text: "hey".into() }).await;
/// assert_eq!(run.sent().unwrap().text, "HEY");
/// # }
/// ```
pub trait Worker: Send + Sync + 'static {
    /// What it is given.
    type Input: TaskData;
    /// What it sends to its output pipe; [`NoOutput`] when it sends nothing.
    type Output: TaskData;

    /// Does one task. `?` on any error means: try again later.
    fn run(
        &self,
        task: Self::Input,
        ctx: Context,
    ) -> impl Future<Output = Result<Reply<Self::Output>, TaskError>> + Send;
}

/// How a worker answers a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<O>(pub(crate) Answer<O>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer<O> {
    Send {
        output: O,
        to: Option<String>,
        is_failure: bool,
        ends_tracking: bool,
        context: Option<Vec<u8>>,
    },
    None,
    PassOn,
}

impl<O> Reply<O> {
    /// Sends the output to the worker's output pipe.
    pub const fn send(output: O) -> Self {
        Self(Answer::Send {
            output,
            to: None,
            is_failure: false,
            ends_tracking: false,
            context: None,
        })
    }

    /// Sends a negative result. The task is complete, not failed: use [`OrFail`] for what went wrong.
    pub const fn failure(output: O) -> Self {
        Self(Answer::Send {
            output,
            to: None,
            is_failure: true,
            ends_tracking: false,
            context: None,
        })
    }

    /// Nothing to send: the task is done, and tracking ends here.
    pub const fn none() -> Self {
        Self(Answer::None)
    }

    /// Nothing to send, and the task is not done: whatever this worker has set going will complete it.
    pub const fn pass_on() -> Self {
        Self(Answer::PassOn)
    }

    /// Sends the output to this pipe instead of the worker's output pipe.
    #[must_use]
    pub fn to(mut self, pipe: impl Into<String>) -> Self {
        if let Answer::Send { to, .. } = &mut self.0 {
            *to = Some(pipe.into());
        }
        self
    }

    /// The task is done with this output, wherever its tracking was to end: nobody after this worker is part of it.
    #[must_use]
    pub fn and_complete(mut self) -> Self {
        if let Answer::Send { ends_tracking, .. } = &mut self.0 {
            *ends_tracking = true;
        }
        self
    }

    /// Leaves a note in the message for a later visit to this service; see [`Context::note`].
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Vec<u8>>) -> Self {
        if let Answer::Send { context, .. } = &mut self.0 {
            *context = Some(note.into());
        }
        self
    }
}

/// The output of a worker that sends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoOutput {}

impl TaskData for NoOutput {
    const CLASSIFIER: &'static str = "None";
    const API_VERSION: i32 = 1;
}

/// Why a task could not be done, and what is to happen with it.
///
/// Any error turns into one by `?` and then means *try again*; [`OrFail`] says *failed* or *invalid* instead.
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
    Later(Duration),
    Cancelled,
}

impl TaskError {
    /// The task is tried again, after the delays and as often as the worker's [`crate::RetryPolicy`] says.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Retry,
            source: reason.into(),
        }
    }

    /// The task has failed; trying again would not help.
    pub fn failed(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Failed,
            source: reason.into(),
        }
    }

    /// The task was not understood.
    pub fn invalid(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Invalid,
            source: reason.into(),
        }
    }

    /// What the worker needs around it is down, whatever the task: the worker takes no new tasks, says so in its
    /// readiness, and runs this task again until it is not so any more. No attempt is spent.
    pub fn unavailable(what: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: TaskErrorKind::Unavailable,
            source: what.into(),
        }
    }

    /// It is not the task's time: it comes again after this delay. Nothing is wrong, and no attempt is spent.
    pub fn later(delay: Duration) -> Self {
        Self {
            kind: TaskErrorKind::Later(delay),
            source: "it is not the task's time".into(),
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self {
            kind: TaskErrorKind::Cancelled,
            source: "the job has ended".into(),
        }
    }

    /// The error and all its sources, outermost first.
    pub fn chain(&self) -> String {
        let mut text = self.source.to_string();
        let mut source = self.source.source();
        while let Some(error) = source {
            let shown = error.to_string();
            // Some libraries repeat the source in their own text.
            if !text.ends_with(&shown) {
                text.push_str(": ");
                text.push_str(&shown);
            }
            source = error.source();
        }
        text
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
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

/// Says of an error that trying again would not help.
pub trait OrFail<T> {
    /// The task has failed.
    fn or_fail(self) -> Result<T, TaskError>;
    /// The task was not understood.
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
