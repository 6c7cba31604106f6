//! A database: opens and closes it, and gives out sessions for reads and for transactions.
//!
//! What must stay true: reads that look at many rows have half of the connections, so that
//! no list keeps a single job from being read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::faults::{FaultPoint, Faults};
use super::postgres::{self, PostgresServer};
use super::sql::session::Session;
use super::sql::statement::Dialect;
use super::sql::{conditions, outbox};
use super::sqlite::{self, SqliteFile};
use super::{Clock, DbError, Result, Signals, Wakes};
use crate::error::{Availability, StoreError};

/// How long a read that looks at many rows waits for others.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// A database. It may still be unavailable.
///
/// The futures that begin a session are boxed, because each operation of the store has one.
#[derive(Debug)]
pub struct Database {
    engine: Engine,
    signals: Arc<Signals>,
    clock: Arc<Clock>,
    /// The places of reads that look at many rows: half of the connections.
    lists: Arc<Semaphore>,
    faults: Faults,
}

#[derive(Debug)]
enum Engine {
    Postgres(PostgresServer),
    Sqlite(SqliteFile),
}

impl Database {
    /// Opens a PostgreSQL database; with `patience` also later, if it is not available now.
    pub async fn postgres(url: &str, patience: bool) -> Result<Self, StoreError> {
        let signals = Arc::new(Signals::default());
        let server = PostgresServer::open(url, patience, signals.clone()).await?;
        Ok(Self {
            engine: Engine::Postgres(server),
            signals,
            clock: Clock::system().into(),
            lists: lists(postgres::CONNECTIONS),
            faults: Faults::default(),
        })
    }

    /// Opens a SQLite file. Its clock may have been set back since it was closed.
    pub async fn sqlite(url: &str) -> Result<Self, StoreError> {
        let file = SqliteFile::open(url).await?;
        let mut session = file.begin().await?;
        outbox::bring_back(&mut session).await?;
        conditions::bring_back(&mut session).await?;
        session.commit().await?;
        Ok(Self {
            engine: Engine::Sqlite(file),
            signals: Arc::default(),
            clock: Clock::system().into(),
            lists: lists(sqlite::READERS),
            faults: Faults::default(),
        })
    }

    /// Returns a new SQLite file in a temporary folder that is unavailable wherever `fails` returns
    /// true, and whose time is tokio's.
    #[cfg(any(test, feature = "internals"))]
    #[expect(clippy::expect_used, reason = "for tests, which fail by it")]
    pub fn simulated(fails: impl Fn(FaultPoint) -> bool + Send + Sync + 'static) -> Self {
        let clock = Arc::new(Clock::tokio());
        let file = SqliteFile::simulated(Arc::clone(&clock));
        Self {
            engine: Engine::Sqlite(file.expect("a temporary file can be written")),
            signals: Arc::default(),
            clock,
            lists: lists(sqlite::READERS),
            faults: Faults(Some(Arc::new(fails))),
        }
    }

    /// Returns `postgres` or `sqlite`.
    pub fn kind(&self) -> &'static str {
        match self.engine {
            Engine::Postgres(_) => "postgres",
            Engine::Sqlite(_) => "sqlite",
        }
    }

    /// Returns whether each statement is a round trip to a server.
    pub fn is_server(&self) -> bool {
        matches!(self.engine, Engine::Postgres(_))
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    pub fn availability(&self) -> watch::Receiver<Availability> {
        match &self.engine {
            Engine::Postgres(server) => server.availability(),
            Engine::Sqlite(_) => watch::Sender::new(Availability::Available).subscribe(),
        }
    }

    /// Returns a session for reads outside transactions. Each of them sees one moment; two may see
    /// different ones.
    pub fn reader(&self) -> BoxFuture<'_, Result<Session>> {
        Box::pin(async {
            self.faults.pass(FaultPoint::Read)?;
            match &self.engine {
                Engine::Postgres(server) => server.session().await,
                Engine::Sqlite(file) => file.reader().await,
            }
        })
    }

    /// Returns a session for a read that looks at many rows. The other half of the connections is
    /// left to reads that look at few.
    pub async fn lister(&self) -> Result<Session> {
        let place = timeout(LIST_PATIENCE, Arc::clone(&self.lists).acquire_owned());
        let place = place.await.ok().and_then(Result::ok);
        let place =
            place.ok_or_else(|| DbError::Unavailable("other lists take too long".into()))?;
        Ok(self.reader().await?.with_place(place))
    }

    /// Returns a session that has begun a transaction.
    pub fn begin(&self) -> BoxFuture<'_, Result<Session>> {
        Box::pin(async {
            self.faults.pass(FaultPoint::Begin)?;
            match &self.engine {
                Engine::Postgres(server) => server.begin().await,
                Engine::Sqlite(file) => file.begin().await,
            }
        })
    }

    /// Commits, then wakes.
    pub async fn commit(&self, session: Session) -> Result<()> {
        if let Err(fault) = self.faults.pass(FaultPoint::Commit) {
            self.rollback(session).await?;
            return Err(fault);
        }
        self.wake(&session.commit().await?);
        self.faults.pass(FaultPoint::Committed)
    }

    /// Rolls back and gives the connection back at once.
    pub async fn rollback(&self, session: Session) -> Result<()> {
        self.wake(&session.rollback().await?);
        Ok(())
    }

    fn wake(&self, ended: &[Wakes]) {
        for wakes in ended {
            self.signals.wake(wakes);
        }
    }

    /// Returns once the database has responded.
    pub async fn ping(&self) -> Result<()> {
        let mut db = self.reader().await?;
        let ping = db.statement(match db.dialect() {
            Dialect::Postgres => "select 1",
            // Reads the file, which a bare `select 1` does not.
            Dialect::Sqlite => "select 1 from job limit 1",
        });
        db.fetch(ping, |_| Ok(())).await.map(drop)
    }

    /// Ends background tasks and closes all connections.
    pub async fn close(&self) {
        match &self.engine {
            Engine::Postgres(server) => server.close().await,
            Engine::Sqlite(file) => file.close().await,
        }
    }
}

fn lists(connections: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections as usize / 2))
}
