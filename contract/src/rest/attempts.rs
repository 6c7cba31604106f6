//! The failed attempts of a task.

use serde::{Deserialize, Serialize};

use super::Failure;

/// A failed attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailedAttempt {
    /// The round of the job, from 1.
    pub round: u32,
    /// The number of the attempt in its round, from 1. Null if the worker did not report it.
    pub attempt: Option<i32>,
    /// When and where the attempt ran, and why it failed.
    pub failure: Failure,
    /// When the task was due for the next attempt, in milliseconds since 1970. Absent if it began
    /// at once, or none followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<i64>,
}

/// A failure of a task in an earlier round of its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EarlierFailure {
    /// The number of the round.
    pub round: u32,
    /// The time at which the failure was counted, in milliseconds since 1970.
    pub since: i64,
    /// The number of attempts that had failed. Null if no worker reported it.
    pub attempts: Option<i32>,
    /// The failure.
    pub failure: Failure,
}
