//! `GET /pipes/{pipe}`: returns a pipe with what waits in it, and its first messages on request.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::rest::{ErrorBody, ErrorCode};
use contract::{MAX_PIPE_MESSAGES, Pipe};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::{ApiError, ApiResult, PipePath, QueryParams, StoreErrors, Unknown, whole_number};
use crate::state::AppState;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PeekParams {
    /// How many of the first messages to return, at most 100. By default none.
    #[param(value_type = Option<u32>, example = 10)]
    pub peek: Option<String>,
}

/// Get a pipe
///
/// Returns what waits in a pipe, as `listPipes` does. With `peek` also its first messages, which
/// stay where they are, up to one MiB; those that consumers work on belong to them.
///
/// Messages are shown only where the operator gives access to pipes (`--pipe-access`, see
/// `takeMessages`), and only by a broker that can read them without taking them: the embedded one.
/// RabbitMQ counts each message that is given back as a failed delivery, so the request returns 409
/// there.
#[utoipa::path(
    get,
    path = "/pipes/{pipe}",
    operation_id = "getPipe",
    tag = "pipes",
    params(PipePath, PeekParams),
    responses(
        (status = 200, description = "The pipe", body = Pipe, example = json!({
            "name": "words-in", "exists": true, "items": 19744, "messages": 1200, "consumers": 2, "delayed": 3, "inPerSecond": 410.5, "outPerSecond": 398.0,
            "quarantined": 0, "invalid": 0, "rejected": 1, "workers": ["word-count"]})),
        (status = 400, description = "Invalid name or parameter", body = ErrorBody,
            example = json!({"message": "The parameter 'peek' is 1000; the limit is 100."})),
        (status = 403, description = "The service gives no access to messages", body = ErrorBody,
            example = json!({"message": "This service gives no access to pipes over HTTP."})),
        (status = 404, description = "The pipe does not exist", body = ErrorBody,
            example = json!({"message": "There is no pipe 'words-in'."})),
        (status = 409, description = "The broker cannot show messages without taking them", body = ErrorBody,
            example = json!({"message": "The messages of the pipe 'words-in' cannot be shown without taking them."})),
        StoreErrors
    )
)]
pub async fn get_pipe(
    State(state): State<Arc<AppState>>,
    PipePath(pipe): PipePath,
    OriginalUri(uri): OriginalUri,
    QueryParams(PeekParams { peek }): QueryParams<PeekParams>,
) -> ApiResult<Json<Pipe>> {
    Unknown::of_query(&uri, &["peek"])?.into_notes()?;
    let peek: Option<usize> = whole_number("peek", peek.as_deref())?;
    if let Some(number) = peek.filter(|number| *number > MAX_PIPE_MESSAGES) {
        let message =
            format!("The parameter 'peek' is {number}; the limit is {MAX_PIPE_MESSAGES}.");
        return Err(ApiError::bad_request(ErrorCode::InvalidParameter, message));
    }
    Ok(Json(
        state.pipe(&pipe, peek.filter(|number| *number > 0)).await?,
    ))
}
