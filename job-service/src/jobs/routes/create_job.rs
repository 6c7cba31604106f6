//! `PUT /partitions/{partitionId}/jobs/{jobId}`: creates a job. Idempotent: repeating a request
//! changes nothing.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use contract::rest::{ErrorBody, NewJob};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::correlation::CorrelationId;
use crate::http::correlation::trace_context;
use crate::http::url::url;
use crate::http::{ApiResult, BadBody, JobPath, RequestBody, StoreErrors, Unknown};
use crate::jobs::submission::{Submission, Submitted};
use crate::state::AppState;

/// The body of the response that creates a job, if there is something to say about the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Created {
    /// What the service ignored of the request.
    notes: Vec<String>,
}

/// Create a job
///
/// Stores the job and sends its first task to `taskPipe`. With `prerequisiteJobIds`, the task is
/// sent after these jobs have completed; with `delay`, that many seconds later. If a prerequisite
/// fails or is cancelled, so is this job.
///
/// The request is idempotent: repeating it changes nothing, whatever the status of the job. To run
/// a job again, resubmit it; to go on with one that has failed or was cancelled, retry it. `POST
/// …/jobs` creates a job whose id the service makes.
///
/// With `"outputs": "keep"`, the service keeps the outputs of the tasks (see `getOutputs`); the
/// task has no `targetPipe` then.
///
/// Instead of `task`, a job can have a `type`: the definition of that job type builds the task from
/// `parameters`. Invalid parameters return 400. An error in the definition itself returns 500 and
/// names the job type.
#[utoipa::path(
    put,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "createJob",
    tag = "jobs",
    params(
        JobPath,
        ("strict" = Option<bool>, Query, description = "Whether unknown fields and parameters are refused. By default they are ignored and named in the notes of the response"),
        ("CAF-Correlation-Id" = Option<String>, Header, description = "A correlation id. It is copied to every message of the job"),
        ("traceparent" = Option<String>, Header, description = "The span of the client (W3C Trace Context), with `tracestate`. The trace continues in every message of the job")
    ),
    request_body(content = NewJob, description = "The job", content_type = "application/json", example = json!({
        "name": "Reindex",
        "labels": {"team": "search"},
        "task": {
            "taskClassifier": "BatchWorker",
            "taskApiVersion": 1,
            "taskData": {
                "batchDefinition": "[1-100]",
                "batchType": "RangePlugin",
                "taskMessageType": "OrderBuilder",
                "taskMessageParams": {"region": "eu"},
                "targetPipe": "orders-in"
            },
            "taskPipe": "batch-in",
            "targetPipe": "orders-out"
        }
    })),
    responses(
        (status = 201, description = "Created. The body is empty unless the service ignored something of the request", body = Created, headers(("Location" = String, description = "The URL of the job")), links(
            ("getJob" = (operation_id = "getJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("getJobStatus" = (operation_id = "getJobStatus", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("cancelJob" = (operation_id = "cancelJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("pauseJob" = (operation_id = "pauseJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("resumeJob" = (operation_id = "resumeJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("deleteJob" = (operation_id = "deleteJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("getTask" = (operation_id = "getTask", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId"), ("taskId" = "0"))))
        ), example = json!({"notes": ["The field 'task.priority' is unknown and was ignored."]})),
        (status = 204, description = "The same request has already created the job"),
        (status = 400, description = "The request is invalid, a prerequisite has failed or was cancelled, or the job would wait for itself", body = ErrorBody,
            example = json!({"message": "The task queue name has not been specified."})),
        (status = 403, description = "A different job with this id exists", body = ErrorBody,
            example = json!({"message": "Job already exists"})),
        BadBody, StoreErrors
    )
)]
pub async fn create_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: RequestBody,
) -> ApiResult<Response> {
    let submission = Submission {
        job,
        key: None,
        replaces: None,
        body: body.bytes,
        unknown: Unknown::of_query(&uri, &[])?,
        correlation_id,
        trace: trace_context(&headers),
    };
    match state.submit(&partition, submission).await? {
        Submitted::Created { notes, .. } => {
            let location = [(header::LOCATION, url(uri.path(), &uri, &headers))];
            Ok(if notes.is_empty() {
                (StatusCode::CREATED, location).into_response()
            } else {
                (StatusCode::CREATED, location, Json(Created { notes })).into_response()
            })
        }
        Submitted::AlreadyThere | Submitted::Repeated(_) => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    }
}
