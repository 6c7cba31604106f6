//! The jobs that wait for a job that ends in a transaction: finds and locks them. It changes none;
//! that is [`transition`](crate::transition)'s work, in the same transaction.
//!
//! A completed job *releases* the jobs that wait for it: each starts once nothing else holds it
//! back. A job that fails, is cancelled or is deleted before its end takes down everything that
//! waits for it, directly or through other jobs.
//!
//! What must stay true: a job starts once, when all its prerequisites are complete, and never after
//! it was cancelled. No job waits for one that has ended. So a transaction changes a waiting job
//! only under the lock of that job. Two prerequisites that complete at the same time would
//! otherwise each see the other one as incomplete, and the job would never start. So a job does not
//! end in a transaction that leaves out a job that waits for it.
//!
//! # Example
//!
//! In one partition, `m` waits for `f`, `c` waits for `m`, and `x` waits for both `f` and `z`. A
//! client cancels `f`. The transaction holds the lock of `f`.
//!
//! 1. `find` reads which jobs wait for `f`, directly or not: `m`, `x`, and `c` through `m`. None of
//!    the three is locked.
//! 2. `c` precedes `f` in the order of locks, and another transaction may hold `c` while it waits
//!    for `f`. So `find` locks nothing and returns `None`. The caller rolls back, and `run_tx` runs
//!    its body again with the locks of `c`, `f`, `m` and `x` taken first.
//! 3. The second attempt reads these jobs again, because they may have changed. If a client has
//!    created `y` meanwhile, which waits for `x`, then `y` is the only job without a lock. It
//!    follows `x`, the last lock, so `find` takes it on the spot and reads a third time. A job that
//!    appears behind an unlocked one is found this way.
//! 4. A reading that contains locked jobs only is final: `c`, `m`, `x` and `y` are cancelled. That
//!    `x` also waits for `z` makes no difference.
//!
//! Had `f` completed, step 1 would have read `m` and `x` only. Releasing them leaves `m` with
//! nothing to wait for, so it starts; `x` still waits for `z`, and `c` for `m`.

use contract::JobStatus;

use crate::db::run_tx::{Tx, job_key};
use crate::db::{Dependency, JobKey};
use crate::db::{JobRow, Result, sql};

/// A locked job that ends, or is deleted, in this transaction. The transaction has to pass it to
/// [`resolve_dependents`](crate::transition::resolve_dependents).
#[derive(Debug, Clone)]
#[must_use = "jobs may wait for the one that has ended"]
pub(crate) struct EndedJob {
    pub key: JobKey,
    pub incarnation: i64,
    /// The outcome that the jobs waiting for it see.
    pub outcome: JobStatus,
    pub deleted: bool,
}

impl EndedJob {
    /// Describes a job that has ended.
    pub fn of(job: &JobRow) -> Self {
        Self {
            key: job_key(&job.partition, &job.job),
            incarnation: job.incarnation,
            outcome: job.status,
            deleted: false,
        }
    }

    /// Describes a job that is about to be deleted. For those that wait for it, one that has not
    /// ended counts as cancelled.
    pub fn by_deletion(job: &JobRow) -> Self {
        let outcome = if job.status.is_finished() {
            job.status
        } else {
            JobStatus::Cancelled
        };
        Self {
            outcome,
            deleted: true,
            ..Self::of(job)
        }
    }
}

/// The jobs that wait for the jobs that have ended. All are locked.
pub(crate) struct Dependents<'a> {
    /// The completed jobs, and those that wait for one of them directly.
    pub completed: Vec<JobKey>,
    pub released: Vec<Dependency>,
    /// For each of the other jobs what ends with it.
    pub cascades: Vec<Cascade<'a>>,
}

/// The jobs that wait for a job that ended without completing, directly or through other jobs, each
/// with its prerequisite.
pub(crate) struct Cascade<'a> {
    pub root: &'a EndedJob,
    pub waits: Vec<Dependency>,
}

/// Finds and locks the jobs that wait for these. Returns `None` if a lock is missing that cannot be
/// taken in order any more: the caller has to end its attempt with
/// [`End::Rerun`](crate::db::run_tx::End::Rerun).
pub(crate) async fn find<'a>(
    tx: &mut Tx<'_>,
    ended: &'a [EndedJob],
) -> Result<Option<Dependents<'a>>> {
    loop {
        let dependents = read(tx, ended).await?;
        let missing = tx.not_locked(
            dependents
                .waits()
                .map(|wait| (wait.partition.clone(), wait.job.clone())),
        );
        if missing.is_empty() {
            return Ok(Some(dependents));
        }
        let locked = |job: &JobKey| missing.contains(job) && tx.leaves_out(job);
        let held_up: Vec<JobKey> = dependents.roots_of(locked).cloned().collect();
        if !held_up.is_empty() {
            tx.leave_out(held_up);
            return Ok(None);
        }
        if !tx.lock_more_jobs(missing).await? {
            return Ok(None);
        }
        // What was read before these locks may have changed.
    }
}

async fn read<'a>(tx: &mut Tx<'_>, ended: &'a [EndedJob]) -> Result<Dependents<'a>> {
    let (completed, others): (Vec<_>, Vec<_>) = ended
        .iter()
        .partition(|job| job.outcome == JobStatus::Completed);
    let completed: Vec<JobKey> = completed.into_iter().map(|job| job.key.clone()).collect();
    let released = if completed.is_empty() {
        Vec::new()
    } else {
        sql::prerequisites::dependents(tx, &completed, false).await?
    };
    let mut cascades = Vec::with_capacity(others.len());
    for root in others {
        let waits =
            sql::prerequisites::dependents(tx, std::slice::from_ref(&root.key), true).await?;
        cascades.push(Cascade { root, waits });
    }
    Ok(Dependents {
        completed,
        released,
        cascades,
    })
}

impl Dependents<'_> {
    /// Returns the ended jobs that one of these jobs waits for.
    fn roots_of(&self, is_one: impl Fn(&JobKey) -> bool) -> impl Iterator<Item = &JobKey> {
        let is_one = move |wait: &Dependency| is_one(&(wait.partition.clone(), wait.job.clone()));
        let waits_for = |wait: &Dependency, (partition, job): &JobKey| {
            wait.partition == *partition && wait.prerequisite == *job
        };
        let released: Vec<&Dependency> = self.released.iter().filter(|wait| is_one(wait)).collect();
        let completed = self.completed.iter();
        let completed =
            completed.filter(move |root| released.iter().any(|wait| waits_for(wait, root)));
        let others = self.cascades.iter();
        let others = others.filter(move |cascade| cascade.waits.iter().any(&is_one));
        completed.chain(others.map(|cascade| &cascade.root.key))
    }

    fn waits(&self) -> impl Iterator<Item = &Dependency> {
        self.released
            .iter()
            .chain(self.cascades.iter().flat_map(|cascade| &cascade.waits))
    }
}
