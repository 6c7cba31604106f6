//! Memos: the results of parts of tasks, which a task that runs again passes over.
//!
//! What must stay true:
//! - The result that was kept first is the result: whoever keeps another one under its name gets
//!   that one.
//! - A job takes no memos once it can never be taken up again, so that none is left when the
//!   sweeper has deleted them.
//! - The memos are bounded, of a task by number and of a job by bytes.

use std::sync::atomic::Ordering;

use contract::MemoKey;

use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::sql::memos::{JobWithMemos, MemoKey as Key, MemoSums};
use crate::db::{DbError, JobRow, sql};
use crate::ledger::path_of;
use crate::life::{Asked, AskedJob};
use crate::{Result, Store};

/// What a memo costs besides its texts.
const ROW: usize = 64;
/// The number of jobs that one sweep looks at.
const LOOKED_AT: u32 = 1000;
/// The number of memos that one sweep deletes.
const DELETED: u32 = 5000;

/// How many memos are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoLimits {
    /// The largest number of memos of a task.
    pub of_task: u64,
    /// The largest number of bytes of all memos of a job.
    pub bytes_of_job: u64,
}

impl MemoLimits {
    /// What is kept unless something else is said.
    pub const DEFAULT: Self = Self {
        of_task: 100,
        bytes_of_job: 1 << 30,
    };
}

/// Where a memo is.
#[derive(Debug, Clone, Copy)]
pub struct MemoPlace<'a> {
    /// The job of the task.
    pub of: AskedJob<'a>,
    /// The numbers on the path from the job to the task.
    pub path: &'a [u32],
    /// The name of the memo in the task.
    pub key: &'a MemoKey,
}

/// What is known of a memo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoAnswer {
    /// It has this result, as JSON.
    Kept(String),
    /// It is not kept.
    Unknown,
    /// There is no room for it.
    Full(MemoBound),
    /// The job has ended.
    Ended,
    /// There is no such job, or this is a past incarnation or round of it.
    NoJob,
    /// The key is not that of the job.
    WrongKey,
}

/// The bound that leaves no room for a memo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoBound {
    /// The task has as many as it may have.
    OfTask(u64),
    /// Those of the job have as many bytes as they may have.
    OfJob(u64),
}

impl Store {
    /// Returns what is known of a memo of a task that runs.
    pub async fn memo(&self, place: MemoPlace<'_>) -> Result<MemoAnswer> {
        let row = match self.asked_job(place.of).await? {
            Asked::Found(row) => row,
            Asked::Gone => return Ok(MemoAnswer::NoJob),
            Asked::WrongKey => return Ok(MemoAnswer::WrongKey),
        };
        if row.status.is_finished() {
            return Ok(MemoAnswer::Ended);
        }
        let key = key_of(&row, place);
        if let Some(result) = sql::memos::find(&mut self.database.reader().await?, &key).await? {
            return Ok(MemoAnswer::Kept(result));
        }
        let (of_task, sums) = sql::memos::counts(&mut self.database.reader().await?, &key).await?;
        let full = self.options.memos.bound(of_task, sums.bytes);
        Ok(full.map_or(MemoAnswer::Unknown, MemoAnswer::Full))
    }

    /// Keeps the result of a part of a task, which is JSON, unless there is one, and returns the
    /// one that is kept.
    ///
    /// It is kept even if the job has ended meanwhile, as long as the job can be taken up again:
    /// the part is done.
    pub async fn keep_memo(&self, place: MemoPlace<'_>, result: &str) -> Result<MemoAnswer> {
        let (locks, limits) = (
            JobLocks::from([job_key(place.of.partition, place.of.job)]),
            self.options.memos,
        );
        self.run_tx_on_jobs("keep_memo", locks, |tx| {
            Box::pin(keep(tx, place, result, limits))
        })
        .await
    }

    /// Deletes memos of jobs that can never be taken up again. Looks at some jobs, and goes on with
    /// the next ones when it is called again. Returns how many it has deleted, and whether there
    /// are more.
    pub(crate) async fn sweep_memos(&self) -> Result<(u64, bool)> {
        let after = self.swept_memos.load(Ordering::Relaxed);
        let jobs =
            sql::memos::jobs_with_memos(&mut self.database.reader().await?, after, LOOKED_AT)
                .await?;
        let last = jobs.last().filter(|_| jobs.len() == LOOKED_AT as usize);
        let mut gone = 0;
        for JobWithMemos { incarnation, .. } in jobs.iter().filter(|job| job.is_over) {
            let limit = DELETED.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
            if limit == 0 {
                return Ok((gone, true));
            }
            let deleted = self.run_tx("delete_memos", |tx| {
                Box::pin(async move {
                    Ok(End::Commit(
                        sql::memos::delete(tx, *incarnation, limit).await?,
                    ))
                })
            });
            gone += deleted.await?;
        }
        let next = last.map_or(0, |job| job.incarnation);
        self.swept_memos.store(next, Ordering::Relaxed);
        Ok((gone, gone >= u64::from(DELETED)))
    }
}

impl MemoLimits {
    fn bound(self, of_task: u64, bytes_of_job: i64) -> Option<MemoBound> {
        if of_task >= self.of_task {
            Some(MemoBound::OfTask(self.of_task))
        } else if bytes_of_job.unsigned_abs() >= self.bytes_of_job {
            Some(MemoBound::OfJob(self.bytes_of_job))
        } else {
            None
        }
    }
}

fn key_of(job: &JobRow, place: MemoPlace<'_>) -> Key {
    let path = path_of(place.path.iter().copied());
    (job.incarnation, path, place.key.as_str().to_owned())
}

async fn keep(
    tx: &mut Tx<'_>,
    place: MemoPlace<'_>,
    result: &str,
    limits: MemoLimits,
) -> Result<End<MemoAnswer>, DbError> {
    let locked = tx.lock_known_jobs().await?.pop();
    let known = locked
        .filter(|row| place.of.incarnation.is_none_or(|n| n == row.incarnation))
        // What an earlier round has done is done.
        .filter(|row| place.of.round.is_none_or(|round| round <= row.round));
    let Some(job) = known else {
        return Ok(End::Rollback(MemoAnswer::NoJob));
    };
    if !place.of.may_ask(&job) {
        return Ok(End::Rollback(MemoAnswer::WrongKey));
    }
    if is_over(tx, &job).await? {
        return Ok(End::Rollback(MemoAnswer::Ended));
    }
    let key = key_of(&job, place);
    if let Some(kept) = sql::memos::find(tx, &key).await? {
        return Ok(End::Rollback(MemoAnswer::Kept(kept)));
    }
    let bytes = ROW + key.1.len() + key.2.len() + result.len();
    let own = MemoSums {
        memos: 1,
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
    };
    let of_task = sql::memos::count(tx, &key).await?;
    let sums = sql::memos::add_to_sums(tx, job.incarnation, own).await?;
    if let Some(bound) = limits.bound(of_task, sums.bytes - own.bytes) {
        return Ok(End::Rollback(MemoAnswer::Full(bound)));
    }
    sql::memos::insert(tx, &key, result).await?;
    Ok(End::Commit(MemoAnswer::Kept(result.to_owned())))
}

/// Returns whether a locked job has ended and can never be taken up again.
async fn is_over(tx: &mut Tx<'_>, job: &JobRow) -> Result<bool, DbError> {
    if !job.status.is_finished() {
        return Ok(false);
    }
    let is_swept =
        job.task_table && !sql::retention::hold_retired_table(tx, job.incarnation).await?;
    Ok(is_swept || !job.can_go_on())
}
