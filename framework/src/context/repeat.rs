//! Splits that are made again in a later round of their job: they pass over the subtasks that are
//! done.
//!
//! What must stay true:
//! - Nothing is passed over unless the job service says that it is done, and that the split was
//!   made from the same source.
//! - A split from another source fails. The numbers of its subtasks stand for others than those
//!   that are done.
//! - An answer that does not come is never taken for "nothing is done": the task waits.

use std::collections::VecDeque;
use std::fmt;

use contract::headers::job_and_path;
use contract::{JobTaskId, SourceDigest, SplitState, SubtaskRange};
use sha2::{Digest as _, Sha256};
use tracing::debug;

use super::{Context, Split};
use crate::TaskError;
use crate::job_service::SplitQueryError;

/// What a task makes its subtasks from; see [`Context::repeatable`].
///
/// Add everything that decides which subtasks there are, and in which order: the names of files,
/// the rows of a table, the size of a page. Leave out what may change without making other
/// subtasks.
///
/// ```
/// # use batchwright_framework as batchwright;
/// use batchwright::Source;
///
/// let names = ["a.tif", "b.tif"];
/// let mut source = Source::new("the folder scans");
/// names.iter().for_each(|name| source.add(name));
/// ```
#[derive(Clone)]
pub struct Source {
    name: String,
    digest: Sha256,
}

impl Source {
    /// Returns a source with nothing in it. People read the name if the source has changed: `the
    /// folder scans`.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            digest: Sha256::new(),
        }
    }

    /// Adds a part to the digest. Neither the order of the parts nor where one ends can change
    /// without changing it.
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.digest.update((part.len() as u64).to_le_bytes());
        self.digest.update(part);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn digest(&self) -> SourceDigest {
        SourceDigest(self.digest.clone().finalize().into())
    }
}

/// Sources are equal if a later round takes one for the other: by their digests, whatever their
/// names.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

impl Eq for Source {}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .field("digest", &self.digest())
            .finish()
    }
}

/// How a split is made again.
#[derive(Debug)]
pub(super) struct Repeat {
    pub(super) source: Source,
    /// The subtasks to pass over; `None` if there are none.
    done: Option<Done>,
    /// Why no more subtasks are dispatched.
    failed: Option<RepeatError>,
}

/// What the report of the size of a split says, and whether it was sent.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    is_sent: bool,
    digest: Option<SourceDigest>,
}

impl Announcement {
    /// Notes that the report is sent. Returns the digest in it.
    pub const fn send(&mut self) -> Option<SourceDigest> {
        self.is_sent = true;
        self.digest
    }
}

/// Why a split is not made again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RepeatError {
    #[error(
        "the source of task {task} has changed since round {round}: {name}. What is done of the task was made from the earlier \
         source, so that nothing is made from this one. Restore the source and retry the job, or create the job again"
    )]
    Changed {
        task: String,
        round: u32,
        name: String,
    },
    #[error(
        "the source of task {task} has changed within round {round}: {name}. Nobody knows any more what is done of the task. \
         Create the job again"
    )]
    Contradictory {
        task: String,
        round: u32,
        name: String,
    },
    #[error(
        "it is not known what an earlier round has done of task {task}, and it may not be asked: {reason}"
    )]
    NotAllowed { task: String, reason: String },
    #[error("it is not known what an earlier round has done of task {task}: {reason}")]
    NoAnswer { task: String, reason: String },
    #[error("the job has ended")]
    Ended,
    #[error(
        "`repeatable` comes first, then the number of subtasks (`expect_subtasks` or `expect_parts`), then `resume`, then the first \
         subtask; correct the worker"
    )]
    Order,
}

impl RepeatError {
    pub const fn is_permanent(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. } | Self::Ended)
    }

    pub fn of_task(&self) -> TaskError {
        match self {
            Self::NoAnswer { .. } => TaskError::unavailable(self.to_string()),
            Self::Ended => TaskError::cancelled(),
            _ => TaskError::failed(self.to_string()),
        }
    }
}

