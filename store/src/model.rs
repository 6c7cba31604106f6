//! The domain's words of the store's interface: what goes in and what comes out, none of it known to SQL.

use std::collections::BTreeMap;

use contract::rest::Expiry;
use contract::{JobId, JobStatus, JobTaskId, OnFailure, PartitionId, ReportFailure};
use serde::{Deserialize, Serialize};

/// What a job is created from.
#[derive(Debug, Clone)]
pub struct JobRequest {
    pub partition: PartitionId,
    pub job: JobId,
    pub name: Option<String>,
    pub description: Option<String>,
    pub external_data: Option<String>,
    pub labels: BTreeMap<String, Option<String>>,
    pub on_failure: OnFailure,
    /// How long it is kept once it has ended.
    pub expiry: Expiry,
    pub start: StartCondition,
    /// Whether it names no target pipe, so that only workers without output complete it.
    pub without_target: bool,
    /// Of the whole request: tells a request that is sent again from another one.
    pub content_hash: [u8; 32],
}

impl JobRequest {
    /// A job of which nothing is said but its ids: it starts at once, stops on failure and is kept for ever.
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
            content_hash: [0; 32],
        }
    }
}

/// When the start message of a new job is sent. The default is at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartCondition {
    /// Seconds from the creation, or from the completion of the last prerequisite.
    pub delay: u32,
    /// No job twice.
    pub prerequisites: Vec<Prerequisite>,
    /// Not before the jobs of the partition are dispatched.
    pub suspended: bool,
}

/// A job that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prerequisite {
    pub job: JobId,
    /// If there is no such job, it is not waited for.
    pub pre_created: bool,
}

/// One life of a job id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    pub partition: PartitionId,
    pub job: JobId,
    pub number: i64,
    /// Whether the job id has lived before (within the memory of past lives).
    pub first: bool,
}

impl Incarnation {
    /// The job task id of the whole job: `partition:job`, from the second life on `partition:job!incarnation`.
    pub fn job_task_id(&self) -> String {
        JobTaskId {
            partition: self.partition.to_string(),
            job: self.job.to_string(),
            incarnation: (!self.first).then_some(self.number),
            steps: Vec::new(),
        }
        .to_string()
    }
}

/// A message that must reach the broker; it stays in the outbox until it is known to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    pub id: i64,
    pub pipe: String,
    pub body: Vec<u8>,
    pub headers: Headers,
}

/// The headers of a message, by name.
pub type Headers = BTreeMap<String, Header>;

/// The value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Header {
    Integer(i64),
    Text(String),
}

/// A task of a paused job, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedTask {
    /// Where it goes back to.
    pub pipe: String,
    pub body: Vec<u8>,
    pub headers: Headers,
}

/// What is to become of a task that was handed over because its job is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkOutcome {
    /// It is in the store.
    Parked,
    /// The job is not paused any more: the task goes back to its pipe.
    SendBack,
    /// The job is unknown or over, or this was a past life of its id.
    Discard,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    Created(Incarnation),
    /// The same request has created the job before.
    AlreadyThere,
    /// There is another job with this id.
    Conflict,
    /// It would wait in vain; nothing was created.
    Refused(Refusal),
}

/// Why a job would never start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// These prerequisites have failed.
    Failed(Vec<JobId>),
    /// These prerequisites were cancelled.
    Cancelled(Vec<JobId>),
    /// Each of these jobs waits for the next one, and the last, which is the first, for nobody before it.
    Cycle(Vec<JobId>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    /// The job, and those that waited for it.
    Cancelled(Vec<Incarnation>),
    AlreadyCancelled,
    NotFound,
    /// The job has come to another end.
    Finished(JobStatus),
}

/// What became of a client's wish to change the status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Made,
    /// The job is as it is wanted.
    NotNeeded,
    NotFound,
    /// Nothing leads there from this status.
    Impossible(JobStatus),
}

/// Something that was reported about one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TrackingEvent {
    pub task: JobTaskId,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// 0 to 100. 0 of a final task announces the size of its split and nothing else.
    Progress(u8),
    Complete,
    Failed(ReportFailure),
    Retry {
        attempts: Option<i32>,
        failure: Option<ReportFailure>,
    },
}

/// What a flush of the ledger did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Events of unknown, past or finished jobs.
    pub ignored: u64,
    /// Jobs whose outcome these events decided.
    pub finished: Vec<(Incarnation, JobStatus)>,
}

/// The size of all task tables together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTableSize {
    pub tables: u64,
    pub rows: u64,
    pub bytes: u64,
}

/// What the database keeps about its own tables. It must not grow with the jobs that have been.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CatalogueSize {
    /// Tables, indexes and the like.
    pub entries: u64,
    /// Of the catalogue, or of the whole file where it has no place of its own.
    pub bytes: u64,
}

/// A step in the history of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Milliseconds since 1970.
    pub time: i64,
    pub from: Option<JobStatus>,
    pub to: JobStatus,
    /// Who made it: `client`, `tracking`, …
    pub actor: String,
    pub reason: String,
}
