//! The store itself: opening and closing it, and its state. The operations are in the modules for which they are named.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::db::memory::{FaultPoint, Memory};
use crate::db::postgres::PostgresBackend;
use crate::db::run_tx::{End, JobLocks, Tx, run_tx};
use crate::db::sqlite::SqliteBackend;
use crate::db::{Backend, DbError};
use crate::error::{Availability, StoreError};
use crate::model::{CatalogueSize, TaskTableSize};

/// Everything that the system remembers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: StoreOptions,
}

/// How long what is over is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// The table of tasks of a job that has failed.
    pub failed_tables_kept: Duration,
    /// That a job id has lived before: as long as messages of a deleted job may be on their way.
    pub past_incarnations_kept: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let day = Duration::from_hours(24);
        Self {
            failed_tables_kept: day,
            past_incarnations_kept: 7 * day,
        }
    }
}

impl Store {
    /// `postgres://…`, `sqlite:/path/to/file` or `memory:`. Creates what is missing and applies migrations.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// As [`Store::open`], with other times than the default ones.
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        Self::make(url, options, false).await
    }

    /// As [`Store::open`], but a database that is not available is waited for, in the background: until then all operations
    /// answer that it is not, and [`Store::availability`] says why. An error is about a database that can never be used.
    pub async fn open_when_possible(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        Self::make(url, options, true).await
    }

    async fn make(url: &str, options: StoreOptions, patience: bool) -> Result<Self, StoreError> {
        let scheme = url.split(':').next().unwrap_or_default();
        let backend: Arc<dyn Backend> = match scheme {
            "postgres" | "postgresql" => Arc::new(PostgresBackend::open(url, patience).await?),
            "sqlite" => Arc::new(SqliteBackend::open(url).await?),
            "memory" => Arc::new(Memory::new(|_| false)),
            _ => return Err(unknown_scheme(url)),
        };
        Ok(Self { backend, options })
    }

    /// Returns a store in memory that is unavailable wherever `fails` returns true. For simulations.
    pub fn memory_with_faults(
        options: StoreOptions,
        fails: impl Fn(FaultPoint) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            backend: Arc::new(Memory::new(fails)),
            options,
        }
    }

    /// `postgres`, `sqlite` or `memory`.
    pub fn kind(&self) -> &'static str {
        self.backend.kind()
    }

    /// How the database is, as far as is known without asking; changes as it becomes known.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.backend.availability()
    }

    /// Answers when a database that was waited for turns out to be one that can never be used.
    pub async fn unusable(&self) -> StoreError {
        let mut availability = self.availability();
        loop {
            if let Availability::Unusable(error) = &*availability.borrow_and_update() {
                return error.clone();
            }
            if availability.changed().await.is_err() {
                // It is in this process.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Answers when the database does.
    pub async fn ping(&self) -> Result<(), StoreError> {
        Ok(self.backend.ping().await?)
    }

    /// Ends what runs in the background and closes the connections. Operations fail from then on.
    pub async fn close(&self) {
        self.backend.close().await;
    }

    pub async fn task_table_size(&self) -> Result<TaskTableSize, StoreError> {
        Ok(self.backend.task_table_size().await?)
    }

    pub async fn catalogue_size(&self) -> Result<CatalogueSize, StoreError> {
        Ok(self.backend.catalogue_size().await?)
    }

    /// Runs a transaction: see [`run_tx`].
    pub(crate) async fn run_tx<'s, T, F>(
        &'s self,
        name: &'static str,
        locks: JobLocks,
        body: F,
    ) -> Result<T, StoreError>
    where
        F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
        T: Send,
    {
        Ok(run_tx(&*self.backend, name, locks, body).await?)
    }
}

fn unknown_scheme(url: &str) -> StoreError {
    let reason = "its URL must begin with postgres:// (or postgresql://), sqlite: or memory:";
    StoreError::Unusable {
        place: masked(url),
        reason: reason.to_owned(),
    }
}

/// The URL of a server without its password.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let authority = rest.find(['/', '?']).unwrap_or(rest.len());
    // A password may itself contain an @ or a slash, wrongly; rather too much is hidden than too little.
    let Some(at) = rest.rfind('@').or_else(|| rest[..authority].rfind('@')) else {
        return url.to_owned();
    };
    let user = rest[..at].split(':').next().unwrap_or_default();
    let hidden = if rest[..at].contains(':') { ":***" } else { "" };
    format!("{scheme}://{user}{hidden}@{}", &rest[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            (
                "postgres://ann:secret@db:5432/jobs",
                "postgres://ann:***@db:5432/jobs",
            ),
            (
                "postgres://ann:sec/r@et@db/jobs",
                "postgres://ann:***@db/jobs",
            ),
            ("postgres://ann@db/jobs", "postgres://ann@db/jobs"),
            (
                "postgres:///jobs?host=/run/x",
                "postgres:///jobs?host=/run/x",
            ),
            ("sqlite:/a/b.db", "sqlite:/a/b.db"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
