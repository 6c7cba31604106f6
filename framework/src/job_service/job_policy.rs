//! The retry policy that a job brings: asked of the job service when one of its tasks fails for the
//! first time here, and kept.
//!
//! What must stay true: a task that does not fail asks nothing more than before, and what nobody
//! says or understands leaves the worker's own policy, with one line in the log for all tasks of
//! the job.

use std::sync::Arc;
use std::time::Duration;

use contract::{RETRY_HEADER, RetryPolicy, Tracking};
use moka::future::Cache;
use tracing::warn;

use super::{CAPACITY, JobServiceClient, start_of};
use crate::announcement::job_of;
use crate::http::HeaderMap;
use crate::job_service::status_url::allowed_url;

/// How long the policy of a job of which no task fails is kept.
const KEPT: Duration = Duration::from_hours(1);
/// How much of a header is kept, in bytes. A policy is shorter.
const MOST_BYTES: usize = 1001;

/// The policies of jobs, by their status URLs. A job without one has none.
pub(super) type JobPolicies = Cache<Arc<str>, Option<Arc<RetryPolicy>>>;

/// What the answer to a status check says of the retries of a job.
#[derive(Debug, Clone, Default)]
pub(super) enum Said {
    /// There was no answer.
    #[default]
    Unknown,
    /// The workers' own policies apply.
    Nothing,
    /// This text.
    Policy(Arc<str>),
}

impl Said {
    /// Returns what these headers say.
    pub fn of(headers: &HeaderMap) -> Self {
        headers.get(RETRY_HEADER).map_or(Self::Nothing, |value| {
            let text = String::from_utf8_lossy(value.as_bytes());
            Self::Policy(text[..text.floor_char_boundary(MOST_BYTES)].into())
        })
    }
}

pub(super) fn job_policies() -> JobPolicies {
    Cache::builder()
        .max_capacity(CAPACITY)
        .time_to_idle(KEPT)
        .build()
}

impl JobServiceClient {
    /// Returns the retry policy of the job of a task that has failed; `None` if the worker's own
    /// applies.
    pub async fn job_policy(&self, tracking: Option<&Tracking>) -> Option<Arc<RetryPolicy>> {
        let tracking = tracking?;
        let (url, id) = (
            tracking.status_check_url.as_deref()?,
            tracking.job_task_id.as_deref(),
        );
        let key = allowed_url(url, id, &self.origins).ok()?;
        if let Some(known) = self.policies.get(key.as_str()).await {
            return known;
        }
        let check = self.check_own_job(tracking, url, None).await;
        let policy = match check.retry {
            // The check has told the log. It is made again when it is no longer valid.
            Said::Unknown => return None,
            Said::Nothing => None,
            Said::Policy(text) => {
                let key = Arc::from(key.as_str());
                // One of all tasks that fail at once reads it, so that the log has one line.
                let read = async { read(&text, id.map_or("", job_of)) };
                return self.policies.get_with(key, read).await;
            }
        };
        self.policies.insert(key.as_str().into(), policy).await;
        None
    }
}

fn read(text: &str, job: &str) -> Option<Arc<RetryPolicy>> {
    match text.parse::<RetryPolicy>() {
        // A client chose it.
        Ok(policy) => Some(Arc::new(policy.coarse())),
        Err(error) => {
            let (job, policy) = (start_of(job), start_of(text));
            warn!(job, policy, %error, "this worker does not know the retry policy of the job; its own applies");
            None
        }
    }
}
