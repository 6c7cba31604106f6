//! Composes the roles: job service, batch worker, tracking worker, workers, on one broker and one store.
//!
//! The only place where roles meet. Each role runs as it would in a process of its own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use batch_worker::{BatchWorker, Glob, Lines, List, Range, Results as BatchResults};
use contract::rest::Expiry;
use example_worker::WordCounter;
use framework::broker::amqp::{Amqp, AmqpOptions, QueueType};
use framework::broker::embedded::Embedded;
use framework::broker::{Broker, BrokerError};
use framework::{Collector, Ready, Route, Runtime, Settings, Worker};
use job_service::{BASE_PATH, JobService, JobTypes, PartitionPattern, ServiceOptions};
use store::{Store, StoreError, StoreOptions};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;
use tracking_worker::TrackingWorker;

pub const BATCH_PIPE: &str = "worker-batch-in";
pub const TRACKING_PIPE: &str = "worker-jobtracking-in";
pub const EXAMPLE_PIPE: &str = "worker-example-in";
pub const EXAMPLE_OUT_PIPE: &str = "worker-example-out";

/// How a stack is set up.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// The folder of the embedded broker and store; not used when both are servers.
    pub data: PathBuf,
    /// `postgres://…`; the embedded store when left out.
    pub database: Option<String>,
    /// `amqp://…`; the embedded broker when left out.
    pub broker: Option<String>,
    /// Whether a database that is not available is waited for, by the running system; otherwise the start fails.
    pub wait_for_database: bool,
    /// Where the job service listens; with a role that is no job service, where its health is served.
    pub listen: SocketAddr,
    /// Where workers find the job service, when it is not at `listen`.
    pub public_url: Option<String>,
    /// The roles of this process.
    pub roles: Vec<Role>,
    /// How tracked outputs travel.
    pub route: Route,
    /// How long a worker relies on a status that it has read: a cancelled job may run on for so long.
    pub status_interval: Duration,
    /// The parts of a split, at most.
    pub max_parts: usize,
    /// Batches are not split while more than this waits in their target pipe.
    pub max_depth: u64,
    /// The folder of the files that `lines` and `glob` batches name.
    pub root: PathBuf,
    /// Tasks of a worker that run at the same time; batch and tracking worker have their own measure.
    pub concurrency: usize,
    /// Deliveries that a worker has taken and not settled, at most.
    pub prefetch: u32,
    /// Partitions whose new jobs are kept until somebody dispatches them.
    pub suspended_partitions: Option<PartitionPattern>,
    /// The pipe of the batch worker.
    pub batch_pipe: String,
    /// The pipe of the tracking worker.
    pub tracking_pipe: String,
    /// The pipe to which workers hand over the tasks of paused jobs.
    pub paused_pipe: String,
    /// What the batch worker sends to its output pipe when it has split a batch.
    pub batch_results: BatchResults,
    /// The output pipe of the batch worker.
    pub batch_output: Option<String>,
    /// The pipe of the example worker.
    pub example_pipe: String,
    /// How the broker keeps queues.
    pub queue_type: QueueType,
    /// What jobs may be made from by parameters.
    pub job_types: JobTypes,
    /// How many jobs a list shows when it is not told.
    pub page_size: u32,
    /// How many jobs are cancelled, and how many deleted, in one transaction, when many are.
    pub batches: (u32, u32),
    /// How long jobs are kept that do not say it themselves.
    pub expiry: Expiry,
    /// How long the tasks of a failed job are kept.
    pub failed_tasks_kept: Duration,
}

/// A part of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    JobService,
    BatchWorker,
    TrackingWorker,
    ExampleWorker,
}

