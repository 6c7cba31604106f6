//! Conditions that tasks wait for: the list, and one in full with what a viewer can do with it.

use askama::Template;
use contract::rest::{BlockingCondition, ConditionState, WaitedCondition, WaitedConditions};

use crate::layout::{Layout, Live, Place};
use crate::text::{self, Time};
use crate::url;

/// The path of the list.
const PATH: &str = "/conditions";
/// The event stream of the pages.
const LIVE: &str = "/conditions/live";

/// The list of conditions.
#[derive(Debug, Template)]
#[template(path = "conditions.html")]
pub struct ConditionsPage {
    layout: Layout,
    rows: Vec<ConditionRow>,
    next: Option<String>,
}

/// One condition.
#[derive(Debug, Template)]
#[template(path = "condition.html")]
pub struct ConditionPage {
    layout: Layout,
    row: ConditionRow,
    parameters: Vec<(String, String)>,
    /// The jobs that wait for it: the name, the URL, and the number of tasks.
    jobs: Vec<(String, String, String)>,
}

/// Asks whether to fail the tasks of a condition.
#[derive(Debug, Template)]
#[template(path = "condition-confirm.html")]
pub struct FailConfirmation {
    layout: Layout,
    url: String,
    code: String,
    tasks: String,
}

impl FailConfirmation {
    /// The question about this condition.
    pub fn new(condition: &WaitedCondition) -> Self {
        Self {
            layout: Layout {
                live: Live::No,
                ..layout("Fail tasks".to_owned(), None)
            },
            url: url_of(&condition.key),
            code: condition.code.clone(),
            tasks: counted(condition.tasks, "task"),
        }
    }
}

/// What a viewer does with a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionAction {
    /// Test it now.
    Test,
    /// Send its tasks without a test.
    Release,
    /// Fail its tasks.
    Fail,
}

impl ConditionAction {
    /// Returns the action with this name in URLs.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Test, Self::Release, Self::Fail]
            .into_iter()
            .find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Release => "release",
            Self::Fail => "fail",
        }
    }

    /// Returns what was just done.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Test => "The condition is being tested.",
            Self::Release => "The tasks are being sent again.",
            Self::Fail => "The tasks are failing.",
        }
    }
}

/// A condition, as a line of the list and as the facts of its own page.
#[derive(Debug)]
struct ConditionRow {
    key: String,
    url: String,
    code: String,
    tasks: String,
    since: Time,
    state: &'static str,
    short_state: &'static str,
    tests: String,
    next_test: Option<Time>,
    expires: Option<Time>,
    tester: String,
    policy: String,
    last_result: String,
    reason: String,
}

impl ConditionsPage {
    /// The list of these conditions; `done` is what was just done with one.
    pub fn new(conditions: &WaitedConditions, done: Option<ConditionAction>) -> Self {
        let next = conditions.next.as_deref();
        let done = done.map(|done| done.done().to_owned());
        Self {
            layout: layout("Conditions".to_owned(), done),
            rows: conditions.conditions.iter().map(ConditionRow::of).collect(),
            next: next.map(|after| format!("{PATH}{}", url::query([("after", after)]))),
        }
    }
}

impl ConditionPage {
    /// The page of a condition; `done` is what was just done with it.
    pub fn new(condition: &WaitedCondition, done: Option<ConditionAction>) -> Self {
        let jobs = condition.jobs.iter().flatten().map(|(name, tasks)| {
            let (partition, job) = name.split_once(':').unwrap_or(("", name));
            (
                name.clone(),
                url::job(partition, job),
                counted(*tasks, "task"),
            )
        });
        let parameters = condition.parameters.clone();
        let done = done.map(|done| done.done().to_owned());
        Self {
            layout: layout(format!("Condition {}", condition.code), done),
            row: ConditionRow::of(condition),
            parameters: parameters.into_iter().collect(),
            jobs: jobs.collect(),
        }
    }
}

impl ConditionRow {
    fn of(condition: &WaitedCondition) -> Self {
        Self {
            key: condition.key.clone(),
            url: url_of(&condition.key),
            code: condition.code.clone(),
            tasks: number(condition.tasks),
            since: Time(condition.since),
            state: words(condition.state),
            short_state: condition.state.name(),
            tests: condition.tests.to_string(),
            next_test: condition.next_test.map(Time),
            expires: condition.expires.map(Time),
            tester: condition.tester.to_string(),
            policy: condition.policy.clone(),
            last_result: condition.last_result.clone().unwrap_or_default(),
            reason: condition.reason.clone(),
        }
    }
}

/// A condition that blocks a job, as the page of the job shows it.
#[derive(Debug)]
pub struct BlockedBy {
    pub(crate) url: String,
    pub(crate) code: String,
    pub(crate) reason: String,
    pub(crate) tasks: String,
    pub(crate) tests: String,
    pub(crate) next_test: Option<Time>,
}

impl BlockedBy {
    pub(crate) fn of(condition: BlockingCondition) -> Self {
        Self {
            url: url_of(&condition.key),
            code: condition.code,
            reason: condition.reason,
            tasks: counted(condition.tasks, "task"),
            tests: counted(condition.tests.into(), "test"),
            next_test: condition.next_test.map(Time),
        }
    }
}

fn url_of(key: &str) -> String {
    format!("{PATH}/{}", url::encode(key))
}

/// Returns a number of things: `1 task`, `12 tasks`.
fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count))
}

fn number(number: u64) -> String {
    text::number(i64::try_from(number).unwrap_or(i64::MAX))
}

const fn words(state: ConditionState) -> &'static str {
    match state {
        ConditionState::Waiting => "waits for its next test",
        ConditionState::Canary => "a task tests it",
        ConditionState::Releasing => "has passed; its tasks are sent again",
        ConditionState::Failing => "was given up; its tasks fail",
    }
}

fn layout(title: String, done: Option<String>) -> Layout {
    Layout {
        title,
        place: Place::Conditions,
        live: Live::Events(LIVE.to_owned()),
        done,
        ..Layout::default()
    }
}
