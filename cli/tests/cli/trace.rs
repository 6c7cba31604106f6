//! The traces of jobs, as a collector receives them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use batchwright::advanced::EXAMPLE_OUT_PIPE;
use batchwright::client::Client;
use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, JobStatus, TaskData, reports_pipe};
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker as _, Outgoing};
use harness::{HttpClient, Process, ProcessOptions, free_port, in_time, unique, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::binary::Home;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Receives spans.
struct Collector(MockServer);

impl Collector {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = MockServer::start().await;
        Mock::given(method("POST"))
            .and(path("/v1/traces"))
            .respond_with(ResponseTemplate::new(200))
            .mount(&server)
            .await;
        Self(server)
    }

    /// Returns all spans so far. Processes send their last ones when they stop.
    async fn spans(&self) -> Vec<Span> {
        let requests = self.0.received_requests().await.unwrap();
        requests
            .iter()
            .map(|request| ExportTraceServiceRequest::decode(&request.body[..]).unwrap())
            .flat_map(|exported| exported.resource_spans)
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    }
}

/// A job that counts the words of each line of a file.
fn count_lines(file: &str, batch_pipe: &str, item_pipe: &str) -> NewJob {
    let batch = BatchTask {
        batch_definition: Some(json!({ "files": [file], "linesPerItem": 1 }).to_string()),
        batch_type: Some("lines".to_owned()),
        target_pipe: Some(item_pipe.to_owned()),
        ..BatchTask::default()
    };
    let task = JobTask {
        task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
        task_api_version: Some(BatchTask::API_VERSION),
        task_data: Some(serde_json::to_value(&batch).unwrap()),
        task_pipe: Some(batch_pipe.to_owned()),
        target_pipe: Some(EXAMPLE_OUT_PIPE.to_owned()),
        ..JobTask::default()
    };
    NewJob {
        task: Some(task),
        ..NewJob::default()
    }
}

/// Creates a job, in the trace of a client if there is one.
async fn put(api: &str, id: &str, job: &NewJob, traceparent: Option<&str>) {
    let path = format!("/partitions/default/jobs/{id}");
    let mut request = HttpClient::new(api).request(Method::PUT, &path);
    if let Some(traceparent) = traceparent {
        request = request
            .header("traceparent", traceparent)
            .header("tracestate", "vendor=7");
    }
    let created = request.json(job).send().await.unwrap();
    assert_eq!(created.status(), 201);
}

async fn completed(client: &Client, id: &str) {
    wait_for("the job to complete", async || {
        let job = client.get(id).await.unwrap();
        if job.status == JobStatus::Completed {
            Ok(())
        } else {
            Err(format!("{job:?}"))
        }
    })
    .await;
}

/// Returns how often a span of one name is a child of one of another. The names of pipes have no
/// prefix.
fn tree(spans: &[Span], prefix: &str) -> BTreeMap<(String, String), usize> {
    let name = |span: &Span| span.name.replace(prefix, "");
    let names: BTreeMap<String, String> = spans
        .iter()
        .map(|span| (hex(&span.span_id), name(span)))
        .chain([(CLIENT.to_owned(), "client".to_owned())])
        .chain([(String::new(), "nothing".to_owned())])
        .collect();
    let mut tree = BTreeMap::new();
    for span in spans {
        let parent = names[&hex(&span.parent_span_id)].clone();
        *tree.entry((parent, name(span))).or_default() += 1;
    }
    tree
}

/// Returns the tree without the spans of the tracking worker, which takes reports in two forms, and
/// the number of these.
fn without_flushes(
    mut tree: BTreeMap<(String, String), usize>,
    pipe: &str,
) -> (Vec<(String, String, usize)>, usize) {
    let pipes = [Some(pipe.to_owned()), reports_pipe(pipe)];
    let flushes = pipes.map(|pipe| format!("process {}", pipe.unwrap_or_default()));
    let is_flush = |child: &String| flushes.contains(child);
    let counts = tree.iter().filter(|((_, child), _)| is_flush(child));
    let count = counts.map(|(_, count)| count).sum();
    tree.retain(|(_, child), _| !is_flush(child));
    let tree = tree
        .into_iter()
        .map(|((parent, child), count)| (parent, child, count));
    (tree.collect(), count)
}