impl StackOptions {
    /// Everything in this process, with its state in a folder, on a free port of this machine.
    pub fn embedded(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            database: None,
            broker: None,
            wait_for_database: false,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            public_url: None,
            roles: vec![Role::JobService, Role::BatchWorker, Role::TrackingWorker],
            route: Route::Direct,
            status_interval: Duration::from_secs(5),
            max_parts: BatchWorker::DEFAULT_PARTS,
            max_depth: BatchWorker::DEFAULT_DEPTH,
            root: PathBuf::from("."),
            concurrency: 8,
            prefetch: 1000,
            suspended_partitions: None,
            batch_pipe: BATCH_PIPE.to_owned(),
            tracking_pipe: TRACKING_PIPE.to_owned(),
            paused_pipe: contract::PAUSED_PIPE.to_owned(),
            batch_results: BatchResults::None,
            batch_output: None,
            example_pipe: EXAMPLE_PIPE.to_owned(),
            queue_type: QueueType::Quorum,
            job_types: JobTypes::default(),
            page_size: ServiceOptions::default().page_size,
            batches: (
                ServiceOptions::default().cancel_batch,
                ServiceOptions::default().delete_batch,
            ),
            expiry: Expiry::default(),
            failed_tasks_kept: StoreOptions::default().failed_tables_kept,
        }
    }

    fn serves_jobs(&self) -> bool {
        self.roles.contains(&Role::JobService)
    }

    fn settings(&self, name: &str) -> Settings {
        let alone = self.roles.len() == 1 && !self.serves_jobs();
        Settings {
            listen: alone.then_some(self.listen),
            route: self.route,
            concurrency: self.concurrency,
            prefetch: self.prefetch,
            paused: Some(self.paused_pipe.clone()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Settings::new(name)
        }
    }
}

/// A system to be started.
#[derive(Debug)]
pub struct Stack {
    options: StackOptions,
    workers: Vec<NewWorker>,
}

/// A worker that waits for the broker.
struct NewWorker {
    name: String,
    start: Start,
}

type Start = Box<dyn FnOnce(Arc<dyn Broker>, CancellationToken) -> RunningRole + Send>;

type RunningRole = std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Why a stack does not start.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("cannot make the folder {folder}: {reason}")]
    Folder {
        folder: PathBuf,
        reason: std::io::Error,
    },
    #[error("cannot listen on {address}: {reason}; choose another address")]
    Listen {
        address: SocketAddr,
        reason: std::io::Error,
    },
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{role} has ended: {reason}")]
    Ended { role: String, reason: String },
}

impl Stack {
    pub fn new(options: StackOptions) -> Self {
        Self {
            options,
            workers: Vec::new(),
        }
    }

    /// Adds a worker of one's own.
    #[must_use]
    pub fn worker<W: Worker>(mut self, settings: Settings, worker: W) -> Self {
        let name = settings.name.clone();
        let start = |broker, stop| role(Runtime::new(settings, broker).worker(worker), stop);
        self.workers.push(NewWorker {
            name,
            start: Box::new(start),
        });
        self
    }

    /// Starts everything. Nothing runs when this answers an error.
    pub async fn start(self) -> Result<Running, StackError> {
        let Self { options, workers } = self;
        if options.broker.is_none() || options.database.is_none() {
            tokio::fs::create_dir_all(&options.data)
                .await
                .map_err(|reason| StackError::Folder {
                    folder: options.data.clone(),
                    reason,
                })?;
        }
        // The folder's lock comes first: a second process must not touch anything in it.
        let broker: Arc<dyn Broker> = match &options.broker {
            Some(url) => Arc::new(Amqp::connect(AmqpOptions {
                queue_type: options.queue_type,
                ..AmqpOptions::new(url)
            })?),
            None => Arc::new(Embedded::open(&options.data).await?),
        };
        let needs_store = options
            .roles
            .iter()
            .any(|role| matches!(role, Role::JobService | Role::TrackingWorker));
        let kept = StoreOptions {
            failed_tables_kept: options.failed_tasks_kept,
            ..StoreOptions::default()
        };
        let store = match &options.database {
            _ if !needs_store => None,
            Some(url) if options.wait_for_database => {
                Some(Store::open_when_possible(url, kept).await?)
            }
            Some(url) => Some(Store::open_with(url, kept).await?),
            None => Some(
                Store::open_with(
                    &format!("sqlite:{}", options.data.join("jobs.db").display()),
                    kept,
                )
                .await?,
            ),
        };
        // A worker that is alone serves its health there itself.
        let listen = |reason| StackError::Listen {
            address: options.listen,
            reason,
        };
        let listener = if options.serves_jobs() {
            Some(TcpListener::bind(options.listen).await.map_err(listen)?)
        } else {
            None
        };
        let address = listener
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
            .unwrap_or(options.listen);
        let (ended, ends) = mpsc::channel(16);
        let mut running = Running {
            address,
            broker,
            store,
            splits: Arc::default(),
            reports: Arc::default(),
            workers: Group::new(ended.clone()),
            tracking: Group::new(ended.clone()),
            service: Group::new(ended),
            ends,
        };
        running.start_roles(&options, workers, listener);
        Ok(running)
    }
}

