//! The roles as futures, each of which runs until a token is cancelled, and groups of roles that
//! stop together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use batch_worker::{BatchWorker, RecordFiles, Root, Uploads};
use command_worker::{CommandWorker, Files};
use example_worker::WordCounter;
use framework::broker::Broker;
use framework::handler::BatchHandler;
use framework::health::Health;
use framework::runtime::WorkerService;
use framework::supervision::{run_or_give_up, supervise};
use framework::{Runtime, Settings};
use job_service::{JobService, ServiceOptions};
use output_worker::OutputWorker;
use simulation_worker::Simulator;
use simulation_worker::noop::Noop;
use store::Store;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::options::{
    BATCH_WORKER, COMMAND_WORKER, CommandOptions, EXAMPLE_WORKER, NOOP_WORKER, OUTPUT_WORKER,
    SIMULATION_WORKER, StackOptions,
};

/// The least number of tasks that the simulation worker runs at the same time. Most of them sleep,
/// and cost nothing meanwhile.
const SIMULATED_AT_ONCE: usize = 64;
/// The splits that a batch worker makes at the same time beside those that read, and the batches
/// that wait in it. A split publishes up to `max_parts` messages, so two keep the broker busy.
const SPLITS_AT_ONCE: usize = 2;
const BATCHES_WAITING: usize = 6;
/// How long a process that stops waits for simulated tasks. They may sleep for long, and nothing is
/// lost when they run again.
const SIMULATED_DRAIN: Duration = Duration::from_secs(1);

/// A role that runs until its token is cancelled. Returns an error if it ends earlier.
pub type RunningRole = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Returns a role that serves the REST API on `listener`.
pub fn job_service(
    options: ServiceOptions,
    store: Store,
    broker: Arc<dyn Broker>,
    listener: TcpListener,
    stop: CancellationToken,
) -> RunningRole {
    let service = JobService::new(store, broker, options);
    Box::pin(async move {
        service
            .serve(listener, stop)
            .await
            .map_err(|error| error.to_string())
    })
}

/// Returns a role that fails as soon as the store knows that it can never use its database.
pub fn store_check(store: Store, stop: CancellationToken) -> RunningRole {
    Box::pin(async move {
        match stop.run_until_cancelled(store.unusable()).await {
            Some(error) => Err(error.to_string()),
            None => Ok(()),
        }
    })
}

