//! `PUT /partitions/{partitionId}/jobs/{jobId}`: creates a job. Idempotent: repeating a request changes nothing.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use contract::kept_track_to;
use contract::rest::{ErrorBody, ErrorCode, NewJob};
use framework::clock::Clock;
use framework::trace::{Span, SpanKind, TRACEPARENT, TRACESTATE, TraceContext};
use serde::Serialize;
use store::{Creation, Header, Incarnation};
use utoipa::ToSchema;
use uuid::Uuid;

use super::StoreErrors;
use crate::correlation::CorrelationId;
use crate::error::{ApiError, ApiResult};
use crate::extract::JobPath;
use crate::new_job::{RawRequest, RequestContext, ValidJob, refusal_message, start_message};
use crate::notes::Unknown;
use crate::request_body::RequestBody;
use crate::state::AppState;

/// The body of the response that creates a job, if there is something to say about the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Created {
    /// What the service ignored of the request.
    notes: Vec<String>,
}

/// Create a job
///
/// Stores the job and sends its first task to `taskPipe`. With `prerequisiteJobIds`, the task is sent after these jobs have
/// completed; with `delay`, that many seconds later. If a prerequisite fails or is cancelled, so is this job.
///
/// The request is idempotent: repeating it changes nothing, whatever the status of the job. To run a job again, delete it and
/// create it again; to go on with one that has failed or was cancelled, retry it.
///
/// With `"outputs": "keep"`, the service keeps the outputs of the tasks (see `getOutputs`); the task has no `targetPipe` then.
///
/// Instead of `task`, a job can have a `type`: the definition of that job type builds the task from `parameters`. Invalid parameters
/// return 400. An error in the definition itself returns 500 and names the job type.
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
        (status = 408, description = "The request body did not arrive in time", body = ErrorBody,
            example = json!({"message": "The body did not arrive within 60s."})),
        (status = 413, description = "The request body is too large", body = ErrorBody,
            example = json!({"message": "The body is larger than 16777216 bytes."})),
        StoreErrors
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
    if let Some(reason) = state.no_space_for_jobs() {
        return Err(ApiError::NoSpace(reason));
    }
    let options = &state.options;
    let unknown = Unknown::of_query(&uri, &[])?;
    let mut raw = RawRequest::parse(&body.bytes)?;
    let notes = unknown.and(raw.take_unknown_fields()).into_notes()?;
    raw.check_limits(&options.limits)?;
    let made_task = match raw.job_type()? {
        Some((id, parameters)) => Some(
            options
                .job_types
                .make_task(id, &partition, &job, parameters)
                .await?,
        ),
        None => None,
    };
    let ValidJob {
        mut request,
        mut task,
        outputs,
    } = raw.validate(partition, job, made_task, &state.reserved_pipes)?;
    if outputs.is_some() {
        if options.outputs.blobs.is_none() {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidRequest,
                "This service keeps no outputs, because it has no place for them: its operator sets it with --outputs-folder.",
            ));
        }
        let pipe = &options.outputs.pipe;
        task.target_pipe = Some(kept_track_to(pipe));
        request.output_pipe = Some(pipe.clone());
    }
    request.definition = body.bytes;
    request.expiry = request.expiry.or(&options.expiry);
    request.start.suspended = options
        .suspended_partitions
        .as_ref()
        .is_some_and(|pattern| pattern.matches(&request.partition));
    let span = Span::begin(SpanKind::Request, trace_context(&headers), || {
        let job = format!("{}:{}", request.partition, request.job);
        let attributes = vec![
            ("batchwright.job", job),
            ("batchwright.correlation_id", correlation_id.clone()),
        ];
        ("create job".to_owned(), attributes)
    });
    if let Some(context) = span.context() {
        let header =
            |(name, value): (&str, &str)| (name.to_owned(), Header::Text(value.to_owned()));
        request.headers = context.headers().map(header).collect();
    }
    request.correlation_id = Some(correlation_id.clone());
    let context = RequestContext {
        task_id: Uuid::new_v4(),
        now: now(),
        correlation_id,
    };
    // The store calls this once per attempt of its transaction.
    let start = |incarnation: &Incarnation| {
        let message = start_message(task.clone(), incarnation, context.clone(), options);
        (task.pipe.clone(), message.encode())
    };
    match state.store.create_job(&request, start).await? {
        Creation::Created(created) => {
            tracing::info!(
                job = created.job_task_id(),
                incarnation = created.number,
                "created a job"
            );
            let location = [(header::LOCATION, requested_url(&uri, &headers))];
            Ok(if notes.is_empty() {
                (StatusCode::CREATED, location).into_response()
            } else {
                (StatusCode::CREATED, location, Json(Created { notes })).into_response()
            })
        }
        Creation::AlreadyThere => Ok(StatusCode::NO_CONTENT.into_response()),
        Creation::Refused(refusal) => Err(ApiError::bad_request(
            ErrorCode::InvalidPrerequisite,
            refusal_message(&refusal),
        )),
        Creation::Conflict => Err(ApiError::JobExists),
    }
}

/// Returns the trace that the request belongs to. A client may spread the state over several headers.
fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get_all(name).iter().map(|value| value.to_str());
    let mut parents = text(TRACEPARENT);
    let (Some(Ok(parent)), None) = (parents.next(), parents.next()) else {
        return None;
    };
    let state: Vec<&str> = text(TRACESTATE)
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    TraceContext::parse(parent, Some(&state.join(",")))
}

/// Returns the URL of the request as the client sees it, also behind a proxy that sets `X-Forwarded-Host` and
/// `X-Forwarded-Proto`.
fn requested_url(uri: &Uri, headers: &HeaderMap) -> String {
    let header = |name: &str| {
        headers
            .get(name)?
            .to_str()
            .ok()?
            .split(',')
            .next()
            .map(str::trim)
    };
    let host = header("x-forwarded-host")
        .or_else(|| uri.authority().map(Authority::as_str))
        .or_else(|| header("host"));
    let scheme = header("x-forwarded-proto").unwrap_or("http");
    host.map_or_else(
        || uri.path().to_owned(),
        |host| format!("{scheme}://{host}{}", uri.path()),
    )
}

/// Returns the current time in milliseconds since 1970.
fn now() -> i64 {
    Clock::system().now_millis()
}
