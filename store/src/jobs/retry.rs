//! Takes jobs up again that have failed or were cancelled: each begins another round
//! ([`round`](crate::round)).

use std::collections::BTreeMap;

use contract::{JobId, PartitionId};

use super::bulk::OLDEST_FIRST;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::{DbError, JobKey, JobRow, sql};
use crate::job_row::JobPlace;
use crate::model::{Begun, Definition, Incarnation, Retry};
use crate::query::JobQuery;
use crate::round::{Beginning, Ended, MakeStart};
use crate::transition::resolve_dependents;
use crate::{Result, Store};

/// How an attempt to take a job up ended.
enum Attempt {
    Done(Retry),
    /// The round can only begin while no job is created in the partition.
    NeedsExclusive,
}

/// A batch of jobs that [`Store::retry_some_jobs`] has looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetriedBatch {
    /// What became of each job. Empty once there are no more jobs.
    pub jobs: Vec<(JobId, Retry)>,
}

/// Up to where [`Store::retry_some_jobs`] has looked at the jobs. Begins with nothing.
///
/// It is a place and no number: jobs around it come, go, and are taken up by others meanwhile.
pub type RetryCursor = Option<JobPlace>;

impl Store {
    /// Takes a job up again that has failed, was cancelled, or is Completed although items have
    /// failed: it begins a round in which only what is not done counts. With `dependents`, the jobs
    /// that ended with it wait for it again.
    ///
    /// `start` makes the start message of the round from what the job was created from. It runs
    /// once per job and attempt at the transaction.
    pub async fn retry_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
        dependents: bool,
        start: impl Fn(&Incarnation, &Definition) -> Result<Vec<u8>, String> + Send + Sync,
    ) -> Result<Retry> {
        let (own, start): (_, MakeStart<'_>) = (&job_key(partition, job), &start);
        let mut exclusive = false;
        loop {
            let attempt = self
                .run_tx_on_jobs("retry_job", JobLocks::from([own.clone()]), |tx| {
                    Box::pin(retry(tx, own, dependents, start, exclusive))
                })
                .await?;
            match attempt {
                Attempt::Done(retry) => return Ok(retry),
                Attempt::NeedsExclusive => exclusive = true,
            }
        }
    }

    /// Takes up again the next jobs that match the query and can begin another round, oldest first,
    /// each in a transaction of its own: up to `limit`, and no job twice. The order, limit and
    /// offset of the query are ignored.
    pub async fn retry_some_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
        dependents: bool,
        cursor: &mut RetryCursor,
        limit: u32,
        start: impl Fn(&Incarnation, &Definition) -> Result<Vec<u8>, String> + Send + Sync,
    ) -> Result<RetriedBatch> {
        let query = JobQuery {
            sort: OLDEST_FIRST,
            limit,
            offset: 0,
            after: *cursor,
            ..query.clone().that_can_go_on()
        };
        let mut batch = RetriedBatch::default();
        for row in self.job_rows(partition, &query).await? {
            *cursor = Some(row.place());
            let retry = self
                .retry_job(partition, &row.job, dependents, &start)
                .await?;
            batch.jobs.push((row.job, retry));
        }
        Ok(batch)
    }
}

