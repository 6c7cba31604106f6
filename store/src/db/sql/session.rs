//! A connection at work: runs statements, and goes back to its pool only if it is in order.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, Row as _, Type};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::statement::{Dialect, Statement};
use crate::db::postgres::listen::CHANNEL;
use crate::db::sqlite::readers::Reader;
use crate::db::sqlite::statement::{Column, FromColumn, SqliteRow};
use crate::db::sqlite::turns::Turn;
use crate::db::{DbError, Signal, Wakes};

/// A connection taken from a pool for one transaction or one read.
///
/// What must stay true: a connection to PostgreSQL that is dropped within a transaction or a
/// statement is closed. So the database rolls back, and no connection returns to its pool while a
/// result is still on its way. SQLite's connections roll back themselves ([`Turn`]).
///
/// The futures of statements are boxed, because each operation of the store has many of them.
pub struct Session {
    connection: Connection,
    in_transaction: bool,
    in_statement: bool,
    /// The place of a read that looks at many rows.
    place: Option<OwnedSemaphorePermit>,
    /// Whom the commit wakes.
    wakes: Wakes,
}

enum Connection {
    Postgres {
        connection: PoolConnection<Postgres>,
        limit: Duration,
        deadline: Instant,
    },
    Reader(Reader),
    /// At the one connection that writes; `None` once it is over.
    Turn(Option<Turn>),
}

impl Session {
    /// Everything that the session does must be over within `limit`.
    pub fn postgres(connection: PoolConnection<Postgres>, limit: Duration) -> Self {
        Self::new(Connection::Postgres {
            connection,
            limit,
            deadline: Instant::now() + limit,
        })
    }

    pub fn of_reader(reader: Reader) -> Self {
        Self::new(Connection::Reader(reader))
    }

    /// Keeps the place until the session is dropped.
    pub fn with_place(self, place: OwnedSemaphorePermit) -> Self {
        let mut session = self;
        session.place = Some(place);
        session
    }

