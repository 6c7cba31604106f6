//! The database layer: what a store is made of, for PostgreSQL and SQLite.
//!
//! The only place that knows SQL. An operation of the store calls the functions of [`sql`] with a
//! session of a [`Database`]: one for a read, or that of a transaction ([`run_tx`]).
//!
//! What must stay true:
//! - Reads take no locks and write nothing.
//! - A transaction that is dropped without a commit leaves nothing behind.
//! - [`sql::jobs::lock`] locks in (partition, job) order, and a transaction that writes a job holds
//!   its lock.
//! - A signal wakes its receivers after the commit, in every process. After a lost connection,
//!   every signal wakes once.
//! - Due times are counted by the database's clock, so that it does not matter which process asks.

mod clock;
mod database;
mod error;
mod faults;
mod look;
mod migrations;
mod postgres;
pub mod run_tx;
mod signals;
pub mod sql;
mod sqlite;

use std::time::Duration;

use contract::JobId;

use crate::definition::PackedDefinition;
pub(crate) use crate::job_row::{JobRow, JobTexts, LongText, Part};
use crate::model::Transition;
pub use clock::Clock;
pub use database::Database;
pub(crate) use error::{DbError, Result};
#[cfg(any(test, feature = "internals"))]
pub use faults::FaultPoint;
pub use look::{Connections, DatabaseLook};
pub use postgres::answers as postgres_answers;
pub use signals::{JobSignal, OF_CONDITIONS, Signal, Signals, Wakes, end_of};
pub use sqlite::file_of as sqlite_file;

/// A partition and a job id.
pub type JobKey = (String, String);

/// A label of the job with this incarnation: its name and its value.
pub type Label = (i64, String, Option<String>);

/// A job waits for another one, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub partition: String,
    /// The job that waits.
    pub job: String,
    pub incarnation: i64,
    /// The job that it waits for.
    pub prerequisite: String,
}

/// When a message may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DueTime {
    /// Milliseconds from now; not known before the prerequisites are complete.
    pub after: Option<u64>,
    /// Whether the partition of the job is suspended.
    pub suspended: bool,
}

/// A transition of a job, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionRow {
    pub id: i64,
    pub transition: Transition,
    /// How many transitions after this one were deleted.
    pub left_out: i64,
}

/// The start message of a job that is still in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsentStart {
    pub incarnation: i64,
    pub due_time: Option<i64>,
    pub suspended: bool,
}

/// What is kept of the outputs of a job, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptRow {
    pub incarnation: i64,
    /// The number of the next line.
    pub lines: i64,
    pub bytes: i64,
    pub done: i64,
    pub failed: i64,
    pub not_kept: i64,
    /// Why some are not kept.
    pub reason: Option<String>,
    /// Why some wait to be kept.
    pub waiting: Option<String>,
    pub removed_time: Option<i64>,
    /// A blob that was found to be not as it was written.
    pub damaged: Option<String>,
}

/// A blob with lines of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBlobRow {
    pub incarnation: i64,
    pub first_line: i64,
    pub lines: i64,
    pub bytes: i64,
    pub failed: bool,
    pub name: String,
    pub time: i64,
    pub crc32: i64,
}

/// Bitmaps of the subtasks of a split that have outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTaskRow {
    pub path: String,
    pub chunk: i32,
    pub done: Vec<u8>,
    pub failed: Vec<u8>,
}

/// A new incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewIncarnation {
    pub number: i64,
    /// Whether the store remembers no deleted job with its id. The insertion may have waited for a
    /// deletion that this does not show.
    pub first_life: bool,
}

/// What is written with a new job, beside its row.
#[derive(Debug, Clone)]
pub struct NewParts {
    pub job: JobRow,
    /// The first row of its history.
    pub step: Transition,
    /// The body of its start message.
    pub start: Vec<u8>,
    pub due: DueTime,
    pub definition: PackedDefinition,
}

/// Who deletes a job, and why, as its event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion<'a> {
    /// The actor, as in the history of jobs.
    pub actor: &'a str,
    pub reason: &'a str,
    /// The correlation id of the request that deletes it.
    pub correlation_id: Option<&'a str>,
}

/// What has become of a key that a request was to be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyState {
    /// The request has it.
    Given,
    /// Another request with this fingerprint has it, which created this job.
    Taken(Vec<u8>, JobId),
    /// Another request had it, and it was forgotten in this moment.
    Lost,
}

/// The longest lease. A relay that needs a message longer renews its lease.
pub const LONGEST_LEASE: Duration = Duration::from_mins(1);

/// Returns a span of time in milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// How long things are kept, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct KeptTimes {
    pub past_incarnations: u64,
    pub request_keys: u64,
    pub events: u64,
    pub letters: u64,
}

/// The number of failures of an earlier round that are kept.
pub const FAILURES_OF_A_ROUND: u32 = 1000;
