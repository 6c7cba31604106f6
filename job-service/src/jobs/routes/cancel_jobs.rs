//! `POST …/jobs:cancel`: cancels every matching job.
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
        (status = 400, description = "Invalid partition id or parameter", body = ErrorBody,
            example = json!({"message": "Unsupported filter key specified: colour"})),
        StoreErrors
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

/// Cancels the unfinished jobs that match, at most so many batches of them, and returns how many
/// there were.
pub async fn cancel_all(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
    batches: usize,
) -> ApiResult<usize> {
    let store = state.store_of_request();
    let mut jobs_canceled = 0;
    for _ in 0..batches {
        let batch = store
            .cancel_some_jobs(partition, query, state.options.cancel_batch)
            .await?;
        if batch.is_empty() {
            break;
        }
        jobs_canceled += batch.len();
    }
    tracing::info!(%partition, jobs_canceled, "cancelled jobs");
    Ok(jobs_canceled)
}
