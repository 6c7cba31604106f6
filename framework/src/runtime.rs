//! Runs a worker: takes deliveries, bounds what is under way, stops in two steps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::Worker;
use crate::answer::Author;
use crate::broker::{Broker, BrokerError, Consumer, Delivery};
use crate::collector::Collector;
use crate::context::Surroundings;
use crate::health::{self, Health};
use crate::metrics::Metrics;
use crate::one_by_one::{OneByOne, Pipes};
use crate::process::{Process, ProcessPipes};
use crate::reports::{OpenDeliveries, ReportBuffer};
use crate::settings::{Settings, SettingsError};
use crate::status::StatusChecker;
use crate::suspects::{self, Suspects};
#[cfg(feature = "amqp")]
use crate::variables::{Found, Variables};

/// Deliveries that are taken from the consumer at a time, beyond what a collector wants.
const BURST: usize = 128;
/// How often is looked whether nothing runs.
const CHANCE: Duration = Duration::from_millis(20);

/// A worker process to be: settings and a broker. Give it a worker, then run it.
#[derive(Debug)]
pub struct Runtime {
    settings: Settings,
    broker: Arc<dyn Broker>,
    /// The broker was opened for this runtime alone, and is closed with it.
    owns_broker: bool,
}

/// A runtime with its worker.
pub struct Ready<C> {
    runtime: Runtime,
    make: Box<dyn FnOnce(Surroundings) -> C + Send>,
    /// What is missing around the worker, while it is.
    unavailable: watch::Receiver<Option<String>>,
}

/// Why a runtime does not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error("{0}")]
    Listen(String),
}

impl Runtime {
    /// A runtime on a broker that is shared with others.
    pub fn new(settings: Settings, broker: Arc<dyn Broker>) -> Self {
        Self {
            settings,
            broker,
            owns_broker: false,
        }
    }

    /// A runtime on RabbitMQ, set up by variables (see [`crate::VARIABLES`]); also sets up logging to standard error.
    #[cfg(feature = "amqp")]
    pub fn from_env() -> Result<Self, RuntimeError> {
        use crate::broker::amqp::{Amqp, AmqpOptions};

        let variables = Variables::new(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }));
        let value = |name: &str, default: &str| {
            let found = Settings::found(&variables, name)?;
            Ok::<_, SettingsError>(found.unwrap_or_else(|| Found {
                value: default.to_owned(),
                from: "the default".to_owned(),
            }))
        };
        let filter =
            tracing_subscriber::EnvFilter::builder().parse_lossy(value("LOG", "info")?.value);
        // An author who has set up logging already keeps it.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .try_init();
        let queue_type = value("QUEUE_TYPE", "quorum")?;
        let queue_type = queue_type
            .value
            .parse()
            .map_err(|flaw: String| SettingsError::of(&queue_type.from, flaw))?;
        let settings = Settings::from_variables(&variables)?;
        let broker = value("BROKER", "amqp://guest:guest@127.0.0.1:5672/%2f")?;
        // The URL has a password in it; the broker tells in its log where it connects to.
        info!(?settings, broker_from = broker.from, "the configuration");
        let max_priority = value("MAX_PRIORITY", "0")?;
        let max_priority = max_priority
            .value
            .parse()
            .map_err(|_| SettingsError::of(&max_priority.from, "must be from 0 to 255"))?;
        let options = AmqpOptions {
            queue_type,
            max_priority,
            ..AmqpOptions::new(broker.value)
        };
        Ok(Self {
            settings,
            broker: Arc::new(Amqp::connect(options)?),
            owns_broker: true,
        })
    }

    /// Changes a setting.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Runs this worker, one delivery at a time and many beside each other.
    pub fn worker<W: Worker>(self, worker: W) -> Ready<impl Collector> {
        let (unavailable, unavailable_now) = watch::channel(None);
        let pipes = Pipes {
            input: self.settings.input.clone(),
            output: self.settings.output.clone(),
            reject: self.settings.reject.clone(),
        };
        let make = |surroundings| OneByOne {
            worker,
            surroundings,
            pipes,
            unavailable,
        };
        Ready {
            runtime: self,
            make: Box::new(make),
            unavailable: unavailable_now,
        }
    }

    /// Runs this collector.
    pub fn collector<C: Collector>(self, collector: C) -> Ready<C> {
        let (_, never_unavailable) = watch::channel(None);
        Ready {
            runtime: self,
            make: Box::new(|_| collector),
            unavailable: never_unavailable,
        }
    }

    fn surroundings(&self, open: &Arc<OpenDeliveries>, tasks: &TaskTracker) -> Surroundings {
        let Settings {
            name,
            version,
            service_path,
            route,
            zero_progress,
            status_check_limit,
            retry,
            ..
        } = self.settings.clone();
        Surroundings {
            author: Arc::new(Author {
                name,
                version,
                service_path,
                route,
                zero_progress,
            }),
            broker: Arc::clone(&self.broker),
            reports: ReportBuffer::start(Arc::clone(&self.broker), Arc::clone(open), tasks),
            status: StatusChecker::new(status_check_limit, tasks),
            depths: Arc::default(),
            retry,
            shutdown: CancellationToken::new(),
        }
    }
}