/// A system that runs. Stop it; dropping it leaves deliveries to come again.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    broker: Arc<dyn Broker>,
    store: Option<Store>,
    splits: Arc<AtomicU64>,
    reports: Arc<AtomicU64>,
    // Stopped in this order: nobody loses whom it tells.
    workers: Group,
    tracking: Group,
    service: Group,
    ends: mpsc::Receiver<(String, String)>,
}

impl Running {
    fn start_roles(
        &mut self,
        options: &StackOptions,
        workers: Vec<NewWorker>,
        mut listener: Option<TcpListener>,
    ) {
        if let Some(store) = self.store.clone() {
            self.service.run(
                "database".to_owned(),
                Box::pin(until_unusable(store, self.service.stop.clone())),
            );
        }
        for worker in workers {
            let role = (worker.start)(Arc::clone(&self.broker), self.workers.stop.clone());
            self.workers.run(worker.name, role);
        }
        for role in &options.roles {
            match role {
                Role::JobService => self.start_job_service(options, listener.take()),
                Role::BatchWorker => self.start_batch_worker(options),
                Role::TrackingWorker => self.start_tracking_worker(options),
                Role::ExampleWorker => self.start_example_worker(options),
            }
        }
    }

    fn start_job_service(&mut self, options: &StackOptions, listener: Option<TcpListener>) {
        let (Some(store), Some(listener)) = (self.store.clone(), listener) else {
            return;
        };
        let service_options = ServiceOptions {
            webservice_url: options.public_url.clone().unwrap_or_else(|| self.api_url()),
            tracking_pipe: options.tracking_pipe.clone(),
            paused_pipe: options.paused_pipe.clone(),
            status_check_interval: options.status_interval,
            suspended_partitions: options.suspended_partitions.clone(),
            page_size: options.page_size,
            cancel_batch: options.batches.0,
            delete_batch: options.batches.1,
            job_types: options.job_types.clone(),
            expiry: options.expiry.clone(),
            ..ServiceOptions::default()
        };
        let service = JobService::new(store, Arc::clone(&self.broker), service_options);
        let stop = self.service.stop.clone();
        self.service.run(
            "job-service".to_owned(),
            Box::pin(async move {
                service
                    .serve(listener, stop)
                    .await
                    .map_err(|error| error.to_string())
            }),
        );
    }

    fn start_batch_worker(&mut self, options: &StackOptions) {
        let worker = BatchWorker::new(options.max_parts)
            .max_depth(options.max_depth)
            .results(options.batch_results)
            .with(Range)
            .with(List)
            .with(Lines::new(&options.root))
            .with(Glob::new(&options.root));
        self.splits = worker.splits();
        // A split is a long run of publishes; a few beside each other keep the broker busy.
        let settings = Settings {
            input: options.batch_pipe.clone(),
            output: options.batch_output.clone(),
            concurrency: 2,
            prefetch: 8,
            ..options.settings("worker-batch")
        };
        let ready = Runtime::new(settings, Arc::clone(&self.broker)).worker(worker);
        self.workers.run(
            "worker-batch".to_owned(),
            role(ready, self.workers.stop.clone()),
        );
    }

