//! The questions of job services to batch workers about a batch whose job does not exist yet, and
//! the answers.
//!
//! Both sides may be of another version: a field that is not known is ignored, and a question that
//! is not known has no answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A question about a batch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchQuery {
    /// What is asked.
    pub question: Question,
    /// The task data of the batch ([`BatchTask`](crate::BatchTask)).
    pub task: Box<RawValue>,
    /// The size of the definition in bytes, if it is too large to be sent and not part of the task
    /// data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition_bytes: Option<u64>,
    /// The partition of the job, whose uploads the batch may name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// What is asked about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// Whether it can be split.
    Check,
    /// What it would be split into.
    Explain,
    /// Whether its items would run, as far as its parameters say it. It is asked about the pipe of
    /// the items.
    CheckItems,
    /// What another version asks.
    #[serde(other)]
    Other,
}

/// What a batch worker answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchAnswer {
    /// Why the batch cannot be split. Null if it can, as far as is known.
    pub refusal: Option<Refusal>,
    /// Why it is not known whether it can be split.
    pub doubt: Option<String>,
    /// What it would be split into, if that was asked.
    pub explanation: Option<Explanation>,
}

/// Why a batch cannot be split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Refusal {
    /// The reason, for people.
    pub message: String,
    /// Whether a source is missing that may be there later.
    pub missing: bool,
}

/// What a batch would be split into.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// The batch plugin.
    pub batch_type: String,
    /// Whether the numbers are those of the whole batch. If not, they are those of the part that
    /// was looked at: there are at least as many.
    pub exact: bool,
    /// The number of items.
    pub items: u64,
    /// The number of batches and sub-batches that are split.
    pub splits: u64,
    /// The number of messages that the splits send: the items and the sub-batches.
    pub messages: u64,
    /// The bytes of the task data of these messages.
    pub bytes: u64,
    /// How many splits lead to an item, at the most.
    pub levels: u32,
    /// Which part of the batch was looked at, from 0 to 1. Null if the numbers are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<f64>,
    /// About how many items there are in all, if the rest is like the part that was looked at. Null
    /// if the numbers are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_items: Option<u64>,
    /// What would be wrong with a sub-batch, which would fail. The numbers are those before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Why a job with this batch is refused: it has more items than a job may have. The numbers are
    /// those that it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The first items.
    pub first: Vec<ExplainedItem>,
    /// The last items, without those among the first ones. Empty if they cannot be found in time.
    pub last: Vec<ExplainedItem>,
    /// The pipe that receives the items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pipe: Option<String>,
    /// What the service ignores of the request, and why the numbers say so little, if they do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// An item that a batch would become.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedItem {
    /// What the item is, in a few words.
    pub label: String,
    /// The type of its task data (`taskClassifier`).
    pub item_type: String,
    /// The beginning of its task data.
    pub data: String,
}
