//! `GET …/jobs/{jobId}/failures`: the failures of a job, one page at a time or in groups.
//!
//! The job itself shows its first hundred failures; here are all that the store keeps. A client
//! that accepts `application/x-ndjson` gets them as a stream, which reads a page at a time.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use contract::rest::{ErrorCode, Failure, Failures};
use contract::{JobId, PartitionId};
use serde::Deserialize;
use store::FailureCursor;
use utoipa::IntoParams;

use crate::http::ndjson::{Pages, STREAM_PAGE, accepts_ndjson, stream};
use crate::http::{
    ApiError, ApiResult, Client, InvalidParameter, JobPath, NoJob, QueryParams, StoreErrors,
    Unknown, whole_number,
};
use crate::state::AppState;

/// The number of failures on a page if the request sets no limit.
const PAGE_SIZE: u32 = 100;
/// The largest number of groups.
pub const GROUPS: u32 = 1000;
/// The names of the parameters.
const PARAMETERS: [&str; 3] = ["limit", "after", "group"];

/// The parameters that select failures.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct FailureQuery {
    /// The maximum number of failures to return. If absent, 0 or negative, 100. A larger number
    /// than the service allows (10000 by default) counts as that number. Does not apply to
    /// `application/x-ndjson`.
    #[param(value_type = Option<i64>, example = 100)]
    limit: Option<String>,
    /// The `next` of the page before this one. Absent for the first page.
    #[param(example = "1767225605123-3.17")]
    after: Option<String>,
    /// `true` groups the failures by kind and message, and returns the groups only. Cannot be
    /// combined with the other parameters.
    #[param(value_type = Option<bool>, example = false)]
    group: Option<String>,
}

/// List the failures of a job
///
/// Returns one page of the failures that are kept (10000 of a job by default), oldest first, each
/// with the item that has failed; or the same failures in groups. Failures beyond are counted in
/// `failedTasks`, and by kind in the job's `failureCounts`. A client that accepts
/// `application/x-ndjson` gets all that are kept, one JSON object on each line; if the connection
/// breaks off before the end, so does the response.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/failures",
    operation_id = "getFailures",
    tag = "jobs",
    params(JobPath, FailureQuery),
    responses(
        (status = 200, description = "The failures; with `application/x-ndjson`, each on a line of its own", body = Failures, examples(
            ("page" = (summary = "A page", value = json!({
                "failedTasks": 2041, "kept": 2041, "next": "1767225605123-3.17", "failures": [{
                    "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_120_i64, "failureSource": "worker-order",
                    "failureMessage": "no such file", "taskId": "3.17", "label": "scans/2016/17.tif",
                    "input": "{\"path\":\"scans/2016/17.tif\"}"
                }]
            }))),
            ("groups" = (summary = "Groups", value = json!({
                "failedTasks": 2041, "kept": 2041, "failures": [], "ungrouped": 0, "groups": [{
                    "failureId": "RESULT_EXCEPTION", "failureMessage": "no such file", "count": 2041,
                    "firstTime": 1_767_225_605_123_i64, "lastTime": 1_767_225_665_123_i64, "example": {
                        "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_120_i64,
                        "failureSource": "worker-order", "failureMessage": "no such file", "taskId": "3.17",
                        "label": "scans/2016/17.tif", "input": "{\"path\":\"scans/2016/17.tif\"}"
                    }
                }]
            })))
        )),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn list_failures(
    State(state): State<Arc<AppState>>,
    client: Client,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(query): QueryParams<FailureQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &PARAMETERS)?.into_notes()?;
    let limit = whole_number::<i64>("limit", query.limit.as_deref())?;
    let after = query.after.filter(|after| !after.is_empty());
    let found = if is_true("group", query.group.as_deref())? {
        if after.is_some() || limit.is_some() {
            return Err(invalid(
                "The parameter 'group' cannot be combined with 'limit' or 'after': the groups are one page.",
            ));
        }
        state.store.failure_groups(&partition, &job, GROUPS).await?
    } else {
        let after: Option<FailureCursor> = after
            .map(|after| after.parse())
            .transpose()
            .map_err(|problem| invalid(format!("The parameter 'after': {problem}.")))?;
        if accepts_ndjson(&headers) {
            let pages = FailurePages {
                partition,
                job,
                next: Next::Page(after),
            };
            return stream(state, &client, pages).await;
        }
        let limit = limit
            .and_then(|limit| u32::try_from(limit).ok())
            .filter(|limit| *limit > 0)
            .unwrap_or(PAGE_SIZE)
            .min(state.options.limits.page);
        let failures = state
            .store
            .failures(&partition, &job, after.as_ref(), limit as usize);
        failures.await?
    };
    let found = found.ok_or_else(|| ApiError::job_not_found(&job))?;
    Ok(Json(found).into_response())
}

/// The failures of a job, for a stream.
struct FailurePages {
    partition: PartitionId,
    job: JobId,
    next: Next,
}

/// What a stream reads next.
enum Next {
    /// The page behind this place.
    Page(Option<FailureCursor>),
    Nothing,
}

impl Pages for FailurePages {
    const WHAT: &'static str = "failures";
    type Entry = Failure;

    async fn next(&mut self, state: &AppState) -> ApiResult<Vec<Failure>> {
        let Next::Page(after) = std::mem::replace(&mut self.next, Next::Nothing) else {
            return Ok(Vec::new());
        };
        let read = state
            .store
            .failures(&self.partition, &self.job, after.as_ref(), STREAM_PAGE);
        let page = read.await?;
        let page = page.ok_or_else(|| ApiError::job_not_found(&self.job))?;
        if let Some(next) = page.next {
            self.next = Next::Page(next.parse().ok());
        }
        Ok(page.failures)
    }

    fn is_over(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }
}

/// Parses a parameter that is true or false. An absent or empty one is false.
fn is_true(name: &str, value: Option<&str>) -> ApiResult<bool> {
    match value.unwrap_or_default() {
        "true" => Ok(true),
        "false" | "" => Ok(false),
        other => Err(invalid(format!(
            "The parameter '{name}' must be true or false, but is '{other}'."
        ))),
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidParameter, message)
}
