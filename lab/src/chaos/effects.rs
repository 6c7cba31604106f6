//! The effects of items: a table of the worker's own, in which each run of an item is a row.
//!
//! The job service neither reads nor writes this table, so the command can compare its counts with
//! it.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use framework::TaskError;
use parking_lot::Mutex;
use rusqlite::{Connection, params};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::timeout;

/// How long one effect may take. A network that carries nothing would hold it for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// Writes an effect, unless effects are refused.
const RECORD: &str = "insert into chaos_effects (item, process) select $1, $2 \
                      where not exists (select 1 from chaos_refusal)";

/// The table.
#[derive(Debug, Clone)]
pub enum Effects {
    /// In `PostgreSQL`.
    Postgres(PgPool),
    /// In an SQLite file.
    Sqlite(Arc<Mutex<Connection>>),
}

/// Why a statement has no effect.
struct Failure {
    /// Whether the database works and refuses this statement.
    is_refusal: bool,
    error: anyhow::Error,
}

/// Counts items with effects, effects, and items that have waited.
const COUNT: &str = "select count(distinct item), count(*), (select count(distinct item) from chaos_waits) \
                     from chaos_effects where item between 1 and $1";
/// Notes that an item waits for a condition.
const RECORD_WAIT: &str = "insert into chaos_waits (item, process) values ($1, $2)";

/// What the table contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectCounts {
    /// The number of different items that have waited for a condition.
    pub blocked: u64,
    /// The number of different items.
    pub items: u64,
    /// The number of rows: how often an item ran.
    pub runs: u64,
}

impl Effects {
    /// Opens the file with this URL, or connects to this server when it is first used.
    pub fn open(url: &str, connections: u32) -> anyhow::Result<Self> {
        if url.starts_with("sqlite:") {
            let file = store::sqlite_file(url).context("the URL names no file")?;
            let connection = Connection::open(file)?;
            connection.busy_timeout(LIMIT)?;
            // A commit survives the process, and the machine does not fail here.
            connection.execute_batch("pragma journal_mode = wal; pragma synchronous = off")?;
            return Ok(Self::Sqlite(Arc::new(Mutex::new(connection))));
        }
        let options =
            PgConnectOptions::from_str(url).context("the URL of the database is invalid")?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(LIMIT);
        Ok(Self::Postgres(pool.connect_lazy_with(options)))
    }

    /// Creates the table, which must not exist.
    pub async fn create(&self) -> anyhow::Result<()> {
        let effects = match self {
            Self::Postgres(_) => {
                "create table chaos_effects (item bigint not null, process bigint not null, \
                 at timestamptz not null default now())"
            }
            Self::Sqlite(_) => {
                "create table chaos_effects (item integer not null, process integer not null, \
                 at text not null default current_timestamp)"
            }
        };
        for statement in [
            effects,
            "create table chaos_refusal (reason text not null)",
            "create table chaos_waits (item bigint not null, process bigint not null)",
            "create table chaos_mended (reason text not null)",
        ] {
            self.execute(statement)
                .await
                .context("cannot create the table of effects")?;
        }
        Ok(())
    }

    /// Lets all items fail from now on, or no longer.
    pub async fn refuse(&self, refuse: bool) -> anyhow::Result<()> {
        let statement = if refuse {
            "insert into chaos_refusal (reason) values ('refused')"
        } else {
            "delete from chaos_refusal"
        };
        self.change(statement).await
    }

    /// Lets no item be given up any more.
    pub async fn mend(&self) -> anyhow::Result<()> {
        self.change("insert into chaos_mended (reason) values ('mended')")
            .await
    }

    async fn change(&self, statement: &'static str) -> anyhow::Result<()> {
        let changed = timeout(LIMIT, self.execute(statement)).await;
        changed
            .context("the database does not respond")?
            .context("cannot change what items do")
    }

