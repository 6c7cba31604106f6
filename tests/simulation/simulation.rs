//! The simulated system: the real roles on the broker in memory and a store on SQLite, under a
//! paused clock that advances only when no task can run.
//!
//! A scenario has one of two kinds of status check. Either no worker ever learns that a job has
//! ended: then every message in flight is executed, and only the ledger keeps it from being
//! counted. Or every worker learns at once that a job has been completed (`checked`): then
//! everything that the job caused must have been safe before. Either all workers learn of pauses,
//! and rely on that for a while, or none does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batch_worker::BatchWorker;
use blobs::Blobs;
use contract::{
    BatchTask, JobId, OUTPUTS_PIPE, PAUSED_PIPE, PartitionId, TaskMessage, Tracking, kept_track_to,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker as _, Consumer};
use framework::{RetryPolicy, Runtime, RuntimeError, Settings};
use harness::block_on_in_time;
use job_service::{ConditionOptions, JobService, ServiceOptions};
use output_worker::OutputWorker;
use store::{Cancellation, Creation, Incarnation, JobRequest, Store, StoreError, StoreOptions};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::blocks::{Blocks, PACE, Seen};
use crate::checks::Checks;
use crate::faults::{Action, Faults, FaultyBroker, Op, Who};
use crate::item_worker::ItemWorker;
use crate::observer::Observer;
use crate::rounds::WholeRange;
use crate::scenario::Scenario;
use crate::tracking::Tracked;

const BATCH_IN: &str = "worker-batch-in";
pub const ITEMS_IN: &str = "worker-items-in";
pub const ITEMS_OUT: &str = "worker-items-out";
pub const OUTPUT_BUNDLES: &str = "worker-items-out.bundles";
pub const ITEMS_REJECT: &str = "worker-items-reject";
/// The pipes that must be empty at the end, beside the tracking pipes.
const PIPES: [&str; 13] = [
    BATCH_IN,
    ITEMS_IN,
    "worker-items-in.bundles",
    PAUSED_PIPE,
    "worker-paused-in.invalid",
    "worker-batch-invalid",
    "worker-items-invalid",
    "worker-jobtracking-invalid",
    "worker-batch-reject",
    "worker-jobtracking-reject",
    OUTPUTS_PIPE,
    "worker-output-invalid",
    "worker-output-reject",
];
/// Simulated seconds without a change after which the system is at rest. Every delay in the system
/// is shorter.
const REST: u32 = 40;
/// How often, every five simulated seconds, one looks for task tables at the end: after faults of
/// the store, the sweeper pauses up to half a minute.
const LOOKS_FOR_TABLES: u32 = 12;
/// Simulated seconds without a change after which dead letters are sent again, while the tasks of a
/// failed job are known.
const BEFORE_REPLAY: u32 = 10;
/// Short, because every runtime keeps looking for work while the simulated time passes.
const FAILED_TABLES_KEPT: Duration = Duration::from_secs(20);
/// Simulated seconds after which a system that does not come to rest is broken.
const PATIENCE: u32 = 3600;
/// Real time for one scenario. Most take some ten milliseconds.
const LIMIT: Duration = Duration::from_mins(2);

/// Runs a scenario. Returns how many of its faults have happened; an error says which invariant was
/// broken.
///
/// # Panics
/// If the scenario takes longer than [`LIMIT`]. Its own time limits are in simulated time, which
/// stands still in a busy loop.
pub fn run(scenario: &Scenario) -> Result<usize, String> {
    let simulated = scenario.clone();
    block_on_in_time(&format!("{scenario:#?}"), LIMIT, move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .map_err(|e| e.to_string())?;
        let simulation = Simulation::new(simulated);
        let faults = Arc::clone(&simulation.0.faults);
        let outcome = runtime.block_on(simulation.run());
        faults.forget_processes();
        outcome
    })
}

/// How the job must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Outcome,
    Cancelled,
    Gone,
}

#[derive(Clone)]
pub struct Simulation(pub Arc<Parts>);