    fn start_tracking_worker(&mut self, options: &StackOptions) {
        let Some(store) = self.store.clone() else {
            return;
        };
        let worker = TrackingWorker::new(store);
        self.reports = worker.reports();
        // One at a time: it takes everything that waits, and one writer per job is the fastest.
        let settings = Settings {
            input: options.tracking_pipe.clone(),
            concurrency: 1,
            prefetch: 4000,
            // Reports of a paused job count, and what is diverted goes on.
            paused: None,
            ..options.settings("worker-jobtracking")
        };
        let ready = Runtime::new(settings, Arc::clone(&self.broker)).collector(worker);
        self.tracking.run(
            "worker-jobtracking".to_owned(),
            role(ready, self.tracking.stop.clone()),
        );
    }

    fn start_example_worker(&mut self, options: &StackOptions) {
        let input = options.example_pipe.clone();
        let settings = Settings {
            input,
            output: Some(EXAMPLE_OUT_PIPE.to_owned()),
            ..options.settings("worker-example")
        };
        let ready = Runtime::new(settings, Arc::clone(&self.broker)).worker(WordCounter {
            root: options.root.clone(),
        });
        self.workers.run(
            "worker-example".to_owned(),
            role(ready, self.workers.stop.clone()),
        );
    }

    /// `http://…`, without a path.
    pub fn url(&self) -> String {
        // A service that listens everywhere is reached here.
        let host = if self.address.ip().is_unspecified() {
            "127.0.0.1".to_owned()
        } else {
            self.address.ip().to_string()
        };
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        format!("http://{host}:{}", self.address.port())
    }

    /// Where the REST API begins.
    pub fn api_url(&self) -> String {
        format!("{}{BASE_PATH}", self.url())
    }

    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// The store; `None` in a process without a role that needs one.
    pub const fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// How many splits the batch worker of this process has done.
    pub fn splits(&self) -> &AtomicU64 {
        &self.splits
    }

    /// How many reports the tracking worker of this process has counted in.
    pub fn reports(&self) -> &AtomicU64 {
        &self.reports
    }

    /// Runs until the process is asked to stop or a role ends by itself.
    pub async fn until_asked_to_stop(mut self) -> Result<(), StackError> {
        let ended = tokio::select! {
            () = framework::stop_signal() => None,
            ended = self.ends.recv() => ended,
        };
        self.stop().await;
        match ended {
            Some((role, reason)) => Err(StackError::Ended { role, reason }),
            None => Ok(()),
        }
    }

    /// Stops everything in order: workers, tracking, service, broker, store.
    pub async fn stop(self) {
        self.workers.stop().await;
        self.tracking.stop().await;
        self.service.stop().await;
        self.broker.close().await;
        if let Some(store) = self.store {
            store.close().await;
        }
    }
}

/// A database that was waited for and can never be used ends the system.
async fn until_unusable(store: Store, stop: CancellationToken) -> Result<(), String> {
    match stop.run_until_cancelled(store.unusable()).await {
        Some(error) => Err(error.to_string()),
        None => Ok(()),
    }
}

/// Roles that stop together.
#[derive(Debug)]
struct Group {
    stop: CancellationToken,
    tasks: TaskTracker,
    ended: mpsc::Sender<(String, String)>,
}

impl Group {
    fn new(ended: mpsc::Sender<(String, String)>) -> Self {
        Self {
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ended,
        }
    }

    fn run(&self, name: String, role: RunningRole) {
        let (ended, stop) = (self.ended.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let outcome = role.await;
            if !stop.is_cancelled() {
                let reason = outcome
                    .err()
                    .unwrap_or_else(|| "it stopped by itself".to_owned());
                error!(role = name, reason, "a role has ended");
                // Nobody listens once the system is being stopped.
                let _ = ended.send((name, reason)).await;
            }
        });
    }

    async fn stop(&self) {
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

fn role<C: Collector>(ready: Ready<C>, stop: CancellationToken) -> RunningRole {
    Box::pin(async move {
        ready
            .run_until(stop)
            .await
            .map_err(|error| error.to_string())
    })
}

impl fmt::Debug for NewWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "job-service" => Ok(Self::JobService),
            "batch-worker" => Ok(Self::BatchWorker),
            "tracking-worker" => Ok(Self::TrackingWorker),
            "example-worker" => Ok(Self::ExampleWorker),
            other => Err(format!(
                "{other:?} is no role; choose job-service, batch-worker, tracking-worker or example-worker"
            )),
        }
    }
}
