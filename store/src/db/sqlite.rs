//! The store in one SQLite file, for one machine: every commit is on the disk before it is answered.
//!
//! One connection writes (`begin immediate`), others read beside it (WAL). Whoever waits is woken in this process.

mod scheduling;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, QueryBuilder, Row as _, Sqlite};

use crate::db::DbError;
use crate::db::sql::job_query;
use crate::db::sql::parking::parking_steps;
use crate::db::sql::{
    NODE_COLUMNS, NODE_UPDATE, common_steps, job_columns, read_failure, read_job, read_node,
    read_transition,
};
use crate::db::{Backend, Clock, DbFuture, JobRow, Label, Signal, Signals, Transaction};
use crate::error::{Cause, StoreError};
use crate::ledger::{KeptFailure, NodeChanges, NodeKey, NodeRow, UNNAMED_FAILURE};
use crate::query::collation;
use crate::query::filter::Filter;
use crate::{CatalogueSize, JobQuery, TaskTableSize, Transition};

/// Connections that read beside the one that writes.
const READERS: u32 = 4;
/// How many jobs with a label are few, and how many labels are looked at for one that few jobs have.
const FEW: i64 = 1000;
const LOOKED_AT: usize = 8;
/// How many rows of a task table one statement writes.
const ROWS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub struct SqliteBackend {
    writer: SqlitePool,
    readers: SqlitePool,
    signals: Arc<Signals>,
    clock: Clock,
}

impl SqliteBackend {
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let unusable = |reason: Cause| StoreError::Unusable {
            place: url.to_owned(),
            reason,
        };
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(":memory:") {
            return Err(unusable(
                "its URL must name a file, as in sqlite:/path/to/file.db".into(),
            ));
        }
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
        sqlx::migrate!("../migrations/sqlite")
            .run(&writer)
            .await
            .map_err(|error| unusable(error.into()))?;
        let readers = pool.max_connections(READERS).connect_lazy_with(options);
        Ok(Self {
            writer,
            readers,
            signals: Arc::default(),
            clock: Clock::System,
        })
    }

    async fn fetch(
        &self,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, DbError> {
        Ok(query.fetch_all(&self.readers).await?)
    }

    /// A label that only few jobs have, of those that the query wants. SQLite plans without knowing how many that are, and would
    /// look at every job of the partition for it.
    async fn rare_label<'q>(&self, query: &'q JobQuery) -> Result<job_query::Start<'q>, DbError> {
        for (name, value) in query
            .filter
            .as_ref()
            .map(Filter::required_labels)
            .unwrap_or_default()
            .into_iter()
            .take(LOOKED_AT)
        {
            let count = sqlx::query(
                "select count(*) < $3 from (select 1 from label where name = $1 and value = $2 limit $3)",
            );
            let rows = self.fetch(count.bind(name).bind(value).bind(FEW)).await?;
            if rows
                .first()
                .map(|row| row.try_get(0))
                .transpose()?
                .unwrap_or(false)
            {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }
}

fn json(values: &(impl serde::Serialize + ?Sized)) -> Result<String, DbError> {
    Ok(serde_json::to_string(values)?)
}

/// Reads rows of a task table. The keys lead; a plan that reads the whole table is not possible.
fn select_nodes(
    incarnation: i64,
    keys: &[NodeKey],
) -> Result<Query<'static, Sqlite, SqliteArguments>, DbError> {
    let columns = NODE_COLUMNS
        .split(", ")
        .map(|column| format!("t.{}", column.trim()))
        .collect::<Vec<_>>()
        .join(", ");
    let text = format!(
        "select {columns} from json_each($1) as k cross join task_{incarnation} as t \
         on t.path = k.value ->> 0 and t.chunk = k.value ->> 1 order by t.path, t.chunk"
    );
    Ok(sqlx::query(AssertSqlSafe(text)).bind(json(keys)?))
}

/// A table that the sweeper has dropped has no rows.
fn none_if_gone<T>(fault: DbError, none: T) -> Result<T, DbError> {
    match fault {
        error if error.is_missing_table() => Ok(none),
        fault => Err(fault),
    }
}

