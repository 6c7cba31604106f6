//! Jobs that wait for other jobs.
//!
//! What a job waits for is stored with it, by id: a prerequisite need not exist yet. Whoever ends a job *settles* those that wait
//! for it, in the same transaction: a completed job lets them start, one that has failed fails them, one that is cancelled or
//! deleted cancels them; the latter two go on to those that wait for these. So nothing waits for a job that is finished, and no
//! start is forgotten by a crash.
//!
//! What must stay true:
//! - Whoever changes what a job waits for holds its lock. Two prerequisites that complete at the same time would otherwise each
//!   see the other one as missing.
//! - Locks are taken in (partition, job) order. Those who wait are known only when their prerequisite is locked; where they come
//!   before it in that order, the transaction is made again with all locks taken at its beginning.
//! - A creation locks those of its prerequisites that exist, so it cannot miss their end. Where one does not exist, or somebody
//!   already waits for the new job, it is the only creation in its partition: it cannot miss that the other job is created just
//!   now, and no two creations close a circle together.

use std::collections::{BTreeMap, BTreeSet};

use contract::{JobId, JobStatus, ReportFailure};

use crate::db::DbError;
use crate::db::scheduling::{JobKey, Wait};
use crate::db::{JobRow, Signal, Transaction};
use crate::jobs::{Attempt, key, moved};
use crate::ledger::{KeptFailure, UNNAMED_FAILURE};
use crate::transition::Actor;
use crate::{Creation, Incarnation, JobRequest, Prerequisite, Refusal};

/// The jobs that a transaction has locked, or has to.
pub(crate) type Locks = BTreeSet<JobKey>;

pub(crate) async fn lock(tx: &mut dyn Transaction, locks: &Locks) -> Result<Vec<JobRow>, DbError> {
    tx.lock_jobs(&locks.iter().cloned().collect::<Vec<_>>())
        .await
}

/// What a new job waits for.
pub(crate) enum NewWaits {
    For(Vec<String>),
    /// It cannot be created in this attempt.
    Not(Attempt),
}

/// Looks at the prerequisites of a new job and locks them. `shared` = other jobs may be created at the same time.
pub(crate) async fn of_new(
    tx: &mut dyn Transaction,
    request: &JobRequest,
    shared: bool,
) -> Result<NewWaits, DbError> {
    let (partition, job) = (&request.partition, &request.job);
    let refused = |refusal| Ok(NewWaits::Not(Attempt::Done(Creation::Refused(refusal))));
    let prerequisites = &request.start.prerequisites;
    if prerequisites.is_empty() {
        return Ok(NewWaits::For(Vec::new()));
    }
    // With the lock of the job itself: one that is being deleted is waited for in order, too.
    let keys: Locks = prerequisites
        .iter()
        .map(|wanted| &wanted.job)
        .chain([job])
        .map(|id| key(partition, id))
        .collect();
    let there: BTreeMap<JobId, JobStatus> = lock(tx, &keys)
        .await?
        .into_iter()
        .map(|row| (row.job, row.status))
        .collect();
    if there.contains_key(job) {
        return Ok(NewWaits::Not(Attempt::InTheWay));
    }
    if prerequisites.iter().any(|wanted| wanted.job == *job) {
        return refused(Refusal::Cycle(vec![job.clone(), job.clone()]));
    }
    let with = |status| {
        there
            .iter()
            .filter(move |(_, s)| **s == status)
            .map(|(id, _)| id.clone())
            .collect::<Vec<_>>()
    };
    let (failed, cancelled) = (with(JobStatus::Failed), with(JobStatus::Cancelled));
    if !failed.is_empty() {
        return refused(Refusal::Failed(failed));
    }
    if !cancelled.is_empty() {
        return refused(Refusal::Cancelled(cancelled));
    }
    let is_waited_for = |wanted: &&Prerequisite| match there.get(&wanted.job) {
        Some(status) => *status != JobStatus::Completed,
        None => !wanted.pre_created,
    };
    let waits: Vec<&Prerequisite> = prerequisites.iter().filter(is_waited_for).collect();
    let all_exist = waits.iter().all(|wanted| there.contains_key(&wanted.job));
    let is_awaited = !tx
        .dependents(&[key(partition, job)], false)
        .await?
        .is_empty();
    if shared && (!all_exist || is_awaited) {
        return Ok(NewWaits::Not(Attempt::NotAlone));
    }
    let waits: Vec<String> = waits
        .into_iter()
        .map(|wanted| wanted.job.to_string())
        .collect();
    if is_awaited {
        let ways = tx.prerequisite_edges(partition.as_str(), &waits).await?;
        if let Some(cycle) = cycle(job.as_str(), &waits, &ways) {
            let ids = cycle
                .iter()
                .map(|id| crate::db::sql::job_id(id))
                .collect::<Result<_, _>>()?;
            return refused(Refusal::Cycle(ids));
        }
    }
    Ok(NewWaits::For(waits))
}

