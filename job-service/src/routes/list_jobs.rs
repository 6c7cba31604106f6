//! `GET /partitions/{partitionId}/jobs` and `…/jobStats/count`: the jobs of a partition, a page at a time, and how many
//! there are.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::rest::{ErrorBody, Job};
use store::JobQuery;

use super::StoreTrouble;
use super::which_jobs::{WhichJobs, WhichPage, WhichStatus};
use crate::Parts;
use crate::error::ApiResult;
use crate::extract::{InPartition, Params};

/// List jobs
///
/// Newest first, unless sorted otherwise.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs",
    operation_id = "getJobs",
    tag = "jobs",
    params(InPartition, WhichJobs, WhichStatus, WhichPage),
    responses(
        (status = 200, description = "The jobs of the page; none of a partition that nobody has used", body = Vec<Job>, example = json!([{
            "id": "reindex-7", "name": "Reindex", "description": null, "externalData": null,
            "createTime": 1_767_225_600_000_i64, "lastUpdateTime": 1_767_225_605_123_i64,
            "status": "Active", "percentageComplete": 46.67, "failures": [], "labels": {"team": "search"},
            "onFailure": "stop", "completedItems": 1400, "failedTasks": 0, "failureCounts": {}, "incarnation": 42
        }])),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "Invalid value for sort direction: up"})),
        StoreTrouble
    )
)]
pub async fn list(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
    Params(status): Params<WhichStatus>,
    Params(page): Params<WhichPage>,
) -> ApiResult<Json<Vec<Job>>> {
    let query = JobQuery {
        statuses: status.statuses(),
        ..jobs.query()?
    };
    let query = page.of(query, parts.options.page_size)?;
    Ok(Json(parts.store.jobs(&partition, &query).await?))
}

/// Count jobs
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobStats/count",
    operation_id = "getJobStatsCount",
    tag = "jobs",
    params(InPartition, WhichJobs, WhichStatus),
    responses(
        (status = 200, description = "How many there are", body = u64, content_type = "application/json", example = json!(3)),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "The partition ID is longer than 40 characters."})),
        StoreTrouble
    )
)]
pub async fn count(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
    Params(status): Params<WhichStatus>,
) -> ApiResult<Json<u64>> {
    let query = JobQuery {
        statuses: status.statuses(),
        ..jobs.query()?
    };
    Ok(Json(parts.store.count_jobs(&partition, &query).await?))
}
