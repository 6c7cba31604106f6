//! `batchwright up --demo`: fills a partition of its own with jobs of every status, and goes on
//! doing so.
//!
//! The simulation worker runs all of them. Which job is created or ended next depends only on the
//! jobs that exist, so a restart makes none twice.
//!
//! What must stay true: the number of jobs is bounded, and jobs of other names are left alone, as
//! is what a person does with the others.

mod kinds;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use batchwright::client::{Client, ClientError};
use contract::JobStatus;
use contract::rest::Job;
use framework::health::Health;
use framework::runtime::stop_signal;
use framework::supervision::supervise;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use kinds::{KINDS, Kind, Treatment};

/// The partition of the jobs.
pub const PARTITION: &str = "demo";
/// How often the jobs are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How many items of a job are done before it is paused or cancelled.
const BEGUN: i64 = 5;
/// How many jobs of a kind there may be beyond those that are kept. Jobs that a person has paused
/// are not deleted.
const BEYOND: usize = 3;
/// The most jobs that are looked at.
const MOST: usize = 1000;

/// What the demo does next with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Create(String),
    /// If it has never been paused.
    Pause(String),
    Cancel(String),
    Delete(String),
}

/// Keeps the jobs going until the process is asked to stop, or until this is dropped.
pub async fn run(client: &Client, health: &Health, now: impl Fn() -> i64) -> Infallible {
    let until = CancellationToken::new();
    let jobs = supervise(health, "demo", &until, || go_on(client, &now));
    tokio::select! {
        ended = jobs => match ended {
            Some(never) => match never {},
            // The process gives up.
            None => std::future::pending().await,
        },
        // The service goes before the process ends, and nobody needs to be told.
        () = stop_signal() => std::future::pending().await,
    }
}

async fn go_on(client: &Client, now: impl Fn() -> i64) -> Infallible {
    let mut paused = BTreeSet::new();
    let mut problem = None;
    loop {
        let outcome = turn(client, now(), &mut paused).await;
        let failed = outcome.err().map(|error| error.to_string());
        if let Some(reason) = &failed
            && failed != problem
        {
            tracing::warn!(reason, "the demo cannot go on; trying again");
        }
        problem = failed;
        sleep(LOOK).await;
    }
}

/// Looks at the jobs once, and creates, pauses, cancels and deletes those that are due.
async fn turn(client: &Client, now: i64, paused: &mut BTreeSet<String>) -> Result<(), ClientError> {
    let query = [("limit", MOST.to_string()), ("brief", true.to_string())];
    let jobs = client.list(&query).await?;
    paused.retain(|id| jobs.iter().any(|job| job.id == *id));
    let mut awaited = newest(&jobs, kinds::AWAITED).map(|job| job.id.clone());
    for kind in &KINDS {
        for action in actions(kind, &jobs, now) {
            match action {
                Action::Create(id) => {
                    client.put(&id, &kind.new_job(awaited.as_deref())).await?;
                    if kind.name == kinds::AWAITED {
                        awaited = Some(id);
                    }
                }
                // A person may have resumed it.
                Action::Pause(id) if !paused.contains(&id) => {
                    if !was_paused(client, &id).await? {
                        done_meanwhile(client.pause(&id).await)?;
                    }
                    paused.insert(id);
                }
                Action::Pause(_) => {}
                Action::Cancel(id) => done_meanwhile(client.cancel(&id).await)?,
                Action::Delete(id) => done_meanwhile(client.delete(&id).await)?,
            }
        }
    }
    Ok(())
}

/// Ignores that a job has ended, or is gone, since it was looked at.
fn done_meanwhile(outcome: Result<(), ClientError>) -> Result<(), ClientError> {
    match outcome {
        Err(ClientError::Refused {
            status: 404 | 409, ..
        }) => Ok(()),
        outcome => outcome,
    }
}

async fn was_paused(client: &Client, id: &str) -> Result<bool, ClientError> {
    let history = client.history(id, None).await?.history;
    Ok(history.iter().any(|change| change.to == JobStatus::Paused))
}

/// Returns the number of a job among those of its kind: of `resize-images-7`, it is 7.
fn number(job: &Job, kind: &str) -> Option<u64> {
    let rest = job.id.strip_prefix(kind)?.strip_prefix('-')?;
    rest.parse().ok()
}

/// Returns the newest job of a kind.
fn newest<'a>(jobs: &'a [Job], kind: &str) -> Option<&'a Job> {
    let own = jobs.iter().filter(|job| number(job, kind).is_some());
    own.max_by_key(|job| number(job, kind))
}

