//! Deletes a job, whatever its status.

use contract::{JobId, PartitionId};

use crate::blocked::lose_canaries;
use crate::db::JobKey;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::{DbError, Deletion, JobRow, Signal, sql};
use crate::dependents::EndedJob;
use crate::outbox::announce;
use crate::transition::{Actor, resolve_dependents};
use crate::{Result, Store};

impl Store {
    /// Deletes a job. If it has not ended, the jobs that wait for it are cancelled. Returns false
    /// if there is no such job.
    pub async fn delete_job(&self, partition: &PartitionId, job: &JobId) -> Result<bool> {
        let own = &job_key(partition, job);
        self.run_tx_on_jobs("delete_job", JobLocks::from([own.clone()]), |tx| {
            Box::pin(delete(tx, own))
        })
        .await
    }
}

async fn delete(tx: &mut Tx<'_>, own: &JobKey) -> Result<End<bool>, DbError> {
    let locked = tx.lock_known_jobs().await?;
    let Some(job) = locked.into_iter().find(|job| job.key() == *own) else {
        return Ok(End::Rollback(false));
    };
    let now = tx.now();
    if resolve_dependents(tx, &[EndedJob::by_deletion(&job)], now)
        .await?
        .is_none()
    {
        return Ok(End::Rerun);
    }
    let request = tx.request().map(str::to_owned);
    let why = deletion(Actor::Client, "deleted", request.as_deref());
    delete_locked(tx, &[job], why).await?;
    Ok(End::Commit(true))
}

/// Returns who deletes a job and why, for its event.
pub(crate) const fn deletion<'a>(
    actor: Actor,
    reason: &'a str,
    correlation_id: Option<&'a str>,
) -> Deletion<'a> {
    Deletion {
        actor: actor.name(),
        reason,
        correlation_id,
    }
}

/// Deletes locked jobs after their dependents are resolved. Their task tables are left to the
/// sweeper, and their incarnations are remembered, so that late reports of their tasks do not count
/// for the next job with such an id. The event of each tells who does it and why. Workers hear of
/// it, except of a job that the service deletes because it has expired: it ended long ago.
pub(crate) async fn delete_locked(
    tx: &mut Tx<'_>,
    jobs: &[JobRow],
    why: Deletion<'_>,
) -> Result<(), DbError> {
    // Of all jobs together: conditions are locked in the order of their keys.
    lose_canaries(tx, jobs).await?;
    for job in jobs {
        sql::jobs::remember_incarnation(
            tx,
            job.partition.as_str(),
            job.job.as_str(),
            job.incarnation,
        )
        .await?;
        sql::jobs::delete(tx, job.incarnation).await?;
        sql::events::complete_deletion(tx, &job.key(), why).await?;
        if job.task_table {
            sql::retention::retire_table(tx, job.incarnation, 0).await?;
        }
        tx.notify(Signal::Sweep);
        tx.notify_job(job.partition.as_str(), job.job.as_str());
    }
    if why.actor != Actor::Service.name() {
        let names: Vec<String> = jobs.iter().map(JobRow::qualified_id).collect();
        announce(tx, &names).await?;
    }
    Ok(())
}
