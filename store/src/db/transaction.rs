//! The steps of a transaction, by the tables that they are about.
//!
//! What must stay true of every implementation:
//! - A transaction that is dropped without a commit leaves nothing behind.
//! - [`JobSteps::lock_jobs`] locks in (partition, job) order, and a transaction that writes a job
//!   holds its lock.
//! - A signal wakes its receivers after the commit, in every process. After a lost connection,
//!   every signal wakes once.
//! - Due times are counted by the database's clock, so that it does not matter which process asks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use contract::{JobId, ReportFailure};

use super::conditions::ConditionSteps;
use super::letters::LetterSteps;
use super::memos::MemoSteps;
use super::shards::ShardSteps;
use super::uploads::UploadSteps;
use super::{
    DbFuture, Dependency, DueTime, JobKey, JobRow, JobTexts, KeptBlobRow, KeptRow, KeptTaskRow,
    Signal,
};
use crate::definition::PackedDefinition;
use crate::ledger::{KeptAttempt, KeptFailure, NodeChanges, NodeKey, NodeRow};
use crate::model::{Announcement, Headers, OutboxMessage, ParkedTask, RequestKey, Transition};

/// A transaction that has begun.
pub trait Transaction:
    JobSteps
    + ConditionSteps
    + LedgerSteps
    + LetterSteps
    + MemoSteps
    + OutboxSteps
    + OutputSteps
    + PrerequisiteSteps
    + ParkingSteps
    + RetentionSteps
    + RoundSteps
    + ShardSteps
    + UploadSteps
    + Send
{
    /// Wakes the receivers of this signal once the transaction is committed.
    fn notify(&mut self, signal: Signal);

    /// Wakes those who watch this job once the transaction is committed.
    fn notify_job(&mut self, partition: &str, job: &str);

    /// Wakes those who watch any job once the transaction is committed.
    fn notify_any_job(&mut self);

    /// Commits, then wakes.
    fn commit(self: Box<Self>) -> DbFuture<'static, ()>;

    /// Rolls back and gives the connection back at once.
    fn rollback(self: Box<Self>) -> DbFuture<'static, ()>;
}

/// Steps on jobs and on what belongs to them.
pub trait JobSteps {
    /// Locks the creation of jobs in a partition until the end of the transaction. Transactions
    /// that hold the lock `shared` do not wait for each other; an exclusive one waits for all.
    fn lock_creations<'a>(&'a mut self, partition: &'a str, shared: bool) -> DbFuture<'a, ()>;

    /// Locks these jobs in (partition, job) order, and returns those that exist.
    fn lock_jobs<'a>(&'a mut self, keys: &'a [JobKey]) -> DbFuture<'a, Vec<JobRow>>;

    /// Locks those of these jobs that no other transaction has locked, without waiting for any.
    /// Returns them, and the keys of those that others have locked. Where a transaction has all
    /// locks from its beginning, it gets all jobs.
    fn lock_free_jobs<'a>(
        &'a mut self,
        keys: &'a [JobKey],
    ) -> DbFuture<'a, (Vec<JobRow>, Vec<JobKey>)>;

    /// Inserts jobs with different ids, in (partition, job) order. Returns for each the new
    /// incarnation, or `None` if there is a job with this id. The statement and not the row tells
    /// whether a job is the first one with its id. Holds the locks of creations, shared.
    fn insert_jobs<'a>(
        &'a mut self,
        jobs: &'a [(JobRow, JobTexts)],
    ) -> DbFuture<'a, Vec<Option<NewIncarnation>>>;

    /// Inserts what belongs to new jobs, in one go. Returns for each whether the store remembers a
    /// deleted job with this id.
    fn insert_parts(&mut self, parts: Vec<NewParts>) -> DbFuture<'_, Vec<bool>>;

    /// Saves the fields of jobs that may change.
    fn save_jobs<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()>;

    /// Saves the fields of a job that may change.
    fn save_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, ()> {
        self.save_jobs(std::slice::from_ref(job))
    }

    /// Deletes a job with its labels, failures, history, parked tasks and unsent messages, and
    /// completes the event of it.
    fn delete_job<'a>(
        &'a mut self,
        key: &'a JobKey,
        incarnation: i64,
        why: Deletion<'a>,
    ) -> DbFuture<'a, ()>;

    /// Adds the labels of new jobs.
    fn insert_labels<'a>(
        &'a mut self,
        of: &'a [(i64, &'a BTreeMap<String, Option<String>>)],
    ) -> DbFuture<'a, ()>;

    /// Adds a transition to the history of a job.
    fn append_history<'a>(
        &'a mut self,
        incarnation: i64,
        transition: &'a Transition,
    ) -> DbFuture<'a, ()>;

    /// Deletes all transitions of a job but the first one and the latest `keep`, and counts them in
    /// the first.
    fn shorten_history(&mut self, incarnation: i64, keep: u32) -> DbFuture<'_, ()>;

    /// Adds transitions to the histories of many jobs.
    fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()>;

    /// Gives a key to the request that creates this job. If the partition has the key already,
    /// changes nothing and returns what the key belongs to. Waits for the end of another
    /// transaction that gives the same key.
    fn give_key<'a>(
        &'a mut self,
        partition: &'a str,
        key: &'a RequestKey,
        job: &'a str,
    ) -> DbFuture<'a, KeyState>;

    /// Remembers an incarnation that is being deleted.
    fn remember_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
        incarnation: i64,
    ) -> DbFuture<'a, ()>;
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