impl<C: Collector> Ready<C> {
    /// Runs until the process is asked to stop (`SIGTERM`, Ctrl-C).
    pub async fn run(self) -> Result<(), RuntimeError> {
        let stop = CancellationToken::new();
        let asked = async {
            stop_signal().await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.run_until(stop.clone()) => ended,
            () = asked => Ok(()),
        }
    }

    /// Runs until the token trips, then stops in two steps: no new deliveries and running tasks go on; then they are
    /// cancelled, and what has not ended by then is given back.
    pub async fn run_until(self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let Self {
            runtime,
            make,
            unavailable,
        } = self;
        let (tasks, open) = (TaskTracker::new(), Arc::<OpenDeliveries>::default());
        let surroundings = runtime.surroundings(&open, &tasks);
        let Runtime {
            settings,
            broker,
            owns_broker,
        } = runtime;
        let shutdown = surroundings.shutdown.clone();
        let (consuming, consuming_now) = watch::channel(true);
        let endpoint = CancellationToken::new();
        let listener = match settings.listen {
            Some(address) => Some(health::bind(address).await.map_err(RuntimeError::Listen)?),
            None => None,
        };
        let consumer = broker.consume(&settings.input, settings.prefetch).await?;
        info!(
            worker = settings.name,
            input = settings.input,
            output = settings.output,
            broker = broker.kind(),
            "taking deliveries"
        );
        let under_way = UnderWay::new(settings.concurrency);
        let process = Arc::new(Process {
            collector: make(surroundings.clone()),
            pipes: ProcessPipes {
                input: settings.input.clone(),
                invalid: settings.invalid.clone(),
                paused: settings.paused.clone(),
            },
            max_body: settings.max_body,
            broker: Arc::clone(&broker),
            status: surroundings.status.clone(),
            reports: surroundings.reports.clone(),
            open,
            suspects: Suspects::of(&settings.input),
            retry: settings.retry.clone(),
            metrics: Metrics::of(&settings.name),
            shutdown: shutdown.clone(),
            abort: under_way.abort.clone(),
        });
        if let Some(listener) = listener {
            let missing = Arc::downgrade(&process);
            let missing = Arc::new(move || {
                missing
                    .upgrade()
                    .and_then(|process| process.collector.missing())
            });
            let health = Health {
                broker: Arc::clone(&broker),
                missing,
                consuming: consuming_now,
            };
            tasks.spawn(health::serve(
                listener,
                health,
                health::install_recorder(),
                endpoint.clone(),
            ));
        }
        tasks.spawn({
            let (status, broker, endpoint) = (
                surroundings.status.clone(),
                Arc::clone(&broker),
                endpoint.clone(),
            );
            async move { status.listen(&*broker, &endpoint).await }
        });
        drop(surroundings);
        let taking = async {
            tokio::select! {
                () = under_way.take_deliveries(&process, consumer, unavailable) => {}
                () = suspects::take_turns(&process, &under_way) => {}
            }
        };
        stop.run_until_cancelled(taking).await;
        consuming.send_replace(false);
        drop(process);
        under_way.wind_up(&settings, &shutdown).await;
        endpoint.cancel();
        tasks.close();
        let _ = tokio::time::timeout(settings.abort, tasks.wait()).await;
        if owns_broker {
            broker.close().await;
        }
        Ok(())
    }
}

