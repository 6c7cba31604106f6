//! The pipes, and the workers that take messages from them.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Response;
use contract::MAX_PIPE_MESSAGES;
use page::{PipePage, PipesPage, WorkersPage};

use super::form::Fields;
use crate::error::{ApiError, ApiResult};
use crate::extract::{PipePath, whole_number};
use crate::html::html;
use crate::state::AppState;

/// The number of messages that a pipe shows unasked.
const MESSAGES: usize = 10;

/// `GET /pipes`: what waits where.
pub async fn pipes(State(state): State<Arc<AppState>>) -> ApiResult<Response> {
    let pipes = state.pipes().await?;
    let page = PipesPage::new(&pipes, &state.options.webservice_url);
    Ok(html(StatusCode::OK, &page))
}

/// `GET /pipes/{pipe}?peek=…`: one pipe. Its first messages are shown where the operator and the
/// broker allow it.
pub async fn pipe(
    State(state): State<Arc<AppState>>,
    PipePath(name): PipePath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let asked: Option<usize> = whole_number("peek", Some(fields.get("peek")))?;
    let number = asked.unwrap_or(MESSAGES).clamp(1, MAX_PIPE_MESSAGES);
    let (pipe, problem) = match state.pipe(&name, Some(number)).await {
        Ok(pipe) => (pipe, None),
        Err(error @ (ApiError::PipesNotServed | ApiError::Conflict(..))) => {
            (state.pipe(&name, None).await?, Some(error.message()))
        }
        Err(error) => return Err(error),
    };
    let workers = state.workers.list().workers;
    let its = workers
        .iter()
        .filter(|worker| worker.input.as_ref() == Some(&name));
    let shown = pipe.peeked.as_ref().map_or(0, Vec::len);
    let is_cut = shown == number && number < MAX_PIPE_MESSAGES && pipe.messages > shown as u64;
    let more = is_cut.then_some(MAX_PIPE_MESSAGES);
    let page = PipePage::new(&pipe, its.collect(), problem, more);
    Ok(html(StatusCode::OK, &page))
}

/// `GET /workers`: the workers of all processes.
pub async fn workers(State(state): State<Arc<AppState>>) -> Response {
    html(StatusCode::OK, &WorkersPage::new(&state.workers.list()))
}
