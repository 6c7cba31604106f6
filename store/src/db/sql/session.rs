//! A connection at work: runs statements, and goes back to its pool only if it is in order.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgRow, Postgres};
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, Executor as _, Row as _, Type};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::statement::{Dialect, Statement};
use crate::db::postgres::listen::CHANNEL;
use crate::db::sqlite::readers::Reader;
use crate::db::sqlite::statement::{Column, FromColumn, SqliteRow};
use crate::db::sqlite::turns::Turn;
use crate::db::{DbError, Result, Signal, Wakes};

/// A connection taken from a pool for one transaction or one read.
///
/// What must stay true: a connection to PostgreSQL that is dropped within a transaction or a
/// statement is closed. So the database rolls back, and no connection returns to its pool while a
/// result is still on its way. SQLite's connections roll back themselves ([`Turn`]).
///
/// The futures of statements are boxed, because each operation of the store has many of them.
pub struct Session {
    connection: Connection,
    /// The place of a read that looks at many rows.
    place: Option<OwnedSemaphorePermit>,
    /// Whom the commit wakes.
    wakes: Wakes,
}

enum Connection {
    Postgres(PostgresConnection),
    Reader(Reader),
    /// At the one connection that writes; `None` once it is over.
    Turn(Option<Turn>),
}

/// A connection to PostgreSQL, and until when everything that it does must be over.
struct PostgresConnection {
    connection: PoolConnection<Postgres>,
    limit: Duration,
    deadline: Instant,
    in_transaction: bool,
    in_statement: bool,
}

