//! The store in PostgreSQL or SQLite: plain functions, a module for each group of tables, that run
//! statements in a [`Session`].
//!
//! The databases share nearly every statement. What they spell differently is a value, the
//! [`Dialect`] of the session; a statement that only one of them has stands in a `match` on it.

mod attempts;
pub mod conditions;
mod creation;
pub mod curve;
pub mod events;
pub mod failures;
pub mod history;
pub mod inspect;
pub mod job_query;
pub mod jobs;
pub mod ledger;
pub mod letters;
pub mod memos;
pub mod outbox;
pub mod outputs;
pub mod parking;
pub mod prerequisites;
pub mod request_keys;
pub mod retention;
pub mod rounds;
pub mod session;
mod shards;
pub mod statement;
pub mod transaction;
mod uploads;
mod views;

use std::sync::Arc;
use std::time::Duration;

use contract::JobStatus;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::postgres::{self, PostgresServer};
use super::sqlite::{self, SqliteFile};
use super::{
    Backend, Clock, DbError, DbFuture, Inspect, JobRow, JobTexts, KeptBlobRow, KeptRow,
    KeptTaskRow, Label, LongText, Part, Reads, Signals, Transaction, TransitionRow, UnsentStart,
};
use crate::definition::PackedDefinition;
use crate::error::{Availability, StoreError};
use crate::ledger::{KeptAttempt, KeptFailure, NodeKey, NodeRow};
use crate::model::{Backlog, KeyedRequest, OutboxMessage, StuckJob};
use crate::query::JobQuery;
use session::Session;
use statement::Dialect;
use transaction::SqlTransaction;

/// How long a read that looks at many rows waits for others.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// A store in one of the databases.
#[derive(Debug)]
pub struct SqlBackend {
    database: Database,
    signals: Arc<Signals>,
    clock: Clock,
    /// The places of reads that look at many rows: half of the connections.
    lists: Arc<Semaphore>,
}

#[derive(Debug)]
enum Database {
    Postgres(PostgresServer),
    Sqlite(SqliteFile),
}

impl SqlBackend {
    /// Opens a PostgreSQL database; with `patience` also later, if it is not available now.
    pub async fn postgres(url: &str, patience: bool) -> Result<Self, StoreError> {
        let signals = Arc::new(Signals::default());
        let server = PostgresServer::open(url, patience, signals.clone()).await?;
        Ok(Self {
            database: Database::Postgres(server),
            signals,
            clock: Clock::system(),
            lists: lists(postgres::CONNECTIONS),
        })
    }

    /// Opens a SQLite file. Its clock may have been set back since it was closed.
    pub async fn sqlite(url: &str) -> Result<Self, StoreError> {
        let file = SqliteFile::open(url).await?;
        let mut writer = file.writer().await?;
        outbox::bring_back(&mut writer).await?;
        conditions::bring_back(&mut writer).await?;
        drop(writer);
        Ok(Self {
            database: Database::Sqlite(file),
            signals: Arc::default(),
            clock: Clock::system(),
            lists: lists(sqlite::READERS),
        })
    }

    /// Returns a session for reads outside a transaction.
    async fn reader(&self) -> Result<Session, DbError> {
        match &self.database {
            Database::Postgres(server) => server.session().await,
            Database::Sqlite(file) => file.reader().await,
        }
    }

    /// Returns a session for a read that looks at many rows. The other half of the connections is
    /// left to reads that look at few.
    async fn lister(&self) -> Result<Session, DbError> {
        let place = timeout(LIST_PATIENCE, Arc::clone(&self.lists).acquire_owned());
        let place = place.await.ok().and_then(Result::ok);
        let place =
            place.ok_or_else(|| DbError::Unavailable("other lists take too long".into()))?;
        Ok(self.reader().await?.with_place(place))
    }

    /// Returns a session that has begun a transaction.
    async fn begin_session(&self) -> Result<Session, DbError> {
        match &self.database {
            Database::Postgres(server) => server.begin().await,
            Database::Sqlite(file) => file.begin().await,
        }
    }
}

