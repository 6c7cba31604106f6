//! `POST …/jobs:cancel` and `POST …/jobs:delete`: cancel or delete every matching job.
//!
//! What must stay true: no transaction covers more than one batch. An unknown parameter value is an
//! error, because ignoring it would select every job.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::PartitionId;
use serde::Serialize;
use store::{JobQuery, StoreError};
use utoipa::ToSchema;

use crate::http::{ApiResult, InvalidParameter, PartitionPath, QueryParams, StoreErrors, Unknown};
use crate::jobs::job_list::{JobSelector, SELECTOR};
use crate::state::AppState;

/// The result of a bulk cancellation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canceled {
    /// The number of cancelled jobs.
    jobs_canceled: usize,
    /// What the service ignored of the request. Absent if it ignored nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

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

/// Cancel jobs
///
/// Cancels every unfinished job that matches; without a filter, every unfinished job in the
/// partition.
///
/// The jobs are cancelled in batches. If the request fails midway, the finished batches stay
/// cancelled; send the request again to cancel the rest.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:cancel",
    operation_id = "cancelJobs",
    tag = "jobs",
    params(PartitionPath, JobSelector),
    responses(
        (status = 200, description = "The number of cancelled jobs", body = Canceled, example = json!({"jobsCanceled": 3})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn cancel_jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
) -> ApiResult<Json<Canceled>> {
    let notes = Unknown::of_query(&uri, &SELECTOR)?.into_notes()?;
    let query = selector.strict_query()?;
    let jobs_canceled = cancel_all(&state, &partition, &query, usize::MAX).await?;
    Ok(Json(Canceled {
        jobs_canceled,
        notes,
    }))
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
        InvalidParameter, StoreErrors
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

/// Cancels the unfinished jobs that match, at most so many batches of them. Returns their number.
pub async fn cancel_all(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
    batches: usize,
) -> ApiResult<usize> {
    let store = state.store_of_request();
    let cancel = || store.cancel_some_jobs(partition, query, state.options.cancel_batch);
    let jobs_canceled = in_batches(batches, cancel).await?;
    tracing::info!(%partition, jobs_canceled, "cancelled jobs");
    Ok(jobs_canceled)
}

/// Deletes the jobs that match, at most so many batches of them. Returns their number.
pub async fn delete_all(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
    batches: usize,
) -> ApiResult<usize> {
    let store = state.store_of_request();
    let delete = || store.delete_some_jobs(partition, query, state.options.delete_batch);
    let jobs_deleted = in_batches(batches, delete).await?;
    tracing::info!(%partition, jobs_deleted, "deleted jobs");
    Ok(jobs_deleted)
}

/// Changes at most so many batches of jobs, until none is left. Returns the number of jobs.
async fn in_batches<J, F: Future<Output = Result<Vec<J>, StoreError>>>(
    batches: usize,
    change: impl Fn() -> F,
) -> ApiResult<usize> {
    let mut jobs = 0;
    for _ in 0..batches {
        let batch = change().await?;
        if batch.is_empty() {
            break;
        }
        jobs += batch.len();
    }
    Ok(jobs)
}
