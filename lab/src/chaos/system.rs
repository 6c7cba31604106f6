//! The processes of a system and the job that runs in it, which a scenario follows and disturbs.

mod ending;
mod letters;
mod round;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use contract::rest::{ErrorCode, Job, JobTask, NewJob, OnFailure, Outputs};
use contract::{BatchTask, TaskData};
use faults::{Keeper, Process, ProcessOptions, Proxy, poll};
use framework::broker::Broker;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::embedded::Embedded;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::sleep;

use super::effects::Effects;
use super::plan::{Fault, Network, Server, Step, Stop};
use super::roles::{
    BATCH_PIPE, EMBEDDED, INPUT_PIPE, OUTPUT_PIPE, ROLES, SystemOptions, embedded_options, listens,
    role_options,
};
use super::servers::{Addresses, Given, Ground};
use batchwright::client::{Client, ClientError};

/// How long a part of the system may take to start and to accept what it is asked, however little
/// patience the command has.
const START_LIMIT: Duration = Duration::from_mins(1);

/// The id of the job.
const JOB: &str = "j";
/// The pause between two reads of the job.
const LOOK: Duration = Duration::from_millis(20);

/// The processes of a system, on their ground.
#[derive(Debug)]
pub struct System {
    options: SystemOptions,
    /// The process of each role and the address on which it listens.
    processes: BTreeMap<String, (Process, String)>,
    // After the processes: it removes the folder that they use.
    _keeper: Keeper,
    /// Logs, and the data of an embedded system.
    folder: TempDir,
    ground: Ground,
    addresses: Option<Addresses>,
    effects: Effects,
    client: Client,
    /// The job as last read.
    seen: watch::Sender<Option<Job>>,
    /// Whether the job stands still on purpose.
    rests: AtomicBool,
    percentage_fell: AtomicBool,
    /// The dead letters that were replayed.
    replayed: AtomicU64,
    /// The longest time without progress.
    longest: Mutex<Duration>,
    /// How many messages were in the pipes for given-up tasks before.
    given_up: u64,
}

