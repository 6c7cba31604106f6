//! Splits in a later round of their job, against a server that answers as job services and gateways
//! do.

use std::collections::BTreeMap;

use contract::rest::NOT_FOUND_HEADER;
use contract::{
    RangeItem, ReportDetails, ReportStatus, SourceDigest, TaskMessage, Tracking, TrackingReport,
    TrackingReportTask, headers::REPORT_DETAILS_HEADER,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::{Context, NoOutput, Reply, RetryPolicy, Settings, Source, TaskError, Worker};
use serde_json::{Value, json};
use wiremock::matchers::{method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::retries::run_until;

/// Dispatches the numbers from 1 to that of its task.
#[derive(Clone, Copy)]
struct Counting;

impl Worker for Counting {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, task: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        ctx.repeatable(&source(task.number)).await?;
        ctx.expect_subtasks(u32::try_from(task.number).unwrap());
        for number in 1..=task.number {
            let params = BTreeMap::new();
            ctx.dispatch("items", &RangeItem { number, params }).await?;
        }
        Ok(Reply::none())
    }
}

fn source(numbers: u64) -> Source {
    let mut source = Source::new("the numbers");
    source.add(numbers.to_string());
    source
}

/// The digest of the source of six numbers: their length and themselves.
fn six() -> String {
    use sha2::{Digest as _, Sha256};
    let bytes: [u8; 32] = Sha256::digest([1, 0, 0, 0, 0, 0, 0, 0, b'6']).into();
    SourceDigest(bytes).to_string()
}

const SPLIT: &str = "/v1/partitions/p/jobs/j/splits/3";

pub async fn job_service() -> MockServer {
    let server = MockServer::start().await;
    let active = ResponseTemplate::new(200)
        .set_body_string("\"Active\"")
        .insert_header("cache-control", "max-age=60");
    Mock::given(path("/v1/partitions/p/jobs/j/status"))
        .respond_with(active)
        .mount(&server)
        .await;
    server
}

async fn answer(server: &MockServer, after: &str, times: u64, response: ResponseTemplate) {
    Mock::given(method("GET"))
        .and(path(SPLIT))
        .and(query_param("n", "42"))
        .and(query_param("r", "2"))
        .and(query_param("after", after))
        .respond_with(response)
        .up_to_n_times(times)
        .mount(server)
        .await;
}

fn ok(body: Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

/// Runs a task of six numbers with this id, and returns its reports and the ids of its subtasks.
async fn run(server: &MockServer, id: &str) -> (Vec<TrackingReport>, Vec<String>) {
    // Another test may have installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pipes = Memory::new();
    pipes.publish(task_of_six(server, id)).await.unwrap();
    let settings = Settings {
        retry: RetryPolicy::immediate().attempts(1),
        ..Settings::new("w")
    };
    let reports = run_until(&pipes, settings, Counting, ended(&pipes)).await;
    let depth = pipes.depth("items").await.unwrap();
    let mut consumer = pipes.consume("items", 10).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..depth {
        let delivery = harness::in_time("an item", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        ids.push(message.job_task_id().unwrap().to_owned());
        delivery.ack();
    }
    (reports, ids)
}

fn task_of_six(server: &MockServer, id: &str) -> Outgoing {
    let tracking = Tracking {
        job_task_id: Some(id.to_owned()),
        tracking_pipe: Some("tracking".into()),
        status_check_url: Some(
            format!("{}/v1/partitions/p/jobs/j/status?n=42&r=2", server.uri()).into(),
        ),
        ..Tracking::default()
    };
    let task = RangeItem {
        number: 6,
        params: BTreeMap::new(),
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "w-in", &task).unwrap()
    };
    Outgoing::new("w-in", message.encode())
}

/// Returns the reports of the task with their details, up to its end.
pub async fn ended(pipes: &Memory) -> Vec<TrackingReport> {
    let mut consumer = pipes.consume("tracking", 10).await.unwrap();
    let mut all = Vec::<TrackingReport>::new();
    let is_end = |report: &TrackingReport| {
        matches!(report.status, ReportStatus::Complete | ReportStatus::Failed)
    };
    while !all.iter().any(is_end) {
        let delivery = harness::in_time("a report", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        let task: TrackingReportTask = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
        let mut reports = task.tracking_reports;
        if let Some(HeaderValue::Text(details)) = delivery.headers.get(REPORT_DETAILS_HEADER) {
            ReportDetails::add_to(details, &mut reports);
        }
        delivery.ack();
        all.extend(reports);
    }
    all
}

fn digest_of(reports: &[TrackingReport]) -> Option<String> {
    let size = reports.iter().find(|it| it.job_task_id.ends_with("3.7*"));
    size.unwrap().digest.map(|digest| digest.to_string())
}

pub fn failure(reports: &[TrackingReport]) -> String {
    let failed = reports.iter().find_map(|it| it.failure.as_ref());
    failed.unwrap().failure_message.clone().unwrap()
}

#[tokio::test]
async fn first_round_states_the_digest_and_asks_nothing() {
    let server = job_service().await;
    let (reports, ids) = run(&server, "p:j!42.3").await;
    assert_eq!(digest_of(&reports), Some(six()));
    assert_eq!(ids.len(), 6);
    let asked = server.received_requests().await.unwrap();
    assert!(asked.iter().all(|it| it.url.path().ends_with("/status")));
}

#[tokio::test]
async fn later_round_passes_over_what_is_done_and_keeps_the_numbers() {
    let server = job_service().await;
    let page = |done: Value, up_to: Value| {
        ok(json!({"known": true, "digest": six(), "round": 1, "done": done, "upTo": up_to}))
    };
    let first = page(
        json!([{"first": 1, "last": 1}, {"first": 3, "last": 4}]),
        json!(4),
    );
    // A gateway and a service that is starting answer first.
    answer(&server, "0", 1, ResponseTemplate::new(502)).await;
    answer(
        &server,
        "0",
        1,
        ResponseTemplate::new(404).set_body_string("no route"),
    )
    .await;
    answer(&server, "0", 1, first).await;
    answer(
        &server,
        "4",
        1,
        page(json!([{"first": 6, "last": 6}]), Value::Null),
    )
    .await;
    let (reports, ids) = run(&server, "p:j!42r2.3").await;
    assert_eq!(ids, ["p:j!42r2.3.2", "p:j!42r2.3.5"]);
    assert_eq!(digest_of(&reports), Some(six()));
    let last = reports.last().unwrap();
    assert_eq!(
        (last.job_task_id.as_str(), last.status),
        ("p:j!42r2.3.7*", ReportStatus::Complete)
    );
    assert!(reports.iter().all(|it| it.status != ReportStatus::Retry));
}

#[tokio::test]
async fn task_for_which_nobody_answers_does_not_keep_others_waiting() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (server, pipes) = (job_service().await, Memory::new());
    for id in ["p:j!42r2.3", "p:j!42.5"] {
        pipes.publish(task_of_six(&server, id)).await.unwrap();
    }
    let settings = Settings {
        concurrency: 1,
        ..Settings::new("w")
    };
    let reports = run_until(&pipes, settings, Counting, ended(&pipes)).await;
    assert_eq!(reports.last().unwrap().job_task_id, "p:j!42.5.7*");
}

#[tokio::test]
async fn split_of_which_nothing_is_known_is_dispatched_whole() {
    for (state, digest) in [
        (json!({"known": false, "done": []}), Some(six())),
        // Somebody has made it, from what is not known.
        (json!({"known": true, "digest": null, "done": []}), None),
    ] {
        let server = job_service().await;
        answer(&server, "0", 1, ok(state)).await;
        let (reports, ids) = run(&server, "p:j!42r2.3").await;
        assert_eq!((digest_of(&reports), ids.len()), (digest, 6));
    }
}

#[tokio::test]
async fn another_source_fails_the_split_by_name() {
    for (state, expected) in [
        (
            json!({"known": true, "digest": "ab".repeat(32), "round": 1, "done": [{"first": 1, "last": 1}]}),
            "the source of task 3 has changed since round 1: the numbers. ",
        ),
        (
            json!({"known": true, "digest": six(), "round": 1, "contradictory": true, "done": []}),
            "the source of task 3 has changed within round 1: the numbers. ",
        ),
    ] {
        let server = job_service().await;
        answer(&server, "0", 1, ok(state)).await;
        let (reports, ids) = run(&server, "p:j!42r2.3").await;
        let message = failure(&reports);
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(reports[0].job_task_id, "p:j!42r2.3");
        assert!(ids.is_empty());
    }
}

#[tokio::test]
async fn task_of_a_job_that_is_gone_dispatches_nothing() {
    let server = job_service().await;
    let gone = ResponseTemplate::new(404).insert_header(NOT_FOUND_HEADER, "job");
    answer(&server, "0", 1, gone).await;
    let pending = run(&server, "p:j!42r2.3");
    let asked = harness::wait_for("the question", async || {
        let asked = server.received_requests().await.unwrap();
        let asked = asked.iter().filter(|it| it.url.path() == SPLIT).count();
        if asked > 0 {
            Ok(asked)
        } else {
            Err("nobody has asked".to_owned())
        }
    });
    tokio::select! {
        (reports, _) = pending => panic!("{reports:?}"),
        asked = asked => assert_eq!(asked, 1),
    }
}
