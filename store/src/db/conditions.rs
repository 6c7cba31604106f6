//! The steps on conditions and on the tasks that wait for them, and the reads of them.

use std::collections::BTreeMap;

use contract::{Condition, ConditionKey};

use super::{DbFuture, JobKey};
use crate::condition::{
    ClaimedCondition, ConditionPhase, ConditionQuery, ConditionRow, FullCondition, Heard,
    WaitingJob,
};
use crate::model::{Headers, ParkedTask};
use crate::waits::JobWaits;

/// By what a task that waits is known: its path and the identity of its message.
pub type BlockKey = (String, Vec<u8>);

/// What is known of a task that waits or was let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    pub path: String,
    pub identity: Vec<u8>,
    pub round: u32,
    pub number: u32,
    pub condition: String,
    pub state: BlockState,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// It waits in the store.
    Waiting,
    /// It was let go to test its condition.
    Canary,
    /// It was let go because its condition has passed.
    Released,
}

impl BlockState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Canary => "canary",
            Self::Released => "released",
        }
    }

    pub fn from_name(name: &str) -> Self {
        match name {
            "waiting" => Self::Waiting,
            "canary" => Self::Canary,
            _ => Self::Released,
        }
    }
}

/// A task that waits, and its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTask {
    pub id: i64,
    pub job: JobKey,
    pub incarnation: i64,
    pub path: String,
}

/// How a condition changes by a step.
#[derive(Debug, Clone, Copy)]
pub struct ConditionChange<'a> {
    pub phase: ConditionPhase,
    pub tests: u32,
    pub restarts: bool,
    pub result: Option<&'a str>,
    pub pace: u32,
    /// Milliseconds from now.
    pub next: u64,
}

/// Steps on conditions and on the tasks that wait for them. A transaction that changes tasks holds
/// the lock of their job, and takes it before those of conditions, which it takes in the order of
/// their keys.
pub trait ConditionSteps {
    /// Adds a condition that is looked at after so many milliseconds, if it is not there. Locks it.
    fn meet_condition<'a>(
        &'a mut self,
        key: &'a ConditionKey,
        condition: &'a Condition,
        next: u64,
    ) -> DbFuture<'a, ()>;

    /// Returns those of these conditions that are there, by their keys.
    fn known_conditions<'a>(&'a mut self, keys: &'a [String]) -> DbFuture<'a, Vec<String>>;

    /// Returns how many conditions there are besides this one.
    fn count_conditions<'a>(&'a mut self, besides: &'a ConditionKey) -> DbFuture<'a, u64>;

    /// Notes what a task has done that was let go, and makes the condition due.
    fn hear_of_condition<'a>(&'a mut self, key: &'a str, heard: Heard) -> DbFuture<'a, ()>;

    /// Returns what is known of these tasks of a locked job.
    fn blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>>;

    /// Makes tasks of a locked job wait, each with its message. Their conditions must be locked.
    fn block<'a>(
        &'a mut self,
        incarnation: i64,
        tasks: &'a [(BlockRow, &'a ParkedTask)],
    ) -> DbFuture<'a, ()>;

    /// Deletes what is known of these tasks of a locked job, and returns it.
    fn forget_blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>>;

    /// Deletes some of what is known of the tasks of a locked job, and returns it.
    fn drop_blocks(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<BlockRow>>;

    /// Makes the conditions due that wait for a canary and for which tasks of this job wait.
    fn wake_canaries(&mut self, incarnation: i64) -> DbFuture<'_, u64>;

    /// Returns the keys of the conditions that tasks of this locked job test as their canaries, in
    /// their order.
    fn tested_by(&mut self, incarnation: i64) -> DbFuture<'_, Vec<String>>;

    /// Claims the condition that is overdue the longest, for `lease` milliseconds.
    fn claim_condition(&mut self, lease: u64) -> DbFuture<'_, Option<ClaimedCondition>>;

    /// Brings back the times and leases that are further away than they can be, because the clock
    /// was set back. Returns how many conditions it concerns.
    fn bring_conditions_back(&mut self) -> DbFuture<'_, u64>;

    /// Returns the milliseconds until a condition can be claimed.
    fn next_condition(&mut self) -> DbFuture<'_, Option<u64>>;

    /// Returns tasks that wait for a condition, those that have waited longest first; with `active`
    /// those of jobs that are neither paused nor over. Leaves out those of jobs that other
    /// transactions have locked.
    fn waiting_tasks<'a>(
        &'a mut self,
        key: &'a str,
        active: bool,
        limit: u32,
    ) -> DbFuture<'a, Vec<WaitingTask>>;

    /// Locks a condition. Returns false if this claim on it counts no more.
    fn hold_condition<'a>(&'a mut self, key: &'a str, lease: i64) -> DbFuture<'a, bool>;

    /// Lets those of these tasks go that belong to this locked job and still wait for the
    /// condition: their messages move to the outbox, where they wait if `paused`. Returns how many.
    fn let_go<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
        to: BlockState,
        paused: bool,
    ) -> DbFuture<'a, u64>;

    /// Returns the paths of those of these tasks that belong to this locked job and still wait for
    /// the condition, each once, with the headers of a message of it.
    fn still_waiting<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
    ) -> DbFuture<'a, BTreeMap<String, Headers>>;

    /// Changes a condition that is held, and ends the claim. If anything was heard since the claim,
    /// it is due at once.
    fn change_condition<'a>(
        &'a mut self,
        row: &'a ConditionRow,
        change: ConditionChange<'a>,
    ) -> DbFuture<'a, ()>;

    /// Deletes a condition that is held, unless tasks wait for it. Returns whether it is gone.
    fn forget_condition<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, bool>;

    /// Returns how many tasks wait for a condition.
    fn count_waiting<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, u64>;

    /// Puts a condition into this phase and makes it due. Claims on it count no more. Returns false
    /// if there is none.
    fn command_condition<'a>(
        &'a mut self,
        key: &'a str,
        phase: ConditionPhase,
    ) -> DbFuture<'a, bool>;
}

/// Reads of conditions and of the tasks that wait for them, outside transactions.
pub trait ConditionReads {
    /// Returns conditions in the order of their keys.
    fn conditions<'a>(&'a self, query: &'a ConditionQuery) -> DbFuture<'a, Vec<ConditionRow>>;

    fn condition<'a>(&'a self, key: &'a str) -> DbFuture<'a, Option<ConditionRow>>;

    /// Returns the jobs with the most tasks that wait for a condition.
    fn waiting_jobs<'a>(&'a self, key: &'a str, limit: u32) -> DbFuture<'a, Vec<WaitingJob>>;

    /// Returns for which conditions tasks of a job wait, and how many for each, most first.
    fn blocked_by(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<(String, u64)>>;

    /// Returns what is known of the tasks of these jobs that wait or were let go, without counting
    /// those that wait.
    fn job_waits<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<JobWaits>>;

    /// Returns the conditions for which at least so many tasks of one pipe wait.
    fn full_conditions(&self, tasks: u64, limit: u32) -> DbFuture<'_, Vec<FullCondition>>;
}