/// Returns what to do next with the jobs of a kind. Pure.
fn actions(kind: &Kind, jobs: &[Job], now: i64) -> Vec<Action> {
    let mut own: Vec<(u64, &Job)> = jobs
        .iter()
        .filter_map(|job| Some((number(job, kind.name)?, job)))
        .collect();
    own.sort_by_key(|(number, _)| *number);
    let mut actions = Vec::new();
    let Some((last, newest)) = own.last().copied() else {
        return vec![Action::Create(format!("{}-1", kind.name))];
    };
    let is_old = now.saturating_sub(newest.create_time) >= kind.every_ms;
    if newest.status.is_finished() && is_old && own.len() < kind.kept + BEYOND {
        actions.push(Action::Create(format!(
            "{}-{}",
            kind.name,
            last.saturating_add(1)
        )));
    }
    let has_begun = newest.status == JobStatus::Active && newest.completed_items >= BEGUN;
    match kind.treatment {
        // One that a person has retried goes on.
        Treatment::Cancel if has_begun && newest.round.is_none() => {
            actions.push(Action::Cancel(newest.id.clone()));
        }
        Treatment::Pause if has_begun => actions.push(Action::Pause(newest.id.clone())),
        _ => {}
    }
    let too_many = own.len().saturating_sub(kind.kept);
    let ended = own.iter().filter(|(_, job)| job.status.is_finished());
    actions.extend(
        ended
            .take(too_many)
            .map(|(_, job)| Action::Delete(job.id.clone())),
    );
    actions
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn job(id: &str, status: JobStatus, create_time: i64) -> Job {
        serde_json::from_value(json!({
            "id": id, "status": status, "createTime": create_time, "lastUpdateTime": 0, "percentageComplete": 0, "failures": [],
            "labels": {}, "completedItems": 9,
        }))
        .unwrap()
    }

    fn kind(treatment: Treatment) -> &'static Kind {
        KINDS.iter().find(|it| it.treatment == treatment).unwrap()
    }

    #[test]
    fn a_job_is_followed_by_the_next_of_its_kind_when_it_has_ended_and_is_old() {
        let kind = kind(Treatment::None);
        let id = |number: u32| format!("{}-{number}", kind.name);
        let others = [
            job("mine", JobStatus::Active, 0),
            job(&format!("{}-x", kind.name), JobStatus::Active, 0),
        ];
        assert_eq!(actions(kind, &others, 0), [Action::Create(id(1))]);
        for (status, now, expected) in [
            (JobStatus::Active, kind.every_ms, None),
            (JobStatus::Paused, kind.every_ms, None),
            (JobStatus::Failed, kind.every_ms - 1, None),
            (
                JobStatus::Failed,
                kind.every_ms,
                Some(Action::Create(id(8))),
            ),
        ] {
            let jobs = [job(&id(7), status, 0)];
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(actions(kind, &jobs, now), expected, "{status}");
        }
    }

    #[test]
    fn a_job_is_paused_or_cancelled_once_it_has_begun_and_not_again_after_a_person_took_it_up() {
        for (treatment, expected) in [
            (Treatment::Pause, Action::Pause as fn(String) -> Action),
            (Treatment::Cancel, Action::Cancel),
        ] {
            let kind = kind(treatment);
            let id = format!("{}-1", kind.name);
            let mut jobs = [job(&id, JobStatus::Active, 0)];
            assert_eq!(actions(kind, &jobs, 0), [expected(id.clone())]);
            jobs[0].completed_items = 0;
            assert_eq!(actions(kind, &jobs, 0), []);
        }
        let kind = kind(Treatment::Cancel);
        let mut again = job(&format!("{}-1", kind.name), JobStatus::Active, 0);
        again.round = Some(2);
        assert_eq!(actions(kind, &[again], 0), []);
    }

    /// Every look ends each job at once, and a new one follows.
    #[test]
    fn the_number_of_jobs_is_bounded_whatever_people_pause() {
        let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
        for turn in 0..500_i64 {
            let now = turn * 3_600_000;
            for kind in &KINDS {
                let listed: Vec<Job> = jobs.values().cloned().collect();
                for action in actions(kind, &listed, now) {
                    match action {
                        Action::Create(id) => {
                            let status = match turn % 7 {
                                0 => JobStatus::Paused,
                                _ => JobStatus::Completed,
                            };
                            assert!(jobs.insert(id.clone(), job(&id, status, now)).is_none());
                        }
                        Action::Delete(id) => assert!(jobs.remove(&id).is_some()),
                        Action::Pause(_) | Action::Cancel(_) => {}
                    }
                }
            }
            let most: usize = KINDS.iter().map(|kind| kind.kept + BEYOND).sum();
            assert!(jobs.len() <= most && most < 60, "{}", jobs.len());
        }
    }
}