impl Context {
    /// Says from what this task makes its subtasks, so that a later round of the job dispatches
    /// only those that are not done.
    ///
    /// Call it before the number of subtasks is told, and that before the first of them is
    /// dispatched. When the job is taken up again, this asks the job service which subtasks are
    /// done, and [`Self::dispatch`] passes over them. The author's code is the same in every round:
    /// it dispatches all subtasks, in the same order.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// use batchwright::{Context, Reply, Source, TaskData, TaskError, Worker};
    /// # use batchwright::NoOutput;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Folder { names: Vec<String> }
    /// # impl TaskData for Folder { const CLASSIFIER: &'static str = "Folder"; const API_VERSION: i32 = 1; }
    /// # #[derive(Serialize, Deserialize)]
    /// # struct File { name: String }
    /// # impl TaskData for File { const CLASSIFIER: &'static str = "File"; const API_VERSION: i32 = 1; }
    ///
    /// struct Files;
    /// impl Worker for Files {
    ///     type Input = Folder;
    ///     type Output = NoOutput;
    ///     async fn run(&self, folder: Folder, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         let mut source = Source::new("the list of files");
    ///         folder.names.iter().for_each(|name| source.add(name));
    ///         ctx.repeatable(&source).await?;
    ///         ctx.expect_subtasks(folder.names.len() as u32);
    ///         for name in folder.names {
    ///             ctx.dispatch("files", &File { name }).await?;
    ///         }
    ///         Ok(Reply::none())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let names = vec!["a".to_owned(), "b".to_owned()];
    /// let run = batchwright::testing::run(&Files, Folder { names }).await;
    /// assert_eq!(run.dispatched::<File>().len(), 2);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error, and the task then ends with it whatever the author's code makes of it, if
    /// - the source is not the one from which an earlier round has made this split: the task fails,
    ///   with the name of the source;
    /// - the job service does not answer at the URL in the message: the task comes again after a
    ///   second. No attempt is counted, and the worker goes on with other tasks, for which another
    ///   service may answer;
    /// - the job service may not be asked, because its URL in the message is not allowed: the task
    ///   fails;
    /// - the calls come in another order: the task fails.
    pub async fn repeatable(&self, source: &Source) -> Result<(), TaskError> {
        let mut split = self.0.split.lock().await;
        let mut repeat = Repeat {
            source: source.clone(),
            done: None,
            failed: None,
        };
        let begun = self.begin_repeat(&split, &mut repeat).await;
        let result = begun.map_err(|error| self.refuse_repeat(&mut repeat, error));
        split.repeat = Some(Box::new(repeat));
        result
    }

    async fn begin_repeat(&self, split: &Split, repeat: &mut Repeat) -> Result<(), RepeatError> {
        let mut digest = Some(repeat.source.digest());
        if split.count > 0 || split.repeat.is_some() || self.announcement().is_sent {
            return Err(RepeatError::Order);
        }
        if self.is_of_later_round() {
            let state = self.split_state(&repeat.source, 0).await?;
            if state.known && !state.completed && state.digest.is_none() {
                // Somebody has made it from what is not known. What is done of that must not count
                // as done of this.
                digest = None;
            }
            debug!(ranges = state.done.len(), "passes over what is done");
            repeat.done = Some(Done::of(state));
        }
        self.announcement().digest = digest;
        Ok(())
    }

    /// Passes over the next subtask if it is done, as [`Self::dispatch`] would. Returns whether it
    /// is: then the caller leaves it out. A task that dispatches only what fits
    /// ([`Self::room`]) needs no room for it.
    ///
    /// # Errors
    /// As [`Self::dispatch`].
    pub async fn pass_over_next(&self) -> Result<bool, TaskError> {
        let mut split = self.0.split.lock().await;
        Ok(split.repeat.is_some() && self.pass_over(&mut split).await?)
    }

