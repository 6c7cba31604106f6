//! The sweeper: deletes jobs whose time is over, drops the task tables of jobs that are over, and forgets past lives.
//!
//! A few per transaction: every dropped table costs locks, and a database has only so many of them.

use tokio::sync::watch;

use crate::db::DbError;
use crate::db::Signal;
use crate::jobs::delete_locked;
use crate::{Attempts, Store, StoreError};

/// How many tables one transaction drops.
const TABLES: u32 = 8;
/// How many jobs one transaction deletes.
const JOBS: u32 = 50;

/// What a step of the sweeper has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Jobs that were deleted because their time was over.
    pub jobs: u64,
    /// Task tables that were dropped.
    pub tables: u64,
    /// When there is more to do, in milliseconds from now.
    pub next: Option<u64>,
}

impl Store {
    /// Wakes whenever the sweeper has got something to do. A new receiver counts as woken.
    pub fn sweep_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Sweep)
    }

    /// Deletes some of the jobs whose time is over, drops some tables of finished and deleted jobs, and forgets past lives
    /// that are old enough.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut attempts = Attempts::default();
        // Two transactions, because deletion locks a job before its place on the work list.
        let jobs = loop {
            match self.expire_jobs().await {
                Err(fault) if attempts.again(&fault).await => {}
                other => break other?,
            }
        };
        loop {
            match self.sweep_once().await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other.map(|swept| Swept { jobs, ..swept })?),
            }
        }
    }

    async fn expire_jobs(&self) -> Result<u64, DbError> {
        let mut tx = self.backend.begin().await?;
        let due = tx.due_jobs(JOBS).await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let keys: Vec<(String, String)> = due
            .iter()
            .map(|(partition, job, _)| (partition.clone(), job.clone()))
            .collect();
        let mut deleted = 0;
        for job in tx.lock_jobs(&keys).await? {
            // Another life may have begun in between.
            let is_due = |(partition, id, time): &(String, String, i64)| {
                partition == job.partition.as_str()
                    && id == job.job.as_str()
                    && job.expiry_time == Some(*time)
            };
            if due.iter().any(is_due) {
                delete_locked(&mut *tx, &job).await?;
                deleted += 1;
            }
        }
        tx.commit().await?;
        Ok(deleted)
    }

    async fn sweep_once(&self) -> Result<Swept, DbError> {
        let lives_kept =
            u64::try_from(self.options.past_incarnations_kept.as_millis()).unwrap_or(u64::MAX);
        let mut tx = self.backend.begin().await?;
        let mut tables = 0;
        for incarnation in tx.due_tables(TABLES).await? {
            tables += u64::from(tx.drop_table(incarnation).await?);
        }
        tx.forget_incarnations(lives_kept).await?;
        let next = tx.next_due(lives_kept).await?;
        tx.commit().await?;
        Ok(Swept {
            jobs: 0,
            tables,
            next,
        })
    }
}
