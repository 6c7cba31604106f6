//! Composes the roles (job service, batch worker, tracking worker, other workers) on one broker and
//! one store.
//!
//! No other module combines roles. Each role runs exactly as it would in a process of its own.

mod job;
mod options;
mod roles;
mod sweep;
mod tracking;
mod unread;

use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use batch_worker::{BatchPlugin, BatchWorker};
use framework::broker::amqp::Amqp;
use framework::broker::embedded::{Embedded, EmbeddedOptions};
use framework::broker::{Broker, BrokerError};
use framework::health::Health;
use framework::log::{self, LogFormat};
use framework::{Runtime, RuntimeError, Settings, Worker};
use job_service::{Authentication, BASE_PATH, PagePipes, PipeAccess, ServiceOptions};
use store::{Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::ClientError;

pub use self::job::{Drained, DrainedOutput, batch_job};
pub use self::options::{
    BATCH_PIPE, BatchOptions, COMMAND_OUT_PIPE, COMMAND_PIPE, CommandOptions, EXAMPLE_OUT_PIPE,
    EXAMPLE_PIPE, NOOP_PIPE, Role, SIMULATION_PIPE, StackOptions, TRACKING_PIPE, WorkerOptions,
};
use self::roles::{Group, RunningRole};

/// A system that can be started.
#[derive(Debug)]
pub struct Stack {
    options: StackOptions,
    workers: Vec<AddedWorker>,
    plugins: Vec<AddedPlugin>,
}

/// Adds a plugin to the batch worker.
struct AddedPlugin {
    name: &'static str,
    add: Box<dyn FnOnce(BatchWorker) -> BatchWorker + Send>,
}

/// A worker that starts once the broker is open.
struct AddedWorker {
    name: String,
    start: Box<dyn FnOnce(Arc<dyn Broker>, CancellationToken) -> RunningRole + Send>,
}

/// Why a stack did not start, or why a role ended early. Its `Debug` is the sentence for people,
/// too, because that is what a `main` prints that returns it.
#[derive(thiserror::Error)]
pub enum StackError {
    /// The data folder cannot be created.
    #[error(
        "cannot create the folder {folder}: {reason}; choose another one (--data, BATCHWRIGHT_DATA)"
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the operating system.
        reason: std::io::Error,
    },
    /// The folder for the outputs of jobs cannot be written.
    #[error(
        "{0}; let this user write there, or choose another folder (--outputs-folder, BATCHWRIGHT_OUTPUTS_FOLDER)"
    )]
    OutputsFolder(String),
    /// The job service cannot listen, usually because another process uses the port.
    #[error(
        "cannot listen on {address}: {reason}; stop the process that uses the port, or choose another address \
         (--listen, BATCHWRIGHT_LISTEN, StackOptions::listen)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        reason: std::io::Error,
    },
    /// The job service would listen where others reach it, and nobody has decided who may call it.
    #[error(
        "everybody who reaches {address} could do everything; decide who may: name a file with an administrator's token (--admin-token-file, \
         BATCHWRIGHT_ADMIN_TOKEN_FILE) or a proxy that names those who call (--proxy-address, BATCHWRIGHT_PROXY_ADDRESS), ask for tokens of \
         the database (--auth tokens, BATCHWRIGHT_AUTH), or let everybody (--auth none)"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// The broker cannot be opened.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process cannot go on, for example because one of its loops panics again and again.
    #[error("the process cannot go on: {0}")]
    GaveUp(String),
    /// A job that the stack was to do was refused, or cannot be followed.
    #[error(transparent)]
    Job(#[from] ClientError),
    /// The outputs of a job cannot be read.
    #[error(transparent)]
    Reading(#[from] RuntimeError),
    /// A pipe contains something else than the outputs of a job.
    #[error("the outputs in the pipe {pipe} cannot be taken: {problem}")]
    Outputs {
        /// The pipe.
        pipe: String,
        /// What is in it.
        problem: String,
    },
    /// A role ended although the stack was not asked to stop.
    #[error("{role} ended unexpectedly: {reason}")]
    Ended {
        /// The name of the role or worker.
        role: String,
        /// Why it ended.
        reason: String,
    },
}

impl fmt::Debug for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Stack {
    /// Returns a stack of the roles in `options`.
    pub fn new(options: StackOptions) -> Self {
        Self {
            options,
            workers: Vec::new(),
            plugins: Vec::new(),
        }
    }

    /// Adds a plugin of your own to the batch worker of the stack. It replaces one of the same
    /// name. A stack without the role of the batch worker has no use for it.
    ///
    /// ```no_run
    /// use batchwright::batch::{Batch, BatchPlugin, Part, SplitError};
    /// use batchwright::{Stack, StackOptions};
    ///
    /// struct Words;
    ///
    /// impl BatchPlugin for Words {
    ///     const NAME: &'static str = "words";
    ///     async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
    ///         batch.definition.split(' ').map(|word| batch.item("Word", word)).collect()
    ///     }
    /// }
    ///
    /// # async fn example() -> Result<(), batchwright::StackError> {
    /// Stack::new(StackOptions::embedded("data")).plugin(Words).start().await?.until_asked_to_stop().await
    /// # }
    /// ```
    #[must_use]
    pub fn plugin<P: BatchPlugin>(mut self, plugin: P) -> Self {
        self.plugins.push(AddedPlugin {
            name: P::NAME,
            add: Box::new(|worker| worker.with(plugin)),
        });
        self
    }

    /// Adds a worker of your own.
    #[must_use]
    pub fn worker<W: Worker>(mut self, settings: Settings, worker: W) -> Self {
        let name = settings.name.clone();
        let health = self.options.health.clone();
        let settings = Settings { health, ..settings };
        let start =
            |broker, stop| roles::worker_role(Runtime::new(settings, broker).worker(worker), stop);
        self.workers.push(AddedWorker {
            name,
            start: Box::new(start),
        });
        self
    }

    /// Starts all roles and workers. If this returns an error, nothing is running.
    pub async fn start(self) -> Result<Running, StackError> {
        let Self {
            mut options,
            workers,
            plugins,
        } = self;
        // The embedded broker locks the folder: a second process must not touch anything in it.
        let (broker, embedded) = open_broker(&options).await?;
        if let Some(blobs) = options.written_blobs() {
            let checked = blobs.check().await;
            checked.map_err(|error| StackError::OutputsFolder(error.to_string()))?;
        }
        let store = open_store(&options).await?;
        // A worker that is the only role binds the address itself, for its health endpoint; that it
        // can is known from here on.
        let is_local = options.listen.ip().to_canonical().is_loopback();
        if options.serves_jobs() && !is_local {
            match options.service.authentication {
                Authentication::Undecided => {
                    let address = options.listen;
                    return Err(StackError::Open { address });
                }
                Authentication::None => tracing::warn!(
                    address = %options.listen,
                    "everybody who reaches the job service may do everything (--auth none)"
                ),
                Authentication::Needed(_) => {}
            }
        }
        let listener = if options.serves_jobs() || options.roles.len() == 1 {
            let bound = TcpListener::bind(options.listen).await;
            Some(bound.map_err(|reason| StackError::Listen {
                address: options.listen,
                reason,
            })?)
        } else {
            None
        };
        let bound = listener.as_ref().map(TcpListener::local_addr);
        options.listen = bound.and_then(Result::ok).unwrap_or(options.listen);
        let address = options.listen;
        let listener = listener.filter(|_| options.serves_jobs());
        let (ended, ends) = mpsc::channel(1);
        let mut running = Running {
            address,
            broker,
            store,
            splits: Arc::default(),
            reports: Arc::default(),
            workers: Group::new(ended.clone(), options.health.clone()),
            outputs: Group::new(ended.clone(), options.health.clone()),
            tracking: Group::new(ended.clone(), options.health.clone()),
            service: Group::new(ended, options.health.clone()),
            ends,
            health: options.health.clone(),
        };
        running.start_roles(&options, workers, plugins, listener);
        running.start_sweep(embedded);
        Ok(running)
    }
}

/// Opens the broker. Returns it once more if it is embedded.
async fn open_broker(
    options: &StackOptions,
) -> Result<(Arc<dyn Broker>, Option<Arc<Embedded>>), StackError> {
    if let Some(folder) = options.data_folder() {
        let created = tokio::fs::create_dir_all(&folder).await;
        created.map_err(|reason| StackError::Folder { folder, reason })?;
    }
    if let Some(amqp) = options.amqp() {
        return Ok((Arc::new(Amqp::connect(amqp)?), None));
    }
    let embedded_options = EmbeddedOptions {
        health: options.health.clone(),
        ..options.embedded.clone()
    };
    let embedded = Arc::new(Embedded::open_with(&options.data, embedded_options).await?);
    Ok((Arc::clone(&embedded) as Arc<dyn Broker>, Some(embedded)))
}

async fn open_store(options: &StackOptions) -> Result<Option<Store>, StackError> {
    if !options.roles.iter().any(|role| role.needs_store()) {
        return Ok(None);
    }
    let store_options = options.store;
    let store = match &options.database {
        Some(url) if options.wait_for_database => {
            Store::open_when_possible(url, store_options).await?
        }
        Some(url) => Store::open_with(url, store_options).await?,
        None => {
            let file = options.data.join("jobs.db");
            Store::open_with(&format!("sqlite:{}", file.display()), store_options).await?
        }
    };
    Ok(Some(store))
}

/// A running system. Call [`Running::stop`]: if it is dropped instead, its unsettled deliveries are
/// delivered again.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    broker: Arc<dyn Broker>,
    store: Option<Store>,
    splits: Arc<AtomicU64>,
    reports: Arc<AtomicU64>,
    // The groups stop in this order, so that the roles of each can still send messages to those of
    // the next.
    workers: Group,
    outputs: Group,
    tracking: Group,
    service: Group,
    ends: mpsc::Receiver<(String, String)>,
    health: Health,
}

