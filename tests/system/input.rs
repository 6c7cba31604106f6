//! Malformed input: each message is set aside with a reason, none is lost, and the next good
//! message is executed.

use std::collections::BTreeMap;

use contract::{RangeItem, TaskMessage, TaskStatus, Tracking};
use framework::broker::{HeaderValue, Outgoing};
use framework::handler::{ORIGIN_HEADER, REASON_HEADER};
use serde_json::json;

use crate::fixture::Fixture;
use crate::workers::echo;

stories![
    malformed_messages_go_to_the_invalid_pipe_with_the_reason,
    a_message_is_forwarded_to_its_recipient,
    bad_headers_and_task_data_do_not_stop_the_worker,
];

async fn malformed_messages_go_to_the_invalid_pipe_with_the_reason(fixture: Fixture) {
    let system = fixture.run(echo()).await;
    let items = fixture.pipe("items");
    let mut noise: BTreeMap<&[u8], &str> = BTreeMap::from([
        (&b""[..], "the body is empty"),
        (b"null", "the body is a JSON null, not an object"),
        (b"[1]", "the body is a JSON array, not an object"),
        (b"\xff\x00noise", "the body is not JSON"),
        (b"{\"taskId\":", "the body is not JSON"),
        (b"{\"to\":\"x\"}", "the field taskId"),
        (
            b"{\"taskId\":\"t\",\"taskData\":\"%%\"}",
            "the field taskData",
        ),
    ]);
    for body in noise.keys() {
        system.publish(&items, *body).await;
    }
    system.client.put("j", &fixture.range(20)).await.unwrap();
    system.completed("j", 20).await;
    system
        .take(&fixture.pipe("items-invalid"), |delivery| {
            let text = noise
                .remove(delivery.body().as_ref())
                .unwrap_or_else(|| panic!("delivered twice, or changed: {delivery:?}"));
            let Some(HeaderValue::Text(reason)) = delivery.headers.get(REASON_HEADER) else {
                panic!("no reason: {delivery:?}")
            };
            assert!(reason.contains(text), "{reason:?} has no {text:?}");
            assert_eq!(
                delivery.headers.get(ORIGIN_HEADER),
                Some(&HeaderValue::Text(items.clone().into()))
            );
            !noise.is_empty()
        })
        .await;
    system
        .drained(&[items, fixture.pipe("items-invalid")])
        .await;
    system.stop().await;
}

async fn a_message_is_forwarded_to_its_recipient(fixture: Fixture) {
    let system = fixture.run(echo()).await;
    let items = fixture.pipe("items");
    let message = |task: &str| {
        TaskMessage::new(
            task,
            &items,
            &RangeItem {
                number: 1,
                params: BTreeMap::new(),
            },
        )
        .unwrap()
    };
    let tracked = |pipe: &str| {
        let job_task_id = Some("p:j".to_owned());
        Some(Tracking {
            job_task_id,
            tracking_pipe: Some(fixture.pipe(pipe).into()),
            ..Tracking::default()
        })
    };

    // For another pipe: forwarded unchanged, unknown fields included.
    let elsewhere = TaskMessage {
        to: Some(fixture.pipe("elsewhere").into()),
        priority: Some(3),
        ..message("elsewhere")
    };
    let body = String::from_utf8(elsewhere.encode()).unwrap().replacen(
        '{',
        r#"{"ofLaterVersions":[1,2],"#,
        1,
    );
    system.publish(&items, body).await;
    system
        .take(&fixture.pipe("elsewhere"), |delivery| {
            let passed: serde_json::Value = serde_json::from_slice(&delivery.body()).unwrap();
            assert_eq!(
                (&passed["taskId"], &passed["priority"]),
                (&json!("elsewhere"), &json!(3))
            );
            assert_eq!(passed["ofLaterVersions"], json!([1, 2]));
            false
        })
        .await;

    // Without `to`: goes to the tracking pipe; without tracking, to the invalid pipe.
    let stray = TaskMessage {
        to: None,
        tracking: tracked("stray-tracking"),
        ..message("stray")
    };
    system.publish(&items, stray.encode()).await;
    let (found, _) = system.take_one(&fixture.pipe("stray-tracking")).await;
    assert_eq!(
        (found.task_id.as_str(), found.job_task_id()),
        ("stray", Some("p:j"))
    );
    system
        .publish(
            &items,
            TaskMessage {
                to: None,
                ..message("lost")
            }
            .encode(),
        )
        .await;
    let (found, headers) = system.take_one(&fixture.pipe("items-invalid")).await;
    assert_eq!(found.task_id, "lost");
    let reason = headers
        .iter()
        .find(|(name, _)| name == REASON_HEADER)
        .map(|(_, value)| value.clone());
    assert_eq!(
        reason,
        Some(HeaderValue::Text(
            "the message names no pipe (`to`) and is not tracked".into()
        ))
    );

    // For this worker, but of another type or a later version: an output says so. The case of a
    // pipe name does not matter.
    let unknown = TaskMessage {
        task_classifier: Some("Order".into()),
        ..message("unknown")
    };
    let later = TaskMessage {
        task_api_version: 2,
        to: Some(items.to_uppercase().into()),
        ..message("later")
    };
    for (message, text) in [
        (unknown, "Task of type Order found on queue for RangeItem"),
        (later, "the task has version 2 of RangeItem"),
    ] {
        system.publish(&items, message.encode()).await;
        let (answer, _) = system.take_one(&fixture.pipe("output")).await;
        assert_eq!(
            (answer.task_id, answer.task_status),
            (message.task_id, Some(TaskStatus::InvalidTask))
        );
        let output_text = String::from_utf8(answer.task_data.unwrap()).unwrap();
        assert!(output_text.starts_with(text), "{output_text}");
    }
    system.stop().await;
}

