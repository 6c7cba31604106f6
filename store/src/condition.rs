//! Conditions that tasks wait for, and the tasks that wait, as they are stored. Pure.

use std::time::Duration;

use contract::{Condition, ConditionKey, JobId, JobTaskId, PartitionId, ReportFailure};

use crate::model::ParkedTask;

/// A task that a worker has handed over because it waits for a condition.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBlock {
    /// The task.
    pub task: JobTaskId,
    /// By what two copies of its message are known to be the same. A task that passes through
    /// several pipes is another message in each.
    pub identity: Vec<u8>,
    /// How often it was blocked, this time included.
    pub number: u32,
    /// What it waits for.
    pub condition: Condition,
    /// Its message, and the pipe to which it goes back.
    pub message: ParkedTask,
}

/// What became of a task that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// It waits.
    Waits,
    /// Dropped: this is a copy of one that waits or was let go.
    Known,
    /// Dropped: the task has ended, or its job has, or it belongs to a past incarnation or round.
    Over,
    /// Nothing: another transaction keeps its job locked. It must be handed over again after this
    /// delay.
    Locked(Duration),
}

/// What happens to a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionPhase {
    /// It is tested at its next time.
    Testing,
    /// A task was let go to test it.
    Canary,
    /// It has passed, and its tasks are let go.
    Releasing,
    /// It has expired, and its tasks fail.
    Failing,
    /// No task waits for it. Those that were let go may be blocked again.
    Idle,
}

impl ConditionPhase {
    /// Returns the name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Testing => "testing",
            Self::Canary => "canary",
            Self::Releasing => "releasing",
            Self::Failing => "failing",
            Self::Idle => "idle",
        }
    }

    /// Returns the phase of this name. Only another version knows further ones: then it is tested.
    pub(crate) fn from_name(name: &str) -> Self {
        let all = [Self::Canary, Self::Releasing, Self::Failing, Self::Idle];
        let found = all.into_iter().find(|phase| phase.name() == name);
        found.unwrap_or(Self::Testing)
    }
}

/// What a task has done that was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A canary has ended: it is done or has failed.
    Ended,
    /// A canary, or a task that was released, is blocked by the same condition again.
    Again,
    /// A canary waits for another condition, or its job has ended.
    Elsewhere,
}

impl Heard {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Again => "again",
            Self::Elsewhere => "elsewhere",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Ended, Self::Again, Self::Elsewhere];
        all.into_iter().find(|heard| heard.name() == name)
    }
}

/// A condition as it is stored. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionRow {
    /// Its key.
    pub key: ConditionKey,
    /// The condition, as the first of its tasks has stated it.
    pub condition: Condition,
    /// Since when tasks wait for it.
    pub since: i64,
    /// The number of tests.
    pub tests: u32,
    /// When it was tested last.
    pub tested: Option<i64>,
    /// What the last test has found.
    pub result: Option<String>,
    /// What happens to it.
    pub phase: ConditionPhase,
    /// How many tasks the last release has let go.
    pub pace: u32,
    /// When a job service looks at it next.
    pub next_time: i64,
    /// What a task that was let go has done since a job service has looked at it.
    pub heard: Option<Heard>,
    /// The number of tasks that wait for it.
    pub waiting: u64,
    /// The number of tasks that were let go to test it and have not ended since.
    pub canaries: u64,
    pub(crate) news: i64,
    pub(crate) lease: i64,
}

/// A condition that a job service has claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedCondition {
    /// The condition.
    pub row: ConditionRow,
    /// The time of the claim, in milliseconds since 1970, by the clock of the store. The times of
    /// the condition are by this clock, and the clocks of job services may differ from it.
    pub time: i64,
}

/// What a job service does to a condition that it has claimed: the state from now on, and the act.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionStep {
    /// What happens to it from now on.
    pub phase: ConditionPhase,
    /// The number of tests from now on.
    pub tests: u32,
    /// Whether it counts from now on since when tasks wait for it.
    pub restarts: bool,
    /// What a test has found, if one was made.
    pub result: Option<String>,
    /// How many tasks the last release has let go, from now on.
    pub pace: u32,
    /// In how many milliseconds a job service looks at it again.
    pub next: u64,
    /// What happens to its tasks now.
    pub act: ConditionAct,
}

/// What happens to tasks that wait for a condition.
#[derive(Debug, Clone, PartialEq)]
pub enum ConditionAct {
    /// Nothing.
    Nothing,
    /// One of them, of a job that is not paused, goes back to its pipe, to test the condition.
    Canary,
    /// Up to so many of them go back to their pipes, those that have waited longest first. Those of
    /// paused jobs wait in the outbox.
    Release(u32),
    /// Up to so many of them fail, for this reason.
    Fail(u32, Box<ReportFailure>),
    /// The condition is deleted, unless tasks wait for it.
    Forget,
}

/// What a step has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stepped {
    /// The number of tasks that were let go or have failed.
    pub tasks: u64,
    /// The number of tasks that still wait.
    pub waiting: u64,
}

/// Which conditions to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionQuery {
    /// Those with this code.
    pub code: Option<String>,
    /// Those that tasks of this partition wait for.
    pub partition: Option<String>,
    /// Those that tasks of jobs with this id wait for.
    pub job: Option<String>,
    /// Those with a higher key.
    pub after: Option<ConditionKey>,
    /// The most conditions.
    pub limit: u32,
}

/// The tasks of one job that wait for one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingJob {
    /// The partition of the job.
    pub partition: PartitionId,
    /// The id of the job.
    pub job: JobId,
    /// The number of its tasks that wait for the condition.
    pub tasks: u64,
}

/// A condition for which many tasks of one pipe wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullCondition {
    /// The condition.
    pub key: ConditionKey,
    /// The pipe.
    pub pipe: String,
    /// The number of tasks.
    pub tasks: u64,
}