async fn retry(
    tx: &mut Tx<'_>,
    own: &JobKey,
    dependents: bool,
    start: MakeStart<'_>,
    exclusive: bool,
) -> Result<End<Attempt>, DbError> {
    let refused = |retry| Ok(End::Rollback(Attempt::Done(retry)));
    if exclusive {
        sql::prerequisites::lock_creations(tx, &own.0, false).await?;
    }
    let mut locked: BTreeMap<JobKey, JobRow> = tx
        .lock_known_jobs()
        .await?
        .into_iter()
        .map(|row| (row.key(), row))
        .collect();
    let Some(job) = locked.get(own).cloned() else {
        return refused(Retry::NotFound);
    };
    let incarnation = job.incarnation;
    let mut job = match Ended::read(tx, job).await? {
        Ok(ended) => ended,
        Err(retry) => return refused(retry),
    };
    let fallen = sql::rounds::fallen_with(tx, incarnation).await?;
    // Everything is locked before anything is changed.
    let mut followers = Vec::new();
    if dependents {
        let missing = tx.not_locked(fallen.iter().map(|(_, key)| key.clone()));
        if !missing.is_empty() {
            tx.lock_more_jobs(missing).await?;
            return Ok(End::Rerun);
        }
        for (number, key) in &fallen {
            if let Some(row) = locked.get(key).filter(|row| row.incarnation == *number) {
                followers.extend(Ended::read(tx, row.clone()).await?.ok());
            }
        }
    }
    let needed: Vec<JobKey> = followers
        .iter()
        .chain([&job])
        .flat_map(|ended| keys_of_prerequisites(&own.0, ended))
        .chain(followers.iter().map(|ended| ended.job.key()))
        .collect();
    let has_prerequisites = needed.iter().any(|key| key != own);
    if has_prerequisites && !exclusive {
        return Ok(End::Rollback(Attempt::NeedsExclusive));
    }
    let missing = tx.not_locked(needed);
    if !missing.is_empty() {
        tx.lock_more_jobs(missing).await?;
        return Ok(End::Rerun);
    }
    match begin(tx, &mut job, &mut locked, start).await? {
        Some(Ok(())) => {}
        Some(Err(retry)) => return refused(retry),
        None => return Ok(End::Rerun),
    }
    let Some(revived) = revive(tx, followers, &mut locked, start).await? else {
        return Ok(End::Rerun);
    };
    let still_fallen = fallen
        .into_iter()
        .filter(|(number, _)| revived.iter().all(|job| job.number != *number))
        .map(|(_, (_, id))| crate::db::sql::jobs::job_id(&id));
    let begun = Begun {
        job: job.job.to_incarnation(),
        status: job.job.status,
        fallen: still_fallen.collect::<Result<_, _>>()?,
        revived,
    };
    Ok(End::Commit(Attempt::Done(Retry::Begun(begun))))
}

fn keys_of_prerequisites(partition: &str, ended: &Ended) -> Vec<JobKey> {
    let prerequisites = ended.prerequisites().iter();
    prerequisites
        .map(|it| (partition.to_owned(), it.job.to_string()))
        .collect()
}

/// Begins a round of one job. Returns why it does not begin, or `None` if the attempt has to end
/// with [`End::Rerun`].
async fn begin(
    tx: &mut Tx<'_>,
    ended: &mut Ended,
    locked: &mut BTreeMap<JobKey, JobRow>,
    start: MakeStart<'_>,
) -> Result<Option<Result<(), Retry>>, DbError> {
    let existing = locked
        .values()
        .map(|row| (row.job.clone(), row.status))
        .collect();
    match ended.begin_round(tx, &existing, start).await? {
        Beginning::Refused(retry) => return Ok(Some(Err(retry))),
        Beginning::Begun => {}
        Beginning::Completed(end) => {
            let now = tx.now();
            if resolve_dependents(tx, &[end], now).await?.is_none() {
                return Ok(None);
            }
        }
    }
    locked.insert(ended.job.key(), ended.job.clone());
    Ok(Some(Ok(())))
}

/// Begins rounds of the jobs that fell with another: first of those that wait for that one, then of
/// those that wait for these. A job with a prerequisite that has not been taken up again is left as
/// it is.
async fn revive(
    tx: &mut Tx<'_>,
    mut followers: Vec<Ended>,
    locked: &mut BTreeMap<JobKey, JobRow>,
    start: MakeStart<'_>,
) -> Result<Option<Vec<Incarnation>>, DbError> {
    let mut revived = Vec::new();
    loop {
        let before = revived.len();
        let mut later = Vec::new();
        for mut follower in followers {
            match begin(tx, &mut follower, locked, start).await? {
                Some(Ok(())) => revived.push(follower.job.to_incarnation()),
                Some(Err(_)) => later.push(follower),
                None => return Ok(None),
            }
        }
        if later.is_empty() || revived.len() == before {
            return Ok(Some(revived));
        }
        followers = later;
    }
}
