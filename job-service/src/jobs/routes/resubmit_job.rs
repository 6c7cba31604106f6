//! `POST …/jobs/{jobId}/resubmit`: creates a job like one that exists, under another id or in its
//! place.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use contract::rest::{ErrorBody, ErrorCode, Resubmit, SubmittedJob};
use contract::{JobId, PartitionId};
use framework::trace::TraceContext;

use crate::http::correlation::CorrelationId;
use crate::http::correlation::trace_context;
use crate::http::idempotency::Key;
use crate::http::url::{job_path, url};
use crate::http::{ApiError, ApiResult, JobPath, NoJob, RequestBody, StoreErrors, Unknown};
use crate::jobs::submission::{Submission, Submitted, made_id};
use crate::rights::Subject;
use crate::state::AppState;

/// Resubmit a job
///
/// Creates a job from the request that created this one, which is kept with it: task, name,
/// description, labels, external data, `onFailure`, `outputs`, `expiry`, `delay` and
/// `prerequisiteJobIds` are those of that request; its job type, if it has one, builds the task
/// again from the same parameters, also the secret ones. Nothing else is taken over: what is done
/// is done again, the correlation id and the trace are those of this request, and the defaults of
/// the service are those of now.
///
/// The new job has the id in the body, or one that the service makes. With `"sameId": true` it has
/// the id of this job and takes its place, if this job has ended: the old incarnation is deleted in
/// the same transaction. Repeating a request with an id creates no second job; nor does one with an
/// `Idempotency-Key` (see `submitJob`). `…/jobs/{jobId}:resubmit` is the same operation.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/resubmit",
    operation_id = "resubmitJob",
    tag = "jobs",
    params(
        JobPath,
        ("strict" = Option<bool>, Query, description = "Whether unknown fields and parameters are refused. By default they are ignored and named in the notes of the response"),
        ("Idempotency-Key" = Option<String>, Header, description = "A text of the client's for this request, of 1 to 255 visible ASCII characters"),
        ("CAF-Correlation-Id" = Option<String>, Header, description = "A correlation id. It is copied to every message of the new job"),
        ("traceparent" = Option<String>, Header, description = "The span of the client (W3C Trace Context), with `tracestate`. The trace continues in every message of the new job")
    ),
    request_body(content = Option<Resubmit>, description = "The id of the new job; may be empty", content_type = "application/json",
        example = json!({"jobId": "reindex-8"})),
    responses(
        (status = 200, description = "The same request has created the job before", body = SubmittedJob,
            example = json!({"jobId": "reindex-8"})),
        (status = 201, description = "Created", body = SubmittedJob, headers(("Location" = String, description = "The URL of the new job")),
            example = json!({"jobId": "reindex-8"})),
        (status = 400, description = "The request is invalid, a prerequisite has failed or was cancelled, or the service no longer accepts the definition", body = ErrorBody,
            example = json!({"message": "One or more prerequisite jobs have failed. Failed Job IDs: import-7"})),
        (status = 403, description = "A different job has the id in the body", body = ErrorBody,
            example = json!({"message": "Job already exists"})),
        (status = 409, description = "The request replaces a job that has not ended, or the definition of the job was not kept", body = ErrorBody,
            example = json!({"message": "job_id {reindex-7} cannot be replaced as it has a status of {Active}. Cancel it first, or resubmit it under another id."})),
        (status = 422, description = "The key belongs to another request", body = ErrorBody,
            example = json!({"message": "The Idempotency-Key 'nightly' belongs to another request, which created the job 'reindex-7'. Give each request a key of its own, and repeat a request unchanged."})),
        NoJob, StoreErrors
    )
)]
pub async fn resubmit_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: RequestBody,
) -> ApiResult<Response> {
    let mut unknown = Unknown::of_query(&uri, &[])?;
    let request: Resubmit = body.parsed_noting(&mut unknown)?;
    let notes = unknown.into_notes()?;
    let key = Key::of(&headers, asks_for(&job, &request))?;
    let origin = (correlation_id, trace_context(&headers));
    let (status, new_job) = resubmit(&state, &partition, &job, &request, key, origin).await?;
    let location = url(&job_path(&partition, &new_job), &uri, &headers);
    let job_id = new_job.to_string();
    let body = Json(SubmittedJob { job_id, notes });
    Ok((status, [(header::LOCATION, location)], body).into_response())
}

/// Returns what a request to resubmit asks for, by which its key knows it again.
pub fn asks_for(job: &JobId, request: &Resubmit) -> String {
    format!("resubmit {job} {} {:?}", request.same_id, request.job_id)
}

/// Creates a job like one that exists. Returns 201 with its id, or 200 if the same request has
/// created it before.
pub async fn resubmit(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
    request: &Resubmit,
    key: Option<Key>,
    (correlation_id, trace): (String, Option<TraceContext>),
) -> ApiResult<(StatusCode, JobId)> {
    let new_job = new_id(job, request)?;
    if request.same_id {
        // It takes the place of the job, which is deleted.
        let subject = Subject::current();
        state.check_own(&subject, partition, Some(job)).await?;
    }
    let Some(source) = state.store.source(partition, job).await? else {
        let created = match &key {
            Some(key) => state.created_with(partition, key).await?,
            None => None,
        };
        let created = created.ok_or_else(|| ApiError::job_not_found(job))?;
        return Ok((StatusCode::OK, created));
    };
    let submission = Submission {
        job: new_job.clone(),
        key,
        replaces: request.same_id.then_some(source.incarnation),
        body: source.definition.request,
        // The client does not send the definition now, so it does not need to know.
        unknown: Unknown::default(),
        correlation_id,
        trace,
    };
    let (status, new_job) = match state.submit(partition, submission).await? {
        Submitted::Created { job, .. } => (StatusCode::CREATED, job.job),
        Submitted::Repeated(job) => (StatusCode::OK, job),
        Submitted::AlreadyThere => (StatusCode::OK, new_job),
    };
    Ok((status, new_job))
}

/// Returns the id of the new job.
fn new_id(job: &JobId, request: &Resubmit) -> ApiResult<JobId> {
    let contradiction =
        |message: &str| Err(ApiError::bad_request(ErrorCode::InvalidRequest, message));
    match (request.job_id.as_deref(), request.same_id) {
        (Some(_), true) => contradiction(
            "The body has both 'jobId' and 'sameId'. Send the id of the new job, or \"sameId\": true to replace this one.",
        ),
        (Some(id), false) if id == job.as_str() => contradiction(
            "The 'jobId' is that of the job itself. Send another id, or \"sameId\": true to replace the job once it has ended.",
        ),
        (Some(id), false) => Ok(JobId::parse(id)?),
        (None, true) => Ok(job.clone()),
        (None, false) => made_id(),
    }
}
