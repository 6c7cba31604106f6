//! A system of four processes on servers that a story can disturb, and the invariants of its job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use batchwright::client::Client;
use batchwright::{BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, TRACKING_PIPE};
use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, JobStatus, TaskData, TaskMessage};
use example_worker::WordCount;
use framework::broker::Broker;
use framework::broker::amqp::{Amqp, AmqpOptions};
use harness::{
    HttpClient, PostgresServer, Process, ProcessOptions, Proxy, RabbitServer, Scrape, free_port,
    in_time, wait_for,
};
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
/// How long a story waits for one condition, in addition to the duration of its faults.
const PATIENCE: Duration = Duration::from_mins(3);
/// The pause between two reads of the job.
const LOOK: Duration = Duration::from_millis(20);

/// The servers, which all stories share. A story that fails does not return them.
static SERVERS: tokio::sync::Mutex<Option<Servers>> = tokio::sync::Mutex::const_new(None);

#[derive(Debug)]
pub struct Servers {
    pub postgres: PostgresServer,
    pub rabbitmq: RabbitServer,
}

/// Four processes, their servers and their job.
pub struct System {
    pub servers: Servers,
    /// The proxies between the processes and the servers.
    pub to_postgres: Proxy,
    pub to_rabbitmq: Proxy,
    pub folder: TempDir,
    /// The process of each role and the address on which it listens.
    processes: BTreeMap<&'static str, (Process, String)>,
    client: Client,
    /// The job as last read.
    seen: watch::Sender<Option<Job>>,
    /// How long the job paused after each fault.
    pauses: Mutex<Vec<String>>,
    /// The longest time without progress.
    longest: Mutex<Duration>,
    turn: MutexGuard<'static, Option<Servers>>,
}

/// Runs a whole story: starts a job, runs `faults` beside it, and checks its end.
pub async fn story(name: &str, faults: impl AsyncFnOnce(&System)) {
    // A small depth, so that batches are split throughout the story and not all at the beginning.
    let system = System::begin((SIZE.items / 20).max(50)).await;
    for role in ROLES {
        system.start(role);
    }
    system.submit(SIZE.items).await;
    tokio::join!(system.follow(), faults(&system));
    system.end(name, SIZE.items).await;
}

impl System {
    /// Waits for the turn of this story and prepares servers and processes, without starting a process. Batches are not
    /// split while more than `max_depth` items wait.
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
        // A short story cannot wait as long as an experiment until a client notices a lost network.
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
            let options = role_options(
                role,
                &listen,
                [&database, &broker],
                folder.path(),
                max_depth,
            );
            (role, (Process::stopped(options), listen))
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
        self.processes[role].0.start_again();
    }

    /// Kills a role as `kill -9` does and starts it again at once, as a supervisor does.
    pub async fn kill_and_start(&self, role: &str) {
        self.processes[role].0.kill();
        self.start(role);
        self.resumes(&format!("{role} killed")).await;
    }

    /// Asks a role for its health check `kind`, ALIVE or READY. Returns the status code and the body.
    pub async fn health(&self, role: &str, kind: &str) -> Result<(u16, String), String> {
        let url = format!(
            "http://{}/health-check?name=all&type={kind}",
            self.processes[role].1
        );
        let answer = in_time("a health check", reqwest::get(url))
            .await
            .map_err(|error| error.to_string())?;
        let code = answer.status().as_u16();
        Ok((
            code,
            answer.text().await.map_err(|error| error.to_string())?,
        ))
    }

    /// Reads the metrics of a role.
    pub async fn scrape(&self, role: &str) -> Scrape {
        let http = HttpClient::new(format!("http://{}", self.processes[role].1));
        Scrape::read(&http.get("/metrics").await.expect_status(200).body)
    }

    /// Returns what a role has logged so far.
    pub fn log(&self, role: &str) -> String {
        self.processes[role].0.log()
    }

    /// Submits a job with this many lines. Each line is an item and has a word of its own.
    pub async fn submit(&self, items: u64) {
        let mut file =
            std::io::BufWriter::new(File::create(self.folder.path().join("lines.txt")).unwrap());
        // Few items must be large, so that the job takes long enough.
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
        wait_for("the job to be accepted", async || {
            self.client
                .put("j", &job)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    /// Reads the job until it has ended, and checks that its percentage never falls.
    pub async fn follow(&self) {
        let (mut last, mut items, mut since) = (0.0, 0, Instant::now());
        loop {
            // A service that is down, or has no database, returns an error.
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
            let patience = PATIENCE + SIZE.outage + SIZE.hole;
            assert!(
                since.elapsed() < patience,
                "no progress for {patience:?}; {items} items are completed\n{}",
                self.all_logs()
            );
            sleep(LOOK).await;
        }
    }

    /// Waits until this share of the job is done. The job must not have ended by then.
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
            "the job ended before its fault: {done:?}"
        );
    }

    /// Waits until the job makes progress, and records how long that took.
    pub async fn resumes(&self, after: &str) {
        let (since, before) = (
            Instant::now(),
            self.seen
                .borrow()
                .as_ref()
                .map_or(0, |job| job.completed_items),
        );
        self.wait(&format!("progress after {after}"), |job| {
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

    /// Returns the ends of all logs, for the message of a failing story.
    fn all_logs(&self) -> String {
        let mut all = Vec::new();
        for role in ROLES {
            all.push(format!("--- {role}\n{}", self.processes[role].0.log_tail()));
        }
        all.join("\n")
    }

    /// Waits for the end of the job, stops the system, and checks the invariants.
    pub async fn end(mut self, name: &str, items: u64) {
        let job = self
            .wait("the job to end", |job| job.status.is_finished())
            .await;
        let broker = self.broker().await;
        self.drained(&broker).await;
        for (role, (process, _)) in &self.processes {
            assert_eq!(process.terminate().await, Some(0), "{role}");
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
            "{name}: {items} items, {} counted, {} outputs of {} items, {rejected} rejected or invalid; resumed after: {}; longest pause {:.1} s",
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

    /// Connects to the broker directly, not through the proxy.
    pub async fn broker(&self) -> Amqp {
        let broker = Amqp::connect(AmqpOptions::new(self.servers.rabbitmq.url())).unwrap();
        broker.connected(PATIENCE).await.unwrap();
        broker
    }

    /// Waits until the workers have discarded the remaining messages of the job.
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

/// The messages in the output pipe.
struct Outputs {
    all: u64,
    /// The items that have an output.
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
                .insert(number.unwrap_or_else(|| panic!("an output without an item: {count:?}")));
            delivery.ack();
        }
        outputs
    }
}

/// Returns how a role is started: on which address it listens, and with which servers.
fn role_options(
    role: &str,
    listen: &str,
    [database, broker]: [&str; 2],
    folder: &Path,
    max_depth: u64,
) -> ProcessOptions {
    let is_short = SIZE.items < 20_000;
    let root = folder.display().to_string();
    let max_parts = if is_short { "10" } else { "1000" };
    let max_depth = max_depth.to_string();
    let mut arguments = vec!["run", role, "--database", database, "--broker", broker];
    arguments.extend(["--listen", listen, "--root", &root]);
    arguments.extend(["--max-parts", max_parts, "--max-depth", &max_depth]);
    if is_short {
        arguments.extend(["--concurrency", "2", "--prefetch", "100"]);
    }
    ProcessOptions::new(&SIZE.binary, arguments, folder.join(format!("{role}.log")))
}