impl Backend for SqliteBackend {
    fn kind(&self) -> &'static str {
        "sqlite"
    }
    fn clock(&self) -> &Clock {
        &self.clock
    }
    fn signals(&self) -> &Signals {
        &self.signals
    }
    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let connection = self.writer.acquire().await?;
            let mut transaction = SqliteTransaction {
                connection,
                signals: self.signals.clone(),
                wake: Vec::new(),
                ended: false,
            };
            transaction.execute(sqlx::query("begin immediate")).await?;
            Ok(Box::new(transaction) as Box<dyn Transaction>)
        })
    }
    fn ping(&self) -> DbFuture<'_, ()> {
        Box::pin(async move {
            self.fetch(sqlx::query("select 1 from job limit 1"))
                .await
                .map(drop)
        })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.readers.close().await;
            self.writer.close().await;
        })
    }

    fn job<'a>(&'a self, partition: &'a str, job: &'a str) -> DbFuture<'a, Option<JobRow>> {
        Box::pin(async move {
            let query = sqlx::query(concat!(
                "select ",
                job_columns!(),
                " from job where partition_id = $1 and job_id = $2"
            ));
            let rows = self.fetch(query.bind(partition).bind(job)).await?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            Ok(Some(read_job!(row)))
        })
    }
    fn jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move {
            let mut select = job_query::page(partition, query, self.rare_label(query).await?)?;
            let mut jobs = Vec::new();
            for row in &self.fetch(job_query::once(&mut select)).await? {
                jobs.push(read_job!(row));
            }
            Ok(jobs)
        })
    }
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64> {
        Box::pin(async move {
            let mut select = job_query::count(partition, query, self.rare_label(query).await?)?;
            let rows = self.fetch(job_query::once(&mut select)).await?;
            let count: i64 = rows
                .first()
                .map(|row| row.try_get(0))
                .transpose()?
                .unwrap_or_default();
            Ok(u64::try_from(count).unwrap_or_default())
        })
    }
    fn labels<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<Label>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select incarnation, name, value from label where incarnation in (select value from json_each($1))",
            );
            let mut labels = Vec::new();
            for row in &self.fetch(query.bind(json(incarnations)?)).await? {
                labels.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
            }
            Ok(labels)
        })
    }
    fn failures<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, KeptFailure)>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select incarnation, path, since, attempts, failure from failure \
                 where incarnation in (select value from json_each($1)) order by incarnation, since, path",
            );
            let mut failures = Vec::new();
            for row in &self.fetch(query.bind(json(incarnations)?)).await? {
                failures.push((row.try_get("incarnation")?, read_failure!(row)));
            }
            Ok(failures)
        })
    }
    fn history(&self, incarnation: i64) -> DbFuture<'_, Vec<Transition>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select time, from_status, to_status, actor, reason from history where incarnation = $1 order by id",
            );
            let mut history = Vec::new();
            for row in &self.fetch(query.bind(incarnation)).await? {
                history.push(read_transition!(row));
            }
            Ok(history)
        })
    }
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move {
            let rows = self
                .fetch(select_nodes(incarnation, keys)?)
                .await
                .or_else(|fault| none_if_gone(fault, Vec::new()))?;
            let mut places = Vec::with_capacity(rows.len());
            for row in &rows {
                places.push(read_node!(row));
            }
            Ok(places)
        })
    }
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64> {
        Box::pin(async move {
            let query = sqlx::query("select count(*) from stowed_task where incarnation = $1");
            let rows = self.fetch(query.bind(incarnation)).await?;
            let count: i64 = rows
                .first()
                .map(|row| row.try_get(0))
                .transpose()?
                .unwrap_or_default();
            Ok(u64::try_from(count).unwrap_or_default())
        })
    }
    fn catalogue_size(&self) -> DbFuture<'_, CatalogueSize> {
        Box::pin(async move {
            let query = sqlx::query(
                "select (select count(*) from sqlite_schema), (select page_count from pragma_page_count) * (select page_size from pragma_page_size)",
            );
            let rows = self.fetch(query).await?;
            let Some(row) = rows.first() else {
                return Ok(CatalogueSize::default());
            };
            let number = |column: usize| {
                row.try_get::<i64, _>(column)
                    .map(|n| u64::try_from(n).unwrap_or_default())
            };
            Ok(CatalogueSize {
                entries: number(0)?,
                bytes: number(1)?,
            })
        })
    }
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize> {
        Box::pin(async move {
            let mut size = TaskTableSize::default();
            let names = sqlx::query(
                "select name from sqlite_schema where type = 'table' and name glob 'task_[0-9]*'",
            );
            for name in &self.fetch(names).await? {
                let name: &str = name.try_get(0)?;
                let count = format!(
                    "select (select count(*) from {name}), (select coalesce(sum(pgsize), 0) from dbstat where name = '{name}')"
                );
                let rows = self
                    .fetch(sqlx::query(AssertSqlSafe(count)))
                    .await
                    .or_else(|fault| none_if_gone(fault, Vec::new()))?;
                for row in &rows {
                    let (rows, bytes): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
                    size.tables += 1;
                    size.rows += u64::try_from(rows).unwrap_or_default();
                    size.bytes += u64::try_from(bytes).unwrap_or_default();
                }
            }
            Ok(size)
        })
    }
}

struct SqliteTransaction {
    connection: PoolConnection<Sqlite>,
    signals: Arc<Signals>,
    wake: Vec<Signal>,
    ended: bool,
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        if !self.ended {
            // What it has written is rolled back when the connection is closed.
            self.connection.close_on_drop();
        }
    }
}

impl SqliteTransaction {
    async fn execute(&mut self, query: Query<'_, Sqlite, SqliteArguments>) -> Result<u64, DbError> {
        Ok(query.execute(&mut *self.connection).await?.rows_affected())
    }

    async fn fetch(
        &mut self,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, DbError> {
        Ok(query.fetch_all(&mut *self.connection).await?)
    }
}

impl Transaction for SqliteTransaction {
    common_steps!("cast(unixepoch('subsec') * 1000 as integer)");
    parking_steps!(Sqlite, "cast(unixepoch('subsec') * 1000 as integer)");

