//! The request and response bodies of the REST API. Times are in milliseconds since 1970, UTC.
//!
//! The OpenAPI document shows the doc comments of these types and fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod attempts;
mod conditions;
mod events;
mod expiry;
mod history;
mod letters;
mod new_job;
mod tasks;
mod tokens;

pub use crate::on_failure::{Above, FailureLimit, InvalidLimit, OnFailure, Share, Tolerance};
pub use crate::outputs::{
    ExportLine, ExportManifest, ExportPart, ExportProgress, KeptOutputs, OutputStatus, Outputs,
};
pub use crate::problem::{ErrorBody, ErrorCode};
pub use crate::uploads::{SourceCommit, UploadedSource, UploadedSources};
use crate::{JobShare, ReportFailure, TaskTimeLimit};
pub use attempts::{EarlierFailure, FailedAttempt};
pub use conditions::{
    BlockedTasks, BlockingCondition, ConditionState, WaitedCondition, WaitedConditions,
};
pub use events::{EventReset, JobEvent, JobEventKind};
pub use expiry::{Expiry, ExpiryOperation, ExpiryPolicy, Policer};
pub use history::{History, StatusChange};
pub use letters::{
    DeadLetter, DeadLetters, DeletedLetters, LetterCause, LetterNumbers, RefusedReplay,
    ReplayedLetter, ReplayedLetters,
};
pub use new_job::{JobChange, JobTask, NewJob, TaskDataEncoding};
pub use tasks::{
    CurvePoint, ListedTask, ProgressCurve, SubtaskState, TaskCounts, TaskEntry, TaskRange, Tasks,
};
pub use tokens::{
    Access, AccessRole, CreatedToken, InvalidPartitions, NewToken, Partitions, Token, Tokens,
};

