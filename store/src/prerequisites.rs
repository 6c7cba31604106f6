//! The prerequisites of a new job: whether it may be created, and what it has to wait for.
//!
//! The store keeps the prerequisites of a job with that job, by id, because a prerequisite need not
//! exist yet. Their end is handled in [`dependents`](crate::dependents).
//!
//! What must stay true: a creation cannot miss the end or the creation of a prerequisite, and no
//! two creations close a cycle together.
//! - A creation locks those of its prerequisites that exist, so that they do not end meanwhile.
//! - If a prerequisite does not exist, or a job already waits for the new one, the creation is
//!   exclusive: no other job is created in the partition at the same time.

use std::collections::{BTreeMap, VecDeque};

use contract::{JobId, JobStatus};

use crate::db::run_tx::{Tx, job_key};
use crate::db::{Result, sql};
use crate::model::{JobRequest, Prerequisite, Refusal};

/// The result of looking up the prerequisites of a new job.
pub(crate) enum Lookup {
    /// The job may be created, and waits for these jobs; none if it waits for nothing.
    WaitFor(Vec<String>),
    /// The job would never start.
    Refused(Refusal),
    /// A job with this id exists.
    IdTaken,
    /// Only an exclusive creation can decide.
    NeedsExclusive,
}

/// Looks up and locks the prerequisites of a new job. `exclusive` says that no other job is created
/// in the partition at the same time.
pub(crate) async fn look_up(
    tx: &mut Tx<'_>,
    request: &JobRequest,
    exclusive: bool,
) -> Result<Lookup> {
    let (partition, job) = (&request.partition, &request.job);
    let prerequisites = &request.start.prerequisites;
    if prerequisites.is_empty() {
        return Ok(Lookup::WaitFor(Vec::new()));
    }
    // Includes the id of the new job: the deletion of a job with this id is waited for in the order
    // of locks, too.
    let mut keys: Vec<_> = prerequisites
        .iter()
        .map(|prerequisite| &prerequisite.job)
        .chain([job])
        .map(|id| job_key(partition, id))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    let existing: BTreeMap<JobId, JobStatus> = sql::jobs::lock(tx, &keys)
        .await?
        .into_iter()
        .map(|row| (row.job, row.status))
        .collect();
    if existing.contains_key(job) {
        return Ok(Lookup::IdTaken);
    }
    if let Some(refusal) = refusal(job, prerequisites, &existing) {
        return Ok(Lookup::Refused(refusal));
    }
    let waits_for = to_wait_for(prerequisites, &existing);
    let all_exist = waits_for.iter().all(|id| existing.contains_key(*id));
    let waits_for: Vec<String> = waits_for.into_iter().map(ToString::to_string).collect();
    let is_awaited = !sql::prerequisites::dependents(tx, &[job_key(partition, job)], false)
        .await?
        .is_empty();
    if !exclusive && (!all_exist || is_awaited) {
        return Ok(Lookup::NeedsExclusive);
    }
    if is_awaited {
        let edges = sql::prerequisites::edges(tx, partition.as_str(), &waits_for).await?;
        if let Some(cycle) = cycle(job.as_str(), &waits_for, &edges) {
            let ids = cycle.iter().map(|id| crate::db::sql::jobs::job_id(id));
            return Ok(Lookup::Refused(Refusal::Cycle(
                ids.collect::<Result<_, _>>()?,
            )));
        }
    }
    Ok(Lookup::WaitFor(waits_for))
}

/// Returns the jobs to wait for: those prerequisites that are not complete, or do not exist yet.
pub(crate) fn to_wait_for<'p>(
    prerequisites: &'p [Prerequisite],
    existing: &BTreeMap<JobId, JobStatus>,
) -> Vec<&'p JobId> {
    prerequisites
        .iter()
        .filter(|prerequisite| match existing.get(&prerequisite.job) {
            Some(status) => *status != JobStatus::Completed,
            None => !prerequisite.pre_created,
        })
        .map(|prerequisite| &prerequisite.job)
        .collect()
}

/// Returns why the job would never start, as far as its prerequisites alone show it.
pub(crate) fn refusal(
    job: &JobId,
    prerequisites: &[Prerequisite],
    existing: &BTreeMap<JobId, JobStatus>,
) -> Option<Refusal> {
    if prerequisites
        .iter()
        .any(|prerequisite| prerequisite.job == *job)
    {
        return Some(Refusal::Cycle(vec![job.clone(), job.clone()]));
    }
    let with = |status| -> Vec<JobId> {
        let matching = existing.iter().filter(|(_, other)| **other == status);
        matching.map(|(id, _)| id.clone()).collect()
    };
    let failed = with(JobStatus::Failed);
    if !failed.is_empty() {
        return Some(Refusal::Failed(failed));
    }
    let cancelled = with(JobStatus::Cancelled);
    (!cancelled.is_empty()).then_some(Refusal::Cancelled(cancelled))
}

/// Returns a shortest cycle through a new job: the job, what it waits for, what that waits for, and
/// so on up to the job again. `edges` are pairs of a waiting job and its prerequisite.
fn cycle(job: &str, waits_for: &[String], edges: &[(String, String)]) -> Option<Vec<String>> {
    let mut prerequisites: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (waiting, prerequisite) in edges {
        prerequisites.entry(waiting).or_default().push(prerequisite);
    }
    let mut reached_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next: VecDeque<&str> = waits_for.iter().map(String::as_str).collect();
    while let Some(at) = next.pop_front() {
        if at == job {
            let mut path = vec![job.to_owned()];
            let mut before = reached_from.get(at).copied();
            while let Some(id) = before {
                path.push(id.to_owned());
                before = reached_from.get(id).copied();
            }
            path.push(job.to_owned());
            path.reverse();
            return Some(path);
        }
        for prerequisite in prerequisites.get(at).into_iter().flatten() {
            if !reached_from.contains_key(prerequisite)
                && !waits_for.iter().any(|id| id == prerequisite)
            {
                reached_from.insert(prerequisite, at);
                next.push_back(prerequisite);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn cycle_is_named_in_order_and_told_from_a_diamond() {
        let edges = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect::<Vec<_>>()
        };
        let diamond = edges(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]);
        assert_eq!(cycle("new", &texts(&["a"]), &diamond), None);
        assert_eq!(
            cycle("d", &texts(&["a"]), &diamond),
            Some(texts(&["d", "a", "b", "d"]))
        );
        assert_eq!(
            cycle("d", &texts(&["x", "c", "a"]), &diamond),
            Some(texts(&["d", "c", "d"]))
        );
        // A cycle that does not contain the new job.
        assert_eq!(
            cycle("new", &texts(&["a"]), &edges(&[("a", "b"), ("b", "a")])),
            None
        );
    }
}
