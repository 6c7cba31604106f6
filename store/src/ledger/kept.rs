//! Failures that are kept: the first hundred in full, the others within bounds.

use contract::{FailedItem, ReportFailure};
use serde::{Deserialize, Serialize};

use super::UNNAMED_FAILURE;

/// The number of failures of a job that are kept in full, and that the job itself shows.
pub const FAILURES_IN_FULL: usize = 100;
/// The longest message of another failure, in bytes.
const MESSAGE_BYTES: usize = 1024;
/// The longest kind and the longest source of another failure, in bytes.
const NAME_BYTES: usize = 256;

/// A failure of a task that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFailure {
    /// The path of the task; empty for the job's own.
    pub path: String,
    /// Milliseconds since 1970.
    pub since: i64,
    /// The number of attempts, all of which have failed. `None` if no retry was reported.
    pub attempts: Option<i32>,
    pub failure: ReportFailure,
}

/// The JSON of a stored failure.
#[derive(Serialize, Deserialize)]
struct Stored<F> {
    #[serde(flatten)]
    failure: F,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<FailedItem>,
}

impl KeptFailure {
    /// Returns the failure as JSON.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Stored {
            failure: &self.failure,
            item: self.failure.item.clone(),
        })
    }
}

/// Parses the JSON of a stored failure.
pub fn parse_failure(json: &str) -> Result<ReportFailure, serde_json::Error> {
    let Stored { failure, item } = serde_json::from_str::<Stored<ReportFailure>>(json)?;
    Ok(ReportFailure { item, ..failure })
}

/// Returns the kind by which a failure is counted.
pub fn failure_kind(failure: &ReportFailure) -> String {
    failure
        .failure_id
        .clone()
        .unwrap_or_else(|| UNNAMED_FAILURE.to_owned())
}

/// Cuts a failure, so that thousands of them take little room.
pub fn bounded(failure: &ReportFailure) -> ReportFailure {
    let cut = |text: &Option<String>, bytes: usize| {
        text.as_ref().map(|text| {
            let end = text.floor_char_boundary(bytes);
            let more = if end < text.len() { " …" } else { "" };
            format!("{}{more}", &text[..end])
        })
    };
    ReportFailure {
        failure_id: cut(&failure.failure_id, NAME_BYTES),
        failure_time: failure.failure_time,
        failure_source: cut(&failure.failure_source, NAME_BYTES),
        failure_message: cut(&failure.failure_message, MESSAGE_BYTES),
        item: failure.item.clone().map(FailedItem::bounded),
    }
}
