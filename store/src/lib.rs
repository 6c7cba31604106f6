//! What is known about jobs and their tasks, kept in PostgreSQL, SQLite or memory.
//!
//! The only crate that spells SQL. It hides which database there is, the tables of each job's tasks, locks, notifications
//! and the outbox behind operations of the domain. Each operation is written once (`jobs`, `record`, `outbox`, `sweep`)
//! over the small steps of a transaction (`db`), which three databases implement. What reports mean is pure: [`ledger`]
//! and `state`.
//!
//! What must stay true:
//! - Reads take no locks and write nothing.
//! - Whoever writes a job's ledger, cancels or deletes it, holds the lock of its row in `job`.
//! - Every change of a job's status is one function, one transaction, one row of history.
//! - What must reach the broker is written in the transaction that causes it.

mod db;
mod error;
mod flush;
mod jobs;
mod ledger;
mod model;
mod outbox;
mod parking;
mod prerequisites;
mod query;
mod retention;
mod sweep;
mod transition;

use std::sync::Arc;
use std::time::Duration;

use db::{Backend, DbError, memory, postgres, sqlite};
use tokio::sync::watch;

pub use db::memory::FaultPoint;
pub use error::{Availability, StoreError};
pub use model::{
    Cancellation, CatalogueSize, Change, Creation, EventKind, Header, Headers, Incarnation,
    JobRequest, OutboxMessage, ParkOutcome, ParkedTask, Prerequisite, Recorded, Refusal,
    StartCondition, TaskTableSize, TrackingEvent, Transition,
};
pub use outbox::Claim;
pub use query::filter::{Comparison, Filter, Pattern, TextField, TextTest};
pub use query::{JobQuery, Sort, SortBy};
pub use retention::{KeptUntil, span};
pub use sweep::Swept;

/// Everything that the system remembers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
    options: StoreOptions,
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
            "postgres" | "postgresql" => {
                Arc::new(postgres::PostgresBackend::open(url, patience).await?)
            }
            "sqlite" => Arc::new(sqlite::SqliteBackend::open(url).await?),
            "memory" => Arc::new(memory::Memory::new(|_| false)),
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
            backend: Arc::new(memory::Memory::new(fails)),
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

    fn now(&self) -> i64 {
        self.backend.clock().now()
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

/// How often a transaction that met another one is made again before that is a matter for the caller.
const ATTEMPTS: u32 = 8;

/// The attempts at one transaction.
#[derive(Debug, Default)]
struct Attempts(u32);

impl Attempts {
    /// Waits, longer each time, when the fault is one that another attempt may pass; false when it is to be reported.
    async fn again(&mut self, fault: &DbError) -> bool {
        self.0 += 1;
        let DbError::Contention(reason) = fault else {
            return false;
        };
        if self.0 >= ATTEMPTS {
            return false;
        }
        tracing::debug!(attempt = self.0, reason, "a transaction is made again");
        tokio::time::sleep(Duration::from_millis(5 << self.0)).await;
        true
    }
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
