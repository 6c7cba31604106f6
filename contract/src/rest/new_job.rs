//! The bodies that create a job, and change one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Expiry, OnFailure, Outputs};
use crate::{JobShare, RetryPolicy, TaskTimeLimit};

/// A request to create a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NewJob {
    /// A display name, at most 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A free-form description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Free-form data of the client. The service stores and returns it unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_data: Option<String>,
    /// The first task of the job. Required unless `type` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<JobTask>,
    /// Labels to select jobs by. Keys match `[A-Za-z0-9_:-]+`. Keys and values have at most 255
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// What happens to the job when a task fails.
    pub on_failure: OnFailure,
    /// The id of a job type that builds the first task from `parameters`. Cannot be combined with
    /// `task`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// The parameters of the job type: any JSON that its schema allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<serde_json::Value>,
    /// How long the job is kept after it has finished. Defaults to the service's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    /// The ids of the jobs to wait for. The job starts when all of them are Completed. With `id,pc`
    /// (*pre-created*), it waits only if that job exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prerequisite_job_ids: Option<Vec<Option<String>>>,
    /// The delay of the start, in seconds after the creation, or after the completion of the last
    /// prerequisite. Null and negative values count as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<i32>,
    /// What happens to the outputs of the tasks: `keep` lets the service keep them. Such a job has
    /// no `targetPipe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Outputs>,
    /// The seconds that one attempt at each task of the job may take, from 1 to 604800 (a week). An
    /// attempt that takes longer has failed, and the task runs again as its worker's retry policy
    /// says. A worker can have a limit of its own; then the smaller one counts. The splits of the
    /// batch worker are not limited. The limit is lost below a CAF worker written in Java.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<u32>, minimum = 1, maximum = 604_800))]
    pub task_time_limit: Option<TaskTimeLimit>,
    /// When failed tasks run again, instead of what their workers are set to: a preset or a policy.
    /// Workers ask for it at a task's first failure; Java workers do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// The weight of the job beside the other jobs of its partition, from 1 to 1000: one of 300
    /// gets three items through a pipe that they share for each item of one of 100. Partitions
    /// share a pipe equally. Defaults to 100; `PATCH` changes it while the job runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<u32>, minimum = 1, maximum = 1000))]
    pub share: Option<JobShare>,
}

/// What is changed of a job that has not ended. What is absent stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct JobChange {
    /// The weight of the job beside the other jobs of its partition, from 1 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<u32>, minimum = 1, maximum = 1000))]
    pub share: Option<JobShare>,
}

/// The first task of a job, sent to `taskPipe`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct JobTask {
    /// The type of the task data, e.g. `BatchWorker`.
    pub task_classifier: Option<String>,
    /// The version of that type, at least 1.
    pub task_api_version: Option<i32>,
    /// The task data: a string, or an object that is sent as JSON. In the object of a batch,
    /// `batchDefinition` may be JSON itself; its worker gets that as a string.
    #[cfg_attr(feature = "utoipa", schema(schema_with = text_or_object))]
    pub task_data: Option<serde_json::Value>,
    /// The encoding of task data that is a string. Default: `utf8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_data_encoding: Option<TaskDataEncoding>,
    /// The pipe of the worker that runs the first task.
    pub task_pipe: Option<String>,
    /// The pipe where tracking ends. Without a target pipe, the job completes only if its workers
    /// send no output.
    pub target_pipe: Option<String>,
}

#[cfg(feature = "utoipa")]
fn text_or_object() -> utoipa::openapi::Schema {
    use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Type};
    let of_type = |of: Type| ObjectBuilder::new().schema_type(of);
    OneOfBuilder::new()
        .description(Some(
            "The task data: a string, or an object that is sent as JSON. In the object of a batch, `batchDefinition` may be JSON itself; its \
             worker gets that as a string.",
        ))
        .item(of_type(Type::String))
        .item(of_type(Type::Object))
        .build()
        .into()
}

/// The encoding of task data that is a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskDataEncoding {
    /// The task data is the UTF-8 text itself.
    Utf8,
    /// The task data is the decoded base64.
    Base64,
}
