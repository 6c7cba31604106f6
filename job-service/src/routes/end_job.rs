//! `DELETE …/jobs/{jobId}` and `POST …/jobs/{jobId}/cancel`: the two ways in which a client ends a job.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::ErrorBody;
use store::Cancellation;

use super::{StoreTrouble, announce};
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::OfJob;

/// Delete a job
///
/// Whatever its status. Messages of the job that are still on their way are discarded by the workers. Jobs that wait for an
/// unfinished job are cancelled when it is deleted, and those that wait for them.
#[utoipa::path(
    delete,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "deleteJob",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 204, description = "Deleted"),
        (status = 400, description = "An id is not well-formed", body = ErrorBody,
            example = json!({"message": "The job identifier contains one or more invalid characters."})),
        (status = 404, description = "There is no such job", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn delete(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
) -> ApiResult<StatusCode> {
    if !parts.store.delete_job(&partition, &job).await? {
        return Err(ApiError::job_not_found(&job));
    }
    tracing::info!(%partition, %job, "a job was deleted");
    announce(&parts, &partition, &job);
    Ok(StatusCode::NO_CONTENT)
}

/// Cancel a job
///
/// Jobs that wait for it are cancelled, too, and those that wait for them. Cancelling a job that is cancelled changes nothing.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/cancel",
    operation_id = "cancelJob",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 204, description = "Cancelled"),
        (status = 400, description = "An id is not well-formed, or the job has come to another end", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} cannot be cancelled as it has a status of Completed."})),
        (status = 404, description = "There is no such job", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn cancel(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
) -> ApiResult<StatusCode> {
    match parts.store.cancel_job(&partition, &job).await? {
        Cancellation::Cancelled(lives) => {
            tracing::info!(%partition, %job, dependents = lives.len() - 1, "a job was cancelled");
            drop(framework::announce(
                &*parts.broker,
                lives
                    .iter()
                    .map(|life| format!("{}:{}", life.partition, life.job))
                    .collect(),
            ));
            Ok(StatusCode::NO_CONTENT)
        }
        Cancellation::AlreadyCancelled => Ok(StatusCode::NO_CONTENT),
        Cancellation::NotFound => Err(ApiError::job_not_found(&job)),
        Cancellation::Finished(status) => Err(ApiError::bad_request(format!(
            "ERROR: job_id {{{job}}} cannot be cancelled as it has a status of {status}."
        ))),
    }
}
