//! The types of the store's interface. They know nothing about SQL.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::{self, Expiry};
use contract::{
    Announced, JobId, JobShare, JobStatus, JobTaskId, LifeKey, OnFailure, PartitionId,
    ReportFailure, RetryPolicy, SourceDigest, TaskTimeLimit,
};
use serde::{Deserialize, Serialize};

use crate::upload::UploadRefusal;

/// What waits in the store, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of jobs by the name of the status that people are shown. A status that no job has
    /// is absent.
    pub jobs: BTreeMap<&'static str, u64>,
    /// The number of parked tasks of all jobs.
    pub parked_tasks: u64,
    /// The number of messages in the outbox that are due, and of announcements.
    pub due_messages: u64,
    /// How long the oldest of these messages is due; zero if there is none.
    pub oldest_due: Duration,
}

/// A job of which nothing has been reported for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckJob {
    /// The partition.
    pub partition: PartitionId,
    /// The id.
    pub job: JobId,
    /// The number of the incarnation.
    pub incarnation: i64,
    /// When it changed last, in milliseconds since 1970.
    pub since: i64,
}

/// The definition of a new job.
#[derive(Debug, Clone)]
pub struct JobRequest {
    /// The partition in which the job is created.
    pub partition: PartitionId,
    /// The id of the job, unique in its partition.
    pub job: JobId,
    /// The display name.
    pub name: Option<String>,
    /// A free text.
    pub description: Option<String>,
    /// Any data that the client keeps with the job.
    pub external_data: Option<String>,
    /// Labels by name, each with an optional value.
    pub labels: BTreeMap<String, Option<String>>,
    /// Whether the job ends at the first failure of a task.
    pub on_failure: OnFailure,
    /// How long the job is kept once it has ended.
    pub expiry: Expiry,
    /// When the job starts.
    pub start: StartCondition,
    /// Whether the job has no target pipe. It then completes only if its workers send no output.
    pub without_target: bool,
    /// The correlation id of the request, which all messages of the job carry.
    pub correlation_id: Option<String>,
    /// The pipe of the outputs that the service keeps; `None` if the job does not keep its outputs.
    pub output_pipe: Option<String>,
    /// The pipe to which its batch sends its items; `None` if its first task is no batch.
    pub items_pipe: Option<String>,
    /// When failed tasks run again; `None` leaves that to the workers.
    pub retry: Option<RetryPolicy>,
    /// How long one attempt of a task may take, which the header of the start message tells the
    /// workers.
    pub task_time_limit: Option<TaskTimeLimit>,
    /// The weight beside the other jobs of the partition.
    pub share: JobShare,
    /// The subject that creates it; `None` where callers need no token.
    pub owner: Option<String>,
    /// The headers of the start message.
    pub headers: Headers,
    /// The request as the client sent it. It is kept with the job
    /// ([`Store::definition`](crate::Store::definition)).
    pub definition: Vec<u8>,
    /// A hash of the whole request. It distinguishes a repeated request from a different one with
    /// the same id.
    pub content_hash: [u8; 32],
    /// The key that the client gave to the request.
    pub key: Option<RequestKey>,
    /// The number of the incarnation that the job replaces, which must have ended. It is deleted in
    /// the same transaction.
    pub replaces: Option<i64>,
    /// Whether the job is not created, if it could be.
    pub only_tries: bool,
    /// What people are to know of the creation. It stands in the history of the job.
    pub remark: Option<String>,
    /// The ids of the uploads that the job reads.
    pub uploads: Vec<String>,
}

/// The key that a client gave to a request that creates a job. Within a partition and for a while
/// ([`StoreOptions::request_keys_kept`](crate::StoreOptions::request_keys_kept)), a key creates one
/// job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// The key.
    pub key: String,
    /// A hash of all that the request asks for. It distinguishes a repeated request from a
    /// different one with the same key.
    pub fingerprint: [u8; 32],
}

impl JobRequest {
    /// Returns a job with default settings: it starts at once, ends at the first failure, and is
    /// kept forever.
    pub fn new(partition: PartitionId, job: JobId) -> Self {
        Self {
            partition,
            job,
            name: None,
            description: None,
            external_data: None,
            labels: BTreeMap::new(),
            on_failure: OnFailure::default(),
            expiry: Expiry::default(),
            start: StartCondition::default(),
            without_target: false,
            correlation_id: None,
            output_pipe: None,
            items_pipe: None,
            retry: None,
            task_time_limit: None,
            share: JobShare::USUAL,
            owner: None,
            headers: Headers::new(),
            definition: Vec::new(),
            content_hash: [0; 32],
            key: None,
            replaces: None,
            only_tries: false,
            remark: None,
            uploads: Vec::new(),
        }
    }
}

/// When the start message of a new job is sent. By default it is sent at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartCondition {
    /// Seconds from the creation, or from the completion of the last prerequisite.
    pub delay: u32,
    /// The jobs that must complete first. No job is listed twice.
    pub prerequisites: Vec<Prerequisite>,
    /// Whether the job also waits until the jobs of its partition are dispatched
    /// ([`Store::dispatch_partition`](crate::Store::dispatch_partition)).
    pub suspended: bool,
}

