//! Reads of a job's tree and curve: parts of its task table, its failures by their places, and its progress over time.

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

/// Reads of the parts of a job, outside transactions.
pub trait TreeReads {
    /// Returns the nodes of subtasks in the order of their numbers, at most `limit`, and without their bitmaps. A task table that
    /// has been swept has none.
    fn child_nodes<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<NodeRow>>;

    /// Returns subtasks with failures that are kept, in the order of their numbers, at most `limit`.
    fn failed_below<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<FailedBelow>>;

    /// Returns the failures of these tasks, as far as they are kept.
    fn failures_at<'a>(
        &'a self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<KeptFailure>>;

    /// Returns the points of the curve of a job.
    fn curve_of(&self, incarnation: i64) -> DbFuture<'_, Option<String>>;

    /// Returns how many failures of a task and below it are kept.
    fn count_failures_under<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, i64>;
}

/// Returns the part of a path that names the subtask of this parent, and whether it names a task below that.
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
