//! The part of the seam that decides when jobs start: the outbox with its due times and leases, and who waits for whom.
//!
//! What must stay true of every implementation:
//! - Times are counted by the database's clock, so that it does not matter which process asks.
//! - A message is given to one relay at a time, until its lease ends.
//! - What a job waits for is written by whoever holds the lock of that job.

use contract::{JobStatus, ReportFailure};

use super::{DbFuture, JobRow};
use crate::ledger::KeptFailure;
use crate::{OutboxMessage, Transition};

/// A partition and a job id.
pub type JobKey = (String, String);

/// A job waits for another one, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub partition: String,
    pub job: String,
    pub incarnation: i64,
    pub prerequisite: String,
}

/// When a message may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DueTime {
    /// Milliseconds from now; not known before the prerequisites are complete.
    pub after: Option<u64>,
    pub suspended: bool,
}

/// Where the start message of a job is that has not left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsentStart {
    pub incarnation: i64,
    pub due_time: Option<i64>,
    pub suspended: bool,
}

/// What is read without a transaction.
pub trait SchedulingReads {
    /// The messages that are due, oldest first, whoever has them.
    fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>>;
    /// For each of these jobs what it waits for, with the status of the job that has this id.
    fn prerequisites<'a>(
        &'a self,
        incarnations: &'a [i64],
    ) -> DbFuture<'a, Vec<(i64, String, Option<JobStatus>)>>;
    /// Those of these jobs that have messages in the outbox.
    fn unsent_starts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<UnsentStart>>;
}

pub trait Scheduling: Send {
    /// Keeps creations in a partition in order until the end of the transaction. Those that share wait only for those that do not.
    fn lock_creations<'a>(&'a mut self, partition: &'a str, shared: bool) -> DbFuture<'a, ()>;

    fn push_outbox<'a>(
        &'a mut self,
        incarnation: i64,
        pipe: &'a str,
        body: &'a [u8],
        due: DueTime,
    ) -> DbFuture<'a, ()>;
    /// Leases the oldest messages that are due, for so many milliseconds.
    fn claim_outbox(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<OutboxMessage>>;
    /// In how many milliseconds a message is to be claimed; `None` when all that there are wait for something else than time.
    fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>>;
    /// Each of these messages is leased for so many milliseconds from now, and no longer.
    fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()>;
    fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()>;
    /// Messages of a paused job are not handed out.
    fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()>;
    /// Messages of this partition are no longer suspended; answers of how many jobs there were some.
    fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64>;

    fn insert_prerequisites<'a>(
        &'a mut self,
        job: &'a JobRow,
        prerequisites: &'a [String],
    ) -> DbFuture<'a, ()>;
    /// Who waits for these jobs; `all` = also who waits for those, and so on.
    fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Wait>>;
    /// What these jobs of a partition wait for, and what those wait for, and so on: (job, prerequisite).
    fn prerequisite_edges<'a>(
        &'a mut self,
        partition: &'a str,
        jobs: &'a [String],
    ) -> DbFuture<'a, Vec<(String, String)>>;
    /// Nobody waits for the `completed` jobs any more; those `waiting` that now wait for nobody are due after their delay.
    fn release<'a>(&'a mut self, completed: &'a [JobKey], waiting: &'a [i64]) -> DbFuture<'a, ()>;
    /// These jobs are not started and wait for nobody.
    fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()>;

    /// The failure of a job that was kept first.
    fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>>;
    /// Saves what the end of jobs changes that never ran.
    fn save_ended<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()>;
    fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()>;
    fn insert_failures<'a>(&'a mut self, failures: &'a [(i64, KeptFailure)]) -> DbFuture<'a, ()>;
}
