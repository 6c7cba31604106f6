//! Failures that are kept: the first hundred in full, the others within bounds. So are the failures
//! of attempts that another attempt follows.
//!
//! What must stay true: what failures cost is bounded for each failure, task, job and flush,
//! however many tasks and attempts have failed.

use contract::{FailedItem, FailedRun, ReportFailure};
use serde::{Deserialize, Serialize};

use super::UNNAMED_FAILURE;

/// The number of failures of a job that are kept in full, and that the job itself shows.
pub const FAILURES_IN_FULL: usize = 100;
/// The number of failed attempts of a task that are kept of each round, the last one not counted.
pub const ATTEMPTS_OF_A_TASK: i32 = 20;
/// The number of failed attempts of a task that count for its job. A worker that reports an absurd
/// number would use up alone what is kept of all tasks.
pub const COUNTED_OF_A_TASK: i32 = 1000;
/// The number of failed attempts that are kept of one job in one flush.
pub const ATTEMPTS_OF_A_FLUSH: usize = 1000;
/// The longest message of another failure, in bytes.
const MESSAGE_BYTES: usize = 1024;
/// The longest kind and the longest source of another failure, in bytes: as long as the tracking
/// worker leaves them.
const NAME_BYTES: usize = 255;
/// The end of a text that was cut.
const MORE: &str = " …";

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

/// A failed attempt of a task that another attempt follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAttempt {
    /// The path of the task; empty for the job's own.
    pub path: String,
    /// The number of the attempt in its round, from 1.
    pub attempt: i32,
    /// When it was counted, in milliseconds since 1970.
    pub since: i64,
    /// When the next attempt is due, in milliseconds since 1970. `None` if it begins at once, or if
    /// that is not known.
    pub next: Option<i64>,
    pub failure: ReportFailure,
}

/// The JSON of a stored failure.
#[derive(Serialize, Deserialize)]
struct Stored<F> {
    #[serde(flatten)]
    failure: F,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<FailedItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<FailedRun>,
}

impl KeptFailure {
    /// Returns the number of attempts, all of which have failed, as far as it is known.
    pub fn attempts(&self) -> Option<i32> {
        let reported = self.failure.run.as_ref().and_then(|run| run.attempt);
        let reported = reported.and_then(|attempt| i32::try_from(attempt).ok());
        reported.or(self.attempts)
    }

    /// Returns the bytes of its texts.
    pub fn bytes(&self) -> usize {
        let ReportFailure {
            failure_id,
            failure_source,
            failure_message,
            item,
            run,
            ..
        } = &self.failure;
        let item = item.as_ref();
        let texts = [
            failure_id.as_ref(),
            failure_source.as_ref(),
            failure_message.as_ref(),
            item.and_then(|item| item.label.as_ref()),
            item.and_then(|item| item.input.as_ref()),
            run.as_ref().and_then(|run| run.host.as_ref()),
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        self.path.len() + texts.sum::<usize>()
    }

    /// Returns the failure as JSON.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        failure_json(&self.failure)
    }
}

/// Returns a failure as JSON.
pub fn failure_json(failure: &ReportFailure) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Stored {
        failure,
        item: failure.item.clone(),
        run: failure.run.clone(),
    })
}

/// Parses the JSON of a stored failure.
pub fn parse_failure(json: &str) -> Result<ReportFailure, serde_json::Error> {
    let Stored { failure, item, run } = serde_json::from_str::<Stored<ReportFailure>>(json)?;
    Ok(ReportFailure {
        item,
        run,
        ..failure
    })
}

/// Returns the kind by which a failure is counted. It is the same of a failure and of what is kept
/// of it.
pub fn failure_kind(failure: &ReportFailure) -> String {
    let kind = failure.failure_id.as_deref();
    kind.map_or_else(|| UNNAMED_FAILURE.to_owned(), |kind| cut(kind, NAME_BYTES))
}

/// Cuts a failure, so that thousands of them take little room.
pub fn bounded(failure: &ReportFailure) -> ReportFailure {
    let cut = |text: &Option<String>, bytes| text.as_ref().map(|text| cut(text, bytes));
    ReportFailure {
        failure_id: cut(&failure.failure_id, NAME_BYTES),
        failure_time: failure.failure_time,
        failure_source: cut(&failure.failure_source, NAME_BYTES),
        failure_message: cut(&failure.failure_message, MESSAGE_BYTES),
        item: failure.item.clone().map(FailedItem::bounded),
        run: failure.run.clone().map(FailedRun::bounded),
    }
}

/// Cuts a text after this number of bytes. What was cut before stays as it is.
fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes + MORE.len() {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}{MORE}", &text[..end])
}
