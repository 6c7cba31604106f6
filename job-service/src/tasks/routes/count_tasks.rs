//! `GET …/jobs/{jobId}/tasks/count`: the number of tasks by state.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::rest::{ErrorBody, TaskCounts};
use serde::Deserialize;
use store::CountsAnswer;
use utoipa::IntoParams;

use crate::http::{
    ApiError, ApiResult, InvalidParameter, JobPath, QueryParams, StoreErrors, Unknown,
};
use crate::state::AppState;
use crate::tasks::routes::get_task::task_not_found;
use crate::tasks::routes::list_tasks::under;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CountParams {
    /// The id of the task below which tasks are counted, e.g. `3`. If absent, those of the whole
    /// job.
    #[param(example = "3")]
    under: Option<String>,
}

/// Count the tasks of a job by state
///
/// Counts the tasks of the job, or those below one of its tasks, from sums that are kept anyway:
/// the answer takes as long for ten million tasks as for ten. `running` and `waiting` are
/// approximate, as in the job's `items`.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/tasks/count",
    operation_id = "countTasks",
    tag = "jobs",
    params(JobPath, CountParams),
    responses(
        (status = 200, description = "The numbers", body = TaskCounts, example = json!({
            "under": "0", "total": 10_000_000, "totalIsFinal": true, "failed": 2041, "retrying": 3, "running": 16, "waiting": 1_997_940,
            "blocked": 0, "done": 8_000_000
        })),
        (status = 404, description = "The job or the task does not exist", body = ErrorBody,
            example = json!({"message": "ERROR: task_id {3.17} of job_id {reindex-7} not found"})),
        (status = 410, description = "The job has ended, and its tasks are no longer stored", body = ErrorBody,
            example = json!({"message": "The job 'reindex-7' ended long ago, and what was known about its tasks is deleted (--keep-failed-tasks, --max-failed-tables)."})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn count_tasks(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(params): QueryParams<CountParams>,
) -> ApiResult<Json<TaskCounts>> {
    Unknown::of_query(&uri, &["under"])?.into_notes()?;
    let path = under(params.under.as_deref())?;
    match state.store.task_counts(&partition, &job, &path).await? {
        CountsAnswer::Counts(mut counts) => {
            if path.is_empty() {
                let running = state.pipes.workers.running();
                running.show_in(&partition, &job, &mut counts);
            }
            Ok(Json(counts))
        }
        CountsAnswer::NoJob => Err(ApiError::job_not_found(&job)),
        CountsAnswer::NoTask => Err(task_not_found(&job, &path, "")),
        CountsAnswer::NotKept => Err(ApiError::TasksRemoved(job.to_string())),
    }
}
