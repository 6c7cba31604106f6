//! Cancelling and deleting many jobs, some at a time.
//!
//! A call is one short transaction, so that nobody waits long for the locks of so many jobs, and what is done stays done when a
//! later call fails. The jobs are chosen without locks. One that has changed before it is locked is looked at again: a job that
//! has ended in the meantime does not stand in the way, and is not cancelled.

use std::collections::BTreeMap;

use contract::{JobStatus, PartitionId};

use crate::db::DbError;
use crate::db::JobRow;
use crate::jobs::{cancel_locked, delete_locked, key};
use crate::prerequisites::{Ended, Locks, lock, settle};
use crate::query::{Candidate, Sort, SortBy};
use crate::{Attempts, Incarnation, JobQuery, Store, StoreError};

const OLDEST_FIRST: Sort = Sort {
    by: SortBy::CreateTime,
    ascending: true,
};

/// What becomes of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancel,
    Delete,
}

impl Store {
    /// Cancels the oldest jobs that are meant and not finished, `limit` at most, and with them those that wait for them, which are
    /// answered, too. None = there are none left. Order and page of the query do not count.
    pub async fn cancel_some_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
        limit: u32,
    ) -> Result<Vec<Incarnation>, StoreError> {
        let unfinished = JobStatus::ALL
            .into_iter()
            .filter(|status| !status.is_finished());
        let statuses = unfinished
            .filter(|status| query.statuses.is_empty() || query.statuses.contains(status))
            .collect::<Vec<_>>();
        if statuses.is_empty() {
            return Ok(Vec::new());
        }
        self.end_some_jobs(
            partition,
            JobQuery {
                statuses,
                ..query.clone()
            },
            limit,
            End::Cancel,
        )
        .await
    }

    /// Deletes the oldest jobs that are meant, `limit` at most. None = there are none left. Order and page of the query do not
    /// count.
    pub async fn delete_some_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
        limit: u32,
    ) -> Result<Vec<Incarnation>, StoreError> {
        self.end_some_jobs(partition, query.clone(), limit, End::Delete)
            .await
    }

    async fn end_some_jobs(
        &self,
        partition: &PartitionId,
        query: JobQuery,
        limit: u32,
        end: End,
    ) -> Result<Vec<Incarnation>, StoreError> {
        let query = JobQuery {
            sort: OLDEST_FIRST,
            limit,
            offset: 0,
            ..query
        };
        let (mut attempts, mut locks) = (Attempts::default(), Locks::new());
        loop {
            let chosen = self.backend.jobs(partition.as_str(), &query).await?;
            if chosen.is_empty() {
                return Ok(Vec::new());
            }
            match self.end_chosen(&chosen, &query, end, &mut locks).await {
                // Locks were missing; or others were faster with each of them, and there may be more.
                Ok(None) => {}
                Ok(Some(ended)) if ended.is_empty() => {}
                Ok(Some(ended)) => return Ok(ended),
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// `None` = to be made again with the locks that it turned out to need: those of jobs that wait for the chosen ones.
    async fn end_chosen(
        &self,
        chosen: &[JobRow],
        query: &JobQuery,
        end: End,
        locks: &mut Locks,
    ) -> Result<Option<Vec<Incarnation>>, DbError> {
        let before: BTreeMap<i64, &JobRow> =
            chosen.iter().map(|job| (job.incarnation, job)).collect();
        locks.extend(chosen.iter().map(|job| key(&job.partition, &job.job)));
        let mut labels: BTreeMap<i64, BTreeMap<String, Option<String>>> = BTreeMap::new();
        for (incarnation, name, value) in self
            .backend
            .labels(&before.keys().copied().collect::<Vec<_>>())
            .await?
        {
            labels.entry(incarnation).or_default().insert(name, value);
        }
        let (mut tx, now) = (self.backend.begin().await?, self.now());
        let (mut meant, mut ended) = (Vec::new(), Vec::new());
        for job in lock(&mut *tx, locks).await? {
            // Another life of the id was not chosen.
            let Some(before) = before.get(&job.incarnation) else {
                continue;
            };
            let unchanged =
                (before.status, before.totals.percentage) == (job.status, job.totals.percentage);
            let labels = labels.remove(&job.incarnation).unwrap_or_default();
            let mut candidate = Candidate { job, labels };
            if unchanged || candidate.is_meant_by(query) {
                if end == End::Cancel {
                    cancel_locked(&mut *tx, &mut candidate.job, now).await?;
                    ended.push(Ended::of(&candidate.job));
                } else {
                    ended.push(Ended::by_deletion(&candidate.job));
                }
                meant.push(candidate.job);
            }
        }
        let Some(dependents) = settle(&mut *tx, locks, &ended, now).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        let mut lives: Vec<Incarnation> = meant.iter().map(JobRow::to_incarnation).collect();
        match end {
            End::Cancel => lives.extend(dependents.into_iter().map(|(life, _)| life)),
            End::Delete => {
                for job in &meant {
                    delete_locked(&mut *tx, job).await?;
                }
            }
        }
        tx.commit().await?;
        Ok(Some(lives))
    }
}
