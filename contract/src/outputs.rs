//! The outputs that the service keeps for a job: what a request asks for, and what the job says
//! about them.

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
    /// The number of tasks whose failure is kept and that are not done since.
    pub failed: i64,
    /// The number of bytes that are kept.
    pub bytes: i64,
    /// The number of results and failures that are not kept, because the job has reached a limit.
    /// Absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_kept: i64,
    /// Which limit that is. Absent if none was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why outputs wait to be kept, for example because a disk is full. Absent if none wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// The blob that was found to be not as it was written, when outputs were last read or merged.
    /// Absent if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
    /// When the outputs were removed because their time was over, in milliseconds since 1970.
    /// Absent if they are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed_time: Option<i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// What an export has written: a manifest, which names the parts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExportManifest {
    /// The version of this form, 1.
    pub version: u32,
    /// The partition of the job.
    pub partition: String,
    /// The id of the job.
    pub job: String,
    /// The number of the incarnation of the job.
    pub incarnation: i64,
    /// The number of results and failures that were kept when the export began. The lines are fewer
    /// by the failures of tasks that were done later.
    pub kept: i64,
    /// The number of these failures.
    pub superseded: i64,
    /// The bytes from which on a part ends.
    pub part_bytes: u64,
    /// The number of lines in all parts.
    pub lines: u64,
    /// The number of bytes in all parts.
    pub bytes: u64,
    /// Whether the export is complete. If it is not, the same request continues it.
    pub complete: bool,
    /// The offset of the first output that is not in a part.
    pub next_offset: u64,
    /// The parts, in the order of their lines.
    pub parts: Vec<ExportPart>,
}

/// A file of an export: lines of JSON, as `GET …/outputs` returns them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExportPart {
    /// The name of the file, which is beside the manifest.
    pub name: String,
    /// The number of its lines.
    pub lines: u64,
    /// The number of its bytes.
    pub bytes: u64,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// How much of a part is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExportProgress {
    /// The number of lines.
    pub lines: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// A line of the response of an export: a part that is safe, and at the end the manifest or an
/// error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExportLine {
    /// This much of the next part is written. It is not safe yet.
    Progress(ExportProgress),
    /// A part is safe.
    Part(ExportPart),
    /// Everything is exported, and the manifest is safe.
    Manifest(ExportManifest),
    /// The export has stopped. The same request continues it.
    Error(String),
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
