//! `POST /partitions/{partitionId}/jobs`: creates a job whose id the service makes.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use contract::rest::{ErrorBody, NewJob, SubmittedJob};

use crate::http::correlation::CorrelationId;
use crate::http::correlation::trace_context;
use crate::http::idempotency::Key;
use crate::http::url::{job_path, url};
use crate::http::{ApiResult, BadBody, PartitionPath, RequestBody, StoreErrors, Unknown};
use crate::jobs::submission::{Submission, Submitted, made_id};
use crate::state::AppState;

/// Create a job with a made id
///
/// Creates a job as `createJob` does, under an id that the service makes.
///
/// With a header `Idempotency-Key`, a repeated request creates no second job: the answer names the
/// job that the first one created, also if it was deleted since. A key belongs to a partition, and
/// is forgotten after a day (`--keep-idempotency-keys`).
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs",
    operation_id = "submitJob",
    tag = "jobs",
    params(
        PartitionPath,
        ("strict" = Option<bool>, Query, description = "Whether unknown fields and parameters are refused. By default they are ignored and named in the notes of the response"),
        ("Idempotency-Key" = Option<String>, Header, description = "A text of the client's for this request, of 1 to 255 visible ASCII characters"),
        ("CAF-Correlation-Id" = Option<String>, Header, description = "A correlation id. It is copied to every message of the job"),
        ("traceparent" = Option<String>, Header, description = "The span of the client (W3C Trace Context), with `tracestate`. The trace continues in every message of the job")
    ),
    request_body(content = NewJob, description = "The job", content_type = "application/json", example = json!({
        "name": "Reindex",
        "task": {
            "taskClassifier": "BatchWorker",
            "taskApiVersion": 1,
            "taskData": {"batchDefinition": "[1-100]", "batchType": "RangePlugin", "targetPipe": "orders-in"},
            "taskPipe": "batch-in",
            "targetPipe": "orders-out"
        }
    })),
    responses(
        (status = 200, description = "The same request with the same key has created this job before", body = SubmittedJob,
            example = json!({"jobId": "019a3f0c-5f0e-7c7a-b7c4-6d0f6d2f9a11"})),
        (status = 201, description = "Created", body = SubmittedJob, headers(("Location" = String, description = "The URL of the job")),
            example = json!({"jobId": "019a3f0c-5f0e-7c7a-b7c4-6d0f6d2f9a11"})),
        (status = 400, description = "The request is invalid, a prerequisite has failed or was cancelled, or the job would wait for itself", body = ErrorBody,
            example = json!({"message": "The task queue name has not been specified."})),
        (status = 422, description = "The key belongs to another request", body = ErrorBody,
            example = json!({"message": "The Idempotency-Key 'nightly' belongs to another request, which created the job 'reindex-7'. Give each request a key of its own, and repeat a request unchanged."})),
        BadBody, StoreErrors
    )
)]
pub async fn submit_job(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: RequestBody,
) -> ApiResult<Response> {
    let job = made_id()?;
    let submission = Submission {
        job: job.clone(),
        key: Key::of(&headers, String::new())?,
        replaces: None,
        body: body.bytes,
        unknown: Unknown::of_query(&uri, &[])?,
        correlation_id,
        trace: trace_context(&headers),
    };
    let (status, job, notes) = match state.submit(&partition, submission).await? {
        Submitted::Created { job, notes } => (StatusCode::CREATED, job.job, notes),
        Submitted::Repeated(job) => (StatusCode::OK, job, Vec::new()),
        Submitted::AlreadyThere => (StatusCode::OK, job, Vec::new()),
    };
    let location = url(&job_path(&partition, &job), &uri, &headers);
    let job_id = job.to_string();
    let body = Json(SubmittedJob { job_id, notes });
    Ok((status, [(header::LOCATION, location)], body).into_response())
}
