//! The store itself: opens and closes the database, and watches it. The operations are in other
//! modules, one per topic.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};

#[cfg(any(test, feature = "internals"))]
use crate::db::FaultPoint;
use crate::db::run_tx::{End, JobLocks, LOCK_WAITERS, Locks, Source, Tx, run_tx};
use crate::db::{Database, DbError};
use crate::error::{Availability, Result, StoreError};
use crate::jobs::Creations;
use crate::letter::LetterLimits;
use crate::locked::LockedJobs;
use crate::memos::MemoLimits;
use crate::model::LeftOut;

/// A store of jobs, their tasks and the messages about them. Clones are cheap and share the
/// database.
///
/// An operation runs in one transaction, which is repeated after a deadlock or a serialisation
/// failure. If it fails with [`StoreError::Unavailable`], it may or may not have been committed;
/// every operation can be repeated.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) database: Arc<Database>,
    pub(crate) options: StoreOptions,
    /// The last incarnation whose memos the sweeper has looked at.
    pub(crate) swept_memos: Arc<AtomicI64>,
    /// The creations of jobs that wait for others.
    pub(crate) creations: Arc<Creations>,
    pub(crate) locked_jobs: Arc<LockedJobs>,
    lock_waiters: Arc<Semaphore>,
    /// The correlation id of the request for which this clone works.
    request: Option<Arc<str>>,
}

/// How long the store keeps data that is no longer in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// How long the task table of a failed or cancelled job is kept, so that its tasks can be read
    /// and the job taken up again.
    pub failed_tables_kept: Duration,
    /// The largest number of such tables. Beyond it, the oldest are dropped first.
    pub most_failed_tables: u32,
    /// How long the store remembers the incarnations of deleted jobs. It must be longer than
    /// messages of a deleted job can stay in pipes.
    pub past_incarnations_kept: Duration,
    /// How long the store remembers the keys that clients gave to requests.
    pub request_keys_kept: Duration,
    /// How long the events of all jobs are kept, for those who read them.
    pub events_kept: Duration,
    /// The largest number of these events. Beyond it, the oldest are deleted first.
    pub most_events: u64,
    /// The largest number of items of a job. A job that has more fails.
    pub max_items: u64,
    /// The number of failures of a job that are kept, and of failed attempts that another one
    /// follows. Those beyond are only counted.
    pub max_failures: u32,
    /// The largest number of conditions that tasks wait for. The tasks of further ones wait for the
    /// common one.
    pub max_conditions: u64,
    /// How many dead letters are kept.
    pub letters: LetterLimits,
    /// How many memos are kept.
    pub memos: MemoLimits,
}

impl StoreOptions {
    /// The default of [`Self::max_failures`].
    pub const DEFAULT_FAILURES: u32 = 10_000;
    /// The default of [`Self::max_items`].
    pub const DEFAULT_ITEMS: u64 = 10_000_000_000;
    /// The default of [`Self::max_conditions`].
    pub const DEFAULT_CONDITIONS: u64 = 1000;
    /// The default of [`Self::most_events`].
    pub const DEFAULT_EVENTS: u64 = 200_000;
    /// The default of [`Self::most_failed_tables`].
    pub const DEFAULT_TABLES: u32 = 1000;
}

impl Default for StoreOptions {
    fn default() -> Self {
        let day = Duration::from_hours(24);
        Self {
            failed_tables_kept: day,
            most_failed_tables: Self::DEFAULT_TABLES,
            past_incarnations_kept: 7 * day,
            request_keys_kept: day,
            events_kept: day,
            most_events: Self::DEFAULT_EVENTS,
            max_items: Self::DEFAULT_ITEMS,
            max_failures: Self::DEFAULT_FAILURES,
            max_conditions: Self::DEFAULT_CONDITIONS,
            letters: LetterLimits::DEFAULT,
            memos: MemoLimits::DEFAULT,
        }
    }
}

impl Store {
    /// Opens the store at `postgres://…` or `sqlite:/path/to/file`. Creates a missing `SQLite`
    /// file, and applies migrations.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// Opens a store like [`Store::open`], with these options.
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Self> {
        Self::open_inner(url, options, false).await
    }

    /// Opens a store like [`Store::open_with`], but connects to an unavailable database in the
    /// background. Until then every operation fails with [`StoreError::Unavailable`], and
    /// [`Store::availability`] says why. Returns an error only if the database can never be used.
    pub async fn open_when_possible(url: &str, options: StoreOptions) -> Result<Self> {
        Self::open_inner(url, options, true).await
    }

