//! A system of four processes on servers that a story may do things to, and what must be true of its job in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use batchwright::client::Client;
use batchwright::{BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, TRACKING_PIPE};
use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, JobStatus, TaskData, TaskMessage};
use example_worker::WordCount;
use framework::broker::Broker;
use framework::broker::amqp::{Amqp, AmqpOptions};
use harness::{PostgresServer, Proxy, RabbitServer, free_port, wait_for};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{MutexGuard, watch};
use tokio::time::{sleep, timeout};

use crate::SIZE;

pub const ROLES: [&str; 4] = [
    "job-service",
    "batch-worker",
    "tracking-worker",
    "example-worker",
];
/// What a story may wait for one thing, its own faults left out.
const PATIENCE: Duration = Duration::from_mins(3);
/// Between two looks at the job.
const LOOK: Duration = Duration::from_millis(20);

/// The servers of all stories. Whoever fails does not put them back.
static SERVERS: tokio::sync::Mutex<Option<Servers>> = tokio::sync::Mutex::const_new(None);

#[derive(Debug)]
pub struct Servers {
    pub postgres: PostgresServer,
    pub rabbitmq: RabbitServer,
}

/// Four processes, their servers and their job.
pub struct System {
    pub servers: Servers,
    /// Between the processes and the servers.
    pub to_postgres: Proxy,
    pub to_rabbitmq: Proxy,
    pub folder: TempDir,
    processes: BTreeMap<&'static str, Process>,
    client: Client,
    /// The job as it was seen last.
    seen: watch::Sender<Option<Job>>,
    /// How long it took to go on after each fault.
    pauses: Mutex<Vec<String>>,
    /// The longest time in which the job did not go on.
    longest: Mutex<Duration>,
    turn: MutexGuard<'static, Option<Servers>>,
}

/// A role.
struct Process {
    role: &'static str,
    listen: String,
    log: std::path::PathBuf,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

/// A whole story: a job, what is done to it from the moment it runs, and what must be true in the end.
pub async fn story(name: &str, faults: impl AsyncFnOnce(&System)) {
    // Batches are split all the time, and not all at once in the beginning.
    let system = System::begin((SIZE.items / 20).max(50)).await;
    for role in ROLES {
        system.start(role);
    }
    system.submit(SIZE.items).await;
    tokio::join!(system.follow(), faults(&system));
    system.end(name, SIZE.items).await;
}

impl System {
    /// Servers, and nothing that runs on them. Waits until it is this story's turn. Batches are not split while more than
    /// `max_depth` items wait.
    pub async fn begin(max_depth: u64) -> Self {
        let mut turn = SERVERS.lock().await;
        let servers = if let Some(servers) = turn.take() {
            servers
        } else {
            let (postgres, rabbitmq) =
                tokio::try_join!(PostgresServer::start(), RabbitServer::start()).unwrap();
            Servers { postgres, rabbitmq }
        };
        let (to_postgres, to_rabbitmq) = tokio::try_join!(
            Proxy::start(servers.postgres.address()),
            Proxy::start(servers.rabbitmq.address())
        )
        .unwrap();
        let through = |url: &str, server: std::net::SocketAddr, proxy: &Proxy| {
            url.replace(&server.to_string(), &proxy.address().to_string())
        };
        let database = servers.postgres.create_database().await.unwrap().url;
        let database = through(&database, servers.postgres.address(), &to_postgres);
        let broker = through(
            &servers.rabbitmq.url(),
            servers.rabbitmq.address(),
            &to_rabbitmq,
        );
        // A short story cannot wait as long as an experiment for a lost network to be noticed.
        let broker = if SIZE.hole < Duration::from_secs(30) {
            broker + "?heartbeat=2"
        } else {
            broker
        };
        let folder = tempfile::tempdir().unwrap();
        let service = format!("127.0.0.1:{}", free_port());
        let processes = ROLES.map(|role| {
            let listen = if role == "job-service" {
                service.clone()
            } else {
                format!("127.0.0.1:{}", free_port())
            };
            (
                role,
                Process::new(role, listen, [&database, &broker], folder.path(), max_depth),
            )
        });
        let client = Client::new(&format!("http://{service}/job-service/v1"), "default").unwrap();
        let (seen, pauses, longest) =
            (watch::Sender::new(None), Mutex::default(), Mutex::default());
        Self {
            servers,
            to_postgres,
            to_rabbitmq,
            folder,
            processes: processes.into(),
            client,
            seen,
            pauses,
            longest,
            turn,
        }
    }