/// The way from a new job over what it waits for back to itself, if there is one; a shortest one.
fn cycle(job: &str, waits: &[String], ways: &[(String, String)]) -> Option<Vec<String>> {
    let mut up: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (waiting, prerequisite) in ways {
        up.entry(waiting).or_default().push(prerequisite);
    }
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next: std::collections::VecDeque<&str> = waits.iter().map(String::as_str).collect();
    while let Some(at) = next.pop_front() {
        if at == job {
            let mut way = vec![job.to_owned()];
            let mut back = came_from.get(at).copied();
            while let Some(id) = back {
                way.push(id.to_owned());
                back = came_from.get(id).copied();
            }
            way.push(job.to_owned());
            way.reverse();
            return Some(way);
        }
        for prerequisite in up.get(at).into_iter().flatten() {
            if !came_from.contains_key(prerequisite) && !waits.iter().any(|id| id == prerequisite) {
                came_from.insert(prerequisite, at);
                next.push_back(prerequisite);
            }
        }
    }
    None
}

/// A locked job that has ended in this transaction.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    key: JobKey,
    incarnation: i64,
    how: JobStatus,
    deleted: bool,
}

impl Ended {
    /// A job that has come to its end.
    pub fn of(job: &JobRow) -> Self {
        Self {
            key: key(&job.partition, &job.job),
            incarnation: job.incarnation,
            how: job.status,
            deleted: false,
        }
    }

    /// A job that is about to be deleted.
    pub fn by_deletion(job: &JobRow) -> Self {
        let how = if job.status.is_finished() {
            job.status
        } else {
            JobStatus::Cancelled
        };
        Self {
            how,
            deleted: true,
            ..Self::of(job)
        }
    }

    /// What is said of it, or of one that ended because of it.
    fn reason(&self, is_itself: bool) -> &'static str {
        match self.how {
            JobStatus::Failed => "has failed",
            _ if self.deleted && is_itself => "was deleted",
            _ => "was cancelled",
        }
    }
}

/// Those that wait for an ended job, and for those, and so on; each with what it waits for.
struct Cascade<'a> {
    root: &'a Ended,
    waits: Vec<Wait>,
}

/// Settles those that wait for the jobs that have ended; answers which have ended by that. `None` when locks are missing that
/// cannot be taken in order any more: `locks` has them then, and the transaction is to be made again.
pub(crate) async fn settle(
    tx: &mut dyn Transaction,
    locks: &mut Locks,
    ended: &[Ended],
    now: i64,
) -> Result<Option<Vec<(Incarnation, JobStatus)>>, DbError> {
    if ended.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let completed: Vec<JobKey> = ended
        .iter()
        .filter(|job| job.how == JobStatus::Completed)
        .map(|job| job.key.clone())
        .collect();
    loop {
        let mut released = if completed.is_empty() {
            Vec::new()
        } else {
            tx.dependents(&completed, false).await?
        };
        let mut cascades = Vec::new();
        for root in ended.iter().filter(|job| job.how != JobStatus::Completed) {
            let waits = tx.dependents(std::slice::from_ref(&root.key), true).await?;
            cascades.push(Cascade { root, waits });
        }
        let waits = || {
            released
                .iter()
                .chain(cascades.iter().flat_map(|cascade| &cascade.waits))
        };
        let missing: Locks = waits()
            .map(|wait| (wait.partition.clone(), wait.job.clone()))
            .filter(|key| !locks.contains(key))
            .collect();
        if !missing.is_empty() {
            let in_order = locks.last() < missing.first();
            if in_order {
                lock(tx, &missing).await?;
            }
            locks.extend(missing);
            if in_order {
                // What was found before the locks were there may have changed.
                continue;
            }
            return Ok(None);
        }
        let fallen = end_dependents(tx, &cascades, now).await?;
        let gone: Vec<i64> = ended
            .iter()
            .map(|job| job.incarnation)
            .chain(fallen.iter().map(|(life, _)| life.number))
            .collect();
        tx.forget_starts(&gone).await?;
        released.retain(|wait| !gone.contains(&wait.incarnation));
        if !released.is_empty() {
            let waiting: Vec<i64> = released.iter().map(|wait| wait.incarnation).collect();
            tx.release(&completed, &waiting).await?;
            tx.notify(Signal::Outbox);
        }
        if !released.is_empty() || !fallen.is_empty() {
            tx.notify(Signal::Jobs);
        }
        return Ok(Some(fallen));
    }
}

