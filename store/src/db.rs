//! The seam below the store: what a database must be able to do, in the words of the domain.
//!
//! An operation of the store is written once, over [`Transaction`]; PostgreSQL, SQLite and memory each implement these
//! small steps. Reads go through [`Backend`]: they take no locks and write nothing.
//!
//! What must stay true of every implementation:
//! - A transaction that is dropped without a commit leaves nothing behind.
//! - [`Transaction::lock_jobs`] takes the writer locks in (partition, job) order, and whoever writes a job holds its lock.
//! - A signal is heard after the commit of what it is about, in every process, and at least once after trouble.

mod error;
pub(crate) mod memory;
pub(crate) mod postgres;
pub(crate) mod run_tx;
pub(crate) mod samples;
pub mod scheduling;
pub(crate) mod sql;
pub(crate) mod sqlite;

use std::collections::{BTreeMap, HashMap};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use crate::job_row::JobRow;
use crate::ledger::{KeptFailure, NodeChanges, NodeKey, NodeRow};
use crate::{Availability, CatalogueSize, JobQuery, ParkedTask, TaskTableSize, Transition};
pub(crate) use error::DbError;
use scheduling::{Scheduling, SchedulingReads};

pub type DbFuture<'a, T> = BoxFuture<'a, Result<T, DbError>>;

/// A label of the job with this incarnation.
pub type Label = (i64, String, Option<String>);

pub trait Backend: SchedulingReads + std::fmt::Debug + Send + Sync {
    fn kind(&self) -> &'static str;
    fn clock(&self) -> &Clock;
    fn signals(&self) -> &Signals;
    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>>;
    /// How the database is. What is in this process is always there.
    fn availability(&self) -> watch::Receiver<Availability> {
        watch::Sender::new(Availability::Available).subscribe()
    }
    fn ping(&self) -> DbFuture<'_, ()>;
    fn close(&self) -> BoxFuture<'_, ()>;

    fn job<'a>(&'a self, partition: &'a str, job: &'a str) -> DbFuture<'a, Option<JobRow>>;
    fn jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, Vec<JobRow>>;
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64>;
    fn labels<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<Label>>;
    /// The failures of these jobs that are kept in full, oldest first.
    fn failures<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, KeptFailure)>>;
    fn history(&self, incarnation: i64) -> DbFuture<'_, Vec<Transition>>;
    /// None where the table of tasks is gone.
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>>;
    /// How many tasks of this job are stowed.
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64>;
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize>;
    fn catalogue_size(&self) -> DbFuture<'_, CatalogueSize>;
    /// Does now what the database would do in its own time after a bulk insertion.
    fn tidy(&self) -> DbFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