fn edges<const N: usize>(edges: [(&str, &str, usize); N]) -> Vec<(String, String, usize)> {
    edges
        .map(|(parent, child, count)| (parent.to_owned(), child.to_owned(), count))
        .to_vec()
}

/// Returns the values of this attribute, as the protocol shows them.
fn values(spans: &[Span], attribute: &str) -> BTreeSet<String> {
    spans
        .iter()
        .flat_map(|span| &span.attributes)
        .filter(|known| known.key == attribute)
        .map(|known| format!("{:?}", known.value))
        .collect()
}

#[tokio::test]
async fn job_is_one_trace_from_the_request_to_its_last_report() {
    let collector = Collector::start().await;
    let home = Home::new();
    home.write("words", "one\ntwo\nthree\n");
    let up = home.up_with(&["--otlp-endpoint", &collector.0.uri()]).await;
    let job = count_lines("words", "worker-batch-in", "worker-example-in");
    put(
        &home.url(),
        "j",
        &job,
        Some(&format!("00-{TRACE}-{CLIENT}-01")),
    )
    .await;
    completed(&home.client(), "j").await;
    assert_eq!(up.stop().await, Some(0));
    let spans = collector.spans().await;
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
    }
    let (tree, flushes) = without_flushes(tree(&spans, ""), "worker-jobtracking-in");
    assert!(flushes > 0, "{spans:?}");
    assert_eq!(
        tree,
        edges([
            ("client", "create job", 1),
            ("create job", "process worker-batch-in", 1),
            ("process worker-batch-in", "process worker-example-in", 3),
        ])
    );
    let jobs = values(&spans, "batchwright.job");
    assert!(jobs.iter().all(|job| job.contains("default:j")), "{jobs:?}");
    assert_eq!(values(&spans, "batchwright.correlation_id").len(), 1);
}

/// The roles in processes of their own, on RabbitMQ and PostgreSQL. The example worker runs twice,
/// once on each route.
struct Processes {
    /// Begins the names of all pipes.
    prefix: String,
    api: String,
    client: Client,
    amqp: Amqp,
    all: Vec<Process>,
    _folder: tempfile::TempDir,
    _database: harness::Postgres,
}

impl Processes {
    async fn start(collector: &str) -> Self {
        let database = harness::postgres().await.unwrap();
        let broker = harness::rabbitmq().await.unwrap().url;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("words"), "one\ntwo\nthree\n").unwrap();
        let (prefix, service) = (unique("trace-"), format!("127.0.0.1:{}", free_port()));
        let listens = [(); 4].map(|()| format!("127.0.0.1:{}", free_port()));
        let start = |role: &str, pipe: &str, listen: &str, further: &[&str]| {
            let common = [
                ["run", role],
                ["--database", &database.url],
                ["--broker", &broker],
                ["--listen", listen],
                ["--tracking-pipe", &format!("{prefix}tracking")],
                ["--paused-pipe", &format!("{prefix}paused")],
                ["--root", folder.path().to_str().unwrap()],
                ["--otlp-endpoint", collector],
            ];
            let pipe = format!("{prefix}{pipe}");
            let own = ["--input-pipe", &pipe];
            let arguments = common.concat().into_iter().chain(own);
            let log = folder.path().join(format!("{role}-{listen}.log"));
            let process = Process::new(ProcessOptions::new(
                Path::new(env!("CARGO_BIN_EXE_batchwright")),
                arguments.chain(further.iter().copied()),
                log,
            ));
            process.start().unwrap();
            process
        };
        let all = vec![
            start("job-service", "none", &service, &["--otlp-ratio", "0"]),
            start("batch-worker", "batch", &listens[0], &[]),
            start("tracking-worker", "tracking", &listens[1], &[]),
            start("example-worker", "direct", &listens[2], &[]),
            start(
                "example-worker",
                "reroute",
                &listens[3],
                &["--route", "reroute"],
            ),
        ];
        let http = HttpClient::new(format!("http://{service}"));
        wait_for("the job service to be ready", async || {
            let asked = http.request(Method::GET, "/health-check?name=all&type=READY");
            let asked = asked
                .send()
                .await
                .and_then(reqwest::Response::error_for_status);
            asked.map(drop).map_err(|error| error.to_string())
        })
        .await;
        let api = format!("http://{service}/job-service/v1");
        Self {
            prefix,
            client: Client::new(&api, "default"),
            api,
            amqp: Amqp::connect(AmqpOptions::new(broker)).unwrap(),
            all,
            _folder: folder,
            _database: database,
        }
    }

    fn pipe(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn begin(&self, id: &str, item_pipe: &str, traceparent: Option<&str>) {
        let job = count_lines("words", &self.pipe("batch"), &self.pipe(item_pipe));
        put(&self.api, id, &job, traceparent).await;
    }
}