pub struct Parts {
    pub scenario: Scenario,
    pub pipes: Memory,
    pub store: Store,
    pub blobs: Blobs,
    /// Somebody who reads bundles of outputs, but not yet.
    pub reader: Mutex<Option<Consumer>>,
    pub faults: Arc<Faults>,
    pub tasks: TaskTracker,
    over: CancellationToken,
    pub start: Instant,
    /// The tokens that stop the processes, with their roles.
    stops: Mutex<Vec<(Who, CancellationToken)>>,
    pub observer: Observer,
    /// Where each job is tracked.
    pub tracked: Mutex<Tracked>,
    /// How often each item was executed, by incarnation and number.
    pub executed: Arc<Mutex<BTreeMap<(String, u64), u32>>>,
    /// Which items were done, in any round, by incarnation and number.
    pub succeeded: Arc<Mutex<BTreeSet<(String, u64)>>>,
    /// What the items have seen of the condition that they wait for.
    pub seen: Arc<Mutex<Seen>>,
    /// The dead letters that were sent again.
    pub replayed: Mutex<BTreeSet<i64>>,
}

impl Simulation {
    fn new(scenario: Scenario) -> Self {
        let faults = Faults::new(&scenario.ops, scenario.embedded);
        let planned = Arc::clone(&faults);
        let options = StoreOptions {
            failed_tables_kept: FAILED_TABLES_KEPT,
            max_conditions: scenario
                .blocks
                .map_or(StoreOptions::DEFAULT_CONDITIONS, Blocks::most_conditions),
            ..StoreOptions::default()
        };
        let store = Store::simulated(options, move |point| planned.fails(point));
        let observer = Observer::new(store.clone());
        Self(Arc::new(Parts {
            scenario,
            pipes: Memory::new(),
            store,
            blobs: Blobs::memory(),
            reader: Mutex::default(),
            faults,
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
            start: Instant::now(),
            stops: Mutex::default(),
            observer,
            tracked: Mutex::default(),
            executed: Arc::default(),
            succeeded: Arc::default(),
            seen: Arc::default(),
            replayed: Mutex::default(),
        }))
    }

    async fn run(self) -> Result<usize, String> {
        let parts = &self.0;
        let mut job = Put {
            number: 1,
            items: parts.scenario.items,
            expected: Expected::Outcome,
            counted_nothing: false,
        };
        self.create(&job).await?;
        self.create_dependents().await?;
        self.keep_gate().await?;
        self.create_jobs_beside().await?;
        if parts.scenario.output {
            let reader = parts.pipes.consume(OUTPUT_BUNDLES, 1).await;
            *lock(&parts.reader) = Some(reader.map_err(|error| error.to_string())?);
        }
        let processes = TaskTracker::new();
        let roles = [Who::Service, Who::Batch, Who::Items, Who::Tracking];
        let keeps = parts.scenario.kept.then_some(Who::Outputs);
        for role in roles.into_iter().chain(keeps) {
            for shards in self.shards_read_by(role) {
                for _ in 0..parts.scenario.processes {
                    let (simulation, shards) = (self.clone(), shards.clone());
                    processes.spawn(async move { simulation.keep_running(role, &shards).await });
                }
            }
        }
        let mut moments: Vec<(Duration, Op)> = parts
            .scenario
            .ops
            .iter()
            .filter_map(|op| Some((op.moment()?, *op)))
            .collect();
        moments.sort_by_key(|(at, _)| *at);
        for (at, op) in moments {
            sleep_until(parts.start + at).await;
            match op {
                Op::Restart(role, _) => self.stop(|who| who == role),
                Op::Client(action, _) => self.act(action, &mut job).await?,
                _ => {}
            }
        }
        // A paused job does not come to rest.
        self.act(Action::Resume, &mut job).await?;
        if parts.scenario.letters {
            self.come_to_rest(job.expected, BEFORE_REPLAY).await?;
            self.replay(&mut job).await?;
        }
        self.come_to_rest(job.expected, REST).await?;
        let mut broken = self.check(&job).await;
        broken.extend(self.check_dependents().await);
        broken.extend(self.check_jobs_beside().await);
        broken.extend(lock(&parts.tracked).broken());
        self.open_gate().await?;
        broken.extend(self.left_tables().await);
        parts.over.cancel();
        self.stop(|_| true);
        processes.close();
        processes.wait().await;
        broken.extend(
            self.left_in_pipes()
                .await
                .map(|left| format!("after the stop there is left: {left}")),
        );
        broken.extend(parts.observer.broken().await);
        if broken.is_empty() {
            Ok(parts.faults.happened())
        } else {
            Err(broken.join("\n"))
        }
    }

