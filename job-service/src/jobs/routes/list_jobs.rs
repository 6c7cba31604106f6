//! `GET /partitions/{partitionId}/jobs`: lists the jobs of a partition, one page at a time.
//!
//! The page is decided when the list begins: the incarnations of its jobs, in order. The jobs are
//! read and sent in pieces.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::response::Response;
use contract::rest::Job;

use crate::http::in_pieces;
use crate::http::{ApiResult, InvalidParameter, PartitionPath, QueryParams, StoreErrors, Unknown};
use crate::jobs::job_list::{JobSelector, PAGE, Page, SELECTOR, page};
use crate::jobs::routes::job_pieces::{JSON, JobList};
use crate::state::AppState;

/// List jobs
///
/// Returns one page of the matching jobs, newest first unless `sort` says otherwise.
///
/// The page is decided when the list begins. Its jobs are read while the client reads: each is
/// shown as it is when it is read, so a job of the end of a long list may have changed since it was
/// selected, and one that is deleted meanwhile is left out. A list whose connection breaks off is
/// not complete. With `brief=true` each job has a few kilobytes at most, and `cut` names the fields
/// of which only the beginning is shown.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs",
    operation_id = "getJobs",
    tag = "jobs",
    params(PartitionPath, JobSelector, Page),
    responses(
        (status = 200, description = "The jobs of the page. Empty for a partition without jobs", body = Vec<Job>, example = json!([{
            "id": "reindex-7", "name": "Reindex", "description": null, "externalData": null,
            "createTime": 1_767_225_600_000_i64, "lastUpdateTime": 1_767_225_605_123_i64,
            "status": "Active", "percentageComplete": 46.67, "failures": [], "labels": {"team": "search"},
            "onFailure": "stop", "completedItems": 1400, "failedTasks": 0, "failureCounts": {}, "incarnation": 42
        }])),
        InvalidParameter, StoreErrors
    )
)]
pub async fn list_jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
    QueryParams(page): QueryParams<Page>,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &[&SELECTOR[..], &PAGE].concat())?.into_notes()?;
    let options = &state.options;
    let query = selector.lenient_query()?;
    let most = options.limits.page.max(options.page_size);
    let query = page.apply_to(query, options.page_size, most)?;
    let detail = page.detail()?;
    let numbers = state.store.job_numbers(&partition, &query).await?;
    page::check(numbers.len(), most)?;
    let jobs = JobList::new(partition, numbers, detail);
    in_pieces::send(state, jobs, JSON).await
}
