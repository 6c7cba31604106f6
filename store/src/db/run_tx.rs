//! `run_tx` begins, names, retries, measures and ends every transaction of the store.
//!
//! An operation passes a body: the steps of one attempt, and how the attempt ends ([`End`]). A body
//! runs again after a deadlock or a serialisation failure, and when it asks for that because it
//! needs more locks ([`End::Rerun`]). It must therefore keep no state outside the transaction. The
//! one thing that outlives an attempt is the set of jobs to lock, which [`Tx`] keeps.
//!
//! What must stay true:
//! - Jobs are locked in (partition, job) order. A transaction that finds out late that it needs a
//!   job before the last one it has locked starts over, with all locks taken at its beginning.
//! - No attempt waits for a lock for longer than half a second, because a connection waits with it.
//!   An attempt that does not get a lock in this time is rolled back, and [`WhenLocked`] says how
//!   the transaction goes on. Few of those that wait have a connection.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use contract::metrics::{TRANSACTION_ERRORS, TRANSACTION_RETRIES, TRANSACTION_SECONDS};
use contract::{JobId, PartitionId};
use futures_util::future::BoxFuture;
use metrics::{counter, histogram};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use super::sql::jobs;
use super::sql::session::Session;
use super::{Database, DbError, JobKey, JobRow, Result};

/// How many times a transaction that met contention runs before the caller gets the error.
const MAX_ATTEMPTS: u32 = 8;
/// How long a transaction tries to get a lock before the caller gets the error.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// The pause before a transaction that did not get a lock runs again.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// How many transactions of a store that did not get a lock run again at the same time. Each may
/// wait for it with a connection.
pub(crate) const LOCK_WAITERS: usize = 2;

/// How an attempt at a transaction ends.
pub(crate) enum End<T> {
    /// Commits, and returns the value.
    Commit(T),
    /// Rolls back, and returns the value: the attempt found nothing to change.
    Rollback(T),
    /// Rolls back and runs the body again at once, with the locks that the attempt found missing.
    Rerun,
}

impl<T> End<T> {
    /// Commits if the attempt has changed something.
    pub const fn commit_if(has_changed: bool, value: T) -> Self {
        if has_changed {
            Self::Commit(value)
        } else {
            Self::Rollback(value)
        }
    }
}

/// Jobs to lock, in the order of their locks.
pub(crate) type JobLocks = BTreeSet<JobKey>;

/// How a transaction goes on that does not get a lock soon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WhenLocked {
    /// It runs again and again, for [`LOCK_PATIENCE`].
    #[default]
    Wait,
    /// It fails at once, because others wait for it.
    Fail,
    /// It runs again without the jobs that others keep locked.
    LeaveOut,
}

/// The locks of a transaction. They outlive its attempts.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    when_locked: WhenLocked,
    /// The jobs that it has locked, or locks at its beginning.
    wanted: JobLocks,
    /// Whether it no longer waits for a job that another transaction has locked, but leaves the job
    /// out.
    skips: bool,
    /// The jobs that it leaves out.
    left_out: JobLocks,
    /// The job that the present steps are about, if they are about a single one.
    at_hand: Option<JobKey>,
}

impl Locks {
    /// Returns the locks of a transaction that leaves out `left_out` from the beginning, and with
    /// `skips` every job that is locked when it begins.
    pub fn leaving_out(wanted: JobLocks, left_out: JobLocks, skips: bool) -> Self {
        Self {
            when_locked: WhenLocked::LeaveOut,
            wanted,
            skips,
            left_out,
            at_hand: None,
        }
    }

    /// Returns the locks of a transaction that fails as soon as it does not get a lock.
    pub fn failing() -> Self {
        Self {
            when_locked: WhenLocked::Fail,
            ..Self::default()
        }
    }

    /// Returns the jobs that the transaction locked or tried to lock.
    pub const fn wanted(&self) -> &JobLocks {
        &self.wanted
    }

    /// Returns the jobs that the transaction left out.
    pub const fn left_out(&self) -> &JobLocks {
        &self.left_out
    }

    /// Leaves these jobs out from the next attempt on.
    pub fn leave_out(&mut self, keys: impl IntoIterator<Item = JobKey>) {
        self.left_out.extend(keys);
    }

    /// After an attempt that did not get a lock: changes what the next attempt leaves out. Returns
    /// false if nothing can be left out.
    fn leave_out_more(&mut self) -> bool {
        match self.when_locked {
            WhenLocked::Wait | WhenLocked::Fail => false,
            WhenLocked::LeaveOut if !self.skips => {
                self.skips = true;
                true
            }
            // Not the row of the job, but something that belongs to it.
            WhenLocked::LeaveOut => self
                .at_hand
                .take()
                .is_some_and(|job| self.left_out.insert(job)),
        }
    }
}

impl From<JobLocks> for Locks {
    fn from(wanted: JobLocks) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }
}

/// Returns the key by which this job is locked.
pub(crate) fn job_key(partition: &PartitionId, job: &JobId) -> JobKey {
    (partition.to_string(), job.to_string())
}

