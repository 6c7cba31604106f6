//! The messages that a worker publishes on RabbitMQ, compared with CAF's wire format: one test for
//! each rule.
//!
//! The tests of the AMQP code check the properties of messages and queues. Those of `contract`
//! check how bodies are encoded and decoded. The system stories check the messages of the batch
//! worker and the tracking worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{ContextData, RangeItem, SourceInfo, TaskMessage, TaskStatus, Tracking};
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker, Consumer, Outgoing};
use framework::{Context, OrFail, Reply, Runtime, Settings, TaskError, Worker};
use futures_util::future::join_all;
use harness::unique;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

/// The path of the status of the job.
const STATUS: &str = "/job-service/v1/partitions/acme/jobs/reindex-7/status";

/// The pipes of a test.
const PIPES: [&str; 8] = [
    "in",
    "in.suspects",
    "out",
    "tracking",
    "items",
    "next",
    "invalid",
    "reject",
];

/// Runs the action that the item names.
struct Order;

impl Worker for Order {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        match item.params.get("do").map_or("", String::as_str) {
            "fail" => Err::<(), _>("boom").or_fail()?,
            "misunderstand" => Err::<(), _>("Task failed validation").or_invalid()?,
            "negative" => return Ok(Reply::failure(item)),
            "note" => return Ok(Reply::send(item).with_note("mine")),
            "end" => return Ok(Reply::none()),
            "split" => {
                for number in 1..=item.number {
                    ctx.dispatch(
                        &item.params["pipe"],
                        &RangeItem {
                            number,
                            params: BTreeMap::new(),
                        },
                    )
                    .await?;
                }
            }
            _ => {}
        }
        Ok(Reply::send(item))
    }
}

/// A worker on RabbitMQ with its own pipes.
struct Fixture {
    broker: Arc<Amqp>,
    id: String,
    jobs: MockServer,
    /// One consumer per pipe, kept open: a dropped consumer would requeue its deliveries.
    consumers: tokio::sync::Mutex<BTreeMap<String, Consumer>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    _on_drop: DropGuard,
}

impl Fixture {
    async fn new() -> Self {
        let url = harness::rabbitmq().await.unwrap().url;
        let broker = Arc::new(Amqp::connect(AmqpOptions::new(&url)).unwrap());
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let id = unique("wire");
        declare_queues(&url, PIPES.map(|name| format!("{id}-{name}"))).await;
        Self {
            broker,
            id,
            jobs: MockServer::start().await,
            consumers: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            _on_drop: guard,
        }
    }

    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let fixture = Self::new().await;
        fixture.run(change);
        fixture
    }

    fn run(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = Settings {
            input: self.pipe("in"),
            output: Some(self.pipe("out")),
            invalid: self.pipe("invalid"),
            reject: self.pipe("reject"),
            paused: Some(self.pipe("paused")),
            version: "1.4.0".to_owned(),
            service_path: "caf/worker".to_owned(),
            ..Settings::new("worker-order")
        };
        change(&mut settings);
        let ready =
            Runtime::new(settings, Arc::clone(&self.broker) as Arc<dyn Broker>).worker(Order);
        let until = self.stop.clone();
        self.tasks
            .spawn(async move { ready.run_until(until).await });
    }

    fn pipe(&self, name: &str) -> String {
        format!("{}-{name}", self.id)
    }

    /// Returns a task as another worker would send it. Its tracking ends in the output pipe.
    fn task(&self, what: &str) -> TaskMessage {
        let params = BTreeMap::from([
            ("do".to_owned(), what.to_owned()),
            ("pipe".to_owned(), self.pipe("items")),
        ]);
        TaskMessage {
            context: BTreeMap::from([("other/w".to_owned(), ContextData(b"keep".to_vec()))]),
            tracking: Some(Tracking {
                job_task_id: Some("acme:reindex-7.2".to_owned()),
                last_status_check_time: Some(1_767_225_600_000),
                status_check_interval_millis: 5000,
                // The worker makes no status check without a URL.
                status_check_url: None,
                tracking_pipe: Some(self.pipe("tracking").into()),
                track_to: Some(self.pipe("out").into()),
            }),
            source_info: Some(SourceInfo {
                name: Some("worker-batch".into()),
                version: Some("3.7.0".into()),
            }),
            priority: Some(4),
            correlation_id: Some("corr-42".into()),
            ..TaskMessage::new("T.2", self.pipe("in"), &RangeItem { number: 2, params }).unwrap()
        }
    }

    async fn send(&self, message: &TaskMessage) {
        self.broker
            .publish(Outgoing::new(self.pipe("in"), message.encode()))
            .await
            .unwrap();
    }

    /// Returns the body of the next message in a pipe.
    async fn next(&self, name: &str) -> String {
        let mut consumers = self.consumers.lock().await;
        if !consumers.contains_key(name) {
            consumers.insert(
                name.to_owned(),
                self.broker.consume(&self.pipe(name), 1).await.unwrap(),
            );
        }
        let delivery = harness::in_time(
            &format!("a message in {name}"),
            consumers.get_mut(name).unwrap().next(),
        )
        .await
        .unwrap();
        let body = String::from_utf8(delivery.body().to_vec()).unwrap();
        delivery.ack();
        body
    }

    async fn next_message(&self, name: &str) -> TaskMessage {
        TaskMessage::decode(self.next(name).await.as_bytes()).unwrap()
    }

    /// Returns the envelope and the task data of the next message in the tracking pipe.
    async fn next_report(&self) -> (Value, Value) {
        report(&self.next("tracking").await)
    }

    /// Sends a task and returns its output.
    async fn output_of(&self, message: &TaskMessage) -> String {
        self.send(message).await;
        self.next("out").await
    }

    async fn set_status_response(&self, answer: ResponseTemplate) {
        self.jobs.reset().await;
        Mock::given(path(STATUS))
            .respond_with(answer)
            .mount(&self.jobs)
            .await;
    }

    /// Returns a task that needs a status check now, at its own URL.
    fn to_be_checked(&self, number: u64) -> TaskMessage {
        let mut task = self.task("");
        task.task_data = Some(
            serde_json::to_vec(&RangeItem {
                number,
                params: BTreeMap::new(),
            })
            .unwrap(),
        );
        let tracking = task.tracking.as_mut().unwrap();
        tracking.status_check_url = Some(format!("{}{STATUS}?{number}", self.jobs.uri()).into());
        // The tracking ends in another pipe, so the output keeps it.
        tracking.track_to = Some("elsewhere".into());
        task
    }
}

