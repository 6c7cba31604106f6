//! Parts of a task that are done once, against a server that answers as job services and gateways
//! do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use contract::rest::{ERROR_HEADER, NOT_FOUND_HEADER};
use contract::{RangeItem, ReportStatus, TaskMessage, Tracking, TrackingReport};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Outgoing};
use framework::{Context, NoOutput, Reply, RetryPolicy, Settings, TaskError, Worker};
use serde_json::{Value, json};
use wiremock::matchers::{body_json, method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::repeating::{ended, failure, job_service};
use super::retries::run_until;

const MEMO: &str = "/v1/partitions/p/jobs/j/memos/3.7/charge";

/// Charges a card once, and then fails as often as it is told.
#[derive(Clone, Default)]
struct Shop {
    charged: Arc<AtomicU32>,
    failures: u32,
    runs: Arc<AtomicU32>,
}

impl Worker for Shop {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        let receipt = ctx.once("charge", async {
            Ok(self.charged.fetch_add(1, Ordering::SeqCst) + 1)
        });
        // Whatever the author makes of an error of `once`.
        if receipt.await.is_ok_and(|receipt| receipt != 1) {
            return Err(TaskError::failed("another receipt"));
        }
        if self.runs.fetch_add(1, Ordering::SeqCst) < self.failures {
            return Err(TaskError::retry("the mail does not go out"));
        }
        Ok(Reply::none())
    }
}

async fn answer(server: &MockServer, verb: &str, times: u64, response: ResponseTemplate) {
    Mock::given(method(verb))
        .and(path(MEMO))
        .and(query_param("n", "42"))
        .respond_with(response)
        .up_to_n_times(times)
        .mount(server)
        .await;
}

fn ok(body: Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

fn done() -> ResponseTemplate {
    ok(json!({"done": true, "result": "1"}))
}

fn not_done() -> ResponseTemplate {
    ok(json!({"done": false, "result": null}))
}

fn refused(status: u16, code: &str, message: &str) -> ResponseTemplate {
    let body = json!({ "message": message });
    let response = ResponseTemplate::new(status).set_body_json(body);
    response.insert_header(ERROR_HEADER, code)
}

/// Runs the task, and returns its reports.
async fn run(server: &MockServer, shop: Shop) -> Vec<TrackingReport> {
    // Another test may have installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pipes = Memory::new();
    pipes.publish(task(Some(server))).await.unwrap();
    let settings = Settings {
        retry: RetryPolicy::immediate().attempts(3),
        ..Settings::new("w")
    };
    run_until(&pipes, settings, shop, ended(&pipes)).await
}

fn task(server: Option<&MockServer>) -> Outgoing {
    let task: RangeItem = serde_json::from_value(json!({"number": 7})).unwrap();
    let tracking = Tracking {
        job_task_id: Some("p:j!42.3.7*".to_owned()),
        tracking_pipe: Some("tracking".into()),
        status_check_url: server
            .map(|server| format!("{}/v1/partitions/p/jobs/j/status?n=42", server.uri()))
            .map(Into::into),
        ..Tracking::default()
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "w-in", &task).unwrap()
    };
    Outgoing::new("w-in", message.encode())
}

fn is_complete(reports: &[TrackingReport]) -> bool {
    reports.last().unwrap().status == ReportStatus::Complete
}

#[tokio::test]
async fn part_that_is_done_is_passed_over_by_later_attempts() {
    let server = job_service().await;
    answer(&server, "GET", 1, not_done()).await;
    answer(&server, "GET", 9, done()).await;
    Mock::given(method("PUT"))
        .and(path(MEMO))
        .and(body_json(json!({"result": "1"})))
        .respond_with(done())
        .expect(1)
        .mount(&server)
        .await;
    let shop = Shop {
        failures: 2,
        ..Shop::default()
    };
    let reports = run(&server, shop.clone()).await;
    assert!(is_complete(&reports), "{reports:?}");
    assert_eq!(shop.runs.load(Ordering::SeqCst), 3);
    assert_eq!(shop.charged.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn part_is_not_done_before_a_job_service_says_that_it_is_not() {
    let server = job_service().await;
    // A gateway, and a job service that is elsewhere.
    answer(&server, "GET", 1, ok(json!({"status": "ok"}))).await;
    let elsewhere = refused(404, "URL_NOT_FOUND", "There is nothing at …");
    answer(&server, "GET", 1, elsewhere).await;
    answer(&server, "GET", 1, done()).await;
    let shop = Shop::default();
    let reports = run(&server, shop.clone()).await;
    assert!(is_complete(&reports), "{reports:?}");
    assert_eq!(shop.charged.load(Ordering::SeqCst), 0);
    assert!(reports.iter().all(|it| it.status != ReportStatus::Retry));
}

#[tokio::test]
async fn part_that_is_done_waits_until_its_result_is_kept() {
    let server = job_service().await;
    answer(&server, "GET", 1, not_done()).await;
    answer(&server, "PUT", 2, ResponseTemplate::new(502)).await;
    // Another process was faster.
    answer(&server, "PUT", 1, done()).await;
    let shop = Shop::default();
    let reports = run(&server, shop.clone()).await;
    assert!(is_complete(&reports), "{reports:?}");
    assert_eq!(shop.charged.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn task_fails_whose_part_cannot_be_remembered() {
    let server = job_service().await;
    let full = refused(
        409,
        "TOO_MANY_MEMOS",
        "The task has 100 memos; more are not kept.",
    );
    answer(&server, "GET", 1, full).await;
    let shop = Shop::default();
    let reports = run(&server, shop.clone()).await;
    let expected = "the part 'charge' is not done: The task has 100 memos; more are not kept.";
    assert_eq!(failure(&reports), expected);
    assert_eq!(shop.charged.load(Ordering::SeqCst), 0);

    let server = job_service().await;
    answer(&server, "GET", 1, not_done()).await;
    let large = refused(
        413,
        "BODY_TOO_LARGE",
        "The body is larger than 16384 bytes.",
    );
    answer(&server, "PUT", 1, large).await;
    let reports = run(&server, Shop::default()).await;
    let expected = "the part 'charge' is done, but its result is not kept: The body is larger than 16384 bytes.";
    assert_eq!(failure(&reports), expected);

    let server = job_service().await;
    let other = ok(json!({"done": true, "result": "\"a receipt of another type\""}));
    answer(&server, "GET", 1, other).await;
    let reports = run(&server, Shop::default()).await;
    let message = failure(&reports);
    assert!(
        message.starts_with("the part 'charge' was done before, but its result cannot be read: "),
        "{message}"
    );
}

#[tokio::test]
async fn task_of_a_job_that_has_ended_does_nothing() {
    for gone in [
        ResponseTemplate::new(404).insert_header(NOT_FOUND_HEADER, "job"),
        refused(409, "WRONG_JOB_STATUS", "The job 'j' has ended."),
    ] {
        let server = job_service().await;
        answer(&server, "GET", 1, gone).await;
        let shop = Shop::default();
        let pending = run(&server, shop.clone());
        let asked = harness::wait_for("the question", async || {
            let asked = server.received_requests().await.unwrap();
            let asked = asked.iter().filter(|it| it.url.path() == MEMO).count();
            if asked > 0 {
                Ok(asked)
            } else {
                Err("nobody has asked".to_owned())
            }
        });
        tokio::select! {
            reports = pending => panic!("{reports:?}"),
            asked = asked => assert_eq!(asked, 1),
        }
        assert_eq!(shop.charged.load(Ordering::SeqCst), 0);
    }
}
