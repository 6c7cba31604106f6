//! Reads of parts of a job: of its task table, its failures by their places and in groups, its
//! progress over time, and the jobs that ended with it.

use contract::JobStatus;

use super::DbFuture;
use crate::ledger::{KeptFailure, NodeRow};

/// Subtasks of one task: their parent, and the numbers of the first and the last one.
#[derive(Debug, Clone, Copy)]
pub struct Siblings<'a> {
    pub incarnation: i64,
    /// The path of the task whose subtasks they are; empty for the job's own task.
    pub parent: &'a str,
    pub first: u32,
    pub last: u32,
}

/// A subtask that has failed, or with failures below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedBelow {
    pub number: u32,
    /// Whether its own failure is kept.
    pub own: bool,
    /// How many failures below are kept.
    pub below: i64,
}

/// The bytes of texts from which on a page of failures, or of dead letters, is full.
pub(crate) const PAGE_BYTES: usize = 256 * 1024;
/// How many bytes of their messages the failures of a group share. Less than what is kept of a
/// message that is cut.
pub const GROUPED_BYTES: usize = 1000;

/// Failures of a job that are kept, of the same kind, with the same beginning of the message.
#[derive(Debug, Clone)]
pub struct KeptGroup {
    /// The one that happened first.
    pub first: KeptFailure,
    pub count: i64,
    /// When the last one happened, in milliseconds since 1970.
    pub last: i64,
}

/// Reads of the parts of a job, outside transactions.
pub trait TreeReads {
    /// Returns the nodes of subtasks in the order of their numbers, at most `limit`, and without
    /// their bitmaps. A task table that has been swept has none.
    fn child_nodes<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<NodeRow>>;

    /// Returns how many items of unfinished jobs wait, by the pipe to which their batches send
    /// them, at most `limit` pipes.
    fn waiting_items(&self, limit: u32) -> DbFuture<'_, Vec<(String, u64)>>;

    /// Returns subtasks with failures that are kept, in the order of their numbers, at most
    /// `limit`.
    fn failed_below<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<FailedBelow>>;

    /// Returns the failures of these tasks, as far as they are kept.
    fn failures_at<'a>(
        &'a self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<KeptFailure>>;

    /// Returns the failures that are kept in groups, at most `limit` of these: the largest first,
    /// and of two of the same size the one that began first.
    fn failure_groups(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<KeptGroup>>;

    /// Returns the jobs that ended with this one before they started, and their statuses, oldest
    /// first, at most `limit`.
    fn fallen_jobs(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<(String, JobStatus)>>;

    /// Returns the points of the curve of a job.
    fn curve_of(&self, incarnation: i64) -> DbFuture<'_, Option<String>>;

    /// Returns how many failures of a task and below it are kept.
    fn count_failures_under<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, i64>;
}

/// Returns the part of a path that names the subtask of this parent, and whether it names a task
/// below that.
pub fn child_of(parent: &str, path: &str) -> Option<(u32, bool)> {
    let rest = if parent.is_empty() {
        path
    } else {
        path.strip_prefix(parent)?.strip_prefix('.')?
    };
    match rest.split_once('.') {
        Some((number, _)) => Some((number.parse().ok()?, true)),
        None => Some((rest.parse().ok()?, false)),
    }
}
