//! What happens to all jobs.

use serde::{Deserialize, Serialize};

use super::JobStatus;

/// Something that has happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobEvent {
    /// The id of the event. Later events have larger ids.
    pub id: i64,
    /// What has happened.
    pub event: JobEventKind,
    /// The partition of the job.
    pub partition_id: String,
    /// The id of the job.
    pub job_id: String,
    /// When, in milliseconds since 1970.
    pub time: i64,
    /// The status before. Null for the creation.
    pub from: Option<JobStatus>,
    /// The status after. Null for the deletion.
    pub to: Option<JobStatus>,
    /// The round that the change belongs to, or that it begins.
    pub round: u32,
    /// Who made the change, as in the history of the job. Absent if a job was deleted directly in
    /// the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Why, in a short phrase. Absent if a job was deleted directly in the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The correlation id of the request that caused the change, as in the history of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The id of the job whose end caused the change. Absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prerequisite: Option<String>,
}

/// What has happened to a job; the name of the server-sent event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum JobEventKind {
    /// It was created.
    Created,
    /// Its status has changed.
    Status,
    /// It was deleted.
    Deleted,
}

impl JobEventKind {
    /// Returns the name of the server-sent event.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Status => "status",
            Self::Deleted => "deleted",
        }
    }
}

/// The data of an event `reset`: events may be missing before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventReset {
    /// Why, and what to do.
    pub message: String,
    /// The id after which the stream goes on.
    pub after: i64,
}
