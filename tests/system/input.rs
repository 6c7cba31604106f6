//! Bad input: each has its clear reason, nothing is lost, and the next good message is done.

use std::collections::BTreeMap;

use contract::rest::NewJob;
use contract::{JobStatus, RangeItem, TaskMessage, TaskStatus, Tracking};
use framework::broker::{HeaderValue, Outgoing};
use framework::handler::{ORIGIN_HEADER, REASON_HEADER};
use serde_json::json;

use crate::place::{Answer, Place};
use crate::workers::echo;

stories![
    a_request_that_is_no_job_is_refused_with_the_reason,
    a_batch_that_cannot_be_split_fails_its_job_and_names_the_place,
    what_is_no_message_goes_to_the_invalid_pipe_with_the_reason,
    a_message_goes_on_to_whom_it_is_for,
    what_is_bad_around_a_message_does_not_keep_it_from_being_done_or_told,
];

async fn a_request_that_is_no_job_is_refused_with_the_reason(place: Place) {
    let system = place.run(echo()).await;
    let good = serde_json::to_value(place.range(5)).unwrap();
    let without = |field: &str| {
        let mut body = good.clone();
        body["task"].as_object_mut().unwrap().remove(field);
        body.to_string()
    };
    let long = "j".repeat(49);
    for (id, body, text) in [
        (
            "j",
            without("taskPipe"),
            "The task queue name has not been specified.",
        ),
        (
            "j",
            without("taskClassifier"),
            "The task classifier has not been specified.",
        ),
        (
            "j",
            without("taskData"),
            "The task data has not been specified.",
        ),
        (
            "j",
            json!({}).to_string(),
            "The task has not been specified.",
        ),
        ("j", "{\"task\":\n oops}".to_owned(), "line 2 column 2"),
        ("j", "[]".to_owned(), "The body is not a job"),
        ("j", String::new(), "The body has not been specified."),
        (
            "j",
            good.to_string().replace("\"stop\"", "\"explode\""),
            "explode",
        ),
        ("a%3Ab", good.to_string(), "invalid characters"),
        ("a.b", good.to_string(), "invalid characters"),
        ("a!b", good.to_string(), "invalid characters"),
        ("a*", good.to_string(), "invalid characters"),
        (long.as_str(), good.to_string(), "48"),
    ] {
        let Answer { code, body: told } =
            system.put(&format!("/jobs/{id}"), body.clone(), &[]).await;
        assert_eq!(code, 400, "{id} {body}: {told}");
        let message = told["message"].as_str().unwrap();
        assert!(message.contains(text), "{id} {body}: {message}");
    }
    assert_eq!(
        system.read("/jobs").await,
        Answer {
            code: 200,
            body: json!([])
        }
    );
    assert_eq!(system.put("/jobs/j", good.to_string(), &[]).await.code, 201);
    system.completed("j", 5).await;
    system.stop().await;
}

