//! Conditions that tasks wait for: the list, and one in full with what a viewer can do with it.

use askama::Template;
use contract::rest::{ConditionState, WaitedCondition, WaitedConditions};

use crate::layout::{Layout, Live, Place};
use crate::{filters, url};

/// The event stream of the pages.
const LIVE: &str = "/conditions/live";

/// The list of conditions.
#[derive(Debug, Template)]
#[template(path = "conditions.html")]
pub struct ConditionsPage<'a> {
    layout: Layout,
    found: &'a WaitedConditions,
}

/// One condition.
#[derive(Debug, Template)]
#[template(path = "condition.html")]
pub struct ConditionPage<'a> {
    layout: Layout,
    condition: &'a WaitedCondition,
}

/// Asks whether to fail the tasks of a condition.
#[derive(Debug, Template)]
#[template(path = "condition-confirm.html")]
pub struct FailConfirmation<'a> {
    layout: Layout,
    condition: &'a WaitedCondition,
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

impl<'a> ConditionsPage<'a> {
    /// The list of these conditions; `done` is what was just done with one.
    pub fn new(found: &'a WaitedConditions, done: Option<ConditionAction>) -> Self {
        Self {
            layout: layout("Conditions".to_owned(), done),
            found,
        }
    }
}

impl<'a> ConditionPage<'a> {
    /// The page of a condition; `done` is what was just done with it.
    pub fn new(condition: &'a WaitedCondition, done: Option<ConditionAction>) -> Self {
        Self {
            layout: layout(format!("Condition {}", condition.code), done),
            condition,
        }
    }
}

impl<'a> FailConfirmation<'a> {
    /// The question about this condition.
    pub fn new(condition: &'a WaitedCondition) -> Self {
        Self {
            layout: Layout::new("Fail tasks".to_owned(), Place::Conditions),
            condition,
        }
    }
}

/// Returns the URL of a job that is named as `partition:job`.
fn job_url(name: &str) -> String {
    let (partition, job) = name.split_once(':').unwrap_or(("", name));
    url::job(partition, job)
}

const fn words(state: ConditionState) -> &'static str {
    match state {
        ConditionState::Waiting => "waits for its next test",
        ConditionState::Canary => "a task tests it",
        ConditionState::Releasing => "has passed; its tasks are sent again",
        ConditionState::Failing => "was given up; its tasks fail",
    }
}

fn layout(title: String, done: Option<ConditionAction>) -> Layout {
    Layout {
        live: Live::Events(LIVE.to_owned()),
        done: done.map(|done| done.done().to_owned()),
        ..Layout::new(title, Place::Conditions)
    }
}
