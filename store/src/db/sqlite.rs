//! One SQLite file, for one machine: every commit is on the disk before it returns.
//!
//! One connection writes (`begin immediate`), for one transaction at a time ([`turns`]); others
//! read beside it (WAL).
//!
//! What must stay true: SQLite interrupts a read that takes too long or whose session is dropped,
//! so that a few expensive reads do not hold the connections of all others. It does not interrupt a
//! transaction: that would roll back those that share its commit.

pub mod turns;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use self::turns::Turns;
use super::sql::session::{ReadLimit, Session};
use super::{DbError, migrations};
use crate::error::{Cause, StoreError};
use crate::query::collation;

/// Connections that read beside the one that writes.
pub const READERS: u32 = 4;
/// How long the reads of one session may take.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// After how many instructions SQLite asks whether a read goes on.
const INSTRUCTIONS: i32 = 1000;

#[derive(Debug)]
pub struct SqliteFile {
    writer: SqlitePool,
    turns: Turns,
    readers: SqlitePool,
    read_limit: Duration,
}

impl SqliteFile {
    /// Opens `sqlite:/path/to/file`, creates the file if it is missing, and applies migrations.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let unusable = |reason: Cause| StoreError::Unusable {
            location: url.to_owned(),
            reason,
        };
        let path = file_of(url)
            .filter(|path| !path.is_empty() && !path.starts_with(":memory:"))
            .ok_or_else(|| {
                unusable("its URL must name a file, as in sqlite:/path/to/file.db".into())
            })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .collation(collation::NAME, collation::compare)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None);
        let writer = pool
            .clone()
            .max_connections(1)
            .connect_with(options.clone())
            .await
            .map_err(|error| unusable(error.into()))?;
        migrations::sqlite()
            .run(&writer)
            .await
            .map_err(|error| unusable(error.into()))?;
        let readers = pool.max_connections(READERS).connect_lazy_with(options);
        Ok(Self {
            turns: Turns::new(writer.clone()),
            writer,
            readers,
            read_limit: READ_LIMIT,
        })
    }

    pub async fn reader(&self) -> Result<Session, DbError> {
        let mut connection = self.readers.acquire().await?;
        let limit = ReadLimit {
            limit: self.read_limit,
            is_dropped: Arc::default(),
        };
        let (end, is_dropped) = (Instant::now() + self.read_limit, limit.is_dropped.clone());
        let goes_on = move || !is_dropped.load(Ordering::Relaxed) && Instant::now() < end;
        let mut handle = connection.lock_handle().await?;
        handle.set_progress_handler(INSTRUCTIONS, goes_on);
        drop(handle);
        Ok(Session::reading_sqlite(connection, limit))
    }

    /// Returns a session that has begun a transaction.
    pub async fn begin(&self) -> Result<Session, DbError> {
        Ok(Session::of_turn(self.turns.begin().await?))
    }

    pub async fn writer(&self) -> Result<Session, DbError> {
        Ok(Session::writing_sqlite(self.writer.acquire().await?))
    }

    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
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
    use crate::{
        ConditionPhase, Creation, Headers, JobRequest, NewBlock, ParkedTask, StartCondition, Store,
    };

    /// Makes all times of the outbox and of conditions a day later, which is the same as a clock
    /// that is set back by a day.
    async fn set_clock_back(url: &str) {
        let mut session = SqliteFile::open(url).await.unwrap().writer().await.unwrap();
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
    }

    async fn open(url: &str) -> Store {
        Store::open(url).await.unwrap()
    }

    /// A statement that does not end by itself.
    const ENDLESS: &str =
        "with recursive n (x) as (select 1 union all select x + 1 from n) select count(*) from n";

    async fn file_with(read_limit: Duration) -> (SqliteFile, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let file = SqliteFile::open(&url).await.unwrap();
        let file = SqliteFile { read_limit, ..file };
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
        store.backend.clock().pretend_set_back();
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
        store.backend.clock().pretend_set_back();
        is_due(&store).await;

        // The relay may be the first to see it.
        set_clock_back(&url).await;
        let mut signal = store.condition_signal();
        signal.mark_unchanged();
        store.backend.clock().pretend_set_back();
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
        let left = job.unwrap().due_time.unwrap() - store.backend.clock().now();
        (left + 999) / 1000
    }
}
