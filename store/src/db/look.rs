//! Looks at a database without changing it: for `batchwright doctor`.
//!
//! What must stay true: it creates no file and no schema, and applies no migration.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::OpenFlags;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Row as _};
use tokio::time::timeout;

use super::{migrations, postgres, sqlite_file};
use crate::error::Cause;
use crate::{StoreError, masked};

/// How long the database may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What was seen of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseLook {
    /// The kind and the version, e.g. `PostgreSQL 16.2`.
    pub version: String,
    /// The bytes that it takes.
    pub bytes: i64,
    /// The connections of the server.
    pub connections: Option<Connections>,
    /// The migrations of this build that are not applied; `None` if there are no tables of ours at
    /// all.
    pub missing: Option<Vec<i64>>,
    /// The migrations that this build does not know.
    pub newer: Vec<i64>,
    /// The number of unfinished jobs of before there were keys; `None` if the tables have no place
    /// for keys.
    pub jobs_without_key: Option<i64>,
}

/// Counts them among the jobs that have not ended, which have an index.
const WITHOUT_KEY: &str = "job where finish_time is null and life_key is null";
/// The migration that adds the keys.
const KEYS: i64 = 20_261_130_210_000;

/// The connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// How many were seen.
    pub seen: i64,
    /// How many there may be at the most.
    pub most: i64,
    /// Whether those of other users were seen, too: they are hidden from a user without the role
    /// `pg_read_all_stats`.
    pub are_all_seen: bool,
}

impl DatabaseLook {
    /// Looks at the database with this URL.
    ///
    /// # Errors
    /// If it cannot be reached or read.
    pub async fn at(url: &str) -> Result<Self, StoreError> {
        let looking = async {
            if let Some(file) = sqlite_file(url) {
                let file = file.to_owned();
                match tokio::task::spawn_blocking(move || sqlite(&file)).await {
                    Ok(looked) => looked.map_err(Cause::from),
                    Err(error) => Err(error.to_string().into()),
                }
            } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
                server(url).await.map_err(Cause::from)
            } else {
                Err("its URL must begin with postgres:// (or postgresql://) or sqlite:".into())
            }
            .map_err(|reason: Cause| StoreError::unusable(masked(url), reason))
        };
        let looked = timeout(LIMIT, looking).await;
        looked.map_err(|_| {
            let seconds = LIMIT.as_secs();
            let reason = format!("{}: no response within {seconds} s", masked(url));
            StoreError::Unavailable(reason.into())
        })?
    }
}

async fn server(url: &str) -> Result<DatabaseLook, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([("default_transaction_read_only", "on")]);
    let mut connection = options.connect().await?;
    let row = sqlx::query(
        "select current_setting('server_version'), pg_database_size(current_database()), \
         (select count(*) from pg_stat_activity where backend_type = 'client backend'), \
         cast(current_setting('max_connections') as bigint), \
         to_regclass($1) is not null, pg_has_role('pg_read_all_stats', 'usage')",
    )
    .bind(format!("{}._sqlx_migrations", postgres::SCHEMA))
    .fetch_one(&mut connection)
    .await?;
    let version: String = row.try_get(0)?;
    let is_there: bool = row.try_get(4)?;
    let applied = if is_there {
        let applied = sqlx::query_scalar("select version from batchwright._sqlx_migrations");
        Some(applied.fetch_all(&mut connection).await?)
    } else {
        None
    };
    let has_keys = applied.as_ref().is_some_and(|it| it.contains(&KEYS));
    let jobs_without_key = if has_keys {
        let count = format!("select count(*) from {}.{WITHOUT_KEY}", postgres::SCHEMA);
        let count = sqlx::query_scalar(sqlx::AssertSqlSafe(count));
        Some(count.fetch_one(&mut connection).await?)
    } else {
        None
    };
    connection.close().await?;
    let (missing, newer) = compared(&migrations::postgres(), applied);
    Ok(DatabaseLook {
        version: format!("PostgreSQL {version}"),
        bytes: row.try_get(1)?,
        connections: Some(Connections {
            seen: row.try_get(2)?,
            most: row.try_get(3)?,
            are_all_seen: row.try_get(5)?,
        }),
        missing,
        newer,
        jobs_without_key,
    })
}

