//! One job: what it is and how far, its failures, its outputs, and what it was created from.

use askama::Template;
use contract::JobStatus;
use contract::rest::{AwaitedJob, Failures, History, Job};

use crate::layout::{Layout, Live};
use crate::plot::Plot;
use crate::{filters, text, url};

/// How far a job is, as a bar.
#[derive(Debug)]
pub struct Bar {
    done: f64,
    failed: f64,
    /// The percentage beside it.
    pub(crate) percentage: f64,
}

impl Bar {
    /// Returns the bar of a job: by its items if their number is known, by its percentage
    /// otherwise.
    pub fn of(job: &Job) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a bar has a few hundred pixels")]
        let share = |part: i64, total: i64| 100.0 * part as f64 / total as f64;
        let (done, failed) = match job.items.total {
            Some(total) if job.items.total_is_final && total > 0 => (
                share(job.items.done, total).clamp(0.0, 100.0),
                share(job.items.failed, total),
            ),
            _ => (job.percentage_complete, 0.0),
        };
        Self {
            done,
            failed: failed.clamp(0.0, 100.0 - done),
            percentage: job.progress.unwrap_or(job.percentage_complete),
        }
    }

    /// Returns the part that is done, in percent.
    pub(crate) fn done(&self) -> String {
        format!("{:.2}", self.done)
    }

    /// Returns the part that has failed, in percent.
    pub(crate) fn failed(&self) -> String {
        format!("{:.2}", self.failed)
    }

    pub(crate) fn label(&self) -> String {
        if self.failed > 0.0 {
            format!("{:.1} % done, {:.1} % failed", self.done, self.failed)
        } else {
            format!("{:.1} % done", self.done)
        }
    }
}

/// What a viewer can do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// Take it up again.
    Retry,
    /// Cancel it.
    Cancel,
    /// Delete it.
    Delete,
}

impl Action {
    /// All actions, in the order of the buttons.
    pub const ALL: [Self; 5] = [
        Self::Pause,
        Self::Resume,
        Self::Retry,
        Self::Cancel,
        Self::Delete,
    ];

    /// Returns the action with this name in URLs.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }

    /// Returns the name on a button.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::Retry => "Retry",
            Self::Cancel => "Cancel",
            Self::Delete => "Delete",
        }
    }

    /// Returns what has been done: `paused`.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Retry => "taken up again",
            Self::Cancel => "cancelled",
            Self::Delete => "deleted",
        }
    }

    /// Returns what the action means, for the page that asks whether to do it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pause => {
                "Running tasks continue to their end; no other task starts until the job is resumed."
            }
            Self::Resume => "The tasks that have waited are sent to their workers again.",
            Self::Retry => {
                "Another round begins, in which only what is not done counts. Tasks that are done stay done."
            }
            Self::Cancel => {
                "Tasks that have not begun are discarded. Jobs that wait for it are cancelled, too. A cancelled job can be retried."
            }
            Self::Delete => {
                "The job, its progress, its failures and its outputs are gone for good; a job that runs is cancelled first."
            }
        }
    }

    /// Returns whether the action is asked about before it is done.
    pub const fn is_grave(self) -> bool {
        matches!(self, Self::Cancel | Self::Delete)
    }

    /// Returns whether the action lets a job go on that has stopped.
    pub const fn goes_on(self) -> bool {
        matches!(self, Self::Resume | Self::Retry)
    }

    /// Returns whether the action is possible for a job with this status, of which so many tasks
    /// have failed.
    pub fn is_possible(self, status: JobStatus, failed: i64) -> bool {
        let is_done = status == JobStatus::Completed && failed == 0;
        self.from_statuses().contains(&status) && !(self == Self::Retry && is_done)
    }

    /// Returns the statuses from which the action is possible; from Completed, [`Self::Retry`] is
    /// only if tasks have failed.
    pub const fn from_statuses(self) -> &'static [JobStatus] {
        use JobStatus::{Active, Cancelled, Completed, Failed, Paused, Waiting};
        match self {
            Self::Pause => &[Active, Waiting],
            Self::Resume => &[Paused],
            Self::Retry => &[Failed, Cancelled, Completed],
            Self::Cancel => &[Active, Paused, Waiting],
            Self::Delete => &JobStatus::STORED,
        }
    }
}

