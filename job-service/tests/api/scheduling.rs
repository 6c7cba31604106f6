//! The start of jobs as clients and workers see it: delays, prerequisites, suspended partitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::{ReportFailure, TaskMessage};
use framework::broker::memory::Memory;
use framework::broker::{Broker as _, Event};
use futures_util::future::join_all;
use harness::{in_time, wait_for};
use job_service::JobService;
use reqwest::Method;
use serde_json::{Value, json};
use store::{EventKind, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::service::{Answer, Backend, Service, new_job, options};

on_both_databases![
    two_services_on_one_store_send_each_start_message_once,
    thousand_concurrent_requests_are_answered_as_if_sequential,
];

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

async fn fail(service: &Service, job: &str) {
    let failure = ReportFailure {
        failure_id: Some("TORN".into()),
        failure_time: Some(7),
        failure_source: Some("worker-pages".into()),
        failure_message: Some("the page is torn".into()),
        item: None,
        run: None,
    };
    service.report(job, "", EventKind::Failed(failure)).await;
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

/// Checks that the pipe is empty after a later job's message has arrived in another pipe.
async fn no_message_arrived(service: &Service, pipe: &str) {
    let marker = harness::unique("marker");
    service.put(&marker, &job(&marker)).await.is(201);
    message(service, &marker).await;
    assert_eq!(service.broker.depth(pipe).await.unwrap(), 0);
}

#[tokio::test]
async fn job_starts_with_its_own_request_when_its_prerequisites_are_completed() {
    let service = Service::start().await;
    service.put("a", &job("in")).await.is(201);
    message(&service, "in").await;
    let mut waiting = after("next", &["a", " ", "a,pc", "later", "nobody,pc"]);
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
    no_message_arrived(&service, "next").await;
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
    no_message_arrived(&service, "next").await;
}

#[tokio::test]
async fn job_with_completed_or_optional_prerequisites_starts_at_once() {
    let service = Service::start().await;
    service.put("a", &job("in")).await.is(201);
    complete(&service, "a").await;
    service
        .put("j", &after("next", &["a", "nobody,pc"]))
        .await
        .is(201);
    assert_eq!(
        message(&service, "next").await.job_task_id(),
        Some(format!("{}:j", service.partition).as_str())
    );
}

#[tokio::test]
async fn job_that_could_never_start_is_refused_with_the_reason() {
    let service = Service::start().await;
    for id in ["b", "a", "gone"] {
        service.put(id, &job("in")).await.is(201);
    }
    fail(&service, "b").await;
    fail(&service, "a").await;
    service.cancel("gone").await.is(204);
    service.put("c", &after("in", &["d"])).await.is(201);
    for (prerequisites, text) in [
        (
            &["b", "a", "gone"][..],
            "One or more prerequisite jobs have failed. Failed Job IDs: a, b",
        ),
        (
            &["gone", "nobody"],
            "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: gone",
        ),
        (&["c"], "The job would wait for itself: d -> c -> d"),
        (&["d"], "The job would wait for itself: d -> d"),
    ] {
        service
            .put("d", &after("in", prerequisites))
            .await
            .refuses(400, text);
    }
    let bad = service.put("d", &after("in", &["x:y"])).await;
    assert!(
        bad.error()
            .starts_with("The prerequisite job id 'x:y' is no job id: "),
        "{bad:?}"
    );
    service.get("/jobs/d").await.is(404);
}

#[tokio::test]
async fn delay_is_applied_and_shown() {
    let service = Service::start().await;
    for (id, delay) in [
        ("null", Value::Null),
        ("negative", json!(-5)),
        ("zero", json!(0)),
    ] {
        let mut now = job(id);
        now["delay"] = delay;
        service.put(id, &now).await.is(201);
        message(&service, id).await;
        assert_eq!(
            service.get(&format!("/jobs/{id}")).await.json()["delay"],
            Value::Null
        );
    }
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
async fn prerequisites_and_delay_are_part_of_the_request() {
    let service = Service::start().await;
    service
        .put("j", &after("in", &["b", "a,pc", "c"]))
        .await
        .is(201);
    service
        .put("j", &after("in", &["c", "", "a", "b", "a,x,pc", "b"]))
        .await
        .is(204);
    service
        .put("j", &after("in", &["c", "a", "b"]))
        .await
        .refuses(403, "Job already exists");
    let mut delayed = after("in", &["b", "a,pc", "c"]);
    delayed["delay"] = json!(1);
    service
        .put("j", &delayed)
        .await
        .refuses(403, "Job already exists");
}

#[tokio::test]
async fn failure_and_cancellation_reach_all_dependents_and_are_announced() {
    let service = Service::start().await;
    service.put("root", &job("in")).await.is(201);
    service.put("b", &after("next", &["root"])).await.is(201);
    service.put("a", &after("next", &["b"])).await.is(201);
    fail(&service, "root").await;
    let state = service.get("/jobs/a").await.json();
    assert_eq!(
        (&state["status"], &state["percentageComplete"]),
        (&json!("Failed"), &json!(0.0))
    );
    let failure = &state["failures"][0];
    assert_eq!(
        failure["failureSource"],
        format!("{}:root:worker-pages", service.partition)
    );
    assert_eq!(
        (&failure["failureId"], &failure["failureMessage"]),
        (&json!("TORN"), &json!("the page is torn"))
    );

    service.put("m", &job("in")).await.is(201);
    service.put("n", &after("next", &["m"])).await.is(201);
    service.put("o", &after("next", &["n"])).await.is(201);
    let mut heard = service.broker.announcements().await.unwrap();
    service.cancel("m").await.is(204);
    for id in ["m", "n", "o"] {
        assert_eq!(
            service.get(&format!("/jobs/{id}/status")).await.json(),
            "Cancelled",
            "{id}"
        );
    }
    let announcement = loop {
        if let Event::Message(body) = harness::in_time("an announcement", heard.next())
            .await
            .unwrap()
        {
            break body;
        }
    };
    let announcement: Value = serde_json::from_slice(&announcement).unwrap();
    let announced: BTreeSet<&str> = announcement["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job.as_str().unwrap())
        .collect();
    let all = ["m", "n", "o"].map(|id| format!("{}:{id}", service.partition));
    assert_eq!(announced, all.iter().map(String::as_str).collect());
    service.put("x", &job("in")).await.is(201);
    service.put("y", &after("next", &["x"])).await.is(201);
    service.delete("x").await.is(204);
    assert_eq!(service.get("/jobs/y/status").await.json(), "Cancelled");
    no_message_arrived(&service, "next").await;
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
    // Another partition does not match the pattern.
    let elsewhere = format!(
        "{}/partitions/x{}",
        job_service::BASE_PATH,
        service.partition
    );
    service
        .call(
            Method::PUT,
            &format!("{elsewhere}/jobs/j"),
            Some(job("other").to_string()),
        )
        .await
        .is(201);
    message(&service, "other").await;
    assert_eq!(service.broker.depth("in").await.unwrap(), 0);
    assert_eq!(
        service
            .call(Method::POST, &format!("{elsewhere}/dispatch"), None)
            .await
            .is(200)
            .json(),
        json!({"jobsReleased": 0})
    );
    let dispatch = async || {
        service
            .call(Method::POST, &service.path("/dispatch"), None)
            .await
            .is(200)
            .json()
    };
    assert_eq!(dispatch().await, json!({"jobsReleased": 2}));
    message(&service, "in").await;
    assert_eq!(dispatch().await, json!({"jobsReleased": 0}));
    let state = service.get("/jobs/b").await.json();
    assert_eq!(
        (&state["suspended"], &state["waitingFor"][0]["jobId"]),
        (&Value::Null, &json!("a"))
    );
    complete(&service, "a").await;
    message(&service, "next").await;
    service
        .call(
            Method::POST,
            &format!("{}/partitions/a.b/dispatch", job_service::BASE_PATH),
            None,
        )
        .await
        .is(400);
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

async fn thousand_concurrent_requests_are_answered_as_if_sequential(backend: Backend) {
    let service = Service::start_on(backend).await;
    let bodies = ["one", "two"].map(|name| {
        let mut job = job("in");
        job["name"] = json!(name);
        job
    });
    let (service, bodies) = (&service, &bodies);
    // A machine that is too slow for a thousand requests in ten seconds refuses some of them, or
    // closes their connections, and their client repeats them.
    let answers = (0..1000).map(|n| async move {
        loop {
            let request = service.request(Method::PUT, &service.path("/jobs/j"));
            let request = request
                .header("Content-Type", "application/json")
                .body(bodies[n % 2].to_string());
            match Answer::or_none(request).await {
                Ok(answer) if answer.status == 503 => {}
                Ok(answer) => return (n % 2, answer.status.as_u16()),
                Err(error) => assert!(error.is_request(), "{error:?}"),
            }
        }
    });
    let answers = in_time("a thousand answers", join_all(answers)).await;
    let winner = answers.iter().find(|(_, status)| *status == 201).unwrap().0;
    let count = |kind: usize, status: u16| {
        answers
            .iter()
            .filter(|answer| **answer == (kind, status))
            .count()
    };
    assert_eq!(
        (
            count(winner, 201),
            count(winner, 204),
            count(1 - winner, 403)
        ),
        (1, 499, 500)
    );
    message(service, "in").await;
    assert_eq!(
        service.get("/jobs/j").await.json()["name"],
        ["one", "two"][winner]
    );
    no_message_arrived(service, "in").await;
}
