//! The store in PostgreSQL, for any number of processes.
//!
//! Whoever writes a job holds the lock of its row, and then locks the rows of its task table in the order of their keys by a
//! statement of its own: an update alone does not keep an order, and two of them deadlock.
//! Times that something is due at are the database's, because the clocks of its clients differ.

mod listen;
mod opening;
mod scheduling;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row as _};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

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
use crate::{Availability, CatalogueSize, JobQuery, TaskTableSize, Transition, masked};
use listen::{CHANNEL, Listener};
use opening::Database;

const CONNECTIONS: u32 = 8;
/// How long a connection is waited for.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The same while the database is known to be away: whoever asks is told so, and not kept waiting.
const CONNECT_LIMIT_WHILE_AWAY: Duration = Duration::from_secs(1);
/// How long one transaction or read may take before its connection is dropped.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(90);
/// Where everything of the store lies, so that the database may be shared, also with the tables of the CAF Job Service.
const SCHEMA: &str = "batchwright";
/// What the server itself enforces, in milliseconds: shorter, so that it speaks first where it can.
const SESSION: [(&str, &str); 4] = [
    ("lock_timeout", "20000"),
    ("statement_timeout", "60000"),
    ("idle_in_transaction_session_timeout", "60000"),
    ("tcp_user_timeout", "30000"),
];

#[derive(Debug)]
pub struct PostgresBackend {
    database: Arc<Database>,
    signals: Arc<Signals>,
    clock: Clock,
    listener: Listener,
}

impl PostgresBackend {
    /// Opens the database now; with `patience` also later, when it is not available now.
    pub async fn open(url: &str, patience: bool) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
            StoreError::Unusable {
                place: masked(url),
                reason: Cause::from(format!(
                    "{error}; its URL must look like postgres://user:password@host:5432/database"
                )),
            }
        })?;
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
        let signals = Arc::new(Signals::default());
        let listener = Listener::start(Arc::clone(&database), signals.clone(), not_yet).await;
        Ok(Self {
            database,
            signals,
            clock: Clock::System,
            listener,
        })
    }

    async fn session(&self) -> Result<Session, DbError> {
        self.database.check_open()?;
        let acquiring = self.database.pool.acquire();
        let connection = if self.database.is_away() {
            timeout(CONNECT_LIMIT_WHILE_AWAY, acquiring)
                .await
                .map_err(|_| self.database.away())??
        } else {
            acquiring.await?
        };
        Ok(Session {
            connection,
            deadline: Instant::now() + TRANSACTION_LIMIT,
            settled: false,
        })
    }

    /// One statement that reads.
    async fn fetch(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, DbError> {
        let mut session = self.session().await?;
        let rows = session.fetch(query).await?;
        session.settled = true;
        Ok(rows)
    }
}

/// A connection that goes back to the pool only when what it was taken for has ended in order.
struct Session {
    connection: PoolConnection<Postgres>,
    deadline: Instant,
    settled: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.settled {
            self.connection.close_on_drop();
        }
    }
}

impl Session {
    async fn execute(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<u64, DbError> {
        let answer = timeout_at(self.deadline, query.execute(&mut *self.connection))
            .await
            .map_err(|_| too_slow())?;
        Ok(answer?.rows_affected())
    }

    async fn fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, DbError> {
        Ok(
            timeout_at(self.deadline, query.fetch_all(&mut *self.connection))
                .await
                .map_err(|_| too_slow())??,
        )
    }

    /// Statements without parameters, any number of them.
    async fn run(&mut self, text: String) -> Result<(), DbError> {
        let script = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *self.connection);
        timeout_at(self.deadline, script)
            .await
            .map_err(|_| too_slow())??;
        Ok(())
    }
}

fn too_slow() -> DbError {
    DbError::Unavailable(
        format!(
            "a transaction took longer than {} s",
            TRANSACTION_LIMIT.as_secs()
        )
        .into(),
    )
}

fn select_nodes(
    incarnation: i64,
    keys: &[NodeKey],
    lock: &str,
) -> Query<'static, Postgres, PgArguments> {
    let text = format!(
        "select {NODE_COLUMNS} from task_{incarnation} where (path, chunk) in (select * from unnest($1::text[], $2::int4[])) \
         order by path, chunk {lock}"
    );
    let (paths, chunks): (Vec<String>, Vec<i32>) = keys.iter().cloned().unzip();
    sqlx::query(AssertSqlSafe(text)).bind(paths).bind(chunks)
}