impl Session {
    /// Everything that the session does must be over within `limit`.
    pub fn postgres(connection: PoolConnection<Postgres>, limit: Duration) -> Self {
        Self::new(Connection::Postgres(PostgresConnection {
            connection,
            limit,
            deadline: Instant::now() + limit,
            in_transaction: false,
            in_statement: false,
        }))
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
            Connection::Postgres(_) => Dialect::Postgres,
            Connection::Reader(_) | Connection::Turn(_) => Dialect::Sqlite,
        }
    }

    /// Returns a statement in the dialect of this database. See [`Dialect::statement`].
    pub fn statement(&self, text: impl Into<Cow<'static, str>>) -> Statement {
        self.dialect().statement(text)
    }

    /// Begins a transaction of PostgreSQL whose statements wait for each lock for this number of
    /// milliseconds. A turn has begun one.
    pub async fn begin(&mut self, lock_limit: u32) -> Result<()> {
        self.set_in_transaction(true);
        // One round trip.
        let text = format!("begin; set local lock_timeout = {lock_limit}");
        self.run_script(text).await
    }

    /// Commits, and wakes those who wait for it: PostgreSQL notifies every process as part of the
    /// commit. A SQLite file has one process. Returns the signals to send in it.
    pub async fn commit(mut self) -> Result<Vec<Wakes>> {
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
        self.set_in_transaction(false);
        Ok(Vec::new())
    }

    /// Rolls back. Returns the signals of others to send, as [`Self::commit`] does.
    pub async fn rollback(mut self) -> Result<Vec<Wakes>> {
        if let Some(turn) = self.take_turn() {
            return turn.rollback().await;
        }
        self.run(self.statement("rollback")).await?;
        self.set_in_transaction(false);
        Ok(Vec::new())
    }

    fn set_in_transaction(&mut self, in_transaction: bool) {
        if let Connection::Postgres(server) = &mut self.connection {
            server.in_transaction = in_transaction;
        }
    }

    fn take_turn(&mut self) -> Option<Turn> {
        match &mut self.connection {
            Connection::Turn(turn) => turn.take(),
            _ => None,
        }
    }

    /// Runs a statement and returns how many rows it changed.
    pub fn execute(&mut self, statement: Statement) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            match (&mut self.connection, statement) {
                (Connection::Postgres(server), Statement::Postgres(query)) => {
                    let done = server.run(|connection| connection.execute(query)).await?;
                    Ok(done.rows_affected())
                }
                (connection, Statement::Sqlite(statement)) => {
                    let work = |sqlite: &_| statement.execute(sqlite);
                    connection.run_sqlite(work).await
                }
                _ => Err(wrong_dialect()),
            }
        })
    }

    /// Runs a statement.
    pub async fn run(&mut self, statement: Statement) -> Result<()> {
        self.execute(statement).await.map(drop)
    }

    /// Runs a statement and returns the result of `read` for each row.
    pub async fn fetch<T>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row<'_>) -> Result<T> + Send,
    ) -> Result<Vec<T>> {
        match self.rows(statement).await? {
            Rows::Postgres(rows) => rows.iter().map(|row| read(Row::Postgres(row))).collect(),
            // Each is dropped when it has been read.
            Rows::Sqlite(rows) => {
                let rows = rows.into_iter();
                rows.map(|row| read(Row::Sqlite(&row))).collect()
            }
        }
    }

    fn rows(&mut self, statement: Statement) -> BoxFuture<'_, Result<Rows>> {
        Box::pin(async move {
            match (&mut self.connection, statement) {
                (Connection::Postgres(server), Statement::Postgres(query)) => {
                    let rows = server.run(|connection| connection.fetch_all(query));
                    Ok(Rows::Postgres(rows.await?))
                }
                (connection, Statement::Sqlite(statement)) => {
                    let rows = connection.run_sqlite(|sqlite| statement.fetch(sqlite));
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
        read: impl Fn(Row<'_>) -> Result<T> + Send,
    ) -> Result<Option<T>> {
        Ok(self.fetch(statement, read).await?.into_iter().next())
    }

    /// Runs a statement and returns whether it finds a row.
    pub async fn finds(&mut self, statement: Statement) -> Result<bool> {
        Ok(self.fetch_first(statement, |_| Ok(())).await?.is_some())
    }

    /// Runs a statement that returns one number that is not negative.
    pub async fn fetch_count(&mut self, statement: Statement) -> Result<u64> {
        let count = self.fetch_first(statement, |row| row.unsigned(0)).await?;
        Ok(count.unwrap_or_default())
    }

    /// Runs a statement that returns in how many milliseconds something is due, or null.
    pub async fn fetch_wait(&mut self, statement: Statement) -> Result<Option<Duration>> {
        let left: Option<Option<i64>> = self.fetch_first(statement, |row| row.get(0)).await?;
        let wait = |left| Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Ok(left.flatten().map(wait))
    }

    /// Runs any number of statements without parameters.
    pub async fn run_script(&mut self, text: String) -> Result<()> {
        match &mut self.connection {
            Connection::Postgres(server) => {
                let script = sqlx::raw_sql(AssertSqlSafe(text));
                let done = server.run(|connection| connection.execute(script));
                done.await.map(drop)
            }
            connection => {
                let work = move |sqlite: &rusqlite::Connection| sqlite.execute_batch(&text);
                connection.run_sqlite(work).await
            }
        }
    }
}

impl Connection {
    /// Runs this at a connection to SQLite.
    async fn run_sqlite<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        match self {
            Self::Reader(reader) => reader.run(work).await,
            Self::Turn(Some(turn)) => turn.run(work).await,
            Self::Postgres(_) | Self::Turn(None) => Err(wrong_dialect()),
        }
    }
}

impl PostgresConnection {
    /// Runs what `begin` begins, within the time that is left.
    async fn run<T>(
        &mut self,
        begin: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, sqlx::Result<T>>,
    ) -> Result<T> {
        self.in_statement = true;
        let done = timeout_at(self.deadline, begin(&mut self.connection)).await;
        let done = done.map_err(|_| too_slow(self.limit))?;
        // Also the error of a database is the end of a result.
        self.in_statement = !matches!(done, Ok(_) | Err(sqlx::Error::Database(_)));
        Ok(done?)
    }
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        if self.in_transaction || self.in_statement {
            self.connection.close_on_drop();
        }
    }
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

/// Reads rows into a struct: each field from the column of its name, or from the one behind it. The
/// columns must come in this order, and first.
macro_rules! columns {
    ($kind:ident { $first:ident $(: $first_column:ident)?
        $(, $field:ident $(: $column:ident)?)* }) => {
        impl $kind {
            pub(super) const COLUMNS: &str = concat!(
                columns!(@name $first $($first_column)?)
                $(, ", ", columns!(@name $field $($column)?))*
            );

            pub(super) fn read(
                row: $crate::db::sql::session::Row<'_>,
            ) -> $crate::db::Result<Self> {
                let mut place = 0..;
                let mut next = || place.next().unwrap_or_default();
                Ok(Self {
                    $first: row.get(next())?,
                    $($field: row.get(next())?),*
                })
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $column:ident) => { stringify!($column) };
}
pub(super) use columns;

/// A row of a result.
#[derive(Clone, Copy)]
pub enum Row<'r> {
    Postgres(&'r PgRow),
    Sqlite(&'r SqliteRow),
}

impl<'r> Row<'r> {
    /// Returns the value of a column, by its number or its name.
    pub fn get<T, I>(self, column: I) -> Result<T>
    where
        T: Decode<'r, Postgres> + Type<Postgres> + FromColumn<'r>,
        I: ColumnIndex<PgRow> + Column,
    {
        match self {
            Self::Postgres(row) => Ok(row.try_get(column)?),
            Self::Sqlite(row) => row.get(column),
        }
    }

    /// Returns a number that is not negative.
    pub fn unsigned<I: ColumnIndex<PgRow> + Column>(self, column: I) -> Result<u64> {
        Ok(u64::try_from(self.get::<i64, I>(column)?).unwrap_or_default())
    }

    /// Returns a number of a column of the type `integer` that is not negative.
    pub fn small<I: ColumnIndex<PgRow> + Column>(self, column: I) -> Result<u32> {
        Ok(u32::try_from(self.get::<i32, I>(column)?).unwrap_or_default())
    }

    /// Returns what a column has as JSON, or the default if it is null.
    pub fn json<T, I>(self, column: I) -> Result<T>
    where
        T: DeserializeOwned + Default,
        I: ColumnIndex<PgRow> + Column,
    {
        let text: Option<&str> = self.get(column)?;
        let value = text.map(serde_json::from_str).transpose()?;
        Ok(value.unwrap_or_default())
    }
}
