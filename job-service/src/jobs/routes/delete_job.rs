//! `DELETE …/jobs/{jobId}`: deletes a job.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::http::{ApiError, ApiResult, InvalidParameter, JobPath, NoJob, StoreErrors};
use crate::state::AppState;

/// Delete a job
///
/// Deletes a job of any status. Workers discard the messages that the job still has in pipes. If
/// the job is unfinished, the jobs that wait for it are cancelled, directly or through other jobs.
#[utoipa::path(
    delete,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "deleteJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 204, description = "Deleted"),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn delete_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<StatusCode> {
    if !state
        .store_of_request()
        .delete_job(&partition, &job)
        .await?
    {
        return Err(ApiError::job_not_found(&job));
    }
    tracing::info!(job = %format_args!("{partition}:{job}"), "deleted a job");
    Ok(StatusCode::NO_CONTENT)
}
