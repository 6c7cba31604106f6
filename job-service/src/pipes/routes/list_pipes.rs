//! `GET /pipes`: lists the pipes that the service knows, with what waits in each.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::Pipes;

use crate::http::{ApiResult, StoreErrors};
use crate::state::AppState;

/// List pipes
///
/// Returns the pipes of the service, of the workers that tell of themselves (see `listWorkers`) and
/// of the unfinished jobs, at most 500; with the embedded broker, all pipes. The quarantine, the
/// invalid pipe and the reject pipe of a pipe are counted beside it.
///
/// `items` is the number to scale workers by. What jobs have announced is read at most every ten
/// seconds.
///
/// `null` is what the broker does not tell: RabbitMQ tells messages and consumers. Rates are those
/// since the service was asked before, over two seconds or longer. Depths are no secrets of an
/// installation; the messages themselves are (see `getPipe`).
#[utoipa::path(
    get,
    path = "/pipes",
    operation_id = "listPipes",
    tag = "pipes",
    responses(
        (status = 200, description = "The pipes, by name", body = Pipes, example = json!({"complete": true, "pipes": [{
            "name": "words-in", "exists": true, "items": 19744, "messages": 1200, "consumers": 2, "delayed": 3, "inPerSecond": 410.5, "outPerSecond": 398.0,
            "quarantined": 0, "invalid": 0, "rejected": 1, "workers": ["word-count"]}]})),
        StoreErrors
    )
)]
pub async fn list_pipes(State(state): State<Arc<AppState>>) -> ApiResult<Json<Pipes>> {
    Ok(Json(state.pipes().await?))
}
