//! `POST …/jobs/{jobId}/resume`: resumes a paused job.
//!
//! The background task `parked_out` then moves the parked tasks of the job to the outbox.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::{ErrorBody, ErrorCode};
use store::Change;

use crate::http::{ApiError, ApiResult, JobPath, NoJob, StoreErrors};
use crate::state::AppState;

/// Resume a paused job
///
/// The job becomes Active, even if it was Waiting when it was paused. Does nothing if the job is
/// already Active.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/resume",
    operation_id = "resumeJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 204, description = "Resumed"),
        (status = 400, description = "Invalid partition id or job id, or the job is not Paused", body = ErrorBody,
            example = json!({"message": "job_id {reindex-7} cannot be resumed as it has a status of {Completed}. \
                Only jobs with a status of Paused can be resumed."})),
        NoJob, StoreErrors
    )
)]
pub async fn resume_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<StatusCode> {
    match state
        .store_of_request()
        .resume_job(&partition, &job)
        .await?
    {
        Change::Made => {
            tracing::info!(job = %format_args!("{partition}:{job}"), "resumed a job");
            Ok(StatusCode::NO_CONTENT)
        }
        Change::NotNeeded => Ok(StatusCode::NO_CONTENT),
        Change::NotFound => Err(ApiError::job_not_found(&job)),
        // CAF's text. Unlike CAF's other texts, it has no prefix.
        Change::Impossible(status) => Err(ApiError::bad_request(
            ErrorCode::WrongJobStatus,
            format!(
                "job_id {{{job}}} cannot be resumed as it has a status of {{{status}}}. Only jobs with a status of Paused can be resumed."
            ),
        )),
    }
}