    fn lock_jobs<'a>(&'a mut self, keys: &'a [(String, String)]) -> DbFuture<'a, Vec<JobRow>> {
        // The one writer has every lock.
        Box::pin(async move {
            let query = sqlx::query(concat!(
                "select ",
                job_columns!(),
                " from json_each($1) as k cross join job on partition_id = k.value ->> 0 and job_id = k.value ->> 1 \
                 order by partition_id, job_id"
            ));
            let mut jobs = Vec::new();
            for row in &self.fetch(query.bind(json(keys)?)).await? {
                jobs.push(read_job!(row));
            }
            Ok(jobs)
        })
    }

    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(async move {
            let text = format!(
                "create table task_{incarnation} (path text not null, chunk integer not null, size integer, top integer not null, \
                 done_count integer not null, failed_count integer not null, kept integer not null, counted integer not null, \
                 percent integer not null, flags integer not null, items integer not null, open_sum integer not null, \
                 done blob not null, failed blob, attempts integer, since integer, detail text, primary key (path, chunk)) without rowid"
            );
            self.execute(sqlx::query(AssertSqlSafe(text)))
                .await
                .map(drop)
        })
    }
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move {
            let mut places = Vec::new();
            for row in &self.fetch(select_nodes(incarnation, keys)?).await? {
                places.push(read_node!(row));
            }
            Ok(places)
        })
    }
    fn change_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        changes: &'a NodeChanges,
    ) -> DbFuture<'a, ()> {
        Box::pin(async move {
            for path in &changes.pruned {
                // '/' follows '.', so this is everything below.
                let text = format!(
                    "delete from task_{incarnation} where path = $1 or (path >= $1 || '.' and path < $1 || '/')"
                );
                self.execute(sqlx::query(AssertSqlSafe(text)).bind(path.as_str()))
                    .await?;
            }
            for (paths, chunk) in [(&changes.gone, ""), (&changes.inactive, " and chunk = -1")] {
                if !paths.is_empty() {
                    let text = format!(
                        "delete from task_{incarnation} where path in (select value from json_each($1)){chunk}"
                    );
                    self.execute(sqlx::query(AssertSqlSafe(text)).bind(json(paths)?))
                        .await?;
                }
            }
            for rows in changes.rows.chunks(ROWS_AT_ONCE) {
                let mut insert = QueryBuilder::<Sqlite>::new(format!(
                    "insert into task_{incarnation} ({NODE_COLUMNS}) "
                ));
                insert.push_values(rows, |mut values, row| {
                    values
                        .push_bind(row.path.as_str())
                        .push_bind(row.chunk)
                        .push_bind(row.size)
                        .push_bind(row.top);
                    values
                        .push_bind(row.done_count)
                        .push_bind(row.failed_count)
                        .push_bind(row.kept)
                        .push_bind(row.counted);
                    values
                        .push_bind(row.percent)
                        .push_bind(row.flags)
                        .push_bind(row.items)
                        .push_bind(row.open_sum);
                    values
                        .push_bind(&row.done[..])
                        .push_bind(row.failed.as_deref())
                        .push_bind(row.attempts);
                    values.push_bind(row.since).push_bind(row.detail.as_deref());
                });
                insert.push(" ").push(NODE_UPDATE);
                self.execute(insert.build()).await?;
            }
            Ok(())
        })
    }

    fn due_tables(&mut self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select incarnation from retired_table where droppable_at <= cast(unixepoch('subsec') * 1000 as integer) \
                 order by droppable_at limit $1",
            );
            let mut due = Vec::new();
            for row in &self.fetch(query.bind(i64::from(limit))).await? {
                due.push(row.try_get(0)?);
            }
            Ok(due)
        })
    }
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        Box::pin(async move {
            let name = format!("task_{incarnation}");
            let find =
                sqlx::query("select 1 from sqlite_schema where name = $1").bind(name.as_str());
            let there = !self.fetch(find).await?.is_empty();
            self.execute(sqlx::query(AssertSqlSafe(format!(
                "drop table if exists {name}"
            ))))
            .await?;
            self.execute(
                sqlx::query("delete from retired_table where incarnation = $1").bind(incarnation),
            )
            .await?;
            Ok(there)
        })
    }

    fn notify(&mut self, signal: Signal) {
        if !self.wake.contains(&signal) {
            self.wake.push(signal);
        }
    }
    fn commit(mut self: Box<Self>) -> DbFuture<'static, ()> {
        Box::pin(async move {
            self.execute(sqlx::query("commit")).await?;
            self.ended = true;
            let (signals, wake) = (self.signals.clone(), std::mem::take(&mut self.wake));
            drop(self);
            for signal in wake {
                signals.wake(signal);
            }
            Ok(())
        })
    }
    fn rollback(mut self: Box<Self>) -> DbFuture<'static, ()> {
        Box::pin(async move {
            self.execute(sqlx::query("rollback")).await?;
            self.ended = true;
            Ok(())
        })
    }
}
