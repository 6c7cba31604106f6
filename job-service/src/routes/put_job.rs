//! `PUT /partitions/{partitionId}/jobs/{jobId}`: creates a job. Sent again, it changes nothing.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{OriginalUri, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use contract::rest::{ErrorBody, NewJob};
use store::Creation;
use uuid::Uuid;

use super::StoreTrouble;
use crate::Parts;
use crate::correlation::CorrelationId;
use crate::error::{ApiError, ApiResult};
use crate::extract::OfJob;
use crate::prerequisites;
use crate::request::{self, Accepted, accept};
use crate::start::{self, Moment};

/// Create a job
///
/// The job is kept and its first task is sent to `taskPipe` as soon as the broker takes it; with `prerequisiteJobIds` not before
/// these jobs are completed, with `delay` so many seconds later. A job fails or is cancelled when one that it waits for does or
/// is. The same request again changes nothing, whatever has become of the job; to run a job again, delete it and create it anew.
///
/// Instead of `task`, a `type` may be given, whose definition makes the task from `parameters`. What is wrong with the parameters
/// is told by a 400; a definition that fails is answered by a 500 that names it.
#[utoipa::path(
    put,
    path = "/partitions/{partitionId}/jobs/{jobId}",
    operation_id = "createJob",
    tag = "jobs",
    params(
        OfJob,
        ("CAF-Correlation-Id" = Option<String>, Header, description = "Copied to every message that the job causes")
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
        (status = 201, description = "Created", headers(("Location" = String, description = "The URL of the job")), links(
            ("getJob" = (operation_id = "getJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("getJobStatus" = (operation_id = "getJobStatus", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("cancelJob" = (operation_id = "cancelJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("pauseJob" = (operation_id = "pauseJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("resumeJob" = (operation_id = "resumeJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("deleteJob" = (operation_id = "deleteJob", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId")))),
            ("getTask" = (operation_id = "getTask", parameters(("partitionId" = "$request.path.partitionId"), ("jobId" = "$request.path.jobId"), ("taskId" = "0"))))
        )),
        (status = 204, description = "The same request has created the job before"),
        (status = 400, description = "The request is no job, or would wait for one that has failed or was cancelled, or for itself", body = ErrorBody,
            example = json!({"message": "The task queue name has not been specified."})),
        (status = 403, description = "There is another job with this id", body = ErrorBody,
            example = json!({"message": "Job already exists"})),
        (status = 413, description = "The body is too large", body = ErrorBody,
            example = json!({"message": "The body is larger than 16777216 bytes."})),
        StoreTrouble
    )
)]
pub async fn put(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> ApiResult<Response> {
    let options = &parts.options;
    let body = body.map_err(|refusal| match refusal.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge(options.max_body_bytes),
        _ => ApiError::bad_request(format!(
            "The body could not be read: {}",
            refusal.body_text()
        )),
    })?;
    let given = request::read(&body)?;
    let made = match given.job_type()? {
        Some((id, parameters)) => Some(
            options
                .job_types
                .make_task(id, &partition, &job, parameters)
                .await?,
        ),
        None => None,
    };
    let Accepted { mut request, task } = accept(partition, job, given, made)?;
    request.expiry = request.expiry.or(&options.expiry);
    request.start.suspended = options
        .suspended_partitions
        .as_ref()
        .is_some_and(|pattern| pattern.matches(&request.partition));
    let moment = Moment {
        task_id: Uuid::new_v4(),
        now: now(),
        correlation_id,
    };
    // Once for every attempt at the transaction.
    let start = |life: &store::Incarnation| {
        (
            task.pipe.clone(),
            start::message(task.clone(), life, moment.clone(), options).encode(),
        )
    };
    match parts.store.create_job(&request, start).await? {
        Creation::Created(life) => {
            tracing::info!(
                job = life.job_task_id(),
                incarnation = life.number,
                "a job was created"
            );
            Ok((
                StatusCode::CREATED,
                [(header::LOCATION, requested(&uri, &headers))],
            )
                .into_response())
        }
        Creation::AlreadyThere => Ok(StatusCode::NO_CONTENT.into_response()),
        Creation::Refused(refusal) => Err(ApiError::bad_request(prerequisites::refusal(&refusal))),
        Creation::Conflict => Err(ApiError::Forbidden("Job already exists".to_owned())),
    }
}

/// The URL by which the client has asked, also through a proxy that tells it.
fn requested(uri: &Uri, headers: &HeaderMap) -> String {
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

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
