//! The bodies of the REST API. Times are milliseconds since 1970, UTC.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ReportFailure;

/// What a client sends to create a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NewJob {
    /// A name for people, at most 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Anything the client wants to find again with the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_data: Option<String>,
    /// The first task of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<JobTask>,
    /// Keys match `[A-Za-z0-9_:-]+`; keys and values have at most 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// What a failed task means for the job.
    pub on_failure: OnFailure,
    /// The id of a job type, which makes the first task from `parameters`; instead of `task`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// What the job type asks for: any JSON that its schema allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<serde_json::Value>,
    /// How long the job is kept once it has ended, by how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    /// Jobs to wait for: the job starts when all are Completed. `id,pc` is waited for only if there is such a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prerequisite_job_ids: Option<Vec<Option<String>>>,
    /// Seconds to wait before the start, from the creation or from the completion of the last prerequisite. Null and what is below 0
    /// count as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<i32>,
}

/// The first task of a job, sent to `taskPipe`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct JobTask {
    /// Names the type of the task data, e.g. `BatchWorker`.
    pub task_classifier: Option<String>,
    /// The version of the type of the task data, from 1.
    pub task_api_version: Option<i32>,
    /// The payload: text, or an object that is sent as its JSON.
    #[cfg_attr(feature = "utoipa", schema(schema_with = text_or_object))]
    pub task_data: Option<serde_json::Value>,
    /// How a payload given as text is encoded (`utf8` when left out).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_data_encoding: Option<TaskDataEncoding>,
    /// The pipe of the worker that does the first task.
    pub task_pipe: Option<String>,
    /// The pipe at which tracking ends. Without one the job completes by workers that send no output.
    pub target_pipe: Option<String>,
}

#[cfg(feature = "utoipa")]
fn text_or_object() -> utoipa::openapi::Schema {
    use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Type};
    let of_type = |of: Type| ObjectBuilder::new().schema_type(of);
    OneOfBuilder::new()
        .description(Some(
            "The payload: text, or an object that is sent as its JSON.",
        ))
        .item(of_type(Type::String))
        .item(of_type(Type::Object))
        .build()
        .into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskDataEncoding {
    Utf8,
    Base64,
}

/// What a failed task means for its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The first failed task fails the job.
    #[default]
    Stop,
    /// The job goes on; its outcome is decided when every task is done or has failed.
    Continue,
}

impl OnFailure {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
        }
    }
}

/// A job as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub id: String,
    pub name: Option<String>,
    pub description: Option<String>,
    pub external_data: Option<String>,
    pub create_time: i64,
    pub last_update_time: i64,
    pub status: JobStatus,
    /// 0 to 100, two decimals. Never falls; 100 exactly when the job is Completed.
    pub percentage_complete: f64,
    /// The first failures in full; `failureCounts` has them all.
    pub failures: Vec<Failure>,
    pub labels: BTreeMap<String, Option<String>>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Tasks done by a worker; splits do not count.
    #[serde(default)]
    pub completed_items: i64,
    /// Tasks that have failed and are not tried again.
    #[serde(default)]
    pub failed_tasks: i64,
    /// How often each kind of failure was reported, by `failureId`.
    #[serde(default)]
    pub failure_counts: BTreeMap<String, i64>,
    /// The number of this life of the job id.
    #[serde(default)]
    pub incarnation: i64,
    /// How long the job is kept once it has ended; absent = for ever.
    #[serde(default, skip_serializing_if = "Expiry::is_empty")]
    pub expiry: Expiry,
    /// The jobs that must be completed before this one starts; absent when it waits for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<AwaitedJob>,
    /// Seconds between the creation, or the completion of the last prerequisite, and the start; absent when 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: i64,
    /// When a job with a delay is dispatched, while that is known and not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_time: Option<i64>,
    /// Whether the job is kept until the jobs of its partition are dispatched; absent when not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// What is worth knowing about the job; absent when there is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A job that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AwaitedJob {
    pub job_id: String,
    /// Null when there is no such job yet.
    pub status: Option<JobStatus>,
}

