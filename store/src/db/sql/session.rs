//! A connection at work: runs statements, and goes back to its pool only if it is in order.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, Row as _, Type};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::statement::{Dialect, Statement};
use crate::db::postgres::listen::CHANNEL;
use crate::db::sqlite::turns::Turn;
use crate::db::{DbError, Wakes};

/// SQLite's code of a statement that was interrupted.
const INTERRUPTED: &str = "9";

/// A connection taken from a pool for one transaction or one read.
///
/// What must stay true: a connection that is dropped within a transaction, or within a statement on
/// PostgreSQL, is closed. So the database rolls back, and no connection returns to its pool while a
/// result is still on its way.
pub struct Session {
    connection: Connection,
    in_transaction: bool,
    in_statement: bool,
    /// The place of a read that looks at many rows.
    place: Option<OwnedSemaphorePermit>,
}

enum Connection {
    Postgres {
        connection: PoolConnection<Postgres>,
        limit: Duration,
        deadline: Instant,
    },
    Sqlite {
        connection: PoolConnection<Sqlite>,
        /// `None` for the one that writes.
        limit: Option<ReadLimit>,
    },
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

    pub fn reading_sqlite(connection: PoolConnection<Sqlite>, limit: ReadLimit) -> Self {
        let limit = Some(limit);
        Self::new(Connection::Sqlite { connection, limit })
    }

    pub fn writing_sqlite(connection: PoolConnection<Sqlite>) -> Self {
        let limit = None;
        Self::new(Connection::Sqlite { connection, limit })
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
        }
    }

    pub fn dialect(&self) -> Dialect {
        match self.connection {
            Connection::Postgres { .. } => Dialect::Postgres,
            Connection::Sqlite { .. } | Connection::Turn(_) => Dialect::Sqlite,
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
    pub async fn commit(mut self, wakes: Wakes) -> Result<Vec<Wakes>, DbError> {
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
    pub async fn execute(&mut self, statement: Statement) -> Result<u64, DbError> {
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
            (Connection::Sqlite { connection, limit }, Statement::Sqlite(query)) => {
                let done = query.execute(&mut **connection).await;
                Ok(within(limit.as_ref(), done)?.rows_affected())
            }
            (Connection::Turn(Some(turn)), Statement::Sqlite(query)) => {
                let done = query.execute(&mut **turn.connection()?).await?;
                Ok(done.rows_affected())
            }
            _ => Err(wrong_dialect()),
        }
    }

    /// Runs a statement and returns the result of `read` for each row.
    pub async fn fetch<T>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row<'_>) -> Result<T, DbError> + Send,
    ) -> Result<Vec<T>, DbError> {
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
                rows?.iter().map(|row| read(Row::Postgres(row))).collect()
            }
            (Connection::Sqlite { connection, limit }, Statement::Sqlite(query)) => {
                let rows = query.fetch_all(&mut **connection).await;
                let rows = within(limit.as_ref(), rows)?;
                rows.iter().map(|row| read(Row::Sqlite(row))).collect()
            }
            (Connection::Turn(Some(turn)), Statement::Sqlite(query)) => {
                let rows = query.fetch_all(&mut **turn.connection()?).await?;
                rows.iter().map(|row| read(Row::Sqlite(row))).collect()
            }
            _ => Err(wrong_dialect()),
        }
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
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        match &mut self.connection {
            Connection::Postgres {
                connection,
                limit,
                deadline,
            } => {
                self.in_statement = true;
                let done = timeout_at(*deadline, script.execute(&mut **connection)).await;
                let done = done.map_err(|_| too_slow(*limit))?;
                self.in_statement = !is_over(&done);
                done?;
            }
            Connection::Sqlite { connection, .. } => {
                script.execute(&mut **connection).await?;
            }
            Connection::Turn(Some(turn)) => {
                script.execute(&mut **turn.connection()?).await?;
            }
            Connection::Turn(None) => return Err(wrong_dialect()),
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.in_transaction || self.in_statement {
            match &mut self.connection {
                Connection::Postgres { connection, .. } => connection.close_on_drop(),
                Connection::Sqlite { connection, .. } => connection.close_on_drop(),
                Connection::Turn(_) => {}
            }
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

/// What ends the reads of a session.
pub struct ReadLimit {
    pub limit: Duration,
    pub is_dropped: Arc<AtomicBool>,
}

impl Drop for ReadLimit {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

/// Returns the result of a read. SQLite says only that it was interrupted.
fn within<T>(limit: Option<&ReadLimit>, done: Result<T, sqlx::Error>) -> Result<T, DbError> {
    let code = |error: &sqlx::Error| Some(error.as_database_error()?.code()?.into_owned());
    done.map_err(|error| match limit {
        Some(ReadLimit { limit, .. }) if code(&error).as_deref() == Some(INTERRUPTED) => {
            let limit = limit.as_secs();
            DbError::Unavailable(format!("a read took longer than {limit} s").into())
        }
        _ => error.into(),
    })
}

fn wrong_dialect() -> DbError {
    DbError::Refused("a statement was written for another database".into())
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
        T: Decode<'r, Postgres> + Type<Postgres> + Decode<'r, Sqlite> + Type<Sqlite>,
        I: ColumnIndex<PgRow> + ColumnIndex<SqliteRow>,
    {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }
}
