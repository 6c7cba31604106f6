//! Cancels and deletes many jobs, a batch per call.
//!
//! A call is one short transaction: it holds the locks of its jobs only briefly, and it stays
//! committed if a later call fails. The batch is chosen without locks. A job that changes before it
//! is locked is compared with the query again, so that a job that has ended meanwhile is skipped. A
//! job that another transaction keeps locked comes last.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::{JobStatus, PartitionId};

use super::cancel::cancel_locked;
use super::delete::{delete_locked, deletion};
use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, sql};
use crate::dependents::EndedJob;
use crate::job_row::JobRow;
use crate::model::Incarnation;
use crate::query::filter::Candidate;
use crate::query::{JobQuery, Sort, SortBy};
use crate::transition::{Actor, resolve_dependents};
use crate::{Result, Store, StoreError};

pub(super) const OLDEST_FIRST: Sort = Sort {
    by: SortBy::CreateTime,
    ascending: true,
};

/// What to do with the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Cancel,
    Delete,
}

/// The jobs of a batch as they were when it was chosen, by incarnation.
pub(super) type Batch = BTreeMap<i64, Candidate>;

impl Store {
    /// Cancels up to `limit` unfinished jobs that match the query, oldest first, and the jobs that
    /// wait for them. Returns all of these; none are returned once no job matches. The order, limit
    /// and offset of the query are ignored.
    pub async fn cancel_some_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
        limit: u32,
    ) -> Result<Vec<Incarnation>> {
        let statuses: Vec<JobStatus> = JobStatus::STORED
            .into_iter()
            .filter(|status| !status.is_finished())
            .filter(|status| query.statuses.is_empty() || query.statuses.contains(status))
            .collect();
        if statuses.is_empty() {
            return Ok(Vec::new());
        }
        let query = JobQuery {
            statuses,
            ..query.clone()
        };
        self.end_some_jobs(partition, query, limit, Action::Cancel)
            .await
    }

    /// Deletes up to `limit` jobs that match the query, oldest first, and returns them; none are
    /// returned once no job matches. The order, limit and offset of the query are ignored.
    pub async fn delete_some_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
        limit: u32,
    ) -> Result<Vec<Incarnation>> {
        self.end_some_jobs(partition, query.clone(), limit, Action::Delete)
            .await
    }

    async fn end_some_jobs(
        &self,
        partition: &PartitionId,
        query: JobQuery,
        limit: u32,
        action: Action,
    ) -> Result<Vec<Incarnation>> {
        let query = &JobQuery {
            sort: OLDEST_FIRST,
            limit,
            offset: 0,
            ..query
        };
        let name = match action {
            Action::Cancel => "cancel_some_jobs",
            Action::Delete => "delete_some_jobs",
        };
        let keep_table = self.options.failed_tables_kept;
        loop {
            let batch = &self.choose(partition, query).await?;
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let locks: JobLocks = batch.values().map(|chosen| chosen.job.key()).collect();
            let ended = self.run_tx_on_free_jobs(name, locks, |tx| {
                Box::pin(end_batch(tx, batch, query, action, keep_table))
            });
            let (ended, left_out) = ended.await?;
            if !ended.is_empty() {
                return Ok(ended);
            }
            if let Some(((partition, job), _)) = left_out.first_key_value() {
                let reason = format!("another transaction keeps the job {partition}:{job} locked");
                return Err(StoreError::Unavailable(reason.into()));
            }
            // Other transactions were faster with each job of the batch. More jobs may match.
        }
    }

    /// Returns the jobs of a page, with everything that the query selects by.
    pub(crate) async fn choose(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
    ) -> Result<Batch, DbError> {
        let rows = self.job_rows(partition, query).await?;
        let mut batch: Batch = rows
            .into_iter()
            .map(|job| {
                let number = job.incarnation;
                let chosen = Candidate {
                    job,
                    labels: BTreeMap::new(),
                    waits: None,
                };
                (number, chosen)
            })
            .collect();
        if !batch.is_empty() {
            let incarnations: Vec<i64> = batch.keys().copied().collect();
            let db = &mut self.database.reader().await?;
            for (incarnation, name, value) in sql::jobs::labels(db, &incarnations).await? {
                if let Some(chosen) = batch.get_mut(&incarnation) {
                    chosen.labels.insert(name, value);
                }
            }
        }
        let blocked = batch.values().filter(|chosen| chosen.job.blocked_tasks > 0);
        let blocked: Vec<i64> = blocked.map(|chosen| chosen.job.incarnation).collect();
        if !blocked.is_empty() {
            let db = &mut self.database.reader().await?;
            for waits in sql::conditions::job_waits(db, &blocked).await? {
                if let Some(chosen) = batch.get_mut(&waits.incarnation) {
                    chosen.waits = Some(waits);
                }
            }
        }
        Ok(batch)
    }
}

async fn end_batch(
    tx: &mut Tx<'_>,
    batch: &Batch,
    query: &JobQuery,
    action: Action,
    keep_table: Duration,
) -> Result<End<Vec<Incarnation>>, DbError> {
    let now = tx.now();
    let (mut jobs, mut ended) = (Vec::new(), Vec::new());
    for mut job in tx.lock_known_jobs().await? {
        // A job that was created with this id since is another incarnation; and jobs that wait for
        // the batch are locked, too.
        let Some(chosen) = batch.get(&job.incarnation) else {
            continue;
        };
        if !still_matches(&job, chosen, query) {
            continue;
        }
        ended.push(match action {
            Action::Cancel => cancel_locked(tx, &mut job, keep_table, now).await?,
            Action::Delete => EndedJob::by_deletion(&job),
        });
        jobs.push(job);
    }
    let Some(dependents) = resolve_dependents(tx, &ended, now).await? else {
        return Ok(End::Rerun);
    };
    let mut incarnations: Vec<Incarnation> = jobs.iter().map(JobRow::to_incarnation).collect();
    match action {
        Action::Cancel => incarnations.extend(dependents.into_iter().map(|(job, _)| job)),
        Action::Delete => {
            let request = tx.request().map(str::to_owned);
            let reason = "deleted with all that match";
            let why = deletion(Actor::Client, reason, request.as_deref());
            delete_locked(tx, &jobs, why).await?;
        }
    }
    Ok(End::Commit(incarnations))
}

/// Returns whether a locked job matches the query still. Labels do not change while a job exists.
pub(super) fn still_matches(job: &JobRow, chosen: &Candidate, query: &JobQuery) -> bool {
    let unchanged =
        (chosen.job.status, chosen.job.totals.percentage) == (job.status, job.totals.percentage);
    unchanged || {
        let candidate = Candidate {
            job: job.clone(),
            labels: chosen.labels.clone(),
            waits: chosen.waits,
        };
        query.selects(&candidate)
    }
}