/// The largest body of a request that the job service accepts, in bytes.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A job and its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// The job id.
    pub id: String,
    /// The display name.
    pub name: Option<String>,
    /// The description from the request.
    pub description: Option<String>,
    /// The client's own data from the request.
    pub external_data: Option<String>,
    /// The time of the creation, in milliseconds since 1970.
    pub create_time: i64,
    /// The time of the last change, in milliseconds since 1970.
    pub last_update_time: i64,
    /// The status.
    pub status: JobStatus,
    /// The progress: 0 to 100, with two decimals. 100 exactly if the job is Completed. Never
    /// decreases, unless a Completed job that tolerates failures is taken up again.
    pub percentage_complete: f64,
    /// The first failures with all details: at most 100, and fewer if they are large.
    /// `failureCounts` counts all failures.
    pub failures: Vec<Failure>,
    /// The labels from the request.
    pub labels: BTreeMap<String, Option<String>>,
    /// What happens to the job when a task fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The number of tasks that workers have completed. Tasks that only split into subtasks do not
    /// count.
    #[serde(default)]
    pub completed_items: i64,
    /// The items of the job, by what has become of them.
    #[serde(default)]
    pub items: Items,
    /// The part of the items that is done or has failed, in percent. Null while the total can still
    /// change.
    #[serde(default)]
    pub progress: Option<f64>,
    /// The time at which the first report of a task was counted, in milliseconds since 1970. Null
    /// before, or if it is not known.
    #[serde(default)]
    pub start_time: Option<i64>,
    /// The time at which the job finished, in milliseconds since 1970. Null before.
    #[serde(default)]
    pub end_time: Option<i64>,
    /// How many items end in a second: of an active job, as measured over the last 10 to 20
    /// seconds; of a finished one, over the whole time. Null if there is nothing to measure it by.
    #[serde(default)]
    pub items_per_second: Option<f64>,
    /// The time at which the job ends if its items go on ending at this rate, in milliseconds since
    /// 1970. Null if the total or the rate is not known, and for a job that is not active.
    #[serde(default)]
    pub estimated_end_time: Option<i64>,
    /// The number of tasks that have failed for good.
    #[serde(default)]
    pub failed_tasks: i64,
    /// The number of failures by `failureId`.
    #[serde(default)]
    pub failure_counts: BTreeMap<String, i64>,
    /// The number of failed attempts that another attempt follows, in all rounds; of one task and
    /// round at most a thousand. Absent if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_attempts: i64,
    /// The earliest time at which one of the tasks in `items.retrying` is due for its next attempt,
    /// in milliseconds since 1970. Absent if none is known to wait for a later time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<i64>,
    /// The incarnation: distinguishes this job from earlier jobs with the same id.
    #[serde(default)]
    pub incarnation: i64,
    /// The round, from 2 for a job that was taken up again. Absent in the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// How long the job is kept after it has finished. Absent if it is kept forever.
    #[serde(default, skip_serializing_if = "Expiry::is_empty")]
    pub expiry: Expiry,
    /// The time at which the job is deleted, as its policy says, in milliseconds since 1970. Absent
    /// before its end, and if it is kept forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<i64>,
    /// The jobs that must complete before this one starts. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<AwaitedJob>,
    /// The delay of the start in seconds, after the creation or after the completion of the last
    /// prerequisite. Absent if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: i64,
    /// The time at which a delayed job starts, in milliseconds since 1970. Absent if it is not
    /// known yet or the job has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_time: Option<i64>,
    /// Whether the job waits until its partition is dispatched. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The correlation id of the request that created the job. All messages of the job carry it.
    /// Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The outputs that the service keeps. Absent if the job does not keep its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<KeptOutputs>,
    /// When failed tasks run again, with all limits: the retry policy of the request. Absent if the
    /// workers' own policies apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// The seconds that one attempt at each task may take, as the request says. Absent if only the
    /// limits of the workers apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<u32>, minimum = 1, maximum = 604_800))]
    pub task_time_limit: Option<TaskTimeLimit>,
    /// The weight of the job beside the other jobs of its partition. Absent if it is 100.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<u32>, minimum = 1, maximum = 1000))]
    pub share: JobShare,
    /// Who has created the job; absent where callers need no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What blocks the job: how many of its tasks wait for conditions, and since when; except in
    /// lists also for which. Absent if none waits. The status does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedTasks>,
    /// The names of the fields of which a list with `brief=true` shows only the beginning. Absent
    /// if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
    /// Remarks on the job, for example how a job without a target pipe completes. Absent if there
    /// are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Job {
    /// Returns the status that people are shown: Blocked, while nothing of an active job is under
    /// way but tasks that wait for conditions.
    #[must_use]
    pub fn shown_status(&self) -> JobStatus {
        let blocked = self.blocked.as_ref();
        let is_blocked = blocked.is_some_and(|blocked| blocked.nothing_else_under_way);
        match self.status {
            JobStatus::Active if is_blocked => JobStatus::Blocked,
            status => status,
        }
    }

    /// Returns whether every task of the job is done.
    #[must_use]
    pub fn is_all_done(&self) -> bool {
        self.status == JobStatus::Completed && self.failed_tasks == 0
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_usual(share: &JobShare) -> bool {
    *share == JobShare::USUAL
}

/// The items of a job. Null stands for what is not known before the first task is reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Items {
    /// The number of items that are known: those that splits have announced.
    pub total: Option<i64>,
    /// Whether every split has announced all its items and sub-batches. Splitters that do not say
    /// which of their subtasks are items, as Java's, leave this false until the job is Completed.
    pub total_is_final: bool,
    /// The number of items that are done. Exact.
    pub done: i64,
    /// The number of tasks that have failed for good; a sub-batch that has failed counts as one.
    pub failed: i64,
    /// The number of items that wait for another attempt, or run it.
    pub retrying: Option<i64>,
    /// Approximate: the number of items that a worker has reported as running (those that report
    /// progress, and those that have run for a second), and of those in the slots of workers, as
    /// these tell every five seconds. What runs for less than a second on a worker that does not
    /// tell counts as waiting.
    pub running: Option<i64>,
    /// Approximate: the number of all other items.
    pub waiting: Option<i64>,
}

/// A prerequisite of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AwaitedJob {
    /// The id of the prerequisite.
    pub job_id: String,
    /// The status of the prerequisite. Null if the job does not exist yet.
    pub status: Option<JobStatus>,
}

