//! `POST …/jobs/{jobId}/pause`: pauses a job.
//!
//! Running tasks continue to their end. Workers send all others to the paused pipe, and the service
//! parks them in the store until the job is resumed.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::{ErrorBody, ErrorCode};
use store::Change;

use crate::http::{ApiError, ApiResult, JobPath, NoJob, StoreErrors};
use crate::state::AppState;

/// Pause a job
///
/// Running tasks continue to their end; no other task of the job starts until the job is resumed.
/// Does nothing if the job is already paused.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/pause",
    operation_id = "pauseJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 204, description = "Paused"),
        (status = 400, description = "Invalid partition id or job id, or the job is neither Active nor Waiting", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} cannot be paused as it has a status of {Completed}. \
                Only jobs with a status of Active or Waiting can be paused."})),
        NoJob, StoreErrors
    )
)]
pub async fn pause_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<StatusCode> {
    match state.store_of_request().pause_job(&partition, &job).await? {
        Change::Made => {
            tracing::info!(job = %format_args!("{partition}:{job}"), "paused a job");
            Ok(StatusCode::NO_CONTENT)
        }
        Change::NotNeeded => Ok(StatusCode::NO_CONTENT),
        Change::NotFound => Err(ApiError::job_not_found(&job)),
        Change::Impossible(status) => Err(ApiError::bad_request(
            ErrorCode::WrongJobStatus,
            format!(
                "ERROR: job_id {{{job}}} cannot be paused as it has a status of {{{status}}}. \
             Only jobs with a status of Active or Waiting can be paused."
            ),
        )),
    }
}