fn sqlite(file: &str) -> rusqlite::Result<DatabaseLook> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = rusqlite::Connection::open_with_flags(file, flags)?;
    let (bytes, is_there) = connection.query_row(
        "select (select page_count * page_size from pragma_page_count(), pragma_page_size()), \
         exists (select 1 from sqlite_master where name = '_sqlx_migrations')",
        [],
        |row| Ok((row.get(0)?, row.get::<_, bool>(1)?)),
    )?;
    let applied = if is_there {
        let mut applied = connection.prepare("select version from _sqlx_migrations")?;
        let versions = applied.query_map([], |row| row.get(0))?;
        Some(versions.collect::<Result<Vec<_>, _>>()?)
    } else {
        None
    };
    let has_keys = applied.as_ref().is_some_and(|it| it.contains(&KEYS));
    let jobs_without_key = has_keys.then(|| {
        let count = format!("select count(*) from {WITHOUT_KEY}");
        connection.query_row(&count, [], |row| row.get(0))
    });
    let (missing, newer) = compared(&migrations::sqlite(), applied);
    Ok(DatabaseLook {
        version: format!("SQLite {}", rusqlite::version()),
        bytes,
        connections: None,
        missing,
        newer,
        jobs_without_key: jobs_without_key.transpose()?,
    })
}

/// Returns the migrations of this build that are not applied, and those that it does not know.
fn compared(own: &Migrator, applied: Option<Vec<i64>>) -> (Option<Vec<i64>>, Vec<i64>) {
    let own: BTreeSet<i64> = own.iter().map(|it| it.version).collect();
    let Some(applied) = applied else {
        return (None, Vec::new());
    };
    let applied: BTreeSet<i64> = applied.into_iter().collect();
    let missing = own.difference(&applied).copied().collect();
    (Some(missing), applied.difference(&own).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    async fn looked_at(url: &str, kind: &str) {
        let empty = DatabaseLook::at(url).await.unwrap();
        assert!(empty.version.starts_with(kind), "{empty:?}");
        assert_eq!((&empty.missing, &empty.newer), (&None, &Vec::new()));
        // Looking has changed nothing.
        assert_eq!(DatabaseLook::at(url).await.unwrap().missing, None);
        Store::open(url).await.unwrap().close().await;
        let filled = DatabaseLook::at(url).await.unwrap();
        assert_eq!(filled.missing, Some(Vec::new()));
        assert_eq!(
            (empty.jobs_without_key, filled.jobs_without_key),
            (None, Some(0))
        );
        assert!(filled.bytes > 10_000, "{filled:?}");
    }

    #[tokio::test]
    async fn look_at_a_database_tells_its_version_and_what_is_missing_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.db");
        let url = format!("sqlite:{}", file.display());
        assert!(DatabaseLook::at(&url).await.is_err());
        assert!(!file.exists());
        std::fs::write(&file, "").unwrap();
        looked_at(&url, "SQLite 3").await;
        let server = harness::postgres().await.unwrap();
        looked_at(&server.url, "PostgreSQL ").await;
        assert!(DatabaseLook::at("mysql://host").await.is_err());
    }

    #[tokio::test]
    async fn user_who_sees_only_own_connections_is_told_apart() {
        let server = harness::postgres().await.unwrap();
        let look = async |url: &str| {
            let look = DatabaseLook::at(url).await.unwrap();
            look.connections.unwrap()
        };
        assert!(look(&server.url).await.are_all_seen);
        let user = harness::unique("reader").replace('-', "_");
        let mut connection = sqlx::PgConnection::connect(&server.url).await.unwrap();
        let statement = format!("create role {user} login password 'x'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await
            .unwrap();
        let (_, host) = server.url.split_once('@').unwrap();
        let seen = look(&format!("postgres://{user}:x@{host}")).await;
        assert!(!seen.are_all_seen && seen.seen >= 1, "{seen:?}");
        let statement = format!("drop role {user}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await
            .unwrap();
    }

    #[test]
    fn migrations_of_other_builds_are_told_apart() {
        let own = migrations::sqlite();
        let all: Vec<i64> = own.iter().map(|it| it.version).collect();
        let applied = [&all[1..], &[i64::MAX]].concat();
        let expected = (Some(vec![all[0]]), vec![i64::MAX]);
        assert_eq!(compared(&own, Some(applied)), expected);
    }
}