/// The status of a job. JSON, SQL and logs use the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum JobStatus {
    /// The job has started and is not finished.
    Active,
    /// The job is Active, and nothing of it is under way but tasks that wait for conditions. No job
    /// is stored with this status: filters, counts, metrics and the web page compute it.
    Blocked,
    /// A client cancelled the job, or a job that it waited for was cancelled.
    Cancelled,
    /// All tasks are done.
    Completed,
    /// The job failed, or a job that it waited for failed.
    Failed,
    /// A client paused the job.
    Paused,
    /// The job has not started yet.
    Waiting,
}

impl JobStatus {
    /// The statuses that a job can have: all but Blocked, which people are shown for Active.
    pub const STORED: [Self; 6] = [
        Self::Active,
        Self::Cancelled,
        Self::Completed,
        Self::Failed,
        Self::Paused,
        Self::Waiting,
    ];

    /// All statuses, in alphabetical order.
    pub const ALL: [Self; 7] = [
        Self::Active,
        Self::Blocked,
        Self::Cancelled,
        Self::Completed,
        Self::Failed,
        Self::Paused,
        Self::Waiting,
    ];

    /// Returns the name of the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Blocked => "Blocked",
            Self::Cancelled => "Cancelled",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Paused => "Paused",
            Self::Waiting => "Waiting",
        }
    }

    /// Returns the status with exactly this name. `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Returns whether the job has ended. Workers discard the messages of such a job.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed)
    }
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The failure of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The kind of failure, e.g. `RESULT_EXCEPTION`.
    pub failure_id: Option<String>,
    /// The time of the failure, in milliseconds since 1970.
    pub failure_time: Option<i64>,
    /// The worker that reported the failure.
    pub failure_source: Option<String>,
    /// The description of the failure.
    pub failure_message: Option<String>,
    /// The id of the failed task, e.g. `3.17`. Empty for the job's first task.
    #[serde(default)]
    pub task_id: String,
    /// What the item is, e.g. `lines 100..200 of a.txt`. Absent if the worker did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The beginning of the task data, at most 1 KiB, as text. Absent if the worker did not report
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// When the attempt that failed began, in milliseconds since 1970. Absent if the worker did not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<i64>,
    /// The host on which it ran. Absent if the worker did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The number of the process on that host. Absent if the worker did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

impl Failure {
    /// Returns the reported failure of a task.
    pub fn of_task(task_id: impl Into<String>, failure: ReportFailure) -> Self {
        let ReportFailure {
            failure_id,
            failure_time,
            failure_source,
            failure_message,
            item,
            run,
        } = failure;
        let (item, run) = (item.unwrap_or_default(), run.unwrap_or_default());
        Self {
            failure_id,
            failure_time,
            failure_source,
            failure_message,
            task_id: task_id.into(),
            label: item.label,
            input: item.input,
            start_time: run.began,
            host: run.host,
            process: run.process,
        }
    }
}

/// A page of the failures of a job, or its failures in groups.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Failures {
    /// The number of tasks that have failed for good, including those whose failures are not kept.
    pub failed_tasks: i64,
    /// The number of failures that are kept. Those beyond are only counted.
    pub kept: i64,
    /// The failures, oldest first. Empty if they are grouped.
    pub failures: Vec<Failure>,
    /// The parameter `after` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The failures by kind and message, the largest group first. Absent unless they are grouped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<FailureGroup>>,
    /// The number of failures that are in no group: those that are not kept, and those beyond the
    /// thousandth group. Absent unless they are grouped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ungrouped: Option<i64>,
}

/// The failures with the same kind and message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailureGroup {
    /// The kind of failure.
    pub failure_id: Option<String>,
    /// The beginning of the message that the failures share, at most 1 KiB.
    pub failure_message: Option<String>,
    /// The number of failures.
    pub count: i64,
    /// When the first of them was counted, in milliseconds since 1970.
    pub first_time: i64,
    /// When the last of them was counted, in milliseconds since 1970.
    pub last_time: i64,
    /// The first of them.
    pub example: Failure,
}

