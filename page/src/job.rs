//! One job: what it is and how far, its failures, its outputs, and what it was created from.

use askama::Template;
use contract::JobStatus;
use contract::rest::{AwaitedJob, Failure, FailureGroup, Failures, History, Job, StatusChange};

use crate::conditions::BlockedBy;
use crate::layout::{Layout, Live, Place};
use crate::plot::Plot;
use crate::text::{self, Time};
use crate::url;

/// How far a job is, as a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    done: f64,
    failed: f64,
    /// The text beside it, without `%`.
    text: String,
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
            text: text::percent(job.progress.unwrap_or(job.percentage_complete)),
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

    pub(crate) fn text(&self) -> &str {
        &self.text
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
#[derive(Debug, Clone)]
pub struct JobHead {
    pub(crate) partition: String,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: JobStatus,
    /// The status as it is shown: Blocked, if all that is under way waits.
    pub(crate) shown_status: JobStatus,
    pub(crate) round: Option<u32>,
    failed: i64,
    pub(crate) keeps_outputs: bool,
    /// Which of the pages this is.
    pub(crate) page: &'static str,
}

impl JobHead {
    /// Returns the URL of the dead letters of the job.
    pub(crate) fn letters_url(&self) -> String {
        let query = [
            ("partition", self.partition.as_str()),
            ("job", self.id.as_str()),
        ];
        format!("/dead-letters{}", url::query(query))
    }

    /// The head of a page of a job; `page` is the end of the page's path, empty for the overview.
    pub fn new(partition: &str, job: &Job, page: &'static str) -> Self {
        Self {
            partition: partition.to_owned(),
            id: job.id.clone(),
            name: job.name.clone().unwrap_or_default(),
            status: job.status,
            shown_status: job.shown_status(),
            round: job.round,
            failed: job.failed_tasks,
            keeps_outputs: job.outputs.is_some(),
            page,
        }
    }

    pub(crate) fn url(&self) -> String {
        url::job(&self.partition, &self.id)
    }

    pub(crate) fn jobs_url(&self) -> String {
        url::jobs(&self.partition)
    }

    pub(crate) fn failed_text(&self) -> String {
        text::number(self.failed)
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        let possible = |action: &Action| action.is_possible(self.status, self.failed);
        Action::ALL.into_iter().filter(possible).collect()
    }

    pub(crate) fn layout(&self, done: Option<String>) -> Layout {
        Layout {
            title: format!("{} ({})", self.id, self.partition),
            place: Place::Jobs,
            partition: Some(self.partition.clone()),
            live: Live::Events(format!("{}/live", self.url())),
            pace: match self.page {
                "failures" | "outputs" | "definition" => SLOW,
                _ => 1,
            },
            done,
        }
    }
}

/// A fact in the list beside the progress.
#[derive(Debug, Clone)]
enum Value {
    Text(String),
    Time(Time),
}

/// The overview of a job.
#[derive(Debug, Template)]
#[template(path = "job.html")]
pub struct JobPage {
    layout: Layout,
    head: JobHead,
    bar: Bar,
    summary: String,
    ends: Option<Time>,
    plot: Option<Plot>,
    counts: Vec<(&'static str, String, &'static str)>,
    notes: Vec<String>,
    labels: Vec<(String, String)>,
    blocked: Vec<BlockedBy>,
    waiting_for: Vec<(String, String, Option<JobStatus>)>,
    dependents: Vec<(String, String, Option<JobStatus>)>,
    facts: Vec<(&'static str, Value)>,
    description: Option<String>,
    external_data: Option<String>,
    /// The names of the texts of which only the beginning is shown.
    cut: Vec<String>,
    groups: Vec<Group>,
    ungrouped: String,
    fallen: Vec<(String, String, Option<JobStatus>)>,
    steps: Vec<StatusChange>,
    left_out: i64,
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

impl JobPage {
    /// The overview of a job; `done` is what was just done with it.
    pub fn new(partition: &str, job: Job, around: Around, done: Option<String>) -> Self {
        let Around {
            failures,
            history,
            plot,
            dependents,
            fallen,
        } = around;
        let head = JobHead::new(partition, &job, "");
        let other = |other: AwaitedJob| {
            (
                url::job(partition, &other.job_id),
                other.job_id,
                other.status,
            )
        };
        Self {
            layout: head.layout(done),
            bar: Bar::of(&job),
            summary: summary(&job),
            ends: job.estimated_end_time.map(Time),
            plot,
            counts: counts(&job),
            facts: facts(&job),
            notes: job.notes,
            blocked: job
                .blocked
                .into_iter()
                .flat_map(|blocked| blocked.conditions)
                .map(BlockedBy::of)
                .collect(),
            labels: job
                .labels
                .into_iter()
                .map(|(key, value)| (key, value.unwrap_or_default()))
                .collect(),
            waiting_for: job.waiting_for.into_iter().map(other).collect(),
            dependents: dependents.into_iter().map(other).collect(),
            description: job.description,
            external_data: job.external_data,
            cut: job.cut,
            ungrouped: match failures.ungrouped {
                Some(count) if count > 0 => text::number(count),
                _ => String::new(),
            },
            groups: failures
                .groups
                .unwrap_or_default()
                .into_iter()
                .map(Group::of)
                .collect(),
            fallen: if head.actions().contains(&Action::Retry) {
                fallen.into_iter().map(other).collect()
            } else {
                Vec::new()
            },
            steps: history.history,
            left_out: history.left_out,
            head,
        }
    }
}

impl JobPage {
    fn is_cut(&self, field: &str) -> bool {
        self.cut.iter().any(|cut| cut == field)
    }

    fn at(step: &StatusChange) -> Time {
        Time(step.time)
    }
}

/// Returns how far the job is, in a line.
fn summary(job: &Job) -> String {
    let mut parts = Vec::new();
    match job.items.total {
        Some(total) => parts.push(format!(
            "{} of {}{} items",
            text::number(job.items.done),
            if job.items.total_is_final {
                ""
            } else {
                "at least "
            },
            text::number(total)
        )),
        None if job.completed_items > 0 => {
            parts.push(format!("{} items done", text::number(job.completed_items)));
        }
        None => {}
    }
    parts.extend(
        job.items_per_second
            .map(|rate| format!("{} items/s", text::rate(rate))),
    );
    if let (Some(start), Some(end)) = (job.start_time, job.end_time) {
        parts.push(format!("took {}", text::duration(end - start)));
    }
    parts.join(" · ")
}

/// Returns the numbers of items, by what has become of them.
fn counts(job: &Job) -> Vec<(&'static str, String, &'static str)> {
    let known =
        |name, number: Option<i64>, class| number.map(|number| (name, text::number(number), class));
    let failed = if job.items.failed > 0 { "bad" } else { "" };
    [
        known("Items", job.items.total, ""),
        known("Done", Some(job.items.done), "good"),
        known("Failed", Some(job.items.failed), failed),
        known("Running", job.items.running, ""),
        known("Retrying", job.items.retrying, ""),
        known("Waiting", job.items.waiting, ""),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn facts(job: &Job) -> Vec<(&'static str, Value)> {
    let time = |time: Option<i64>| time.map(|time| Value::Time(Time(time)));
    let some = |text: Option<String>| text.map(Value::Text);
    let outputs = job.outputs.as_ref().map(|kept| {
        let number = text::number(kept.done + kept.failed);
        match kept.removed_time {
            Some(_) => format!("{number} were kept, until their time was over"),
            None => format!("{number} kept, {}", text::bytes(kept.bytes)),
        }
    });
    [
        ("Created", time(Some(job.create_time))),
        ("Due", time(job.due_time)),
        ("First report", time(job.start_time)),
        ("Ended", time(job.end_time)),
        ("Next attempt", time(job.next_attempt_time)),
        (
            "Failed attempts",
            some((job.failed_attempts > 0).then(|| text::number(job.failed_attempts))),
        ),
        ("Changed", time(Some(job.last_update_time))),
        ("Round", some(job.round.map(|round| round.to_string()))),
        ("After a failure", some(Some(job.on_failure.to_string()))),
        ("Retries", some(job.retry.clone())),
        (
            "Time limit",
            some(job.task_time_limit.map(|limit| {
                let millis = i64::from(limit.seconds()) * 1000;
                format!("{} for each attempt of a task", text::duration(millis))
            })),
        ),
        (
            "Delay",
            some((job.delay > 0).then(|| text::duration(job.delay.saturating_mul(1000)))),
        ),
        (
            "Suspended",
            some(
                job.suspended
                    .then(|| "until its partition is dispatched".to_owned()),
            ),
        ),
        ("Outputs", some(outputs)),
        ("Deletion", Some(kept_until(job))),
        ("Correlation id", some(job.correlation_id.clone())),
        ("Incarnation", some(Some(job.incarnation.to_string()))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// Returns when the job is deleted, or what decides about it at its end.
fn kept_until(job: &Job) -> Value {
    if let Some(time) = job.expiry_time {
        return Value::Time(Time(time));
    }
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
        return Value::Text("by hand only".to_owned());
    }
    Value::Text(policies.join(", "))
}

/// Failures with the same kind and message.
#[derive(Debug)]
struct Group {
    kind: String,
    message: String,
    count: String,
    first: Time,
    last: Time,
    example: FailedTask,
}

impl Group {
    fn of(group: FailureGroup) -> Self {
        Self {
            kind: group.failure_id.unwrap_or_default(),
            message: group.failure_message.unwrap_or_default(),
            count: text::number(group.count),
            first: Time(group.first_time),
            last: Time(group.last_time),
            example: FailedTask::of(group.example),
        }
    }
}

/// A task that has failed.
#[derive(Debug)]
struct FailedTask {
    id: String,
    label: String,
    input: String,
    kind: String,
    message: String,
    source: String,
    time: Option<Time>,
}

impl FailedTask {
    fn of(failure: Failure) -> Self {
        Self {
            id: task_name(&failure.task_id),
            label: failure.label.unwrap_or_default(),
            input: failure.input.unwrap_or_default(),
            kind: failure.failure_id.unwrap_or_default(),
            message: failure.failure_message.unwrap_or_default(),
            source: failure.failure_source.unwrap_or_default(),
            time: failure.failure_time.map(Time),
        }
    }
}

/// Returns the id of a task; the job's own is empty in failures.
fn task_name(id: &str) -> String {
    if id.is_empty() { "0" } else { id }.to_owned()
}

/// The failures of a job: in groups, and one by one.
#[derive(Debug, Template)]
#[template(path = "failures.html")]
pub struct FailuresPage {
    layout: Layout,
    head: JobHead,
    groups: Vec<Group>,
    failures: Vec<FailedTask>,
    kept: i64,
    ungrouped: i64,
    first: bool,
    next: Option<String>,
}

impl FailuresPage {
    /// The failures of a job. `first` says whether this is the first page of them.
    pub fn new(partition: &str, job: &Job, groups: Failures, page: Failures, first: bool) -> Self {
        let head = JobHead::new(partition, job, "failures");
        let next = page.next.as_deref();
        let next =
            next.map(|after| format!("{}/failures{}", head.url(), url::query([("after", after)])));
        Self {
            layout: head.layout(None),
            kept: groups.kept,
            ungrouped: groups.ungrouped.unwrap_or_default(),
            groups: groups
                .groups
                .unwrap_or_default()
                .into_iter()
                .map(Group::of)
                .collect(),
            failures: page.failures.into_iter().map(FailedTask::of).collect(),
            first,
            next,
            head,
        }
    }

    fn kept_text(&self) -> String {
        text::number(self.kept)
    }
}

/// What a job was created from.
#[derive(Debug, Template)]
#[template(path = "definition.html")]
pub struct Definition {
    layout: Layout,
    head: JobHead,
    request: String,
}

impl Definition {
    /// The request that created a job.
    pub fn new(partition: &str, job: &Job, request: &[u8]) -> Self {
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
