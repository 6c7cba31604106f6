//! `GET …/jobs/{jobId}/tasks`: the tree of a job's tasks, one page at a time or as a stream.
//!
//! What costs is what is open or wrong, not the number of tasks: siblings in the same state are one
//! range. A client that accepts `application/x-ndjson` gets all tasks of some states, at any depth,
//! as a stream that reads a page at a time.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use contract::rest::{ErrorBody, ErrorCode, SubtaskState, TaskEntry, Tasks};
use contract::{JobId, PartitionId};
use serde::Deserialize;
use store::{TaskCursor, TaskQuery, TasksAnswer};
use utoipa::IntoParams;

use crate::http::ndjson::{Pages, STREAM_PAGE, accepts_ndjson, stream};
use crate::http::{
    ApiError, ApiResult, Client, InvalidParameter, JobPath, QueryParams, StoreErrors, Unknown,
    page_limit, truth,
};
use crate::state::AppState;
use crate::tasks::routes::get_task::{parse_id, task_not_found};

/// The number of tasks and ranges on a page if the request sets no limit.
const PAGE_SIZE: u32 = 100;
/// The names of the parameters.
const PARAMETERS: [&str; 6] = ["under", "state", "failedFirst", "deep", "after", "limit"];

/// The parameters that select tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct TasksParams {
    /// The id of the task whose subtasks are returned, e.g. `3`. If absent, those of the job's own
    /// task, `0`.
    #[param(example = "3")]
    under: Option<String>,
    /// The states of the tasks, separated by commas: `failed`, `retrying`, `running`, `waiting`,
    /// `blocked` and `done`. If absent, all.
    #[param(example = "failed,retrying")]
    state: Option<String>,
    /// `true` returns tasks that have failed, and those with failures below, before the others.
    /// Cannot be combined with `deep`.
    #[param(value_type = Option<bool>, example = false)]
    failed_first: Option<String>,
    /// `true` returns the subtasks of each open split after it, at any depth;
    /// `application/x-ndjson` always does.
    #[param(value_type = Option<bool>, example = false)]
    deep: Option<String>,
    /// The `next` of the page before this one. Absent for the first page.
    #[param(example = "0-3.17")]
    after: Option<String>,
    /// The maximum number of tasks and ranges to return. If absent, 0 or negative, 100. A larger
    /// number than the service allows (10000 by default) counts as that number. Does not apply to
    /// `application/x-ndjson`.
    #[param(value_type = Option<i64>, example = 100)]
    limit: Option<String>,
}

