//! One task of a job: how it stands, and every attempt that failed.

use askama::Template;
use contract::rest::{Failure, Job, ListedTask, SubtaskState, Task, TaskEntry, TaskState, Tasks};

use crate::job::JobHead;
use crate::layout::Layout;
use crate::text::{self, Time};
use crate::url;

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
    states: Vec<(&'static str, String, bool)>,
    rows: Vec<Row>,
    more: Option<String>,
    problem: Option<String>,
    is_narrowed: bool,
}

/// The subtasks of a task, as they were asked for.
#[derive(Debug)]
pub struct Listed {
    /// A page of them, or why there is none, with the task alone.
    pub tasks: Result<Tasks, (Box<Task>, String)>,
    /// The state that was asked for; empty for all.
    pub state: String,
}

/// A subtask, or a range of them.
#[derive(Debug)]
struct Row {
    name: String,
    url: Option<String>,
    class: &'static str,
    state: &'static str,
    label: String,
    detail: String,
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
    /// The page of a task, with its subtasks.
    pub fn new(partition: &str, job: &Job, listed: Listed) -> Self {
        let head = JobHead::new(partition, job, "tasks");
        let (task, tasks, next, problem) = match listed.tasks {
            Ok(found) => (found.task, found.tasks, found.next, found.remark),
            Err((task, problem)) => (*task, Vec::new(), None, Some(problem)),
        };
        let url = format!("{}/tasks/{}", head.url(), task.id);
        let state = listed.state;
        let link = |name: &'static str| {
            (
                name,
                format!("{url}{}", url::query([("state", name)])),
                name == state,
            )
        };
        let more = next.map(|after| {
            let query = url::query([("state", state.as_str()), ("after", after.as_str())]);
            format!("{url}{query}")
        });
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
            states: std::iter::once(("all", url.clone(), state.is_empty()))
                .chain(SubtaskState::ALL.map(SubtaskState::name).map(link))
                .collect(),
            rows: tasks
                .into_iter()
                .map(|entry| Row::of(&head, entry))
                .collect(),
            more,
            problem,
            is_narrowed: !state.is_empty(),
            remark: task.remark,
            label,
            input,
            attempts,
            id: task.id,
            head,
        }
    }
}

impl Row {
    fn of(head: &JobHead, entry: TaskEntry) -> Self {
        let below = |under: &str, number: u32| {
            if under == "0" {
                number.to_string()
            } else {
                format!("{under}.{number}")
            }
        };
        match entry {
            TaskEntry::Range(range) => {
                let first = below(&range.under, range.first);
                let count = i64::from(range.last) - i64::from(range.first) + 1;
                Self {
                    name: if count == 1 {
                        first
                    } else {
                        format!("{first} – {}", below(&range.under, range.last))
                    },
                    url: None,
                    class: class(range.state),
                    state: range.state.name(),
                    label: String::new(),
                    detail: if count == 1 {
                        String::new()
                    } else {
                        format!("{} tasks", text::number(count))
                    },
                }
            }
            TaskEntry::Task(task) => Self {
                url: Some(format!("{}/tasks/{}", head.url(), task.id)),
                class: class(task.state),
                state: task.state.name(),
                detail: detail(&task),
                name: task.id,
                label: task.label.unwrap_or_default(),
            },
        }
    }
}

/// Returns what is known of a task, in a line.
fn detail(task: &ListedTask) -> String {
    let mut parts = Vec::new();
    if let Some(count) = task.subtasks {
        let done = task.completed_subtasks.unwrap_or_default();
        parts.push(format!(
            "{} of {} subtasks done",
            text::number(done),
            text::number(count)
        ));
    }
    if task.failures_below > 0 {
        let failures = if task.failures_below == 1 {
            "failure"
        } else {
            "failures"
        };
        parts.push(format!(
            "{} {failures} below",
            text::number(task.failures_below)
        ));
    }
    parts.extend(
        task.progress
            .map(|progress| format!("{}%", text::percent(progress))),
    );
    parts.extend(
        task.attempts
            .map(|attempts| format!("{attempts} attempts failed")),
    );
    let failure = task.failure.as_ref();
    parts.extend(failure.and_then(|failure| failure.failure_message.clone()));
    parts.join(" · ")
}

const fn class(state: SubtaskState) -> &'static str {
    match state {
        SubtaskState::Failed => "failed",
        SubtaskState::Retrying | SubtaskState::Blocked => "paused",
        SubtaskState::Running => "active",
        SubtaskState::Waiting => "waiting",
        SubtaskState::Done => "completed",
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
