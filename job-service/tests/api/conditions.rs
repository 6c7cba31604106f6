//! Conditions that tasks wait for: tested, shown, steered, and what a job says of them.

use contract::headers::FULL_CONDITIONS_HEADER;
use contract::{Condition, ConditionCode, JobTaskId, Tester};
use framework::broker::Broker;
use harness::wait_for;
use job_service::ConditionTarget;
use reqwest::Method;
use serde_json::{Value, json};
use store::{Blocking, EventKind, NewBlock, ParkedTask, Store, StoreOptions};

use crate::list;
use crate::service::{Answer, Backend, Service, new_job};
use crate::watch::Watcher;

pub async fn call(service: &Service, method: Method, path: &str) -> Answer {
    service
        .call(method, &format!("/job-service/v1{path}"), None)
        .await
}

fn condition() -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE).because("connection refused")
}

/// Creates a job of three items, of which none has ended.
pub async fn with_items(service: &Service, job: &str) {
    let mut new = new_job();
    new["onFailure"] = json!({"continue": {"tolerate": 3}});
    service.put(job, &new).await.is(201);
    let stated = EventKind::Announced {
        stated: Some(contract::Announced {
            batches: 0,
            items: Some(3),
        }),
        digest: None,
    };
    service.report(job, ".4*", stated).await;
    service.report(job, ".4*", EventKind::Complete).await;
}

/// Lets tasks of a job wait for the condition.
pub async fn block(
    service: &Service,
    job: &str,
    tasks: &[u32],
    number: u32,
    condition: &Condition,
) {
    let block = |task: &u32| NewBlock {
        task: JobTaskId::parse(&format!("{}:{job}.{task}", service.partition)).unwrap(),
        identity: vec![1],
        number,
        condition: condition.clone(),
        message: ParkedTask {
            pipe: "w-in".to_owned(),
            body: format!("task {task}").into(),
            headers: std::collections::BTreeMap::default(),
        },
    };
    let blocks: Vec<NewBlock> = tasks.iter().map(block).collect();
    let outcomes = service.store.block_tasks(&blocks).await.unwrap();
    assert!(
        outcomes.iter().all(|it| *it == Blocking::Waits),
        "{outcomes:?}"
    );
}

async fn found(service: &Service, path: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_for("the condition", async || {
        let found = call(service, Method::GET, path).await.json();
        if is_it(&found) {
            Ok(found)
        } else {
            Err(found.to_string())
        }
    })
    .await
}

on_both_databases![
    canary_is_let_go_when_a_person_asks_for_a_test_and_the_others_follow_it,
    watcher_of_a_job_sees_what_happens_to_the_conditions_that_block_it,
];

async fn canary_is_let_go_when_a_person_asks_for_a_test_and_the_others_follow_it(backend: Backend) {
    let service = Service::start_on(backend).await;
    with_items(&service, "j").await;
    let condition = condition().tested_by(Tester::PostgreSql {
        database: "orders".to_owned(),
    });
    let condition = condition.unwrap();
    block(&service, "j", &[1, 2, 3], 1, &condition).await;
    let path = format!("/conditions/{}", condition.key());

    let shown = call(&service, Method::GET, &path).await.is(200).json();
    let since = shown["since"].as_i64().unwrap();
    let expected = json!({
        "key": condition.key().as_str(), "code": "DATABASE_NOT_AVAILABLE", "tester": {"kind": "postgresql", "database": "orders"},
        "policy": "stepwise,steps=2x10s/10x20s/10x1m/100x2m/5m,attempts=none,within=2d", "reason": "connection refused",
        "since": since, "state": "waiting", "tests": 0, "nextTest": since + 10_000, "expires": since + 2 * 86_400_000, "tasks": 3,
        "jobs": {format!("{}:j", service.partition): 3}
    });
    assert_eq!(shown, expected);
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["status"], "Active");
    let blocked = json!({
        "tasks": 3, "since": job["blocked"]["since"], "nothingElseUnderWay": true, "conditions": [{
            "key": condition.key().as_str(), "code": "DATABASE_NOT_AVAILABLE", "reason": "connection refused", "since": since, "tasks": 3, "tests": 0,
            "nextTest": since + 10_000
        }]
    });
    assert_eq!(job["blocked"], blocked);
    let listed = service.get("/jobs?filter=blockedTasks%3E0").await.json();
    let blocked =
        json!({"tasks": 3, "since": job["blocked"]["since"], "nothingElseUnderWay": true});
    assert_eq!(listed[0]["blocked"], blocked);

    let mut consumer = service.broker.consume("w-in", 10).await.unwrap();
    call(&service, Method::POST, &format!("{path}:test"))
        .await
        .is(200);
    let canary = harness::in_time("the canary", consumer.next())
        .await
        .unwrap();
    assert_eq!(canary.body().as_ref(), b"task 1");
    let shown = found(&service, &path, |it| it["state"] == "canary").await;
    let why =
        "a canary runs: the operator has set up no database \"orders\" (--condition-databases)";
    assert_eq!(
        (&shown["tests"], &shown["lastResult"], &shown["tasks"]),
        (&json!(1), &json!(why), &json!(2))
    );

    service.report("j", ".1", EventKind::Complete).await;
    for task in ["task 2", "task 3"] {
        let next = harness::in_time("a task", consumer.next()).await.unwrap();
        assert_eq!(next.body().as_ref(), task.as_bytes());
    }
    let shown = found(&service, &path, |it| it["tasks"] == 0).await;
    assert_eq!(
        (&shown["state"], &shown["lastResult"]),
        (&json!("releasing"), &json!("the canary has ended"))
    );
    assert!(service.get("/jobs/j").await.json().get("blocked").is_none());
}

