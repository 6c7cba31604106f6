//! How a [`Stack`](super::Stack) is set up.
//!
//! The options of each part are that part's own struct, so that a setting is declared and
//! documented once.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use batch_worker::{BatchWorker, Results as BatchResults, SourceLimits, Sources};
use blobs::Blobs;
use command_worker::{Commands, Keeper};
use contract::{PipePurpose, ReservedPipes};
use framework::broker::amqp::{AmqpOptions, QueueType};
use framework::broker::embedded::EmbeddedOptions;
use framework::config::DEFAULT_BUNDLE;
use framework::config::{DEFAULT_OLD_DELIVERY, DEFAULT_STUCK_TASK, Route, StatusOrigins};
use framework::health::Health;
use framework::tls::Tls;
use framework::{RetryPolicy, Settings};
use job_service::{OutputOptions, ServiceOptions, StuckLimits};
use output_worker::Limits as OutputLimits;
use simulation_worker::Calls;
use store::StoreOptions;

/// The name of the batch worker.
pub(super) const BATCH_WORKER: &str = "worker-batch";
/// The name of the tracking worker.
pub(super) const TRACKING_WORKER: &str = "worker-jobtracking";
/// The name of the output worker.
pub(super) const OUTPUT_WORKER: &str = "worker-output";
/// The name of the example worker.
pub(super) const EXAMPLE_WORKER: &str = "worker-example";
/// The name of the simulation worker.
pub(super) const SIMULATION_WORKER: &str = "worker-simulation";
/// The name of the worker that does nothing.
pub(super) const NOOP_WORKER: &str = "worker-noop";
/// The name of the command worker.
pub(super) const COMMAND_WORKER: &str = "worker-command";
/// The names of all workers.
const WORKERS: [&str; 7] = [
    BATCH_WORKER,
    TRACKING_WORKER,
    OUTPUT_WORKER,
    EXAMPLE_WORKER,
    SIMULATION_WORKER,
    NOOP_WORKER,
    COMMAND_WORKER,
];
/// The default input pipe of the batch worker.
pub const BATCH_PIPE: &str = "worker-batch-in";
/// The default input pipe of the tracking worker.
pub const TRACKING_PIPE: &str = "worker-jobtracking-in";
/// The default input pipe of the example worker.
pub const EXAMPLE_PIPE: &str = "worker-example-in";
/// The default input pipe of the simulation worker.
pub const SIMULATION_PIPE: &str = "worker-simulation-in";
/// The default input pipe of the worker that does nothing.
pub const NOOP_PIPE: &str = "worker-noop-in";
/// The default input pipe of the command worker.
pub const COMMAND_PIPE: &str = "worker-command-in";
/// The pipe where tracking ends for the jobs that `submit` gives the command worker.
pub const COMMAND_OUT_PIPE: &str = "worker-command-out";
/// The pipe where tracking ends for the jobs that `submit` and `demo` give the example worker.
pub const EXAMPLE_OUT_PIPE: &str = "worker-example-out";

/// The folder of the outputs that are kept, in the folder of the embedded broker and store.
const OUTPUTS_FOLDER: &str = "outputs";

