//! `GET` and `PUT …/jobs/{jobId}/memos/{taskId}/{key}`: tells a worker whether a part of a task is
//! done, and keeps its result.
//!
//! What must stay true: a job or round that is over is never told as "not done", because the worker
//! would do the part.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::rest::{AccessRole, ErrorBody, ErrorCode};
use contract::{MAX_MEMO_BYTES, Memo, MemoKey, NewMemo};
use serde::de::IgnoredAny;
use store::{Asked, MemoAnswer, MemoBound, MemoPlace};

use crate::http::{ApiError, ApiResult, MemoPath, QueryParams, RequestBody, StoreErrors, WrongKey};
use crate::jobs::status_url::{LifeParams, told};
use crate::state::AppState;
use crate::tasks::routes::get_task::parse_id;

/// Get what is known of a part of a task
///
/// Workers ask this before they do a part of a task that is to be done once.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}",
    operation_id = "getMemo",
    tag = "jobs",
    params(MemoPath, LifeParams),
    responses(
        (status = 200, description = "Whether the part is done, and its result", body = Memo,
            example = json!({"done": true, "result": "{\"receipt\":4711}"})),
        (status = 400, description = "Invalid partition id, job id, task id, key or parameter", body = ErrorBody,
            example = json!({"message": "The parameter 'n' must be a whole number, but is 'x'."})),
        (status = 404, description = "The job, or this incarnation of it, does not exist, or this round of it is over", body = ErrorBody, headers(
            ("X-Batchwright-Not-Found" = String, description = "Always `job`: by this, workers tell this answer from a gateway's")
        ),
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        (status = 409, description = "The job has ended, or there is no room for the result", body = ErrorBody,
            example = json!({"message": "The task has 100 memos; more are not kept."})),
        WrongKey, StoreErrors
    )
)]
pub async fn get_memo(
    State(state): State<Arc<AppState>>,
    MemoPath(partition, job, task, key): MemoPath,
    QueryParams(life): QueryParams<LifeParams>,
) -> ApiResult<Json<Memo>> {
    let (path, key) = (parse_id(&task)?, parse_key(&key)?);
    let of = life.of(AccessRole::View, &partition, &job)?;
    let (path, key) = (&*path, &key);
    let place = MemoPlace { of, path, key };
    answer(state.store.memo(place).await?, place)
}

/// Keep the result of a part of a task
///
/// Workers send this when they have done a part of a task that is to be done once. If there is a
/// result already, that one stays, and is returned. A past round may keep a result.
#[utoipa::path(
    put,
    path = "/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}",
    operation_id = "putMemo",
    tag = "jobs",
    params(MemoPath, LifeParams),
    request_body(content = NewMemo, example = json!({"result": "{\"receipt\":4711}"})),
    responses(
        (status = 200, description = "The result that is kept", body = Memo,
            example = json!({"done": true, "result": "{\"receipt\":4711}"})),
        (status = 400, description = "Invalid partition id, job id, task id, key, parameter or body", body = ErrorBody,
            example = json!({"message": "The result is not JSON: expected value at line 1 column 1."})),
        (status = 404, description = "The job, or this incarnation of it, does not exist", body = ErrorBody, headers(
            ("X-Batchwright-Not-Found" = String, description = "Always `job`: by this, workers tell this answer from a gateway's")
        ),
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody,
            example = json!({"message": "The body did not arrive within 30s."})),
        (status = 409, description = "The job has ended and cannot be taken up again, or there is no room for the result", body = ErrorBody,
            example = json!({"message": "The task has 100 memos; more are not kept."})),
        (status = 413, description = "The result or the body is too large", body = ErrorBody,
            example = json!({"message": "The body is larger than 16384 bytes."})),
        WrongKey, StoreErrors
    )
)]
pub async fn put_memo(
    State(state): State<Arc<AppState>>,
    MemoPath(partition, job, task, key): MemoPath,
    QueryParams(life): QueryParams<LifeParams>,
    body: RequestBody,
) -> ApiResult<Json<Memo>> {
    let (path, key) = (parse_id(&task)?, parse_key(&key)?);
    let of = life.of(AccessRole::Operate, &partition, &job)?;
    let NewMemo { result } = body.parsed()?;
    if result.len() > MAX_MEMO_BYTES {
        return Err(ApiError::TooLarge(MAX_MEMO_BYTES));
    }
    serde_json::from_str::<IgnoredAny>(&result).map_err(|error| {
        let message = format!("The result is not JSON: {error}.");
        ApiError::bad_request(ErrorCode::InvalidRequest, message)
    })?;
    let (path, key) = (&*path, &key);
    let place = MemoPlace { of, path, key };
    answer(state.store.keep_memo(place, &result).await?, place)
}

fn parse_key(text: &str) -> ApiResult<MemoKey> {
    text.parse().map_err(|error: contract::InvalidMemoKey| {
        ApiError::bad_request(ErrorCode::InvalidId, format!("{error}."))
    })
}

fn answer(answer: MemoAnswer, place: MemoPlace<'_>) -> ApiResult<Json<Memo>> {
    let full = |message| Err(ApiError::Conflict(ErrorCode::TooManyMemos, message));
    match answer {
        MemoAnswer::Kept(result) => Ok(Json(Memo {
            done: true,
            result: Some(result),
        })),
        MemoAnswer::Unknown => Ok(Json(Memo::default())),
        MemoAnswer::Full(MemoBound::OfTask(most)) => {
            full(format!("The task has {most} memos; more are not kept."))
        }
        MemoAnswer::Full(MemoBound::OfJob(most)) => full(format!(
            "The memos of the job have {most} bytes; more are not kept."
        )),
        MemoAnswer::Ended => Err(ApiError::Conflict(
            ErrorCode::WrongJobStatus,
            format!("The job '{}' has ended.", place.of.job),
        )),
        MemoAnswer::NoJob => told(Asked::Gone, place.of.job),
        MemoAnswer::WrongKey => told(Asked::WrongKey, place.of.job),
    }
}