/// Returns the batch worker with all plugins, those that `add` adds included, and its number of
/// splits.
pub fn batch_worker(
    options: &StackOptions,
    add: impl Iterator<Item = impl FnOnce(BatchWorker) -> BatchWorker>,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> (RunningRole, Arc<AtomicU64>) {
    let root = Root::new(&options.root).hide(options.own_files());
    let sources = options.sources.clone().hide(&options.own_files());
    let uploads = Uploads::new(Arc::clone(&broker), &options.tls);
    let records = RecordFiles::new(root.clone())
        .and(sources)
        .with_uploads(uploads);
    let worker = BatchWorker::new(options.batch.max_parts)
        .target_wait(options.batch.target_wait)
        .max_depth(options.batch.max_depth)
        .max_items(options.batch.max_items)
        .results(options.batch.results)
        .readers(options.batch.readers, options.batch.source_limits)
        .with_built_in(root)
        // With what the operator allows beside the root folder.
        .with(records);
    let worker = add.fold(worker, |worker, add| add(worker));
    let splits = worker.splits();
    let concurrency = SPLITS_AT_ONCE + options.batch.readers;
    let settings = Settings {
        input: options.batch.input.clone(),
        output: options.batch.output.clone(),
        concurrency,
        prefetch: u32::try_from(concurrency + BATCHES_WAITING).ok(),
        time_limit: None,
        ..options.settings(BATCH_WORKER)
    };
    let input = settings.input.clone();
    let service = Runtime::new(settings, Arc::clone(&broker)).worker(worker);
    let role = Box::pin(async move {
        // RabbitMQ 3.10 forgets what it has confirmed in a queue if it is killed within half a
        // second after the queue was made. So these are made before there is work.
        if let Err(error) = broker.prepare(&input, &BatchWorker::DELAYS).await {
            tracing::debug!(%error, "the delays of the batch worker are made when they are needed");
        }
        worker_role(service, stop).await
    });
    (role, splits)
}

/// Returns the output worker; `None` if there is no place for outputs.
pub fn output_worker(
    options: &StackOptions,
    store: Store,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> Option<RunningRole> {
    let blobs = options.service.outputs.blobs.clone()?;
    let worker = OutputWorker::new(store, blobs)
        .limits(options.outputs)
        .health(options.health.clone());
    let settings = Settings {
        input: options.service.outputs.pipe.clone(),
        // The worker handles all waiting deliveries at once. All of them are in memory.
        concurrency: 1,
        prefetch: Some(1000),
        // What the tasks of a paused job have made is kept.
        paused: None,
        ..options.settings(OUTPUT_WORKER)
    };
    let (merging, health) = (worker.clone(), options.health.clone());
    let role = worker_role(Runtime::new(settings, broker).handler(worker), stop.clone());
    Some(Box::pin(async move {
        let merge = async {
            supervise(&health, "worker-output: merging", &stop, || merging.merge()).await;
            // The process gives up; the worker ends with it.
            std::future::pending().await
        };
        tokio::select! {
            ended = role => ended,
            never = merge => never,
        }
    }))
}

/// Returns the example worker.
pub fn example_worker(
    options: &StackOptions,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> RunningRole {
    let settings = Settings {
        input: options.example_pipe.clone(),
        retry: options.workers.retry.clone(),
        circuit_breaker: options.workers.circuit_breaker,
        ..options.settings(EXAMPLE_WORKER)
    };
    let worker = WordCounter {
        root: options.root.clone(),
    };
    worker_role(Runtime::new(settings, broker).worker(worker), stop)
}

/// Returns the simulation worker.
pub fn simulation_worker(
    options: &StackOptions,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> RunningRole {
    let settings = Settings {
        input: options.simulation_pipe.clone(),
        retry: options.workers.retry.clone(),
        circuit_breaker: options.workers.circuit_breaker,
        concurrency: options.workers.concurrency.max(SIMULATED_AT_ONCE),
        drain: SIMULATED_DRAIN,
        ..options.settings(SIMULATION_WORKER)
    };
    let worker = Simulator::calling(options.simulation_calls.clone());
    worker_role(Runtime::new(settings, broker).worker(worker), stop)
}

/// Returns the worker that does nothing.
pub fn noop_worker(
    options: &StackOptions,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> RunningRole {
    let settings = Settings {
        input: options.noop_pipe.clone(),
        ..options.settings(NOOP_WORKER)
    };
    worker_role(Runtime::new(settings, broker).worker(Noop), stop)
}

/// Returns the command worker; `None` if it has no commands, not even the possibility of them.
pub fn command_worker(
    options: &StackOptions,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> Option<RunningRole> {
    let CommandOptions { commands, keeper } = options.commands.clone()?;
    let files = Files::below(&options.root).hide(options.own_files());
    let settings = Settings {
        input: options.command_pipe.clone(),
        retry: options.workers.retry.clone(),
        circuit_breaker: options.workers.circuit_breaker,
        ..options.settings(COMMAND_WORKER)
    };
    let worker = CommandWorker::new(commands, keeper, files);
    Some(worker_role(
        Runtime::new(settings, broker).worker(worker),
        stop,
    ))
}

/// Returns a worker as a role.
pub fn worker_role<H: BatchHandler>(
    service: WorkerService<H>,
    stop: CancellationToken,
) -> RunningRole {
    Box::pin(async move {
        service
            .run_until(stop)
            .await
            .map_err(|error| error.to_string())
    })
}

/// Roles that stop together. Dropping the group cancels their token, but does not wait for them.
#[derive(Debug)]
pub struct Group {
    stop: CancellationToken,
    tasks: TaskTracker,
    ended: mpsc::Sender<(String, String)>,
    health: Health,
}

impl Group {
    /// Returns an empty group. When a role ends early, the group sends its name and the reason to
    /// `ended`.
    pub fn new(ended: mpsc::Sender<(String, String)>, health: Health) -> Self {
        Self {
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ended,
            health,
        }
    }

    /// Returns another group for roles that stop with this one, or earlier. Its owner stops it.
    pub fn within(&self) -> Self {
        Self {
            stop: self.stop.child_token(),
            tasks: TaskTracker::new(),
            ended: self.ended.clone(),
            health: self.health.clone(),
        }
    }

    /// Returns the token that stops the roles of this group.
    pub fn token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Spawns a role. Its loops begin again after a panic; if the role itself panics, the process
    /// gives up.
    pub fn run(&self, name: impl Into<String>, role: RunningRole) {
        let (name, ended, stop) = (name.into(), self.ended.clone(), self.stop.clone());
        let health = self.health.clone();
        self.tasks.spawn(async move {
            let outcome = run_or_give_up(&health, &name, role).await;
            if !stop.is_cancelled() {
                let reason = outcome
                    .and_then(Result::err)
                    .unwrap_or_else(|| "it stopped without a request".to_owned());
                if health.given_up_now().is_none() {
                    error!(role = name, reason, "a role ended unexpectedly");
                }
                // Only the first is received, and none while the system stops.
                let _ = ended.try_send((name, reason));
            }
        });
    }

    /// Stops the roles and waits for them.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