#[tokio::test]
async fn tasks_are_released_or_fail_when_a_person_says_so() {
    let service = Service::start().await;
    with_items(&service, "j").await;
    let path = format!("/conditions/{}", condition().key());
    block(&service, "j", &[1], 1, &condition()).await;
    let mut consumer = service.broker.consume("w-in", 10).await.unwrap();
    call(&service, Method::POST, &format!("{path}/release"))
        .await
        .is(200);
    let next = harness::in_time("the task", consumer.next()).await.unwrap();
    assert_eq!(next.body().as_ref(), b"task 1");
    next.ack();
    // It is blocked again, and so is another one. The condition waits for its next test.
    block(&service, "j", &[1], 2, &condition()).await;
    block(&service, "j", &[2], 1, &condition()).await;
    found(&service, &path, |it| {
        it["state"] == "waiting" && it["tasks"] == 2
    })
    .await;

    call(&service, Method::POST, &format!("{path}:fail"))
        .await
        .is(200);
    found(&service, &path, |it| it["message"].is_string()).await;
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["failureCounts"], json!({"DATABASE_NOT_AVAILABLE": 2}));
    let message = job["failures"][0]["failureMessage"].as_str().unwrap();
    let (begin, end) = (
        "the condition DATABASE_NOT_AVAILABLE was given up after ",
        ": connection refused; last result: ",
    );
    assert!(
        message.starts_with(begin) && message.contains(end),
        "{message}"
    );
}

#[tokio::test]
async fn conditions_are_listed_by_code_and_job_page_by_page() {
    let service = Service::start().await;
    with_items(&service, "j").await;
    let other: ConditionCode = "LICENCE_IN_USE".parse().unwrap();
    block(&service, "j", &[1], 1, &condition()).await;
    block(&service, "j", &[2], 1, &Condition::new(other)).await;
    let list = async |query: &str| {
        let list = call(&service, Method::GET, &format!("/conditions{query}")).await;
        let list = list.is(200).json();
        let codes = list["conditions"].as_array().unwrap().iter();
        let codes: Vec<String> = codes
            .map(|it| it["code"].as_str().unwrap().to_owned())
            .collect();
        (codes, list["next"].as_str().map(str::to_owned))
    };
    let (all, next) = list("").await;
    assert_eq!((all.len(), next), (2, None));
    assert_eq!(list("?code=LICENCE_IN_USE").await.0, ["LICENCE_IN_USE"]);
    assert_eq!(list("?job=other").await.0, [""; 0]);
    assert_eq!(
        list(&format!("?job=j&partition={}", service.partition))
            .await
            .0,
        all
    );
    let (first, next) = list("?limit=1").await;
    let (second, end) = list(&format!("?limit=1&after={}", next.unwrap())).await;
    assert_eq!(([first, second].concat(), end), (all, None));

    for (method, path, status, message) in [
        (
            Method::GET,
            "/conditions?jobs=j",
            400,
            "The parameter 'jobs' is unknown.",
        ),
        (
            Method::GET,
            "/conditions?code=%00",
            400,
            "The parameter 'code' contains the character U+0000.",
        ),
        (
            Method::GET,
            "/conditions/x",
            400,
            "\"x\" is not the key of a condition; expected 32 hexadecimal digits.",
        ),
        (
            Method::POST,
            "/conditions/00000000000000000000000000000000:test",
            404,
            "There is no condition 00000000000000000000000000000000.",
        ),
    ] {
        call(&service, method, path).await.refuses(status, message);
    }
}

