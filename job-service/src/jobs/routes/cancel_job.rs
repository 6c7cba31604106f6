//! `POST …/jobs/{jobId}/cancel`: cancels a job and the jobs that wait for it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::{ErrorBody, ErrorCode};
use store::Cancellation;

use crate::http::{ApiError, ApiResult, JobPath, NoJob, StoreErrors};
use crate::state::AppState;

/// Cancel a job
///
/// Also cancels the jobs that wait for it, directly or through other jobs. Does nothing if the job
/// is already cancelled.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/cancel",
    operation_id = "cancelJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 204, description = "Cancelled"),
        (status = 400, description = "Invalid partition id or job id, or the job is Completed or Failed", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} cannot be cancelled as it has a status of Completed."})),
        NoJob, StoreErrors
    )
)]
pub async fn cancel_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<StatusCode> {
    match state
        .store_of_request()
        .cancel_job(&partition, &job)
        .await?
    {
        Cancellation::Cancelled(cancelled) => {
            tracing::info!(job = %format_args!("{partition}:{job}"), dependents = cancelled.len() - 1, "cancelled a job");
            Ok(StatusCode::NO_CONTENT)
        }
        Cancellation::AlreadyCancelled => Ok(StatusCode::NO_CONTENT),
        Cancellation::NotFound => Err(ApiError::job_not_found(&job)),
        Cancellation::Finished(status) => Err(ApiError::bad_request(
            ErrorCode::WrongJobStatus,
            format!("ERROR: job_id {{{job}}} cannot be cancelled as it has a status of {status}."),
        )),
    }
}