/// The settings of a stack. [`StackOptions::embedded`] returns the defaults.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// The folder of the embedded broker and store. Ignored if both are servers.
    pub data: PathBuf,
    /// The URL of the database, `postgres://…` or `sqlite:FILE`. `None` selects the embedded store.
    pub database: Option<String>,
    /// The URL of RabbitMQ, `amqp://…`. `None` selects the embedded broker.
    pub broker: Option<String>,
    /// The embedded broker.
    pub embedded: EmbeddedOptions,
    /// The type of the queues that the stack declares in RabbitMQ.
    pub queue_type: QueueType,
    /// The `x-max-priority` of classic queues; 0 for none.
    pub max_priority: u8,
    /// Whom the connections with `amqps://` and `https://` trust, and the certificate that they
    /// show.
    pub tls: Tls,
    /// Whether the stack starts while the database is unavailable and connects later. If false, the
    /// start fails.
    pub wait_for_database: bool,
    /// The address of the REST API; in a process with a single worker role, the address of its
    /// health endpoint.
    pub listen: SocketAddr,
    /// The URL at which workers reach the REST API, if that is not `listen` (for example behind a
    /// proxy).
    pub public_url: Option<String>,
    /// The roles that run in this process.
    pub roles: Vec<Role>,
    /// The folder below which `lines` and `glob` batches, and the example worker, find their files.
    pub root: PathBuf,
    /// What batches may read beside files below the root folder.
    pub sources: Sources,
    /// The input pipe of the example worker.
    pub example_pipe: String,
    /// The input pipe of the simulation worker.
    pub simulation_pipe: String,
    /// What simulated tasks may call.
    pub simulation_calls: Calls,
    /// The input pipe of the worker that does nothing.
    pub noop_pipe: String,
    /// The input pipe of the command worker.
    pub command_pipe: String,
    /// What the command worker runs, and how. Without this, its role is not started.
    pub commands: Option<CommandOptions>,
    /// Settings that the workers of the stack share.
    pub workers: WorkerOptions,
    /// The batch worker.
    pub batch: BatchOptions,
    /// The job service, and the pipes that it shares with the workers. The stack replaces
    /// `webservice_url` by `public_url`, or by the address on which it listens.
    pub service: ServiceOptions,
    /// The shards of the tracking pipe that the tracking worker reads, and with shard 0 the
    /// tracking pipe itself; if there are none here, it reads all of them.
    pub tracked_shards: Vec<u32>,
    /// How much the output worker keeps. Pipe, place and time are among the options of the job
    /// service.
    pub outputs: OutputLimits,
    /// The store.
    pub store: StoreOptions,
    /// What the process can do.
    pub health: Health,
}

/// Settings that the workers of a stack share.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The exact names of pipes that jobs, batches and tasks may name although they are reserved.
    pub allowed_pipes: Vec<String>,
    /// How tracked outputs travel.
    pub route: Route,
    /// The number of tasks that a worker runs at the same time. The batch and the tracking worker
    /// have fixed values.
    pub concurrency: usize,
    /// The maximum number of unsettled deliveries of a worker; `None` adapts it to the time that
    /// tasks take. The batch and the tracking worker have fixed values.
    pub prefetch: Option<u32>,
    /// The largest number of subtasks in one message ([`Settings::bundle`]).
    pub bundle: u32,
    /// The origins that the status checks of workers may ask.
    pub status_origins: StatusOrigins,
    /// How old the oldest open delivery of a worker may be before the process is degraded.
    pub old_delivery: Duration,
    /// How long a task may run before the log and its job name it.
    pub stuck_task: Duration,
    /// How long one attempt of a task may take. The batch worker has no limit.
    pub time_limit: Option<Duration>,
    /// When failed tasks run again, unless their job says so. Those of the service itself keep the
    /// default.
    pub retry: RetryPolicy,
    /// After how many attempts in a row that fail in the same way a worker takes no more. Those of
    /// the service itself have no breaker.
    pub circuit_breaker: Option<NonZeroU32>,
}

/// Settings of the batch worker.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The input pipe.
    pub input: String,
    /// The output pipe, for results and failures.
    pub output: Option<String>,
    /// The results that the worker sends to its output pipe after a split.
    pub results: BatchResults,
    /// The maximum number of parts of one split.
    pub max_parts: usize,
    /// How much work waits in a target pipe at the most: what its workers take in this time.
    pub target_wait: Duration,
    /// The number of items that wait in a target pipe at the most, however fast its workers are.
    pub max_depth: u64,
    /// The maximum number of items of one batch. [`StoreOptions`] has the limit of a job.
    pub max_items: u64,
    /// How many splits may read files, folders and servers at the same time. The others have slots
    /// of their own.
    pub readers: usize,
    /// What is asked of the servers from which they read.
    pub source_limits: SourceLimits,
}

/// Settings of the command worker.
#[derive(Debug, Clone)]
pub struct CommandOptions {
    /// The commands that it runs.
    pub commands: Commands,
    /// The program that keeps each of them.
    pub keeper: Keeper,
}