    /// Waits until nothing has changed for so many simulated seconds.
    async fn come_to_rest(&self, expected: Expected, rest: u32) -> Result<(), String> {
        let parts = &self.0;
        let (mut quiet, mut last) = (0, String::new());
        for second in 0..PATIENCE {
            sleep(Duration::from_secs(1)).await;
            self.look_at_condition(second).await?;
            let outbox = parts.store.outbox(10).await.map_or_else(
                |error| format!("{error}"),
                |left| format!("{} in the outbox", left.len()),
            );
            let job = parts.observer.look().await;
            if let Some(job) = &job {
                self.compare_blocks(job).await;
            }
            let parked = parts.store.count_parked_tasks(partition(), job_id()).await;
            let outbox = format!("{outbox}, {} parked", parked.unwrap_or(u64::MAX));
            let pipes = self.left_in_pipes().await;
            let ended = match &job {
                None => expected == Expected::Gone,
                Some(job) => job.status.is_finished(),
            };
            let mut waiting = self.unended_dependents().await;
            waiting.extend(self.unended_beside().await);
            let at_rest = pipes.is_none() && outbox == "0 in the outbox, 0 parked";
            quiet = if ended && waiting.is_empty() && at_rest {
                quiet + 1
            } else {
                0
            };
            if quiet == rest {
                return Ok(());
            }
            last = format!(
                "{outbox}; {}; {job:?}; not ended: {waiting:?}",
                pipes.unwrap_or_default()
            );
        }
        let executed = self.executed_by_incarnation();
        Err(format!(
            "no rest after {PATIENCE} s: {last}; executed: {executed:?}; {:?}",
            parts.faults
        ))
    }

    /// Returns the task tables that are left although they are kept no longer.
    async fn left_tables(&self) -> Option<String> {
        let mut left = String::new();
        for _ in 0..LOOKS_FOR_TABLES {
            sleep(Duration::from_secs(5)).await;
            left = match self.0.store.task_table_size().await {
                Ok(size) if (size.tables, size.rows) == (0, 0) => return None,
                Ok(size) => format!("task tables are left: {size:?}"),
                Err(error) => error.to_string(),
            };
        }
        Some(left)
    }

    async fn left_in_pipes(&self) -> Option<String> {
        let mut left = Vec::new();
        let tracking = self.tracking_pipes();
        for pipe in PIPES.into_iter().chain(tracking.iter().map(|pipe| &**pipe)) {
            // A batch that comes back counts, although its job may have ended: no worker knows.
            let state = self.0.pipes.look(pipe).await.ok().flatten();
            let depth = state.map_or(0, |state| state.messages + state.delayed.unwrap_or(0));
            if depth > 0 {
                left.push(format!("{depth} in {pipe}"));
            }
        }
        if self.0.scenario.letters {
            left.extend(self.left_of_letters().await);
        }
        left.extend(self.left_of_blocks().await);
        (!left.is_empty()).then(|| left.join(", "))
    }

    fn executed_by_incarnation(&self) -> BTreeMap<String, usize> {
        let mut incarnations = BTreeMap::new();
        for (incarnation, _) in lock(&self.0.executed).keys() {
            *incarnations.entry(incarnation.clone()).or_default() += 1;
        }
        incarnations
    }
}

