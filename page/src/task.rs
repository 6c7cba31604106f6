//! One task of a job: how it stands, and every attempt that failed.

use askama::Template;
use contract::rest::{Failure, Job, Task, TaskState};

use crate::job::JobHead;
use crate::layout::Layout;
use crate::text::{self, Time};

/// A task.
#[derive(Debug, Template)]
#[template(path = "task.html")]
pub struct TaskPage {
    layout: Layout,
    head: JobHead,
    id: String,
    /// The tasks above, each with its URL; the job's own first.
    above: Vec<(String, String)>,
    status: &'static str,
    class: &'static str,
    since: Option<Time>,
    next: Option<Time>,
    split: Option<String>,
    remark: Option<String>,
    label: Option<String>,
    input: Option<String>,
    attempts: Vec<Attempt>,
}

/// A run of the task that failed.
#[derive(Debug)]
struct Attempt {
    name: String,
    began: Option<Time>,
    ended: Option<Time>,
    took: Option<String>,
    kind: String,
    message: String,
    place: String,
    next: Option<Time>,
}

impl TaskPage {
    /// The page of a task.
    pub fn new(partition: &str, job: &Job, task: Task) -> Self {
        let head = JobHead::new(partition, job, "task");
        let split = task.subtasks.map(|count| {
            let done = task.completed_subtasks.unwrap_or_default();
            format!(
                "{} of {} subtasks are done",
                text::number(done),
                text::number(count)
            )
        });
        let last = task.failure.as_ref();
        let (label, input) = (
            last.and_then(|failure| failure.label.clone()),
            last.and_then(|failure| failure.input.clone()),
        );
        let (status, class) = shown(task.status);
        let listed = !task.failed_attempts.is_empty();
        let attempts = task.failed_attempts.into_iter().map(|attempt| {
            let number = attempt.attempt.map_or_else(
                || "attempt".to_owned(),
                |number| format!("attempt {number}"),
            );
            let name = format!("round {}, {number}", attempt.round);
            Attempt::of(name, attempt.failure, attempt.next_attempt_time)
        });
        let earlier = task
            .earlier_failures
            .into_iter()
            .map(|earlier| Attempt::of(format!("round {}", earlier.round), earlier.failure, None));
        // Where the attempts are listed, the failures that ended the rounds are among them.
        let attempts = if listed {
            attempts.collect()
        } else {
            let last = task
                .failure
                .map(|failure| Attempt::of("last".to_owned(), failure, None));
            earlier.chain(last).collect()
        };
        Self {
            layout: head.layout(None),
            above: above(&head, &task.id),
            status,
            class,
            since: task.since.map(Time),
            next: task.next_attempt_time.map(Time),
            split,
            remark: task.remark,
            label,
            input,
            attempts,
            id: task.id,
            head,
        }
    }
}

impl Attempt {
    fn of(name: String, failure: Failure, next: Option<i64>) -> Self {
        let host = match (failure.host, failure.process) {
            (Some(host), Some(process)) => Some(format!("{host}, process {process}")),
            (host, _) => host,
        };
        let place: Vec<String> = [failure.failure_source, host]
            .into_iter()
            .flatten()
            .collect();
        let took = match (failure.start_time, failure.failure_time) {
            (Some(began), Some(ended)) => Some(text::duration(ended - began)),
            _ => None,
        };
        Self {
            name,
            began: failure.start_time.map(Time),
            ended: failure.failure_time.map(Time),
            took,
            kind: failure.failure_id.unwrap_or_default(),
            message: failure.failure_message.unwrap_or_default(),
            place: place.join(" on "),
            next: next.map(Time),
        }
    }
}

/// Returns the tasks above a task, each with its URL.
fn above(head: &JobHead, id: &str) -> Vec<(String, String)> {
    let url = |id: &str| format!("{}/tasks/{id}", head.url());
    if id == "0" {
        return Vec::new();
    }
    let own = ("0".to_owned(), url("0"));
    let parents = id.match_indices('.').map(|(at, _)| &id[..at]);
    std::iter::once(own)
        .chain(parents.map(|id| (id.to_owned(), url(id))))
        .collect()
}

const fn shown(state: TaskState) -> (&'static str, &'static str) {
    match state {
        TaskState::Waiting => ("Waiting", "waiting"),
        TaskState::Active => ("Active", "active"),
        TaskState::Retrying => ("Retrying", "paused"),
        TaskState::Completed => ("Completed", "completed"),
        TaskState::Failed => ("Failed", "failed"),
    }
}