/// List the tasks of a job
///
/// Returns the subtasks of one task, in the order of their numbers. Those in the same state of
/// which nothing else is stored are a *range*; a task alone has its id, and what is known of it:
/// its label, attempts and failure, and of an open split the number of its subtasks. `running` and
/// `waiting` are approximate, as in the job's `items`. Below a task that is done nothing is stored.
///
/// A client that accepts `application/x-ndjson` gets all tasks of these states below the task, at
/// any depth, one task or range on each line; if the connection breaks off before the end, so does
/// the response.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/tasks",
    operation_id = "getTasks",
    tag = "jobs",
    params(JobPath, TasksParams),
    responses(
        (status = 200, description = "The tasks; with `application/x-ndjson`, each entry on a line of its own", body = Tasks, example = json!({
            "task": {
                "id": "3", "status": "Active", "since": null, "attempts": null, "failure": null, "subtasks": 4096, "completedSubtasks": 4094
            },
            "tasks": [
                {"under": "3", "first": 1, "last": 16, "state": "done"},
                {"id": "3.17", "state": "failed", "label": "scans/2016/17.tif", "since": 1_767_225_605_123_i64, "attempts": 3, "failure": {
                    "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_120_i64, "failureSource": "worker-order",
                    "failureMessage": "no such file", "taskId": "3.17", "label": "scans/2016/17.tif"
                }},
                {"id": "3.18", "state": "running", "since": 1_767_225_606_001_i64, "progress": 40.0},
                {"under": "3", "first": 19, "last": 4096, "state": "done"}
            ],
            "next": "0-3.4096"
        })),
        (status = 404, description = "The job or the task does not exist", body = ErrorBody,
            example = json!({"message": "ERROR: task_id {3.17} of job_id {reindex-7} not found"})),
        (status = 410, description = "The job has ended, and its tasks are no longer stored", body = ErrorBody,
            example = json!({"message": "The job 'reindex-7' ended long ago, and what was known about its tasks is deleted (--keep-failed-tasks, --max-failed-tables)."})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn list_tasks(
    State(state): State<Arc<AppState>>,
    client: Client,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(params): QueryParams<TasksParams>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &PARAMETERS)?.into_notes()?;
    let streams = accepts_ndjson(&headers);
    let query = params.query(streams, state.options.limits.page)?;
    if streams {
        let pages = TaskPages {
            partition,
            job,
            query,
            is_over: false,
        };
        return stream(state, &client, pages).await;
    }
    let answer = state.store.tasks(&partition, &job, &query).await?;
    Ok(Json(found(&job, &query.under, answer)?).into_response())
}

/// Returns a page of the tasks of a job, for the web page.
pub async fn page_of_tasks(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
    params: &TasksParams,
) -> ApiResult<Tasks> {
    let query = params.query(false, state.options.limits.page)?;
    let answer = state.store.tasks(partition, job, &query).await?;
    found(job, &query.under, answer)
}

impl TasksParams {
    fn query(&self, streams: bool, most: u32) -> ApiResult<TaskQuery> {
        let limit = page_limit(self.limit.as_deref(), PAGE_SIZE, most)?;
        let mut query = TaskQuery {
            under: under(self.under.as_deref())?,
            states: states(self.state.as_deref().unwrap_or_default())?,
            failed_first: truth("failedFirst", self.failed_first.as_deref())?,
            deep: truth("deep", self.deep.as_deref())? || streams,
            ..TaskQuery::new(if streams { STREAM_PAGE } else { limit as usize })
        };
        if query.failed_first && query.deep {
            let message = "The parameter 'failedFirst' cannot be combined with 'deep' or application/x-ndjson.";
            return Err(ApiError::bad_request(ErrorCode::InvalidParameter, message));
        }
        let Some(text) = self.after.as_deref().filter(|after| !after.is_empty()) else {
            return Ok(query);
        };
        let after: Result<TaskCursor, String> = text.parse();
        let after = after.and_then(|after| {
            if query.can_go_on(&after) {
                Ok(after)
            } else {
                Err(format!(
                    "'{text}' belongs to other parameters; use it with the 'under', 'deep' and 'failedFirst' of the page before"
                ))
            }
        });
        query.after = Some(after.map_err(|problem| {
            let message = format!("The parameter 'after': {problem}.");
            ApiError::bad_request(ErrorCode::InvalidParameter, message)
        })?);
        Ok(query)
    }
}

/// Parses the parameter `under`.
pub fn under(text: Option<&str>) -> ApiResult<Vec<u32>> {
    parse_id(text.filter(|text| !text.is_empty()).unwrap_or("0"))
}

fn states(text: &str) -> ApiResult<Vec<SubtaskState>> {
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(|name| {
            SubtaskState::from_name(name).ok_or_else(|| {
                let message = format!(
                    "The parameter 'state' names failed, retrying, running, waiting, blocked or done, separated by commas, but has '{name}'."
                );
                ApiError::bad_request(ErrorCode::InvalidParameter, message)
            })
        })
        .collect()
}

/// Returns the tasks that were found.
///
/// # Errors
/// Returns 404 if there is no such job or task, and 410 if its tasks are no longer stored.
fn found(job: &JobId, under: &[u32], answer: TasksAnswer) -> ApiResult<Tasks> {
    match answer {
        TasksAnswer::Tasks(tasks) => Ok(*tasks),
        TasksAnswer::NoJob => Err(ApiError::job_not_found(job)),
        TasksAnswer::NoTask => Err(task_not_found(job, under, "")),
        TasksAnswer::NotKept => Err(ApiError::TasksRemoved(job.to_string())),
    }
}

/// The tasks of a job, for a stream.
struct TaskPages {
    partition: PartitionId,
    job: JobId,
    query: TaskQuery,
    is_over: bool,
}

impl Pages for TaskPages {
    const WHAT: &'static str = "tasks";
    type Entry = TaskEntry;

    async fn next(&mut self, state: &AppState) -> ApiResult<Vec<TaskEntry>> {
        let read = state.store.tasks(&self.partition, &self.job, &self.query);
        let page = found(&self.job, &self.query.under, read.await?)?;
        self.query.after = page.next.and_then(|next| next.parse().ok());
        self.is_over = self.query.after.is_none();
        Ok(page.tasks)
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}
