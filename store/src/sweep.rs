//! The sweeper's work: deletes expired jobs, drops the task tables of jobs that have ended, and
//! forgets past incarnations, the keys of requests, and events.
//!
//! Each call does a little of it. Dropping a table takes locks, and a database has a limited number
//! of them.

use std::collections::BTreeSet;

use tokio::sync::watch;

use crate::db::run_tx::{End, Tx};
use crate::db::{DbError, KeptTimes, Signal, millis, sql};
use crate::jobs::{delete_locked, deletion};
use crate::letters;
use crate::transition::Actor;
use crate::{Result, Store, StoreOptions};

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
    /// The number of dead letters that were deleted because they were too old.
    pub letters: u64,
    /// The number of memos that were deleted because nobody needs them any more.
    pub memos: u64,
    /// How long until there is more to do, in milliseconds, or `None` if nothing is known to be
    /// left.
    pub next: Option<u64>,
}

impl Store {
    /// Returns a receiver that changes whenever there is something to sweep. A new receiver counts
    /// as changed.
    pub fn sweep_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Sweep)
    }

    /// Deletes some expired jobs, drops some task tables of finished and deleted jobs, and forgets
    /// some incarnations that were deleted, some keys that requests got, and some events, long
    /// enough ago. Deletes some memos that nobody needs.
    pub async fn sweep(&self) -> Result<Swept> {
        // Two transactions, because a deletion locks the job before its task table's entry in the
        // list of retired tables.
        let jobs = self
            .run_tx("delete_expired_jobs", |tx| {
                Box::pin(delete_expired_jobs(tx))
            })
            .await?;
        let options = self.options;
        let (tables, letters, next) = self
            .run_tx("drop_retired_tables", |tx| {
                Box::pin(drop_retired_tables(tx, options))
            })
            .await?;
        let (memos, more_memos) = self.sweep_memos().await?;
        let next = if more_memos { Some(0) } else { next };
        Ok(Swept {
            jobs,
            tables,
            letters,
            memos,
            next,
        })
    }
}

async fn delete_expired_jobs(tx: &mut Tx<'_>) -> Result<End<u64>, DbError> {
    let due: BTreeSet<(String, String, i64)> = sql::retention::due_jobs(tx, JOBS)
        .await?
        .into_iter()
        .collect();
    if due.is_empty() {
        return Ok(End::Rollback(0));
    }
    let keys: Vec<(String, String)> = due
        .iter()
        .map(|(partition, job, _)| (partition.clone(), job.clone()))
        .collect();
    let mut jobs = sql::jobs::lock(tx, &keys).await?;
    // One of them may have been deleted and created again in the meantime.
    jobs.retain(|job| {
        let (partition, id) = job.key();
        let is_due = |time| due.contains(&(partition, id, time));
        job.expiry_time.is_some_and(is_due)
    });
    let why = deletion(Actor::Service, "its time was over", None);
    delete_locked(tx, &jobs, why).await?;
    Ok(End::Commit(jobs.len() as u64))
}

/// Returns the number of dropped tables, that of deleted letters, and how long until there is more
/// to do.
async fn drop_retired_tables(
    tx: &mut Tx<'_>,
    options: StoreOptions,
) -> Result<End<(u64, u64, Option<u64>)>, DbError> {
    let mut tables = 0;
    for incarnation in sql::retention::due_tables(tx, TABLES, options.most_failed_tables).await? {
        tables += u64::from(sql::retention::drop_table(tx, incarnation).await?);
    }
    let kept = KeptTimes {
        past_incarnations: millis(options.past_incarnations_kept),
        request_keys: millis(options.request_keys_kept),
        events: millis(options.events_kept),
        letters: millis(options.letters.kept),
    };
    let letters = letters::expire(tx, kept.letters).await?;
    sql::jobs::forget_incarnations(tx, kept.past_incarnations).await?;
    sql::request_keys::forget(tx, kept.request_keys).await?;
    let more_events = sql::events::sweep(tx, kept.events, options.most_events).await?;
    let next = sql::retention::next_due(tx, kept).await?.map(millis);
    let next = if more_events { Some(0) } else { next };
    Ok(End::Commit((tables, letters, next)))
}