    async fn open_inner(url: &str, options: StoreOptions, wait: bool) -> Result<Self> {
        let scheme = url.split(':').next().unwrap_or_default();
        let database = match scheme {
            "postgres" | "postgresql" => Database::postgres(url, wait).await?,
            "sqlite" => Database::sqlite(url).await?,
            _ => return Err(unknown_scheme(url)),
        };
        Ok(Self::over(database, options))
    }

    /// Returns a store in a SQLite file of its own, which is deleted with it. For tests: it is
    /// quick, because nothing waits for the disk.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn temporary(options: StoreOptions) -> Self {
        Self::simulated(options, |_| false)
    }

    /// Returns a temporary store that is unavailable wherever `fails` returns true, and whose time
    /// is tokio's. For simulations.
    #[cfg(any(test, feature = "internals"))]
    pub fn simulated(
        options: StoreOptions,
        fails: impl Fn(FaultPoint) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::over(Database::simulated(fails), options)
    }

    fn over(database: Database, options: StoreOptions) -> Self {
        Self {
            database: Arc::new(database),
            options,
            swept_memos: Arc::default(),
            creations: Arc::default(),
            locked_jobs: Arc::default(),
            lock_waiters: Arc::new(Semaphore::new(LOCK_WAITERS)),
            request: None,
        }
    }

    /// Returns the store for the request with this correlation id: the history of a job names the
    /// requests that changed it.
    #[must_use]
    pub fn for_request(&self, correlation_id: Option<&str>) -> Self {
        Self {
            request: correlation_id.map(Into::into),
            ..self.clone()
        }
    }

    /// Returns the kind of the database: `postgres` or `sqlite`.
    pub fn kind(&self) -> &'static str {
        self.database.kind()
    }

    /// Returns a receiver of the last known availability of the database. Does not query the
    /// database.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.database.availability()
    }

    /// Returns the error once the store finds out that the database of
    /// [`Store::open_when_possible`] can never be used. Never returns otherwise.
    pub async fn unusable(&self) -> StoreError {
        let mut availability = self.availability();
        loop {
            if let Availability::Unusable(error) = &*availability.borrow_and_update() {
                return error.clone();
            }
            if availability.changed().await.is_err() {
                // The database is part of this process, so it stays usable.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns once the database has responded to a query.
    pub async fn ping(&self) -> Result<()> {
        Ok(self.database.ping().await?)
    }

    /// Stops the background tasks and closes the connections. From then on operations fail.
    pub async fn close(&self) {
        self.creations.close().await;
        self.database.close().await;
    }

    /// Runs a transaction: see [`run_tx`].
    pub(crate) async fn run_tx<'s, T, F>(&'s self, name: &'static str, body: F) -> Result<T>
    where
        F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
        T: Send,
    {
        self.run_tx_on_jobs(name, Locks::default(), body).await
    }

    /// Runs a transaction on these jobs.
    pub(crate) async fn run_tx_on_jobs<'s, T, F>(
        &'s self,
        name: &'static str,
        locks: impl Into<Locks>,
        body: F,
    ) -> Result<T>
    where
        F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
        T: Send,
    {
        Ok(run_tx(self.transactions(), name, &mut locks.into(), body).await?)
    }

    /// Runs a transaction on those of these jobs that nobody keeps locked. For its body, the others
    /// do not exist. They are returned, too.
    pub(crate) async fn run_tx_on_free_jobs<'s, T, F>(
        &'s self,
        name: &'static str,
        jobs: JobLocks,
        body: F,
    ) -> Result<(T, LeftOut)>
    where
        F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
        T: Send,
    {
        let mut locks = self.locked_jobs.locks(jobs);
        let value = run_tx(self.transactions(), name, &mut locks, body).await?;
        Ok((value, self.locked_jobs.note(&locks)))
    }

    fn transactions(&self) -> Source<'_> {
        Source {
            database: &self.database,
            request: self.request.as_deref(),
            waiters: &self.lock_waiters,
        }
    }
}

fn unknown_scheme(url: &str) -> StoreError {
    let reason = "its URL must begin with postgres:// (or postgresql://) or sqlite:";
    StoreError::unusable(masked(url), reason)
}

/// Returns a database URL with its password replaced by `***`.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let authority = rest.find(['/', '?']).unwrap_or(rest.len());
    // A password may contain an unescaped @ or slash. Hiding too much is better than hiding too
    // little.
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
    fn password_is_masked() {
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
