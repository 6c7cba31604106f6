//! `POST /partitions/{partitionId}/dispatch`: lets the suspended jobs of a partition start.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::{ApiResult, InvalidParameter, PartitionPath, StoreErrors};
use crate::state::AppState;

/// The result of a dispatch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// The number of jobs that were suspended and no longer are.
    jobs_released: u64,
}

/// Dispatch the suspended jobs of a partition
///
/// Releases all jobs that were created while their partition was suspended
/// (`CAF_JOB_SERVICE_SUSPENDED_PARTITIONS_REGEX`). They start once their prerequisites have
/// completed and their delay has passed. The partition stays suspended: jobs created later wait for
/// the next dispatch.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/dispatch",
    operation_id = "dispatchPartition",
    tag = "jobs",
    params(PartitionPath),
    responses(
        (status = 200, description = "The number of released jobs", body = Released, example = json!({"jobsReleased": 3})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn dispatch_partition(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
) -> ApiResult<Json<Released>> {
    let jobs_released = state.store.dispatch_partition(&partition).await?;
    tracing::info!(%partition, jobs_released, "dispatched the suspended jobs of a partition");
    Ok(Json(Released { jobs_released }))
}
