//! Cancels a job.

use std::time::Duration;

use contract::{JobId, JobStatus, PartitionId};

use crate::db::JobKey;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::{DbError, JobRow};
use crate::dependents::EndedJob;
use crate::model::Cancellation;
use crate::transition::{Actor, StatusChange, finish_job, resolve_dependents};
use crate::{Result, Store};

impl Store {
    /// Cancels a job that has not ended, and with it the jobs that wait for it, directly or through
    /// other jobs.
    pub async fn cancel_job(&self, partition: &PartitionId, job: &JobId) -> Result<Cancellation> {
        let own = &job_key(partition, job);
        let keep_table = self.options.failed_tables_kept;
        self.run_tx_on_jobs("cancel_job", JobLocks::from([own.clone()]), |tx| {
            Box::pin(cancel(tx, own, keep_table))
        })
        .await
    }
}

async fn cancel(
    tx: &mut Tx<'_>,
    own: &JobKey,
    keep_table: Duration,
) -> Result<End<Cancellation>, DbError> {
    let locked = tx.lock_known_jobs().await?;
    let Some(mut job) = locked.into_iter().find(|job| job.key() == *own) else {
        return Ok(End::Rollback(Cancellation::NotFound));
    };
    if job.status == JobStatus::Cancelled {
        return Ok(End::Rollback(Cancellation::AlreadyCancelled));
    }
    if job.status.is_finished() {
        return Ok(End::Rollback(Cancellation::Finished(job.status)));
    }
    let now = tx.now();
    let ended = cancel_locked(tx, &mut job, keep_table, now).await?;
    let Some(dependents) = resolve_dependents(tx, &[ended], now).await? else {
        return Ok(End::Rerun);
    };
    let mut cancelled = vec![job.to_incarnation()];
    cancelled.extend(dependents.into_iter().map(|(incarnation, _)| incarnation));
    Ok(End::Commit(Cancellation::Cancelled(cancelled)))
}

/// Cancels a locked job that has not ended. Its task table is kept for `keep_table`, so that it can
/// be taken up again.
pub(super) async fn cancel_locked(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    keep_table: Duration,
    now: i64,
) -> Result<EndedJob, DbError> {
    let change = StatusChange {
        to: JobStatus::Cancelled,
        actor: Actor::Client,
        reason: "cancelled",
        time: now,
    };
    finish_job(tx, job, change, keep_table).await
}
