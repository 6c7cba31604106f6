//! The sweeper's work: deletes expired jobs, drops the task tables of jobs that have ended, and forgets past incarnations.
//!
//! Each call does a little of it. Dropping a table takes locks, and a database has a limited number of them.

use std::collections::BTreeSet;

use tokio::sync::watch;

use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, Signal};
use crate::jobs::delete_locked;
use crate::{Store, StoreError};

/// The number of task tables that one transaction drops.
const TABLES: u32 = 8;
/// The number of jobs that one transaction deletes.
const JOBS: u32 = 50;

/// The work that a call of [`Store::sweep`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of expired jobs that were deleted.
    pub jobs: u64,
    /// The number of task tables that were dropped.
    pub tables: u64,
    /// How long until there is more to do, in milliseconds, or `None` if nothing is known to be left.
    pub next: Option<u64>,
}

impl Store {
    /// Returns a receiver that changes whenever there is something to sweep. A new receiver counts as changed.
    pub fn sweep_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Sweep)
    }

    /// Deletes some expired jobs, drops some task tables of finished and deleted jobs, and forgets some incarnations that
    /// were deleted long enough ago.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        // Two transactions, because a deletion locks the job before its task table's entry in the list of retired tables.
        let jobs = self
            .run_tx("delete_expired_jobs", JobLocks::new(), |tx| {
                Box::pin(delete_expired_jobs(tx))
            })
            .await?;
        let keep = self.options.past_incarnations_kept.as_millis();
        let keep = u64::try_from(keep).unwrap_or(u64::MAX);
        let most = self.options.most_failed_tables;
        let (tables, next) = self
            .run_tx("drop_retired_tables", JobLocks::new(), |tx| {
                Box::pin(drop_retired_tables(tx, keep, most))
            })
            .await?;
        Ok(Swept { jobs, tables, next })
    }
}

async fn delete_expired_jobs(tx: &mut Tx<'_>) -> Result<End<u64>, DbError> {
    let due: BTreeSet<(String, String, i64)> = tx.due_jobs(JOBS).await?.into_iter().collect();
    if due.is_empty() {
        return Ok(End::Rollback(0));
    }
    let keys: Vec<(String, String)> = due
        .iter()
        .map(|(partition, job, _)| (partition.clone(), job.clone()))
        .collect();
    let mut deleted = 0;
    for job in tx.lock_jobs(&keys).await? {
        // The job may have been deleted and created again in the meantime.
        let (partition, id) = job.key();
        if job
            .expiry_time
            .is_some_and(|time| due.contains(&(partition, id, time)))
        {
            delete_locked(tx, &job).await?;
            deleted += 1;
        }
    }
    Ok(End::Commit(deleted))
}

/// Returns the number of dropped tables, and how long until there is more to do.
async fn drop_retired_tables(
    tx: &mut Tx<'_>,
    keep_incarnations: u64,
    most_kept: u32,
) -> Result<End<(u64, Option<u64>)>, DbError> {
    let mut tables = 0;
    for incarnation in tx.due_tables(TABLES, most_kept).await? {
        tables += u64::from(tx.drop_table(incarnation).await?);
    }
    tx.forget_incarnations(keep_incarnations).await?;
    let next = tx.next_due(keep_incarnations).await?;
    Ok(End::Commit((tables, next)))
}
