//! Jobs beside the job that is simulated: each is one item that waits for the same condition.
//!
//! Invariants at rest: each is Completed, was not sent twice, and has come back soon after the
//! condition had passed, whatever has become of the other job meanwhile.

use std::time::Duration;

use contract::{JobId, JobStatus};
use store::{Creation, Incarnation, JobRequest, StartCondition};

use crate::blocks::End;
use crate::faults::Op;
use crate::simulation::{ITEMS_IN, Simulation, lock, partition};

/// A number that every scenario lets wait.
pub const ITEM: u64 = 6_000_000;
/// How long after the condition has passed the last one may come back: a silent canary, and the
/// tests around it.
const SOON: Duration = Duration::from_secs(10);

/// The jobs: one sorts before the simulated job in the order of locks, and one after it.
const JOBS: [&str; 2] = ["before", "zz-after"];
/// The seconds after which they begin. The canaries are tasks of the simulated job, which wait
/// longer.
const DELAY: u32 = 1;

fn id(name: &str) -> JobId {
    JobId::parse(name).unwrap_or_else(|error| panic!("{error}"))
}

impl Simulation {
    fn jobs_beside(&self) -> &'static [&'static str] {
        let are_there = self.0.scenario.blocks.is_some_and(|blocks| blocks.beside);
        if are_there { &JOBS } else { &[] }
    }

    pub async fn create_jobs_beside(&self) -> Result<(), String> {
        for name in self.jobs_beside() {
            let request = JobRequest {
                start: StartCondition {
                    delay: DELAY,
                    ..StartCondition::default()
                },
                content_hash: [8; 32],
                ..JobRequest::new(partition().clone(), id(name))
            };
            let this = self.clone();
            let start = move |incarnation: &Incarnation| {
                let task = this.single_task(name, ITEM, incarnation, false);
                (ITEMS_IN.to_owned(), task.encode())
            };
            let created = self.insist(|| self.0.store.create_job(&request, start.clone()));
            match created.await? {
                Creation::Created(_) | Creation::AlreadyThere => {}
                other => return Err(format!("the job {name}: {other:?}")),
            }
        }
        Ok(())
    }

    /// Returns how many tasks of these jobs wait.
    pub async fn blocked_beside(&self) -> u64 {
        let mut waiting = 0;
        for name in self.jobs_beside() {
            if let Ok(Some(job)) = self.0.store.job(partition(), &id(name)).await {
                waiting += job.blocked.map_or(0, |blocked| blocked.tasks);
            }
        }
        waiting
    }

    pub async fn unended_beside(&self) -> Vec<String> {
        let mut unended = Vec::new();
        for name in self.jobs_beside() {
            match self.status(&id(name)).await {
                Some(status) if status.is_finished() => {}
                other => unended.push(format!("{name}: {other:?}")),
            }
        }
        unended
    }

    /// Returns the invariants that do not hold.
    pub async fn check_jobs_beside(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let scenario = &self.0.scenario;
        let Some(End::Passes(passes)) = scenario.blocks.map(|blocks| blocks.end) else {
            return broken;
        };
        let by_client = scenario.ops.iter().all(|op| matches!(op, Op::Client(..)));
        for name in self.jobs_beside() {
            let status = self.status(&id(name)).await;
            if status != Some(JobStatus::Completed) {
                broken.push(format!("the job {name} beside is {status:?}"));
            }
            let key = ((*name).to_owned(), ITEM);
            let runs = lock(&self.0.executed).get(&key).copied().unwrap_or(0);
            let (blocked, back) = lock(&self.0.seen).of_item(&key);
            if by_client && (runs != blocked + 1 || back.is_none_or(|at| at > passes + SOON)) {
                broken.push(format!(
                    "the job {name} beside was blocked {blocked} times, has run {runs} times, and came back at {back:?}"
                ));
            }
        }
        broken
    }
}
