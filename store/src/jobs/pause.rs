//! Pauses and resumes a job. Where its tasks stay meanwhile: [`parking`](crate::parking).

use contract::{JobId, JobStatus, PartitionId};

use crate::db::DbError;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::model::Change;
use crate::transition::{Actor, StatusChange, change_status};
use crate::{Result, Store};

impl Store {
    /// Pauses a job that is Waiting or Active.
    pub async fn pause_job(&self, partition: &PartitionId, job: &JobId) -> Result<Change> {
        let locks = JobLocks::from([job_key(partition, job)]);
        let from = &[JobStatus::Waiting, JobStatus::Active];
        self.run_tx_on_jobs("pause_job", locks, |tx| {
            Box::pin(change(tx, JobStatus::Paused, from, "paused"))
        })
        .await
    }

    /// Resumes a paused job. It becomes Active, also if it was Waiting before it was paused.
    pub async fn resume_job(&self, partition: &PartitionId, job: &JobId) -> Result<Change> {
        let locks = JobLocks::from([job_key(partition, job)]);
        let from = &[JobStatus::Paused];
        self.run_tx_on_jobs("resume_job", locks, |tx| {
            Box::pin(change(tx, JobStatus::Active, from, "resumed"))
        })
        .await
    }
}

/// Moves the job that the transaction is to lock from one of the statuses `from` to `to`.
async fn change(
    tx: &mut Tx<'_>,
    to: JobStatus,
    from: &[JobStatus],
    reason: &str,
) -> Result<End<Change>, DbError> {
    let Some(mut job) = tx.lock_known_jobs().await?.pop() else {
        return Ok(End::Rollback(Change::NotFound));
    };
    if job.status == to {
        return Ok(End::Rollback(Change::NotNeeded));
    }
    if !from.contains(&job.status) {
        return Ok(End::Rollback(Change::Impossible(job.status)));
    }
    let change = StatusChange {
        to,
        actor: Actor::Client,
        reason,
        time: tx.now(),
    };
    change_status(tx, &mut job, change).await?;
    Ok(End::Commit(Change::Made))
}
