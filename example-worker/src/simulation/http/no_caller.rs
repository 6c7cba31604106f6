//! Stands in for what makes calls, in a program that is built without it.

use std::sync::Arc;

use framework::TaskError;
use url::Url;

use super::Allowed;

/// Makes no calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller;

impl Caller {
    #[expect(clippy::unused_async, reason = "a call takes time")]
    pub async fn get(&self, _: &Arc<Allowed>, url: &Url) -> Result<(), TaskError> {
        Err(TaskError::failed(format!(
            "{url} is not called: this program is built without the feature `http-calls` of batchwright"
        )))
    }
}
