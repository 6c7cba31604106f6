//! `GET …/jobs/{jobId}/status` and `…/isActive`: what workers ask all the time, so nothing but the status is read.
//!
//! What must stay true: a past incarnation of the job id is not found, which is how its leftovers are discarded. Old
//! clients know six statuses: Blocked is told to them as Active.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use contract::JobStatus;
use contract::rest::ErrorBody;
use serde::Deserialize;
use utoipa::IntoParams;

use super::StoreTrouble;
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::{OfJob, Params, whole_number};

/// Workers of the CAF keep a status only when the response says so.
const CACHEABLE: HeaderName = HeaderName::from_static("cacheablejobstatus");

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StatusParams {
    /// The number of a life of the job id, as in the status URL of its messages. A past one is not found.
    #[param(value_type = Option<i64>, example = 42)]
    n: Option<String>,
}

/// Get the status of a job
///
/// The status alone, as workers read it; a job in recovery (Blocked) is shown as Active.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/status",
    operation_id = "getJobStatus",
    tag = "jobs",
    params(OfJob, StatusParams),
    responses(
        (status = 200, description = "The status, as a JSON string", body = JobStatus, headers(
            ("CacheableJobStatus" = bool, description = "true"),
            ("Cache-Control" = String, description = "`no-transform, max-age=…`: for how many seconds the status may be relied on")
        ), example = json!("Active")),
        (status = 400, description = "An id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "The parameter 'n' must be a whole number, but is 'x'."})),
        (status = 404, description = "There is no such job, or not in this life", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn status(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
    Params(StatusParams { n }): Params<StatusParams>,
) -> ApiResult<impl IntoResponse> {
    let incarnation = whole_number("n", n.as_deref())?;
    let found = parts
        .store
        .job_status(&partition, &job, incarnation)
        .await?;
    let status = found.ok_or_else(|| ApiError::job_not_found(&job))?;
    Ok((cacheable(&parts), Json(shown(status))))
}

/// Tell whether a job is active
///
/// True while the job waits for its start, works or recovers; false for an unknown job.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/isActive",
    operation_id = "getJobActive",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 200, description = "Whether it is", body = bool, content_type = "application/json", headers(
            ("CacheableJobStatus" = bool, description = "true"),
            ("Cache-Control" = String, description = "`no-transform, max-age=…`: for how many seconds the answer may be relied on")
        ), example = json!(true)),
        (status = 400, description = "An id is not well-formed", body = ErrorBody,
            example = json!({"message": "The job identifier contains one or more invalid characters."})),
        StoreTrouble
    )
)]
pub async fn is_active(
    State(parts): State<Arc<Parts>>,
    of_job: ApiResult<OfJob>,
) -> ApiResult<impl IntoResponse> {
    let found = match of_job {
        Ok(OfJob(partition, job)) => parts.store.job_status(&partition, &job, None).await?,
        Err(ApiError::NotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let active =
        found.is_some_and(|status| matches!(shown(status), JobStatus::Active | JobStatus::Waiting));
    Ok((cacheable(&parts), Json(active)))
}

fn cacheable(parts: &Parts) -> [(HeaderName, String); 2] {
    let seconds = parts.options.status_check_interval.as_secs();
    [
        (CACHEABLE, "true".to_owned()),
        (
            header::CACHE_CONTROL,
            format!("no-transform, max-age={seconds}"),
        ),
    ]
}

/// The status as clients know it that have never heard of recovery.
const fn shown(status: JobStatus) -> JobStatus {
    match status {
        JobStatus::Blocked => JobStatus::Active,
        known => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_blocked_job_is_shown_as_something_else() {
        for status in JobStatus::ALL {
            let expected = if status == JobStatus::Blocked {
                JobStatus::Active
            } else {
                status
            };
            assert_eq!(shown(status), expected);
        }
    }
}
