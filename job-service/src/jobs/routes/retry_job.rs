//! `POST …/jobs/{jobId}/retry`: takes a job up again that has failed or was cancelled.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::rest::{AccessRole, ErrorBody, ErrorCode, Retried};
use contract::{JobId, PartitionId};
use framework::clock::Clock;
use serde::Deserialize;
use store::{Begun, Definition, Incarnation, Retry};
use utoipa::IntoParams;
use uuid::Uuid;

use crate::http::{
    ApiError, ApiResult, InvalidParameter, JobPath, NoJob, QueryParams, StoreErrors, Unknown, truth,
};
use crate::jobs::new_job::{next_start_message, refusal_message};
use crate::options::ServiceOptions;
use crate::rights::Subject;
use crate::state::AppState;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RetryParams {
    /// Whether the jobs that ended with this one wait for it again. By default they are only named.
    #[param(value_type = Option<bool>, example = true)]
    pub dependents: Option<String>,
}

/// Retry a job
///
/// Takes up again a job that has failed or was cancelled: it begins another round, in which only
/// what is not done counts. Its tasks that are done stay done, and its percentage stays. A job that
/// never started waits again, with its prerequisites and its delay. A job that is Completed
/// although items have failed is taken up again, too; its percentage falls below 100.
///
/// Workers discard what earlier rounds have left in the pipes; what they still report as done
/// counts. `…/jobs/{jobId}:retry` is the same operation.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/retry",
    operation_id = "retryJob",
    tag = "jobs",
    params(JobPath, RetryParams),
    responses(
        (status = 200, description = "A round has begun", body = Retried,
            example = json!({"jobId": "reindex-7", "round": 2, "status": "Active", "dependents": [], "fallen": ["report-7"]})),
        (status = 409, description = "The job is not Failed or Cancelled and has no tolerated failures, a prerequisite of it has not completed, or what is needed was not kept", body = ErrorBody,
            example = json!({"message": "job_id {reindex-7} cannot be retried as it has a status of {Active}. Only jobs with a status of Failed or Cancelled can be retried, and those that are Completed although items have failed."})),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn retry_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(RetryParams { dependents }): QueryParams<RetryParams>,
) -> ApiResult<Json<Retried>> {
    let notes = Unknown::of_query(&uri, &["dependents"])?.into_notes()?;
    let dependents = truth("dependents", dependents.as_deref())?;
    let Begun {
        job: incarnation,
        status,
        revived,
        fallen,
    } = retry_one(&state, &partition, &job, dependents).await?;
    Ok(Json(Retried {
        job_id: job.to_string(),
        round: incarnation.round,
        status,
        dependents: revived.iter().map(|job| job.job.to_string()).collect(),
        fallen: fallen.iter().map(ToString::to_string).collect(),
        notes,
    }))
}

/// Takes a job up again, with the jobs that ended with it if `dependents` says so.
pub async fn retry_one(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
    dependents: bool,
) -> ApiResult<Begun> {
    if dependents {
        // They may be jobs of others.
        Subject::current().needs(AccessRole::Operate, partition)?;
    }
    if let Some(reason) = state.no_space_for_jobs() {
        return Err(ApiError::NoSpace(reason));
    }
    state.note_tracking_shards().await?;
    let start = start_again(&state.options);
    let store = state.store_of_request();
    let retry = store.retry_job(partition, job, dependents, start);
    let begun = begun(job, retry.await?)?;
    log(&begun);
    Ok(begun)
}

/// Returns what makes the start message of a round.
pub fn start_again(
    options: &ServiceOptions,
) -> impl Fn(&Incarnation, &Definition) -> Result<Vec<u8>, String> + Send + Sync {
    move |incarnation, definition| {
        let ids = (Uuid::new_v4(), Clock::system().now_millis());
        next_start_message(&definition.start, incarnation, ids, options)
    }
}

/// Returns the round that has begun.
///
/// # Errors
/// Returns why none has begun: 404 if there is no such job, and 409 otherwise.
pub fn begun(job: &JobId, retry: Retry) -> ApiResult<Begun> {
    match retry {
        Retry::Begun(begun) => Ok(begun),
        Retry::NotFound => Err(ApiError::job_not_found(job)),
        Retry::WrongStatus(status) => Err(ApiError::Conflict(
            ErrorCode::WrongJobStatus,
            format!(
                "job_id {{{job}}} cannot be retried as it has a status of {{{status}}}. Only jobs with a status of Failed or \
                 Cancelled can be retried, and those that are Completed although items have failed."
            ),
        )),
        Retry::Forgotten => Err(ApiError::Conflict(
            ErrorCode::TasksNotKept,
            format!(
                "job_id {{{job}}} cannot be retried: it ended long ago, and what was known about its tasks is deleted \
                 (--keep-failed-tasks, --max-failed-tables). Resubmit the job, which does all of it again."
            ),
        )),
        Retry::Refused(refusal) => Err(ApiError::Conflict(
            ErrorCode::InvalidPrerequisite,
            refusal_message(&refusal),
        )),
    }
}

/// Logs that a round has begun.
pub fn log(begun: &Begun) {
    let Begun {
        job,
        status,
        revived,
        ..
    } = begun;
    tracing::info!(job = %format_args!("{}:{}", job.partition, job.job), round = job.round, %status, dependents = revived.len(), "took a job up again");
}