impl Running {
    fn start_roles(
        &mut self,
        options: &StackOptions,
        workers: Vec<AddedWorker>,
        mut plugins: Vec<AddedPlugin>,
        mut listener: Option<TcpListener>,
    ) {
        if let Some(store) = self.store.clone() {
            let check = roles::store_check(store, self.service.token());
            self.service.run("database", check);
        }
        for worker in workers {
            let role = (worker.start)(Arc::clone(&self.broker), self.workers.token());
            self.workers.run(worker.name, role);
        }
        for role in &options.roles {
            match role {
                Role::JobService => self.start_job_service(options, listener.take()),
                Role::BatchWorker => self.start_batch_worker(options, mem::take(&mut plugins)),
                Role::TrackingWorker => self.start_tracking_worker(options),
                Role::OutputWorker => self.start_output_worker(options),
                Role::ExampleWorker => self.start_example_worker(options),
                Role::SimulationWorker => self.start_simulation_worker(options),
                Role::NoopWorker => self.start_noop_worker(options),
                Role::CommandWorker => self.start_command_worker(options),
            }
        }
    }

    fn start_sweep(&self, embedded: Option<Arc<Embedded>>) {
        if let Some(embedded) = &embedded {
            let (embedded, health) = (Arc::clone(embedded), self.health.clone());
            let role = unread::unread(embedded, health, self.service.token());
            self.service.run("unread", role);
        }
        if let (Some(embedded), Some(store)) = (embedded, self.store.clone()) {
            let health = self.health.clone();
            let role = sweep::sweep(embedded, store, health, self.service.token());
            self.service.run("sweep", role);
        }
    }

