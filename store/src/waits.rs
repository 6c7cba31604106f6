//! What is known of the tasks of a job that wait for conditions, and whether people are shown the
//! job as Blocked. Pure.

use contract::JobStatus;
use contract::rest::BlockedTasks;

use crate::job_row::JobRow;
/// What is known of the tasks of a job that wait or were let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobWaits {
    pub incarnation: i64,
    /// How many were let go and have not ended since.
    pub let_go: u64,
    /// Since when the first of the others waits; `None` if none waits.
    pub since: Option<i64>,
}

/// Returns what blocks a job, without the conditions; `None` if no task of it waits.
pub(crate) fn describe(job: &JobRow, waits: &JobWaits) -> Option<BlockedTasks> {
    let tasks = u64::try_from(job.blocked_tasks).ok()?;
    // The job and its tasks were not read at the same moment.
    let tasks = tasks.saturating_sub(waits.let_go).max(1);
    Some(BlockedTasks {
        tasks,
        since: waits.since?,
        nothing_else_under_way: nothing_else_is_under_way(job, tasks),
        conditions: Vec::new(),
    })
}

/// Returns whether people are shown the job as Blocked. `db/sql/job_query.rs` has the same as a
/// condition.
pub(crate) fn is_shown_as_blocked(job: &JobRow, waits: &JobWaits) -> bool {
    let blocked = describe(job, waits).filter(|_| job.blocked_tasks > 0);
    job.status == JobStatus::Active && blocked.is_some_and(|it| it.nothing_else_under_way)
}

/// Returns whether all tasks of a job that are known and have not ended wait. Where that is not
/// known for certain, they do not.
fn nothing_else_is_under_way(job: &JobRow, waiting: u64) -> bool {
    let totals = &job.totals;
    let Some(counts) = &totals.counts else {
        // The job's own task is not split.
        return !job.task_table;
    };
    let failed_items = totals.failed_tasks - totals.failed_splits;
    let open_items = counts.total - totals.completed_items - failed_items;
    // A split that has failed may still count as one to come.
    let is_settled = totals.failed_splits == 0 || counts.unsettled == 0;
    is_settled && open_items + counts.unsettled == i64::try_from(waiting).unwrap_or(i64::MAX)
}
