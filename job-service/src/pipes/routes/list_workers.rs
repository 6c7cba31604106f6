//! `GET /workers`: lists the workers of all processes, as they tell of themselves.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::Workers;

use crate::state::AppState;

/// List workers
///
/// Returns the workers and job services that have told of themselves within the last 30 seconds;
/// they do so every 5 seconds. What they are (name, version, machine, process, pipes) and what they
/// do: slots in use, and the task that runs longest. Nothing of it is stored, so a job service that
/// has just started knows all of them after 5 seconds. Workers of other frameworks do not tell of
/// themselves.
#[utoipa::path(
    get,
    path = "/workers",
    operation_id = "listWorkers",
    tag = "service",
    responses(
        (status = 200, description = "The workers, by name, the longest running first", body = Workers, example = json!({"workers": [{
            "id": "5a63a8a8-6545-4e42-a28a-596920f1668f", "name": "worker-batch", "version": "0.1.0", "host": "node-3", "process": 4711,
            "input": "batch-in", "output": null, "slots": 4, "slotsInUse": 1, "openDeliveries": 1,
            "longest": {"task": "acme:reindex-7", "since": 1_767_225_600_000_i64},
            "startTime": 1_767_225_000_000_i64, "lastSignTime": 1_767_225_605_123_i64
        }]}))
    )
)]
pub async fn list_workers(State(state): State<Arc<AppState>>) -> Json<Workers> {
    Json(state.pipes.workers.list())
}