/// One attempt at a transaction: its session, and the jobs to lock.
pub(crate) struct Tx<'s> {
    session: Session,
    locks: Locks,
    /// Bodies may borrow for `'s`, from outside the closure that makes them.
    source: Source<'s>,
}

/// Where transactions begin, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub database: &'s Database,
    /// The correlation id of the request.
    pub request: Option<&'s str>,
    /// What those need that did not get a lock and run again: [`LOCK_WAITERS`] permits.
    pub waiters: &'s Semaphore,
}

impl Tx<'_> {
    /// Returns the time of the store's clock, in milliseconds since 1970.
    pub fn now(&self) -> i64 {
        self.source.database.clock().now()
    }

    /// Returns the correlation id of the request that this transaction is for.
    pub fn request(&self) -> Option<&str> {
        self.source.request
    }

    /// Locks the jobs that this transaction is known to need, and returns those that exist and are
    /// not left out.
    pub async fn lock_known_jobs(&mut self) -> Result<Vec<JobRow>> {
        let Locks {
            wanted, left_out, ..
        } = &self.locks;
        let keys: Vec<JobKey> = wanted.difference(left_out).cloned().collect();
        self.lock(&keys).await
    }

    /// Locks these jobs, or those of them that nobody else has locked, and returns those that
    /// exist.
    async fn lock(&mut self, keys: &[JobKey]) -> Result<Vec<JobRow>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        if !self.locks.skips {
            return jobs::lock(self, keys).await;
        }
        let (jobs, locked) = jobs::lock_free(self, keys).await?;
        self.locks.left_out.extend(locked);
        Ok(jobs)
    }

    /// Returns the jobs among these that this transaction has not locked.
    pub fn not_locked(&self, keys: impl IntoIterator<Item = JobKey>) -> JobLocks {
        let Locks {
            wanted, left_out, ..
        } = &self.locks;
        keys.into_iter()
            .filter(|key| !wanted.contains(key) || left_out.contains(key))
            .collect()
    }

    /// Returns whether this transaction leaves a job out.
    pub fn leaves_out(&self, key: &JobKey) -> bool {
        self.locks.left_out.contains(key)
    }

    /// Leaves these jobs out, once the transaction has ended with [`End::Rerun`].
    pub fn leave_out(&mut self, keys: impl IntoIterator<Item = JobKey>) {
        self.locks.leave_out(keys);
    }

    /// Says that the next steps are about this job alone, or about several. A transaction that
    /// leaves out locked jobs leaves this one out if such a step does not get a lock.
    pub fn set_at_hand(&mut self, job: Option<&JobRow>) {
        self.locks.at_hand = job.filter(|_| self.locks.skips).map(JobRow::key);
    }

    /// Locks further jobs. Returns false if one of them precedes a job that is locked: the
    /// transaction cannot lock it in order any more and has to end with [`End::Rerun`].
    pub async fn lock_more_jobs(&mut self, missing: JobLocks) -> Result<bool> {
        let in_order = self.locks.wanted.last() < missing.first();
        if in_order {
            let keys: Vec<JobKey> = missing.iter().cloned().collect();
            self.lock(&keys).await?;
        }
        self.locks.wanted.extend(missing);
        Ok(in_order)
    }
}

impl Deref for Tx<'_> {
    type Target = Session;

    fn deref(&self) -> &Self::Target {
        &self.session
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.session
    }
}

/// Runs a transaction under this name until it is committed or rolled back, or until it fails for a
/// reason that a retry does not remove. `locks` has the jobs that the body locks first
/// ([`Tx::lock_known_jobs`]).
pub(crate) async fn run_tx<'s, T, F>(
    source: Source<'s>,
    name: &'static str,
    locks: &mut Locks,
    mut body: F,
) -> Result<T>
where
    F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>>> + Send,
    T: Send,
{
    let begun = Instant::now();
    let (mut attempts, mut contended) = (0, 0);
    let mut waiter = None;
    loop {
        attempts += 1;
        let ended = attempt(source, locks, &mut body).await;
        drop(waiter.take());
        match ended {
            Ok(None) => {}
            Ok(Some(value)) => {
                measure(name, attempts, begun.elapsed(), None);
                return Ok(value);
            }
            Err(DbError::Contention(reason)) if contended + 1 < MAX_ATTEMPTS => {
                contended += 1;
                tracing::debug!(transaction = name, attempts, %reason, "retrying");
                sleep(Duration::from_millis(5 << contended)).await;
            }
            Err(DbError::Locked(reason)) if locks.leave_out_more() => {
                tracing::debug!(transaction = name, attempts, %reason, "leaving out what is locked");
            }
            Err(DbError::Locked(reason)) if locks.when_locked != WhenLocked::Fail => {
                tracing::debug!(transaction = name, attempts, %reason, "waiting for a lock");
                let turn = async {
                    sleep(LOCK_PAUSE).await;
                    source.waiters.acquire().await.ok()
                };
                waiter = timeout_at(begun + LOCK_PATIENCE, turn).await.ok().flatten();
                if waiter.is_none() {
                    let error = DbError::Locked(reason);
                    measure(name, attempts, begun.elapsed(), Some(&error));
                    return Err(error);
                }
            }
            Err(error) => {
                measure(name, attempts, begun.elapsed(), Some(&error));
                return Err(error);
            }
        }
    }
}

