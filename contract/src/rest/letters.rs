//! Dead letters: messages that were given up, rejected, not understood or not deliverable, and that
//! the job service keeps.

use serde::{Deserialize, Serialize};

use super::ErrorCode;
use crate::PipeMessage;

/// Why a message became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum LetterCause {
    /// Its worker has given the task up after its last attempt.
    GivenUp,
    /// Processes died each time they ran the task.
    Poison,
    /// Nobody understands the message.
    NotUnderstood,
    /// The message can never get where it belongs.
    Unroutable,
}

impl LetterCause {
    /// All causes.
    pub const ALL: [Self; 4] = [
        Self::GivenUp,
        Self::Poison,
        Self::NotUnderstood,
        Self::Unroutable,
    ];

    /// Returns the name as in JSON and in headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GivenUp => "givenUp",
            Self::Poison => "poison",
            Self::NotUnderstood => "notUnderstood",
            Self::Unroutable => "unroutable",
        }
    }

    /// Returns the cause with exactly this name. `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

/// A dead letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The number of the letter. A later letter has a higher one.
    pub id: i64,
    /// When the letter was kept, in milliseconds since 1970, UTC.
    pub time: i64,
    /// Why it is dead.
    pub cause: LetterCause,
    /// The reason in words; empty if nobody has given one.
    pub reason: String,
    /// The reject or invalid pipe in which it was found.
    pub pipe: String,
    /// The pipe from which it came, and to which a replay sends it. Absent if the message does not
    /// say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The worker that has given it up or rejected it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The number of attempts at the task, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The partition of its job. Absent if the message belongs to no job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_id: Option<String>,
    /// The job. Absent if the message belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The task, by its path in the job, such as `3.17`; `0` is the first task of the job. Absent
    /// if the message belongs to no job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The label of the item, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The bytes of the body.
    pub bytes: u64,
    /// Whether only the beginning of the body is kept, because it is too large. Such a letter
    /// cannot be replayed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The message: headers and body. Absent in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<PipeMessage>,
}

/// How many dead letters there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LetterNumbers {
    /// The number of letters that are kept.
    pub kept: u64,
    /// The bytes of them.
    pub bytes: u64,
    /// The number of letters above the bound of their job. They are in overflow pipes.
    pub overflowed: u64,
    /// The number of letters that were deleted because they were too old.
    pub expired: u64,
    /// Whether no further letter is kept until some are deleted or replayed. They wait in their
    /// pipes.
    pub full: bool,
}

/// A page of dead letters.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DeadLetters {
    /// The letters, the latest first.
    pub dead_letters: Vec<DeadLetter>,
    /// The parameter `after` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The numbers of all letters, whatever the filter.
    pub numbers: LetterNumbers,
}

/// A letter that was replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReplayedLetter {
    /// The number of the letter, which is no letter any more.
    pub id: i64,
    /// The pipe to which the message is sent.
    pub pipe: String,
    /// The round in which its job counts it. Absent if the message belongs to no job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
}

/// What became of the letters that a request replays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ReplayedLetters {
    /// The number of letters that are sent again.
    pub replayed: u64,
    /// The number of letters that cannot be replayed. They stay.
    pub refused: u64,
    /// Whether further letters match: send the request again, with `after`.
    pub more: bool,
    /// The parameter `after` of the next request. Absent if no further letter matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Why letters were refused: the first hundred of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusedReplay>,
}

/// A letter that was not replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedReplay {
    /// The number of the letter.
    pub id: i64,
    /// The code that the replay of this letter alone returns.
    pub code: ErrorCode,
    /// Why, and what to do instead.
    pub message: String,
}

/// How many letters a request has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DeletedLetters {
    /// The number of letters that are deleted.
    pub deleted: u64,
    /// Whether further letters match: send the request again.
    pub more: bool,
}
