//! How long jobs are kept after their end.

use serde::{Deserialize, Serialize};

use super::JobStatus;

/// How long a job is kept after it has finished, by its outcome. Where no policy is set, the
/// service's default applies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", default, deny_unknown_fields)]
pub struct Expiry {
    /// The policy for a Completed job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<ExpiryPolicy>,
    /// The policy for a Failed job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<ExpiryPolicy>,
    /// The policy for a Cancelled job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<ExpiryPolicy>,
}

impl Expiry {
    /// Returns whether no policy is set.
    pub const fn is_empty(&self) -> bool {
        self.completed.is_none() && self.failed.is_none() && self.cancelled.is_none()
    }

    /// Returns the policies that are set, each with the status to which it applies.
    pub fn policies(&mut self) -> impl Iterator<Item = (JobStatus, &mut ExpiryPolicy)> {
        let all = [
            (JobStatus::Completed, &mut self.completed),
            (JobStatus::Failed, &mut self.failed),
            (JobStatus::Cancelled, &mut self.cancelled),
        ];
        all.into_iter()
            .filter_map(|(status, policy)| Some((status, policy.as_mut()?)))
    }

    /// Returns these policies, with the policy of `default` wherever none is set.
    #[must_use]
    pub fn or(self, default: &Self) -> Self {
        let either = |own: Option<ExpiryPolicy>, default: &Option<ExpiryPolicy>| {
            own.or_else(|| default.clone())
        };
        Self {
            completed: either(self.completed, &default.completed),
            failed: either(self.failed, &default.failed),
            cancelled: either(self.cancelled, &default.cancelled),
        }
    }
}

/// When a finished job is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpiryPolicy {
    /// `none`, a point in time (`2027-01-31T00:00:00Z`), or a duration after a time of the job
    /// (`lastUpdateTime+P1D`, `createTime+PT9H`).
    pub expiry_time: String,
    /// What happens at that time.
    #[serde(default)]
    pub operation: ExpiryOperation,
    /// Who set the policy. Ignored in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policer: Option<Policer>,
}

/// What happens to an expired job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum ExpiryOperation {
    /// The service deletes the job, as a client's DELETE would.
    #[default]
    Delete,
    /// CAF marks the job as expired. This service does not support that and rejects the request.
    Expire,
}

/// Who set an expiry policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub enum Policer {
    /// The client that created the job.
    User,
    /// The configuration of the service.
    System,
}