    /// Returns whether the next subtask is done. It has its number all the same.
    pub(super) async fn pass_over(&self, split: &mut Split) -> Result<bool, TaskError> {
        let next = split.count + 1;
        let known = split.repeat.as_ref().and_then(|it| it.done.as_ref()?.up_to);
        if known.is_some_and(|up_to| next > up_to) {
            // What is gathered does not wait for the answer.
            split.send_gathered(&self.0.shared);
        }
        let Some(repeat) = &mut split.repeat else {
            return Ok(false);
        };
        if let Some(error) = &repeat.failed {
            return Err(error.of_task());
        }
        if split.count == 0 && !self.announcement().is_sent {
            return Err(self.refuse_repeat(repeat, RepeatError::Order));
        }
        let Some(done) = &mut repeat.done else {
            return Ok(false);
        };
        // More than once for a split that goes on far behind.
        while let Some(up_to) = done.up_to.filter(|up_to| next > *up_to) {
            match self.split_state(&repeat.source, up_to).await {
                Ok(state) => *done = Done::of(state),
                Err(error) => return Err(self.refuse_repeat(repeat, error)),
            }
        }
        let is_done = done.contains(next);
        split.count += u32::from(is_done);
        Ok(is_done)
    }

    /// Asks which subtasks behind this one are done.
    async fn split_state(&self, source: &Source, after: u32) -> Result<SplitState, RepeatError> {
        let (input, job_service) = (&self.0.input, &self.0.shared.job_service);
        let task = || {
            let path = input.job_task_id().and_then(job_and_path);
            path.map_or_else(String::new, |(_, path)| path.into_owned())
        };
        let Some(tracking) = &input.tracking else {
            return Ok(SplitState::default());
        };
        let state = match job_service.split_state(tracking, after).await {
            Ok(state) => state,
            Err(SplitQueryError::Gone) => return Err(RepeatError::Ended),
            Err(SplitQueryError::NotAllowed(reason)) => {
                let task = task();
                return Err(RepeatError::NotAllowed { task, reason });
            }
            Err(SplitQueryError::NoAnswer(reason)) => {
                let task = task();
                return Err(RepeatError::NoAnswer { task, reason });
            }
        };
        let (round, name) = (state.round.unwrap_or(1), || source.name.clone());
        if state.contradictory {
            let (task, name) = (task(), name());
            return Err(RepeatError::Contradictory { task, round, name });
        }
        if state.digest.is_some_and(|digest| digest != source.digest()) {
            let (task, name) = (task(), name());
            return Err(RepeatError::Changed { task, round, name });
        }
        Ok(state)
    }

    /// Returns whether the job was taken up again: an earlier round may have done some of the
    /// subtasks.
    pub fn is_of_later_round(&self) -> bool {
        self.round() > 1
    }

    /// Returns the round of the job.
    pub(super) fn round(&self) -> u32 {
        let id = self.0.input.job_task_id();
        let id = id.and_then(|id| JobTaskId::parse(id).ok());
        id.map_or(1, |id| id.round)
    }

    fn refuse_repeat(&self, repeat: &mut Repeat, error: RepeatError) -> TaskError {
        repeat.failed = Some(error.clone());
        self.refuse(error.into())
    }
}

/// The subtasks that are done, as far as one answer tells.
#[derive(Debug)]
struct Done {
    /// In order. Those before the next subtask are gone.
    ranges: VecDeque<SubtaskRange>,
    /// The last subtask that the answer tells about; `None` if there are no further ones.
    up_to: Option<u32>,
}

impl Done {
    fn of(state: SplitState) -> Self {
        Self {
            ranges: state.done.into(),
            up_to: state.up_to,
        }
    }

    /// Returns whether this subtask is done. Numbers must not fall.
    fn contains(&mut self, number: u32) -> bool {
        while self.ranges.front().is_some_and(|it| it.last < number) {
            self.ranges.pop_front();
        }
        self.ranges.front().is_some_and(|it| it.first <= number)
    }
}
