//! How much of a pipe a job gets, as the job service says it.
//!
//! What must stay true: nobody waits for the answer, and only a task that is held back asks.

use contract::{JobShare, SHARE_HEADER, Tracking};

use super::JobServiceClient;
use super::status_url::allowed_url;
use crate::http::HeaderMap;

/// Returns the share that the headers of an answer say.
pub(super) fn share_of(headers: &HeaderMap) -> JobShare {
    let said = headers.get(SHARE_HEADER);
    let said = said.and_then(|value| value.to_str().ok()?.parse().ok());
    said.unwrap_or_default()
}

impl JobServiceClient {
    /// Returns the share of the job of a message as the last check has it, `None` if nobody has
    /// said it. If that check is no longer valid, another one begins in the background.
    pub async fn share(&self, tracking: Option<&Tracking>) -> Option<JobShare> {
        let tracking = tracking?;
        let (url, id) = (
            tracking.status_check_url.as_deref()?,
            tracking.job_task_id.as_deref(),
        );
        let key = allowed_url(url, id, &self.origins).ok()?;
        let known = self.checks.get(key.as_str()).await;
        let changed_at = self.changed.changed_at(tracking);
        if known.as_ref().is_none_or(|check| !check.holds(changed_at)) {
            let (client, tracking) = (self.clone(), tracking.clone());
            self.in_background(async move {
                if let Some(url) = tracking.status_check_url.as_deref() {
                    client.check_own_job(&tracking, url, changed_at).await;
                }
            });
        }
        known?.share
    }
}