/// Steps on the task table of a job, and on its failures.
pub trait LedgerSteps {
    /// Creates the task table of a job.
    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()>;

    /// Locks and reads nodes, in the order of their keys.
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>>;

    /// Writes and deletes nodes.
    fn change_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        changes: &'a NodeChanges,
    ) -> DbFuture<'a, ()>;

    /// Returns the kinds of the failures of these tasks, by path, as far as they are kept.
    fn failure_kinds<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, HashMap<String, String>>;

    /// Returns the failure of a job that happened first, of those that are kept.
    fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>>;

    /// Adds or replaces the `new` failures and deletes those at the paths that are `gone`.
    fn change_failures<'a>(
        &'a mut self,
        incarnation: i64,
        new: &'a [KeptFailure],
        gone: &'a [String],
    ) -> DbFuture<'a, ()>;

    /// Returns the points of the curve of a job.
    fn curve(&mut self, incarnation: i64) -> DbFuture<'_, Option<String>>;

    /// Appends points to the curve of a job.
    fn extend_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()>;

    /// Replaces the points of the curve of a job.
    fn replace_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()>;

    /// Adds failures of many jobs. A failure whose path is there already is left out.
    fn insert_failures<'a>(&'a mut self, failures: &'a [(i64, KeptFailure)]) -> DbFuture<'a, ()>;

    /// Adds failed attempts of a round of a job. One that is there already stays as it is.
    fn insert_attempts<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        attempts: &'a [KeptAttempt],
    ) -> DbFuture<'a, ()>;
}

/// The longest lease. A relay that needs a message longer renews its lease.
pub const LONGEST_LEASE: Duration = Duration::from_mins(1);

/// Steps on the messages for the broker. A message belongs to one relay at a time, until its lease
/// ends.
pub trait OutboxSteps {
    /// Adds a message of a job, or of none.
    fn push_outbox<'a>(
        &'a mut self,
        incarnation: Option<i64>,
        pipe: &'a str,
        body: &'a [u8],
        headers: &'a Headers,
        due: DueTime,
    ) -> DbFuture<'a, ()>;

    /// Leases the oldest messages that are due, for `lease` milliseconds, and returns them. Stops
    /// after the message with which the bodies have at least this number of `bytes`.
    fn claim_outbox(
        &mut self,
        limit: u32,
        bytes: u64,
        lease: u64,
    ) -> DbFuture<'_, Vec<OutboxMessage>>;

    /// Returns the milliseconds until a message can be claimed; `None` if all messages wait for
    /// something other than time.
    fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>>;

    /// Adds an announcement of each of these jobs, given as `partition:job`. It is no message of
    /// the job: nothing holds it back or deletes it with the job.
    fn push_announcements<'a>(&'a mut self, jobs: &'a [String]) -> DbFuture<'a, ()>;

    /// Leases the oldest announcements for `lease` milliseconds, and returns them.
    fn claim_announcements(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<Announcement>>;

    /// Returns the milliseconds until an announcement can be claimed; `None` if there is none.
    fn announcements_due(&mut self) -> DbFuture<'_, Option<u64>>;

    /// Sets the leases of messages and announcements: pairs of an id and the milliseconds from now.
    fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()>;

    /// Brings back the due times and leases that are further away than they can be, because the
    /// clock was set back. Returns how many messages it concerns.
    fn bring_outbox_back(&mut self) -> DbFuture<'_, u64>;

    /// Deletes messages and announcements that the broker has.
    fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()>;

    /// Holds the messages of a job back, or lets them be claimed again.
    fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()>;

    /// Ends the suspension of the messages of a partition. Returns how many jobs had some.
    fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64>;
}