pub trait Transaction: Scheduling + Send {
    /// Locks these jobs, in (partition, job) order, and answers those that exist.
    fn lock_jobs<'a>(&'a mut self, keys: &'a [(String, String)]) -> DbFuture<'a, Vec<JobRow>>;
    /// Answers the number of the new life, or `None` when there is a job with this id.
    fn insert_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, Option<i64>>;
    /// Saves what may change of a job.
    fn save_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, ()>;
    /// Removes a job with its labels, failures, history and unsent messages.
    fn delete_job(&mut self, incarnation: i64) -> DbFuture<'_, ()>;
    fn insert_labels<'a>(
        &'a mut self,
        incarnation: i64,
        labels: &'a BTreeMap<String, Option<String>>,
    ) -> DbFuture<'a, ()>;
    /// Adds jobs as [`Store::add_sample_jobs`](crate::Store::add_sample_jobs) tells.
    fn insert_samples<'a>(&'a mut self, partition: &'a str, count: u32) -> DbFuture<'a, ()>;
    fn append_history<'a>(
        &'a mut self,
        incarnation: i64,
        transition: &'a Transition,
    ) -> DbFuture<'a, ()>;

    fn has_past_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
    ) -> DbFuture<'a, bool>;
    /// It has turned out that this is not the first life of its id.
    fn mark_recreated(&mut self, incarnation: i64) -> DbFuture<'_, ()>;
    fn remember_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
        incarnation: i64,
    ) -> DbFuture<'a, ()>;
    /// Forgets some of the lives that ended longer ago than this, in milliseconds.
    fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()>;

    /// Stows tasks of locked jobs, each with its incarnation.
    fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a ParkedTask)]) -> DbFuture<'a, ()>;
    /// Lists a job that has stowed tasks as one whose tasks are to go; false when there are none, or when it is listed.
    fn mark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, bool>;
    fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()>;
    /// A listed job, not locked: its partition, id and incarnation.
    fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>>;
    /// Moves the oldest stowed tasks of a locked job to the outbox; answers how many.
    fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64>;
    /// Drops the oldest stowed tasks of a locked job; answers how many.
    fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64>;

    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()>;
    /// Locks and reads rows of a task table, in the order of their keys.
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>>;
    fn change_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        changes: &'a NodeChanges,
    ) -> DbFuture<'a, ()>;
    /// The failures that are kept in full, with their kinds.
    fn kept_failures(&mut self, incarnation: i64) -> DbFuture<'_, HashMap<String, String>>;
    fn change_failures<'a>(
        &'a mut self,
        incarnation: i64,
        new: &'a [KeptFailure],
        gone: &'a [String],
    ) -> DbFuture<'a, ()>;

    /// Lists a task table for dropping, this many milliseconds from now at the latest.
    fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()>;
    /// Some task tables that are to be dropped now. No other transaction is given them.
    fn due_tables(&mut self, limit: u32) -> DbFuture<'_, Vec<i64>>;
    /// Drops a task table and strikes it off the list. False when it was gone.
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool>;
    /// Some jobs (partition, job, time) whose time is over, the longest overdue first.
    fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>>;
    /// How many milliseconds from now there is something for the sweeper.
    fn next_due(&mut self, lives_kept: u64) -> DbFuture<'_, Option<u64>>;

    /// Wakes whoever waits for this, once the transaction is committed.
    fn notify(&mut self, signal: Signal);
    fn commit(self: Box<Self>) -> DbFuture<'static, ()>;
    fn rollback(self: Box<Self>) -> DbFuture<'static, ()>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Jobs have changed.
    Jobs,
    Outbox,
    Sweep,
    /// Stowed tasks have somewhere to go.
    Unpark,
}

impl Signal {
    pub const ALL: [Self; 4] = [Self::Jobs, Self::Outbox, Self::Sweep, Self::Unpark];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Outbox => "outbox",
            Self::Sweep => "sweep",
            Self::Unpark => "unstow",
        }
    }
}

/// Who waits in this process.
#[derive(Debug)]
pub struct Signals {
    jobs: watch::Sender<u64>,
    outbox: watch::Sender<u64>,
    sweep: watch::Sender<u64>,
    unpark: watch::Sender<u64>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            jobs: watch::Sender::new(0),
            outbox: watch::Sender::new(0),
            sweep: watch::Sender::new(0),
            unpark: watch::Sender::new(0),
        }
    }
}

impl Signals {
    fn sender(&self, signal: Signal) -> &watch::Sender<u64> {
        match signal {
            Signal::Jobs => &self.jobs,
            Signal::Outbox => &self.outbox,
            Signal::Sweep => &self.sweep,
            Signal::Unpark => &self.unpark,
        }
    }

    pub fn wake(&self, signal: Signal) {
        self.sender(signal).send_modify(|count| *count += 1);
    }

    pub fn receiver(&self, signal: Signal) -> watch::Receiver<u64> {
        let mut receiver = self.sender(signal).subscribe();
        receiver.mark_changed();
        receiver
    }
}

/// Milliseconds since 1970.
#[derive(Debug)]
pub enum Clock {
    System,
    /// Goes with tokio's clock, and so stands still where that is paused.
    Tokio {
        origin: i64,
        start: Instant,
    },
}

impl Clock {
    pub fn tokio() -> Self {
        Self::Tokio {
            origin: system_now(),
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> i64 {
        match self {
            Self::System => system_now(),
            Self::Tokio { origin, start } => {
                origin + i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX / 2)
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
fn system_now() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
