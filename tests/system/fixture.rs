//! The fixture of a story: servers, pipes, a system that runs on them, and ways to observe it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use batchwright::client::Client;
use batchwright::{Running, Stack, StackOptions};
use contract::rest::{Job, JobTask, NewJob};
use contract::{
    BatchTask, JobId, JobStatus, PartitionId, RangeItem, TaskData, TaskMessage, TrackingReport,
    TrackingReportTask,
};
use framework::broker::{Delivery, Outgoing};
use framework::config::Route;
use framework::{Settings, Worker};
use harness::{HttpClient, HttpResponse, free_port, in_time, unique, wait_for};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// How long a worker relies on a job status that it has read: the shortest setting.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two reads of a job that a story follows.
const LOOK: Duration = Duration::from_millis(5);

/// How long a status check itself may take on a busy machine.
pub const SLACK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    /// The embedded broker and store.
    None,
    /// `RabbitMQ` and `PostgreSQL`.
    Real,
}

/// The servers, folders and names of one story. It may start a system more than once.
#[derive(Debug)]
pub struct Fixture {
    pub route: Route,
    /// The prefix of every pipe, and the name of the partition.
    id: String,
    folder: TempDir,
    /// The same for every start of the system, because messages in flight contain it.
    listen: SocketAddr,
    database: Option<String>,
    broker: Option<String>,
}

impl Fixture {
    pub async fn new(route: Route, servers: Servers) -> Self {
        let (mut database, mut broker) = (None, None);
        if servers == Servers::Real {
            let (postgres, rabbitmq) =
                tokio::try_join!(harness::postgres(), harness::rabbitmq()).unwrap();
            (database, broker) = (Some(postgres.url), Some(rabbitmq.url));
        }
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        Self {
            route,
            id: unique("story"),
            folder: tempfile::tempdir().unwrap(),
            listen,
            database,
            broker,
        }
    }

    /// Returns the URL of the PostgreSQL database.
    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap()
    }

    /// Returns the full name of one of the story's pipes.
    pub fn pipe(&self, name: &str) -> String {
        format!("{}-{name}", self.id)
    }

    /// Returns the partition of the story's jobs.
    pub fn partition(&self) -> &str {
        &self.id
    }

    /// Returns the text of a failure as a job shows it. On the route `reroute` it is the task data
    /// of the result, a JSON string.
    pub fn failure_text(&self, text: &str) -> String {
        match self.route {
            Route::Direct => text.to_owned(),
            Route::Reroute => format!("\"{text}\""),
        }
    }

    /// Returns the folder with the files that jobs read.
    pub fn files(&self) -> PathBuf {
        let files = self.folder.path().join("files");
        std::fs::create_dir_all(&files).unwrap();
        files
    }

    /// Options with the smallest splits, so that trees are deep, and with frequent status checks.
    pub fn options(&self) -> StackOptions {
        let mut options = StackOptions::embedded(self.folder.path().join("data"));
        options.database.clone_from(&self.database);
        options.broker.clone_from(&self.broker);
        options.listen = self.listen;
        options.root = self.files();
        options.workers.route = self.route;
        options.batch.input = self.pipe("batch");
        options.batch.max_parts = 10;
        options.service.tracking_pipe = self.pipe("tracking");
        options.service.paused_pipe = self.pipe("paused");
        options.service.outputs.pipe = self.pipe("kept");
        options.service.status_check_interval = STATUS_INTERVAL;
        options
    }

    /// The same, with batches that wait while more messages than this are in their target pipe.
    pub fn options_with_depth(&self, max_depth: u64) -> StackOptions {
        let mut options = self.options();
        options.batch.max_depth = max_depth;
        options
    }

    /// Settings of a worker that consumes the pipe of this name and sends its outputs to the pipe
    /// `output`.
    pub fn settings(&self, name: &str) -> Settings {
        Settings {
            input: self.pipe(name),
            output: Some(self.pipe("output")),
            invalid: self.pipe(&format!("{name}-invalid")),
            reject: self.pipe(&format!("{name}-reject")),
            paused: Some(self.pipe("paused")),
            route: self.route,
            prefetch: Some(500),
            drain: Duration::from_secs(1),
            abort: Duration::from_secs(2),
            ..Settings::new(name)
        }
    }

    /// Returns the whole system without an item worker.
    pub fn stack(&self) -> Stack {
        Stack::new(self.options())
    }

    /// Starts the whole system with a worker for the pipe `items`.
    pub async fn run(&self, worker: impl Worker) -> System {
        self.start(self.stack().worker(self.settings("items"), worker))
            .await
    }

    pub async fn start(&self, stack: Stack) -> System {
        let running = stack.start().await.unwrap();
        let client = Client::new(&running.api_url(), &self.id);
        System {
            http: HttpClient::new(running.api_url()),
            running,
            client,
            partition: self.id.clone(),
        }
    }

    /// Returns a job with the items 1 to `items`. They are sent to the pipe `items`, their outputs
    /// to the pipe `output`.
    pub fn range(&self, items: u64) -> NewJob {
        self.batch("range", &format!("1-{items}"))
    }

    pub fn batch(&self, batch_type: &str, definition: &str) -> NewJob {
        let batch = BatchTask {
            batch_type: Some(batch_type.to_owned()),
            batch_definition: Some(definition.to_owned()),
            target_pipe: Some(self.pipe("items")),
            ..BatchTask::default()
        };
        self.job("batch", &batch)
    }

    /// Returns a job with this first task, for the pipe of this name.
    pub fn job<T: TaskData>(&self, pipe: &str, task: &T) -> NewJob {
        NewJob {
            task: Some(JobTask {
                task_classifier: Some(T::CLASSIFIER.to_owned()),
                task_api_version: Some(T::API_VERSION),
                task_data: Some(serde_json::to_value(task).unwrap()),
                task_pipe: Some(self.pipe(pipe)),
                target_pipe: Some(self.pipe("output")),
                ..JobTask::default()
            }),
            ..NewJob::default()
        }
    }

    /// Returns the body of a message with reports for the tracking worker.
    pub fn reports(&self, tracking_reports: Vec<TrackingReport>) -> Vec<u8> {
        TaskMessage::new(
            unique("report"),
            self.pipe("tracking"),
            &TrackingReportTask { tracking_reports },
        )
        .unwrap()
        .encode()
    }
}