/// Steps on what jobs wait for. A transaction that writes the prerequisites of a job holds its
/// lock.
pub trait PrerequisiteSteps {
    /// Adds the prerequisites of a new job.
    fn insert_prerequisites<'a>(
        &'a mut self,
        job: &'a JobRow,
        prerequisites: &'a [String],
    ) -> DbFuture<'a, ()>;

    /// Returns the jobs that wait for these jobs; with `all` also the jobs that wait for those, and
    /// so on.
    fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Dependency>>;

    /// Returns the pairs (job, prerequisite) that lead up from these jobs of a partition, over any
    /// number of steps.
    fn prerequisite_edges<'a>(
        &'a mut self,
        partition: &'a str,
        jobs: &'a [String],
    ) -> DbFuture<'a, Vec<(String, String)>>;

    /// Deletes the `completed` jobs as prerequisites. Those of the `waiting` jobs that have none
    /// left become due after their delay.
    fn release<'a>(&'a mut self, completed: &'a [JobKey], waiting: &'a [i64]) -> DbFuture<'a, ()>;

    /// Deletes the messages and the prerequisites of jobs that never start.
    fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()>;
}

/// Steps on the tasks of paused jobs.
pub trait ParkingSteps {
    /// Parks tasks of locked jobs, each with the incarnation of its job.
    fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a ParkedTask)]) -> DbFuture<'a, ()>;

    /// Marks those of these jobs whose parked tasks are to leave: those that have some, or `always`
    /// all. Returns false if there are none that were not marked.
    fn mark_for_unparking<'a>(
        &'a mut self,
        incarnations: &'a [i64],
        always: bool,
    ) -> DbFuture<'a, bool>;

    /// Removes the mark.
    fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()>;

    /// Returns the partition, id and incarnation of a marked job: of one that no other transaction
    /// has locked, if there is one.
    fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>>;

    /// Moves the oldest parked tasks of a locked job to the outbox. Returns how many.
    fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64>;

    /// Deletes the oldest parked tasks of a locked job. Returns how many.
    fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64>;
}

/// Steps on the outputs that are kept.
pub trait OutputSteps {
    /// Locks and reads the sums of a job.
    fn lock_kept(&mut self, incarnation: i64) -> DbFuture<'_, Option<KeptRow>>;

    /// Writes the sums of a job.
    fn save_kept<'a>(&'a mut self, kept: &'a KeptRow) -> DbFuture<'a, ()>;

    /// Locks and reads bitmaps of tasks, in the order of their keys.
    fn load_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>>;

    /// Writes bitmaps of tasks.
    fn save_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        rows: &'a [KeptTaskRow],
    ) -> DbFuture<'a, ()>;

    /// Adds blobs to the manifest.
    fn insert_kept_blobs<'a>(&'a mut self, blobs: &'a [KeptBlobRow]) -> DbFuture<'a, ()>;

    /// Removes the blobs that begin with one of these lines from the manifest, and returns them in
    /// the order of their lines.
    fn take_kept_blobs(
        &mut self,
        incarnation: i64,
        lines: Range<i64>,
    ) -> DbFuture<'_, Vec<KeptBlobRow>>;

    /// Marks as removed what is kept of jobs that have ended this many milliseconds ago. Returns
    /// how many jobs that concerns.
    fn expire_kept(&mut self, keep: u64) -> DbFuture<'_, u64>;

    /// Deletes up to `limit` rows of each table. Returns whether none are left; then the sums are
    /// deleted, too, or have no bytes any more if the job is there.
    fn forget_kept(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, bool>;
}

