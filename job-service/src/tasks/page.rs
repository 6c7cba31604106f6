//! One task of a job: how it stands, and every attempt that failed.

mod failures;

use std::sync::Arc;

use askama::Template;
use axum::Json;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use contract::rest::{Failure, ListedTask, SubtaskState, Task, TaskEntry, TaskState};

use crate::html::job_action::Action;
use crate::html::{Layout, filters, html, text, url};
use crate::http::form::{Fields, parameters};
use crate::http::{ApiError, ApiResult, QueryParams, TaskPath};
use crate::jobs::page::job_head::{JobHead, shown};
use crate::state::AppState;
use crate::tasks::routes::get_task::get_task;
use crate::tasks::routes::list_tasks::page_of_tasks;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route(
            "/partitions/{partition}/jobs/{job}/failures",
            get(failures::failures),
        )
        .route("/partitions/{partition}/jobs/{job}/tasks/{task}", get(task))
}

/// A task.
#[derive(Debug, Template)]
#[template(path = "task.html")]
pub struct TaskPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    task: Task,
    /// A page of its subtasks.
    tasks: Vec<TaskEntry>,
    /// Where the next page begins.
    next: Option<String>,
    /// What is not known of the subtasks.
    remark: Option<String>,
    /// The state that was asked for; empty for all.
    state: &'a str,
}

/// A run of the task that failed, with the time of the next one.
struct Attempt<'a> {
    name: String,
    failure: &'a Failure,
    next: Option<i64>,
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
    let asked_for = page_of_tasks(&state, &partition, &id, &params).await;
    let (task, listed, remark) = match asked_for {
        Ok(found) => (found.task, (found.tasks, found.next), found.remark),
        Err(error @ ApiError::TasksRemoved(_)) => {
            let path = TaskPath(partition.clone(), id, task);
            let Json(alone) = get_task(State(state), path).await?;
            (alone, (Vec::new(), None), Some(error.message()))
        }
        Err(error) => return Err(error),
    };
    let head = JobHead::new(partition.as_str(), &shown, "tasks");
    let page = TaskPage {
        layout: head.layout(None),
        head,
        task,
        tasks: listed.0,
        next: listed.1,
        remark,
        state: asked,
    };
    Ok(html(StatusCode::OK, &page))
}

impl TaskPage<'_> {
    fn url(&self) -> String {
        self.head.task(&self.task.id)
    }

    /// Returns the URL of the subtasks in a state, which begin after a task.
    fn listed(&self, state: &str, after: &str) -> String {
        let query = url::query([("state", state), ("after", after)]);
        format!("{}{query}", self.url())
    }

    /// Returns the ids of the tasks above; the job's own first.
    fn above(&self) -> impl Iterator<Item = &str> {
        let own = (self.task.id != "0").then_some("0");
        let parents = self.task.id.match_indices('.');
        own.into_iter()
            .chain(parents.map(|(at, _)| &self.task.id[..at]))
    }

    fn attempts(&self) -> Vec<Attempt<'_>> {
        let task = &self.task;
        let attempts = task.failed_attempts.iter().map(|it| Attempt {
            name: it.attempt.map_or_else(
                || format!("round {}, attempt", it.round),
                |number| format!("round {}, attempt {number}", it.round),
            ),
            failure: &it.failure,
            next: it.next_attempt_time,
        });
        // Where the attempts are listed, the failures that ended the rounds are among them.
        let is_listed = !task.failed_attempts.is_empty();
        let earlier = task.earlier_failures.iter().map(|it| Attempt {
            name: format!("round {}", it.round),
            failure: &it.failure,
            next: None,
        });
        let last = task.failure.iter().map(|failure| Attempt {
            name: "last".to_owned(),
            failure,
            next: None,
        });
        let ends = earlier.chain(last).filter(|_| !is_listed);
        attempts.chain(ends).collect()
    }
}

impl Attempt<'_> {
    /// Returns how long it took, in milliseconds.
    fn took(&self) -> Option<i64> {
        Some(self.failure.failure_time? - self.failure.start_time?)
    }

    /// Returns the worker, and where it ran.
    fn place(&self) -> String {
        let failure = self.failure;
        let host = match (&failure.host, failure.process) {
            (Some(host), Some(process)) => Some(format!("{host}, process {process}")),
            (host, _) => host.clone(),
        };
        let parts = failure.failure_source.clone().into_iter().chain(host);
        parts.collect::<Vec<_>>().join(" on ")
    }
}

/// Returns the id of a subtask.
fn below(under: &str, number: u32) -> String {
    match under {
        "0" => number.to_string(),
        _ => format!("{under}.{number}"),
    }
}

/// Returns what is known of a task, in a line.
fn detail(task: &ListedTask) -> String {
    let mut parts = Vec::new();
    if let Some(count) = task.subtasks {
        let done = task.completed_subtasks.unwrap_or_default();
        let (done, count) = (text::number(done), text::number(count));
        parts.push(format!("{done} of {count} subtasks done"));
    }
    if task.failures_below > 0 {
        let failures = text::counted(task.failures_below, "failure");
        parts.push(format!("{failures} below"));
    }
    parts.extend(task.progress.map(|it| format!("{}%", text::percent(it))));
    let attempts = task.attempts.map(|it| text::counted(it, "attempt"));
    parts.extend(attempts.map(|it| format!("{it} failed")));
    let failure = task.failure.as_ref();
    parts.extend(failure.and_then(|failure| failure.failure_message.clone()));
    parts.join(" · ")
}

/// Returns the class of the color of a state.
const fn class(state: SubtaskState) -> &'static str {
    match state {
        SubtaskState::Failed => "failed",
        SubtaskState::Retrying | SubtaskState::Blocked => "paused",
        SubtaskState::Running => "active",
        SubtaskState::Waiting => "waiting",
        SubtaskState::Done => "completed",
    }
}

/// Returns the name of a state, and the class of its color.
const fn named(state: TaskState) -> (&'static str, &'static str) {
    match state {
        TaskState::Waiting => ("Waiting", "waiting"),
        TaskState::Active => ("Active", "active"),
        TaskState::Retrying => ("Retrying", "paused"),
        TaskState::Completed => ("Completed", "completed"),
        TaskState::Failed => ("Failed", "failed"),
    }
}
