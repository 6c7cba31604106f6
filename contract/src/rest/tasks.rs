//! The tasks of a job: its tree, a page at a time, and their number.

use serde::{Deserialize, Serialize};

use super::{Failure, Task};

/// The state of a task in a list of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum SubtaskState {
    /// The task has failed for good.
    Failed,
    /// An attempt has failed; the task waits for another one.
    Retrying,
    /// A worker has reported that the task runs, or the task has split and is not done.
    Running,
    /// Nothing is known of the task: it waits, or it has not run for long; or its job has ended
    /// before the task was done.
    Waiting,
    /// The task waits for a condition outside the system to clear.
    Blocked,
    /// The task and all its subtasks are done.
    Done,
}

impl SubtaskState {
    /// All states, those first that need attention.
    pub const ALL: [Self; 6] = [
        Self::Failed,
        Self::Retrying,
        Self::Running,
        Self::Waiting,
        Self::Blocked,
        Self::Done,
    ];

    /// Returns the name as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Retrying => "retrying",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Done => "done",
        }
    }

    /// Returns the state with exactly this name. `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A page of the tasks of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Tasks {
    /// The task whose subtasks these are.
    pub task: Task,
    /// The subtasks, in the order of their numbers; tasks alone and ranges.
    pub tasks: Vec<TaskEntry>,
    /// The parameter `after` of the next page. Absent on the last page. A page may have fewer tasks
    /// than asked for, or none, and yet a next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What is not stored any more. Absent if everything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A range of tasks or a task alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum TaskEntry {
    /// Tasks in the same state of which nothing else is stored.
    Range(TaskRange),
    /// One task.
    Task(Box<ListedTask>),
}

/// Subtasks of one task that are in the same state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskRange {
    /// The id of the task whose subtasks these are, e.g. `3`; `0` for the job's first task.
    pub under: String,
    /// The number of the first one.
    pub first: u32,
    /// The number of the last one. The next page may go on with the same range.
    pub last: u32,
    /// The state of all of them.
    pub state: SubtaskState,
}

/// A task in a list of tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListedTask {
    /// The path from the job to the task, e.g. `3.17`.
    pub id: String,
    /// The state.
    pub state: SubtaskState,
    /// What the item is. Absent if no attempt of the task has failed, or if the worker did not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The time at which the task reached this state, in milliseconds since 1970. Absent if only
    /// the state is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// The number of attempts that have failed. Absent if no worker reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// The last reported failure. Absent if there is none, or if it is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The number of subtasks. Absent unless the task has split, is not done, and has reported the
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtasks: Option<i64>,
    /// The number of completed subtasks. Absent unless the task has split and is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_subtasks: Option<i64>,
    /// The progress of a task that runs, in percent, if it is above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The number of failures below this task that are kept. Absent if there are none.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub failures_below: i64,
}

impl ListedTask {
    /// Returns a task of which nothing but the state is known.
    pub const fn new(id: String, state: SubtaskState) -> Self {
        Self {
            id,
            state,
            label: None,
            since: None,
            attempts: None,
            failure: None,
            subtasks: None,
            completed_subtasks: None,
            progress: None,
            failures_below: 0,
        }
    }
}

/// The number of tasks by state: of a job, or below one of its tasks. Tasks that only split into
/// subtasks do not count. Null stands for what is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskCounts {
    /// The id of the task below which they are counted; `0` for all of the job.
    pub under: String,
    /// The number of tasks that are known.
    pub total: Option<i64>,
    /// Whether every split has announced all its items and sub-batches.
    pub total_is_final: bool,
    /// The number of tasks that have failed for good; a sub-batch that has failed counts as one.
    pub failed: Option<i64>,
    /// The number of tasks that wait for another attempt, or run it.
    pub retrying: Option<i64>,
    /// Approximate: the number of tasks that a worker has reported as running.
    pub running: Option<i64>,
    /// Approximate: the number of all other tasks.
    pub waiting: Option<i64>,
    /// The number of tasks that wait for a condition outside the system to clear.
    pub blocked: Option<i64>,
    /// The number of tasks that are done.
    pub done: Option<i64>,
}

/// The progress of a job over time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProgressCurve {
    /// At most 240 points in the order of their times. The last one is the present state, or that
    /// at the end of the job.
    pub points: Vec<CurvePoint>,
    /// The number of items that are known. Null if it is not known.
    pub total: Option<i64>,
    /// Whether every split has announced all its items and sub-batches.
    pub total_is_final: bool,
}

/// What was done of a job at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CurvePoint {
    /// The time, in milliseconds since 1970.
    pub time: i64,
    /// The number of items that were done.
    pub done: i64,
    /// The number of tasks that had failed for good in this round.
    pub failed: i64,
}
