//! `run_tx` begins, names, retries, measures and ends every transaction of the store.
//!
//! An operation passes a body: the steps of one attempt, and how the attempt ends ([`End`]). A body runs again after a
//! deadlock or a serialisation failure, and when it asks for that because it needs more locks ([`End::Rerun`]). It must
//! therefore keep no state outside the transaction. The one thing that outlives an attempt is the set of jobs to lock,
//! which [`Tx`] keeps.
//!
//! What must stay true: jobs are locked in (partition, job) order. A transaction that finds out late that it needs a job
//! before the last one it has locked starts over, with all locks taken at its beginning.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use contract::metrics::{TRANSACTION_ERRORS, TRANSACTION_RETRIES, TRANSACTION_SECONDS};
use contract::{JobId, PartitionId};
use futures_util::future::BoxFuture;
use metrics::{counter, histogram};
use tokio::time::Instant;

use super::JobKey;
use super::{Backend, DbError, JobRow, Transaction};

/// How many times a transaction that met contention runs before the caller gets the error.
const MAX_ATTEMPTS: u32 = 8;

/// How an attempt at a transaction ends.
pub(crate) enum End<T> {
    /// Commits, and returns the value.
    Commit(T),
    /// Rolls back, and returns the value: the attempt found nothing to change.
    Rollback(T),
    /// Rolls back and runs the body again at once, with the locks that the attempt found missing.
    Rerun,
}

/// The jobs that a transaction has locked, or locks at its beginning.
pub(crate) type JobLocks = BTreeSet<JobKey>;

/// Returns the key by which this job is locked.
pub(crate) fn job_key(partition: &PartitionId, job: &JobId) -> JobKey {
    (partition.to_string(), job.to_string())
}

/// One attempt at a transaction: the steps of [`Transaction`], and the jobs to lock.
pub(crate) struct Tx<'s> {
    transaction: Box<dyn Transaction>,
    locks: JobLocks,
    /// Bodies may borrow for `'s`, from outside the closure that makes them.
    source: Source<'s>,
}

/// Where transactions begin, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub backend: &'s dyn Backend,
    /// The correlation id of the request.
    pub request: Option<&'s str>,
}

impl Tx<'_> {
    /// Returns the time of the store's clock, in milliseconds since 1970.
    pub fn now(&self) -> i64 {
        self.source.backend.clock().now()
    }

    /// Returns the correlation id of the request that this transaction is for.
    pub fn request(&self) -> Option<&str> {
        self.source.request
    }

    /// Locks the jobs that this transaction is known to need, and returns those that exist.
    pub async fn lock_known_jobs(&mut self) -> Result<Vec<JobRow>, DbError> {
        let keys: Vec<JobKey> = self.locks.iter().cloned().collect();
        self.transaction.lock_jobs(&keys).await
    }

    /// Returns the jobs among these that this transaction has not locked.
    pub fn not_locked(&self, keys: impl IntoIterator<Item = JobKey>) -> JobLocks {
        keys.into_iter()
            .filter(|key| !self.locks.contains(key))
            .collect()
    }

    /// Locks further jobs. Returns false if one of them precedes a job that is locked: the transaction cannot lock it in
    /// order any more and has to end with [`End::Rerun`].
    pub async fn lock_more_jobs(&mut self, missing: JobLocks) -> Result<bool, DbError> {
        let in_order = self.locks.last() < missing.first();
        if in_order {
            let keys: Vec<JobKey> = missing.iter().cloned().collect();
            self.transaction.lock_jobs(&keys).await?;
        }
        self.locks.extend(missing);
        Ok(in_order)
    }
}

impl Deref for Tx<'_> {
    type Target = dyn Transaction;

    fn deref(&self) -> &Self::Target {
        &*self.transaction
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.transaction
    }
}