/// A job that a new job waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Prerequisite {
    /// The id of the job, in the partition of the new job.
    pub job: JobId,
    /// Whether the job is expected to exist: if it does not, the new job does not wait for it.
    pub pre_created: bool,
}

/// One incarnation of a job, in one of its rounds. A job that is deleted and created again has the
/// same id but another incarnation; one that is taken up again stays the same incarnation and
/// begins another round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// The partition of the job.
    pub partition: PartitionId,
    /// The id of the job.
    pub job: JobId,
    /// The number of the incarnation, unique in the store.
    pub number: i64,
    /// Whether this is the first incarnation, as far as the store remembers past ones
    /// ([`StoreOptions::past_incarnations_kept`](crate::StoreOptions::past_incarnations_kept)).
    pub first: bool,
    /// The number of the round, from 1.
    pub round: u32,
    /// The key in its status URL; `None` if it was created before there were keys.
    pub key: Option<LifeKey>,
}

impl Incarnation {
    /// Returns the job task id of the job's own task: `partition:job` for the first round of a
    /// first incarnation, `partition:job!number` for that of a later one, and
    /// `partition:job!number` with `r2` for a second round.
    pub fn job_task_id(&self) -> String {
        JobTaskId {
            partition: self.partition.to_string(),
            job: self.job.to_string(),
            incarnation: (!self.first || self.round > 1).then_some(self.number),
            round: self.round,
            steps: Vec::new(),
        }
        .to_string()
    }
}

/// A message for the broker. It stays in the outbox until the broker has confirmed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// The id of the message in the outbox.
    pub id: i64,
    /// The pipe to publish to.
    pub pipe: String,
    /// The encoded task message.
    pub body: Vec<u8>,
    /// The headers of the message.
    pub headers: Headers,
    /// The job of the message, if it is of one.
    pub incarnation: Option<i64>,
    /// Its partition; empty if there is none.
    pub partition: String,
}

/// A message that was held until there was room in its pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldMessage {
    /// Its place among those of its partition for the pipe.
    pub turn: i64,
    /// The message.
    pub message: OutboxMessage,
}

/// A job that is announced to all workers. It stays in the outbox until the broker has confirmed
/// the announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The id of the announcement in the outbox.
    pub id: i64,
    /// The job, as `partition:job`.
    pub job: String,
}

/// The headers of a message, by name.
pub type Headers = BTreeMap<String, Header>;

/// The value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Header {
    /// A number, such as a count of attempts.
    Integer(i64),
    /// A text.
    Text(String),
}

/// A task of a paused job, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedTask {
    /// The pipe to which the task returns when the job is resumed.
    pub pipe: String,
    /// The encoded task message.
    pub body: Vec<u8>,
    /// The headers of the message.
    pub headers: Headers,
}

/// What the caller has to do with a task that a worker handed over because its job was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkOutcome {
    /// Nothing: the store has it.
    Parked,
    /// Publish it to its pipe: the job is no longer paused.
    SendBack,
    /// Drop it: the job is unknown or has ended, or the task belongs to a past incarnation.
    Discard,
    /// Park it again after this delay: another transaction keeps the job locked.
    Locked(Duration),
}

/// The result of creating a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    /// The job was created.
    Created(Incarnation),
    /// The same request created the job before; nothing was changed.
    AlreadyThere,
    /// A different job has this id.
    Conflict,
    /// The job would never start; nothing was created.
    Refused(Refusal),
    /// A request with the same key created this job before; nothing was changed.
    Repeated(JobId),
    /// A different request with the same key created this job before; nothing was changed.
    KeyTaken(JobId),
    /// The job to be replaced has not ended; nothing was changed.
    NotEnded(JobStatus),
    /// The job to be replaced was deleted or replaced by another request; nothing was changed.
    NotThere,
    /// The job names an upload that it cannot read; nothing was changed.
    NoUpload(UploadRefusal),
    /// The job could be created, but the request only tries it ([`JobRequest::only_tries`]);
    /// nothing was changed.
    Possible,
}

/// Why a job would never start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// These prerequisites have failed.
    Failed(Vec<JobId>),
    /// These prerequisites were cancelled.
    Cancelled(Vec<JobId>),
    /// The jobs wait for each other: each of these waits for the next one, and the last is the
    /// first again.
    Cycle(Vec<JobId>),
}

/// The result of cancelling a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    /// The job was cancelled, and the jobs that waited for it, which follow it here.
    Cancelled(Vec<Incarnation>),
    /// The job was cancelled before.
    AlreadyCancelled,
    /// There is no such job.
    NotFound,
    /// The job has ended with this outcome.
    Finished(JobStatus),
}

