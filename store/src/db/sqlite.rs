//! One SQLite file, for one machine: every commit is on the disk before it returns.
//!
//! One connection writes (`begin immediate`); others read beside it (WAL).

use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::sql::session::Session;
use super::{DbError, migrations};
use crate::error::{Cause, StoreError};
use crate::query::collation;

/// Connections that read beside the one that writes.
const READERS: u32 = 4;

#[derive(Debug)]
pub struct SqliteFile {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteFile {
    /// Opens `sqlite:/path/to/file`, creates the file if it is missing, and applies migrations.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let unusable = |reason: Cause| StoreError::Unusable {
            location: url.to_owned(),
            reason,
        };
        let path = file_of(url)
            .filter(|path| !path.is_empty() && !path.starts_with(":memory:"))
            .ok_or_else(|| {
                unusable("its URL must name a file, as in sqlite:/path/to/file.db".into())
            })?;
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
        migrations::sqlite()
            .run(&writer)
            .await
            .map_err(|error| unusable(error.into()))?;
        let readers = pool.max_connections(READERS).connect_lazy_with(options);
        Ok(Self { writer, readers })
    }

    pub async fn reader(&self) -> Result<Session, DbError> {
        Ok(Session::sqlite(self.readers.acquire().await?))
    }

    pub async fn writer(&self) -> Result<Session, DbError> {
        Ok(Session::sqlite(self.writer.acquire().await?))
    }

    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Returns the file that a URL names, if it is one of SQLite: `sqlite:FILE` or `sqlite://FILE`.
pub fn file_of(url: &str) -> Option<&str> {
    let file = url.strip_prefix("sqlite:")?;
    Some(file.strip_prefix("//").unwrap_or(file))
}