    async fn execute(&self, statement: &'static str) -> anyhow::Result<()> {
        match self {
            Self::Postgres(pool) => {
                sqlx::query(statement).execute(pool).await?;
            }
            Self::Sqlite(file) => {
                let execute = move |file: &Connection| file.execute_batch(statement);
                in_file(file, execute)
                    .await
                    .map_err(|failure| failure.error)?;
            }
        }
        Ok(())
    }

    /// Records that an item has run. The item fails while effects are refused.
    pub async fn record(&self, item: u64) -> Result<(), TaskError> {
        match self.write(RECORD, item).await? {
            0 => Err(TaskError::failed("effects are refused")),
            _ => Ok(()),
        }
    }

    /// Records that an item waits for a condition.
    pub async fn record_wait(&self, item: u64) -> Result<(), TaskError> {
        self.write(RECORD_WAIT, item).await.map(drop)
    }

    /// Returns whether items are not given up any more.
    pub async fn are_mended(&self) -> Result<bool, TaskError> {
        let select = "select count(*) from chaos_mended";
        let found = in_time::<i64>(async {
            match self {
                Self::Postgres(pool) => Ok(sqlx::query_scalar(select).fetch_one(pool).await?),
                Self::Sqlite(file) => {
                    in_file(file, |file| file.query_row(select, [], |row| row.get(0))).await
                }
            }
        });
        Ok(found.await? > 0)
    }

    async fn write(&self, statement: &'static str, item: u64) -> Result<u64, TaskError> {
        let item = i64::try_from(item).map_err(TaskError::invalid)?;
        let process = i64::from(std::process::id());
        in_time(async {
            match self {
                Self::Postgres(pool) => {
                    let insert = sqlx::query(statement).bind(item).bind(process);
                    Ok(insert.execute(pool).await?.rows_affected())
                }
                Self::Sqlite(file) => {
                    let insert =
                        move |file: &Connection| file.execute(statement, params![item, process]);
                    Ok(in_file(file, insert).await? as u64)
                }
            }
        })
        .await
    }

    /// Counts the effects of the items 1 to `items`.
    pub async fn count(&self, items: u64) -> anyhow::Result<EffectCounts> {
        let items = i64::try_from(items)?;
        let (different, runs, blocked): (i64, i64, i64) = match self {
            Self::Postgres(pool) => sqlx::query_as(COUNT)
                .bind(items)
                .fetch_one(pool)
                .await
                .map_err(anyhow::Error::from),
            Self::Sqlite(file) => {
                let count = move |file: &Connection| {
                    file.query_row(COUNT, [items], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                    })
                };
                in_file(file, count).await.map_err(|failure| failure.error)
            }
        }
        .context("cannot read the table of effects")?;
        Ok(EffectCounts {
            items: u64::try_from(different)?,
            runs: u64::try_from(runs)?,
            blocked: u64::try_from(blocked)?,
        })
    }

    /// Closes the connections to the server.
    pub async fn close(&self) {
        if let Self::Postgres(pool) = self {
            pool.close().await;
        }
    }
}

/// Runs this at a file, on a thread that may wait.
async fn in_file<T: Send + 'static>(
    file: &Arc<Mutex<Connection>>,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let file = Arc::clone(file);
    let work = move || work(&file.lock());
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(Failure {
            is_refusal: false,
            error: error.into(),
        }),
    }
}

/// Waits for the database. One that cannot be reached is unavailable; one that does not know the
/// table is tried again later.
async fn in_time<T>(asked: impl Future<Output = Result<T, Failure>>) -> Result<T, TaskError> {
    match timeout(LIMIT, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Failure {
            is_refusal: true,
            error,
        })) => Err(TaskError::retry(error)),
        Ok(Err(Failure { error, .. })) => Err(TaskError::unavailable(error)),
        Err(_) => Err(TaskError::unavailable("the database does not respond")),
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        // Class 57 is a server that stops or starts.
        let is_refusal = error
            .as_database_error()
            .is_some_and(|error| error.code().is_none_or(|code| !code.starts_with("57")));
        let error = error.into();
        Self { is_refusal, error }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            is_refusal: true,
            error: error.into(),
        }
    }
}