/// How long things are kept, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct KeptTimes {
    pub past_incarnations: u64,
    pub request_keys: u64,
    pub events: u64,
    pub letters: u64,
}

/// Steps of the sweeper.
pub trait RetentionSteps {
    /// Lists a task table to be dropped after `delay` milliseconds. If it is listed already, the
    /// earlier time counts.
    fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()>;

    /// Keeps the sweeper from dropping a listed task table until this transaction ends. Returns
    /// false if the table is not listed any more, or is being dropped.
    fn hold_retired_table(&mut self, incarnation: i64) -> DbFuture<'_, bool>;

    /// Returns some task tables that are due for dropping, or that are more than `most` and due the
    /// soonest, and that nobody reads. No other transaction gets them.
    fn due_tables(&mut self, limit: u32, most: u32) -> DbFuture<'_, Vec<i64>>;

    /// Drops a task table and takes it off the list. Returns false if it did not exist.
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool>;

    /// Returns some jobs (partition, id, expiry time) that have expired and no other transaction
    /// has locked, the longest overdue first.
    fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>>;

    /// Forgets some of the incarnations that were deleted more than this many milliseconds ago.
    fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()>;

    /// Forgets some of the keys that requests got more than this many milliseconds ago.
    fn forget_keys(&mut self, older_than: u64) -> DbFuture<'_, ()>;

    /// Deletes events, the oldest first: some of those that are older than this many milliseconds,
    /// or more than `most`. Returns whether there may be more of them.
    fn sweep_events(&mut self, older_than: u64, most: u64) -> DbFuture<'_, bool>;

    /// Returns the milliseconds until something can be removed.
    fn next_due(&mut self, kept: KeptTimes) -> DbFuture<'_, Option<u64>>;
}

/// The number of failures of an earlier round that are kept.
pub const FAILURES_OF_A_ROUND: u32 = 1000;

/// Steps on what jobs were created from, and on what a new round changes. A transaction that begins
/// a round holds the lock of the job.
pub trait RoundSteps {
    /// Returns what a job was created from.
    fn definition(&mut self, incarnation: i64) -> DbFuture<'_, PackedDefinition>;

    /// Notes which of the jobs that have `ended` have an unsent message, and, as pairs, the jobs
    /// that end with another one.
    fn note_unstarted<'a>(
        &'a mut self,
        ended: &'a [i64],
        fell_with: &'a [(i64, i64)],
    ) -> DbFuture<'a, ()>;

    /// Returns whether a job ended before its start message was sent.
    fn is_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, bool>;

    /// Forgets that a job ended before its start message was sent.
    fn forget_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, ()>;

    /// Returns the jobs that ended with this one before they started.
    fn fallen_with(&mut self, incarnation: i64) -> DbFuture<'_, Vec<(i64, JobKey)>>;

    /// Takes a task table off the list of the sweeper. Returns false if it is not listed any more,
    /// or is being dropped.
    fn unretire_table(&mut self, incarnation: i64) -> DbFuture<'_, bool>;

    /// Deletes the nodes of active tasks, and what the nodes above count of them.
    fn end_active_tasks(&mut self, incarnation: i64) -> DbFuture<'_, ()>;

    /// Returns nodes of splits with anything that a new round clears, in the order of their keys,
    /// after this key.
    fn nodes_to_clear<'a>(
        &'a mut self,
        incarnation: i64,
        after: &'a NodeKey,
        limit: u32,
    ) -> DbFuture<'a, Vec<NodeRow>>;

    /// Moves the failures of a job to those of its earlier rounds, as those of this `round`. Keeps
    /// those of this many `rounds`.
    fn archive_failures(&mut self, incarnation: i64, round: u32, rounds: u32) -> DbFuture<'_, ()>;
}
