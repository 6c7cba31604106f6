//! One SQLite file, for one machine: every commit is on the disk before it returns.
//!
//! One connection writes (`begin immediate`), for one transaction at a time ([`turns`]); others
//! read beside it (WAL, [`readers`]).
//!
//! What must stay true: no statement of a transaction is interrupted. That would roll back those
//! that share its commit.

mod connection;
pub mod readers;
pub mod statement;
pub mod turns;

#[cfg(any(test, feature = "internals"))]
use std::sync::Arc;
use std::time::Duration;

use self::connection::{Connection, ConnectionOptions};
use self::readers::Readers;
use self::turns::Turns;
use super::sql::session::Session;
use super::{Result, migrations};
use crate::error::{Cause, StoreError};

/// Connections that read beside the one that writes.
pub const READERS: u32 = 4;
/// How long the reads of one session may take.
const READ_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SqliteFile {
    turns: Turns,
    readers: Readers,
    /// Deletes the file when it is dropped.
    #[cfg(any(test, feature = "internals"))]
    _folder: Option<tempfile::TempDir>,
}

impl SqliteFile {
    /// Opens `sqlite:/path/to/file`, creates the file if it is missing, and applies migrations.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let unusable = |reason: Cause| StoreError::unusable(url, reason);
        let path = file_of(url)
            .filter(|path| !path.is_empty() && !path.starts_with(":memory:"))
            .ok_or_else(|| {
                unusable("its URL must name a file, as in sqlite:/path/to/file.db".into())
            })?;
        let file = Self::open_as(ConnectionOptions::of(path), READ_LIMIT).await;
        file.map_err(|error| unusable(error.into()))
    }

    async fn open_as(options: ConnectionOptions, read_limit: Duration) -> Result<Self> {
        let mut connection = Connection::open(&options).await?;
        connection.run(migrations::apply).await??;
        connection.close().await;
        Ok(Self::new(options, read_limit))
    }

    /// Creates a file that is as new, with all tables, in a temporary folder. Its statements run
    /// within the caller, so that the same tasks in the same order get the same results; SQLite
    /// asks this clock for the time; and nothing waits for the disk.
    ///
    /// # Errors
    /// If the file cannot be written.
    #[cfg(any(test, feature = "internals"))]
    pub fn simulated(clock: Arc<super::Clock>) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("jobs.db");
        std::fs::write(&path, migrations::new_file())?;
        Ok(Self {
            _folder: Some(folder),
            ..Self::new(ConnectionOptions::simulated(path, clock), READ_LIMIT)
        })
    }

    fn new(options: ConnectionOptions, read_limit: Duration) -> Self {
        Self {
            turns: Turns::new(options.clone()),
            readers: Readers::new(options, READERS, read_limit),
            #[cfg(any(test, feature = "internals"))]
            _folder: None,
        }
    }

    pub async fn reader(&self) -> Result<Session> {
        Ok(Session::of_reader(self.readers.acquire().await?))
    }

    /// Returns a session that has begun a transaction.
    pub async fn begin(&self) -> Result<Session> {
        Ok(Session::of_turn(self.turns.begin().await?))
    }

    pub async fn close(&self) {
        self.readers.close().await;
        self.turns.close().await;
    }
}

