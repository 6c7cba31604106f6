//! The URLs of what the job service knows about the task of a message. They are beside that of the
//! status of its job, and have its query: incarnation, round and key.

use contract::{JobTaskId, Tracking, without_key};

use super::JobServiceClient;
use crate::job_service::status_url::{JobUrl, allowed_url};

impl JobServiceClient {
    /// Returns the URL of what is behind this segment about the task of a message, as
    /// `…/splits/3.17`, or why it is not asked.
    pub(super) fn url_of_task(&self, tracking: &Tracking, segment: &str) -> Result<JobUrl, String> {
        let id = tracking.job_task_id.as_deref();
        let url = tracking.status_check_url.as_deref().unwrap_or_default();
        let mut allowed = allowed_url(url, id, &self.origins)
            .map_err(|reason| format!("{reason} ({})", without_key(url)))?;
        let own = id.and_then(|id| JobTaskId::parse(id).ok());
        let task = own.ok_or("it names no job")?;
        let numbers: Vec<String> = task.steps.iter().map(|it| it.number.to_string()).collect();
        let path = if numbers.is_empty() {
            contract::headers::FIRST_TASK.to_owned()
        } else {
            numbers.join(".")
        };
        if let Ok(mut segments) = allowed.path_segments_mut() {
            segments.pop().extend([segment, &path]);
        }
        Ok(allowed)
    }
}