/// Ends the jobs of these cascades as their roots have ended.
async fn end_dependents(
    tx: &mut dyn Transaction,
    cascades: &[Cascade<'_>],
    now: i64,
) -> Result<Vec<(Incarnation, JobStatus)>, DbError> {
    let keys: Locks = cascades
        .iter()
        .flat_map(|cascade| &cascade.waits)
        .map(|wait| (wait.partition.clone(), wait.job.clone()))
        .collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut rows: BTreeMap<i64, JobRow> = lock(tx, &keys)
        .await?
        .into_iter()
        .map(|row| (row.incarnation, row))
        .collect();
    let (mut jobs, mut steps, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for Cascade { root, waits } in cascades.iter().filter(|cascade| !cascade.waits.is_empty()) {
        let inherited = if root.how == JobStatus::Failed {
            Some(inherited_failure(tx, root).await?)
        } else {
            None
        };
        for wait in waits {
            // Each once, though it may wait for more than one of them.
            let Some(mut job) = rows
                .remove(&wait.incarnation)
                .filter(|job| !job.status.is_finished())
            else {
                continue;
            };
            let verb = root.reason(wait.prerequisite == root.key.1);
            let reason = format!("its prerequisite {} {verb}", wait.prerequisite);
            let actor = if inherited.is_some() {
                Actor::Tracking
            } else {
                Actor::Client
            };
            steps.push((
                job.incarnation,
                moved(&mut job, root.how, actor, &reason, now)?,
            ));
            if let Some(failure) = &inherited {
                let kind = failure
                    .failure_id
                    .clone()
                    .unwrap_or_else(|| UNNAMED_FAILURE.to_owned());
                job.totals.failed_tasks += 1;
                *job.totals.failure_counts.entry(kind).or_default() += 1;
                failures.push((
                    job.incarnation,
                    KeptFailure {
                        path: String::new(),
                        since: now,
                        attempts: None,
                        failure: failure.clone(),
                    },
                ));
            }
            if job.task_table {
                tx.retire_table(job.incarnation, 0).await?;
            }
            if job.task_table || job.expiry_time.is_some() {
                tx.notify(Signal::Sweep);
            }
            jobs.push(job);
        }
    }
    if !jobs.is_empty() {
        tx.save_ended(&jobs).await?;
        tx.append_histories(&steps).await?;
        if !failures.is_empty() {
            tx.insert_failures(&failures).await?;
        }
    }
    Ok(jobs
        .iter()
        .map(|job| (job.to_incarnation(), job.status))
        .collect())
}

/// The failure of a job as those have it that waited for it: it names the job where it happened.
async fn inherited_failure(
    tx: &mut dyn Transaction,
    root: &Ended,
) -> Result<ReportFailure, DbError> {
    let failure = tx
        .first_failure(root.incarnation)
        .await?
        .unwrap_or_default();
    let source = failure
        .failure_source
        .unwrap_or_else(|| "Unknown".to_owned());
    let (partition, job) = &root.key;
    Ok(ReportFailure {
        failure_source: Some(format!("{partition}:{job}:{source}")),
        ..failure
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_circle_is_told_from_a_way_that_ends_and_named_in_order() {
        let ways = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect::<Vec<_>>()
        };
        let diamond = ways(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]);
        assert_eq!(cycle("new", &texts(&["a"]), &diamond), None);
        assert_eq!(
            cycle("d", &texts(&["a"]), &diamond),
            Some(texts(&["d", "a", "b", "d"]))
        );
        assert_eq!(
            cycle("d", &texts(&["x", "c", "a"]), &diamond),
            Some(texts(&["d", "c", "d"]))
        );
        // One that is there already, elsewhere, is nobody's but its own.
        assert_eq!(
            cycle("new", &texts(&["a"]), &ways(&[("a", "b"), ("b", "a")])),
            None
        );
    }
}