    fn start_job_service(&mut self, options: &StackOptions, listener: Option<TcpListener>) {
        let (Some(store), Some(listener)) = (self.store.clone(), listener) else {
            return;
        };
        let service = ServiceOptions {
            webservice_url: options.public_url.clone().unwrap_or_else(|| self.api_url()),
            pipe_access: self.pipe_access(options),
            page_pipes: PagePipes {
                batch: options.batch.input.clone(),
                items: options.example_pipe.clone(),
                any_items: options.noop_pipe.clone(),
                target: EXAMPLE_OUT_PIPE.to_owned(),
            },
            ..options.service()
        };
        let (broker, stop) = (Arc::clone(&self.broker), self.service.token());
        let role = roles::job_service(service, store, broker, listener, stop);
        self.service.run("job-service", role);
    }

    /// Returns whether clients may use pipes over HTTP. Where the broker is in this process, they
    /// have no other way, and on a loopback address they are on this machine.
    fn pipe_access(&self, options: &StackOptions) -> PipeAccess {
        let is_local = options.broker.is_none() && self.address.ip().to_canonical().is_loopback();
        match options.service.pipe_access {
            PipeAccess::Auto if is_local => PipeAccess::On,
            access => access,
        }
    }

    fn start_batch_worker(&mut self, options: &StackOptions, plugins: Vec<AddedPlugin>) {
        let add = plugins.into_iter().map(|plugin| plugin.add);
        let (role, splits) =
            roles::batch_worker(options, add, Arc::clone(&self.broker), self.workers.token());
        self.splits = splits;
        self.workers.run("worker-batch", role);
    }

