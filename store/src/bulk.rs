//! Cancelling and deleting many jobs, some at a time.
//!
//! A call is one short transaction, so that nobody waits long for the locks of so many jobs, and what is done stays done when a
//! later call fails. The jobs are chosen without locks. One that has changed before it is locked is looked at again: a job that
//! has ended in the meantime does not stand in the way, and is not cancelled.

use std::collections::BTreeMap;

use contract::{JobStatus, PartitionId};

use crate::backend::{JobRow, Transaction};
use crate::error::Fault;
use crate::jobs::{cancel_locked, delete_locked};
use crate::query::{Candidate, Sort, SortBy};
use crate::{Attempts, JobQuery, Life, Store, StoreError};

const OLDEST_FIRST: Sort = Sort { by: SortBy::CreateTime, ascending: true };

/// What becomes of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancel,
    Delete,
}

impl Store {
    /// Cancels the oldest jobs that are meant and not finished, `limit` at most. None = there are none left. Order and page of
    /// the query do not count.
    pub async fn cancel_some_jobs(&self, partition: &PartitionId, query: &JobQuery, limit: u32) -> Result<Vec<Life>, StoreError> {
        let unfinished = JobStatus::ALL.into_iter().filter(|status| !status.is_finished());
        let statuses = unfinished.filter(|status| query.statuses.is_empty() || query.statuses.contains(status)).collect::<Vec<_>>();
        if statuses.is_empty() {
            return Ok(Vec::new());
        }
        self.end_some_jobs(partition, JobQuery { statuses, ..query.clone() }, limit, End::Cancel).await
    }

    /// Deletes the oldest jobs that are meant, `limit` at most. None = there are none left. Order and page of the query do not
    /// count.
    pub async fn delete_some_jobs(&self, partition: &PartitionId, query: &JobQuery, limit: u32) -> Result<Vec<Life>, StoreError> {
        self.end_some_jobs(partition, query.clone(), limit, End::Delete).await
    }

    async fn end_some_jobs(&self, partition: &PartitionId, query: JobQuery, limit: u32, end: End) -> Result<Vec<Life>, StoreError> {
        let query = JobQuery { sort: OLDEST_FIRST, limit, offset: 0, ..query };
        let mut attempts = Attempts::default();
        loop {
            let chosen = self.backend.jobs(partition.as_str(), &query).await?;
            if chosen.is_empty() {
                return Ok(Vec::new());
            }
            match self.end_chosen(&chosen, &query, end).await {
                // Others were faster with each of them; there may be more.
                Ok(ended) if ended.is_empty() => {}
                Ok(ended) => return Ok(ended),
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    async fn end_chosen(&self, chosen: &[JobRow], query: &JobQuery, end: End) -> Result<Vec<Life>, Fault> {
        let before: BTreeMap<i64, &JobRow> = chosen.iter().map(|job| (job.incarnation, job)).collect();
        let keys: Vec<(String, String)> = chosen.iter().map(|job| (job.partition.to_string(), job.job.to_string())).collect();
        let mut labels: BTreeMap<i64, BTreeMap<String, Option<String>>> = BTreeMap::new();
        for (incarnation, name, value) in self.backend.labels(&before.keys().copied().collect::<Vec<_>>()).await? {
            labels.entry(incarnation).or_default().insert(name, value);
        }
        let mut tx = self.backend.begin().await?;
        let mut ended = Vec::new();
        for job in tx.lock_jobs(&keys).await? {
            // Another life of the id was not chosen.
            let Some(before) = before.get(&job.incarnation) else { continue };
            let unchanged = (before.status, before.facts.percentage) == (job.status, job.facts.percentage);
            let labels = labels.remove(&job.incarnation).unwrap_or_default();
            let mut candidate = Candidate { job, labels };
            if unchanged || candidate.is_meant_by(query) {
                self.end_one(&mut *tx, &mut candidate.job, end).await?;
                ended.push(candidate.job.life());
            }
        }
        tx.commit().await?;
        Ok(ended)
    }

    async fn end_one(&self, tx: &mut dyn Transaction, job: &mut JobRow, end: End) -> Result<(), Fault> {
        match end {
            End::Cancel => cancel_locked(tx, job, self.now()).await,
            End::Delete => delete_locked(tx, job).await,
        }
    }
}
