//! `GET …/jobs/{jobId}/progress`: how the items of a job ended over time.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::rest::{ErrorBody, ProgressCurve};

use crate::http::{ApiError, ApiResult, JobPath, NoJob, StoreErrors, Unknown};
use crate::state::AppState;

/// Get the progress of a job over time
///
/// Returns how many items were done and how many tasks had failed, at no more than 240 moments from
/// the first report of a task on. Points are a second apart in the beginning; whenever there are
/// too many, every other one goes, and from then on they are twice as far apart. A job that is
/// retried goes on with its curve, with no failures at first.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/progress",
    operation_id = "getProgress",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "The points", body = ProgressCurve, example = json!({
            "points": [
                {"time": 1_767_225_600_000_i64, "done": 1, "failed": 0},
                {"time": 1_767_225_601_004_i64, "done": 11_204, "failed": 0},
                {"time": 1_767_225_601_917_i64, "done": 19_998, "failed": 2}
            ],
            "total": 20_000, "totalIsFinal": true
        })),
        (status = 400, description = "Invalid partition id or job id, or an unknown parameter with `strict=true`", body = ErrorBody,
            example = json!({"message": "The parameter 'points' is unknown. Correct or remove it; without 'strict=true', it is ignored."})),
        NoJob, StoreErrors
    )
)]
pub async fn get_progress(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<ProgressCurve>> {
    Unknown::of_query(&uri, &[])?.into_notes()?;
    let curve = state.store.progress_curve(&partition, &job).await?;
    Ok(Json(curve.ok_or_else(|| ApiError::job_not_found(&job))?))
}