#[tokio::test]
async fn tasks_of_one_condition_too_many_wait_together_which_the_health_and_the_workers_are_told() {
    let one = StoreOptions {
        max_conditions: 1,
        ..StoreOptions::default()
    };
    let store = Store::temporary(one);
    let service = Service::start_configured_over(store, |options| options.most_blocked = 2).await;
    with_items(&service, "j").await;
    block(&service, "j", &[1], 1, &condition()).await;
    for task in [2, 3] {
        let random = condition().parameter("task", task.to_string()).unwrap();
        block(&service, "j", &[task], 1, &random).await;
    }
    let listed = call(
        &service,
        Method::GET,
        "/conditions?code=TOO_MANY_CONDITIONS",
    )
    .await;
    let listed = listed.is(200).json();
    let common = &listed["conditions"][0];
    assert_eq!(
        (&common["tasks"], &common["policy"], &common["expires"]),
        (
            &json!(2),
            &json!("constant,delay=1m,attempts=none,within=none"),
            &Value::Null
        )
    );
    let status = service.get("/jobs/j/status").await;
    let full = format!("* {}", common["key"].as_str().unwrap());
    assert_eq!(status.header(FULL_CONDITIONS_HEADER), full);
    let health = service.call(Method::GET, "/health-check?name=conditions", None);
    let health = health.await.is(200).json();
    assert_eq!(health[0]["degraded"], true, "{health}");
    let message = health[0]["message"].as_str().unwrap();
    assert!(message.starts_with("2 tasks wait together"), "{message}");
}

async fn watcher_of_a_job_sees_what_happens_to_the_conditions_that_block_it(backend: Backend) {
    let port = harness::free_port();
    let target: ConditionTarget = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let service = Service::start_with(backend, |options| {
        options.conditions.private_targets = vec![target];
    })
    .await;
    with_items(&service, "j").await;
    let nobody_listens = Tester::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    };
    let condition = condition().tested_by(nobody_listens).unwrap();
    let mut watcher = Watcher::of(&service, "j").await;
    assert_eq!(watcher.next().await.unwrap()["blocked"], Value::Null);
    block(&service, "j", &[1, 2, 3], 1, &condition).await;
    let seen = watcher.next().await.unwrap();
    assert_eq!(seen["blocked"]["nothingElseUnderWay"], true);
    assert_eq!(seen["blocked"]["conditions"][0]["tests"], 0);
    // A test that does not pass changes nothing of the job itself.
    let path = format!("/conditions/{}/test", condition.key());
    call(&service, Method::POST, &path).await.is(200);
    let seen = async {
        loop {
            let seen = watcher.next().await.unwrap();
            if seen["blocked"]["conditions"][0]["tests"] == 1 {
                break seen;
            }
        }
    };
    let seen = harness::in_time("the test to be seen", seen).await;
    assert_eq!(seen["status"], "Active");
}

/// A job of which all open tasks wait is found by what people are shown, and is Active to everybody
/// else.
#[tokio::test]
async fn job_that_is_shown_as_blocked_is_found_counted_and_on_a_tab_of_its_own() {
    let service = Service::start().await;
    with_items(&service, "all-wait").await;
    block(&service, "all-wait", &[1, 2, 3], 1, &condition()).await;
    with_items(&service, "one-waits").await;
    block(&service, "one-waits", &[1], 1, &condition()).await;
    service.put("not-begun", &new_job()).await.is(201);
    for (filter, expected) in [
        ("status==Blocked", &["all-wait"][..]),
        ("status!=Blocked", &["not-begun", "one-waits"]),
        ("status==Active", &["one-waits", "all-wait"]),
        ("status!=Active", &["not-begun"]),
        ("status=in=(Blocked,Waiting)", &["not-begun", "all-wait"]),
    ] {
        let query = [("filter", filter)];
        let listed = list::ask(&service, "/jobs", &query).await.is(200);
        assert_eq!(listed.job_ids(), expected, "{filter}");
        let count = list::ask(&service, "/jobStats/count", &query).await;
        assert_eq!(count.is(200).json(), expected.len(), "{filter}");
    }
    let status = service.get("/jobs/all-wait/status").await;
    assert_eq!(status.json(), "Active");

    let page = async |query: &str| {
        let path = format!("/partitions/{}/jobs{query}", service.partition);
        service.call(Method::GET, &path, None).await.is(200).body
    };
    for (tab, expected) in [
        ("Blocked", &["all-wait"][..]),
        ("Active", &["one-waits"]),
        ("Waiting", &["not-begun"]),
    ] {
        let shown = page(&format!("?status={tab}")).await;
        for job in ["all-wait", "one-waits", "not-begun"] {
            let link = format!("/jobs/{job}\"");
            assert_eq!(
                shown.contains(&link),
                expected.contains(&job),
                "{tab} {job}"
            );
        }
    }
    let cancelled = service
        .call(
            Method::POST,
            &format!("{}?filter=status==Blocked", service.path("/jobs:cancel")),
            None,
        )
        .await;
    assert_eq!(cancelled.is(200).json()["jobsCanceled"], 1);
    assert_eq!(
        service.get("/jobs/all-wait/status").await.json(),
        "Cancelled"
    );
}
