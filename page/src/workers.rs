//! The workers of all processes, as they tell of themselves.

use askama::Template;
use contract::{Worker, Workers};

use crate::layout::{Layout, Live, Place};
use crate::text::{self, Time};
use crate::url;

/// How often the page is read again, in seconds.
const EVERY: u32 = 3;

/// The list of workers.
#[derive(Debug, Template)]
#[template(path = "workers.html")]
pub struct WorkersPage {
    layout: Layout,
    rows: Vec<WorkerRow>,
    more: String,
    has_others: bool,
}

/// A worker in the list.
#[derive(Debug, Clone)]
pub struct WorkerRow {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) process: String,
    /// The pipe from which it takes messages, with the URL of its page.
    pub(crate) input: Option<(String, String)>,
    pub(crate) slots: String,
    /// The part of its slots that is in use, in percent.
    pub(crate) in_use: Option<String>,
    pub(crate) open: String,
    pub(crate) longest: Option<Longest>,
    pub(crate) started: Time,
    pub(crate) seen: Time,
}

/// The task that a worker runs longest.
#[derive(Debug, Clone)]
pub(crate) struct Longest {
    pub(crate) task: String,
    pub(crate) url: Option<String>,
    pub(crate) since: Time,
}

impl WorkersPage {
    /// The list of these workers.
    pub fn new(workers: &Workers) -> Self {
        let more = i64::try_from(workers.more).unwrap_or(i64::MAX);
        Self {
            layout: Layout {
                title: "Workers".to_owned(),
                place: Place::Workers,
                live: Live::Every(EVERY),
                ..Layout::default()
            },
            rows: workers.workers.iter().map(WorkerRow::of).collect(),
            more: if more > 0 {
                text::number(more)
            } else {
                String::new()
            },
            has_others: workers.workers.iter().any(|worker| !is_of_service(worker)),
        }
    }
}

/// Returns whether a worker is a part of a job service, which has some for its own work.
fn is_of_service(worker: &Worker) -> bool {
    worker.name == "job-service" || worker.name.starts_with("job-service-")
}

impl WorkersPage {
    fn rows(&self) -> &[WorkerRow] {
        &self.rows
    }
}

impl WorkerRow {
    /// The row of a worker.
    pub fn of(worker: &Worker) -> Self {
        let slots = worker.slots.zip(worker.slots_in_use);
        let longest = worker.longest.as_ref().map(|longest| Longest {
            url: url::of_task(&longest.task).map(|(_, url)| url),
            task: longest.task.clone(),
            since: Time(longest.since),
        });
        Self {
            name: worker.name.clone(),
            version: worker.version.clone(),
            process: format!("{}, process {}", worker.host, worker.process),
            input: worker
                .input
                .as_ref()
                .map(|pipe| (pipe.clone(), url::pipe(pipe))),
            slots: slots.map_or_else(String::new, |(all, used)| format!("{used} of {all}")),
            in_use: slots.map(|(all, used)| {
                let share = 100.0 * f64::from(used) / f64::from(all.max(1));
                format!("{:.1}", share.min(100.0))
            }),
            open: worker.open_deliveries.map_or_else(String::new, |open| {
                text::number(i64::try_from(open).unwrap_or(i64::MAX))
            }),
            longest,
            started: Time(worker.start_time),
            seen: Time(worker.last_sign_time),
        }
    }
}