/// Runs a transaction under this name until it is committed or rolled back, or until it fails for a reason that a retry
/// does not remove. `locks` are the jobs that the body locks first ([`Tx::lock_known_jobs`]).
pub(crate) async fn run_tx<'s, T, F>(
    source: Source<'s>,
    name: &'static str,
    mut locks: JobLocks,
    mut body: F,
) -> Result<T, DbError>
where
    F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
    T: Send,
{
    let begun = Instant::now();
    let (mut attempts, mut contended) = (0, 0);
    loop {
        attempts += 1;
        match attempt(source, &mut locks, &mut body).await {
            Ok(None) => {}
            Ok(Some(value)) => {
                measure(name, attempts, begun.elapsed(), None);
                return Ok(value);
            }
            Err(DbError::Contention(reason)) if contended + 1 < MAX_ATTEMPTS => {
                contended += 1;
                tracing::debug!(transaction = name, attempts, %reason, "retrying");
                tokio::time::sleep(Duration::from_millis(5 << contended)).await;
            }
            Err(error) => {
                measure(name, attempts, begun.elapsed(), Some(&error));
                return Err(error);
            }
        }
    }
}

/// Runs the body once. Returns `None` if it must run again.
async fn attempt<'s, T, F>(
    source: Source<'s>,
    locks: &mut JobLocks,
    body: &mut F,
) -> Result<Option<T>, DbError>
where
    F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>, DbError>> + Send,
{
    let mut tx = Tx {
        transaction: source.backend.begin().await?,
        locks: std::mem::take(locks),
        source,
    };
    let end = body(&mut tx).await;
    *locks = std::mem::take(&mut tx.locks);
    // On an error the transaction is dropped, which leaves nothing behind.
    match end? {
        End::Commit(value) => {
            tx.transaction.commit().await?;
            Ok(Some(value))
        }
        End::Rollback(value) => {
            tx.transaction.rollback().await?;
            Ok(Some(value))
        }
        End::Rerun => {
            tx.transaction.rollback().await?;
            Ok(None)
        }
    }
}

/// Logs and counts the run of one transaction.
fn measure(name: &'static str, attempts: u32, elapsed: Duration, error: Option<&DbError>) {
    let retries = u64::from(attempts.saturating_sub(1));
    histogram!(TRANSACTION_SECONDS, "transaction" => name).record(elapsed);
    counter!(TRANSACTION_RETRIES, "transaction" => name).increment(retries);
    let errors = u64::from(error.is_some());
    counter!(TRANSACTION_ERRORS, "transaction" => name).increment(errors);
    tracing::debug!(transaction = name, attempts, ?elapsed, ?error, "ended");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::db::memory::Memory;

    fn source(backend: &Memory) -> Source<'_> {
        let request = None;
        Source { backend, request }
    }

    fn key(job: &str) -> JobKey {
        ("p".to_owned(), job.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn contention_is_retried_up_to_a_limit() {
        let backend = Memory::new(|_| false);
        let attempts = &AtomicU32::new(0);
        let result: Result<(), DbError> = run_tx(source(&backend), "test", JobLocks::new(), |_| {
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                Err(DbError::Contention("deadlock".to_owned().into()))
            })
        })
        .await;
        assert!(matches!(result, Err(DbError::Contention(_))));
        assert_eq!(attempts.load(Ordering::Relaxed), MAX_ATTEMPTS);
    }

    #[tokio::test]
    async fn other_errors_are_not_retried() {
        let backend = Memory::new(|_| false);
        let attempts = &AtomicU32::new(0);
        let result: Result<(), DbError> = run_tx(source(&backend), "test", JobLocks::new(), |_| {
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                Err(DbError::Refused("syntax".to_owned().into()))
            })
        })
        .await;
        assert!(matches!(result, Err(DbError::Refused(_))));
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn rerun_takes_the_missing_locks_first() {
        let backend = Memory::new(|_| false);
        let attempts = &AtomicU32::new(0);
        let locks = JobLocks::from([key("b")]);
        let result = run_tx(source(&backend), "test", locks, |tx| {
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                tx.lock_known_jobs().await?;
                // `c` follows the last lock and is locked at once; `a` precedes it.
                let missing = tx.not_locked(["a", "b", "c"].map(key));
                for job in missing.into_iter().rev() {
                    if !tx.lock_more_jobs(JobLocks::from([job])).await? {
                        return Ok(End::Rerun);
                    }
                }
                Ok(End::Commit(tx.locks.len()))
            })
        })
        .await;
        assert_eq!(result.unwrap(), 3);
        assert_eq!(attempts.load(Ordering::Relaxed), 2);
    }
}
