//! The store of a test, and short forms of common operations on it.

use std::ops::Deref;
use std::time::Duration;

use contract::rest::{Job, Task, TaskState};
use contract::{JobId, JobStatus, JobTaskId, OnFailure, PartitionId, ReportFailure};
use store::{
    Cancellation, Change, Creation, EventKind, Incarnation, JobQuery, JobRequest, OutboxMessage,
    Prerequisite, Recorded, StartCondition, Store, StoreOptions, TaskAnswer, TrackingEvent,
    Transition,
};

pub const MINUTE: Duration = Duration::from_mins(1);
/// The bytes of a claim that may be as large as it likes.
pub const ANY_SIZE: u64 = u64::MAX;

/// The test's own empty store, in a file or in a database. Dropping this removes the store.
pub struct TestStore {
    store: Store,
    url: String,
    home: Home,
}

#[expect(dead_code, reason = "kept for as long as the store is used")]
enum Home {
    Folder(tempfile::TempDir),
    Database(harness::Postgres),
}

impl TestStore {
    /// Opens a new store of this kind: `sqlite` or `postgres`.
    pub async fn open(kind: &str) -> Self {
        let (url, home) = match kind {
            "sqlite" => {
                let folder = tempfile::tempdir().unwrap();
                let file = folder.path().join("jobs.db");
                (format!("sqlite:{}", file.display()), Home::Folder(folder))
            }
            "postgres" => {
                let database = harness::postgres().await.expect("PostgreSQL for the test");
                (database.url.clone(), Home::Database(database))
            }
            other => panic!("there is no store of the kind {other}"),
        };
        let store = Store::open(&url).await.unwrap();
        assert_eq!(store.kind(), kind);
        Self { store, url, home }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Closes the store and opens it again, as the next process does.
    pub async fn reopen(&mut self) {
        self.reopen_with(StoreOptions::default()).await;
    }

    /// Closes the store and opens it with other options.
    pub async fn reopen_with(&mut self, options: StoreOptions) {
        self.store.close().await;
        self.store = Store::open_with(&self.url, options).await.unwrap();
    }

    /// Records a migration that this build does not have, as the next build does when it applies
    /// one.
    pub async fn apply_migration_of_the_next_build(&self) {
        let checksum = self.blob("");
        self.write(&format!(
            "insert into _sqlx_migrations (version, description, success, execution_time, checksum) \
             values (99991231235959, 'later', true, 0, {checksum})"
        ))
        .await;
    }

    /// Executes a statement on the database, as another build does.
    pub async fn write(&self, sql: &str) {
        match &self.home {
            Home::Folder(_) => {
                let file = store::sqlite_file(&self.url).unwrap();
                let file = rusqlite::Connection::open(file).unwrap();
                file.execute_batch(sql).unwrap();
            }
            Home::Database(_) => {
                let sql = format!("set search_path to batchwright; {sql}");
                harness::psql(&self.url, &[&sql]).await.unwrap();
            }
        }
    }

    /// Returns the literal of these bytes for [`Self::write`].
    pub fn blob(&self, text: &str) -> String {
        let hex: Vec<String> = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        let hex = hex.concat();
        match self.kind() {
            "postgres" => format!("'\\x{hex}'"),
            _ => format!("x'{hex}'"),
        }
    }

    /// Opens the store once more, as another process does. Only PostgreSQL allows this; `SQLite`
    /// returns the same store.
    pub async fn in_another_process(&self) -> Store {
        if self.kind() == "postgres" {
            Store::open(&self.url).await.unwrap()
        } else {
            self.store.clone()
        }
    }

    pub async fn create(&self, job: &str) -> Incarnation {
        self.create_with(request(job)).await
    }

    /// Creates a job and takes its start message out of the outbox.
    pub async fn started(&self, job: &str) -> Incarnation {
        let incarnation = self.create(job).await;
        self.sent().await;
        incarnation
    }

    /// Creates a job, takes its start message out of the outbox, and pauses the job.
    pub async fn paused(&self, job: &str) -> Incarnation {
        let incarnation = self.started(job).await;
        assert_eq!(self.pause(&incarnation).await, Change::Made);
        incarnation
    }

    pub async fn create_scheduled(&self, job: &str, start: StartCondition) -> Incarnation {
        self.create_with(JobRequest {
            start,
            ..request(job)
        })
        .await
    }

    /// Creates the job; fails the test if it is refused or exists.
    pub async fn create_with(&self, request: JobRequest) -> Incarnation {
        match create(&self.store, &request).await {
            Creation::Created(incarnation) => incarnation,
            other => panic!("{}: {other:?}", request.job.as_str()),
        }
    }

    /// Creates a job that goes on after failures.
    pub async fn create_continuing(&self, job: &str) -> Incarnation {
        self.create_with(continuing(job)).await
    }

    pub async fn try_create(&self, job: &str, start: StartCondition) -> Creation {
        let request = JobRequest {
            start,
            ..request(job)
        };
        create(&self.store, &request).await
    }

    pub async fn job(&self, job: impl JobRef) -> Job {
        let found = self.store.job(&job.partition(), &job.job()).await;
        found.unwrap().unwrap()
    }

    /// Returns the status, and how many items are done and tasks have failed.
    pub async fn totals(&self, job: impl JobRef) -> (JobStatus, i64, i64) {
        let job = self.job(job).await;
        (job.status, job.completed_items, job.failed_tasks)
    }

    pub async fn status(&self, job: impl JobRef) -> JobStatus {
        self.job(job).await.status
    }

    pub async fn exists(&self, job: impl JobRef) -> bool {
        let found = self.store.job(&job.partition(), &job.job()).await;
        found.unwrap().is_some()
    }

    pub async fn history(&self, job: impl JobRef) -> Vec<Transition> {
        let (partition, job) = (job.partition(), job.job());
        self.store.history(&partition, &job).await.unwrap()
    }

    /// Returns the actor and the reason of the latest transition.
    pub async fn last_transition(&self, job: impl JobRef) -> (String, String) {
        let last = self.history(job).await.pop().unwrap();
        (last.actor, last.reason)
    }

    pub async fn task(&self, job: impl JobRef, path: &[u32]) -> Task {
        match self.task_answer(job, path).await {
            TaskAnswer::Task(task) => *task,
            other => panic!("{path:?}: {other:?}"),
        }
    }

    /// Returns the status of the task, `None` if there is no such task or job.
    pub async fn task_status(&self, job: impl JobRef, path: &[u32]) -> Option<TaskState> {
        match self.task_answer(job, path).await {
            TaskAnswer::Task(task) => Some(task.status),
            TaskAnswer::NoTask | TaskAnswer::NoJob => None,
            TaskAnswer::NotKnown => panic!("{path:?} is not known"),
        }
    }

    pub async fn task_answer(&self, job: impl JobRef, path: &[u32]) -> TaskAnswer {
        let answer = self.store.task(&job.partition(), &job.job(), path).await;
        answer.unwrap()
    }

    /// Records one event of a task, or of the job itself where the path is empty.
    pub async fn report(&self, job: impl JobRef, path: &str, kind: EventKind) -> Recorded {
        self.record(&[event(job, path, kind)]).await.unwrap()
    }

    /// Reports these tasks of the job complete, in one transaction.
    pub async fn complete(&self, incarnation: &Incarnation, paths: &[&str]) {
        let events: Vec<_> = paths
            .iter()
            .map(|path| event(incarnation, path, EventKind::Complete))
            .collect();
        self.record(&events).await.unwrap();
    }

    /// Reports these jobs complete, in one transaction.
    pub async fn complete_jobs(&self, jobs: &[&str]) {
        let events: Vec<_> = jobs
            .iter()
            .map(|job| event(*job, "", EventKind::Complete))
            .collect();
        self.record(&events).await.unwrap();
    }

    /// Cancels the job. Returns the ids of all jobs that are cancelled by this.
    pub async fn cancel(&self, job: impl JobRef) -> Vec<String> {
        let cancelled = self.cancel_job(&job.partition(), &job.job()).await;
        match cancelled.unwrap() {
            Cancellation::Cancelled(incarnations) => incarnations
                .into_iter()
                .map(|incarnation| incarnation.job.to_string())
                .collect(),
            other => panic!("{}: {other:?}", job.job()),
        }
    }

    pub async fn delete(&self, job: impl JobRef) {
        let deleted = self.delete_job(&job.partition(), &job.job()).await;
        assert!(deleted.unwrap());
    }

    pub async fn pause(&self, job: impl JobRef) -> Change {
        let paused = self.pause_job(&job.partition(), &job.job()).await;
        paused.unwrap()
    }

    pub async fn resume(&self, job: impl JobRef) -> Change {
        let resumed = self.resume_job(&job.partition(), &job.job()).await;
        resumed.unwrap()
    }

    /// Returns the bodies of all messages in the outbox, claimed or not. The body of a start
    /// message is the job's id.
    pub async fn outbox_texts(&self) -> Vec<String> {
        texts(self.outbox(10_000).await.unwrap())
    }

    /// Claims all messages that are due and confirms them as sent, like a relay. Returns their
    /// bodies.
    pub async fn sent(&self) -> Vec<String> {
        let claim = self.claim_outbox(10_000, ANY_SIZE, MINUTE).await.unwrap();
        self.confirm(&claim.messages).await;
        texts(claim.messages)
    }

    /// Removes these messages from the outbox.
    pub async fn confirm(&self, messages: &[OutboxMessage]) {
        let ids: Vec<i64> = messages.iter().map(|message| message.id).collect();
        self.outbox_sent(&ids).await.unwrap();
    }
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// A reference to a job: its id in the partition `acme`, or its incarnation.
pub trait JobRef {
    fn partition(&self) -> PartitionId;
    fn job(&self) -> JobId;
    fn job_task_id(&self) -> String;
}

impl JobRef for &str {
    fn partition(&self) -> PartitionId {
        acme()
    }

    fn job(&self) -> JobId {
        id(self)
    }

    fn job_task_id(&self) -> String {
        format!("acme:{self}")
    }
}

impl JobRef for &String {
    fn partition(&self) -> PartitionId {
        acme()
    }

    fn job(&self) -> JobId {
        id(self)
    }

    fn job_task_id(&self) -> String {
        self.as_str().job_task_id()
    }
}

impl JobRef for &Incarnation {
    fn partition(&self) -> PartitionId {
        self.partition.clone()
    }

    fn job(&self) -> JobId {
        self.job.clone()
    }

    fn job_task_id(&self) -> String {
        Incarnation::job_task_id(self)
    }
}

/// Returns a request for a job in the partition `acme`.
pub fn request(job: &str) -> JobRequest {
    JobRequest {
        content_hash: [7; 32],
        ..JobRequest::new(acme(), id(job))
    }
}

/// Returns a request for a job that goes on after failures.
pub fn continuing(job: &str) -> JobRequest {
    JobRequest {
        on_failure: OnFailure::Continue,
        ..request(job)
    }
}

/// Returns a query for the first jobs.
pub fn page_of(limit: u32) -> JobQuery {
    JobQuery {
        limit,
        ..JobQuery::default()
    }
}

/// Creates a job whose start message is its id.
pub async fn create(store: &Store, request: &JobRequest) -> Creation {
    let created = store.create_job(request, |incarnation| {
        ("start".to_owned(), incarnation.job.as_str().into())
    });
    created.await.unwrap()
}

pub fn acme() -> PartitionId {
    PartitionId::parse("acme").unwrap()
}

pub fn id(job: &str) -> JobId {
    JobId::parse(job).unwrap()
}

pub fn ids(jobs: &[&str]) -> Vec<JobId> {
    jobs.iter().map(|job| id(job)).collect()
}

/// Returns the job task id of a task. The path is e.g. `1.2*`, or empty for the job itself.
#[expect(clippy::needless_pass_by_value, reason = "a reference either way")]
pub fn task_id(job: impl JobRef, path: &str) -> JobTaskId {
    let dot = if path.is_empty() { "" } else { "." };
    JobTaskId::parse(&format!("{}{dot}{path}", job.job_task_id())).unwrap()
}

pub fn event(job: impl JobRef, path: &str, kind: EventKind) -> TrackingEvent {
    let task = task_id(job, path);
    TrackingEvent { task, kind }
}

pub fn failed(kind: &str) -> EventKind {
    EventKind::Failed(failure(kind))
}

/// Returns a failed attempt that another one follows.
pub fn retrying(attempts: i32) -> EventKind {
    EventKind::Retry {
        attempts: Some(attempts),
        failure: Some(failure("SLOW")),
    }
}

pub fn failure(kind: &str) -> ReportFailure {
    ReportFailure {
        failure_id: Some(kind.to_owned()),
        failure_time: Some(7),
        failure_source: None,
        failure_message: Some(format!("a {kind} of a failure\0, 'quoted' and ünusual")),
        item: None,
        run: None,
    }
}

/// Returns a condition to start after these jobs. An id may end in `,pc`, as in a request.
pub fn after(jobs: &[&str]) -> StartCondition {
    let parse = |text: &&str| {
        let (job, option) = text.split_once(',').unwrap_or((text, ""));
        Prerequisite {
            job: id(job),
            pre_created: option == "pc",
        }
    };
    StartCondition {
        prerequisites: jobs.iter().map(parse).collect(),
        ..StartCondition::default()
    }
}

/// Returns a condition to start this many seconds after the creation, or after the last
/// prerequisite.
pub fn in_seconds(delay: u32) -> StartCondition {
    StartCondition {
        delay,
        ..StartCondition::default()
    }
}

/// Returns the bodies of these messages.
pub fn texts(messages: Vec<OutboxMessage>) -> Vec<String> {
    messages
        .into_iter()
        .map(|message| String::from_utf8(message.body).unwrap())
        .collect()
}
