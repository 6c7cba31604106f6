//! Reads the tree of a job's tasks: the subtasks of a task, those in the same state as ranges, a
//! page at a time.
//!
//! What must stay true:
//! - What is read are rows of open splits, of active tasks and of failures, and never a row for
//!   each task. So the answer for a job of ten million items costs what is open or wrong in it.
//! - A page is bounded by its limit, by the number of its failures, and by the number of readings
//!   that it takes; further pages go on from there.
//! - Pages of any limit give the same tasks, each once, as long as the job does not change between
//!   them.

mod counts;
mod fold;
mod level;
mod query;
mod walk;

use contract::{JobId, JobStatus, PartitionId, rest};

pub use counts::CountsAnswer;
pub use query::{TaskCursor, TaskQuery};

use crate::jobs::{TaskAnswer, remark_of_done};
use crate::ledger::path_of;
use crate::{Result, Store};
use walk::Walk;

/// What is known about the subtasks of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TasksAnswer {
    /// A page of them.
    Tasks(Box<rest::Tasks>),
    /// There is no such job.
    NoJob,
    /// The job has no such task, or did not have it when it ended.
    NoTask,
    /// The job has ended, and its tasks are no longer stored.
    NotKept,
}

impl Store {
    /// Returns a page of the subtasks of a task.
    pub async fn tasks(
        &self,
        partition: &PartitionId,
        job: &JobId,
        query: &TaskQuery,
    ) -> Result<TasksAnswer> {
        let task = match self.task(partition, job, &query.under).await? {
            TaskAnswer::Task(task) => *task,
            TaskAnswer::NoJob => return Ok(TasksAnswer::NoJob),
            TaskAnswer::NoTask => return Ok(TasksAnswer::NoTask),
            TaskAnswer::NotKnown => return Ok(TasksAnswer::NotKept),
        };
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(TasksAnswer::NoJob);
        };
        let mut page = rest::Tasks {
            remark: task.remark.clone(),
            task: named(task, &query.under),
            tasks: Vec::new(),
            next: None,
        };
        if row.status == JobStatus::Completed && row.totals.failed_tasks == 0 {
            let own = row.totals.own_task.as_ref();
            let subtasks = own.and_then(|own| own.subtasks);
            match subtasks.filter(|_| query.under.is_empty()) {
                Some(size) => page.tasks.extend(all_done(size, query)),
                None => page.remark = Some(remark_of_done(page.remark)),
            }
            return Ok(TasksAnswer::Tasks(Box::new(page)));
        }
        if !row.task_table {
            return Ok(TasksAnswer::Tasks(Box::new(page)));
        }
        let mut walk = Walk::new(self, &row, query);
        if walk.begin().await? {
            (page.tasks, page.next) = walk.page().await?;
        } else if query.under.is_empty() && row.status.is_finished() {
            return Ok(TasksAnswer::NotKept);
        } else if page.task.status == rest::TaskState::Completed {
            page.remark = Some(remark_of_done(page.remark));
        }
        Ok(TasksAnswer::Tasks(Box::new(page)))
    }
}

/// Gives a task its id as the API has it: that of the job's own task is `0`.
fn named(task: rest::Task, path: &[u32]) -> rest::Task {
    rest::Task {
        id: shown_id(path),
        ..task
    }
}

/// Returns the id of a task in the API.
fn shown_id(path: &[u32]) -> String {
    if path.is_empty() {
        "0".to_owned()
    } else {
        path_of(path.iter().copied())
    }
}

/// Returns the subtasks of the own task of a Completed job, without the final one.
fn all_done(size: u32, query: &TaskQuery) -> Option<rest::TaskEntry> {
    let last = size.saturating_sub(1);
    let is_wanted = query.wants(rest::SubtaskState::Done) && query.after.is_none();
    (is_wanted && last > 0).then(|| entry_of_range(&[], (1, last), rest::SubtaskState::Done))
}

/// Returns the entry of subtasks in the same state.
fn entry_of_range(
    under: &[u32],
    (first, last): (u32, u32),
    state: rest::SubtaskState,
) -> rest::TaskEntry {
    if first == last {
        let id = path_of(under.iter().copied().chain([first]));
        return rest::TaskEntry::Task(Box::new(rest::ListedTask::new(id, state)));
    }
    rest::TaskEntry::Range(rest::TaskRange {
        under: shown_id(under),
        first,
        last,
        state,
    })
}