impl System {
    /// Prepares everything, without starting a process.
    pub async fn begin(ground: Ground, options: SystemOptions) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("batchwright-chaos-")
            .disable_cleanup(options.keep)
            .tempdir()
            .context("cannot create a temporary folder")?;
        let keeper = Keeper::new((!options.keep).then(|| folder.path()))?;
        let addresses = ground.addresses(options.heartbeat).await?;
        let effects_url = match &addresses {
            Some(addresses) => addresses.database.url.clone(),
            None => format!("sqlite:{}", folder.path().join("effects.db").display()),
        };
        let effects = Effects::open(&effects_url, 2)?;
        effects.create().await?;
        let mut processes = BTreeMap::new();
        for (role, listen) in listens(&options, addresses.is_some()) {
            let start = match &addresses {
                Some(addresses) => role_options(&role, &listen, addresses, &options, folder.path()),
                None => embedded_options(&listen, &effects_url, &options, folder.path()),
            };
            let start = ProcessOptions {
                group: keeper.group(),
                ..start
            };
            processes.insert(role, (Process::new(start), listen));
        }
        let service = processes.get(ROLES[0]).or_else(|| processes.get(EMBEDDED));
        let (_, listen) = service.context("no process serves the API")?;
        let client = Client::new(&format!("http://{listen}/job-service/v1"), "default");
        let mut system = Self {
            options,
            processes,
            _keeper: keeper,
            folder,
            ground,
            addresses,
            effects,
            client,
            seen: watch::Sender::new(None),
            rests: AtomicBool::new(false),
            percentage_fell: AtomicBool::new(false),
            replayed: AtomicU64::new(0),
            longest: Mutex::default(),
            given_up: 0,
        };
        if system.addresses.is_some() {
            let broker = system.broker().await?;
            system.given_up = ending::given_up(&*broker).await?;
            // An earlier job may have left outputs, which are none of this one.
            ending::empty(&*broker, &system.pipe(OUTPUT_PIPE), |_| Ok(())).await?;
            broker.close().await;
        }
        Ok(system)
    }

    /// Returns the names of the processes.
    pub fn roles(&self) -> Vec<String> {
        self.processes.keys().cloned().collect()
    }

    /// Returns the servers and networks, for faults of a scenario's own.
    pub const fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Returns the URL of the database, not through the network.
    pub fn database(&self) -> Option<&str> {
        self.addresses
            .as_ref()
            .map(|addresses| &*addresses.database.url)
    }

    /// Returns the name of a pipe of the system.
    pub fn pipe(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.options.pipes)
    }

    /// Starts a process.
    pub fn start(&self, role: &str) -> anyhow::Result<()> {
        self.process(role)?.start()
    }

    /// Starts all processes.
    pub fn start_all(&self) -> anyhow::Result<()> {
        self.processes
            .values()
            .try_for_each(|(process, _)| process.start())
    }

    /// Returns the address on which a process listens.
    pub fn address(&self, role: &str) -> anyhow::Result<&str> {
        let found = self.processes.get(role);
        found
            .map(|(_, listen)| &**listen)
            .with_context(|| format!("there is no process {role}"))
    }

    /// Returns what a process has logged so far.
    pub fn log(&self, role: &str) -> String {
        self.process(role).map(Process::log).unwrap_or_default()
    }

    /// Returns the ends of all logs.
    pub fn all_logs(&self) -> String {
        let tail = |(role, (process, _)): (&String, &(Process, String))| {
            format!("--- {role}\n{}", process.log_tail())
        };
        self.processes
            .iter()
            .map(tail)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Creates the job, as soon as the service accepts it.
    pub async fn submit(&self) -> anyhow::Result<()> {
        let batch = BatchTask {
            batch_type: Some("range".to_owned()),
            batch_definition: Some(format!("1-{}", self.options.items)),
            target_pipe: Some(self.pipe(INPUT_PIPE)),
            ..BatchTask::default()
        };
        let job = NewJob {
            task: Some(JobTask {
                task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
                task_api_version: Some(BatchTask::API_VERSION),
                task_data: Some(serde_json::to_value(batch)?),
                task_pipe: Some(self.pipe(BATCH_PIPE)),
                target_pipe: (!self.options.work.keep_outputs).then(|| self.pipe(OUTPUT_PIPE)),
                ..JobTask::default()
            }),
            outputs: self.options.work.keep_outputs.then_some(Outputs::Keep),
            // The first item that is given up does not end the job.
            on_failure: if self.options.work.given_up > 0 {
                OnFailure::Continue
            } else {
                OnFailure::Stop
            },
            ..NewJob::default()
        };
        self.asked("create the job", async || {
            self.client.put(JOB, &job).await.map(drop)
        })
        .await
    }

    /// Reads the job until it makes no progress for too long or a process ends by itself, which is
    /// the error that this returns.
    pub async fn follow(&self) -> anyhow::Result<()> {
        let (mut last, mut items, mut since) = ((0.0, 0), -1, Instant::now());
        loop {
            let patience = match items {
                ..0 => self.options.patience.max(START_LIMIT),
                _ => self.options.patience,
            };
            for (role, (process, _)) in &self.processes {
                if let Some(status) = process.ended() {
                    bail!(
                        "{role} has ended by itself ({status}):\n{}",
                        process.log_tail()
                    );
                }
            }
            // A service that is down, or has no database, returns an error.
            if let Ok(job) = self.client.get(JOB).await {
                // A task that has failed is under way again when its dead letter is replayed.
                let reopened = self.options.work.given_up > 0 && job.failed_tasks < last.1;
                if job.percentage_complete < last.0 && !reopened {
                    self.percentage_fell.store(true, Ordering::Relaxed);
                }
                last = (job.percentage_complete, job.failed_tasks);
                if job.completed_items > items {
                    if items >= 0 {
                        let mut longest = self.longest.lock();
                        *longest = since.elapsed().max(*longest);
                    }
                    (items, since) = (job.completed_items, Instant::now());
                }
                if job.status.is_finished() || self.rests.load(Ordering::Relaxed) {
                    since = Instant::now();
                }
                self.seen.send_replace(Some(job));
            }
            ensure!(
                since.elapsed() < patience,
                "no progress for {patience:?}; {items} items are completed"
            );
            sleep(LOOK).await;
        }
    }

    /// Returns the number of completed items as last read.
    pub fn completed_items(&self) -> i64 {
        self.seen
            .borrow()
            .as_ref()
            .map_or(0, |job| job.completed_items)
    }

    /// Waits until this share of the items is completed. Returns whether the job still runs.
    pub async fn reached(&self, share: f64) -> anyhow::Result<bool> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "about so many"
        )]
        let items = ((self.options.items as f64 * share) as i64).max(1);
        let job = self
            .wait(|job| job.completed_items >= items || job.status.is_finished())
            .await?;
        Ok(!job.status.is_finished())
    }

    /// Waits until the job makes progress, or has ended, and returns how long that took.
    pub async fn resumes(&self, after: &str) -> anyhow::Result<Duration> {
        let (since, before) = (Instant::now(), self.completed_items());
        let resumed = self
            .wait(|job| job.completed_items > before || job.status.is_finished())
            .await;
        resumed.with_context(|| format!("after {after}"))?;
        Ok(since.elapsed())
    }

    /// Waits until the job has ended.
    pub async fn ended(&self) -> anyhow::Result<Job> {
        self.wait(|job| job.status.is_finished()).await
    }

    /// Waits for a state of the job. [`follow`](Self::follow), which runs beside, limits the time.
    async fn wait(&self, condition: impl Fn(&Job) -> bool) -> anyhow::Result<Job> {
        let mut seen = self.seen.subscribe();
        let job = seen
            .wait_for(|job| job.as_ref().is_some_and(&condition))
            .await?;
        job.clone().context("a job that was read")
    }

    /// Kills a process as `kill -9` does, and starts it again after a while, as a supervisor does.
    pub async fn kill_and_start(&self, role: &str, away: Duration) -> anyhow::Result<()> {
        self.process(role)?.kill()?;
        sleep(away).await;
        self.start(role)
    }

    /// Makes a part of the system fail, and repairs it.
    pub async fn strike(&self, step: &Step) -> anyhow::Result<()> {
        let kill = async |after: Duration| match &step.meanwhile {
            Some(role) => {
                sleep(after).await;
                self.kill_and_start(role, Duration::ZERO).await
            }
            None => Ok(()),
        };
        match &step.fault {
            Fault::Kill(role, away) => self.kill_and_start(role, *away).await,
            Fault::Broker(away) => tokio::try_join!(
                self.restart(Server::Broker, Stop::Gently, *away),
                kill(*away / 2)
            )
            .map(drop),
            Fault::Database(how, away) => {
                tokio::try_join!(self.restart(Server::Database, *how, *away), kill(*away / 2))
                    .map(drop)
            }
            Fault::Network(server, network) => tokio::try_join!(
                self.fail_network(*server, *network),
                kill(Duration::from_millis(300))
            )
            .map(drop),
            Fault::Pause(time) => {
                self.rests.store(true, Ordering::Relaxed);
                self.asked("pause the job", async || self.client.pause(JOB).await)
                    .await?;
                tokio::try_join!(
                    async {
                        sleep(*time).await;
                        Ok(())
                    },
                    kill(*time / 2)
                )?;
                self.asked("resume the job", async || self.client.resume(JOB).await)
                    .await?;
                self.rests.store(false, Ordering::Relaxed);
                Ok(())
            }
            // The kill is at about the time at which the job is taken up again.
            Fault::Round(early, away) => {
                tokio::try_join!(self.round(*early, *away), kill(*away)).map(drop)
            }
        }
    }

    /// Stops or kills a server, and starts it again after a while.
    async fn restart(&self, server: Server, stop: Stop, away: Duration) -> anyhow::Result<()> {
        match (&self.ground, server) {
            (Ground::Embedded, _) => bail!("an embedded system has no servers"),
            (Ground::Given(given), Server::Broker) => {
                Given::restart(given.restart_broker.as_ref()).await
            }
            (Ground::Given(given), Server::Database) => {
                Given::restart(given.restart_database.as_ref()).await
            }
            (Ground::Own(servers), Server::Broker) => {
                match stop {
                    Stop::Gently => servers.rabbitmq.stop().await?,
                    Stop::Killed => servers.rabbitmq.kill().await?,
                }
                sleep(away).await;
                servers.rabbitmq.start_again().await
            }
            (Ground::Own(servers), Server::Database) => {
                match stop {
                    Stop::Gently => servers.postgres.stop().await?,
                    Stop::Killed => servers.postgres.kill().await?,
                }
                sleep(away).await;
                servers.postgres.start_again().await
            }
        }
    }

    async fn fail_network(&self, server: Server, network: Network) -> anyhow::Result<()> {
        let proxy = self
            .proxy(server)
            .context("the connection is encrypted, so no network can be put in between")?;
        match network {
            Network::Cut => proxy.cut(),
            Network::Forgotten => proxy.forget(),
            Network::BlackHole(time) => {
                proxy.black_hole();
                sleep(time).await;
                proxy.pass();
            }
        }
        Ok(())
    }

    /// Returns the network in front of a server, if there is one that can fail.
    pub fn proxy(&self, server: Server) -> Option<&Proxy> {
        let addresses = self.addresses.as_ref()?;
        match server {
            Server::Broker => addresses.to_broker.proxy.as_ref(),
            Server::Database => addresses.to_database.proxy.as_ref(),
        }
    }

    /// Repeats a request until the service is there. [`follow`](Self::follow), which runs beside,
    /// limits the time only of a job that exists.
    async fn asked(
        &self,
        what: &str,
        request: impl AsyncFn() -> Result<(), ClientError>,
    ) -> anyhow::Result<()> {
        let asked = poll(
            self.options.patience.max(START_LIMIT),
            async || match request().await {
                Ok(()) => Ok(Ok(())),
                // What cannot be done any more is not needed any more: the job has just ended, or
                // an earlier request has done it.
                Err(ClientError::Refused { body, .. })
                    if body.code.as_deref() == Some(ErrorCode::WrongJobStatus.as_str()) =>
                {
                    Ok(Ok(()))
                }
                Err(error) if error.is_transient() => Err(error.to_string()),
                Err(error) => Ok(Err(error)),
            },
        );
        match asked.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error).with_context(|| format!("cannot {what}")),
            Err(last) => bail!("cannot {what}: {last}\n{}", self.all_logs()),
        }
    }

    /// Returns the folders of logs and data, and lets them stay, if that is asked for.
    async fn kept(&self) -> anyhow::Result<Vec<PathBuf>> {
        if !self.options.keep {
            return Ok(Vec::new());
        }
        let mut kept = vec![self.folder.path().to_owned()];
        if let Ground::Own(servers) = &self.ground {
            kept.push(servers.postgres.keep().await?.to_owned());
            kept.push(servers.rabbitmq.keep().await?.to_owned());
        }
        Ok(kept)
    }

    /// Connects to the broker, not through the network. The embedded one can be opened only while
    /// its process does not run.
    pub async fn broker(&self) -> anyhow::Result<Box<dyn Broker>> {
        match &self.addresses {
            Some(addresses) => {
                let broker = Amqp::connect(AmqpOptions::new(&addresses.broker))?;
                broker
                    .connected(self.options.patience.max(START_LIMIT))
                    .await?;
                Ok(Box::new(broker))
            }
            None => Ok(Box::new(
                Embedded::open(&self.folder.path().join("data")).await?,
            )),
        }
    }

    fn process(&self, role: &str) -> anyhow::Result<&Process> {
        let found = self.processes.get(role);
        found
            .map(|(process, _)| process)
            .with_context(|| format!("there is no process {role}"))
    }
}
