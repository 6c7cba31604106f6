//! `POST …/jobs:delete`: deletes every matching job.
//!
//! What must stay true: no transaction covers more than one batch. An unknown parameter value is an
//! error, because ignoring it would select every job.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::PartitionId;
use contract::rest::ErrorBody;
use serde::Serialize;
use store::JobQuery;
use utoipa::ToSchema;

use crate::http::error::ApiResult;
use crate::http::error::StoreErrors;
use crate::http::extract::{PartitionPath, QueryParams};
use crate::http::notes::Unknown;
use crate::jobs::job_list::{JobSelector, SELECTOR};
use crate::state::AppState;

/// The result of a bulk deletion.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    /// The number of deleted jobs.
    jobs_deleted: usize,
    /// What the service ignored of the request. Absent if it ignored nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Delete jobs
///
/// Deletes every job that matches, whatever its status; without a filter, every job in the
/// partition.
///
/// The jobs are deleted in batches. If the request fails midway, the finished batches stay deleted;
/// send the request again to delete the rest.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:delete",
    operation_id = "deleteJobs",
    tag = "jobs",
    params(PartitionPath, JobSelector),
    responses(
        (status = 200, description = "The number of deleted jobs", body = Deleted, example = json!({"jobsDeleted": 3})),
        (status = 400, description = "Invalid partition id or parameter", body = ErrorBody,
            example = json!({"message": "Unsupported filter key specified: colour"})),
        StoreErrors
    )
)]
pub async fn delete_jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
) -> ApiResult<Json<Deleted>> {
    let notes = Unknown::of_query(&uri, &SELECTOR)?.into_notes()?;
    let query = selector.strict_query()?;
    let jobs_deleted = delete_all(&state, &partition, &query, usize::MAX).await?;
    Ok(Json(Deleted {
        jobs_deleted,
        notes,
    }))
}

/// Deletes the jobs that match, at most so many batches of them, and returns how many there were.
pub async fn delete_all(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
    batches: usize,
) -> ApiResult<usize> {
    let store = state.store_of_request();
    let mut jobs_deleted = 0;
    for _ in 0..batches {
        let batch = store
            .delete_some_jobs(partition, query, state.options.delete_batch)
            .await?;
        if batch.is_empty() {
            break;
        }
        jobs_deleted += batch.len();
    }
    tracing::info!(%partition, jobs_deleted, "deleted jobs");
    Ok(jobs_deleted)
}
