//! `PATCH …/jobs/{jobId}`: changes how much of its pipes a job gets.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use contract::rest::{ErrorBody, ErrorCode, JobChange};
use contract::{JobId, JobShare, PartitionId};
use store::Change;

use crate::http::{ApiError, ApiResult, JobPath, NoJob, RequestBody, StoreErrors};
use crate::state::AppState;

/// Adjust a job
///
/// Changes the share of a job that has not ended. Its batches follow it after they have come
/// back.
#[utoipa::path(
    patch,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "adjustJob",
    tag = "jobs",
    params(JobPath),
    request_body(content = JobChange, example = json!({"share": 300})),
    responses(
        (status = 204, description = "The job is as the request says"),
        (status = 400, description = "Invalid partition id or job id, a share that is none, or nothing to change", body = ErrorBody,
            example = json!({"message": "the request changes nothing; it needs a share, a whole number from 1 to 1000"})),
        (status = 409, description = "The job has ended", body = ErrorBody,
            example = json!({"message": "job_id {reindex-7} cannot be adjusted as it has a status of {Completed}. Only jobs that have not ended can be adjusted."})),
        NoJob, StoreErrors
    )
)]
pub async fn adjust_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    body: RequestBody,
) -> ApiResult<StatusCode> {
    let JobChange { share } = body.parsed()?;
    let Some(share) = share else {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidRequest,
            format!(
                "the request changes nothing; it needs a share, a whole number from 1 to {}",
                JobShare::MOST
            ),
        ));
    };
    set_share(&state, &partition, &job, share).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a job this share.
pub async fn set_share(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
    share: JobShare,
) -> ApiResult<()> {
    let store = state.store_of_request();
    match store.adjust_job(partition, job, share).await? {
        Change::Made => {
            tracing::info!(job = %format_args!("{partition}:{job}"), %share, "changed the share of a job");
            Ok(())
        }
        Change::NotNeeded => Ok(()),
        Change::NotFound => Err(ApiError::job_not_found(job)),
        Change::Impossible(status) => Err(ApiError::Conflict(
            ErrorCode::WrongJobStatus,
            format!(
                "job_id {{{job}}} cannot be adjusted as it has a status of {{{status}}}. Only jobs that have not ended can be adjusted."
            ),
        )),
    }
}
