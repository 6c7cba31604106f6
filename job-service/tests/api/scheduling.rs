//! The start of jobs as clients and workers see it: delays, prerequisites, suspended partitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::{ReportFailure, TaskMessage};
use framework::broker::Broker as _;
use framework::broker::memory::Memory;
use futures_util::future::join_all;
use harness::wait_for;
use job_service::JobService;
use reqwest::Method;
use serde_json::{Value, json};
use store::{EventKind, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::service::{Answer, Backend, Service, new_job, options};

on_both_databases![two_services_on_one_store_send_each_start_message_once,];

fn job(pipe: &str) -> Value {
    let mut job = new_job();
    job["task"]["taskPipe"] = json!(pipe);
    job
}

fn after(pipe: &str, prerequisites: &[&str]) -> Value {
    let mut job = job(pipe);
    job["prerequisiteJobIds"] = json!(prerequisites);
    job
}

async fn complete(service: &Service, job: &str) {
    service.report(job, "", EventKind::Complete).await;
}

async fn message(service: &Service, pipe: &str) -> TaskMessage {
    let mut consumer = service.broker.consume(pipe, 1).await.unwrap();
    let delivery = harness::in_time("a message", consumer.next())
        .await
        .unwrap();
    let message = TaskMessage::decode(&delivery.body()).unwrap();
    delivery.ack();
    message
}

#[tokio::test]
async fn job_starts_with_its_own_request_when_its_prerequisites_are_completed() {
    let service = Service::start().await;
    service.put("a", &job("in")).await.is(201);
    message(&service, "in").await;
    let mut waiting = after("next", &["a", "later"]);
    (
        waiting["task"]["taskData"],
        waiting["task"]["taskDataEncoding"],
    ) = (json!("AP/+gA=="), json!("base64"));
    let request = service
        .request(Method::PUT, &service.path("/jobs/j"))
        .header("CAF-Correlation-Id", "corr-42");
    Answer::of(request.body(waiting.to_string())).await.is(201);
    let state = service.get("/jobs/j").await.json();
    assert_eq!(
        state["waitingFor"],
        json!([{"jobId": "a", "status": "Waiting"}, {"jobId": "later", "status": null}])
    );
    assert_eq!(
        (&state["status"], &state["dueTime"], &state["suspended"]),
        (&json!("Waiting"), &Value::Null, &Value::Null)
    );
    complete(&service, "a").await;
    service.put("later", &job("in")).await.is(201);
    complete(&service, "later").await;
    let start = message(&service, "next").await;
    assert_eq!(
        (start.correlation_id.as_deref(), start.task_data),
        (Some("corr-42"), Some(vec![0, 0xff, 0xfe, 0x80]))
    );
    assert_eq!(
        service.get("/jobs/j").await.json()["waitingFor"],
        Value::Null
    );
}

#[tokio::test]
async fn job_that_could_never_start_is_refused_with_the_reason() {
    let service = Service::start().await;
    for id in ["b", "a", "gone"] {
        service.put(id, &job("in")).await.is(201);
    }
    for id in ["b", "a"] {
        let failed = EventKind::Failed(ReportFailure::default());
        service.report(id, "", failed).await;
    }
    service.cancel("gone").await.is(204);
    service.put("c", &after("in", &["d"])).await.is(201);
    for (prerequisites, text) in [
        (
            &["b", "a", "gone"][..],
            "One or more prerequisite jobs have failed. Failed Job IDs: a, b",
        ),
        (
            &["gone"],
            "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: gone",
        ),
        (&["c"], "The job would wait for itself: d -> c -> d"),
    ] {
        service
            .put("d", &after("in", prerequisites))
            .await
            .refuses(400, text);
    }
}

#[tokio::test]
async fn delay_is_applied_and_shown() {
    let service = Service::start().await;
    let mut soon = job("soon");
    soon["delay"] = json!(1);
    service.put("soon", &soon).await.is(201);
    let state = service.get("/jobs/soon").await.json();
    assert_eq!(state["delay"], 1);
    let due = state["dueTime"].as_i64().unwrap();
    message(&service, "soon").await;
    let now = framework::clock::Clock::system().now_millis();
    assert!(now >= due - 50, "sent {now}, due {due}");
    assert!(
        due >= state["createTime"].as_i64().unwrap() + 950,
        "{state}"
    );
}

#[tokio::test]
async fn suspended_job_waits_until_its_partition_is_dispatched() {
    let service = Service::start_configured(|options| {
        options.suspended_partitions = Some("p-.*".parse().unwrap());
    })
    .await;
    service.put("a", &job("in")).await.is(201);
    service.put("b", &after("next", &["a"])).await.is(201);
    assert_eq!(service.get("/jobs/a").await.json()["suspended"], true);
    let dispatch = async || service.post("/dispatch").await.is(200).json();
    assert_eq!(dispatch().await, json!({"jobsReleased": 2}));
    message(&service, "in").await;
    let state = service.get("/jobs/b").await.json();
    assert_eq!(
        (&state["suspended"], &state["waitingFor"][0]["jobId"]),
        (&Value::Null, &json!("a"))
    );
    let nowhere = format!("{}/partitions/a.b/dispatch", job_service::BASE_PATH);
    service.call(Method::POST, &nowhere, None).await.is(400);
}

async fn two_services_on_one_store_send_each_start_message_once(backend: Backend) {
    const JOBS: usize = 150;
    let service = Service::start_on(backend).await;
    // A second process, if the database allows one.
    let store = match backend {
        Backend::Postgres => Store::open(service.database_url()).await.unwrap(),
        Backend::Sqlite => service.store.clone(),
    };
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let other = JobService::new(
        store,
        Arc::new(service.broker.clone()),
        options(&service.root),
    );
    let token = stop.clone();
    tracker.spawn(async move { other.run_background(token).await });
    tracker.close();
    service.put("first", &job("first")).await.is(201);
    for chunk in (0..JOBS).collect::<Vec<_>>().chunks(10) {
        let (service, chunk) = (&service, chunk.to_vec());
        join_all(chunk.into_iter().map(|n| async move {
            let id = format!("j{n}");
            // One commit releases half of the jobs.
            let new = if n % 2 == 0 {
                job("in")
            } else {
                after("in", &["first"])
            };
            service.put(&id, &new).await.is(201);
        }))
        .await;
    }
    complete(&service, "first").await;
    wait_for("the outbox to be empty", async || {
        match service.store.outbox(10).await {
            Ok(left) if left.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    stop.cancel();
    harness::in_time("the service to end", tracker.wait()).await;
    assert_eq!(service.broker.depth("in").await.unwrap(), JOBS as u64);
    assert_eq!(different_jobs(&service.broker, "in", JOBS).await, JOBS);
}

async fn different_jobs(broker: &Memory, pipe: &str, messages: usize) -> usize {
    let mut consumer = broker.consume(pipe, 1000).await.unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..messages {
        let delivery = harness::in_time("a message", consumer.next())
            .await
            .unwrap();
        seen.insert(
            TaskMessage::decode(&delivery.body())
                .unwrap()
                .job_task_id()
                .unwrap()
                .to_owned(),
        );
        delivery.ack();
    }
    seen.len()
}
