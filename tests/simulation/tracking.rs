//! The tracking workers of the simulation, and the shards over which its jobs are spread.
//!
//! Each process reads one shard, as with `--shard`, so that it can crash while those of other
//! shards go on. The embedded system, which is one process, reads all of them.
//!
//! Invariant: what is tracked of a job arrives in its shard alone, in every round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contract::{GatheredReports, JobTaskId, TaskData as _, TrackingReportTask, reports_pipe};
use framework::handler::{BatchHandler, Disposition, Publisher, Received};
use framework::{Runtime, RuntimeError, Settings};
use futures_util::future::try_join_all;
use store::Incarnation;
use tokio_util::sync::CancellationToken;
use tracking_worker::TrackingWorker;

use crate::faults::{FaultyBroker, Who};
use crate::simulation::{Simulation, lock};

/// The tracking pipe of a system without shards.
pub const TRACKING_IN: &str = "worker-jobtracking-in";

/// Where each job is tracked.
#[derive(Debug, Default)]
pub struct Tracked {
    /// By job and incarnation, as their tasks name them: tasks in the first round of a first
    /// incarnation name none.
    shards: BTreeMap<(String, Option<i64>), String>,
    broken: BTreeSet<String>,
}

impl Tracked {
    fn note_arrival(&mut self, task: JobTaskId, shard: &str) {
        let job = (task.job, task.incarnation);
        let own = self.shards.get(&job);
        if own.is_none_or(|own| own != shard) {
            let broken = format!("{job:?} has the shard {own:?}, and is tracked in {shard}");
            self.broken.insert(broken);
        }
    }

    /// Returns the jobs that were tracked elsewhere than in their shards.
    pub fn broken(&self) -> BTreeSet<String> {
        self.broken.clone()
    }
}

impl Simulation {
    /// Returns the tracking pipe of a new job, which is chosen as the job service does it.
    pub fn tracking_pipe(&self, job: &Incarnation) -> String {
        let shard = self.0.scenario.shards.pipe(TRACKING_IN, job.number);
        let (name, mut tracked) = (job.job.to_string(), lock(&self.0.tracked));
        if job.first {
            tracked.shards.insert((name.clone(), None), shard.clone());
        }
        tracked
            .shards
            .insert((name, Some(job.number)), shard.clone());
        shard
    }

    /// Returns the shards that the processes of a role read, each of them its own; none if the role
    /// reads none.
    pub fn shards_read_by(&self, role: Who) -> Vec<Vec<String>> {
        let scenario = &self.0.scenario;
        let shards = scenario.shards.pipes(TRACKING_IN);
        match (role, scenario.embedded) {
            (Who::Tracking, None) => shards.into_iter().map(|shard| vec![shard]).collect(),
            (Who::Tracking, Some(_)) => vec![shards],
            _ => vec![Vec::new()],
        }
    }

    /// Returns all tracking pipes, also that of a system without shards.
    pub fn tracking_pipes(&self) -> BTreeSet<String> {
        let shards = self.0.scenario.shards.pipes(TRACKING_IN).into_iter();
        shards
            .chain([TRACKING_IN.to_owned()])
            .flat_map(|shard| [reports_pipe(&shard), Some(shard)])
            .flatten()
            .collect()
    }

    /// Runs a process that reads these shards.
    pub async fn run_tracking(
        &self,
        shards: &[String],
        settings: Settings,
        broker: Arc<FaultyBroker>,
        stop: CancellationToken,
    ) -> Result<(), RuntimeError> {
        let worker = TrackingWorker::new(self.0.store.clone());
        let mut readers = Vec::new();
        for shard in shards {
            let watched = Watched {
                worker: worker.clone(),
                simulation: self.clone(),
                shard: shard.clone(),
            };
            let gathered = reports_pipe(shard).filter(|_| self.0.scenario.bundle > 1);
            for input in [Some(shard.clone()), gathered].into_iter().flatten() {
                let settings = Settings {
                    input,
                    ..settings.clone()
                };
                let runtime = Runtime::new(settings, Arc::clone(&broker) as _);
                let reader = runtime.handler(watched.clone());
                readers.push(Box::pin(reader.run_until(stop.clone())));
            }
        }
        try_join_all(readers).await.map(drop)
    }
}

/// The tracking worker. It notes what arrives in a shard, and observes the job after each of its
/// flushes.
#[derive(Clone)]
struct Watched {
    worker: TrackingWorker,
    simulation: Simulation,
    shard: String,
}

impl BatchHandler for Watched {
    fn max_batch(&self) -> usize {
        self.simulation.0.scenario.flush
    }

    async fn handle(&self, arrivals: &[Received], courier: &Publisher) -> Vec<Disposition> {
        let parts = &self.simulation.0;
        for task in arrivals.iter().flat_map(tasks) {
            let task = JobTaskId::parse(&task).unwrap();
            lock(&parts.tracked).note_arrival(task, &self.shard);
        }
        let verdicts = self.worker.handle(arrivals, courier).await;
        parts.observer.look().await;
        verdicts
    }

    fn gives_up(&self) -> bool {
        self.worker.gives_up()
    }
}

/// Returns tasks that a message tells something of, at least one of each job.
fn tasks(received: &Received) -> Vec<String> {
    let message = received.message();
    if received.is_diverted() {
        return message
            .job_task_id()
            .map(str::to_owned)
            .into_iter()
            .collect();
    }
    let data = message.task_data.as_deref().unwrap_or_default();
    if message.task_classifier.as_deref() == Some(GatheredReports::CLASSIFIER) {
        let gathered: GatheredReports = serde_json::from_slice(data).unwrap();
        let splits = gathered.complete.into_iter().map(|complete| complete.split);
        let others = gathered.others.into_iter().map(|report| report.job_task_id);
        return splits.chain(others).collect();
    }
    let listed: TrackingReportTask = serde_json::from_slice(data).unwrap();
    let reports = listed.tracking_reports.into_iter();
    reports.map(|report| report.job_task_id).collect()
}