/// A table that the sweeper has dropped has no rows.
fn none_if_gone(fault: DbError) -> Result<Vec<PgRow>, DbError> {
    match fault {
        error if error.is_missing_table() => Ok(Vec::new()),
        fault => Err(fault),
    }
}

impl Backend for PostgresBackend {
    fn kind(&self) -> &'static str {
        "postgres"
    }
    fn clock(&self) -> &Clock {
        &self.clock
    }
    fn signals(&self) -> &Signals {
        &self.signals
    }
    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let mut session = self.session().await?;
            session.execute(sqlx::query("begin")).await?;
            Ok(Box::new(PostgresTransaction {
                session,
                wake: Vec::new(),
            }) as Box<dyn Transaction>)
        })
    }
    fn availability(&self) -> watch::Receiver<Availability> {
        self.database.availability()
    }
    fn ping(&self) -> DbFuture<'_, ()> {
        Box::pin(async move { self.fetch(sqlx::query("select 1")).await.map(drop) })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.listener.stop().await;
            self.database.pool.close().await;
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
            let mut select = job_query::page(partition, query, None)?;
            let mut jobs = Vec::new();
            for row in &self.fetch(job_query::once(&mut select)).await? {
                jobs.push(read_job!(row));
            }
            Ok(jobs)
        })
    }
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64> {
        Box::pin(async move {
            let mut select = job_query::count(partition, query, None)?;
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
                "select incarnation, name, value from label where incarnation = any($1)",
            );
            let mut labels = Vec::new();
            for row in &self.fetch(query.bind(incarnations)).await? {
                labels.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
            }
            Ok(labels)
        })
    }
    fn failures<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, KeptFailure)>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select incarnation, path, since, attempts, failure from failure where incarnation = any($1) \
                 order by incarnation, since, path",
            );
            let mut failures = Vec::new();
            for row in &self.fetch(query.bind(incarnations)).await? {
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
                .fetch(select_nodes(incarnation, keys, ""))
                .await
                .or_else(none_if_gone)?;
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
                "select (select count(*) from pg_class), (select sum(pg_total_relation_size(oid))::bigint from pg_class \
                 where relkind = 'r' and relnamespace = 'pg_catalog'::regnamespace)",
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
    fn tidy(&self) -> DbFuture<'_, ()> {
        Box::pin(async move {
            self.fetch(sqlx::query("vacuum (analyze) job, label"))
                .await
                .map(drop)
        })
    }
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize> {
        Box::pin(async move {
            let mut size = TaskTableSize::default();
            let tables = sqlx::query(
                "select relname::text, pg_total_relation_size(oid) from pg_class \
                 where relkind = 'r' and relname ~ '^task_[0-9]+$' and relnamespace = current_schema()::regnamespace",
            );
            for table in &self.fetch(tables).await? {
                let (name, bytes): (String, Option<i64>) = (table.try_get(0)?, table.try_get(1)?);
                let count = sqlx::query(AssertSqlSafe(format!("select count(*) from {name}")));
                for row in &self.fetch(count).await.or_else(none_if_gone)? {
                    size.tables += 1;
                    size.rows += u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default();
                    size.bytes += u64::try_from(bytes.unwrap_or_default()).unwrap_or_default();
                }
            }
            Ok(size)
        })
    }
}

struct PostgresTransaction {
    session: Session,
    wake: Vec<Signal>,
}

impl PostgresTransaction {
    async fn execute(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<u64, DbError> {
        self.session.execute(query).await
    }

    async fn fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, DbError> {
        self.session.fetch(query).await
    }
}

impl Transaction for PostgresTransaction {
    common_steps!("(extract(epoch from clock_timestamp()) * 1000)::bigint");
    parking_steps!(
        Postgres,
        "(extract(epoch from clock_timestamp()) * 1000)::bigint"
    );