    fn start_tracking_worker(&mut self, options: &StackOptions) {
        let Some(store) = self.store.clone() else {
            return;
        };
        self.reports = tracking::tracking_worker(options, store, &self.broker, &self.tracking);
    }

    fn start_output_worker(&mut self, options: &StackOptions) {
        let Some(store) = self.store.clone() else {
            return;
        };
        let (broker, stop) = (Arc::clone(&self.broker), self.outputs.token());
        if let Some(role) = roles::output_worker(options, store, broker, stop) {
            self.outputs.run("worker-output", role);
        }
    }

    fn start_example_worker(&mut self, options: &StackOptions) {
        let role = roles::example_worker(options, Arc::clone(&self.broker), self.workers.token());
        self.workers.run("worker-example", role);
    }

    fn start_simulation_worker(&mut self, options: &StackOptions) {
        let (broker, stop) = (Arc::clone(&self.broker), self.workers.token());
        let role = roles::simulation_worker(options, broker, stop);
        self.workers.run("worker-simulation", role);
    }

    fn start_noop_worker(&mut self, options: &StackOptions) {
        let role = roles::noop_worker(options, Arc::clone(&self.broker), self.workers.token());
        self.workers.run("worker-noop", role);
    }

    fn start_command_worker(&mut self, options: &StackOptions) {
        let (broker, stop) = (Arc::clone(&self.broker), self.workers.token());
        if let Some(role) = roles::command_worker(options, broker, stop) {
            self.workers.run("worker-command", role);
        }
    }

    /// Returns the URL of the address on which the process listens, `http://HOST:PORT`, without a
    /// path.
    pub fn url(&self) -> String {
        // A service that listens on all addresses is reachable on this one.
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

    /// Returns the base URL of the REST API, for [`Client::new`](crate::client::Client::new).
    pub fn api_url(&self) -> String {
        format!("{}{BASE_PATH}", self.url())
    }

    /// Returns the broker of this process.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// Returns the store; `None` if no role of this process needs one.
    pub const fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Returns the number of splits that the batch worker of this process has made, repeated ones
    /// included.
    pub fn splits(&self) -> &AtomicU64 {
        &self.splits
    }

    /// Returns the number of reports that the tracking worker of this process has recorded.
    pub fn reports(&self) -> &AtomicU64 {
        &self.reports
    }

    /// Returns what this process can do: its outages and degradations.
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Runs until the process receives SIGINT or SIGTERM, until a role ends unexpectedly, which is
    /// an error, or until the process gives up, which is one, too.
    ///
    /// From here on what happens is logged to standard error, unless the program has set up a log;
    /// to see the start as well, call [`crate::log::set_up`] first in `main`.
    pub async fn until_asked_to_stop(mut self) -> Result<(), StackError> {
        log::set_up("info", LogFormat::Text);
        let ended = tokio::select! {
            // First, because it is what makes the roles end.
            biased;
            reason = self.health.given_up() => Err(StackError::GaveUp(reason)),
            () = framework::runtime::stop_signal() => Ok(()),
            Some((role, reason)) = self.ends.recv() => Err(match self.health.given_up_now() {
                Some(reason) => StackError::GaveUp(reason),
                None => StackError::Ended { role, reason },
            }),
        };
        self.stop().await;
        ended
    }

    /// Stops workers, output worker, tracking worker, job service, broker and store, in this order.
    pub async fn stop(self) {
        self.workers.stop().await;
        self.outputs.stop().await;
        self.tracking.stop().await;
        self.service.stop().await;
        self.broker.close().await;
        if let Some(store) = self.store {
            store.close().await;
        }
    }
}

impl fmt::Debug for AddedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for AddedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use blobs::Blobs;

