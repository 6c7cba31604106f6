//! The key of a job's life: its workers have it in the status URL, and nobody sees it.

use contract::TaskMessage;
use framework::broker::{Broker as _, Outgoing};
use harness::in_time;
use job_service::PipeAccess;
use reqwest::Method;
use serde_json::{Value, json};

use crate::page::page;
use crate::service::{Answer, Service, new_job};

async fn service() -> Service {
    Service::start_configured(|options| options.pipe_access = PipeAccess::On).await
}

/// Returns the next message of a pipe.
pub async fn next(service: &Service, pipe: &str) -> TaskMessage {
    let mut consumer = service.broker.consume(pipe, 1).await.unwrap();
    let delivery = in_time("a message", consumer.next()).await.unwrap();
    let message = TaskMessage::decode(&delivery.body()).unwrap();
    delivery.ack();
    message
}

/// Creates a job. Returns its start message, the path and query of its status URL, and its key.
async fn started(service: &Service) -> (TaskMessage, String, String) {
    service.put("j", &new_job()).await.is(201);
    let message = next(service, "batch-in").await;
    let url = message.tracking.as_ref().unwrap().status_check_url.clone();
    let url = url.unwrap().strip_prefix(&service.root).unwrap().to_owned();
    let key = url.split_once("&k=").unwrap().1.to_owned();
    (message, url, key)
}

async fn call(service: &Service, method: Method, path: &str, body: Option<&Value>) -> Answer {
    let body = body.map(ToString::to_string);
    service.call(method, path, body).await
}

#[tokio::test]
async fn workers_ask_with_the_key_of_their_message_and_another_one_is_refused() {
    let service = service().await;
    let (_, url, key) = started(&service).await;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    assert!(key.len() == 32 && key.bytes().all(is_digit), "{url}");
    let memo = json!({"result": "1"});
    let ask = async |url: &str, status, error: &str| {
        for (method, path, body) in [
            (Method::GET, "/status", None),
            (Method::GET, "/splits/0", None),
            (Method::GET, "/memos/0/a", None),
            (Method::PUT, "/memos/0/a", Some(&memo)),
        ] {
            let answer = call(&service, method, &url.replace("/status", path), body).await;
            let code = answer.headers.get("x-batchwright-error");
            let code = code.map_or("", |code| code.to_str().unwrap());
            assert_eq!(
                (answer.status.as_u16(), code),
                (status, error),
                "{answer:?}"
            );
            assert!(!answer.body.contains(&key), "{answer:?}");
        }
    };
    for wrong in ["0".repeat(32), "***".to_owned(), String::new()] {
        ask(&url.replace(&key, &wrong), 401, "WRONG_JOB_KEY").await;
    }
    for url in [&url, url.split("&k=").next().unwrap()] {
        ask(url, 200, "").await;
    }
    // Leftovers are discarded, whatever their key is.
    service.delete("j").await.is(204);
    let (_, again, new) = started(&service).await;
    for past in [&url, &url.replace(&key, &new), &format!("{again}&r=2")] {
        ask(past, 404, "JOB_NOT_FOUND").await;
    }
}

#[tokio::test]
async fn message_that_is_shown_has_no_key_and_gets_it_back_when_it_is_put() {
    let service = service().await;
    let (message, _, key) = started(&service).await;
    let bundle = [&message.encode()[..], b"\n[]\n"].concat();
    for body in [message.encode(), bundle] {
        let message = Outgoing::new("out", body);
        service.broker.publish(message).await.unwrap();
    }
    let pipes = async |method, path: &str, body: Option<&Value>| {
        let path = format!("/job-service/v1/pipes/{path}");
        call(&service, method, &path, body).await.is(200)
    };
    let peeked = pipes(Method::GET, "out?peek=2", None).await;
    let on_page = page(&service, "/pipes/out?peek=2").await.is(200);
    let taken = pipes(Method::POST, "out/take", Some(&json!({}))).await;
    for shown in [&peeked, &on_page, &taken] {
        assert!(shown.body.contains("k=***"), "{shown:?}");
        assert!(!shown.body.contains(&key), "{shown:?}");
    }
    let taken = taken.json()["messages"].clone();
    assert_eq!(taken.as_array().unwrap().len(), 2);
    let put = async |message: &Value| {
        let body = json!({"messages": [message]});
        pipes(Method::POST, "again/put", Some(&body)).await;
        let tracking = next(&service, "again").await.tracking.unwrap();
        tracking.status_check_url.unwrap().as_bytes().to_vec()
    };
    let whole = message.tracking.unwrap().status_check_url.unwrap();
    assert_eq!(put(&taken[0]).await, whole.as_bytes());
    let without = whole.replace(&format!("&k={key}"), "");
    // Only this service gets the key.
    let mut elsewhere = taken[0].clone();
    let (own, other) = (&*service.root, "http://elsewhere.example");
    elsewhere["envelope"]["tracking"]["statusCheckUrl"] =
        whole.to_string().replace(own, other).into();
    assert_eq!(
        put(&elsewhere).await,
        without.replace(own, other).as_bytes()
    );
    // Nobody knows that of a job that is gone.
    service.delete("j").await.is(204);
    assert_eq!(put(&taken[0]).await, without.as_bytes());
}