    fn lock_jobs<'a>(&'a mut self, keys: &'a [(String, String)]) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move {
            let query = sqlx::query(concat!(
                "select ",
                job_columns!(),
                " from job where (partition_id, job_id) in (select * from unnest($1::text[], $2::text[])) \
                 order by partition_id, job_id for update"
            ));
            let (partitions, ids): (Vec<&str>, Vec<&str>) =
                keys.iter().map(|(p, j)| (p.as_str(), j.as_str())).unzip();
            let mut jobs = Vec::new();
            for row in &self.fetch(query.bind(partitions).bind(ids)).await? {
                jobs.push(read_job!(row));
            }
            Ok(jobs)
        })
    }

    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        // Half of every page stays free and only the key is indexed, so that an update finds room beside its row. Bitmaps change
        // all the time: they are neither compressed nor stored elsewhere.
        let table = format!("task_{incarnation}");
        let text = format!(
            "create table {table} (items bigint not null, open_sum bigint not null, since bigint, chunk integer not null, \
             size integer, top integer not null, done_count integer not null, failed_count integer not null, \
             kept integer not null, counted integer not null, percent integer not null, flags integer not null, attempts integer, \
             path text collate \"C\" not null, done bytea not null, failed bytea, detail text) with (fillfactor = 50); \
             alter table {table} alter path set storage plain, alter done set storage plain, alter failed set storage plain, \
             add primary key (path, chunk)"
        );
        Box::pin(async move { self.session.run(text).await })
    }
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move {
            let mut places = Vec::new();
            for row in &self
                .fetch(select_nodes(incarnation, keys, "for update"))
                .await?
            {
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
                    let text =
                        format!("delete from task_{incarnation} where path = any($1){chunk}");
                    self.execute(sqlx::query(AssertSqlSafe(text)).bind(&paths[..]))
                        .await?;
                }
            }
            if !changes.rows.is_empty() {
                self.execute(upsert(incarnation, &changes.rows)).await?;
            }
            Ok(())
        })
    }

    fn due_tables(&mut self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move {
            let query = sqlx::query(
                "select incarnation from retired_table where droppable_at <= (extract(epoch from clock_timestamp()) * 1000)::bigint \
                 order by droppable_at limit $1 for update skip locked",
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
            let find = sqlx::query("select to_regclass($1) is not null").bind(name.as_str());
            let there = self
                .fetch(find)
                .await?
                .first()
                .map(|row| row.try_get(0))
                .transpose()?
                .unwrap_or(false);
            if there {
                self.execute(sqlx::query(AssertSqlSafe(format!("drop table {name}"))))
                    .await?;
            }
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
            if !self.wake.is_empty() {
                let payload = self
                    .wake
                    .iter()
                    .map(|signal| signal.name())
                    .collect::<Vec<_>>()
                    .join(" ");
                self.execute(
                    sqlx::query("select pg_notify($1, $2)")
                        .bind(CHANNEL)
                        .bind(payload),
                )
                .await?;
            }
            self.execute(sqlx::query("commit")).await?;
            self.session.settled = true;
            Ok(())
        })
    }
    fn rollback(mut self: Box<Self>) -> DbFuture<'static, ()> {
        Box::pin(async move {
            self.execute(sqlx::query("rollback")).await?;
            self.session.settled = true;
            Ok(())
        })
    }
}

/// All rows in one statement, a column an array.
fn upsert(incarnation: i64, rows: &[NodeRow]) -> Query<'static, Postgres, PgArguments> {
    let text = format!(
        "insert into task_{incarnation} ({NODE_COLUMNS}) select * from unnest($1::text[], $2::int4[], $3::int4[], $4::int4[], \
         $5::int4[], $6::int4[], $7::int4[], $8::int4[], $9::int4[], $10::int4[], $11::int8[], $12::int8[], $13::bytea[], \
         $14::bytea[], $15::int4[], $16::int8[], $17::text[]) {NODE_UPDATE}"
    );
    macro_rules! column {
        ($name:ident) => {
            rows.iter().map(|row| row.$name.clone()).collect::<Vec<_>>()
        };
    }
    sqlx::query(AssertSqlSafe(text))
        .bind(column!(path))
        .bind(column!(chunk))
        .bind(column!(size))
        .bind(column!(top))
        .bind(column!(done_count))
        .bind(column!(failed_count))
        .bind(column!(kept))
        .bind(column!(counted))
        .bind(column!(percent))
        .bind(column!(flags))
        .bind(column!(items))
        .bind(column!(open_sum))
        .bind(column!(done))
        .bind(column!(failed))
        .bind(column!(attempts))
        .bind(column!(since))
        .bind(column!(detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn swept_table_is_recognised_in_any_language_of_the_server() {
        let database = harness::postgres().await.unwrap();
        let backend = PostgresBackend::open(&database.url, false).await.unwrap();
        // What a server with `lc_messages = 'de_DE'` reports.
        let german = "do $$ begin raise exception using errcode = '42P01', \
            message = 'Relation »task_1« existiert nicht'; end $$";
        let mut session = backend.session().await.unwrap();
        let error = session.run(german.to_owned()).await.unwrap_err();
        assert!(none_if_gone(error).is_ok());
    }
}
