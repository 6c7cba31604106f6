//! The database layer: what a store is made of, for PostgreSQL, SQLite and memory.
//!
//! The only place that knows SQL. An operation of the store is written once, over the steps of a
//! [`Transaction`] and over [`Reads`]. There are two implementations: [`sql`] for both databases,
//! and [`memory`].
//!
//! What must stay true: reads take no locks and write nothing. What holds for transactions is
//! written in `transaction`.

mod clock;
pub mod conditions;
mod error;
pub mod events;
pub mod inspect;
pub mod letters;
mod look;
pub mod memory;
pub mod memos;
mod migrations;
mod postgres;
pub mod run_tx;
pub mod shards;
mod signals;
pub mod sql;
mod sqlite;
mod transaction;
pub mod uploads;
pub mod views;

use contract::JobStatus;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::definition::PackedDefinition;
use crate::error::Availability;
pub(crate) use crate::job_row::{JobRow, JobTexts, LongText, Part};
use crate::ledger::{KeptAttempt, KeptFailure, NodeKey, NodeRow};
use crate::model::{Backlog, KeyedRequest, OutboxMessage, StuckJob, Transition};
use crate::query::JobQuery;
pub use clock::Clock;
use conditions::ConditionReads;
pub(crate) use error::DbError;
use events::EventReads;
pub use inspect::Inspect;
use letters::LetterReads;
pub use look::{Connections, DatabaseLook};
use memos::MemoReads;
pub use postgres::answers as postgres_answers;
use shards::ShardReads;
pub use signals::{JobSignal, OF_CONDITIONS, Signal, Signals, Wakes, end_of};
pub use sqlite::file_of as sqlite_file;
pub use transaction::{
    Deletion, FAILURES_OF_A_ROUND, JobSteps, KeptTimes, KeyState, LONGEST_LEASE, LedgerSteps,
    NewIncarnation, NewParts, OutboxSteps, OutputSteps, ParkingSteps, PrerequisiteSteps,
    RetentionSteps, RoundSteps, Transaction,
};
use uploads::UploadReads;
use views::TreeReads;

/// The result of a step or a read. The seam is used as trait objects, so its futures are boxed.
pub type DbFuture<'a, T> = BoxFuture<'a, Result<T, DbError>>;

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

/// A database. It may still be unavailable.
pub trait Backend:
    Reads
    + TreeReads
    + EventReads
    + LetterReads
    + ConditionReads
    + MemoReads
    + ShardReads
    + UploadReads
    + std::fmt::Debug
    + Send
    + Sync
{
    /// `postgres`, `sqlite` or `memory`.
    fn kind(&self) -> &'static str;

    /// Returns whether each statement is a round trip to a server.
    fn is_server(&self) -> bool {
        false
    }

    fn clock(&self) -> &Clock;

    fn signals(&self) -> &Signals;

    fn availability(&self) -> watch::Receiver<Availability>;

    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>>;

    /// Returns once the database has responded.
    fn ping(&self) -> DbFuture<'_, ()>;

    /// Ends background tasks and closes all connections.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Returns what measurements need; no operation does.
    fn inspect(&self) -> &dyn Inspect;
}