/// Returns the file that a URL names, if it is one of SQLite: `sqlite:FILE` or `sqlite://FILE`.
pub fn file_of(url: &str) -> Option<&str> {
    let file = url.strip_prefix("sqlite:")?;
    Some(file.strip_prefix("//").unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use contract::{
        Condition, ConditionCode, ConditionKey, JobId, JobTaskId, PartitionId, RetryPolicy,
    };

    use super::*;
    use crate::db::DbError;
    use crate::{
        ConditionPhase, Creation, Headers, JobRequest, NewBlock, ParkedTask, StartCondition, Store,
    };

    /// Makes all times of the outbox and of conditions a day later, which is the same as a clock
    /// that is set back by a day.
    async fn set_clock_back(url: &str) {
        let file = SqliteFile::open(url).await.unwrap();
        let mut session = file.begin().await.unwrap();
        for (table, times) in [
            ("outbox", &["due_time", "leased_until"][..]),
            (
                "wait_condition",
                &["since", "tested_time", "next_time", "leased_until"],
            ),
        ] {
            let later = times.iter().map(|it| format!("{it} = {it} + 86400000"));
            let later = later.collect::<Vec<_>>().join(", ");
            session
                .run_script(format!("update {table} set {later}"))
                .await
                .unwrap();
        }
        session.commit().await.unwrap();
        file.close().await;
    }

    async fn open(url: &str) -> Store {
        Store::open(url).await.unwrap()
    }

    /// A statement that does not end by itself.
    const ENDLESS: &str =
        "with recursive n (x) as (select 1 union all select x + 1 from n) select count(*) from n";

    async fn file_with(read_limit: Duration) -> (SqliteFile, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let options = ConnectionOptions::of(folder.path().join("jobs.db"));
        let file = SqliteFile::open_as(options, read_limit).await.unwrap();
        (file, folder)
    }

    #[tokio::test]
    async fn read_that_takes_too_long_is_interrupted_and_its_connection_is_used_again() {
        let (file, _folder) = file_with(Duration::from_millis(50)).await;
        for _ in 0..=READERS {
            let mut session = file.reader().await.unwrap();
            let read = session.fetch_count(session.statement(ENDLESS));
            let error = harness::in_time("the interruption", read)
                .await
                .unwrap_err();
            let DbError::Unavailable(cause) = error else {
                panic!("{error:?}")
            };
            assert_eq!(cause.to_string(), "a read took longer than 0 s");
        }
    }

    #[tokio::test]
    async fn read_that_nobody_waits_for_any_more_is_interrupted() {
        let (file, _folder) = file_with(Duration::from_hours(1)).await;
        for _ in 0..=READERS {
            let mut session = file.reader().await.unwrap();
            let read = session.fetch_count(session.statement(ENDLESS));
            // It is dropped as soon as it runs.
            let dropped = tokio::time::timeout(Duration::from_millis(20), read).await;
            dropped.unwrap_err();
        }
        let mut session = harness::in_time("a free reader", file.reader())
            .await
            .unwrap();
        let jobs = session.statement("select count(*) from job");
        let read = harness::in_time("the read", session.fetch_count(jobs));
        assert_eq!(read.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn delays_and_leases_end_in_time_although_the_clock_is_set_back_by_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let store = open(&url).await;
        for (job, delay) in [("now", 0), ("later", 3600)] {
            let start = StartCondition {
                delay,
                ..StartCondition::default()
            };
            let (partition, id) = (PartitionId::parse("p"), JobId::parse(job));
            let request = JobRequest {
                start,
                ..JobRequest::new(partition.unwrap(), id.unwrap())
            };
            store
                .create_job(&request, |_| ("pipe".to_owned(), job.into()))
                .await
                .unwrap();
        }
        let minute = Duration::from_mins(1);
        let claimed = async |store: &Store| {
            let claim = store.claim_outbox(10, u64::MAX, minute).await.unwrap();
            let bodies = claim.messages.into_iter().map(|message| message.body);
            (bodies.collect::<Vec<_>>(), claim.next_due.unwrap())
        };
        assert_eq!(claimed(&store).await.0, [b"now"]);

        // While nothing runs.
        store.close().await;
        set_clock_back(&url).await;
        let store = open(&url).await;
        assert_eq!(claimed(&store).await.0, [b"now"]);
        assert!(claimed(&store).await.1 <= minute);
        assert_eq!(due_within(&store, "later").await, 3600);

        // While the store is open.
        set_clock_back(&url).await;
        assert!(claimed(&store).await.1 > minute, "it looks at the clock");
        store.database.clock().pretend_set_back();
        assert_eq!(claimed(&store).await.0, [b"now"]);
        assert_eq!(due_within(&store, "later").await, 3600);
    }

    #[tokio::test]
    async fn conditions_are_tested_in_time_although_the_clock_is_set_back_by_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let store = open(&url).await;
        let minute = Duration::from_mins(1);
        let key = block_a_task(&store).await;
        let claim = store.claim_condition(minute).await.unwrap().unwrap();
        assert_eq!(claim.row.key, key);
        let is_due = async |store: &Store| {
            assert_eq!(store.next_condition().await.unwrap(), Some(Duration::ZERO));
            let claim = store.claim_condition(minute).await.unwrap().unwrap();
            assert!(claim.row.since <= claim.time, "{claim:?}");
            assert!(store.next_condition().await.unwrap() <= Some(minute));
        };

        // While nothing runs.
        store.close().await;
        set_clock_back(&url).await;
        let store = open(&url).await;
        is_due(&store).await;

        // While the store is open.
        set_clock_back(&url).await;
        assert!(store.next_condition().await.unwrap() > Some(minute));
        store.database.clock().pretend_set_back();
        is_due(&store).await;

        // The relay may be the first to see it.
        set_clock_back(&url).await;
        let mut signal = store.condition_signal();
        signal.mark_unchanged();
        store.database.clock().pretend_set_back();
        store.claim_outbox(10, u64::MAX, minute).await.unwrap();
        assert!(signal.has_changed().unwrap());
        is_due(&store).await;
    }

    /// Lets a task of a new job wait for a condition that is tested after an hour. Returns the key
    /// of the condition.
    async fn block_a_task(store: &Store) -> ConditionKey {
        let (partition, id) = (PartitionId::parse("p"), JobId::parse("blocked"));
        let request = JobRequest::new(partition.unwrap(), id.unwrap());
        let created = store.create_job(&request, |_| ("pipe".to_owned(), Vec::new()));
        let Creation::Created(job) = created.await.unwrap() else {
            panic!("it exists")
        };
        let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
            .policy(RetryPolicy::constant(Duration::from_hours(1)).forever())
            .unwrap();
        let key = condition.key();
        let block = NewBlock {
            task: JobTaskId::parse(&format!("{}.1", job.job_task_id())).unwrap(),
            identity: b"1".to_vec(),
            number: 1,
            condition,
            message: ParkedTask {
                pipe: "items".to_owned(),
                body: Vec::new(),
                headers: Headers::default(),
            },
        };
        store.block_tasks(&[block]).await.unwrap();
        let phase = ConditionPhase::Testing;
        assert!(store.command_condition(&key, phase).await.unwrap());
        key
    }

    /// Returns in how many seconds a job starts at the latest.
    async fn due_within(store: &Store, job: &str) -> i64 {
        let (partition, id) = (PartitionId::parse("p"), JobId::parse(job));
        let job = store.job(&partition.unwrap(), &id.unwrap()).await.unwrap();
        let left = job.unwrap().due_time.unwrap() - store.database.clock().now();
        (left + 999) / 1000
    }
}
