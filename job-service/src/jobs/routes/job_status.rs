//! `GET …/jobs/{jobId}/status`: returns the status of a job. Workers call this often, so it reads
//! nothing else.
//!
//! What must stay true:
//! - A past incarnation of the job id, or a past round of the job, is "not found"; this is how
//!   workers discard its leftover messages. They believe only a 404 with the header of
//!   [`JobNotFound`](crate::http::ApiError::JobNotFound), or with CAF's text.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{AppendHeaders, IntoResponse};
use contract::headers::{BLOCKED_PIPE_HEADER, FULL_CONDITIONS_HEADER};
use contract::rest::{AccessRole, ErrorBody};
use contract::{JobShare, JobStatus, RETRY_HEADER, SHARE_HEADER};

use crate::http::{ApiResult, InvalidParameter, JobPath, QueryParams, StoreErrors, WrongKey};
use crate::jobs::status_url::{LifeParams, told};
use crate::state::AppState;

/// CAF's workers cache a status only if the response has this header.
const CACHEABLE: HeaderName = HeaderName::from_static("cacheablejobstatus");

/// Get the status of a job
///
/// Returns only the status, as workers read it. A job that people are shown as Blocked is Active.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/status",
    operation_id = "getJobStatus",
    tag = "jobs",
    params(JobPath, LifeParams),
    responses(
        (status = 200, description = "The status, as a JSON string", body = JobStatus, headers(
            ("CacheableJobStatus" = bool, description = "Always true"),
            ("Cache-Control" = String, description = "`no-transform, max-age=…`: the number of seconds for which the status may be cached"),
            ("X-Batchwright-Retry" = Option<String>, description = "The retry policy of the job, if it has one"),
            ("X-Batchwright-Share" = Option<u32>, description = "The weight of the job beside the other jobs of its partition, if it is not 100"),
            ("X-Batchwright-Blocked-Pipe" = Option<String>, description = "The pipe to which workers send tasks that wait for a condition"),
            ("X-Batchwright-Full-Conditions" = Option<String>, description = "The keys of the conditions for which as many tasks wait as may, separated by spaces")
        ), example = json!("Active")),
        (status = 404, description = "The job, or this incarnation of it, does not exist, or this round of it is over", body = ErrorBody, headers(
            ("X-Batchwright-Not-Found" = String, description = "Always `job`: by this, workers tell this answer from a gateway's")
        ),
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        WrongKey, InvalidParameter, StoreErrors
    )
)]
pub async fn job_status(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    QueryParams(life): QueryParams<LifeParams>,
) -> ApiResult<impl IntoResponse> {
    let asked = life.of(AccessRole::View, &partition, &job)?;
    let known = told(state.store.job_for_workers(asked).await?, &job)?;
    // What the database holds may come from a later version; a text that is no header is left out.
    let retry = known
        .retry
        .and_then(|policy| HeaderValue::try_from(policy).ok());
    let share = (known.share != JobShare::USUAL).then(|| known.share.weight().into());
    let options = &state.options;
    let full = state
        .conditions
        .full
        .keys(&state.store, options.most_blocked);
    let extra = [
        (RETRY_HEADER, retry),
        (SHARE_HEADER, share),
        (
            BLOCKED_PIPE_HEADER,
            HeaderValue::try_from(options.blocked_pipe()).ok(),
        ),
        (FULL_CONDITIONS_HEADER, full.await),
    ];
    let present = |(name, value)| Some((HeaderName::from_static(name), value?));
    let extra = AppendHeaders(extra.into_iter().filter_map(present));
    Ok((cache_headers(&state), extra, Json(known.status)))
}

/// Returns the headers that let a worker cache the response for the status check interval.
pub fn cache_headers(state: &AppState) -> [(HeaderName, String); 2] {
    let seconds = state.options.status_check_interval.as_secs();
    [
        (CACHEABLE, "true".to_owned()),
        (
            header::CACHE_CONTROL,
            format!("no-transform, max-age={seconds}"),
        ),
    ]
}