async fn a_batch_that_cannot_be_split_fails_its_job_and_names_the_place(place: Place) {
    let system = place.run(echo()).await;
    let with_data = |change: fn(&mut serde_json::Value)| {
        let mut new_job = place.range(5);
        change(
            new_job
                .task
                .as_mut()
                .and_then(|task| task.task_data.as_mut())
                .unwrap(),
        );
        new_job
    };
    let jobs: [(NewJob, &str); 9] = [
        (
            place.batch("rnage", "1-5"),
            "Invalid batch type  \"rnage\"; this batch worker knows ",
        ),
        (
            place.batch("range", "1-x"),
            "batch definition of range: at character 3: \"x\" is no number",
        ),
        (
            place.batch("range", "5-1"),
            "the range begins with 5 but ends with 1, before it",
        ),
        (place.batch("lines", "{\"files\":\n[1]}"), "line 2 column 2"),
        (
            place.batch("lines", r#"{"files":["nowhere.txt"]}"#),
            "there is no file \"nowhere.txt\"",
        ),
        (
            with_data(|data| data["targetPipe"] = json!(null)),
            "the batch has no targetPipe for its items",
        ),
        (
            with_data(|data| data["batchDefinition"] = json!(null)),
            "the batch has no batchDefinition",
        ),
        (
            with_data(|data| data["batchDefinition"] = json!(7)),
            "Invalid input message",
        ),
        (
            with_data(|data| data["targetPipe"] = json!("x".repeat(300))),
            "the targetPipe has 300 bytes; the limit is 255",
        ),
    ];
    for (number, (new_job, _)) in jobs.iter().enumerate() {
        system
            .client
            .put(&format!("j{number}"), new_job)
            .await
            .unwrap();
    }
    for (number, (_, text)) in jobs.iter().enumerate() {
        let state = system.ended(&format!("j{number}")).await;
        assert_eq!(
            (state.status, state.failures.len()),
            (JobStatus::Failed, 1),
            "{state:?}"
        );
        let message = state.failures[0].failure_message.as_deref().unwrap();
        assert!(message.contains(text), "{message:?} has no {text:?}");
        assert_eq!(
            (
                state.failures[0].failure_source.as_deref(),
                state.failures[0].task_id.as_str()
            ),
            (Some("worker-batch"), "")
        );
    }
    system.client.put("good", &place.range(5)).await.unwrap();
    system.completed("good", 5).await;
    system.stop().await;
}

async fn what_is_no_message_goes_to_the_invalid_pipe_with_the_reason(place: Place) {
    let system = place.run(echo()).await;
    let items = place.pipe("items");
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
    system.client.put("j", &place.range(20)).await.unwrap();
    system.completed("j", 20).await;
    system
        .take(&place.pipe("items-invalid"), |delivery| {
            let text = noise
                .remove(delivery.body.as_ref())
                .unwrap_or_else(|| panic!("twice, or not as it was: {delivery:?}"));
            let Some(HeaderValue::Text(reason)) = delivery.headers.get(REASON_HEADER) else {
                panic!("no reason: {delivery:?}")
            };
            assert!(reason.contains(text), "{reason:?} has no {text:?}");
            assert_eq!(
                delivery.headers.get(ORIGIN_HEADER),
                Some(&HeaderValue::Text(items.clone()))
            );
            !noise.is_empty()
        })
        .await;
    system.drained(&[items, place.pipe("items-invalid")]).await;
    system.stop().await;
}

async fn a_message_goes_on_to_whom_it_is_for(place: Place) {
    let system = place.run(echo()).await;
    let items = place.pipe("items");
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
            tracking_pipe: Some(place.pipe(pipe)),
            ..Tracking::default()
        })
    };

    // For somebody else: passed on as it is, and what is unknown in it stays.
    let elsewhere = TaskMessage {
        to: Some(place.pipe("elsewhere")),
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
        .take(&place.pipe("elsewhere"), |delivery| {
            let passed: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
            assert_eq!(
                (&passed["taskId"], &passed["priority"]),
                (&json!("elsewhere"), &json!(3))
            );
            assert_eq!(passed["ofLaterVersions"], json!([1, 2]));
            false
        })
        .await;

    // For nobody: the tracking worker may know; without one people must.
    let stray = TaskMessage {
        to: None,
        tracking: tracked("stray-tracking"),
        ..message("stray")
    };
    system.publish(&items, stray.encode()).await;
    let (found, _) = system.take_one(&place.pipe("stray-tracking")).await;
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
    let (found, headers) = system.take_one(&place.pipe("items-invalid")).await;
    assert_eq!(found.task_id, "lost");
    let reason = headers
        .iter()
        .find(|(name, _)| name == REASON_HEADER)
        .map(|(_, value)| value.clone());
    assert_eq!(
        reason,
        Some(HeaderValue::Text(
            "the message names no pipe (`to`) and is not tracked".to_owned()
        ))
    );

    // For this worker, but of another type or a later version: an answer that says so. Pipes are the same in any case.
    let unknown = TaskMessage {
        task_classifier: Some("Order".to_owned()),
        ..message("unknown")
    };
    let later = TaskMessage {
        task_api_version: 2,
        to: Some(items.to_uppercase()),
        ..message("later")
    };
    for (message, text) in [
        (unknown, "Task of type Order found on queue for RangeItem"),
        (later, "the task has version 2 of RangeItem"),
    ] {
        system.publish(&items, message.encode()).await;
        let (answer, _) = system.take_one(&place.pipe("output")).await;
        assert_eq!(
            (answer.task_id, answer.task_status),
            (message.task_id, Some(TaskStatus::InvalidTask))
        );
        let told = String::from_utf8(answer.task_data.unwrap()).unwrap();
        assert!(told.starts_with(text), "{told}");
    }
    system.stop().await;
}

async fn what_is_bad_around_a_message_does_not_keep_it_from_being_done_or_told(place: Place) {
    let system = place.run(echo()).await;
    let items = place.pipe("items");
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
        let (answer, _) = system.take_one(&place.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            (task, Some(TaskStatus::ResultSuccess))
        );
    };

    // Headers that count something, and do not: the message is done as if they were not there.
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
        let (answer, _) = system.take_one(&place.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            (task, Some(TaskStatus::ResultSuccess))
        );
    }
    good("after the headers").await;

    // For a pipe that cannot be: the answer says so, in the worker's own output, and a copy of it is not sent for ever.
    let nowhere = TaskMessage {
        to: Some("x".repeat(300)),
        ..message("nowhere")
    };
    if system.running.broker().kind() == "rabbitmq" {
        system.publish(&items, nowhere.encode()).await;
        let (answer, _) = system.take_one(&place.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            ("nowhere", Some(TaskStatus::ResultException))
        );
        let reason: String = serde_json::from_slice(&answer.task_data.unwrap()).unwrap();
        assert!(reason.contains("does not take messages"), "{reason}");
        good("after nowhere").await;
    }

    // Task data that is none of the type.
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
        let (answer, _) = system.take_one(&place.pipe("output")).await;
        assert_eq!(
            (answer.task_id.as_str(), answer.task_status),
            ("no data", Some(TaskStatus::InvalidTask))
        );
        let told = String::from_utf8(answer.task_data.unwrap()).unwrap();
        assert!(told.contains(text), "{told}");
    }
    good("after the data").await;
    system
        .drained(&[
            items.clone(),
            place.pipe("items-invalid"),
            place.pipe("output"),
        ])
        .await;
    system.stop().await;
}
