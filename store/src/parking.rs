//! Pausing and resuming a job, and its tasks that wait in the store meanwhile.
//!
//! Workers hand the tasks of a paused job over to the paused pipe; from there they are *stowed*. Who resumes a job lists it in
//! the same transaction; what is stowed then goes to the outbox, a batch per transaction, until the job is struck off the list.
//!
//! What must stay true, whatever comes first:
//! - All of it happens under the lock of the job's row. A task is stowed only while its job is paused, and a job that is not
//!   paused and has stowed tasks is listed: so no task is left behind.
//! - A job that is paused again keeps what is left; what has gone to the outbox waits there.
//! - What is stowed of a job that is over is dropped, as its messages are discarded everywhere.

use std::collections::{BTreeMap, BTreeSet};

use contract::{JobId, JobStatus, JobTaskId, PartitionId};
use tokio::sync::watch;

use crate::db::DbError;
use crate::db::{JobRow, Signal, Transaction};
use crate::jobs::{key, move_job};
use crate::transition::Actor;
use crate::{Attempts, Change, ParkOutcome, ParkedTask, Store, StoreError};

impl Store {
    /// From Waiting or Active to Paused.
    pub async fn pause_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Change, StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.pause_once(partition, job).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn pause_once(&self, partition: &PartitionId, job: &JobId) -> Result<Change, DbError> {
        let mut tx = self.backend.begin().await?;
        let answer = match tx.lock_jobs(&[key(partition, job)]).await?.pop() {
            None => Change::NotFound,
            Some(job) if job.status == JobStatus::Paused => Change::NotNeeded,
            Some(mut job) if matches!(job.status, JobStatus::Waiting | JobStatus::Active) => {
                tx.unmark_for_unparking(job.incarnation).await?;
                move_job(
                    &mut *tx,
                    &mut job,
                    JobStatus::Paused,
                    Actor::Client,
                    "paused",
                    self.now(),
                )
                .await?;
                tx.save_job(&job).await?;
                tx.notify(Signal::Jobs);
                tx.commit().await?;
                return Ok(Change::Made);
            }
            Some(job) => Change::Impossible(job.status),
        };
        tx.rollback().await?;
        Ok(answer)
    }

    /// From Paused to Active, also where the job was Waiting before.
    pub async fn resume_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Change, StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.resume_once(partition, job).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn resume_once(&self, partition: &PartitionId, job: &JobId) -> Result<Change, DbError> {
        let mut tx = self.backend.begin().await?;
        let answer = match tx.lock_jobs(&[key(partition, job)]).await?.pop() {
            None => Change::NotFound,
            Some(job) if job.status == JobStatus::Active => Change::NotNeeded,
            Some(mut job) if job.status == JobStatus::Paused => {
                move_job(
                    &mut *tx,
                    &mut job,
                    JobStatus::Active,
                    Actor::Client,
                    "resumed",
                    self.now(),
                )
                .await?;
                tx.save_job(&job).await?;
                release(&mut *tx, &job).await?;
                tx.notify(Signal::Jobs);
                // What waits there is wanted again.
                tx.notify(Signal::Outbox);
                tx.commit().await?;
                return Ok(Change::Made);
            }
            Some(job) => Change::Impossible(job.status),
        };
        tx.rollback().await?;
        Ok(answer)
    }

    /// Stows those of these tasks whose job is paused, all in one transaction; says of each what is to become of it.
    pub async fn park_tasks(
        &self,
        tasks: &[(JobTaskId, ParkedTask)],
    ) -> Result<Vec<ParkOutcome>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut attempts = Attempts::default();
        loop {
            match self.stow_once(tasks).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn stow_once(
        &self,
        tasks: &[(JobTaskId, ParkedTask)],
    ) -> Result<Vec<ParkOutcome>, DbError> {
        let keys: BTreeSet<_> = tasks
            .iter()
            .map(|(id, _)| (id.partition.clone(), id.job.clone()))
            .collect();
        let mut tx = self.backend.begin().await?;
        let found = tx.lock_jobs(&keys.into_iter().collect::<Vec<_>>()).await?;
        let jobs: BTreeMap<_, _> = found
            .iter()
            .map(|job| ((job.partition.as_str(), job.job.as_str()), job))
            .collect();
        let (mut stowings, mut stowed) = (Vec::with_capacity(tasks.len()), Vec::new());
        for (id, task) in tasks {
            let job = jobs
                .get(&(id.partition.as_str(), id.job.as_str()))
                .filter(|job| job.matches(id.incarnation));
            stowings.push(match job {
                None => ParkOutcome::Discard,
                Some(job) if job.status.is_finished() => ParkOutcome::Discard,
                Some(job) if job.status == JobStatus::Paused => {
                    stowed.push((job.incarnation, task));
                    ParkOutcome::Parked
                }
                Some(_) => ParkOutcome::SendBack,
            });
        }
        if stowed.is_empty() {
            tx.rollback().await?;
        } else {
            tx.park(&stowed).await?;
            tx.commit().await?;
        }
        Ok(stowings)
    }

    /// Wakes whenever stowed tasks have somewhere to go. A new receiver counts as woken.
    pub fn unpark_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Unpark)
    }

    /// Has at most so many stowed tasks of one job that is not paused any more go where they belong: into the outbox, or away
    /// where the job is over. False when there is no such job.
    pub async fn unpark_tasks(&self, limit: u32) -> Result<bool, StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.unstow_once(limit).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn unstow_once(&self, limit: u32) -> Result<bool, DbError> {
        let mut tx = self.backend.begin().await?;
        let Some((partition, job, incarnation)) = tx.next_for_unparking().await? else {
            tx.rollback().await?;
            return Ok(false);
        };
        let found = tx
            .lock_jobs(&[(partition, job)])
            .await?
            .pop()
            .filter(|job| job.incarnation == incarnation);
        let gone = match found.map(|job| job.status) {
            // It was deleted just now, and what was stowed with it; or it was paused again.
            None | Some(JobStatus::Paused) => 0,
            Some(status) if status.is_finished() => tx.drop_parked(incarnation, limit).await?,
            Some(_) => {
                tx.notify(Signal::Outbox);
                tx.unpark(incarnation, limit).await?
            }
        };
        if gone < u64::from(limit) {
            tx.unmark_for_unparking(incarnation).await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    /// How many tasks of a job are stowed; 0 for an unknown one.
    pub async fn count_parked_tasks(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<u64, StoreError> {
        match self.backend.job(partition.as_str(), job.as_str()).await? {
            Some(row) => Ok(self.backend.parked(row.incarnation).await?),
            None => Ok(0),
        }
    }
}

/// A locked job is not paused any more: if it has stowed tasks, they are to go.
pub(crate) async fn release(tx: &mut dyn Transaction, job: &JobRow) -> Result<(), DbError> {
    if tx.mark_for_unparking(job.incarnation).await? {
        tx.notify(Signal::Unpark);
    }
    Ok(())
}
