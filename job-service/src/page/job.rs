//! The pages of one job.

use std::sync::Arc;

use axum::body::{Bytes, to_bytes};
use axum::extract::{OriginalUri, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use contract::rest::{ErrorCode, Failures, Job};
use contract::{JobId, PartitionId};
use futures_util::StreamExt as _;
use page::{
    Around, Definition, FailuresPage, JobPage, OutputLines, OutputsPage, Plot, TaskPage, url,
};
use serde::de::DeserializeOwned;
use store::{FailureCursor, ListedJob, StoreError};

use super::form::Fields;
use crate::error::{ApiError, ApiResult};
use crate::extract::{JobPath, QueryParams, TaskPath, whole_number};
use crate::html::html;
use crate::options::BASE_PATH;
use crate::places::Client;
use crate::routes::get_definition::get_definition;
use crate::routes::get_job::find_job;
use crate::routes::get_outputs::get_outputs;
use crate::routes::get_task::get_task;
use crate::routes::list_failures::GROUPS;
use crate::routes::list_tasks::page_of_tasks;
use crate::state::AppState;

/// The number of groups of failures that the overview shows.
const FIRST_GROUPS: u32 = 5;
/// The number of failures on a page.
const FAILURES: usize = 50;
/// The number of outputs on a page.
const OUTPUTS: usize = 50;
/// The most bytes of outputs that are read for a page, and of a definition.
const BYTES: usize = 4 * 1024 * 1024;
/// The most changes of the status that a job shows: as many as are kept.
const CHANGES: u32 = 1000;
/// The number of dependents that a job shows.
const DEPENDENTS: u32 = 50;

/// `GET /partitions/{partition}/jobs/{job}`: the overview.
pub async fn overview(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let done = Fields::of_url(&uri)?.done();
    let shown = shown(&state, &partition, &id).await?;
    let store = &state.store;
    let (failures, history, curve, dependents, fallen) = tokio::try_join!(
        groups(&state, &partition, &id, (&shown, FIRST_GROUPS)),
        store.history_page(&partition, &id, None, CHANGES),
        store.progress_curve(&partition, &id),
        store.dependents(&partition, &id, DEPENDENTS),
        store.fallen_with(&partition, &id, DEPENDENTS),
    )?;
    let (Some(failures), Some(history)) = (failures, history) else {
        return Err(ApiError::job_not_found(&id));
    };
    let around = Around {
        failures,
        history,
        plot: curve.as_ref().and_then(Plot::of),
        dependents,
        fallen,
    };
    let page = JobPage::new(partition.as_str(), &shown, around, done);
    Ok(html(StatusCode::OK, &page))
}

/// Returns the largest groups of the failures of a job; those of many failures may be some seconds
/// old.
async fn groups(
    state: &AppState,
    partition: &PartitionId,
    id: &JobId,
    (job, most): (&Job, u32),
) -> Result<Option<Failures>, StoreError> {
    let of = (job.incarnation, most);
    if let Some(seen) = state.seen_groups.find(of, job.failed_tasks) {
        return Ok(Some(seen));
    }
    let groups = state.store.failure_groups(partition, id, most).await?;
    if let Some(groups) = &groups {
        state.seen_groups.keep(of, groups);
    }
    Ok(groups)
}

/// `GET …/failures`: the failures in groups, and one by one.
pub async fn failures(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let after = Some(fields.get("after")).filter(|after| !after.is_empty());
    let after: Option<FailureCursor> = after
        .map(str::parse)
        .transpose()
        .map_err(|problem| invalid(format!("The parameter 'after': {problem}.")))?;
    let shown = shown(&state, &partition, &id).await?;
    let store = &state.store;
    let (groups, failures) = tokio::try_join!(
        groups(&state, &partition, &id, (&shown, GROUPS)),
        store.failures(&partition, &id, after.as_ref(), FAILURES),
    )?;
    let (Some(groups), Some(failures)) = (groups, failures) else {
        return Err(ApiError::job_not_found(&id));
    };
    let page = FailuresPage::new(
        partition.as_str(),
        &shown,
        (&groups, &failures),
        after.is_none(),
    );
    Ok(html(StatusCode::OK, &page))
}

/// `GET …/tasks/{task}`: one task and its subtasks, those that have failed first.
pub async fn task(
    State(state): State<Arc<AppState>>,
    TaskPath(partition, id, task): TaskPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let asked = fields.get("state");
    let shown = shown(&state, &partition, &id).await?;
    let query = url::query([
        ("under", task.as_str()),
        ("state", asked),
        ("after", fields.get("after")),
        ("failedFirst", "true"),
    ]);
    let QueryParams(params) = parameters(&format!("/{query}"))?;
    let tasks = match page_of_tasks(&state, &partition, &id, &params).await {
        Ok(tasks) => Ok(tasks),
        Err(error @ ApiError::TasksRemoved(_)) => {
            let path = TaskPath(partition.clone(), id, task);
            let alone = get_task(State(state), path).await?.0;
            Err((alone, error.message()))
        }
        Err(error) => return Err(error),
    };
    let tasks = match &tasks {
        Ok(tasks) => Ok(tasks),
        Err((task, problem)) => Err((task, problem.as_str())),
    };
    let page = TaskPage::new(partition.as_str(), &shown, tasks, asked);
    Ok(html(StatusCode::OK, &page))
}

/// `GET …/outputs`: the outputs that are kept.
pub async fn outputs(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let offset: u64 = whole_number("offset", Some(fields.get("offset")))?.unwrap_or_default();
    let shown = shown(&state, &partition, &id).await?;
    let query = format!("/?offset={offset}&limit={}", OUTPUTS + 1);
    let lines = match read_outputs(&state, &partition, &id, &query).await {
        Ok(lines) => Ok(lines),
        Err(error) if error.status().is_server_error() => return Err(error),
        Err(error) => Err(error.message()),
    };
    let path = url::job(partition.as_str(), id.as_str());
    let download = format!("{BASE_PATH}{path}/outputs");
    let page = OutputsPage::new(partition.as_str(), &shown, lines, download);
    Ok(html(StatusCode::OK, &page))
}

/// `GET …/definition`: the request that created the job.
pub async fn definition(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
) -> ApiResult<Response> {
    let shown = shown(&state, &partition, &id).await?;
    let path = JobPath(partition.clone(), id);
    let request = get_definition(State(state), path).await?;
    let request = content(request.into_response()).await?;
    let page = Definition::new(partition.as_str(), &shown, &request);
    Ok(html(StatusCode::OK, &page))
}

async fn shown(state: &Arc<AppState>, partition: &PartitionId, job: &JobId) -> ApiResult<Job> {
    let ListedJob {
        mut job,
        long_texts,
    } = find_job(state, partition, job).await?;
    job.cut = long_texts
        .iter()
        .map(|text| text.name().to_owned())
        .collect();
    Ok(job)
}

/// Reads the lines of a page: as many as it has, or as fit into it, and at least one.
async fn read_outputs(
    state: &Arc<AppState>,
    partition: &PartitionId,
    job: &JobId,
    query: &str,
) -> ApiResult<OutputLines> {
    let bug = |error: String| ApiError::Bug(error);
    let uri: Uri = query
        .parse()
        .map_err(|error| bug(format!("{query}: {error}")))?;
    let params = parameters(query)?;
    let path = JobPath(partition.clone(), job.clone());
    let state = State(Arc::clone(state));
    let client = Client::of_service();
    let response = get_outputs(state, path, OriginalUri(uri), client, params).await?;
    let mut pieces = response.into_body().into_data_stream();
    let (mut read, mut line, mut bytes) = (OutputLines::default(), Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::OutputsUnreadable(error.to_string()))?;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                continue;
            }
            if read.lines.len() == OUTPUTS {
                read.more = true;
                return Ok(read);
            }
            if !read.lines.is_empty() && bytes + line.len() > BYTES {
                (read.more, read.are_large) = (true, true);
                return Ok(read);
            }
            bytes += line.len();
            let output = serde_json::from_slice(&line).map_err(|error| bug(error.to_string()))?;
            read.lines.push(output);
            line.clear();
        }
    }
    Ok(read)
}

/// Returns the parameters of an operation of the API, from a path and a query.
fn parameters<T: DeserializeOwned>(query: &str) -> ApiResult<QueryParams<T>> {
    let uri: Uri = query
        .parse()
        .map_err(|_| invalid(format!("The URL is too long or invalid: {query:.100}")))?;
    let parsed = Query::try_from_uri(&uri);
    parsed
        .map(|Query(params)| QueryParams(params))
        .map_err(|error| invalid(error.body_text()))
}

/// Reads what an operation of the API returns.
async fn content(response: Response) -> ApiResult<Bytes> {
    to_bytes(response.into_body(), BYTES).await.map_err(|_| {
        invalid(format!(
            "This is too large for a page (more than {BYTES} bytes). Download it from the API."
        ))
    })
}

fn invalid(message: String) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidParameter, message)
}
