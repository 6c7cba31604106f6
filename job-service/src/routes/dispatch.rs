//! `POST /partitions/{partitionId}/dispatch`: lets the jobs of a suspended partition start.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::rest::ErrorBody;
use serde::Serialize;
use utoipa::ToSchema;

use super::StoreTrouble;
use crate::Parts;
use crate::error::ApiResult;
use crate::extract::InPartition;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Jobs that were suspended and are not any more.
    jobs_released: u64,
}

/// Dispatch the suspended jobs of a partition
///
/// Jobs that were created while their partition was suspended (`CAF_JOB_SERVICE_SUSPENDED_PARTITIONS_REGEX`) may start now; those
/// with prerequisites or a delay still wait for these. Jobs that are created later are suspended as before.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/dispatch",
    operation_id = "dispatchPartition",
    tag = "jobs",
    params(InPartition),
    responses(
        (status = 200, description = "How many jobs are no longer suspended", body = Released, example = json!({"jobsReleased": 3})),
        (status = 400, description = "The partition id is not well-formed", body = ErrorBody,
            example = json!({"message": "The partition ID is longer than 40 characters."})),
        StoreTrouble
    )
)]
pub async fn dispatch(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
) -> ApiResult<Json<Released>> {
    let jobs_released = parts.store.dispatch_partition(&partition).await?;
    tracing::info!(%partition, jobs_released, "the suspended jobs of a partition were released");
    Ok(Json(Released { jobs_released }))
}