/// A line of the kept outputs of a job: the output of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct KeptOutput {
    /// The number of the line, from 0. A client that was interrupted asks for `?offset=` the next
    /// number.
    pub offset: u64,
    /// The path from the job to the task, e.g. `3.17`; `0` for the job's first task.
    pub task: String,
    /// The label of the item. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether this is a result or a failure.
    pub status: OutputStatus,
    /// Whether the result is a negative one: the task is done, and its worker says that it was not
    /// successful. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub negative: bool,
    /// The result, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<serde_json::Value>))]
    pub output: Option<serde_json::Value>,
    /// The result as base64, if it is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_base64: Option<String>,
    /// The failure of a task that has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The path from the job to the task, e.g. `3.17`; `0` for the job's first task.
    pub id: String,
    /// The status.
    pub status: TaskState,
    /// The time at which the task reached this status, in milliseconds since 1970. Null if only the
    /// status is stored.
    pub since: Option<i64>,
    /// The number of attempts that have failed. Null if no worker reported it.
    pub attempts: Option<i32>,
    /// The last reported failure.
    pub failure: Option<Failure>,
    /// When a task that waits for another attempt is due for it, in milliseconds since 1970. Absent
    /// for any other task, and if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<i64>,
    /// The number of subtasks. Null unless the task has split and is not done.
    pub subtasks: Option<i64>,
    /// The number of completed subtasks. Null unless the task has split and is not done.
    pub completed_subtasks: Option<i64>,
    /// What is not known about the task: whether it existed, if all that is stored is that a task
    /// above it is completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// The failures of the task in earlier rounds of the job, up to ten rounds back. Absent if
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_failures: Vec<EarlierFailure>,
    /// The failed attempts of the task in all rounds of the job, oldest first; of each round the
    /// first twenty and the last one. Absent if there are none, or if the job had more than it
    /// keeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<FailedAttempt>,
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum TaskState {
    /// No worker has reported the task yet.
    Waiting,
    /// The task is running, or has split and is not done.
    Active,
    /// An attempt failed; the task will be retried.
    Retrying,
    /// The task and all its subtasks are done.
    Completed,
    /// The task has failed for good.
    Failed,
}

/// A request to run a job again as a new one.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Resubmit {
    /// The id of the new job. By default the service makes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Whether the new job has the id of the job and takes its place. The job must have ended.
    pub same_id: bool,
}

/// A job that was created, or that the same request created before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubmittedJob {
    /// The id of the job.
    pub job_id: String,
    /// What the service ignored of the request. Absent if it ignored nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A job that was taken up again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    /// The id of the job.
    pub job_id: String,
    /// The number of the round that has begun, from 2.
    pub round: u32,
    /// The status of the job: Active; Waiting, if it never started; or Completed, if nothing was
    /// left to do.
    pub status: JobStatus,
    /// The jobs that had ended with this one and wait for it again.
    pub dependents: Vec<String>,
    /// The jobs that had ended with this one and are left as they are.
    pub fallen: Vec<String>,
    /// What the service ignored of the request. Absent if it ignored nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The result of a bulk retry.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetriedJobs {
    /// The number of jobs that were taken up again, dependents included.
    pub jobs_retried: u64,
    /// The number of jobs that match and could not be taken up again.
    pub jobs_refused: u64,
    /// The first hundred of these, and why. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusedRetry>,
    /// What the service ignored of the request. Absent if it ignored nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A job that could not be taken up again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedRetry {
    /// The id of the job.
    pub job_id: String,
    /// Why, as in the response to a retry of this job.
    pub message: String,
}

/// The header of every error response of the job service. Its value is an [`ErrorCode`], e.g.
/// `JOB_NOT_FOUND`.
pub const ERROR_HEADER: &str = "x-batchwright-error";

/// The header of a 404 of the job service that says that a job does not exist. Its value is `job`.
/// By this header a worker knows that the answer to a status check is not a gateway's.
pub const NOT_FOUND_HEADER: &str = "x-batchwright-not-found";