/// How long a job is kept once it has ended, by how it ended. Where nothing is said, the default of the service holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", default, deny_unknown_fields)]
pub struct Expiry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<ExpiryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<ExpiryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<ExpiryPolicy>,
}

impl Expiry {
    pub const fn is_empty(&self) -> bool {
        self.completed.is_none() && self.failed.is_none() && self.cancelled.is_none()
    }

    /// The policies, with the names of their statuses.
    pub fn policies(&mut self) -> impl Iterator<Item = (JobStatus, &mut ExpiryPolicy)> {
        let all = [
            (JobStatus::Completed, &mut self.completed),
            (JobStatus::Failed, &mut self.failed),
            (JobStatus::Cancelled, &mut self.cancelled),
        ];
        all.into_iter()
            .filter_map(|(status, policy)| Some((status, policy.as_mut()?)))
    }

    /// Takes on the policies of `default` where there is none.
    #[must_use]
    pub fn or(self, default: &Self) -> Self {
        let either = |own: Option<ExpiryPolicy>, default: &Option<ExpiryPolicy>| {
            own.or_else(|| default.clone())
        };
        Self {
            completed: either(self.completed, &default.completed),
            failed: either(self.failed, &default.failed),
            cancelled: either(self.cancelled, &default.cancelled),
        }
    }
}

/// When a job is deleted that has come to a certain end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpiryPolicy {
    /// `none`, a moment (`2027-01-31T00:00:00Z`), or a span from a time of the job (`lastUpdateTime+P1D`, `createTime+PT9H`).
    pub expiry_time: String,
    /// What is done then.
    #[serde(default)]
    pub operation: ExpiryOperation,
    /// Who has said so. Not read in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policer: Option<Policer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum ExpiryOperation {
    /// The job is deleted, as if by a client.
    #[default]
    Delete,
    /// The job would be kept with a status of its own. This service has none, so a request with it is refused.
    Expire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum Policer {
    /// Whoever created the job.
    User,
    /// The configuration of the service.
    System,
}

/// The status of a job. Spelled like this everywhere: JSON, SQL, logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum JobStatus {
    Active,
    /// In recovery: waits for a condition outside the system to clear.
    Blocked,
    Cancelled,
    Completed,
    Failed,
    Paused,
    Waiting,
}

impl JobStatus {
    pub const ALL: [Self; 7] = [
        Self::Active,
        Self::Blocked,
        Self::Cancelled,
        Self::Completed,
        Self::Failed,
        Self::Paused,
        Self::Waiting,
    ];

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

    /// The status with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Whether the outcome is decided: messages of the job are discarded.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed)
    }
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a task of a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    pub failure_id: Option<String>,
    pub failure_time: Option<i64>,
    pub failure_source: Option<String>,
    pub failure_message: Option<String>,
    /// The task that failed, e.g. `3.17`; empty for the job's own first task.
    #[serde(default)]
    pub task_id: String,
}

impl Failure {
    pub fn of_task(task_id: impl Into<String>, failure: ReportFailure) -> Self {
        let ReportFailure {
            failure_id,
            failure_time,
            failure_source,
            failure_message,
        } = failure;
        Self {
            failure_id,
            failure_time,
            failure_source,
            failure_message,
            task_id: task_id.into(),
        }
    }
}

/// What is known about one task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The way from the job to the task, e.g. `3.17`.
    pub id: String,
    pub status: TaskState,
    /// When the task came into this status; null where only the status itself is kept.
    pub since: Option<i64>,
    /// How often a worker has tried it, where a retry or failure was reported.
    pub attempts: Option<i32>,
    pub failure: Option<Failure>,
    /// How many subtasks it was split into, its own final answer included; null when it is no open split.
    pub subtasks: Option<i64>,
    /// How many of its subtasks are done; null when it is no open split.
    pub completed_subtasks: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum TaskState {
    /// Nothing has been reported yet.
    Waiting,
    /// Under way, or split and not done.
    Active,
    /// Failed and to be tried again.
    Retrying,
    Completed,
    Failed,
}

/// Every error of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// What is wrong, and where it can be told, the remedy.
    pub message: String,
}
