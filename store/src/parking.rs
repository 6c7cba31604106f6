//! Tasks of paused jobs, which wait in the store.
//!
//! A worker publishes each task of a paused job to the paused pipe, and a background task of the
//! job service *parks* it here. The transaction that resumes the job marks it for unparking; its
//! tasks then move to the outbox, a batch per transaction, until none is left and the mark is
//! removed.
//!
//! What must stay true, in whatever order parking, pausing and resuming happen:
//! - All of it happens under the lock of the job. A task is parked only while its job is paused,
//!   and a job that is not paused but has parked tasks is marked. So no task stays behind.
//! - A job that is paused again keeps the tasks that are still parked. Those in the outbox wait
//!   there.
//! - The parked tasks of a job that has ended are dropped, as workers drop its messages.

use std::collections::BTreeMap;

use contract::{JobId, JobStatus, JobTaskId, PartitionId};
use tokio::sync::watch;

use crate::blocked::forget_blocked;
use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, Signal, sql};
use crate::job_row::JobRow;
use crate::model::{ParkOutcome, ParkedTask};
use crate::{Result, Store};

impl Store {
    /// Parks those of these tasks whose job is paused, in one transaction. Returns one outcome per
    /// task.
    pub async fn park_tasks(&self, tasks: &[(JobTaskId, ParkedTask)]) -> Result<Vec<ParkOutcome>> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let key = |id: &JobTaskId| (id.partition.clone(), id.job.clone());
        let locks: JobLocks = tasks.iter().map(|(id, _)| key(id)).collect();
        let parked = self.run_tx_on_free_jobs("park_tasks", locks, |tx| Box::pin(park(tx, tasks)));
        let (mut outcomes, left_out) = parked.await?;
        for ((id, _), outcome) in tasks.iter().zip(&mut outcomes) {
            if let Some(delay) = left_out.get(&key(id)) {
                *outcome = ParkOutcome::Locked(*delay);
            }
        }
        Ok(outcomes)
    }

    /// Moves up to `limit` parked tasks of one marked job: to the outbox, or away if the job has
    /// ended. Returns false if no job is marked.
    pub async fn unpark_tasks(&self, limit: u32) -> Result<bool> {
        self.run_tx("unpark_tasks", |tx| Box::pin(unpark(tx, limit)))
            .await
    }

    /// Returns a receiver that changes whenever a job is marked for unparking. A new receiver
    /// counts as changed.
    pub fn unpark_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Unpark)
    }

    /// Counts the parked tasks of a job; 0 for an unknown job.
    pub async fn count_parked_tasks(&self, partition: &PartitionId, job: &JobId) -> Result<u64> {
        match self.job_row(partition, job).await? {
            Some(row) => {
                let db = &mut self.database.reader().await?;
                Ok(sql::parking::count(db, row.incarnation).await?)
            }
            None => Ok(0),
        }
    }
}

async fn park(
    tx: &mut Tx<'_>,
    tasks: &[(JobTaskId, ParkedTask)],
) -> Result<End<Vec<ParkOutcome>>, DbError> {
    let locked = tx.lock_known_jobs().await?;
    let jobs: BTreeMap<_, _> = locked
        .iter()
        .map(|job| ((job.partition.as_str(), job.job.as_str()), job))
        .collect();
    let (mut outcomes, mut parked) = (Vec::with_capacity(tasks.len()), Vec::new());
    for (id, task) in tasks {
        let job: Option<&JobRow> = jobs
            .get(&(id.partition.as_str(), id.job.as_str()))
            .copied()
            .filter(|job| job.matches(id.incarnation) && job.round == id.round)
            .filter(|job| !job.status.is_finished());
        outcomes.push(match job {
            None => ParkOutcome::Discard,
            Some(job) if job.status == JobStatus::Paused => {
                parked.push((job.incarnation, task));
                ParkOutcome::Parked
            }
            Some(_) => ParkOutcome::SendBack,
        });
    }
    if parked.is_empty() {
        return Ok(End::Rollback(outcomes));
    }
    sql::parking::park(tx, &parked).await?;
    Ok(End::Commit(outcomes))
}

async fn unpark(tx: &mut Tx<'_>, limit: u32) -> Result<End<bool>, DbError> {
    let Some((partition, job, incarnation)) = sql::parking::next_marked(tx).await? else {
        return Ok(End::Rollback(false));
    };
    let locked = sql::jobs::lock(tx, &[(partition, job)]).await?.pop();
    let mut job = locked.filter(|job| job.incarnation == incarnation);
    let moved = match job.as_mut() {
        // The job was deleted in the meantime, with its parked tasks, or it was paused again.
        None => 0,
        Some(job) if job.status == JobStatus::Paused => 0,
        Some(job) if job.status.is_finished() => {
            let blocked = forget_blocked(tx, job, limit).await?;
            let parked = sql::parking::delete_oldest(tx, incarnation, limit).await?;
            if blocked > 0 {
                sql::jobs::save_one(tx, job).await?;
            }
            parked.max(blocked)
        }
        Some(_) => {
            tx.notify(Signal::Outbox);
            sql::parking::unpark(tx, incarnation, limit).await?
        }
    };
    if moved < u64::from(limit) {
        sql::parking::unmark(tx, incarnation).await?;
    }
    Ok(End::Commit(true))
}
