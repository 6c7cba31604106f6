//! `GET …/jobs/{jobId}/splits/{taskId}`: returns what the worker that splits a task again has to
//! know: from what an earlier round has split it, and which of its subtasks are done.
//!
//! What must stay true: a past incarnation or round is "not found", as for the status. An answer is
//! bounded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::SplitState;
use contract::rest::{AccessRole, ErrorBody, ErrorCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::{
    ApiError, ApiResult, InvalidParameter, JobPath, QueryParams, StoreErrors, TaskPath, WrongKey,
    whole_number,
};
use crate::jobs::status_url::{LifeParams, told};
use crate::state::AppState;
use crate::tasks::routes::get_task::parse_id;

/// The highest number of a subtask.
const LAST: u32 = i32::MAX.unsigned_abs();

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SplitParams {
    /// Only subtasks with higher numbers: the `upTo` of the answer before.
    #[param(value_type = Option<u32>, example = 0, maximum = 2_147_483_647)]
    after: Option<String>,
}

/// Get what is done of a split
///
/// Workers read this when a job was taken up again: a task that is split again dispatches only the
/// subtasks that are not done, if it is made from the same source. Tells at most 1,000 ranges, and
/// goes on behind `upTo`.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/splits/{taskId}",
    operation_id = "getSplit",
    tag = "jobs",
    params(
        JobPath,
        ("taskId" = String, Path, example = "3", pattern = r"^(0|[1-9][0-9]*\*?(\.[1-9][0-9]*\*?)*)$", description = "The path from the job to the task: numbers from 1, \
            separated by dots, each optionally followed by `*`. `0` is the job's first task"),
        LifeParams,
        SplitParams
    ),
    responses(
        (status = 200, description = "What is known of the split", body = SplitState, example = json!({
            "known": true, "completed": false, "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "round": 1,
            "contradictory": false, "done": [{"first": 1, "last": 16}, {"first": 18, "last": 1000}], "upTo": null
        })),
        (status = 404, description = "The job, or this incarnation of it, does not exist, or this round of it is over", body = ErrorBody, headers(
            ("X-Batchwright-Not-Found" = String, description = "Always `job`: by this, workers tell this answer from a gateway's")
        ),
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        WrongKey, InvalidParameter, StoreErrors
    )
)]
pub async fn get_split(
    State(state): State<Arc<AppState>>,
    TaskPath(partition, job, task): TaskPath,
    QueryParams(life): QueryParams<LifeParams>,
    QueryParams(SplitParams { after }): QueryParams<SplitParams>,
) -> ApiResult<Json<SplitState>> {
    let path = parse_id(&task)?;
    let asked = life.of(AccessRole::View, &partition, &job)?;
    let after = whole_number("after", after.as_deref())?.unwrap_or(0);
    if after > LAST {
        let message = format!("The parameter 'after' must be at most {LAST}, but is {after}.");
        return Err(ApiError::bad_request(ErrorCode::InvalidParameter, message));
    }
    let split = state.store.split(asked, &path, after).await?;
    told(split, &job).map(Json)
}