    /// The turn has begun a transaction.
    pub fn of_turn(turn: Turn) -> Self {
        Self::new(Connection::Turn(Some(turn)))
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            in_transaction: false,
            in_statement: false,
            place: None,
            wakes: Wakes::default(),
        }
    }

    /// Wakes the receivers of this signal once the transaction is committed.
    pub fn notify(&mut self, signal: Signal) {
        self.wakes.add(signal);
    }

    /// Wakes those who watch this job once the transaction is committed.
    pub fn notify_job(&mut self, partition: &str, job: &str) {
        self.wakes.add_job(partition, job);
    }

    /// Wakes those who watch any job once the transaction is committed.
    pub fn notify_any_job(&mut self) {
        self.wakes.add_any_job();
    }

    /// Wakes those who read events. PostgreSQL's triggers do that themselves.
    pub fn note_events(&mut self) {
        if self.dialect() == Dialect::Sqlite {
            self.wakes.add(Signal::Events);
        }
    }

    pub fn dialect(&self) -> Dialect {
        match self.connection {
            Connection::Postgres { .. } => Dialect::Postgres,
            Connection::Reader(_) | Connection::Turn(_) => Dialect::Sqlite,
        }
    }

    /// Returns a statement in the dialect of this database. See [`Dialect::statement`].
    pub fn statement(&self, text: impl Into<Cow<'static, str>>) -> Statement {
        self.dialect().statement(text)
    }

    /// Begins a transaction of PostgreSQL whose statements wait for each lock for this number of
    /// milliseconds. A turn has begun one.
    pub async fn begin(&mut self, lock_limit: u32) -> Result<(), DbError> {
        self.in_transaction = true;
        // One round trip.
        let text = format!("begin; set local lock_timeout = {lock_limit}");
        self.run_script(text).await
    }

    /// Commits, and wakes those who wait for it: PostgreSQL notifies every process as part of the
    /// commit. A SQLite file has one process. Returns the signals to send in it.
    pub async fn commit(mut self) -> Result<Vec<Wakes>, DbError> {
        let wakes = std::mem::take(&mut self.wakes);
        if let Some(turn) = self.take_turn() {
            return turn.commit(wakes).await;
        }
        let text = if wakes.is_empty() {
            "commit".to_owned()
        } else {
            // One round trip.
            let payload = wakes.payload().replace('\'', "''");
            format!("select pg_notify('{CHANNEL}', '{payload}'); commit")
        };
        self.run_script(text).await?;
        self.in_transaction = false;
        Ok(Vec::new())
    }

    /// Rolls back. Returns the signals of others to send, as [`Self::commit`] does.
    pub async fn rollback(mut self) -> Result<Vec<Wakes>, DbError> {
        if let Some(turn) = self.take_turn() {
            return turn.rollback().await;
        }
        self.execute(self.statement("rollback")).await?;
        self.in_transaction = false;
        Ok(Vec::new())
    }

    fn take_turn(&mut self) -> Option<Turn> {
        match &mut self.connection {
            Connection::Turn(turn) => turn.take(),
            _ => None,
        }
    }

    /// Runs a statement and returns how many rows it changed.
    pub fn execute(&mut self, statement: Statement) -> BoxFuture<'_, Result<u64, DbError>> {
        Box::pin(async move {
            match (&mut self.connection, statement) {
                (
                    Connection::Postgres {
                        connection,
                        limit,
                        deadline,
                    },
                    Statement::Postgres(query),
                ) => {
                    self.in_statement = true;
                    let done = timeout_at(*deadline, query.execute(&mut **connection)).await;
                    let done = done.map_err(|_| too_slow(*limit))?;
                    self.in_statement = !is_over(&done);
                    Ok(done?.rows_affected())
                }
                (Connection::Reader(reader), Statement::Sqlite(statement)) => {
                    reader.run(|sqlite| statement.execute(sqlite)).await
                }
                (Connection::Turn(Some(turn)), Statement::Sqlite(statement)) => {
                    turn.run(|sqlite| statement.execute(sqlite)).await
                }
                _ => Err(wrong_dialect()),
            }
        })
    }

    /// Runs a statement and returns the result of `read` for each row.
    pub async fn fetch<T>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row<'_>) -> Result<T, DbError> + Send,
    ) -> Result<Vec<T>, DbError> {
        match self.rows(statement).await? {
            Rows::Postgres(rows) => rows.iter().map(|row| read(Row::Postgres(row))).collect(),
            // Each is dropped when it has been read.
            Rows::Sqlite(rows) => {
                let rows = rows.into_iter();
                rows.map(|row| read(Row::Sqlite(&row))).collect()
            }
        }
    }

    fn rows(&mut self, statement: Statement) -> BoxFuture<'_, Result<Rows, DbError>> {
        Box::pin(async move {
            match (&mut self.connection, statement) {
                (
                    Connection::Postgres {
                        connection,
                        limit,
                        deadline,
                    },
                    Statement::Postgres(query),
                ) => {
                    self.in_statement = true;
                    let rows = timeout_at(*deadline, query.fetch_all(&mut **connection)).await;
                    let rows = rows.map_err(|_| too_slow(*limit))?;
                    self.in_statement = !is_over(&rows);
                    Ok(Rows::Postgres(rows?))
                }
                (Connection::Reader(reader), Statement::Sqlite(statement)) => {
                    let rows = reader.run(|sqlite| statement.fetch(sqlite));
                    Ok(Rows::Sqlite(rows.await?))
                }
                (Connection::Turn(Some(turn)), Statement::Sqlite(statement)) => {
                    let rows = turn.run(|sqlite| statement.fetch(sqlite));
                    Ok(Rows::Sqlite(rows.await?))
                }
                _ => Err(wrong_dialect()),
            }
        })
    }

    /// Runs a statement and returns the result of `read` for the first row.
    pub async fn fetch_first<T>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row<'_>) -> Result<T, DbError> + Send,
    ) -> Result<Option<T>, DbError> {
        Ok(self.fetch(statement, read).await?.into_iter().next())
    }

    /// Runs a statement that returns one number that is not negative.
    pub async fn fetch_count(&mut self, statement: Statement) -> Result<u64, DbError> {
        let count: Option<i64> = self.fetch_first(statement, |row| row.get(0)).await?;
        Ok(u64::try_from(count.unwrap_or_default()).unwrap_or_default())
    }

    /// Runs any number of statements without parameters.
    pub async fn run_script(&mut self, text: String) -> Result<(), DbError> {
        match &mut self.connection {
            Connection::Postgres {
                connection,
                limit,
                deadline,
            } => {
                self.in_statement = true;
                let script = sqlx::raw_sql(AssertSqlSafe(text));
                let done = timeout_at(*deadline, script.execute(&mut **connection)).await;
                let done = done.map_err(|_| too_slow(*limit))?;
                self.in_statement = !is_over(&done);
                done.map(drop).map_err(DbError::from)
            }
            Connection::Reader(reader) => {
                reader.run(move |sqlite| sqlite.execute_batch(&text)).await
            }
            Connection::Turn(Some(turn)) => {
                turn.run(move |sqlite| sqlite.execute_batch(&text)).await
            }
            Connection::Turn(None) => Err(wrong_dialect()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if (self.in_transaction || self.in_statement)
            && let Connection::Postgres { connection, .. } = &mut self.connection
        {
            connection.close_on_drop();
        }
    }
}

/// Returns whether a statement is over: also the error of a database is the end of its result.
const fn is_over<T>(done: &Result<T, sqlx::Error>) -> bool {
    matches!(done, Ok(_) | Err(sqlx::Error::Database(_)))
}

fn too_slow(limit: Duration) -> DbError {
    let limit = limit.as_secs();
    DbError::Unavailable(format!("a transaction took longer than {limit} s").into())
}

fn wrong_dialect() -> DbError {
    DbError::Refused("a statement was written for another database".into())
}

enum Rows {
    Postgres(Vec<PgRow>),
    Sqlite(Vec<SqliteRow>),
}

/// A row of a result.
#[derive(Clone, Copy)]
pub enum Row<'r> {
    Postgres(&'r PgRow),
    Sqlite(&'r SqliteRow),
}

impl<'r> Row<'r> {
    /// Returns the value of a column, by its number or its name.
    pub fn get<T, I>(self, column: I) -> Result<T, DbError>
    where
        T: Decode<'r, Postgres> + Type<Postgres> + FromColumn<'r>,
        I: ColumnIndex<PgRow> + Column,
    {
        match self {
            Self::Postgres(row) => Ok(row.try_get(column)?),
            Self::Sqlite(row) => row.get(column),
        }
    }
}
