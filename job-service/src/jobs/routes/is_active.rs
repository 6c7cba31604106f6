//! `GET …/jobs/{jobId}/isActive`: reports whether a job is active.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use contract::JobStatus;

use crate::http::{ApiError, ApiResult, InvalidParameter, JobPath, StoreErrors};
use crate::jobs::routes::job_status::cache_headers;
use crate::state::AppState;

/// Check whether a job is active
///
/// Returns true if the job is Waiting or Active, also if people are shown it as Blocked, and false
/// otherwise, also for an unknown job.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/isActive",
    operation_id = "getJobActive",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "Whether the job is active", body = bool, content_type = "application/json", headers(
            ("CacheableJobStatus" = bool, description = "Always true"),
            ("Cache-Control" = String, description = "`no-transform, max-age=…`: the number of seconds for which the result may be cached")
        ), example = json!(true)),
        InvalidParameter, StoreErrors
    )
)]
pub async fn is_active(
    State(state): State<Arc<AppState>>,
    path: ApiResult<JobPath>,
) -> ApiResult<impl IntoResponse> {
    let found = match path {
        Ok(JobPath(partition, job)) => state.store.job_status(&partition, &job, None, None).await?,
        // The id is too long for any job.
        Err(ApiError::JobNotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let active =
        found.is_some_and(|status| matches!(status, JobStatus::Active | JobStatus::Waiting));
    Ok((cache_headers(&state), Json(active)))
}
