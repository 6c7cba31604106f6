//! `POST …/jobs/{jobId}/pause` and `…/resume`: a job waits, and goes on.
//!
//! Tasks that run go on to their end. All others are handed over by the workers and stowed until the job is resumed.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::ErrorBody;
use contract::{JobId, JobStatus, PartitionId};
use store::Change;

use super::{StoreTrouble, announce};
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::OfJob;

/// Pause a job
///
/// Tasks that run go on to their end; no other task of the job begins until it is resumed. Pausing a job that is paused changes
/// nothing.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/pause",
    operation_id = "pauseJob",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 204, description = "Paused"),
        (status = 400, description = "An id is not well-formed, or the job is neither active nor waiting", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} cannot be paused as it has a status of {Completed}. \
                Only jobs with a status of Active or Waiting can be paused."})),
        (status = 404, description = "There is no such job", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn pause(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
) -> ApiResult<StatusCode> {
    let change = parts.store.pause_job(&partition, &job).await?;
    answer(
        &parts,
        &partition,
        &job,
        change,
        "a job was paused",
        |status| {
            format!(
                "ERROR: job_id {{{job}}} cannot be paused as it has a status of {{{status}}}. \
             Only jobs with a status of Active or Waiting can be paused."
            )
        },
    )
}

/// Resume a paused job
///
/// It is Active then, also where it was Waiting when it was paused. Resuming a job that is active changes nothing.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/resume",
    operation_id = "resumeJob",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 204, description = "Resumed"),
        (status = 400, description = "An id is not well-formed, or the job is not paused", body = ErrorBody,
            example = json!({"message": "job_id reindex-7 cannot be resumed as it has a status of Completed. \
                Only jobs with a status of Paused can be resumed."})),
        (status = 404, description = "There is no such job", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn resume(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
) -> ApiResult<StatusCode> {
    let change = parts.store.resume_job(&partition, &job).await?;
    answer(
        &parts,
        &partition,
        &job,
        change,
        "a job was resumed",
        |status| {
            // CAF says it like this: without the prefix and the braces of its other texts.
            format!(
                "job_id {job} cannot be resumed as it has a status of {status}. Only jobs with a status of Paused can be resumed."
            )
        },
    )
}

fn answer(
    parts: &Parts,
    partition: &PartitionId,
    job: &JobId,
    change: Change,
    made: &str,
    impossible: impl FnOnce(JobStatus) -> String,
) -> ApiResult<StatusCode> {
    match change {
        Change::Made => {
            tracing::info!(%partition, %job, "{made}");
            announce(parts, partition, job);
            Ok(StatusCode::NO_CONTENT)
        }
        Change::NotNeeded => Ok(StatusCode::NO_CONTENT),
        Change::NotFound => Err(ApiError::job_not_found(job)),
        Change::Impossible(status) => Err(ApiError::bad_request(impossible(status))),
    }
}
