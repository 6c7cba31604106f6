//! Counts the tasks of a job, or below one of its tasks, by state: from the sums that the ledger
//! keeps.

use contract::rest::{Items, TaskCounts, TaskState};
use contract::{JobId, JobStatus, PartitionId, rest};

use super::shown_id;
use crate::db::{JobRow, sql};
use crate::jobs::{Progress, TaskAnswer};
use crate::ledger::{NodeRow, path_of};
use crate::{Result, Store};

/// What is known about the number of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountsAnswer {
    /// The numbers.
    Counts(TaskCounts),
    /// There is no such job.
    NoJob,
    /// The job has no such task, or did not have it when it ended.
    NoTask,
    /// The job has ended, and its tasks are no longer stored.
    NotKept,
}

impl Store {
    /// Counts the tasks below a task by state; those of the whole job for an empty path. A task
    /// without subtasks counts itself.
    pub async fn task_counts(
        &self,
        partition: &PartitionId,
        job: &JobId,
        under: &[u32],
    ) -> Result<CountsAnswer> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(CountsAnswer::NoJob);
        };
        if under.is_empty() {
            let items = Progress::of(&row, self.database.clock().now()).items;
            return Ok(CountsAnswer::Counts(of_items(&items)));
        }
        let task = match self.task(partition, job, under).await? {
            TaskAnswer::Task(task) => task,
            TaskAnswer::NoJob => return Ok(CountsAnswer::NoJob),
            TaskAnswer::NoTask => return Ok(CountsAnswer::NoTask),
            TaskAnswer::NotKnown => return Ok(CountsAnswer::NotKept),
        };
        let path = path_of(under.iter().copied());
        let is_all_done = row.status == JobStatus::Completed && row.totals.failed_tasks == 0;
        let split = if row.task_table && !is_all_done {
            let keys = [(path.clone(), 0)];
            let db = &mut self.database.reader().await?;
            sql::ledger::nodes(db, row.incarnation, &keys).await?.pop()
        } else {
            None
        };
        let counts = match split {
            Some(split) => {
                let failed = self.failed_under(&row, &path).await?;
                of_split(&row, &split, failed)
            }
            None => of_task(&task),
        };
        Ok(CountsAnswer::Counts(TaskCounts {
            under: shown_id(under),
            ..counts
        }))
    }

    /// Returns how many tasks have failed below this one and itself; `None` if not all failures of
    /// the job are kept.
    async fn failed_under(&self, row: &JobRow, path: &str) -> Result<Option<i64>> {
        let failed = row.totals.failed_tasks;
        if failed == 0 {
            return Ok(Some(0));
        }
        if sql::failures::count(&mut self.database.reader().await?, row.incarnation).await? < failed
        {
            return Ok(None);
        }
        let db = &mut self.database.reader().await?;
        let under = sql::views::count_failures_under(db, row.incarnation, path);
        Ok(Some(under.await?))
    }
}

fn of_items(items: &Items) -> TaskCounts {
    TaskCounts {
        under: shown_id(&[]),
        total: items.total,
        total_is_final: items.total_is_final,
        failed: Some(items.failed),
        retrying: items.retrying,
        running: items.running,
        waiting: items.waiting,
        blocked: Some(0),
        done: Some(items.done),
    }
}

fn of_split(row: &JobRow, split: &NodeRow, failed: Option<i64>) -> TaskCounts {
    let is_over = row.status.is_finished();
    let mut counts = split.counts_seen_from_above();
    if is_over {
        counts = counts.without_active_tasks();
    }
    let total = counts.total.max(split.items);
    let not_waiting = split.items + counts.retrying + counts.running;
    TaskCounts {
        total: Some(total),
        total_is_final: counts.unsettled == 0,
        failed,
        retrying: Some(counts.retrying.max(0)),
        running: Some(counts.running.max(0)),
        waiting: failed.map(|failed| (total - not_waiting - failed).max(0)),
        blocked: Some(0),
        done: Some(split.items),
        ..TaskCounts::default()
    }
}

/// Counts a task that is not an open split. How many tasks one had that is done is not stored.
fn of_task(task: &rest::Task) -> TaskCounts {
    let mut counts = TaskCounts {
        total: Some(1),
        total_is_final: true,
        failed: Some(0),
        retrying: Some(0),
        running: Some(0),
        waiting: Some(0),
        blocked: Some(0),
        done: Some(0),
        ..TaskCounts::default()
    };
    let one = Some(1);
    match task.status {
        TaskState::Completed => {
            (counts.total, counts.done) = (None, None);
            counts.total_is_final = false;
        }
        TaskState::Failed => counts.failed = one,
        TaskState::Retrying => counts.retrying = one,
        TaskState::Active => counts.running = one,
        TaskState::Waiting => counts.waiting = one,
    }
    counts
}
