//! `GET …/jobs/{jobId}/definition`: returns the request that created a job.
//!
//! What must stay true: a parameter that the job type marks as secret is not shown.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use contract::rest::NewJob;

use crate::http::{ApiError, ApiResult, InvalidParameter, JobPath, NoJob, StoreErrors};
use crate::state::AppState;

/// Get the definition of a job
///
/// Returns the request that created the job, as the client sent it. The parameters that its job
/// type marks as secret (`writeOnly`) are shown as `***`; so are all of them if the job type is not
/// installed any more.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/definition",
    operation_id = "getJobDefinition",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "The request", body = NewJob, example = json!({
            "name": "Reindex",
            "task": {"taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskPipe": "batch-in", "taskData": {"batchDefinition": "[1-100]", "batchType": "RangePlugin"}}
        })),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn get_definition(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<impl IntoResponse> {
    let definition = state.store.definition(&partition, &job).await?;
    let definition = definition.ok_or_else(|| ApiError::job_not_found(&job))?;
    let body = state.options.job_types.without_secrets(definition.request);
    Ok(([(header::CONTENT_TYPE, "application/json")], body))
}
