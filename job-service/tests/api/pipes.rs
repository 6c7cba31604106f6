//! Messages of pipes over HTTP: taken until they are acknowledged, put when they are confirmed,
//! only where the operator allows it.

use framework::broker::{Broker as _, Outgoing};
use job_service::PipeAccess;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, Service};

async fn service() -> Service {
    Service::start_configured(|options| options.pipe_access = PipeAccess::On).await
}

async fn post(service: &Service, path: &str, body: &Value) -> Answer {
    let path = format!("/job-service/v1/pipes/{path}");
    service
        .call(Method::POST, &path, Some(body.to_string()))
        .await
}

async fn take(service: &Service, body: Value) -> Value {
    post(service, "out/take", &body).await.is(200).json()
}

async fn publish(service: &Service, tasks: &[&str]) {
    for task in tasks {
        let body = json!({"taskId": task, "to": "out", "taskData": "eyJuIjoxfQ=="}).to_string();
        service
            .broker
            .publish(Outgoing::new("out", body))
            .await
            .unwrap();
    }
}

fn tasks(taken: &Value) -> Vec<&str> {
    let messages = taken["messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["envelope"]["taskId"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn messages_are_taken_in_order_and_gone_when_their_receipt_is_named() {
    let service = service().await;
    publish(&service, &["a", "b", "c"]).await;
    let first = take(&service, json!({"limit": 2})).await;
    assert_eq!(tasks(&first), ["a", "b"]);
    assert_eq!(first["messages"][0]["taskData"], json!({"n": 1}));
    let second = take(&service, json!({"limit": 2, "receipt": first["receipt"]})).await;
    assert_eq!(tasks(&second), ["c"]);
    let end = take(&service, json!({"limit": 0, "receipt": second["receipt"]})).await;
    assert_eq!(end, json!({"messages": []}));
    assert_eq!(service.broker.depth("out").await.unwrap(), 0);
    let used = json!({"receipt": first["receipt"]});
    publish(&service, &["d"]).await;
    for _ in 0..2 {
        let last = take(&service, json!({})).await;
        assert_eq!(tasks(&last), ["d"]);
        take(
            &service,
            json!({"giveBack": true, "receipt": last["receipt"]}),
        )
        .await;
    }
    post(&service, "out/take", &used)
        .await
        .is(404)
        .contains("The receipt is unknown");
}

#[tokio::test]
async fn what_is_not_acknowledged_is_taken_by_the_next_client_when_the_service_stops() {
    let service = service().await;
    publish(&service, &["a", "b"]).await;
    assert_eq!(tasks(&take(&service, json!({})).await), ["a", "b"]);
    assert_eq!(tasks(&take(&service, json!({})).await), [""; 0]);
    service.stop().await;
    assert_eq!(service.broker.depth("out").await.unwrap(), 2);
}

#[tokio::test]
async fn messages_that_are_put_are_confirmed_and_addressed_to_the_pipe() {
    let service = service().await;
    let message =
        |task| json!({"headers": {"h": "x"}, "envelope": {"taskId": task}, "taskData": [1]});
    let body = json!({"messages": [message("a"), message("b")]});
    let put = post(&service, "out/put", &body).await.is(200).json();
    assert_eq!(put, json!({"confirmed": 2}));
    let taken = take(&service, json!({})).await;
    let expected =
        json!({"headers": {"h": "x"}, "envelope": {"taskId": "a", "to": "out"}, "taskData": [1]});
    assert_eq!(taken["messages"][0], expected);
}

#[tokio::test]
async fn invalid_requests_say_what_is_wrong_and_put_nothing() {
    let service = service().await;
    publish(&service, &["a"]).await;
    let good = json!({"envelope": {"taskId": "t"}});
    let put = |message: &Value| json!({"messages": [good, message]});
    let reserved = json!({"envelope": {"taskId": "t", "to": "tracking-in"}});
    for (path, body, status, text) in [
        (
            "out/take",
            json!({"limit": 101}),
            400,
            "The field 'limit' is 101; the limit is 100.",
        ),
        (
            "out/take",
            json!({"wait": 21}),
            400,
            "The field 'wait' is 21; the limit is 20.",
        ),
        (
            "out/take",
            json!({"limits": 1}),
            400,
            "unknown field `limits`",
        ),
        (
            "out/take",
            json!({"receipt": "x"}),
            404,
            "The receipt is unknown",
        ),
        (
            "nothing/take",
            json!({}),
            404,
            "There is no pipe 'nothing'.",
        ),
        (
            "worker-paused-in/take",
            json!({}),
            400,
            "The system itself reads the pipe 'worker-paused-in', which is the paused pipe.",
        ),
        (
            "out.suspects/take",
            json!({}),
            400,
            "holds the quarantined tasks",
        ),
        (
            "a%0Ab/take",
            json!({}),
            400,
            "No pipe has a name with control characters",
        ),
        (
            "out/put",
            put(&json!({"body": "eA=="})),
            400,
            "Message 2 of 2: there is no 'envelope'",
        ),
        (
            "out/put",
            put(&json!({"envelope": {}})),
            400,
            "Message 2 of 2: the envelope is not that of a task message: the field taskId is missing.",
        ),
        ("out/put", put(&reserved), 400, "which is the tracking pipe"),
        (
            "worker-paused-in/put",
            json!({"messages": [good]}),
            400,
            "which is the paused pipe",
        ),
        (
            "out/put",
            json!({"messages": vec![good.clone(); 101]}),
            400,
            "The request has 101 messages; the limit is 100.",
        ),
        ("out/put", json!([]), 400, "The body cannot be understood"),
    ] {
        post(&service, path, &body).await.is(status).contains(text);
    }
    assert_eq!(service.broker.depth("out").await.unwrap(), 1);
    assert_eq!(service.broker.depth("worker-paused-in").await.unwrap(), 0);
    let forced = json!({"force": true});
    post(&service, "worker-paused-in/take", &forced)
        .await
        .is(200);
}

#[tokio::test]
async fn pipes_are_closed_unless_the_operator_opens_them() {
    let service = Service::start().await;
    publish(&service, &["a"]).await;
    for path in ["out/take", "out/put"] {
        let answer = post(&service, path, &json!({})).await.is(403);
        answer.contains("This service gives no access to pipes over HTTP.");
    }
    assert_eq!(service.broker.depth("out").await.unwrap(), 1);
}

#[tokio::test]
async fn number_of_readers_is_bounded() {
    let service = service().await;
    let tasks: Vec<String> = (0..17).map(|n| format!("t{n}")).collect();
    publish(
        &service,
        &tasks.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    for _ in 0..16 {
        assert!(!take(&service, json!({"limit": 1})).await["receipt"].is_null());
    }
    post(&service, "out/take", &json!({}))
        .await
        .is(503)
        .contains("as many readers of pipes as it may have");
}
