//! What a viewer can do with a job.

use contract::JobStatus;

use crate::html::text;

/// What a viewer can do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// Take it up again.
    Retry,
    /// Cancel it.
    Cancel,
    /// Delete it.
    Delete,
}

impl Action {
    /// All actions, in the order of the buttons.
    pub const ALL: [Self; 5] = [
        Self::Pause,
        Self::Resume,
        Self::Retry,
        Self::Cancel,
        Self::Delete,
    ];

    /// Returns the action with this name in URLs.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }

    /// Returns the name on a button.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::Retry => "Retry",
            Self::Cancel => "Cancel",
            Self::Delete => "Delete",
        }
    }

    /// Returns what has been done: `paused`.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Retry => "taken up again",
            Self::Cancel => "cancelled",
            Self::Delete => "deleted",
        }
    }

    /// Returns what was done with so many jobs: `3 jobs were paused.`
    pub fn done_to(self, count: u64) -> String {
        let were = if count > 1 { "were" } else { "was" };
        match count {
            0 => format!("No job was {}.", self.done()),
            _ => format!("{} {were} {}.", text::counted(count, "job"), self.done()),
        }
    }

    /// Returns what the action means, for the page that asks whether to do it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pause => {
                "Running tasks continue to their end; no other task starts until the job is resumed."
            }
            Self::Resume => "The tasks that have waited are sent to their workers again.",
            Self::Retry => {
                "Another round begins, in which only what is not done counts. Tasks that are done stay done."
            }
            Self::Cancel => {
                "Tasks that have not begun are discarded. Jobs that wait for it are cancelled, too. A cancelled job can be retried."
            }
            Self::Delete => {
                "The job, its progress, its failures and its outputs are gone for good; a job that runs is cancelled first."
            }
        }
    }

    /// Returns whether the action is asked about before it is done.
    pub const fn is_grave(self) -> bool {
        matches!(self, Self::Cancel | Self::Delete)
    }

    /// Returns whether the action lets a job go on that has stopped.
    pub const fn goes_on(self) -> bool {
        matches!(self, Self::Resume | Self::Retry)
    }

    /// Returns whether the action is possible for a job with this status, of which so many tasks
    /// have failed.
    pub fn is_possible(self, status: JobStatus, failed: i64) -> bool {
        let is_done = status == JobStatus::Completed && failed == 0;
        self.possible_statuses().contains(&status) && !(self == Self::Retry && is_done)
    }

    /// Returns the statuses from which the action is possible; from Completed, [`Self::Retry`] is
    /// only if tasks have failed.
    pub const fn possible_statuses(self) -> &'static [JobStatus] {
        use JobStatus::{Active, Cancelled, Completed, Failed, Paused, Waiting};
        match self {
            Self::Pause => &[Active, Waiting],
            Self::Resume => &[Paused],
            Self::Retry => &[Failed, Cancelled, Completed],
            Self::Cancel => &[Active, Paused, Waiting],
            Self::Delete => &JobStatus::STORED,
        }
    }
}
