//! `POST …/jobs:cancel` and `…/jobs:delete`: an end to many jobs at once.
//!
//! What must stay true: no transaction is longer than a batch; what is done is announced to the workers even when a later batch
//! fails. A parameter that is not understood is refused, because what it leaves out would be every job.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::PartitionId;
use contract::rest::ErrorBody;
use serde::Serialize;
use store::{Incarnation, JobQuery};
use utoipa::ToSchema;

use super::StoreTrouble;
use super::which_jobs::{WhichJobs, WhichStatus};
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::{InPartition, Params};

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canceled {
    jobs_canceled: usize,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    jobs_deleted: usize,
}

/// Cancel jobs
///
/// All jobs that are meant and have not ended; those of the whole partition, when nothing is said. They are cancelled some at a
/// time: when the request fails on its way, what is done stays done, and it may be sent again.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:cancel",
    operation_id = "cancelJobs",
    tag = "jobs",
    params(InPartition, WhichJobs, WhichStatus),
    responses(
        (status = 200, description = "How many jobs were cancelled", body = Canceled, example = json!({"jobsCanceled": 3})),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "Unsupported filter key specified: colour"})),
        StoreTrouble
    )
)]
pub async fn cancel(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
    Params(status): Params<WhichStatus>,
) -> ApiResult<Json<Canceled>> {
    let query = query(&jobs, &status)?;
    let mut jobs_canceled = 0;
    loop {
        let batch = parts
            .store
            .cancel_some_jobs(&partition, &query, parts.options.cancel_batch)
            .await?;
        if batch.is_empty() {
            tracing::info!(%partition, jobs_canceled, "jobs were cancelled");
            return Ok(Json(Canceled { jobs_canceled }));
        }
        jobs_canceled += batch.len();
        announce(&parts, &partition, &batch);
    }
}

/// Delete jobs
///
/// All jobs that are meant, whatever their status; those of the whole partition, when nothing is said. They are deleted some at a
/// time: when the request fails on its way, what is done stays done, and it may be sent again.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:delete",
    operation_id = "deleteJobs",
    tag = "jobs",
    params(InPartition, WhichJobs, WhichStatus),
    responses(
        (status = 200, description = "How many jobs were deleted", body = Deleted, example = json!({"jobsDeleted": 3})),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "Unsupported filter key specified: colour"})),
        StoreTrouble
    )
)]
pub async fn delete(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
    Params(status): Params<WhichStatus>,
) -> ApiResult<Json<Deleted>> {
    let query = query(&jobs, &status)?;
    let mut jobs_deleted = 0;
    loop {
        let batch = parts
            .store
            .delete_some_jobs(&partition, &query, parts.options.delete_batch)
            .await?;
        if batch.is_empty() {
            tracing::info!(%partition, jobs_deleted, "jobs were deleted");
            return Ok(Json(Deleted { jobs_deleted }));
        }
        jobs_deleted += batch.len();
        announce(&parts, &partition, &batch);
    }
}

fn query(jobs: &WhichJobs, status: &WhichStatus) -> ApiResult<JobQuery> {
    let statuses = status.statuses();
    match status.status_type.as_deref() {
        Some(unknown) if statuses.is_empty() && !unknown.is_empty() => {
            Err(ApiError::bad_request(format!(
                "The parameter 'statusType' must be NotFinished, NotCompleted, Completed or Inactive, but is '{unknown}'."
            )))
        }
        _ => Ok(JobQuery {
            statuses,
            ..jobs.query()?
        }),
    }
}

/// Has the workers ask for the status of these jobs at once.
fn announce(parts: &Parts, partition: &PartitionId, batch: &[Incarnation]) {
    drop(framework::announce(
        &*parts.broker,
        batch
            .iter()
            .map(|life| format!("{partition}:{}", life.job))
            .collect(),
    ));
}
