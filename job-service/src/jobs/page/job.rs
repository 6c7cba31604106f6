//! The pages of one job: the overview, and what it was created from.

use std::sync::Arc;

use askama::Template;
use axum::body::{Bytes, to_bytes};
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use contract::rest::{AwaitedJob, Failures, History, Job};
use contract::{JobId, JobStatus, PartitionId};
use serde_json::Value;
use store::StoreError;

use crate::html::bar::Bar;
use crate::html::job_action::Action;
use crate::html::{Layout, filters, html, text, url};
use crate::http::form::{Fields, wrong};
use crate::http::{ApiError, ApiResult, JobPath};
use crate::jobs::page::job_head::{JobHead, shown, task_name};
use crate::jobs::page::plot::Plot;
use crate::jobs::routes::get_definition::get_definition;
use crate::state::AppState;

/// The number of groups of failures that the overview shows.
const FIRST_GROUPS: u32 = 5;
/// The most bytes of a definition that are read for a page.
const BYTES: usize = 4 * 1024 * 1024;
/// The most changes of the status that a job shows: as many as are kept.
const CHANGES: u32 = 1000;
/// The number of dependents that a job shows.
const DEPENDENTS: u32 = 50;

/// The overview of a job.
#[derive(Debug, Template)]
#[template(path = "job.html")]
struct JobPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    job: &'a Job,
    /// The largest groups of its failures.
    failures: Failures,
    history: History,
    /// Its throughput.
    plot: Option<Plot>,
    /// The jobs that wait for it.
    dependents: Vec<AwaitedJob>,
    /// The jobs that ended with it, before they started.
    fallen: Vec<AwaitedJob>,
}

/// What a job was created from.
#[derive(Debug, Template)]
#[template(path = "definition.html")]
struct Definition<'a> {
    layout: Layout,
    head: JobHead<'a>,
    request: String,
}

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
    let head = JobHead::new(partition.as_str(), &shown, "");
    let page = JobPage {
        layout: head.layout(done),
        head,
        job: &shown,
        failures,
        history,
        plot: curve.as_ref().and_then(Plot::of),
        dependents,
        fallen,
    };
    Ok(html(StatusCode::OK, &page))
}

/// Returns the largest groups of the failures of a job; those of many failures may be some seconds
/// old.
pub async fn groups(
    state: &AppState,
    partition: &PartitionId,
    id: &JobId,
    (job, most): (&Job, u32),
) -> Result<Option<Failures>, StoreError> {
    let of = (job.incarnation, most);
    let read = state.store.failure_groups(partition, id, most);
    state.jobs.seen_groups.get(of, job.failed_tasks, read).await
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
    let json: Result<Value, _> = serde_json::from_slice(&request);
    let pretty = json.and_then(|json| serde_json::to_string_pretty(&json));
    let head = JobHead::new(partition.as_str(), &shown, "definition");
    let page = Definition {
        layout: head.layout(None),
        head,
        request: pretty.unwrap_or_else(|_| String::from_utf8_lossy(&request).into_owned()),
    };
    Ok(html(StatusCode::OK, &page))
}

/// Reads what an operation of the API returns.
async fn content(response: Response) -> ApiResult<Bytes> {
    to_bytes(response.into_body(), BYTES).await.map_err(|_| {
        wrong(format!(
            "This is too large for a page (more than {BYTES} bytes). Download it from the API."
        ))
    })
}

impl JobPage<'_> {
    fn is_cut(&self, field: &str) -> bool {
        self.job.cut.iter().any(|cut| cut == field)
    }
}

/// Returns how far the job is, in a line.
fn summary(job: &Job) -> String {
    let mut parts = Vec::new();
    match job.items.total {
        Some(total) => {
            let at_least = if job.items.total_is_final {
                ""
            } else {
                "at least "
            };
            let (done, total) = (text::number(job.items.done), text::number(total));
            parts.push(format!("{done} of {at_least}{total} items"));
        }
        None if job.completed_items > 0 => {
            parts.push(format!("{} items done", text::number(job.completed_items)));
        }
        None => {}
    }
    let rate = job.items_per_second.map(text::rate);
    parts.extend(rate.map(|rate| format!("{rate} items/s")));
    if let (Some(start), Some(end)) = (job.start_time, job.end_time) {
        parts.push(format!("took {}", text::duration(end - start)));
    }
    parts.join(" · ")
}

/// Returns when the job is deleted, if its time is not set yet.
fn kept_until(job: &Job) -> String {
    let policies = [
        (JobStatus::Completed, &job.expiry.completed),
        (JobStatus::Failed, &job.expiry.failed),
        (JobStatus::Cancelled, &job.expiry.cancelled),
    ];
    let policies: Vec<String> = policies
        .iter()
        .filter_map(|(status, policy)| {
            let policy = policy.as_ref().filter(|it| it.expiry_time != "none")?;
            Some(format!("if {status}: {}", policy.expiry_time))
        })
        .collect();
    if job.end_time.is_some() || policies.is_empty() {
        return "by hand only".to_owned();
    }
    policies.join(", ")
}
