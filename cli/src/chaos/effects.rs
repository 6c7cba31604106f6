//! The effects of items: a table of the worker's own, in which each run of an item is a row.
//!
//! The job service neither reads nor writes this table, so the command can compare its counts with
//! it.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::Context as _;
use framework::TaskError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgPool, SqlitePool};
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
    Sqlite(SqlitePool),
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
    /// Connects to the database with this URL when it is first used.
    pub fn open(url: &str, connections: u32) -> anyhow::Result<Self> {
        if url.starts_with("sqlite:") {
            let options = SqliteConnectOptions::from_str(url)?
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                // A commit survives the process, and the machine does not fail here.
                .synchronous(SqliteSynchronous::Off)
                .busy_timeout(LIMIT);
            let pool = SqlitePoolOptions::new().max_connections(1);
            return Ok(Self::Sqlite(pool.connect_lazy_with(options)));
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

    async fn execute(&self, statement: &'static str) -> sqlx::Result<()> {
        match self {
            Self::Postgres(pool) => sqlx::query(statement).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::query(statement).execute(pool).await.map(drop),
        }
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
        let found: (i64,) = in_time(async {
            match self {
                Self::Postgres(pool) => sqlx::query_as(select).fetch_one(pool).await,
                Self::Sqlite(pool) => sqlx::query_as(select).fetch_one(pool).await,
            }
        })
        .await?;
        Ok(found.0 > 0)
    }

    async fn write(&self, statement: &'static str, item: u64) -> Result<u64, TaskError> {
        let item = i64::try_from(item).map_err(TaskError::invalid)?;
        let process = i64::from(std::process::id());
        in_time(async {
            match self {
                Self::Postgres(pool) => {
                    let insert = sqlx::query(statement).bind(item).bind(process);
                    insert.execute(pool).await.map(|done| done.rows_affected())
                }
                Self::Sqlite(pool) => {
                    let insert = sqlx::query(statement).bind(item).bind(process);
                    insert.execute(pool).await.map(|done| done.rows_affected())
                }
            }
        })
        .await
    }

    /// Counts the effects of the items 1 to `items`.
    pub async fn count(&self, items: u64) -> anyhow::Result<EffectCounts> {
        let items = i64::try_from(items)?;
        let (different, runs, blocked): (i64, i64, i64) = match self {
            Self::Postgres(pool) => sqlx::query_as(COUNT).bind(items).fetch_one(pool).await,
            Self::Sqlite(pool) => sqlx::query_as(COUNT).bind(items).fetch_one(pool).await,
        }
        .context("cannot read the table of effects")?;
        Ok(EffectCounts {
            items: u64::try_from(different)?,
            runs: u64::try_from(runs)?,
            blocked: u64::try_from(blocked)?,
        })
    }

    /// Closes the connections.
    pub async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}

/// Waits for the database. One that cannot be reached is unavailable; one that does not know the
/// table is tried again later.
async fn in_time<T>(asked: impl Future<Output = sqlx::Result<T>>) -> Result<T, TaskError> {
    match timeout(LIMIT, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if refuses(&error) => Err(TaskError::retry(error)),
        Ok(Err(error)) => Err(TaskError::unavailable(error)),
        Err(_) => Err(TaskError::unavailable("the database does not respond")),
    }
}

/// Returns whether the database works and refuses this statement. Class 57 is a server that stops
/// or starts.
fn refuses(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.code().is_none_or(|code| !code.starts_with("57")))
}
