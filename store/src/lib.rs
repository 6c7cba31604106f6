//! What is known about jobs and their tasks, kept in PostgreSQL, SQLite or memory.
//!
//! The only crate that spells SQL. It hides which database there is, the tables of each job's tasks, locks, notifications
//! and the outbox behind operations of the domain.

use std::collections::BTreeMap;

use contract::{JobId, JobStatus, JobTaskId, OnFailure, PartitionId, ReportFailure, rest};

/// Everything that the system remembers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {}

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
    /// Of the whole request: tells a request that is sent again from another one.
    pub content_hash: [u8; 32],
}

/// One life of a job id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    pub partition: PartitionId,
    pub job: JobId,
    pub incarnation: i64,
    /// Whether the job id has lived before (within the memory of past lives).
    pub first: bool,
}

impl Life {
    /// The job task id of the whole job: `partition:job`, from the second life on `partition:job!incarnation`.
    pub fn job_task_id(&self) -> String {
        JobTaskId {
            partition: self.partition.to_string(),
            job: self.job.to_string(),
            incarnation: (!self.first).then_some(self.incarnation),
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    Created(Life),
    /// The same request has created the job before.
    AlreadyThere,
    /// There is another job with this id.
    Conflict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    Cancelled,
    AlreadyCancelled,
    NotFound,
    /// The job has come to another end.
    Finished(JobStatus),
}

/// Which jobs of a partition, in which order.
#[derive(Debug, Clone, Default)]
pub struct JobQuery {
    /// A literal, case-sensitive prefix of the job id.
    pub id_prefix: Option<String>,
    /// Jobs with one of these statuses; empty = any.
    pub statuses: Vec<JobStatus>,
    pub limit: u32,
    pub offset: u64,
    /// By creation time: oldest first. Otherwise newest first. Ties are in creation order accordingly.
    pub ascending: bool,
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
    pub finished: Vec<(Life, JobStatus)>,
}

/// The size of all task tables together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTableSize {
    pub tables: u64,
    pub rows: u64,
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

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database URL or the database itself cannot be used; trying again does not help.
    #[error("the database {place} cannot be used: {reason}")]
    Unusable { place: String, reason: String },
    /// The database did not answer, or asked to try again (deadlock, serialisation, connection).
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database refused a statement for a reason of its own.
    #[error("the database refused: {0}")]
    Refused(String),
}

#[expect(unused_variables, clippy::unused_async, clippy::unimplemented, reason = "signatures first")]
impl Store {
    /// `postgres://…`, `sqlite:/path/to/file` or `memory:`. Creates what is missing and applies migrations.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        unimplemented!()
    }
    pub fn kind(&self) -> &'static str {
        unimplemented!()
    }
    /// Answers when the database does.
    pub async fn ping(&self) -> Result<(), StoreError> {
        unimplemented!()
    }
    pub async fn close(&self) {
        unimplemented!()
    }
    /// Creates a job and, in the same transaction, puts its start message into the outbox. `start` is given the new life.
    pub async fn create_job(
        &self,
        request: &JobRequest,
        start: impl FnOnce(&Life) -> (String, Vec<u8>) + Send,
    ) -> Result<Creation, StoreError> {
        unimplemented!()
    }
    pub async fn job(&self, partition: &PartitionId, job: &JobId) -> Result<Option<rest::Job>, StoreError> {
        unimplemented!()
    }
    /// The status alone; `None` for an unknown job and for a past incarnation.
    pub async fn job_status(
        &self,
        partition: &PartitionId,
        job: &JobId,
        incarnation: Option<i64>,
    ) -> Result<Option<JobStatus>, StoreError> {
        unimplemented!()
    }
    pub async fn jobs(&self, partition: &PartitionId, query: &JobQuery) -> Result<Vec<rest::Job>, StoreError> {
        unimplemented!()
    }
    /// Limit, offset and order do not count.
    pub async fn count_jobs(&self, partition: &PartitionId, query: &JobQuery) -> Result<u64, StoreError> {
        unimplemented!()
    }
    pub async fn cancel_job(&self, partition: &PartitionId, job: &JobId) -> Result<Cancellation, StoreError> {
        unimplemented!()
    }
    /// False when there was no such job.
    pub async fn delete_job(&self, partition: &PartitionId, job: &JobId) -> Result<bool, StoreError> {
        unimplemented!()
    }
    pub async fn history(&self, partition: &PartitionId, job: &JobId) -> Result<Vec<Transition>, StoreError> {
        unimplemented!()
    }
    /// What is known about one task, named by the way from the job to it; `None` when the job or the task is not there.
    pub async fn task(&self, partition: &PartitionId, job: &JobId, path: &[u32]) -> Result<Option<rest::Task>, StoreError> {
        unimplemented!()
    }
    /// Counts these events in, all or none.
    pub async fn record(&self, events: &[TrackingEvent]) -> Result<Recorded, StoreError> {
        unimplemented!()
    }
    /// The oldest messages of the outbox.
    pub async fn outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, StoreError> {
        unimplemented!()
    }
    /// These messages are with the broker.
    pub async fn outbox_sent(&self, ids: &[i64]) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// Wakes whenever the outbox has got messages, in this process or another. A new receiver counts as woken.
    pub fn outbox_signal(&self) -> tokio::sync::watch::Receiver<u64> {
        unimplemented!()
    }
    /// Wakes whenever the sweeper has got something to do. A new receiver counts as woken.
    pub fn sweep_signal(&self) -> tokio::sync::watch::Receiver<u64> {
        unimplemented!()
    }
    /// Drops tables of finished and deleted jobs, a few per transaction, and forgets past lives that are old enough.
    /// Answers how many tables went and when, in milliseconds from now, there is more to do.
    pub async fn sweep(&self) -> Result<(u64, Option<u64>), StoreError> {
        unimplemented!()
    }
    pub async fn task_table_size(&self) -> Result<TaskTableSize, StoreError> {
        unimplemented!()
    }
}