/// Declares the queues and waits until each has a leader. Before that, the broker may store a
/// message although it refuses it, and the repeated message would be a duplicate.
async fn declare_queues(url: &str, pipes: [String; PIPES.len()]) {
    let broker = Amqp::connect(AmqpOptions::new(url)).unwrap();
    join_all(pipes.iter().map(async |pipe| {
        while broker
            .publish(Outgoing::new(pipe.as_str(), "probe"))
            .await
            .is_err()
        {}
        broker
            .publish(Outgoing::new(pipe.as_str(), "end"))
            .await
            .unwrap();
        let mut consumer = broker.consume(pipe, 1).await.unwrap();
        let mut is_end = false;
        while !is_end {
            let delivery = consumer.next().await.unwrap();
            is_end = delivery.body() == "end";
            delivery.ack();
        }
    }))
    .await;
    broker.close().await;
}

fn report(body: &str) -> (Value, Value) {
    let message = TaskMessage::decode(body.as_bytes()).unwrap();
    (
        serde_json::from_str(body).unwrap(),
        serde_json::from_slice(&message.task_data.unwrap()).unwrap(),
    )
}

fn base64(text: &str) -> String {
    // The encoding that the wire format itself uses.
    serde_json::to_value(ContextData(text.as_bytes().to_vec()))
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn result_has_every_field_in_cafs_order_and_no_ended_tracking() {
    let fixture = Fixture::start(|_| {}).await;
    let task = fixture.task("");
    let data = base64(&String::from_utf8(task.task_data.clone().unwrap()).unwrap());
    let expected = format!(
        concat!(
            r#"{{"version":3,"taskId":"T.2","taskClassifier":"RangeItem","taskApiVersion":1,"taskData":"{}","#,
            r#""taskStatus":"RESULT_SUCCESS","context":{{"other/w":"a2VlcA=="}},"to":"{}","tracking":null,"#,
            r#""sourceInfo":{{"name":"worker-order","version":"1.4.0"}},"priority":null,"correlationId":"corr-42"}}"#
        ),
        data,
        fixture.pipe("out")
    );
    assert_eq!(fixture.output_of(&task).await, expected);
}

#[tokio::test]
async fn result_keeps_unended_tracking_in_cafs_order() {
    let fixture = Fixture::start(|_| {}).await;
    let mut task = fixture.task("");
    task.tracking.as_mut().unwrap().track_to = Some("elsewhere".into());
    let body = fixture.output_of(&task).await;
    let expected = format!(
        concat!(
            r#""tracking":{{"jobTaskId":"acme:reindex-7.2","lastStatusCheckTime":1767225600000,"statusCheckIntervalMillis":5000,"#,
            r#""statusCheckUrl":null,"trackingPipe":"{}","trackTo":"elsewhere"}},"sourceInfo""#
        ),
        fixture.pipe("tracking")
    );
    assert!(body.contains(&expected), "{body}");
}

#[tokio::test]
async fn subtasks_are_numbered_on_both_ids_and_the_final_one_has_a_star() {
    let fixture = Fixture::start(|_| {}).await;
    fixture.send(&fixture.task("split")).await;
    for id in ["2.1", "2.2"] {
        let item = fixture.next_message("items").await;
        let tracking = item.tracking.unwrap();
        assert_eq!(
            (item.task_id, tracking.job_task_id),
            (format!("T.{id}"), Some(format!("acme:reindex-7.{id}")))
        );
        assert_eq!(
            (item.task_status, item.to),
            (
                Some(TaskStatus::NewTask),
                Some(fixture.pipe("items").into())
            )
        );
        assert_eq!(
            (item.priority, item.correlation_id.as_deref()),
            (None, Some("corr-42"))
        );
        assert_eq!(tracking.track_to, Some(fixture.pipe("out").into()));
    }
    assert_eq!(fixture.next_message("out").await.task_id, "T.2.3*");
    let (_, payload) = fixture.next_report().await;
    assert_eq!(
        payload,
        json!({"trackingReports": [{"jobTaskId": "acme:reindex-7.2.3*", "status": "Complete", "estimatedPercentageCompleted": 0}]})
    );
}

#[tokio::test]
async fn each_output_is_reported_where_caf_style_reports_are_configured() {
    let fixture = Fixture::start(|settings| settings.zero_progress = true).await;
    fixture.send(&fixture.task("split")).await;
    let (_, payload) = fixture.next_report().await;
    let report = |id: &str, status: &str| json!({"jobTaskId": id, "status": status, "estimatedPercentageCompleted": 0});
    let expected = [
        report("acme:reindex-7.2.1", "Progress"),
        report("acme:reindex-7.2.2", "Progress"),
        report("acme:reindex-7.2.3*", "Complete"),
    ];
    assert_eq!(payload, json!({ "trackingReports": expected }));
}

#[tokio::test]
async fn pipe_names_are_compared_ignoring_case() {
    let fixture = Fixture::start(|_| {}).await;
    let mut task = fixture.task("");
    task.to = task.to.map(|to| to.to_uppercase().into());
    task.tracking.as_mut().unwrap().track_to = Some(fixture.pipe("OUT").into());
    let answer = TaskMessage::decode(fixture.output_of(&task).await.as_bytes()).unwrap();
    assert_eq!(
        (answer.to, answer.tracking),
        (Some(fixture.pipe("out").into()), None)
    );
    assert_eq!(
        fixture.next_report().await.1["trackingReports"][0]["status"],
        "Complete"
    );
}

#[tokio::test]
async fn report_has_cafs_envelope_and_no_unknown_field() {
    let fixture = Fixture::start(|_| {}).await;
    fixture.send(&fixture.task("fail")).await;
    let (mut envelope, mut payload) = fixture.next_report().await;
    assert!(uuid::Uuid::parse_str(envelope["taskId"].take().as_str().unwrap()).is_ok());
    envelope["taskData"].take();
    let expected = json!({
        "version": 3, "taskId": null, "taskClassifier": "TrackingReportTask", "taskApiVersion": 1, "taskData": null,
        "taskStatus": "NEW_TASK", "context": {}, "to": fixture.pipe("tracking"), "tracking": null, "sourceInfo": null, "priority": null,
        "correlationId": "corr-42"
    });
    assert_eq!(envelope, expected);
    let time = payload["trackingReports"][0]["failure"]["failureTime"].take();
    assert!(
        time.as_i64().is_some_and(|time| time > 1_767_225_600_000),
        "{time}"
    );
    let failure = json!({
        "failureId": "RESULT_EXCEPTION", "failureTime": null, "failureSource": "worker-order", "failureMessage": "boom"
    });
    let failed = json!({
        "jobTaskId": "acme:reindex-7.2", "status": "Failed", "estimatedPercentageCompleted": 0, "failure": failure
    });
    assert_eq!(payload, json!({ "trackingReports": [failed] }));
}

#[tokio::test]
async fn negative_result_is_complete_and_no_output_means_report_only() {
    let fixture = Fixture::start(|_| {}).await;
    let negative = TaskMessage::decode(
        fixture
            .output_of(&fixture.task("negative"))
            .await
            .as_bytes(),
    )
    .unwrap();
    assert_eq!(negative.task_status, Some(TaskStatus::ResultFailure));
    assert_eq!(
        fixture.next_report().await.1["trackingReports"][0]["status"],
        "Complete"
    );
    fixture.send(&fixture.task("end")).await;
    assert_eq!(
        fixture.next_report().await.1["trackingReports"][0]["status"],
        "Complete"
    );
}

#[tokio::test]
async fn invalid_input_is_raw_text_and_a_failure_is_a_json_string() {
    let fixture = Fixture::start(|_| {}).await;
    for (what, status, data) in [
        (
            "misunderstand",
            TaskStatus::InvalidTask,
            "Task failed validation",
        ),
        ("fail", TaskStatus::ResultException, r#""boom""#),
    ] {
        let answer =
            TaskMessage::decode(fixture.output_of(&fixture.task(what)).await.as_bytes()).unwrap();
        assert_eq!(answer.task_status, Some(status));
        assert_eq!(String::from_utf8(answer.task_data.unwrap()).unwrap(), data);
        // An error output has the type and version of the input.
        assert_eq!(
            (answer.task_classifier.as_deref(), answer.task_api_version),
            (Some("RangeItem"), 1)
        );
        assert_eq!(
            fixture.next_report().await.1["trackingReports"][0]["failure"]["failureId"],
            status.name()
        );
    }
    let classifier = TaskMessage {
        task_classifier: Some("Other".into()),
        ..fixture.task("")
    };
    let answer = TaskMessage::decode(fixture.output_of(&classifier).await.as_bytes()).unwrap();
    assert_eq!(
        String::from_utf8(answer.task_data.unwrap()).unwrap(),
        "Task of type Other found on queue for RangeItem"
    );
}

#[tokio::test]
async fn context_goes_with_results_but_not_with_subtasks_reports_or_copies() {
    let fixture = Fixture::start(|_| {}).await;
    let notes = |message: TaskMessage| message.context.into_keys().collect::<Vec<_>>();
    for (what, expected) in [
        ("note", &["caf/worker", "other/w"][..]),
        ("", &["other/w"]),
        ("misunderstand", &["other/w"]),
    ] {
        let answer = fixture.output_of(&fixture.task(what)).await;
        assert_eq!(
            notes(TaskMessage::decode(answer.as_bytes()).unwrap()),
            expected,
            "{what}"
        );
        assert_eq!(fixture.next_report().await.0["context"], json!({}));
    }
    fixture.send(&fixture.task("split")).await;
    assert_eq!(
        notes(fixture.next_message("items").await),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn worker_without_version_sends_the_version_unknown() {
    let fixture = Fixture::start(|settings| settings.version = Settings::new("w").version).await;
    let answer =
        TaskMessage::decode(fixture.output_of(&fixture.task("")).await.as_bytes()).unwrap();
    assert_eq!(
        answer.source_info.unwrap().version.as_deref(),
        Some("UNKNOWN")
    );
}

#[tokio::test]
async fn status_check_updates_both_times_in_all_outputs() {
    let fixture = Fixture::start(|_| {}).await;
    let caching = |cache: Option<&str>| {
        let answer = ResponseTemplate::new(200).set_body_string("\"Active\"");
        cache.map_or(answer.clone(), |cache| {
            answer.insert_header("cache-control", cache)
        })
    };
    for (number, cache, interval) in [
        (1, Some("no-transform, max-age=7"), 7000),
        (2, Some("max-age=3"), 3000),
        (3, None, 120_000),
    ] {
        fixture.set_status_response(caching(cache)).await;
        let sent = fixture.to_be_checked(number);
        let answer = TaskMessage::decode(fixture.output_of(&sent).await.as_bytes())
            .unwrap()
            .tracking
            .unwrap();
        assert!(answer.last_status_check_time > sent.tracking.unwrap().last_status_check_time);
        assert_eq!(answer.status_check_interval_millis, interval, "{cache:?}");
    }
}

#[tokio::test]
async fn only_a_definite_status_stops_a_task() {
    // The worker handles one message at a time, in order.
    let fixture = Fixture::start(|settings| settings.concurrency = 1).await;
    let body = |code: u16, body: &str| {
        ResponseTemplate::new(code)
            .set_body_string(body)
            .insert_header("cache-control", "max-age=60")
    };
    let mut number = 0;
    for (answer, is_done) in [
        (body(200, "Active"), true),
        (body(200, "\"Waiting\"\nmore"), true),
        (body(200, "\"Cancelled\""), false),
        (body(200, "Completed"), false),
        (body(200, "\"Failed\""), false),
        (
            body(404, r#"{"message":"ERROR: job_id {reindex-7} not found"}"#),
            false,
        ),
        (body(200, "active"), true),
        (body(200, ""), true),
        (body(503, "Cancelled"), true),
    ] {
        number += 1;
        fixture.set_status_response(answer).await;
        fixture.send(&fixture.to_be_checked(number)).await;
        // The output of the marker shows that the worker has handled the task before it.
        fixture
            .send(&TaskMessage {
                task_id: "marker".to_owned(),
                tracking: None,
                ..fixture.task("")
            })
            .await;
        let mut ids = Vec::new();
        while ids.len() < 1 + usize::from(is_done) {
            ids.push(fixture.next_message("out").await.task_id);
        }
        assert_eq!(
            ids.contains(&"T.2".to_owned()),
            is_done,
            "response {number}: {ids:?}"
        );
    }
}

#[tokio::test]
async fn diverted_message_is_unchanged_except_for_ended_tracking() {
    let fixture = Fixture::start(|_| {}).await;
    let mut sent: Value = serde_json::from_slice(&fixture.task("").encode()).unwrap();
    sent["to"] = fixture.pipe("next").into();
    sent["taskStatus"] = "RESULT_SUCCESS".into();
    sent["new"] = json!({"of": "a later version"});
    for ends in [false, true] {
        sent["tracking"]["trackTo"] = fixture.pipe(if ends { "NEXT" } else { "out" }).into();
        fixture
            .broker
            .publish(Outgoing::new(
                fixture.pipe("in"),
                serde_json::to_vec(&sent).unwrap(),
            ))
            .await
            .unwrap();
        let mut onward: Value = serde_json::from_str(&fixture.next("next").await).unwrap();
        if ends {
            assert_eq!(onward["tracking"], Value::Null);
            onward["tracking"] = sent["tracking"].clone();
        }
        assert_eq!(onward, sent);
    }
}

#[tokio::test]
async fn poison_task_fails_with_cafs_text_and_is_copied_under_a_new_id() {
    let fixture = Fixture::new().await;
    let sent = fixture.task("");
    // Requeues raise the delivery count, as crashes of processes that ran the task alone would.
    let mut suspects = fixture
        .broker
        .consume(&fixture.pipe("in.suspects"), 1)
        .await
        .unwrap();
    fixture
        .broker
        .publish(Outgoing::new(fixture.pipe("in.suspects"), sent.encode()))
        .await
        .unwrap();
    for _ in 0..12 {
        harness::in_time("a quarantined task", suspects.next())
            .await
            .unwrap()
            .requeue();
    }
    drop(suspects);
    fixture.run(|_| {});
    let result = fixture.next_message("out").await;
    assert_eq!(
        (result.task_id.as_str(), result.task_status),
        ("T.2", Some(TaskStatus::ResultException))
    );
    assert_eq!(
        String::from_utf8(result.task_data.unwrap()).unwrap(),
        r#""worker-order could not process the item.""#
    );
    assert_eq!(
        fixture.next_report().await.1["trackingReports"][0]["status"],
        "Failed"
    );
    let mut copy = fixture.next_message("reject").await;
    assert!(
        uuid::Uuid::parse_str(&copy.task_id).is_ok(),
        "{}",
        copy.task_id
    );
    copy.task_id.clone_from(&sent.task_id);
    let expected = TaskMessage {
        task_status: Some(TaskStatus::ResultException),
        context: BTreeMap::new(),
        to: Some(fixture.pipe("reject").into()),
        priority: None,
        ..sent
    };
    assert_eq!(copy, expected);
}

#[tokio::test]
async fn undecodable_body_goes_to_the_invalid_pipe_once() {
    let fixture = Fixture::start(|_| {}).await;
    for body in ["", "null", "[]", "{}", "no json", r#"{"taskId":null}"#] {
        fixture
            .broker
            .publish(Outgoing::new(fixture.pipe("in"), body.as_bytes().to_vec()))
            .await
            .unwrap();
        assert_eq!(fixture.next("invalid").await, body);
    }
    assert_eq!(
        fixture.broker.depth(&fixture.pipe("in")).await.unwrap(),
        0,
        "a message came back"
    );
}
