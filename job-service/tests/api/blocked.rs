//! Tasks that wait for conditions, as workers hand them over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::headers::{
    BLOCKED_PIPE_HEADER, BLOCKS_HEADER, CONDITION_HEADER, EVERY_CONDITION, FULL_CONDITIONS_HEADER,
    LABEL_HEADER,
};
use contract::{
    Condition, ConditionCode, PAUSED_PIPE, RangeItem, TaskMessage, Tracking, blocked_pipe,
};
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::handler::REASON_HEADER;
use harness::wait_for;
use reqwest::Method;
use store::{FaultPoint, Store, StoreOptions};

use crate::conditions::{call, with_items};
use crate::service::{Service, new_job};

fn condition() -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE).because("it is away")
}

fn task(service: &Service, id: &str, number: u64) -> Vec<u8> {
    let tracking = Tracking {
        job_task_id: Some(format!("{}:{id}", service.partition)),
        ..Tracking::default()
    };
    let item = RangeItem {
        number,
        params: [].into(),
    };
    TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "items-in", &item).unwrap()
    }
    .encode()
}

async fn hand_over(service: &Service, body: Vec<u8>, condition: &str, blocks: i64) {
    hand_over_labelled(service, body, (condition, blocks), None).await;
}

async fn hand_over_labelled(
    service: &Service,
    body: Vec<u8>,
    (condition, blocks): (&str, i64),
    label: Option<&str>,
) {
    let mut message = Outgoing::new(blocked_pipe(PAUSED_PIPE), body);
    let headers = &mut message.headers;
    headers.set(CONDITION_HEADER, HeaderValue::Text(condition.into()));
    headers.set(BLOCKS_HEADER, HeaderValue::Integer(blocks));
    if let Some(label) = label {
        headers.set(LABEL_HEADER, HeaderValue::Text(label.into()));
    }
    service.broker.publish(message).await.unwrap();
}

#[tokio::test]
async fn tasks_that_workers_hand_over_wait_once_and_full_conditions_are_told() {
    let service = Service::start_configured(|options| options.most_blocked = 2).await;
    service.put("j", &new_job()).await.is(201);
    let status = service.get("/jobs/j/status").await;
    assert_eq!(
        status.header(BLOCKED_PIPE_HEADER),
        "worker-paused-in.blocked"
    );
    assert!(!status.headers.contains_key(FULL_CONDITIONS_HEADER));
    let json = condition().to_json();
    // The same content is a copy, whatever its task id or its tracking; other content is another
    // message of the task.
    for number in [1, 1, 2] {
        hand_over(&service, task(&service, "j.1", number), &json, 1).await;
    }
    let key = condition().key();
    wait_for("two tasks to wait", async || {
        let found = service.store.condition(&key).await.unwrap();
        match found {
            Some(row) if row.waiting == 2 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    wait_for("the condition to be told as full", async || {
        let status = service.get("/jobs/j/status").await;
        match status.headers.get(FULL_CONDITIONS_HEADER) {
            Some(keys) if keys == key.as_str() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn task_without_a_label_waits_beside_others_and_fails_without_one() {
    let service = Service::start().await;
    with_items(&service, "j").await;
    let json = condition().to_json();
    for (task_id, label) in [("j.1", None), ("j.2", Some("a.tif"))] {
        let body = task(&service, task_id, 1);
        hand_over_labelled(&service, body, (&json, 1), label).await;
    }
    let key = condition().key();
    wait_for("both tasks to wait together", async || {
        let found = service.store.condition(&key).await.unwrap();
        match found {
            Some(row) if row.waiting == 2 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let path = format!("/conditions/{key}:fail");
    call(&service, Method::POST, &path).await.is(200);
    wait_for("both tasks to fail, each as it is named", async || {
        let job = service.get("/jobs/j").await.json();
        let labels = |it: &serde_json::Value| it["label"].as_str().map(str::to_owned);
        let failures = job["failures"].as_array().into_iter().flatten();
        let mut labels: Vec<_> = failures.map(labels).collect();
        labels.sort();
        if labels == [None, Some("a.tif".to_owned())] {
            Ok(())
        } else {
            Err(job.to_string())
        }
    })
    .await;
}

#[tokio::test]
async fn tasks_that_are_not_stored_yet_count_until_they_are() {
    // While the store writes nothing, the service holds 1000 of 2100 tasks.
    let is_away = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_away);
    let store = Store::simulated(StoreOptions::default(), move |point| {
        point == FaultPoint::Begin && fails.load(Ordering::Relaxed)
    });
    let service =
        Service::start_configured_over(store, |options| options.most_blocked = 1000).await;
    service.put("j", &new_job()).await.is(201);
    is_away.store(true, Ordering::Relaxed);
    let conditions = ["a", "b", "c"].map(|name| condition().parameter("name", name).unwrap());
    let conditions = conditions.map(|condition| condition.to_json());
    for number in 0..2100 {
        let (body, condition) = (task(&service, "j.1", number), number % 3);
        let condition = &conditions[usize::try_from(condition).unwrap()];
        hand_over(&service, body, condition, 1).await;
    }
    let full = async || {
        let status = service.get("/jobs/j/status").await;
        let full = status.headers.get(FULL_CONDITIONS_HEADER);
        full.map(|keys| keys.to_str().unwrap().to_owned())
    };
    wait_for("every condition to be told as full", async || {
        match full().await {
            Some(keys) if keys == EVERY_CONDITION => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    is_away.store(false, Ordering::Relaxed);
    wait_for("no condition to be told as full", async || {
        full().await.map_or(Ok(()), Err)
    })
    .await;
}

#[tokio::test]
async fn message_that_can_wait_for_nothing_fails_and_is_invalid() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for (condition, expected) in [("{}", "missing field `code`"), ("", "EOF while parsing")] {
        hand_over(&service, task(&service, "j.1", 1), condition, 1).await;
        let pipe = format!("{PAUSED_PIPE}.invalid");
        let mut consumer = service.broker.consume(&pipe, 1).await.unwrap();
        let invalid = harness::in_time("the message", consumer.next())
            .await
            .unwrap();
        let Some(HeaderValue::Text(reason)) = invalid.headers.get(REASON_HEADER) else {
            panic!("{:?}", invalid.headers)
        };
        assert!(reason.contains(expected), "{reason}");
        invalid.ack();
    }
}