/// A part of the system that can run in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves the REST API and sends start messages.
    JobService,
    /// Splits batches into items.
    BatchWorker,
    /// Records the progress of jobs.
    TrackingWorker,
    /// Keeps the outputs of jobs.
    OutputWorker,
    /// Counts words.
    ExampleWorker,
    /// Pretends to work.
    SimulationWorker,
    /// Does nothing.
    NoopWorker,
    /// Runs commands.
    CommandWorker,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 8] = [
        Self::JobService,
        Self::BatchWorker,
        Self::TrackingWorker,
        Self::OutputWorker,
        Self::ExampleWorker,
        Self::SimulationWorker,
        Self::NoopWorker,
        Self::CommandWorker,
    ];

    /// Returns the name of the role on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobService => "job-service",
            Self::BatchWorker => "batch-worker",
            Self::TrackingWorker => "tracking-worker",
            Self::OutputWorker => "output-worker",
            Self::ExampleWorker => "example-worker",
            Self::SimulationWorker => "simulation-worker",
            Self::NoopWorker => "noop-worker",
            Self::CommandWorker => "command-worker",
        }
    }

    /// Returns whether the role reads or writes the store.
    pub const fn needs_store(self) -> bool {
        matches!(
            self,
            Self::JobService | Self::TrackingWorker | Self::OutputWorker
        )
    }
}

