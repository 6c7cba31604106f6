//! Asks the job service what is known of a split that a later round makes again, at a URL beside
//! that of the status check.

use std::time::Duration;

use contract::rest::NOT_FOUND_HEADER;
use contract::{SplitState, Tracking};

use super::{JobServiceClient, answer, chain};
use crate::http::{Method, StatusCode};

/// Why it is not known what is done of a split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SplitQueryError {
    /// There is no such job any more, or the round is over.
    Gone,
    /// The URL may not be asked.
    NotAllowed(String),
    /// There was no answer, or none that can be understood.
    NoAnswer(String),
}

impl JobServiceClient {
    /// Asks what is known of the split of this message's task, and which of its subtasks behind the
    /// number `after` are done.
    pub async fn split_state(
        &self,
        tracking: &Tracking,
        after: u32,
    ) -> Result<SplitState, SplitQueryError> {
        let mut url = self
            .url_of_task(tracking, "splits")
            .map_err(SplitQueryError::NotAllowed)?;
        url.query_pairs_mut()
            .append_pair("after", &after.to_string());
        let failed = |reason: String| SplitQueryError::NoAnswer(format!("{url}: {reason}"));
        let (code, headers, body) = self
            .exchange(Method::GET, &url, Vec::new())
            .await
            .map_err(|error| failed(chain(&error)))?;
        if code == StatusCode::NOT_FOUND && headers.contains_key(NOT_FOUND_HEADER) {
            return Err(SplitQueryError::Gone);
        }
        if !code.is_success() {
            let body = answer::quoted(&body);
            return Err(failed(format!("the response is {code} ({body})")));
        }
        let state: SplitState =
            serde_json::from_str(&body).map_err(|error| failed(error.to_string()))?;
        if state.up_to.is_some_and(|up_to| up_to <= after) {
            return Err(failed("the answer does not go on".to_owned()));
        }
        if let Some(url) = &tracking.status_check_url {
            self.unanswered.answered(url);
        }
        Ok(state)
    }

    /// Returns how long a task waits that has got no answer, before it asks again.
    pub fn pause_after_no_answer(&self, tracking: Option<&Tracking>) -> Duration {
        let url = tracking.and_then(|tracking| tracking.status_check_url.as_deref());
        self.unanswered.pause(url.unwrap_or_default())
    }
}
