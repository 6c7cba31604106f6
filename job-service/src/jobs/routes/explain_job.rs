//! `POST /partitions/{partitionId}/jobs:explain`: says what the batch of a job would be split into,
//! and creates nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::Explanation;
use contract::rest::{ErrorBody, NewJob};

use crate::http::{ApiResult, BadBody, PartitionPath, RequestBody, StoreErrors, Unknown};
use crate::state::AppState;

/// Explain a job
///
/// Says what the batch of a job would be split into: how many items, splits and messages, and which
/// items come first and last. Creates nothing. The body is that of `createJob`.
///
/// A running batch worker of the task pipe splits the batch without sending anything. It looks for
/// at most a few seconds: if it did not see the whole (`"exact": false`), there is at least what it
/// saw. It reads the sources as they are now; if they change before the job runs, the job has other
/// items.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:explain",
    operation_id = "explainJob",
    tag = "jobs",
    params(
        PartitionPath,
        ("strict" = Option<bool>, Query, description = "Whether unknown fields and parameters are refused. By default they are ignored and named in the notes of the response")
    ),
    request_body(content = NewJob, description = "The job", content_type = "application/json", example = json!({
        "task": {
            "taskClassifier": "BatchWorker",
            "taskApiVersion": 1,
            "taskData": {"batchDefinition": "1-1000000", "batchType": "range", "targetPipe": "orders-in"},
            "taskPipe": "worker-batch-in"
        }
    })),
    responses(
        (status = 200, description = "What the batch would be split into", body = Explanation, example = json!({
            "batchType": "range", "exact": true, "items": 1_000_000, "splits": 1001, "messages": 1_001_000, "bytes": 17_016_676, "levels": 2,
            "first": [{"label": "number 1", "itemType": "RangeItem", "data": "{\"number\":1}"}],
            "last": [{"label": "number 1000000", "itemType": "RangeItem", "data": "{\"number\":1000000}"}],
            "targetPipe": "orders-in"
        })),
        (status = 400, description = "The request is invalid, its task is no batch, or the batch cannot be split", body = ErrorBody,
            example = json!({"message": "Batch definition of range: the range begins with 2 but ends before it, with 1."})),
        BadBody, StoreErrors
    )
)]
pub async fn explain_job(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    body: RequestBody,
) -> ApiResult<Json<Explanation>> {
    let unknown = Unknown::of_query(&uri, &[])?;
    let explanation = state.explain(&partition, &body.bytes, unknown).await?;
    Ok(Json(explanation))
}