impl StackOptions {
    /// Returns the options of a system without servers: it keeps its state in the folder `data`,
    /// listens on a free port of 127.0.0.1 and runs every role but those of the other workers.
    pub fn embedded(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            database: None,
            broker: None,
            embedded: EmbeddedOptions::default(),
            queue_type: QueueType::Quorum,
            max_priority: 0,
            tls: Tls::default(),
            wait_for_database: false,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            public_url: None,
            roles: vec![
                Role::JobService,
                Role::BatchWorker,
                Role::TrackingWorker,
                Role::OutputWorker,
            ],
            root: PathBuf::from("."),
            sources: Sources::default(),
            example_pipe: EXAMPLE_PIPE.to_owned(),
            simulation_pipe: SIMULATION_PIPE.to_owned(),
            simulation_calls: Calls::default(),
            noop_pipe: NOOP_PIPE.to_owned(),
            command_pipe: COMMAND_PIPE.to_owned(),
            commands: None,
            workers: WorkerOptions::default(),
            batch: BatchOptions::default(),
            service: ServiceOptions {
                tracking_pipe: TRACKING_PIPE.to_owned(),
                status_check_interval: Duration::from_secs(5),
                outputs: OutputOptions {
                    blobs: Some(Blobs::folder(data.join(OUTPUTS_FOLDER))),
                    ..OutputOptions::default()
                },
                ..ServiceOptions::default()
            },
            data,
            tracked_shards: Vec::new(),
            outputs: OutputLimits::default(),
            store: StoreOptions::default(),
            health: Health::default(),
        }
    }

    /// Returns the files and folders in which the system keeps its state.
    pub(super) fn own_files(&self) -> Vec<PathBuf> {
        let file = self.database.as_deref().and_then(store::sqlite_file);
        let files_of_database = file
            .into_iter()
            .flat_map(|file| ["", "-wal", "-shm", "-journal"].map(|end| format!("{file}{end}")));
        files_of_database
            .map(PathBuf::from)
            .chain([self.data.clone()])
            .collect()
    }

    /// Returns where the roles of this process write the outputs of jobs, if one does.
    pub(super) fn written_blobs(&self) -> Option<&Blobs> {
        let blobs = self.service.outputs.blobs.as_ref();
        blobs.filter(|_| self.roles.contains(&Role::OutputWorker))
    }

    /// Returns the folder of the embedded broker and database; `None` if both are servers.
    pub fn data_folder(&self) -> Option<PathBuf> {
        (self.broker.is_none() || self.database.is_none()).then(|| self.data.clone())
    }

    /// Returns how the stack connects to RabbitMQ and declares queues; `None` if it uses the
    /// embedded broker.
    pub fn amqp(&self) -> Option<AmqpOptions> {
        self.broker.as_ref().map(|url| AmqpOptions {
            queue_type: self.queue_type,
            max_priority: self.max_priority,
            tls: self.tls.clone(),
            name: match &self.roles[..] {
                [role] => format!("batchwright {}", role.name()),
                _ => "batchwright".to_owned(),
            },
            health: self.health.clone(),
            ..AmqpOptions::new(url)
        })
    }

    /// Returns the pipes that no job, batch or task may name, and into which nobody puts messages.
    pub fn reserved_pipes(&self) -> ReservedPipes {
        self.service().all_reserved_pipes()
    }

    /// Returns the reject and invalid pipes of the workers of a stack, and of this paused pipe.
    pub fn letter_pipes(paused_pipe: &str) -> Vec<String> {
        let of_workers = WORKERS.map(Settings::new).into_iter();
        let of_workers = of_workers.flat_map(|worker| [worker.reject, worker.invalid]);
        let paused = ServiceOptions {
            paused_pipe: paused_pipe.to_owned(),
            ..ServiceOptions::default()
        };
        of_workers.chain([paused.paused_invalid_pipe()]).collect()
    }

    pub(super) fn serves_jobs(&self) -> bool {
        self.roles.contains(&Role::JobService)
    }

    /// Returns the options of the job service, with what the workers of a stack share with it.
    pub(super) fn service(&self) -> ServiceOptions {
        let workers = WORKERS.map(Settings::new);
        let reserved = self.service.reserved_pipes.clone();
        let reserved = workers.into_iter().fold(reserved, |reserved, worker| {
            reserved
                .reserve(PipePurpose::Invalid, worker.invalid)
                .reserve(PipePurpose::Reject, worker.reject)
        });
        ServiceOptions {
            reserved_pipes: reserved.allow(&self.workers.allowed_pipes),
            tls: self.tls.clone(),
            health: self.health.clone(),
            stuck: StuckLimits {
                task: self.workers.stuck_task,
                ..self.service.stuck
            },
            ..self.service.clone()
        }
    }

    /// Returns the settings of the worker `name` of this stack.
    pub(super) fn settings(&self, name: &str) -> Settings {
        let is_only_role = self.roles.len() == 1 && !self.serves_jobs();
        Settings {
            listen: is_only_role.then_some(self.listen),
            route: self.workers.route,
            concurrency: self.workers.concurrency,
            prefetch: self.workers.prefetch,
            bundle: self.workers.bundle,
            status_origins: self.workers.status_origins.clone(),
            old_delivery: self.workers.old_delivery,
            stuck_task: self.workers.stuck_task,
            time_limit: self.workers.time_limit,
            tls: self.tls.clone(),
            paused: Some(self.service.paused_pipe.clone()),
            reserved_pipes: self.service().all_reserved_pipes(),
            own_service: self.public_url.clone().filter(|_| self.serves_jobs()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            health: self.health.clone(),
            ..Settings::new(name)
        }
    }
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            allowed_pipes: Vec::new(),
            route: Route::Direct,
            concurrency: 8,
            prefetch: None,
            bundle: DEFAULT_BUNDLE,
            status_origins: StatusOrigins::default(),
            old_delivery: DEFAULT_OLD_DELIVERY,
            stuck_task: DEFAULT_STUCK_TASK,
            time_limit: None,
            retry: RetryPolicy::default(),
            circuit_breaker: None,
        }
    }
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            input: BATCH_PIPE.to_owned(),
            output: None,
            results: BatchResults::None,
            max_parts: BatchWorker::DEFAULT_PARTS,
            target_wait: BatchWorker::DEFAULT_WAIT,
            max_depth: BatchWorker::DEFAULT_DEPTH,
            max_items: BatchWorker::DEFAULT_ITEMS,
            readers: BatchWorker::DEFAULT_READERS,
            source_limits: SourceLimits::default(),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("{text:?} is not a role; expected one of {names}")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_file_is_hidden_however_its_url_is_written() {
        for url in ["sqlite:jobs.db", "sqlite://jobs.db"] {
            let options = StackOptions {
                database: Some(url.to_owned()),
                ..StackOptions::embedded("data")
            };
            assert_eq!(
                options.own_files(),
                [
                    "jobs.db",
                    "jobs.db-wal",
                    "jobs.db-shm",
                    "jobs.db-journal",
                    "data"
                ]
                .map(PathBuf::from),
                "{url}"
            );
        }
    }
}