    use super::*;

    #[tokio::test]
    async fn worker_alone_tells_the_port_that_the_system_has_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let options = StackOptions {
            roles: vec![Role::NoopWorker],
            ..StackOptions::embedded(folder.path())
        };
        let running = Stack::new(options).start().await.unwrap();
        assert_ne!(running.address.port(), 0);
        running.stop().await;
    }

    #[tokio::test]
    async fn main_prints_what_is_wrong_at_the_start_as_a_sentence_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = taken.local_addr().unwrap();
        let below = file.join("data").display().to_string();
        let usual = |data: &str| StackOptions::embedded(folder.path().join(data));
        let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
        for (options, text) in [
            (
                StackOptions { listen: everywhere, ..usual("open") },
                "everybody who reaches 0.0.0.0:0 could do everything; decide who may: name a file with an administrator's token \
                 (--admin-token-file, BATCHWRIGHT_ADMIN_TOKEN_FILE) or a proxy that names those who call (--proxy-address, \
                 BATCHWRIGHT_PROXY_ADDRESS), ask for tokens of the database (--auth tokens, BATCHWRIGHT_AUTH), or let everybody (--auth none)"
                    .to_owned(),
            ),
            (
                StackOptions { listen, ..usual("listen") },
                format!(
                    "cannot listen on {listen}: Address already in use (os error 98); stop the process that uses the port, or choose another \
                     address (--listen, BATCHWRIGHT_LISTEN, StackOptions::listen)"
                ),
            ),
            (
                StackOptions::embedded(&below),
                format!(
                    "cannot create the folder {below}: Not a directory (os error 20); choose another one (--data, BATCHWRIGHT_DATA)"
                ),
            ),
            (
                {
                    let mut options = usual("outputs");
                    options.service.outputs.blobs = Some(Blobs::folder(&below));
                    options
                },
                format!(
                    "the folder {below} cannot be written: Not a directory (os error 20); let this user write there, or choose another \
                     folder (--outputs-folder, BATCHWRIGHT_OUTPUTS_FOLDER)"
                ),
            ),
            (
                StackOptions {
                    broker: Some("http://rabbit".to_owned()),
                    ..usual("broker")
                },
                "the broker at the given URL cannot be used: Invalid AMQP scheme: http; expected a URL like \
                 amqp://user:password@host:5672/%2f"
                    .to_owned(),
            ),
            (
                StackOptions {
                    database: Some("mysql://jobs".to_owned()),
                    ..usual("database")
                },
                "the database mysql://jobs cannot be used: its URL must begin with postgres:// (or postgresql://) or sqlite:"
                    .to_owned(),
            ),
        ] {
            let error = Stack::new(options).start().await.unwrap_err();
            assert_eq!(format!("{error:?}"), text);
            // The program prints the sources as well.
            let source = std::error::Error::source(&error).map(ToString::to_string);
            assert!(source.is_none_or(|source| !text.contains(&source)));
        }
    }
}
