//! A Batchwright process that a test uses like a CAF Job Service, with helpers for clients and
//! workers.
//!
//! Starting a process, its database and its queues costs more than most tests. So one process for
//! each store serves all tests that need no more than a partition of their own.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker as _, Consumer, Delivery, HeaderValue, Outgoing};
pub use harness::HttpResponse as Answer;
use harness::{HttpClient, Keeper, Process, ProcessOptions, free_port, in_time, unique, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Every status of a job that CAF knows.
pub const STATUSES: [&str; 6] = [
    "Active",
    "Cancelled",
    "Completed",
    "Failed",
    "Paused",
    "Waiting",
];

/// The store that keeps the jobs.
#[derive(Debug, Clone, Copy)]
pub enum Store {
    Postgres,
    Sqlite,
}

/// A client of a service, in a partition of its own.
pub struct Service {
    pub partition: String,
    /// The URL of the server.
    pub root: String,
    /// The pipe of the tracking worker.
    pub tracking_pipe: String,
    /// The pipe for the tasks of paused jobs.
    pub paused_pipe: String,
    http: HttpClient,
    amqp: Amqp,
    server: Arc<Server>,
}

/// A running service: job service, tracking worker and batch worker in one process, which ends with
/// the process of the tests.
struct Server {
    root: String,
    tracking_pipe: String,
    paused_pipe: String,
    variables: Vec<(String, String)>,
    process: Process,
    /// Removes the folder of the process.
    _keeper: Keeper,
}

/// A pipe that the test consumes as a worker would.
pub struct Pipe {
    name: String,
    consumer: Consumer,
    /// Messages that arrived before the probe.
    early: VecDeque<Delivery>,
}

impl Service {
    /// Uses the service that the tests share.
    pub async fn start(store: Store) -> Self {
        static SHARED: [OnceCell<Arc<Server>>; 2] = [const { OnceCell::const_new() }; 2];
        let start = async || Arc::new(Server::start(store, &[]).await);
        let server = SHARED[store as usize].get_or_init(start).await;
        Self::of(Arc::clone(server)).await
    }

    /// Starts a service that the test alone uses: it may restart it, or read its log.
    pub async fn start_own(store: Store) -> Self {
        Self::start_with(store, &[]).await
    }

    /// Starts such a service with additional CAF variables.
    pub async fn start_with(store: Store, variables: &[(&str, &str)]) -> Self {
        Self::of(Arc::new(Server::start(store, variables).await)).await
    }

    async fn of(server: Arc<Server>) -> Self {
        let broker = harness::rabbitmq().await.unwrap().url;
        let service = Self {
            partition: unique("caf-compat"),
            root: server.root.clone(),
            tracking_pipe: server.tracking_pipe.clone(),
            paused_pipe: server.paused_pipe.clone(),
            http: HttpClient::new(server.root.as_str()),
            amqp: Amqp::connect(AmqpOptions::new(broker)).unwrap(),
            server,
        };
        service.is_up().await;
        service
    }

    /// Kills the process, as `kill -9` does, and starts it again.
    pub async fn restart(&self) {
        let is_own = Arc::strong_count(&self.server) == 1;
        assert!(is_own, "other tests use this process: use `start_own`");
        self.server.process.kill().unwrap();
        self.server.process.start().unwrap();
        self.is_up().await;
    }

    /// Returns the log of the process.
    pub fn log(&self) -> String {
        self.server.process.log()
    }

    /// Returns the passwords of the servers that the process uses.
    pub fn passwords(&self) -> impl Iterator<Item = &str> {
        self.server
            .variables
            .iter()
            .filter(|(name, _)| name.ends_with("PASSWORD"))
            .map(|(_, password)| password.as_str())
    }

    async fn is_up(&self) {
        wait_for("the service to respond", async || {
            let ping = self.http.request(Method::GET, "/job-service/v1/ping");
            let answer = ping.send().await;
            answer
                .map(drop)
                .map_err(|error| format!("{error}\n{}", self.log()))
        })
        .await;
    }

    /// Sends a request to any URL of the server.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Answer {
        self.http.call(method, path, body, headers).await
    }

    /// Returns the path of a resource in the test's partition.
    pub fn path(&self, path: &str) -> String {
        format!("/job-service/v1/partitions/{}{path}", self.partition)
    }

    /// Sends a `GET` request to a path in the test's partition.
    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, &self.path(path), None, &[]).await
    }

    /// Sends a `GET` request to a path in the test's partition. The parameters are URL-encoded.
    pub async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        self.get(&with_parameters(path, parameters)).await
    }

    /// Sends a `POST` request to a path in the test's partition. The parameters are URL-encoded.
    pub async fn post(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        self.call(
            Method::POST,
            &self.path(&with_parameters(path, parameters)),
            None,
            &[],
        )
        .await
    }

    pub async fn put(&self, job: &str, body: &Value) -> Answer {
        self.call(
            Method::PUT,
            &self.path(&format!("/jobs/{job}")),
            Some(&body.to_string()),
            &[],
        )
        .await
    }

    /// Creates a job and checks that it is new.
    pub async fn create(&self, job: &str, body: &Value) {
        self.put(job, body).await.is(201);
    }

    pub async fn delete(&self, job: &str) -> Answer {
        self.call(
            Method::DELETE,
            &self.path(&format!("/jobs/{job}")),
            None,
            &[],
        )
        .await
    }

    /// Returns the job as a client gets it.
    pub async fn job(&self, job: &str) -> Value {
        self.get(&format!("/jobs/{job}")).await.is(200).json()
    }

    /// Returns the status and the percentage of the job.
    pub async fn state(&self, job: &str) -> (String, f64) {
        let job = self.job(job).await;
        (
            job["status"].as_str().unwrap().to_owned(),
            job["percentageComplete"].as_f64().unwrap(),
        )
    }

    /// Creates a job of this status: `Completed` at 100 %, `Waiting` at 0 %, all others at 10 %.
    pub async fn create_as(&self, job: &str, status: &str) {
        self.create(job, &self.new_job("not-consumed")).await;
        if status == "Waiting" {
            return;
        }
        self.progress(job, "", 10).await;
        self.becomes(job, "Active", 10.0).await;
        let end = format!(
            "/jobs/{job}/{}",
            if status == "Paused" {
                "pause"
            } else {
                "cancel"
            }
        );
        match status {
            "Active" => {}
            "Paused" | "Cancelled" => drop(self.post(&end, &[]).await.is(204)),
            "Completed" => self.complete(job, "").await,
            "Failed" => self.fail(job, "", "it failed").await,
            other => panic!("unexpected status {other}"),
        }
        self.becomes(
            job,
            status,
            if status == "Completed" { 100.0 } else { 10.0 },
        )
        .await;
    }

    /// Waits until the tracking worker has counted all reports sent so far: it sends one more and
    /// waits until that is counted.
    pub async fn all_is_counted(&self) {
        let later = unique("later");
        self.create(&later, &self.new_job("not-consumed")).await;
        self.complete(&later, "").await;
        self.becomes(&later, "Completed", 100.0).await;
    }

    /// Waits until the job has this status and this percentage.
    pub async fn becomes(&self, job: &str, status: &str, percentage: f64) {
        let expected = (status.to_owned(), percentage);
        wait_for(
            &format!("{job} to be {status} at {percentage}"),
            async || {
                let state = self.state(job).await;
                if state == expected {
                    Ok(())
                } else {
                    Err(format!("{state:?}"))
                }
            },
        )
        .await;
    }

    /// Creates a job in each of the six statuses, in alphabetical order. Its id is its status. The
    /// active one is at 40 %.
    pub async fn create_in_every_status(&self) {
        for status in STATUSES {
            self.create(status, &self.new_job(status)).await;
        }
        self.progress("Active", "", 40).await;
        self.complete("Completed", "").await;
        self.fail("Failed", "", "broken").await;
        self.post("/jobs/Cancelled/cancel", &[]).await.is(204);
        self.post("/jobs/Paused/pause", &[]).await.is(204);
        for (status, percentage) in STATUSES.into_iter().zip([40.0, 0.0, 100.0, 0.0, 0.0, 0.0]) {
            self.becomes(status, status, percentage).await;
        }
    }

    /// Returns the job task id of a task. `steps` is empty for the job itself, otherwise e.g.
    /// `.1.2*`.
    pub fn task(&self, job: &str, steps: &str) -> String {
        format!("{}:{job}{steps}", self.partition)
    }

    /// Returns the full name of one of the test's own pipes.
    pub fn pipe(&self, name: &str) -> String {
        format!("{}-{name}", self.partition)
    }

    /// Consumes one of the test's own pipes once it accepts messages. A busy broker may refuse the
    /// first messages to a new pipe; if the test sent those again, they would arrive out of order.
    pub async fn consume(&self, name: &str) -> Pipe {
        let mut pipe = self.consume_named(&self.pipe(name)).await;
        let probe = json!({"taskId": unique("probe")});
        self.publish(&pipe.name, &probe).await;
        loop {
            let delivery = pipe.receive().await;
            if delivery.body() == probe.to_string() {
                delivery.ack();
                return pipe;
            }
            pipe.early.push_back(delivery);
        }
    }

    /// Consumes a pipe by its full name.
    pub async fn consume_named(&self, name: &str) -> Pipe {
        let consumer = self.amqp.consume(name, 1000).await.unwrap();
        Pipe {
            name: name.to_owned(),
            consumer,
            early: VecDeque::new(),
        }
    }

    /// Returns how many messages are in one of the test's own pipes.
    pub async fn depth(&self, name: &str) -> u64 {
        self.amqp.depth(&self.pipe(name)).await.unwrap()
    }

    /// Publishes a message unchanged. Repeats it, as workers do, if the broker refuses it under
    /// load.
    pub async fn publish(&self, pipe: &str, message: &Value) {
        self.publish_with(pipe, message, &[]).await;
    }

    /// Publishes a message with text headers.
    pub async fn publish_with(&self, pipe: &str, message: &Value, headers: &[(&str, &str)]) {
        let mut outgoing = Outgoing::new(pipe, message.to_string().into_bytes());
        for (name, value) in headers {
            outgoing
                .headers
                .set((*name).to_owned(), HeaderValue::Text((*value).into()));
        }
        wait_for("the broker to accept a message", async || {
            self.amqp
                .publish(outgoing.clone())
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    /// Sends reports to the tracking worker in one message, as Java workers do.
    pub async fn report(&self, reports: &[Value]) {
        let data = json!({"trackingReports": reports});
        let message = message(
            "TrackingReportTask",
            &data,
            "NEW_TASK",
            Some(&self.tracking_pipe),
            &Value::Null,
        );
        self.publish(&self.tracking_pipe, &message).await;
    }

    /// Reports a task of the job complete.
    pub async fn complete(&self, job: &str, steps: &str) {
        self.report(&[json!({"jobTaskId": self.task(job, steps), "status": "Complete"})])
            .await;
    }

    /// Reports a task of the job failed.
    pub async fn fail(&self, job: &str, steps: &str, text: &str) {
        let failure = json!({"failureId": "RESULT_EXCEPTION", "failureTime": 1_700_000_000_000_i64, "failureSource": "worker-x", "failureMessage": text});
        self.report(&[
            json!({"jobTaskId": self.task(job, steps), "status": "Failed", "failure": failure}),
        ])
        .await;
    }

    /// Reports the progress of a task of the job.
    pub async fn progress(&self, job: &str, steps: &str, percentage: u8) {
        self.report(&[json!({"jobTaskId": self.task(job, steps), "status": "Progress", "estimatedPercentageCompleted": percentage})]).await;
    }

    /// Returns the body of a job whose first task is for one of the test's own pipes.
    pub fn new_job(&self, pipe: &str) -> Value {
        json!({"task": {
            "taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskData": {"batchDefinition": "[1-3]", "batchType": "RangePlugin"},
            "taskPipe": self.pipe(pipe), "targetPipe": self.pipe("target")
        }})
    }
}

/// Returns a CAF task message.
pub fn message(
    classifier: &str,
    data: &Value,
    status: &str,
    to: Option<&str>,
    tracking: &Value,
) -> Value {
    json!({
        "version": 3, "taskId": unique("task"), "taskClassifier": classifier, "taskApiVersion": 1,
        "taskData": STANDARD.encode(data.to_string()), "taskStatus": status, "context": {}, "to": to, "tracking": tracking,
        "sourceInfo": null, "priority": null, "correlationId": null
    })
}

impl Pipe {
    /// Returns the next message, and its task data as JSON.
    pub async fn next(&mut self) -> (Value, Value) {
        let delivery = match self.early.pop_front() {
            Some(early) => early,
            None => self.receive().await,
        };
        let message: Value = serde_json::from_slice(&delivery.body()).unwrap();
        delivery.ack();
        let data = STANDARD
            .decode(message["taskData"].as_str().unwrap())
            .unwrap();
        let data = serde_json::from_slice(&data).unwrap_or_else(|_| json!(data));
        (message, data)
    }

    async fn receive(&mut self) -> Delivery {
        in_time(&format!("a message in {}", self.name), self.consumer.next())
            .await
            .unwrap()
    }

    /// Waits for the message with this task id and leaves all others in the pipe.
    pub async fn find(&mut self, task_id: &str) -> Value {
        let mut others = Vec::new();
        loop {
            let delivery = self.receive().await;
            match serde_json::from_slice::<Value>(&delivery.body()) {
                Ok(message) if message["taskId"] == task_id => {
                    delivery.ack();
                    return message;
                }
                _ => others.push(delivery),
            }
        }
    }

    /// Takes this many messages. Returns their job task ids without the partition.
    pub async fn next_jobs(&mut self, count: usize) -> Vec<String> {
        let mut jobs = Vec::new();
        for _ in 0..count {
            let id = self.next().await.0["tracking"]["jobTaskId"]
                .as_str()
                .unwrap()
                .to_owned();
            jobs.push(id.split_once(':').unwrap().1.to_owned());
        }
        jobs
    }
}

impl Server {
    /// Starts a service with additional CAF variables.
    async fn start(store: Store, variables: &[(&str, &str)]) -> Self {
        let broker = harness::rabbitmq().await.unwrap().url;
        let folder = tempfile::tempdir().unwrap().keep();
        let port = free_port();
        let (root, id) = (format!("http://127.0.0.1:{port}"), unique("caf-compat"));
        let [tracking_pipe, paused_pipe] =
            ["tracking", "paused"].map(|name| format!("{id}-{name}"));
        let mut all = vec![
            ("BATCHWRIGHT_LISTEN".to_owned(), format!("127.0.0.1:{port}")),
            (
                "BATCHWRIGHT_DATA".to_owned(),
                folder.join("data").display().to_string(),
            ),
            (
                "CAF_WEBSERVICE_URL".to_owned(),
                format!("{root}/job-service/v1"),
            ),
            ("CAF_TRACKING_PIPE".to_owned(), tracking_pipe.clone()),
            ("CAF_WORKER_PAUSED_QUEUE".to_owned(), paused_pipe.clone()),
        ];
        all.extend(caf_broker(&broker));
        if matches!(store, Store::Postgres) {
            all.extend(caf_database(&harness::postgres().await.unwrap().url));
        }
        let further = variables.iter();
        all.extend(further.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let keeper = Keeper::new(Some(&folder)).unwrap();
        let process = Process::new(ProcessOptions {
            variables: all.clone(),
            group: keeper.group(),
            // What comes to the invalid pipes is looked at there.
            ..ProcessOptions::new(
                env!("CARGO_BIN_EXE_batchwright"),
                ["up", "--dead-letter-pipes", "none"],
                folder.join("log"),
            )
        });
        process.start().unwrap();
        Self {
            root,
            tracking_pipe,
            paused_pipe,
            variables: all,
            process,
            _keeper: keeper,
        }
    }
}

/// The URL of a broker in CAF's variables.
fn caf_broker(url: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(url).unwrap();
    caf(
        "CAF_RABBITMQ",
        &[
            ("PROTOCOL", url.scheme().to_owned()),
            ("HOST", url.host_str().unwrap().to_owned()),
            ("PORT", url.port().unwrap_or(5672).to_string()),
            ("USERNAME", url.username().to_owned()),
            ("PASSWORD", url.password().unwrap_or_default().to_owned()),
        ],
    )
}

/// The URL of a database in CAF's variables.
fn caf_database(url: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(url).unwrap();
    caf(
        "JOB_SERVICE_DATABASE",
        &[
            ("HOST", url.host_str().unwrap().to_owned()),
            ("PORT", url.port().unwrap_or(5432).to_string()),
            ("NAME", url.path().trim_start_matches('/').to_owned()),
            ("USERNAME", url.username().to_owned()),
            // A password that the server does not ask for does no harm, and the log can be searched
            // for it.
            (
                "PASSWORD",
                url.password().unwrap_or("a-password-of-no-use").to_owned(),
            ),
            ("APPNAME", "caf-compat".to_owned()),
        ],
    )
}

fn caf(prefix: &str, parts: &[(&str, String)]) -> Vec<(String, String)> {
    parts
        .iter()
        .map(|(name, value)| (format!("{prefix}_{name}"), value.clone()))
        .collect()
}

fn with_parameters(path: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    if parameters.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", parameters.join("&"))
    }
}

/// The time of the clock, in milliseconds since 1970.
pub fn now() -> u128 {
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_millis()
}

pub fn encoded(text: &str) -> String {
    percent_encoding::percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC)
        .to_string()
}
