//! The outputs that the service keeps for a job: what a request asks for, and what the job says about them.

use serde::{Deserialize, Serialize};

/// What happens to the outputs of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outputs {
    /// The service keeps them, and `GET …/jobs/{jobId}/outputs` returns them.
    Keep,
}

/// The kept outputs of a job, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KeptOutputs {
    /// The number of tasks whose result is kept.
    pub done: i64,
    /// The number of tasks whose failure is kept. A task that is done later counts here, too.
    pub failed: i64,
    /// The number of bytes that are kept.
    pub bytes: i64,
    /// The number of results and failures that are not kept, because the job has reached a limit. Absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_kept: i64,
    /// Which limit that is. Absent if none was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why outputs wait to be kept, for example because a disk is full. Absent if none wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// When the outputs were removed because their time was over, in milliseconds since 1970. Absent if they are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed_time: Option<i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Whether an output is a result or a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OutputStatus {
    /// The output is the result of a task that is done.
    Done,
    /// The output is the failure of a task.
    Failed,
}
