//! `GET /partitions/{partitionId}/jobs/{jobId}`: returns a job.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use contract::rest::Job;
use contract::{JobId, PartitionId};
use store::ListedJob;

use crate::conditions::show_conditions;
use crate::http::in_pieces;
use crate::http::{ApiError, ApiResult, InvalidParameter, JobPath, NoJob, StoreErrors};
use crate::jobs::routes::job_pieces::{JSON, OneJob};
use crate::state::AppState;

/// Get a job
///
/// Returns the job with its status, its progress and its first failures.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "getJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "The job", body = Job, example = json!({
            "id": "reindex-7", "name": "Reindex", "description": null, "externalData": null,
            "createTime": 1_767_225_600_000_i64, "lastUpdateTime": 1_767_225_605_123_i64,
            "status": "Waiting", "percentageComplete": 0.0, "failures": [], "labels": {"team": "search"},
            "onFailure": "stop", "completedItems": 0, "failedTasks": 0, "failureCounts": {}, "incarnation": 42,
            "items": {"total": null, "totalIsFinal": false, "done": 0, "failed": 0, "retrying": null, "running": null, "waiting": null},
            "progress": null, "startTime": null, "endTime": null, "itemsPerSecond": null, "estimatedEndTime": null,
            "waitingFor": [{"jobId": "extract-7", "status": "Active"}, {"jobId": "upload-7", "status": null}], "delay": 60
        })),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn get_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<Response> {
    let found = find_job(&state, &partition, &job).await?;
    in_pieces::send(state, OneJob::new(found)?, JSON).await
}

/// Returns a job as the API and the web page show it.
pub async fn find_job(
    state: &Arc<AppState>,
    partition: &PartitionId,
    job: &JobId,
) -> ApiResult<ListedJob> {
    let found = state.store.listed_job(partition, job).await?;
    let mut listed = found.ok_or_else(|| ApiError::job_not_found(job))?;
    let found = &mut listed.job;
    state.pipes.workers.running().show(partition, found);
    show_conditions(&state.store, found).await?;
    let stuck = state.options.stuck;
    stuck.note(&state.pipes.workers, partition, found);
    state.note_sharing(found).await;
    state.note_silent_pipes(partition, job, found).await;
    Ok(listed)
}
