//! A chain of jobs behind the job that is simulated: each is one item, and waits for the one
//! before.
//!
//! Invariants at rest: each job has the final status of the job before it, and was executed only if
//! that status is Completed. A job that was deleted before its end has cancelled the jobs that
//! waited for it.

use std::collections::BTreeMap;

use contract::{JobId, JobStatus, RangeItem, TaskMessage, Tracking};
use store::{Creation, Incarnation, JobRequest, Prerequisite, StartCondition};

use crate::simulation::{ITEMS_IN, ITEMS_OUT, Simulation, job_id, lock, partition};

/// A number that no scenario makes fail: [`Scenario::fails`](crate::scenario::Scenario::fails).
pub const ITEM: u64 = 1_000_003;

/// Returns the id of the nth job of the chain, from 1.
fn id(number: u64) -> JobId {
    // Every second one sorts before the simulated job in the order of locks.
    let name = if number.is_multiple_of(2) {
        format!("zz-{number}")
    } else {
        format!("after-{number}")
    };
    JobId::parse(&name).unwrap_or_else(|error| panic!("{error}"))
}

fn incarnation_of(number: u64) -> String {
    format!("dependent-{number}")
}

impl Simulation {
    pub async fn create_dependents(&self) -> Result<(), String> {
        for number in 1..=self.0.scenario.dependents {
            let before = if number == 1 {
                job_id().clone()
            } else {
                id(number - 1)
            };
            let request = JobRequest {
                start: StartCondition {
                    delay: u32::from(number == 2),
                    prerequisites: vec![Prerequisite {
                        job: before,
                        pre_created: false,
                    }],
                    suspended: false,
                },
                content_hash: [9; 32],
                ..JobRequest::new(partition().clone(), id(number))
            };
            let output = self.0.scenario.output || self.0.scenario.kept;
            let this = self.clone();
            let start = move |incarnation: &Incarnation| {
                let task = this.single_task(&incarnation_of(number), ITEM, incarnation, output);
                (ITEMS_IN.to_owned(), task.encode())
            };
            match self
                .insist(|| self.0.store.create_job(&request, start.clone()))
                .await?
            {
                Creation::Created(_) | Creation::AlreadyThere => {}
                other => return Err(format!("dependent {number}: {other:?}")),
            }
        }
        Ok(())
    }

    pub async fn unended_dependents(&self) -> Vec<String> {
        let mut unended = Vec::new();
        for number in 1..=self.0.scenario.dependents {
            match self.status(&id(number)).await {
                Some(status) if status.is_finished() => {}
                other => unended.push(format!("{}: {other:?}", id(number))),
            }
        }
        unended
    }

    /// Returns the invariants that do not hold.
    pub async fn check_dependents(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut before: Option<JobStatus> = None;
        for number in 1..=self.0.scenario.dependents {
            let Some(status) = self.status(&id(number)).await else {
                continue;
            };
            let executed = lock(&self.0.executed)
                .get(&(incarnation_of(number), ITEM))
                .copied()
                .unwrap_or(0);
            if before.is_some_and(|before| before != status) {
                broken.push(format!(
                    "dependent {number} is {status}, but the job before it is {before:?}"
                ));
            }
            if (executed > 0) != (status == JobStatus::Completed) {
                broken.push(format!(
                    "dependent {number} is {status}, but was executed {executed} times"
                ));
            }
            let is_retried = |every| ITEM.is_multiple_of(every);
            let is_faultless =
                self.0.scenario.ops.is_empty() && !self.0.scenario.retrying.is_some_and(is_retried);
            if is_faultless && executed > 1 {
                broken.push(format!(
                    "dependent {number} was executed {executed} times, although there was no fault"
                ));
            }
            before = Some(status);
        }
        // A later incarnation of the job does not affect the dependents.
        if self.0.scenario.dependents > 0
            && let Ok(Some(job)) = self.0.store.job(partition(), job_id()).await
            && let Ok(Some(first)) = self.0.store.job(partition(), &id(1)).await
            && job.incarnation < first.incarnation
            && job.status != first.status
            && !self.keeps_earlier_end(first.status).await
        {
            broken.push(format!(
                "the job is {}, and its first dependent is {}",
                job.status, first.status
            ));
        }
        broken
    }

    /// Returns whether a dependent may have this status because an earlier round of the job ended
    /// so: it has run then, or the job went on with its dead letters, which does not take its
    /// dependents along.
    async fn keeps_earlier_end(&self, status: JobStatus) -> bool {
        let history = self.insist(|| self.0.store.history(partition(), job_id()));
        let steps = history.await.unwrap_or_default();
        let is_without_it = status == JobStatus::Completed || !lock(&self.0.replayed).is_empty();
        is_without_it && steps.iter().any(|step| step.to == status)
    }

    pub async fn status(&self, job: &JobId) -> Option<JobStatus> {
        self.insist(|| self.0.store.job_status(partition(), job, None, None))
            .await
            .ok()
            .flatten()
    }

    /// Returns the message of a job that is one item.
    pub fn single_task(
        &self,
        name: &str,
        item: u64,
        incarnation: &Incarnation,
        output: bool,
    ) -> TaskMessage {
        let item = RangeItem {
            number: item,
            params: BTreeMap::from([("incarnation".to_owned(), name.to_owned())]),
        };
        let tracking = Tracking {
            job_task_id: Some(incarnation.job_task_id()),
            tracking_pipe: Some(self.tracking_pipe(incarnation).into()),
            track_to: output.then(|| ITEMS_OUT.into()),
            ..Tracking::default()
        };
        let new = TaskMessage::new(name, ITEMS_IN, &item).unwrap_or_else(|error| panic!("{error}"));
        TaskMessage {
            tracking: Some(tracking),
            correlation_id: Some(incarnation.number.to_string().into()),
            ..new
        }
    }
}
