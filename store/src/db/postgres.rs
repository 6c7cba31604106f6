//! A PostgreSQL server, for any number of processes.
//!
//! Due times are taken from the database's clock, because the clocks of its clients differ.

mod answer;
mod encryption;
pub mod listen;
mod opening;
mod supervision;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::timeout;

use super::sql::session::Session;
use super::{Result, Signals};
use crate::error::{Availability, Cause, StoreError};
use crate::masked;
pub use answer::answers;
use listen::Listener;
use opening::Database;

pub const CONNECTIONS: u32 = 8;
/// How long an operation waits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The same while the database is known to be unavailable: callers get the error soon.
const CONNECT_LIMIT_WHILE_AWAY: Duration = Duration::from_secs(1);
/// How long one transaction or read may take before its connection is dropped.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(90);
/// How long a statement of a transaction waits for a lock, in milliseconds. A connection waits with
/// it, and there are few: the transaction is rolled back then, and runs again later. A deadlock
/// ends in this way, too.
const LOCK_LIMIT: u32 = 500;
/// The schema of the store, so that the database may be shared, also with the tables of the CAF Job
/// Service.
pub const SCHEMA: &str = "batchwright";
/// Settings of each connection. The limits, which the server enforces, are in milliseconds, and
/// shorter than ours, so that its more precise error comes first.
const SESSION: [(&str, &str); 6] = [
    ("lock_timeout", "20000"),
    ("statement_timeout", "60000"),
    ("idle_in_transaction_session_timeout", "60000"),
    ("tcp_user_timeout", "30000"),
    // A connection keeps the plans of its statements. One that was made while a table had a page
    // would read the whole of it for each row that is looked up, also when it has grown to many
    // thousand.
    ("enable_seqscan", "off"),
    // A plan that reads a whole table nevertheless looks expensive then, and would be compiled.
    ("jit", "off"),
];

#[derive(Debug)]
pub struct PostgresServer {
    database: Arc<Database>,
    listener: Listener,
}

impl PostgresServer {
    /// Opens the database now; with `patience` also later, if it is not available now. Wakes
    /// `signals` on notifications.
    pub async fn open(
        url: &str,
        patience: bool,
        signals: Arc<Signals>,
    ) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
            let message = format!(
                "{error}; its URL must look like postgres://user:password@host:5432/database"
            );
            StoreError::unusable(masked(url), Cause::from(error).with_message(message))
        })?;
        encryption::check_files(&options)
            .map_err(|problem| StoreError::unusable(masked(url), problem))?;
        let is_named = options.get_application_name().is_some();
        let options = if is_named {
            options
        } else {
            options.application_name("batchwright")
        };
        let options = options.options([("search_path", SCHEMA)]).options(SESSION);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECT_LIMIT)
            .connect_lazy_with(options.clone());
        let database = Arc::new(Database::new(url, options, pool));
        let not_yet = match database.open().await {
            Ok(()) => None,
            Err(error @ StoreError::Unavailable(_)) if patience => Some(error),
            Err(error) => return Err(error),
        };
        let listener = Listener::start(Arc::clone(&database), signals, not_yet).await;
        Ok(Self { database, listener })
    }

    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.database.availability()
    }

    pub async fn session(&self) -> Result<Session> {
        self.database.check_open()?;
        let acquiring = self.database.pool.acquire();
        let connection = if self.database.is_away() {
            timeout(CONNECT_LIMIT_WHILE_AWAY, acquiring)
                .await
                .map_err(|_| self.database.away())??
        } else {
            acquiring.await?
        };
        Ok(Session::postgres(connection, TRANSACTION_LIMIT))
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> Result<Session> {
        let mut session = self.session().await?;
        session.begin(LOCK_LIMIT).await?;
        Ok(session)
    }

    pub async fn close(&self) {
        self.listener.stop().await;
        self.database.pool.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sql::ledger::none_if_swept;
    use super::*;

    #[tokio::test]
    async fn listener_that_panics_makes_the_database_unavailable_until_it_listens_again() {
        let database = harness::postgres().await.unwrap();
        let signals = Arc::<Signals>::default();
        let server = PostgresServer::open(&database.url, false, Arc::clone(&signals));
        let server = server.await.unwrap();
        let (mut availability, mut outbox) = (
            server.availability(),
            signals.receiver(crate::db::Signal::Outbox),
        );
        outbox.mark_unchanged();
        let panic = "notify batchwright, 'panic'".to_owned();
        let mut session = server.session().await.unwrap();
        session.run_script(panic).await.unwrap();
        drop(session);
        let away = availability.wait_for(|now| *now != Availability::Available);
        let away = harness::in_time("the panic", away).await.unwrap().clone();
        let reason = "database: notifications begins again after a panic";
        assert!(
            matches!(&away, Availability::Unavailable(why) if why.starts_with(reason)),
            "{away:?}"
        );
        let back = availability.wait_for(|now| *now == Availability::Available);
        drop(harness::in_time("the listener", back).await.unwrap());
        // What was notified meanwhile is not lost: every signal wakes.
        harness::in_time("a signal", outbox.changed())
            .await
            .unwrap();
        server.close().await;
    }

    #[tokio::test]
    async fn swept_table_is_recognised_in_any_language_of_the_server() {
        let database = harness::postgres().await.unwrap();
        let server = PostgresServer::open(&database.url, false, Arc::default())
            .await
            .unwrap();
        // What a server with `lc_messages = 'de_DE'` reports.
        let german = "do $$ begin raise exception using errcode = '42P01', \
            message = 'Relation »task_1« existiert nicht'; end $$";
        let mut session = server.session().await.unwrap();
        let error = session.run_script(german.to_owned()).await.unwrap_err();
        assert_eq!(none_if_swept::<()>(error).unwrap(), []);
    }

    #[tokio::test]
    async fn statement_that_fails_does_not_cost_its_connection() {
        let database = harness::postgres().await.unwrap();
        let server = PostgresServer::open(&database.url, false, Arc::default());
        let server = server.await.unwrap();
        // All that the pool may have, so that it opens another one only if it has lost one.
        let all = async || {
            let (mut sessions, mut processes) = (Vec::new(), BTreeSet::new());
            for _ in 0..CONNECTIONS {
                let mut session = server.session().await.unwrap();
                let select = session.statement("select cast(pg_backend_pid() as bigint)");
                processes.insert(session.fetch_count(select).await.unwrap());
                sessions.push(session);
            }
            (sessions, processes)
        };
        let (mut sessions, before) = all().await;
        for (at, session) in sessions.iter_mut().enumerate() {
            let text = "select * from task_0";
            let statement = session.statement(text);
            let failed = match at % 3 {
                0 => session.fetch(statement, |_| Ok(())).await.map(drop),
                1 => session.execute(statement).await.map(drop),
                _ => session.run_script(text.to_owned()).await,
            };
            assert_eq!(none_if_swept::<()>(failed.unwrap_err()).unwrap(), []);
        }
        drop(sessions);
        assert_eq!(all().await.1, before);
        server.close().await;
    }
}