/// The least seconds between two reads of a page that costs more than an overview. A job at work
/// changes every second.
const SLOW: u32 = 5;

/// The head of every page of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobHead<'a> {
    pub(crate) partition: &'a str,
    pub(crate) job: &'a Job,
    /// Which of the pages this is: the end of its path, empty for the overview.
    pub(crate) page: &'static str,
}

impl<'a> JobHead<'a> {
    /// The head of a page of a job.
    pub const fn new(partition: &'a str, job: &'a Job, page: &'static str) -> Self {
        Self {
            partition,
            job,
            page,
        }
    }

    pub(crate) fn url(&self) -> String {
        url::job(self.partition, &self.job.id)
    }

    /// Returns the URL of a task of the job; the id of its own may be empty.
    pub(crate) fn task(&self, id: &str) -> String {
        url::task(self.partition, &self.job.id, task_name(id))
    }

    /// Returns the URL of the dead letters of the job.
    pub(crate) fn letters_url(&self) -> String {
        let query = [("partition", self.partition), ("job", &self.job.id)];
        format!("/dead-letters{}", url::query(query))
    }

    pub(crate) fn is_possible(&self, action: Action) -> bool {
        action.is_possible(self.job.status, self.job.failed_tasks)
    }

    pub(crate) fn layout(&self, done: Option<String>) -> Layout {
        Layout {
            live: Live::Events(format!("{}/live", self.url())),
            pace: match self.page {
                "failures" | "outputs" | "definition" => SLOW,
                _ => 1,
            },
            done,
            ..Layout::of_jobs(
                format!("{} ({})", self.job.id, self.partition),
                self.partition,
            )
        }
    }
}

/// The overview of a job.
#[derive(Debug, Template)]
#[template(path = "job.html")]
pub struct JobPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    job: &'a Job,
    around: Around,
}

/// What the overview shows beside the job itself.
#[derive(Debug)]
pub struct Around {
    /// The largest groups of its failures.
    pub failures: Failures,
    /// Its history.
    pub history: History,
    /// Its throughput.
    pub plot: Option<Plot>,
    /// The jobs that wait for it.
    pub dependents: Vec<AwaitedJob>,
    /// The jobs that ended with it, before they started.
    pub fallen: Vec<AwaitedJob>,
}

impl<'a> JobPage<'a> {
    /// The overview of a job; `done` is what was just done with it.
    pub fn new(partition: &'a str, job: &'a Job, around: Around, done: Option<String>) -> Self {
        let head = JobHead::new(partition, job, "");
        Self {
            layout: head.layout(done),
            head,
            job,
            around,
        }
    }

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

/// Returns the id of a task; the job's own is empty in failures.
fn task_name(id: &str) -> &str {
    if id.is_empty() { "0" } else { id }
}

/// The failures of a job: in groups, and one by one.
#[derive(Debug, Template)]
#[template(path = "failures.html")]
pub struct FailuresPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    failures: &'a Failures,
    page: &'a Failures,
    /// Whether this is the first page of them.
    first: bool,
}

impl<'a> FailuresPage<'a> {
    /// The failures of a job, in groups, and a page of them.
    pub fn new(
        partition: &'a str,
        job: &'a Job,
        (failures, page): (&'a Failures, &'a Failures),
        first: bool,
    ) -> Self {
        let head = JobHead::new(partition, job, "failures");
        Self {
            layout: head.layout(None),
            head,
            failures,
            page,
            first,
        }
    }

    /// Returns the URL of the page that begins after a failure.
    fn following(&self, after: &str) -> String {
        url::after(&format!("{}/failures", self.head.url()), after)
    }
}

/// What a job was created from.
#[derive(Debug, Template)]
#[template(path = "definition.html")]
pub struct Definition<'a> {
    layout: Layout,
    head: JobHead<'a>,
    request: String,
}

impl<'a> Definition<'a> {
    /// The request that created a job.
    pub fn new(partition: &'a str, job: &'a Job, request: &[u8]) -> Self {
        let head = JobHead::new(partition, job, "definition");
        let json: Result<serde_json::Value, _> = serde_json::from_slice(request);
        let pretty = json.and_then(|json| serde_json::to_string_pretty(&json));
        Self {
            layout: head.layout(None),
            request: pretty.unwrap_or_else(|_| String::from_utf8_lossy(request).into_owned()),
            head,
        }
    }
}