impl Backend for SqlBackend {
    fn kind(&self) -> &'static str {
        match self.database {
            Database::Postgres(_) => "postgres",
            Database::Sqlite(_) => "sqlite",
        }
    }
    fn is_server(&self) -> bool {
        matches!(self.database, Database::Postgres(_))
    }
    fn clock(&self) -> &Clock {
        &self.clock
    }
    fn signals(&self) -> &Signals {
        &self.signals
    }
    fn availability(&self) -> watch::Receiver<Availability> {
        match &self.database {
            Database::Postgres(server) => server.availability(),
            Database::Sqlite(_) => watch::Sender::new(Availability::Available).subscribe(),
        }
    }
    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let session = self.begin_session().await?;
            let transaction = SqlTransaction::new(session, self.signals.clone());
            Ok(Box::new(transaction) as Box<dyn Transaction>)
        })
    }
    fn ping(&self) -> DbFuture<'_, ()> {
        Box::pin(async move {
            let mut db = self.reader().await?;
            let ping = db.statement(match db.dialect() {
                Dialect::Postgres => "select 1",
                // Reads the file, which a bare `select 1` does not.
                Dialect::Sqlite => "select 1 from job limit 1",
            });
            db.fetch(ping, |_| Ok(())).await.map(drop)
        })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        match &self.database {
            Database::Postgres(server) => Box::pin(server.close()),
            Database::Sqlite(file) => Box::pin(file.close()),
        }
    }
    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Reads for SqlBackend {
    fn job<'a>(&'a self, partition: &'a str, job: &'a str) -> DbFuture<'a, Option<JobRow>> {
        Box::pin(async move { jobs::find(&mut self.reader().await?, partition, job).await })
    }
    fn jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move { job_query::page(&mut self.lister().await?, partition, query).await })
    }
    fn job_numbers<'a>(
        &'a self,
        partition: &'a str,
        query: &'a JobQuery,
    ) -> DbFuture<'a, Vec<i64>> {
        Box::pin(
            async move { job_query::numbers(&mut self.lister().await?, partition, query).await },
        )
    }
    fn jobs_numbered<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move { jobs::numbered(&mut self.reader().await?, incarnations).await })
    }
    fn texts<'a>(
        &'a self,
        incarnations: &'a [i64],
        part: Part,
    ) -> DbFuture<'a, Vec<(i64, JobTexts)>> {
        Box::pin(async move { jobs::texts(&mut self.reader().await?, incarnations, part).await })
    }
    fn text(&self, incarnation: i64, which: LongText, part: Part) -> DbFuture<'_, Option<String>> {
        Box::pin(
            async move { jobs::text(&mut self.reader().await?, incarnation, which, part).await },
        )
    }
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64> {
        Box::pin(async move { job_query::count(&mut self.lister().await?, partition, query).await })
    }
    fn count_by_status<'a>(
        &'a self,
        partition: &'a str,
        query: &'a JobQuery,
    ) -> DbFuture<'a, Vec<(JobStatus, u64)>> {
        Box::pin(async move {
            job_query::count_by_status(&mut self.lister().await?, partition, query).await
        })
    }
    fn partitions<'a>(&'a self, after: &'a str, limit: u32) -> DbFuture<'a, Vec<String>> {
        Box::pin(async move { jobs::partitions(&mut self.reader().await?, after, limit).await })
    }
    fn dependents_of<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
        limit: u32,
    ) -> DbFuture<'a, Vec<(String, JobStatus)>> {
        Box::pin(async move {
            prerequisites::waiting_for(&mut self.reader().await?, partition, job, limit).await
        })
    }
    fn labels<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<Label>> {
        Box::pin(async move { jobs::labels(&mut self.reader().await?, incarnations).await })
    }
    fn failures<'a>(
        &'a self,
        incarnations: &'a [i64],
        limit: usize,
    ) -> DbFuture<'a, Vec<(i64, KeptFailure)>> {
        Box::pin(async move {
            failures::first_of_each(&mut self.reader().await?, incarnations, limit).await
        })
    }
    fn failures_after<'a>(
        &'a self,
        incarnation: i64,
        after: (i64, &'a str),
        limit: usize,
    ) -> DbFuture<'a, Vec<KeptFailure>> {
        Box::pin(async move {
            failures::after(&mut self.reader().await?, incarnation, after, limit).await
        })
    }
    fn failures_kept(&self, incarnation: i64) -> DbFuture<'_, i64> {
        Box::pin(async move { failures::count(&mut self.reader().await?, incarnation).await })
    }
    fn failure<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, Option<KeptFailure>> {
        Box::pin(async move { failures::find(&mut self.reader().await?, incarnation, path).await })
    }
    fn history(
        &self,
        incarnation: i64,
        after: i64,
        limit: u32,
    ) -> DbFuture<'_, Vec<TransitionRow>> {
        Box::pin(async move {
            history::read(&mut self.reader().await?, incarnation, after, limit).await
        })
    }
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move { ledger::nodes(&mut self.reader().await?, incarnation, keys).await })
    }
    fn task_pipes(&self, limit: u32) -> DbFuture<'_, Vec<String>> {
        Box::pin(async move { rounds::task_pipes(&mut self.reader().await?, limit).await })
    }
    fn source<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
    ) -> DbFuture<'a, Option<(i64, PackedDefinition)>> {
        Box::pin(async move { rounds::source(&mut self.reader().await?, partition, job).await })
    }
    fn request_with_key<'a>(
        &'a self,
        partition: &'a str,
        key: &'a str,
    ) -> DbFuture<'a, Option<KeyedRequest>> {
        Box::pin(async move { request_keys::find(&mut self.reader().await?, partition, key).await })
    }
    fn past_failures<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptFailure)>> {
        Box::pin(async move {
            rounds::past_failures(&mut self.reader().await?, incarnation, path).await
        })
    }
    fn attempts<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptAttempt)>> {
        Box::pin(
            async move { attempts::of_task(&mut self.reader().await?, incarnation, path).await },
        )
    }
    fn next_attempts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, i64)>> {
        Box::pin(async move { attempts::next_times(&mut self.reader().await?, incarnations).await })
    }
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64> {
        Box::pin(async move { parking::count(&mut self.reader().await?, incarnation).await })
    }
    fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(async move { outbox::due_messages(&mut self.reader().await?, limit).await })
    }
    fn blob_owner(&self) -> DbFuture<'_, String> {
        Box::pin(async move { outputs::owner(&mut self.reader().await?).await })
    }
    fn kept_bytes(&self) -> DbFuture<'_, u64> {
        Box::pin(async move { outputs::bytes(&mut self.reader().await?).await })
    }
    fn kept<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<KeptRow>> {
        Box::pin(async move { outputs::kept(&mut self.reader().await?, incarnations).await })
    }
    fn kept_blobs(
        &self,
        incarnation: i64,
        from_line: i64,
        failed: Option<bool>,
        limit: u32,
    ) -> DbFuture<'_, Vec<KeptBlobRow>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            outputs::blobs(db, incarnation, from_line, failed, limit).await
        })
    }
    fn last_kept_blobs(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<KeptBlobRow>> {
        Box::pin(
            async move { outputs::last_blobs(&mut self.reader().await?, incarnation, limit).await },
        )
    }
    fn kept_tasks<'a>(
        &'a self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>> {
        Box::pin(async move {
            outputs::tasks(&mut self.reader().await?, incarnation, keys, false).await
        })
    }
    fn doomed_outputs(&self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move { outputs::doomed(&mut self.reader().await?, limit).await })
    }
    fn backlog(&self) -> DbFuture<'_, Backlog> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let (due_messages, oldest_due) = outbox::due(db).await?;
            Ok(Backlog {
                jobs: jobs::count_by_status(db).await?,
                parked_tasks: parking::count_all(db).await?,
                due_messages,
                oldest_due,
            })
        })
    }
    fn stuck_jobs(&self, idle: u64, limit: u32) -> DbFuture<'_, Vec<StuckJob>> {
        Box::pin(async move { jobs::stuck(&mut self.reader().await?, idle, limit).await })
    }
    fn prerequisites<'a>(
        &'a self,
        incarnations: &'a [i64],
    ) -> DbFuture<'a, Vec<(i64, String, Option<JobStatus>)>> {
        Box::pin(
            async move { prerequisites::of_jobs(&mut self.reader().await?, incarnations).await },
        )
    }
    fn unsent_starts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<UnsentStart>> {
        Box::pin(
            async move { outbox::unsent_starts(&mut self.reader().await?, incarnations).await },
        )
    }
}

fn lists(connections: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections as usize / 2))
}

/// Returns a span of time as the databases count it, limited so that it can be added to a time.
fn millis(span: u64) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