async fn bad_headers_and_task_data_do_not_stop_the_worker(fixture: Fixture) {
    let system = fixture.run(echo()).await;
    let items = fixture.pipe("items");
    let message = |task: &str| {
        TaskMessage::new(
            task,
            &items,
            &RangeItem {
                number: 1,
                params: BTreeMap::new(),
            },
        )
        .unwrap()
    };
    let good = async |task: &str| {
        system.publish(&items, message(task).encode()).await;
        let (answer, _) = system.take_one(&fixture.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            (task, Some(TaskStatus::ResultSuccess))
        );
    };

    // Headers that should be counters and are not: the message is executed as if they were absent.
    let names = [
        "x-delivery-count",
        "x-batchwright-attempts",
        "x-batchwright-first-attempt",
        "x-batchwright-deaths",
        "x-caf-worker-retry",
    ];
    for (task, value) in [
        ("text", HeaderValue::Text("many".into())),
        ("large", HeaderValue::Integer(i64::MIN)),
    ] {
        let mut outgoing = Outgoing::new(items.as_str(), message(task).encode());
        for name in names {
            outgoing.headers.set(name, value.clone());
        }
        system.running.broker().publish(outgoing).await.unwrap();
        let (answer, _) = system.take_one(&fixture.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            (task, Some(TaskStatus::ResultSuccess))
        );
    }
    good("after the headers").await;

    // For a pipe that cannot exist: the message ends in the invalid pipe, with the reason. It is
    // not sent forever.
    let nowhere = TaskMessage {
        to: Some("x".repeat(300).into()),
        ..message("nowhere")
    };
    system.publish(&items, nowhere.encode()).await;
    let (dead, headers) = system.take_one(&fixture.pipe("items-invalid")).await;
    assert_eq!(dead.task_id, "nowhere");
    let reason = headers.iter().find(|(name, _)| name == REASON_HEADER);
    assert!(
        format!("{reason:?}").contains("the limit is 255"),
        "{reason:?}"
    );
    good("after nowhere").await;

    // Task data that does not fit the type.
    for (data, text) in [
        (None, "the message has no task data"),
        (Some(b"{}".to_vec()), "missing field `number`"),
    ] {
        system
            .publish(
                &items,
                TaskMessage {
                    task_data: data,
                    ..message("no data")
                }
                .encode(),
            )
            .await;
        let (answer, _) = system.take_one(&fixture.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            ("no data", Some(TaskStatus::InvalidTask))
        );
        let output_text = String::from_utf8(answer.task_data.unwrap()).unwrap();
        assert!(output_text.contains(text), "{output_text}");
    }
    good("after the data").await;
    system
        .drained(&[
            items.clone(),
            fixture.pipe("items-invalid"),
            fixture.pipe("output"),
        ])
        .await;
    system.stop().await;
}