/// The processes: how they start, crash and stop.
impl Simulation {
    /// Keeps a process of a role running. A tracking worker reads these shards.
    async fn keep_running(&self, role: Who, shards: &[String]) {
        let parts = &self.0;
        while !parts.over.is_cancelled() {
            let broker = FaultyBroker::start(
                &parts.pipes,
                role,
                &parts.faults,
                &parts.tasks,
                self.checks(),
            );
            let stop = CancellationToken::new();
            lock(&parts.stops).push((role, stop.clone()));
            let crashed = broker.crashed().clone();
            // A process whose broker is gone ends by itself, and is started again.
            let _ = crashed
                .run_until_cancelled(Box::pin(self.run_process(
                    (role, shards),
                    broker.clone(),
                    stop,
                )))
                .await;
            broker.end();
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn checks(&self) -> Checks {
        let Parts {
            scenario,
            store,
            start,
            ..
        } = &*self.0;
        Checks::new(
            store.clone(),
            scenario.checked,
            scenario.pauses_hold,
            *start,
        )
    }

    async fn run_process(
        &self,
        (role, shards): (Who, &[String]),
        broker: FaultyBroker,
        stop: CancellationToken,
    ) -> Result<(), RuntimeError> {
        let Parts {
            scenario,
            store,
            blobs,
            executed,
            succeeded,
            seen,
            start,
            ..
        } = &*self.0;
        let broker = Arc::new(broker);
        let settings = |name: &str| Settings {
            route: scenario.route,
            concurrency: scenario.concurrency,
            prefetch: Some(scenario.prefetch),
            bundle: scenario.bundle,
            retry: RetryPolicy::constant(Duration::from_secs(1)).attempts(4),
            ..Settings::new(name)
        };
        match role {
            Who::Service => {
                let conditions = ConditionOptions {
                    pace: PACE,
                    ..ConditionOptions::default()
                };
                let mut options = ServiceOptions {
                    conditions,
                    ..ServiceOptions::default()
                };
                if scenario.letters {
                    options.letters.pipes = vec![ITEMS_REJECT.to_owned()];
                }
                JobService::new(store.clone(), broker, options)
                    .run_background(stop)
                    .await;
                Ok(())
            }
            Who::Batch => {
                let worker = BatchWorker::new(BatchWorker::MIN_PARTS)
                    .max_depth(scenario.room)
                    .with(WholeRange);
                Runtime::new(settings("worker-batch"), broker)
                    .worker(worker)
                    .run_until(stop)
                    .await
            }
            Who::Items => {
                let worker = ItemWorker {
                    scenario: scenario.clone(),
                    store: store.clone(),
                    executed: Arc::clone(executed),
                    succeeded: Arc::clone(succeeded),
                    seen: Arc::clone(seen),
                    start: *start,
                };
                let output = scenario.output.then(|| ITEMS_OUT.to_owned());
                let settings = Settings {
                    output,
                    ..settings("worker-items")
                };
                Runtime::new(settings, broker)
                    .worker(worker)
                    .run_until(stop)
                    .await
            }
            Who::Tracking => {
                let settings = settings("worker-jobtracking");
                self.run_tracking(shards, settings, broker, stop).await
            }
            Who::Outputs => {
                let worker = OutputWorker::new(store.clone(), blobs.clone());
                let settings = Settings {
                    concurrency: 1,
                    ..settings("worker-output")
                };
                let merging = worker.clone();
                let service = Runtime::new(settings, broker).handler(worker);
                tokio::select! {
                    ended = service.run_until(stop) => ended,
                    () = merging.merge() => Ok(()),
                }
            }
        }
    }

    fn stop(&self, which: impl Fn(Who) -> bool) {
        for (_, stop) in lock(&self.0.stops).extract_if(.., |(role, _)| which(*role)) {
            stop.cancel();
        }
    }
}

/// The job as its client last put it.
#[derive(Clone)]
pub struct Put {
    pub number: u32,
    pub items: u64,
    pub expected: Expected,
    /// Whether the job was cancelled before it had a task table. Then nobody counts what is done
    /// until it is taken up again.
    pub counted_nothing: bool,
}

impl Put {
    /// Returns the id of the task that starts the first round.
    pub fn task_id(&self) -> String {
        format!("incarnation-{}", self.number)
    }
}

/// The client. It repeats each request until the store is available.
impl Simulation {
    async fn act(&self, action: Action, job: &mut Put) -> Result<(), String> {
        match action {
            Action::Cancel => match self
                .insist(|| self.0.store.cancel_job(partition(), job_id()))
                .await?
            {
                Cancellation::Cancelled(_) | Cancellation::AlreadyCancelled => {
                    job.expected = Expected::Cancelled;
                    let now = self.0.observer.look().await;
                    job.counted_nothing |= now.is_none_or(|job| job.items.total.is_none());
                }
                Cancellation::NotFound | Cancellation::Finished(_) => {}
            },
            Action::Retry => {
                self.0.observer.look().await;
                self.retry(job).await?;
                self.0.observer.look().await;
            }
            Action::Delete => self.delete(job).await?,
            Action::Pause => drop(
                self.insist(|| self.0.store.pause_job(partition(), job_id()))
                    .await?,
            ),
            Action::Resume => drop(
                self.insist(|| self.0.store.resume_job(partition(), job_id()))
                    .await?,
            ),
            Action::Replay => self.replay(job).await?,
            Action::Condition(phase) => self.steer_condition(phase).await?,
            Action::PutAgain(items) => {
                self.delete(job).await?;
                *job = Put {
                    number: job.number + 1,
                    items,
                    expected: Expected::Outcome,
                    counted_nothing: false,
                };
                self.create(job).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, job: &mut Put) -> Result<(), String> {
        self.insist(|| self.0.store.delete_job(partition(), job_id()))
            .await?;
        job.expected = Expected::Gone;
        Ok(())
    }

    async fn create(&self, job: &Put) -> Result<(), String> {
        let request = JobRequest {
            on_failure: self.0.scenario.on_failure,
            output_pipe: self.0.scenario.kept.then(|| OUTPUTS_PIPE.to_owned()),
            content_hash: [u8::try_from(job.number).unwrap_or(u8::MAX); 32],
            ..JobRequest::new(partition().clone(), job_id().clone())
        };
        let (this, job) = (self.clone(), job.clone());
        let start = move |incarnation: &Incarnation| {
            (
                BATCH_IN.to_owned(),
                this.start_message(&job, incarnation).encode(),
            )
        };
        match self
            .insist(|| self.0.store.create_job(&request, start.clone()))
            .await?
        {
            Creation::Created(_) | Creation::AlreadyThere => Ok(()),
            // Of requests with a key and of replaced jobs, there are none here.
            other => Err(format!("the job is not created: {other:?}")),
        }
    }

    fn start_message(&self, job: &Put, incarnation: &Incarnation) -> TaskMessage {
        let batch = BatchTask {
            batch_definition: Some(format!("1-{}", job.items)),
            batch_type: Some("range".to_owned()),
            task_message_type: None,
            task_message_params: Some(BTreeMap::from([("incarnation".to_owned(), job.task_id())])),
            target_pipe: Some(ITEMS_IN.to_owned()),
        };
        let tracking = Tracking {
            job_task_id: Some(incarnation.job_task_id()),
            tracking_pipe: Some(self.tracking_pipe(incarnation).into()),
            track_to: self.track_to().map(Into::into),
            ..Tracking::default()
        };
        let new = TaskMessage::new(job.task_id(), BATCH_IN, &batch).unwrap();
        TaskMessage {
            tracking: Some(tracking),
            correlation_id: Some(incarnation.number.to_string().into()),
            ..new
        }
    }

    /// Returns where the tracking of the job ends.
    fn track_to(&self) -> Option<String> {
        match (self.0.scenario.output, self.0.scenario.kept) {
            (true, _) => Some(ITEMS_OUT.to_owned()),
            (_, true) => Some(kept_track_to(OUTPUTS_PIPE)),
            _ => None,
        }
    }

    pub async fn insist<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, String> {
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(StoreError::Unavailable(_)) => sleep(Duration::from_millis(10)).await,
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

pub fn partition() -> &'static PartitionId {
    static ID: std::sync::LazyLock<PartitionId> =
        std::sync::LazyLock::new(|| PartitionId::parse("sim").unwrap());
    &ID
}

pub fn job_id() -> &'static JobId {
    static ID: std::sync::LazyLock<JobId> =
        std::sync::LazyLock::new(|| JobId::parse("job").unwrap());
    &ID
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
