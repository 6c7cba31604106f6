//! Stands in for the job types in a build without them (the feature `job-types`): there are none.

use contract::rest::{ErrorCode, JobTask};
use contract::{JobId, PartitionId};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::{ApiError, ApiResult};

/// The job types of a service. This build has none.
#[derive(Debug, Clone, Default)]
pub struct JobTypes(());

/// A task that a job type built.
#[derive(Debug)]
pub struct MadeTask {
    pub task: JobTask,
    /// The task data as the script wrote it, a JSON object.
    pub data_json: String,
}

#[expect(
    clippy::unused_self,
    reason = "with job types there is something to look at"
)]
impl JobTypes {
    pub(crate) fn schemas(&self) -> impl Iterator<Item = (&str, &Value)> {
        std::iter::empty()
    }

    /// Returns a request without the parameters of its job type: nobody knows which of them are
    /// secret.
    pub(crate) fn without_secrets(&self, request: Vec<u8>) -> Vec<u8> {
        let Ok(mut json) = serde_json::from_slice::<Value>(&request) else {
            return request;
        };
        if json.get("type").is_none_or(|id| !id.is_string()) {
            return request;
        }
        match json.get_mut("parameters") {
            Some(parameters) => *parameters = Value::from("***"),
            None => return request,
        }
        serde_json::to_vec(&json).unwrap_or_default()
    }

    pub(crate) fn violations(&self, _: &str, _: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    #[expect(clippy::unused_async, reason = "a script takes time")]
    pub(crate) async fn make_task(
        &self,
        id: &str,
        _: &PartitionId,
        _: &JobId,
        _: &RawValue,
    ) -> ApiResult<MadeTask> {
        Err(ApiError::bad_request(
            ErrorCode::UnknownJobType,
            format!("Unknown job type ID: {id}; this job service is built without job types"),
        ))
    }
}