/// Deliveries that are being processed.
pub(crate) struct UnderWay {
    tasks: TaskTracker,
    /// Tasks that may run at the same time.
    slots: Arc<Semaphore>,
    concurrency: u32,
    /// Trips when there is no more waiting: what is under way is dropped, and comes again.
    abort: CancellationToken,
}

impl UnderWay {
    fn new(concurrency: usize) -> Self {
        let concurrency = u32::try_from(concurrency).unwrap_or(u32::MAX).max(1);
        let slots = Arc::new(Semaphore::new(concurrency as usize));
        Self {
            tasks: TaskTracker::new(),
            slots,
            concurrency,
            abort: CancellationToken::new(),
        }
    }

    /// Takes deliveries as slots become free, until the broker is closed.
    async fn take_deliveries<C: Collector>(
        &self,
        process: &Arc<Process<C>>,
        mut consumer: Consumer,
        mut unavailable: watch::Receiver<Option<String>>,
    ) {
        let limit = process.collector.limit();
        let mut taken = Vec::with_capacity(limit.max(BURST));
        loop {
            if taken.is_empty() {
                let count = consumer.next_many(&mut taken, limit.max(BURST)).await;
                if count == 0 {
                    return;
                }
                process.open.add(count);
            }
            // Only now: a slot that is held while nothing comes would keep a suspect waiting.
            let Some(slot) = self.slot(&mut unavailable).await else {
                return;
            };
            process.open.add(consumer.take_waiting(&mut taken, limit));
            self.process(
                process,
                taken.drain(..limit.min(taken.len())).collect(),
                slot,
            );
        }
    }

    /// Waits for a slot and until nothing is missing around the worker; what is may turn out while it waits for the slot.
    async fn slot(
        &self,
        unavailable: &mut watch::Receiver<Option<String>>,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            // The sender is gone when nothing can become unavailable.
            let _ = unavailable.wait_for(Option::is_none).await;
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            if unavailable.borrow().is_none() {
                return Some(slot);
            }
        }
    }

    /// Waits until nothing runs, and lets nothing begin meanwhile; nor while the answer is held.
    pub async fn alone(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots)
            .acquire_many_owned(self.concurrency)
            .await
            .ok()
    }

    /// The same without holding anything back: it may happen by itself.
    pub async fn alone_by_chance(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(alone) = Arc::clone(&self.slots).try_acquire_many_owned(self.concurrency) {
                return Some(alone);
            }
            tokio::time::sleep(CHANCE).await;
        }
    }

    /// Runs a suspect to its end, also when nobody waits for that any more. It looks at `abort` itself.
    pub async fn run_suspect<C: Collector>(&self, process: &Arc<Process<C>>, suspect: Delivery) {
        let process = Arc::clone(process);
        let run = self
            .tasks
            .spawn(async move { process.process(vec![suspect], ()).await });
        // A panic in it has been told by the panic itself.
        let _ = run.await;
    }

    fn process<C: Collector>(
        &self,
        process: &Arc<Process<C>>,
        deliveries: Vec<Delivery>,
        slots: OwnedSemaphorePermit,
    ) {
        let (process, abort) = (Arc::clone(process), self.abort.clone());
        self.tasks.spawn(async move {
            abort
                .run_until_cancelled(process.process(deliveries, slots))
                .await
        });
    }

    async fn wind_up(&self, settings: &Settings, shutdown: &CancellationToken) {
        self.tasks.close();
        if self.ended_within(settings.drain).await {
            return;
        }
        warn!(
            worker = settings.name,
            tasks = self.tasks.len(),
            "tasks still run; they are cancelled"
        );
        shutdown.cancel();
        if !self.ended_within(settings.abort).await {
            warn!(
                worker = settings.name,
                tasks = self.tasks.len(),
                "tasks do not end; their deliveries are given back"
            );
            self.abort.cancel();
            if !self.ended_within(settings.abort).await {
                // Code that never waits cannot be dropped; it ends with the process.
                warn!(
                    worker = settings.name,
                    tasks = self.tasks.len(),
                    "tasks are left behind"
                );
            }
        }
    }

    async fn ended_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.tasks.wait()).await.is_ok()
    }
}

/// Resolves when the process is asked to stop.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

impl<C> fmt::Debug for Ready<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}