    pub fn start(&self, role: &str) {
        self.processes[role].start();
    }

    /// As `kill -9`, and started again at once, as by a supervisor.
    pub async fn kill_and_start(&self, role: &str) {
        self.processes[role].kill();
        self.start(role);
        self.goes_on(&format!("{role} killed")).await;
    }

    /// What the process says about itself: alive or ready, and why not.
    pub async fn health(&self, role: &str, kind: &str) -> Result<(u16, String), String> {
        let url = format!(
            "http://{}/health-check?name=all&type={kind}",
            self.processes[role].listen
        );
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        let code = answer.status().as_u16();
        Ok((
            code,
            answer.text().await.map_err(|error| error.to_string())?,
        ))
    }

    /// What the process has logged so far.
    pub fn log(&self, role: &str) -> String {
        std::fs::read_to_string(&self.processes[role].log).unwrap()
    }

    /// A job of so many lines, each an item, each with a word of its own.
    pub async fn submit(&self, items: u64) {
        let mut file =
            std::io::BufWriter::new(File::create(self.folder.path().join("lines.txt")).unwrap());
        // Where time is to be filled by few items, they must be large.
        let filler = "some more words to count ".repeat(if items < 20_000 { 120 } else { 1 });
        for number in 0..items {
            writeln!(file, "n{number} {filler}").unwrap();
        }
        file.into_inner().unwrap();
        let batch = BatchTask {
            batch_type: Some("lines".to_owned()),
            batch_definition: Some(json!({"files": ["lines.txt"], "linesPerItem": 1}).to_string()),
            target_pipe: Some(EXAMPLE_PIPE.to_owned()),
            ..BatchTask::default()
        };
        let job = NewJob {
            task: Some(JobTask {
                task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
                task_api_version: Some(BatchTask::API_VERSION),
                task_data: Some(serde_json::to_value(batch).unwrap()),
                task_pipe: Some(BATCH_PIPE.to_owned()),
                target_pipe: Some(EXAMPLE_OUT_PIPE.to_owned()),
                ..JobTask::default()
            }),
            ..NewJob::default()
        };
        wait_for("the job to be taken", async || {
            self.client
                .put("j", &job)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    /// Looks at the job until it has ended, and checks what must be true whenever it can be seen.
    pub async fn follow(&self) {
        let (mut last, mut items, mut since) = (0.0, 0, Instant::now());
        loop {
            // A service that is down, or has no database, shows nothing.
            if let Ok(job) = self.client.get("j").await {
                let percentage = job.percentage_complete;
                assert!(
                    percentage >= last,
                    "the percentage fell from {last}: {job:?}"
                );
                last = percentage;
                if job.completed_items > items {
                    let mut longest = self.longest.lock().unwrap();
                    *longest = since.elapsed().max(*longest);
                    (items, since) = (job.completed_items, Instant::now());
                }
                let has_ended = job.status.is_finished();
                self.seen.send_replace(Some(job));
                if has_ended {
                    return;
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until so much of the job is done, of which there must be some left.
    pub async fn reached(&self, share: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "about so many"
        )]
        let items = (SIZE.items as f64 * share) as i64;
        let done = self
            .wait(&format!("{items} items"), |job| {
                job.completed_items >= items.max(1)
            })
            .await;
        assert!(
            !done.status.is_finished(),
            "the job was too fast for anything to happen in the middle: {done:?}"
        );
    }

    /// Waits until more of the job is done than now, and notes how long that took.
    pub async fn goes_on(&self, after: &str) {
        let (since, before) = (
            Instant::now(),
            self.seen
                .borrow()
                .as_ref()
                .map_or(0, |job| job.completed_items),
        );
        self.wait(&format!("the job to go on after {after}"), |job| {
            job.completed_items > before || job.status.is_finished()
        })
        .await;
        self.pauses
            .lock()
            .unwrap()
            .push(format!("{after} {:.1} s", since.elapsed().as_secs_f64()));
    }

    async fn wait(&self, what: &str, condition: impl Fn(&Job) -> bool) -> Job {
        let mut seen = self.seen.subscribe();
        let patience = PATIENCE + SIZE.outage + SIZE.hole;
        let Ok(job) = timeout(
            patience,
            seen.wait_for(|job| job.as_ref().is_some_and(&condition)),
        )
        .await
        else {
            panic!(
                "waited {patience:?} for {what}; last seen: {:?}\n{}",
                self.seen.borrow(),
                self.all_logs()
            );
        };
        job.unwrap().clone().unwrap()
    }

    /// The ends of all logs, for whoever has to find out.
    fn all_logs(&self) -> String {
        let mut all = Vec::new();
        for role in ROLES {
            let log = self.log(role);
            let lines: Vec<&str> = log.lines().collect();
            all.push(format!("--- {role}"));
            all.extend(
                lines[lines.len().saturating_sub(40)..]
                    .iter()
                    .map(|line| (*line).to_owned()),
            );
        }
        all.join("\n")
    }

    /// Sees to the end of the job, and that it is the right one.
    pub async fn end(mut self, name: &str, items: u64) {
        let job = self
            .wait("the job to end", |job| job.status.is_finished())
            .await;
        let broker = self.broker().await;
        self.drained(&broker).await;
        for process in self.processes.values() {
            process.stop().await;
        }
        let outputs = Outputs::take(&broker).await;
        let mut given_up = BTreeMap::new();
        for worker in ["worker-batch", "worker-example", "worker-jobtracking"] {
            for kind in ["reject", "invalid"] {
                let pipe = format!("{worker}-{kind}");
                given_up.insert(pipe.clone(), broker.depth(&pipe).await.unwrap());
            }
        }
        broker.close().await;
        let rejected: u64 = given_up.values().sum();
        eprintln!(
            "{name}: {items} items, {} counted, {} outputs of {} items, {rejected} rejected or invalid; went on after: {}; longest pause {:.1} s",
            job.completed_items,
            outputs.all,
            outputs.of.len(),
            self.pauses.lock().unwrap().join(", "),
            self.longest.lock().unwrap().as_secs_f64()
        );
        assert_eq!(
            (job.status, job.failed_tasks, job.percentage_complete),
            (JobStatus::Completed, 0, 100.0),
            "{job:?}\n{}",
            self.all_logs()
        );
        assert_eq!(
            job.completed_items,
            i64::try_from(items).unwrap(),
            "{}",
            self.all_logs()
        );
        assert_eq!(outputs.of, (0..items).collect());
        assert_eq!(rejected, 0, "{given_up:?}\n{}", self.all_logs());
        *self.turn = Some(self.servers);
    }

    /// The broker itself, whatever is between it and the others.
    pub async fn broker(&self) -> Amqp {
        let broker = Amqp::connect(AmqpOptions::new(self.servers.rabbitmq.url())).unwrap();
        broker.connected(PATIENCE).await.unwrap();
        broker
    }

    /// What is left of a job that has ended is discarded.
    async fn drained(&self, broker: &Amqp) {
        wait_for("the pipes to be empty", async || {
            let mut depths = BTreeMap::new();
            for pipe in [BATCH_PIPE, EXAMPLE_PIPE, TRACKING_PIPE] {
                for suffix in ["", ".suspects"] {
                    let pipe = format!("{pipe}{suffix}");
                    let depth = broker
                        .depth(&pipe)
                        .await
                        .map_err(|error| error.to_string())?;
                    depths.insert(pipe, depth);
                }
            }
            if depths.values().all(|depth| *depth == 0) {
                Ok(())
            } else {
                Err(format!("{depths:?}"))
            }
        })
        .await;
    }
}

/// What is in the output pipe.
struct Outputs {
    all: u64,
    /// The items whose output is there.
    of: BTreeSet<u64>,
}

impl Outputs {
    async fn take(broker: &Amqp) -> Self {
        let mut outputs = Self {
            all: broker.depth(EXAMPLE_OUT_PIPE).await.unwrap(),
            of: BTreeSet::new(),
        };
        let mut consumer = broker.consume(EXAMPLE_OUT_PIPE, 2000).await.unwrap();
        for _ in 0..outputs.all {
            let delivery = timeout(PATIENCE, consumer.next())
                .await
                .expect("an output in time")
                .unwrap();
            let message = TaskMessage::decode(&delivery.body).unwrap();
            assert!(
                message.tracking.is_none(),
                "tracking ends in the output pipe: {message:?}"
            );
            let count: WordCount =
                serde_json::from_slice(message.task_data.as_deref().unwrap()).unwrap();
            let number = count
                .words
                .keys()
                .find_map(|word| word.strip_prefix('n')?.parse().ok());
            outputs
                .of
                .insert(number.unwrap_or_else(|| panic!("an output of no item: {count:?}")));
            delivery.ack();
        }
        outputs
    }
}

impl Process {
    fn new(
        role: &'static str,
        listen: String,
        [database, broker]: [&String; 2],
        folder: &Path,
        max_depth: u64,
    ) -> Self {
        let (items, parts) = (SIZE.items, if SIZE.items < 20_000 { 10 } else { 1000 });
        let mut arguments: Vec<String> = [
            "run",
            role,
            "--database",
            database,
            "--broker",
            broker,
            "--listen",
            &listen,
        ]
        .map(String::from)
        .into();
        arguments.extend(["--root".to_owned(), folder.to_str().unwrap().to_owned()]);
        arguments.extend([
            "--max-parts".to_owned(),
            parts.to_string(),
            "--max-depth".to_owned(),
            max_depth.to_string(),
        ]);
        if items < 20_000 {
            arguments.extend(["--concurrency", "2", "--prefetch", "100"].map(String::from));
        }
        let log = folder.join(format!("{role}.log"));
        Self {
            role,
            listen,
            log,
            arguments,
            child: Mutex::new(None),
        }
    }

    fn start(&self) {
        let mut command = Command::new(&SIZE.binary);
        for variable in [
            "DATABASE",
            "BROKER",
            "LISTEN",
            "PUBLIC_URL",
            "ROOT",
            "ROUTE",
            "DATA",
            "URL",
            "PARTITION",
            "LOG",
        ] {
            command.env_remove(format!("BATCHWRIGHT_{variable}"));
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let child = command
            .args(&self.arguments)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let before = self.child.lock().unwrap().replace(child);
        assert!(before.is_none(), "{} runs already", self.role);
    }

    fn kill(&self) {
        let mut child = self.child.lock().unwrap().take().unwrap();
        assert!(
            child.try_wait().unwrap().is_none(),
            "{} has ended by itself",
            self.role
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// As a supervisor does it: it must end by itself, and well.
    async fn stop(&self) {
        let mut child = self.child.lock().unwrap().take().unwrap();
        assert!(
            child.try_wait().unwrap().is_none(),
            "{} has ended by itself",
            self.role
        );
        Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap();
        let code = wait_for("a process to stop", async || {
            match child.try_wait().unwrap() {
                Some(status) => Ok(status.code()),
                None => Err(format!("{} runs", self.role)),
            }
        })
        .await;
        assert_eq!(code, Some(0), "{}", self.role);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut()
            && let Some(mut child) = child.take()
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