/// Reads outside transactions. Each sees one moment; two of them may see different ones.
pub trait Reads {
    fn job<'a>(&'a self, partition: &'a str, job: &'a str) -> DbFuture<'a, Option<JobRow>>;

    /// Returns a page of jobs.
    fn jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, Vec<JobRow>>;

    /// Returns the incarnations of the jobs of a page, in its order.
    fn job_numbers<'a>(&'a self, partition: &'a str, query: &'a JobQuery)
    -> DbFuture<'a, Vec<i64>>;

    /// Returns those of these jobs that exist, in any order.
    fn jobs_numbered<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<JobRow>>;

    /// Returns a part of each long text of these jobs.
    fn texts<'a>(
        &'a self,
        incarnations: &'a [i64],
        part: Part,
    ) -> DbFuture<'a, Vec<(i64, JobTexts)>>;

    /// Returns a part of one long text of a job; `None` if the job is gone, or has no such text.
    fn text(&self, incarnation: i64, which: LongText, part: Part) -> DbFuture<'_, Option<String>>;

    /// Returns how many jobs there are on all pages.
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64>;

    /// Returns how many jobs match a query, by the status that people are shown.
    fn count_by_status<'a>(
        &'a self,
        partition: &'a str,
        query: &'a JobQuery,
    ) -> DbFuture<'a, Vec<(JobStatus, u64)>>;

    /// Returns the partitions with jobs that follow this one, in order. Costs by their number, not
    /// by that of the jobs.
    fn partitions<'a>(&'a self, after: &'a str, limit: u32) -> DbFuture<'a, Vec<String>>;

    /// Returns jobs that wait for this one, with their statuses, in the order of their ids.
    fn dependents_of<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
        limit: u32,
    ) -> DbFuture<'a, Vec<(String, JobStatus)>>;

    fn labels<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<Label>>;

    /// Returns the first failures of these jobs, oldest first: at most `limit` of each, and fewer
    /// if they are large.
    fn failures<'a>(
        &'a self,
        incarnations: &'a [i64],
        limit: usize,
    ) -> DbFuture<'a, Vec<(i64, KeptFailure)>>;

    /// Returns the kept failures of a job that follow this time and path, oldest first.
    fn failures_after<'a>(
        &'a self,
        incarnation: i64,
        after: (i64, &'a str),
        limit: usize,
    ) -> DbFuture<'a, Vec<KeptFailure>>;

    /// Returns the number of failures of a job that are kept.
    fn failures_kept(&self, incarnation: i64) -> DbFuture<'_, i64>;

    /// Returns the failure of a task, if it is kept.
    fn failure<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, Option<KeptFailure>>;

    /// Returns transitions of a job that follow the one with this id, oldest first.
    fn history(&self, incarnation: i64, after: i64, limit: u32)
    -> DbFuture<'_, Vec<TransitionRow>>;

    /// Returns nodes in the order of their keys. A task table that has been swept has none.
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>>;

    /// Returns the pipes to which the start messages of unfinished jobs go.
    fn task_pipes(&self, limit: u32) -> DbFuture<'_, Vec<String>>;

    /// Returns the incarnation of a job and what it was created from. Both are of one moment.
    fn source<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
    ) -> DbFuture<'a, Option<(i64, PackedDefinition)>>;

    /// Returns the fingerprint of the request that has this key, the job that it created, and the
    /// digest of the job's content if the job is there.
    fn request_with_key<'a>(
        &'a self,
        partition: &'a str,
        key: &'a str,
    ) -> DbFuture<'a, Option<KeyedRequest>>;

    /// Returns the failures of one task in earlier rounds, each with its round, oldest first.
    fn past_failures<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptFailure)>>;

    /// Returns the failed attempts of a task that are kept, each with its round, oldest first.
    fn attempts<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptAttempt)>>;

    /// Returns of each of these jobs the earliest time to come at which a task of its round is due
    /// for another attempt, as far as attempts are kept.
    fn next_attempts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, i64)>>;

    /// Returns how many tasks of a job are parked.
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64>;

    /// Returns the messages that are due, oldest first, whether a relay has them or not.
    fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>>;

    /// Returns the prerequisites of each of these jobs, with the status of the job that has this
    /// id, if there is one.
    fn prerequisites<'a>(
        &'a self,
        incarnations: &'a [i64],
    ) -> DbFuture<'a, Vec<(i64, String, Option<JobStatus>)>>;

    /// Returns the name of this database among others that keep blobs in the same place.
    fn blob_owner(&self) -> DbFuture<'_, String>;

    /// Returns the bytes of all outputs that are kept.
    fn kept_bytes(&self) -> DbFuture<'_, u64>;

    /// Returns what is kept of these jobs. A job without outputs has nothing.
    fn kept<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<KeptRow>>;

    /// Returns blobs that have lines from this one on, in the order of their lines.
    fn kept_blobs(
        &self,
        incarnation: i64,
        from_line: i64,
        failed: Option<bool>,
        limit: u32,
    ) -> DbFuture<'_, Vec<KeptBlobRow>>;

    /// Returns the blobs with the last lines, in the order of their lines.
    fn last_kept_blobs(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<KeptBlobRow>>;

    /// Returns bitmaps of tasks that have outputs.
    fn kept_tasks<'a>(
        &'a self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>>;

    /// Returns incarnations whose blobs are to be deleted: their job is gone, or their outputs are
    /// removed.
    fn doomed_outputs(&self, limit: u32) -> DbFuture<'_, Vec<i64>>;

    /// Returns what waits in the store.
    fn backlog(&self) -> DbFuture<'_, Backlog>;

    /// Returns jobs that have started and not ended, and that have not changed for this many
    /// milliseconds.
    fn stuck_jobs(&self, idle: u64, limit: u32) -> DbFuture<'_, Vec<StuckJob>>;

    /// Returns those of these jobs that have messages in the outbox.
    fn unsent_starts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<UnsentStart>>;
}
