//! `GET …/jobs/{jobId}/history`: every change of the status of a job.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::rest::{ErrorCode, History};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::{
    ApiError, ApiResult, InvalidParameter, JobPath, NoJob, QueryParams, StoreErrors, Unknown,
    page_limit,
};
use crate::state::AppState;

/// The number of changes on a page if the request sets no limit.
const PAGE_SIZE: u32 = 100;
/// The names of the parameters.
const PARAMETERS: [&str; 2] = ["limit", "after"];

/// The parameters that select a page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// The maximum number of changes to return. If absent, 0 or negative, 100. A larger number than
    /// the service allows (10000 by default) counts as that number.
    #[param(value_type = Option<i64>, example = 100)]
    limit: Option<String>,
    /// The `next` of the page before this one. Absent for the first page.
    #[param(example = "812")]
    after: Option<String>,
}

/// Get the history of a job
///
/// Returns the changes of the job's status, oldest first: when, from which status to which, who
/// made the change and why, in which round, and by which request. The history is kept as long as
/// the job. A job keeps its first change and about the last 500.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/history",
    operation_id = "getHistory",
    tag = "jobs",
    params(JobPath, HistoryQuery),
    responses(
        (status = 200, description = "The changes", body = History, example = json!({
            "history": [{
                "time": 1_767_225_600_000_i64, "from": null, "to": "Waiting", "actor": "client", "reason": "created", "round": 1,
                "correlationId": "3f1c0a52-6c1d-4a8e-9a39-1f2f6f1f5b0e"
            }, {
                "time": 1_767_225_601_250_i64, "from": "Waiting", "to": "Active", "actor": "tracking",
                "reason": "the first report of a task", "round": 1
            }, {
                "time": 1_767_225_605_123_i64, "from": "Active", "to": "Failed", "actor": "tracking",
                "reason": "task 3.17 has failed: RESULT_EXCEPTION: no such file", "round": 1
            }]
        })),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn get_history(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(query): QueryParams<HistoryQuery>,
) -> ApiResult<Json<History>> {
    Unknown::of_query(&uri, &PARAMETERS)?.into_notes()?;
    let limit = page_limit(query.limit.as_deref(), PAGE_SIZE, state.options.limits.page)?;
    let after = query.after.filter(|after| !after.is_empty());
    let after = after.map(|after| place(&after)).transpose()?;
    let page = state.store.history_page(&partition, &job, after, limit);
    let page = page.await?.ok_or_else(|| ApiError::job_not_found(&job))?;
    Ok(Json(page))
}

fn place(text: &str) -> ApiResult<i64> {
    text.parse().map_err(|_| {
        let message = format!(
            "The parameter 'after': '{text}' is no place in the history; use the value of 'next' of the page before."
        );
        ApiError::bad_request(ErrorCode::InvalidParameter, message)
    })
}