/// What a job was created from, which is kept as long as the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The request as the client sent it.
    pub request: Vec<u8>,
    /// The pipe to which the start message was sent.
    pub pipe: String,
    /// The start message of the first round.
    pub start: Vec<u8>,
    /// The headers of that message.
    pub headers: Headers,
    /// The jobs that had to complete first.
    pub prerequisites: Vec<Prerequisite>,
    /// Whether the job also waited until the jobs of its partition were dispatched.
    pub suspended: bool,
}

/// A job that another one is created like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The number of its incarnation.
    pub incarnation: i64,
    /// What it was created from.
    pub definition: Definition,
}

/// A request that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRequest {
    /// The fingerprint of the request.
    pub fingerprint: Vec<u8>,
    /// The job that it created.
    pub job: JobId,
    /// The digest of what the job with this id was created from; `None` if there is no such job any
    /// more.
    pub content_hash: Option<Vec<u8>>,
}

/// The result of taking a job up again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    /// A round of the job has begun.
    Begun(Begun),
    /// There is no such job.
    NotFound,
    /// The job is not finished, or it is Completed and no task has failed.
    WrongStatus(JobStatus),
    /// What was known about the tasks of the job is deleted.
    Forgotten,
    /// The job has not started, and would never start.
    Refused(Refusal),
}

/// A round that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The job in its new round.
    pub job: Incarnation,
    /// The status of the job. Completed if nothing was left to do.
    pub status: JobStatus,
    /// The jobs that had ended with this one and wait for it again.
    pub revived: Vec<Incarnation>,
    /// The jobs that had ended with this one and have not been taken up again.
    pub fallen: Vec<JobId>,
}

/// The result of pausing, resuming or adjusting a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The job was changed.
    Made,
    /// The job is as requested.
    NotNeeded,
    /// There is no such job.
    NotFound,
    /// The change is not possible from this status.
    Impossible(JobStatus),
}

/// A job that sends items to a pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOfPipe {
    /// The partition of the job.
    pub partition: PartitionId,
    /// The number of its incarnation.
    pub incarnation: i64,
    /// Its weight beside the other jobs of the partition.
    pub share: JobShare,
}

/// What workers ask of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobForWorkers {
    /// The status.
    pub status: JobStatus,
    /// The retry policy as text, if the job has one.
    pub retry: Option<String>,
    /// The weight beside the other jobs of the partition.
    pub share: JobShare,
}

/// One report about one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TrackingEvent {
    /// The task that the report is about.
    pub task: JobTaskId,
    /// What the report says.
    pub kind: EventKind,
}

/// What a report says about a task.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// The task is active, and done to this percentage (0 to 100). For a final task, 0 reports the
    /// size of its split and nothing else.
    Progress(u8),
    /// The task has been running for a while.
    Started {
        /// The number of attempts that have failed before.
        attempts: i32,
    },
    /// Of a final task: like progress 0, the size of its split, and what the splitter announces
    /// about it.
    Announced {
        /// What the other subtasks are.
        stated: Option<Announced>,
        /// From what the split is made.
        digest: Option<SourceDigest>,
    },
    /// The task is done.
    Complete,
    /// The task has failed for good.
    Failed(ReportFailure),
    /// An attempt has failed; the task waits for another one.
    Retry {
        /// The number of attempts that have failed.
        attempts: Option<i32>,
        /// Why the attempt failed.
        failure: Option<ReportFailure>,
    },
}

/// The jobs, by partition and id, that an operation has left out because they are locked. Each has
/// the delay after which the caller repeats the operation for what it has not done; the delays
/// are few different ones.
pub type LeftOut = BTreeMap<(String, String), Duration>;

/// The result of recording events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The number of events that did not count: those of unknown jobs, past incarnations, and
    /// finished jobs without a task table.
    pub ignored: u64,
    /// The jobs that have ended because of these events, with their outcomes. They include jobs
    /// that waited for one of these.
    pub finished: Vec<(Incarnation, JobStatus)>,
    /// The jobs that are locked, or would end and have jobs waiting for them that are. None of
    /// their events is counted.
    pub left_out: LeftOut,
}

/// A change of a job's status, as the history keeps it and the API shows it.
pub type Transition = rest::StatusChange;

/// Something that has happened to a job: a change of its status, or its deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEvent {
    /// Its place among the events of all jobs; those of one job are in the order in which they
    /// happened.
    pub id: i64,
    /// Milliseconds since 1970.
    pub time: i64,
    /// The partition of the job.
    pub partition: String,
    /// The id of the job.
    pub job: String,
    /// The status before; `None` for the creation.
    pub from: Option<JobStatus>,
    /// The status after; `None` for the deletion.
    pub to: Option<JobStatus>,
    /// The number of the round.
    pub round: u32,
    /// Who made the change, as in [`Transition`]; not known of a deletion.
    pub actor: Option<String>,
    /// Why, in a short phrase.
    pub reason: Option<String>,
    /// The correlation id of the request that caused the change.
    pub correlation_id: Option<String>,
    /// The job whose end caused the change.
    pub prerequisite: Option<String>,
}

/// Some events, as one moment sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// In the order of their ids.
    pub events: Vec<JobEvent>,
    /// The last event that is not kept any more: those up to it may be missing.
    pub swept: i64,
}