/// A running system.
#[derive(Debug)]
pub struct System {
    pub running: Running,
    pub client: Client,
    http: HttpClient,
    partition: String,
}

impl System {
    /// Sends a `GET` request to a path below the partition.
    pub async fn get(&self, path: &str) -> HttpResponse {
        self.http
            .get(&format!("/partitions/{}{path}", self.partition))
            .await
    }

    /// Returns the partition of the story's jobs.
    pub fn partition(&self) -> &str {
        &self.partition
    }

    /// Returns the job as it is now.
    pub async fn job(&self, job: &str) -> Job {
        self.client.get(job).await.unwrap()
    }

    /// Waits until the job has ended, and returns it.
    pub async fn ended(&self, job: &str) -> Job {
        wait_for("the job to end", async || {
            let state = self.job(job).await;
            if state.status.is_finished() {
                Ok(state)
            } else {
                Err(format!("{state:?}"))
            }
        })
        .await
    }

    /// Reads the job again and again until it ends, and checks the invariants of its percentage.
    /// Returns the last state and how often the percentage rose.
    pub async fn follow(&self, job: &str, mut seen: impl FnMut(&Job)) -> (Job, u32) {
        let (mut last, mut steps, began) = (0.0, 0, Instant::now());
        loop {
            let state = self.job(job).await;
            let percentage = state.percentage_complete;
            assert!(
                (last..=100.0).contains(&percentage),
                "{percentage} after {last}"
            );
            assert_eq!(
                percentage >= 100.0,
                state.status == JobStatus::Completed,
                "{state:?}"
            );
            steps += u32::from(percentage > last);
            last = percentage;
            seen(&state);
            if state.status.is_finished() {
                return (state, steps);
            }
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "the job does not end: {state:?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the job is Completed, with exactly `items` items.
    pub async fn completed(&self, job: &str, items: i64) {
        let state = self.ended(job).await;
        let seen = (
            state.status,
            state.completed_items,
            state.failed_tasks,
            state.percentage_complete,
        );
        assert_eq!(seen, (JobStatus::Completed, items, 0, 100.0), "{state:?}");
    }

    /// Returns the statuses that the job has had, each with the actor that set it.
    pub async fn history(&self, job: &str) -> Vec<(JobStatus, String)> {
        let (partition, job) = (
            PartitionId::parse(&self.partition).unwrap(),
            JobId::parse(job).unwrap(),
        );
        let history = self
            .running
            .store()
            .unwrap()
            .history(&partition, &job)
            .await
            .unwrap();
        history
            .into_iter()
            .map(|step| (step.to, step.actor))
            .collect()
    }

    /// How many tasks of the job are kept in the store because it is paused.
    pub async fn parked(&self, job: &str) -> u64 {
        let (partition, job) = (
            PartitionId::parse(&self.partition).unwrap(),
            JobId::parse(job).unwrap(),
        );
        self.running
            .store()
            .unwrap()
            .count_parked_tasks(&partition, &job)
            .await
            .unwrap()
    }

    pub async fn publish(&self, pipe: &str, body: impl Into<Vec<u8>>) {
        self.running
            .broker()
            .publish(Outgoing::new(pipe, body.into()))
            .await
            .unwrap();
    }

    /// Waits until these pipes are empty.
    pub async fn drained(&self, pipes: &[String]) {
        wait_for("the pipes to be empty", async || {
            self.check_drained(pipes).await
        })
        .await;
    }

    /// Returns what waits in these pipes, their pipes of bundles and that of gathered reports, if
    /// anything does.
    pub async fn check_drained(&self, pipes: &[String]) -> Result<(), String> {
        let bundles = pipes.iter().filter_map(|pipe| contract::bundle_pipe(pipe));
        let tracking = pipes.iter().filter(|pipe| pipe.contains("tracking"));
        let reports = tracking.filter_map(|pipe| contract::reports_pipe(pipe));
        let mut depths = BTreeMap::new();
        for pipe in pipes.iter().cloned().chain(bundles).chain(reports) {
            // A broker that is not connected yet returns an error.
            let depth = self.running.broker().depth(&pipe).await;
            depths.insert(pipe, depth.map_err(|error| error.to_string())?);
        }
        if depths.values().all(|depth| *depth == 0) {
            Ok(())
        } else {
            Err(format!("{depths:?}"))
        }
    }

    /// Takes deliveries out of a pipe as long as `proceeds` returns true.
    pub async fn take(&self, pipe: &str, mut proceeds: impl FnMut(&Delivery) -> bool) {
        let mut consumer = self.running.broker().consume(pipe, 500).await.unwrap();
        let mut taken = 0;
        loop {
            let delivery = in_time(
                &format!("more than {taken} messages in {pipe}"),
                consumer.next(),
            )
            .await
            .expect("the broker was closed");
            taken += 1;
            let proceed = proceeds(&delivery);
            delivery.ack();
            if !proceed {
                return;
            }
        }
    }

    /// Takes the next delivery out of a pipe.
    pub async fn take_one(
        &self,
        pipe: &str,
    ) -> (TaskMessage, Vec<(String, framework::broker::HeaderValue)>) {
        let mut found = None;
        self.take(pipe, |delivery| {
            let headers = delivery
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect();
            found = Some((TaskMessage::decode(&delivery.body()).unwrap(), headers));
            false
        })
        .await;
        found.unwrap()
    }

    /// Takes messages out of a pipe until it has seen `tasks` different tasks, and returns their
    /// task data. Duplicates are skipped.
    pub async fn take_different<T: DeserializeOwned>(&self, pipe: &str, tasks: usize) -> Vec<T> {
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        if tasks == 0 {
            return found;
        }
        self.take(pipe, |delivery| {
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            assert!(
                message.tracking.is_none(),
                "tracking ends in the output pipe: {message:?}"
            );
            if seen.insert(message.task_id.clone()) {
                found.push(
                    serde_json::from_slice(message.task_data.as_deref().unwrap_or_default())
                        .unwrap(),
                );
            }
            seen.len() < tasks
        })
        .await;
        found
    }

    /// Takes the outputs of a range out of a pipe and checks that there is one for each item and no
    /// other.
    pub async fn has_outputs(&self, pipe: &str, items: std::ops::RangeInclusive<u64>) {
        let tasks = usize::try_from(items.end() + 1 - items.start()).unwrap();
        let found: Vec<RangeItem> = self.take_different(pipe, tasks).await;
        let numbers: BTreeSet<u64> = found.iter().map(|item| item.number).collect();
        assert_eq!(numbers, items.collect());
    }

    pub async fn stop(self) {
        self.running.stop().await;
    }
}