/// Handles messages as CAF's Java workers do: what it sends has none of the headers that it
/// received.
async fn java_worker(processes: &Processes, messages: usize) {
    let mut consumer = processes
        .amqp
        .consume(&processes.pipe("java"), 10)
        .await
        .unwrap();
    for _ in 0..messages {
        let delivery = in_time("a message", consumer.next()).await.unwrap();
        assert!(delivery.headers.get("traceparent").is_some());
        let mut message: Value = serde_json::from_slice(&delivery.body()).unwrap();
        message["to"] = json!(processes.pipe("direct"));
        let output = Outgoing::new(processes.pipe("tracking"), message.to_string());
        processes.amqp.publish(output).await.unwrap();
        delivery.ack();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_goes_through_processes_on_both_routes_and_ends_at_a_worker_that_drops_headers() {
    let collector = Collector::start().await;
    let processes = Processes::start(&collector.0.uri()).await;
    let trace = |number: u8| format!("{number:032x}");
    for (number, pipe) in [(1, "direct"), (2, "reroute"), (3, "java")] {
        let parent = format!("00-{}-{CLIENT}-01", trace(number));
        processes.begin(pipe, pipe, Some(&parent)).await;
        if pipe == "java" {
            java_worker(&processes, 3).await;
        }
        completed(&processes.client, pipe).await;
    }
    // The job service begins the trace of the first, and exports none. The client of the second
    // wants none.
    let unwanted = format!("00-{}-{CLIENT}-00", trace(4));
    for (id, parent) in [("untraced", None), ("unwanted", Some(&*unwanted))] {
        processes.begin(id, "direct", parent).await;
        completed(&processes.client, id).await;
    }
    for process in &processes.all {
        let code = process.terminate().await.unwrap();
        assert_eq!(code, Some(0), "{}", process.log_tail());
    }
    processes.amqp.close().await;
    let spans = collector.spans().await;
    let of = |number| -> Vec<Span> {
        let all = spans.iter().cloned();
        all.filter(|span| hex(&span.trace_id) == trace(number))
            .collect()
    };
    let shown = |number| {
        let (tree, flushes) = without_flushes(tree(&of(number), &processes.prefix), "tracking");
        assert!(flushes > 0, "the reports of {number}: {tree:?}");
        tree
    };
    for (number, pipe) in [(1, "process direct"), (2, "process reroute")] {
        assert_eq!(
            shown(number),
            edges([
                ("client", "create job", 1),
                ("create job", "process batch", 1),
                ("process batch", pipe, 3),
            ])
        );
    }
    assert_eq!(
        shown(3),
        edges([
            ("client", "create job", 1),
            ("create job", "process batch", 1),
        ])
    );
    assert!(of(4).is_empty(), "{:?}", of(4));
    // What came from the Java worker begins traces of its own. The correlation id joins them to the
    // first.
    let rest: Vec<Span> = spans
        .iter()
        .filter(|span| !(1..=3).any(|number| hex(&span.trace_id) == trace(number)))
        .cloned()
        .collect();
    let (begun, _) = without_flushes(tree(&rest, &processes.prefix), "tracking");
    assert_eq!(begun, edges([("nothing", "process direct", 3)]));
    let ids = values(&rest, "batchwright.correlation_id");
    assert_eq!(ids, values(&of(3), "batchwright.correlation_id"));
    assert_eq!(ids.len(), 1);
}
