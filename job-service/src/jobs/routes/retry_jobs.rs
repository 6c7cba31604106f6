//! `POST …/jobs:retry`: takes up again every matching job that can begin another round.
//!
//! What must stay true: each job is taken up at most once, in a transaction of its own, also if it
//! fails again meanwhile. An unknown parameter value is an error, because ignoring it would select
//! every job.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::PartitionId;
use contract::rest::{RefusedRetry, RetriedJobs};
use store::{JobQuery, RetryCursor};

use crate::http::{
    ApiError, ApiResult, InvalidParameter, PartitionPath, QueryParams, StoreErrors, Unknown, truth,
};
use crate::jobs::job_list::{JobSelector, SELECTOR};
use crate::jobs::routes::retry_job::{RetryParams, begun, log, start_again};
use crate::state::AppState;

/// The number of refusals that a response names.
const REFUSALS: usize = 100;

/// Retry jobs
///
/// Takes up again every matching job that is Failed or Cancelled, or Completed although items have
/// failed; without a filter, every one in the partition. What that means for a job is described at
/// the retry of one job. The oldest jobs come first. A job that fails again meanwhile is not taken
/// up again.
///
/// If the request fails midway, the jobs that were taken up stay so; send the request again for the
/// others.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs:retry",
    operation_id = "retryJobs",
    tag = "jobs",
    params(PartitionPath, JobSelector, RetryParams),
    responses(
        (status = 200, description = "The number of jobs that were taken up again", body = RetriedJobs,
            example = json!({"jobsRetried": 3, "jobsRefused": 0})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn retry_jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
    QueryParams(RetryParams { dependents }): QueryParams<RetryParams>,
) -> ApiResult<Json<RetriedJobs>> {
    let known = [&SELECTOR[..], &["dependents"]].concat();
    let notes = Unknown::of_query(&uri, &known)?.into_notes()?;
    let query = selector.strict_query()?;
    let dependents = truth("dependents", dependents.as_deref())?;
    let mut cursor = RetryCursor::default();
    let all = usize::MAX;
    let retried = retry_all(&state, &partition, &query, dependents, (&mut cursor, all)).await?;
    Ok(Json(RetriedJobs { notes, ..retried }))
}

/// Takes up again the jobs behind the cursor that match and can begin another round, at most so
/// many batches of them, and returns how many there were, without notes.
pub async fn retry_all(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
    dependents: bool,
    (cursor, batches): (&mut RetryCursor, usize),
) -> ApiResult<RetriedJobs> {
    if let Some(reason) = state.no_space_for_jobs() {
        return Err(ApiError::NoSpace(reason));
    }
    state.note_tracking_shards().await?;
    let store = state.store_of_request();
    let mut retried = RetriedJobs::default();
    let limit = state.options.cancel_batch;
    let start = start_again(&state.options);
    for _ in 0..batches {
        let batch = store
            .retry_some_jobs(partition, query, dependents, cursor, limit, &start)
            .await?;
        if batch.jobs.is_empty() {
            break;
        }
        for (job, retry) in batch.jobs {
            match begun(&job, retry) {
                Ok(begun) => {
                    retried.jobs_retried += 1 + begun.revived.len() as u64;
                    log(&begun);
                }
                // It was deleted, or taken up by somebody else, since it was found.
                Err(ApiError::JobNotFound(_)) => {}
                Err(error) => refuse(&mut retried, job.to_string(), error.to_string()),
            }
        }
    }
    let RetriedJobs {
        jobs_retried,
        jobs_refused,
        ..
    } = retried;
    tracing::info!(%partition, jobs_retried, jobs_refused, "took jobs up again");
    Ok(retried)
}

fn refuse(retried: &mut RetriedJobs, job_id: String, message: String) {
    retried.jobs_refused += 1;
    if retried.refusals.len() < REFUSALS {
        retried.refusals.push(RefusedRetry { job_id, message });
    }
}
