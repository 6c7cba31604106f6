//! The history of a job.

use serde::{Deserialize, Serialize};

use super::JobStatus;

/// A page of the history of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// The changes of the status, oldest first. The first one is the creation.
    pub history: Vec<StatusChange>,
    /// The number of changes after the first one that are not kept: a job keeps its first change
    /// and about the last 500. Absent if all are kept, and after the first page.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub left_out: i64,
    /// The parameter `after` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A change of the status of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusChange {
    /// When, in milliseconds since 1970.
    pub time: i64,
    /// The status before. Null for the creation.
    pub from: Option<JobStatus>,
    /// The status after.
    pub to: JobStatus,
    /// Who made the change: `client`, a request; `tracking`, the reports of workers;
    /// `prerequisite`, the end of a job that this one waited for; or `service`, the service itself.
    /// Later versions may add others.
    pub actor: String,
    /// Why, in a short phrase.
    pub reason: String,
    /// The round that the change belongs to, or that it begins.
    pub round: u32,
    /// The correlation id of the request that caused the change. Absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The id of the job whose end caused the change. Absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prerequisite: Option<String>,
}