/// Runs the body once. Returns `None` if it must run again.
async fn attempt<'s, T, F>(source: Source<'s>, locks: &mut Locks, body: &mut F) -> Result<Option<T>>
where
    F: for<'a> FnMut(&'a mut Tx<'s>) -> BoxFuture<'a, Result<End<T>>> + Send,
{
    let session = source.database.begin().await?;
    locks.at_hand = None;
    let mut tx = Tx {
        session,
        locks: std::mem::take(locks),
        source,
    };
    let end = body(&mut tx).await;
    *locks = std::mem::take(&mut tx.locks);
    match end {
        Ok(End::Commit(value)) => {
            source.database.commit(tx.session).await?;
            Ok(Some(value))
        }
        Ok(End::Rollback(value)) => {
            source.database.rollback(tx.session).await?;
            Ok(Some(value))
        }
        Ok(End::Rerun) => {
            source.database.rollback(tx.session).await?;
            Ok(None)
        }
        Err(error @ DbError::Locked(_)) => {
            // Nothing is wrong with the connection.
            source.database.rollback(tx.session).await?;
            Err(error)
        }
        // The session is dropped, which leaves nothing behind.
        Err(error) => Err(error),
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
    fn source(database: &Database) -> Source<'_> {
        static WAITERS: Semaphore = Semaphore::const_new(LOCK_WAITERS);
        Source {
            database,
            request: None,
            waiters: &WAITERS,
        }
    }

    fn key(job: &str) -> JobKey {
        ("p".to_owned(), job.to_owned())
    }

    /// Returns how many attempts a transaction makes each of which fails with this error.
    async fn attempts_before(error: DbError) -> u32 {
        let (database, attempts) = (Database::simulated(|_| false), &AtomicU32::new(0));
        let error = &error;
        let result: Result<()> = run_tx(source(&database), "test", &mut Locks::default(), |_| {
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                Err(error.clone())
            })
        })
        .await;
        let expected = std::mem::discriminant(error);
        assert!(result.is_err_and(|error| std::mem::discriminant(&error) == expected));
        attempts.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn contention_is_retried_up_to_a_limit_and_no_other_error_is() {
        let attempts = attempts_before(DbError::Contention("deadlock".into())).await;
        assert_eq!(attempts, MAX_ATTEMPTS);
        assert_eq!(attempts_before(DbError::Refused("syntax".into())).await, 1);
    }

    /// Returns how a transaction ends that never gets a lock, after how many attempts and how much
    /// time.
    async fn without_a_lock(when_locked: WhenLocked) -> (Result<()>, u32, Duration) {
        let (database, attempts) = (Database::simulated(|_| false), &AtomicU32::new(0));
        let mut locks = Locks {
            when_locked,
            ..Locks::from(JobLocks::from([key("a"), key("b")]))
        };
        let begun = Instant::now();
        let result = run_tx(source(&database), "test", &mut locks, |tx| {
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                tx.lock_known_jobs().await?;
                if tx.leaves_out(&key("a")) {
                    return Ok(End::Commit(()));
                }
                tx.locks.at_hand = tx.locks.skips.then(|| key("a"));
                Err(DbError::Locked("lock timeout".to_owned().into()))
            })
        })
        .await;
        (result, attempts.load(Ordering::Relaxed), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn lock_that_another_transaction_keeps_is_tried_again_for_a_limited_time() {
        let (result, attempts, waited) = without_a_lock(WhenLocked::Wait).await;
        assert!(matches!(result, Err(DbError::Locked(_))));
        assert!(attempts > 5, "{attempts}");
        assert!(waited <= LOCK_PATIENCE, "{waited:?}");
        let (result, attempts, _) = without_a_lock(WhenLocked::Fail).await;
        assert!(matches!(result, Err(DbError::Locked(_))));
        assert_eq!(attempts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn job_of_which_something_else_than_its_row_is_locked_is_left_out() {
        let (result, attempts, waited) = without_a_lock(WhenLocked::LeaveOut).await;
        assert!(result.is_ok(), "{result:?}");
        // With the patience for short locks, without the job rows that are locked, and without this
        // job.
        assert_eq!((attempts, waited), (3, Duration::ZERO));
    }

    #[tokio::test]
    async fn rerun_takes_the_missing_locks_first() {
        let database = Database::simulated(|_| false);
        let attempts = &AtomicU32::new(0);
        let mut locks = Locks::from(JobLocks::from([key("b")]));
        let result = run_tx(source(&database), "test", &mut locks, |tx| {
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
                Ok(End::Commit(tx.locks.wanted.len()))
            })
        })
        .await;
        assert_eq!(result.unwrap(), 3);
        assert_eq!(attempts.load(Ordering::Relaxed), 2);
    }
}
