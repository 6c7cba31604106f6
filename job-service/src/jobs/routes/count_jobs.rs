//! `GET /partitions/{partitionId}/jobStats/count`: counts the jobs of a partition.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};

use crate::http::{ApiResult, InvalidParameter, PartitionPath, QueryParams, StoreErrors, Unknown};
use crate::jobs::job_list::{JobSelector, SELECTOR};
use crate::state::AppState;

/// Count jobs
///
/// Returns the number of matching jobs.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobStats/count",
    operation_id = "getJobStatsCount",
    tag = "jobs",
    params(PartitionPath, JobSelector),
    responses(
        (status = 200, description = "The number of matching jobs", body = u64, content_type = "application/json", example = json!(3)),
        InvalidParameter, StoreErrors
    )
)]
pub async fn count_jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
) -> ApiResult<Json<u64>> {
    Unknown::of_query(&uri, &SELECTOR)?.into_notes()?;
    let query = selector.lenient_query()?;
    Ok(Json(state.store.count_jobs(&partition, &query).await?))
}
