//! Pausing and resuming jobs, and the tasks that workers hand over meanwhile.

use contract::{JobId, PAUSED_PIPE, PartitionId, RangeItem, TaskMessage, Tracking};
use framework::broker::{Broker, Delivery, HeaderValue, Outgoing};
use framework::tls::{Tls, TlsFiles};
use harness::tls::{Authority, TlsServer};
use harness::wait_for;
use serde_json::json;

use crate::service::{Service, new_job};

#[tokio::test]
async fn task_of_a_paused_job_is_parked_and_returns_unchanged_on_resume() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    service.pause("j").await.is(204);
    // The task has an unknown field, as a later version may add one.
    let body =
        String::from_utf8(task(&service, "j.3"))
            .unwrap()
            .replacen('{', r#"{"new":[1,2],"#, 1);
    hand_over(&service, body.clone().into_bytes()).await;
    wait_until_parked(&service, 1).await;
    assert_eq!(service.broker.depth(PAUSED_PIPE).await.unwrap(), 0);
    service.resume("j").await.is(204);
    let back = next(&service, "items-in").await;
    assert_eq!(String::from_utf8_lossy(&back.body()), body);
    assert_eq!(
        back.headers.get("x-batchwright-attempts"),
        Some(&HeaderValue::Integer(2))
    );
    assert_eq!(
        back.headers.get("x-note"),
        Some(&HeaderValue::Text("kept".into()))
    );
    assert_eq!(back.headers.iter().count(), 2);
    back.ack();
    wait_until_parked(&service, 0).await;
}

#[tokio::test]
async fn status_of_the_job_of_a_paused_task_is_asked_over_tls() {
    let authority = Authority::new().unwrap();
    let certificate = authority.issue("localhost").unwrap();
    let server = TlsServer::start(&certificate, None).await.unwrap();
    let port = server.address().unwrap().port();
    let service = Service::start_configured(|options| {
        let files = TlsFiles {
            ca: Some(authority.file()),
            ..TlsFiles::default()
        };
        options.tls = Tls::load(&files).unwrap();
    })
    .await;
    let mut message = TaskMessage::decode(&task(&service, "j.3")).unwrap();
    message.tracking.as_mut().unwrap().status_check_url = Some(
        format!(
            "https://localhost:{port}/partitions/{}/jobs/j/status",
            service.partition
        )
        .into(),
    );
    hand_over(&service, message.encode()).await;
    // A client that does not trust the server breaks off.
    let accepted = harness::in_time("a status check", server.accept()).await;
    accepted.unwrap();
}

#[tokio::test]
async fn task_of_a_running_job_is_sent_back_at_once() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let untracked = TaskMessage {
        tracking: None,
        ..TaskMessage::decode(&task(&service, "j")).unwrap()
    }
    .encode();
    let odd = String::from_utf8(task(&service, "j.3"))
        .unwrap()
        .replace("j.3", "j.x")
        .into_bytes();
    for body in [task(&service, "j.3"), untracked, odd] {
        hand_over(&service, body.clone()).await;
        let back = next(&service, "items-in").await;
        assert_eq!(back.body(), body);
        back.ack();
    }
    wait_until_parked(&service, 0).await;
}

#[tokio::test]
async fn task_of_an_ended_or_unknown_job_is_dropped() {
    let service = Service::start().await;
    for job in ["over", "j"] {
        service.put(job, &new_job()).await.is(201);
        service.pause(job).await.is(204);
    }
    service.cancel("over").await.is(204);
    for id in ["over.1", "nobody.1", "j.1"] {
        hand_over(&service, task(&service, id)).await;
    }
    // A pipe keeps its order: the others have been looked at.
    wait_until_parked(&service, 1).await;
    assert_eq!(parked(&service, "over").await, 0);
    for pipe in [PAUSED_PIPE, "items-in"] {
        assert_eq!(service.broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
}

#[tokio::test]
async fn task_without_a_return_pipe_fails_and_is_invalid() {
    let service = Service::start().await;
    for to in [json!(PAUSED_PIPE), json!(""), json!("x".repeat(256))] {
        let mut message: serde_json::Value =
            serde_json::from_slice(&task(&service, "j.3")).unwrap();
        message["to"] = to;
        message["tracking"]["trackingPipe"] = json!("reports");
        hand_over(&service, serde_json::to_vec(&message).unwrap()).await;
        let invalid = next(&service, &format!("{PAUSED_PIPE}.invalid")).await;
        let reason = "the message has no valid `to`, the pipe to send it back to".to_owned();
        assert_eq!(
            invalid.headers.get(framework::handler::REASON_HEADER),
            Some(&HeaderValue::Text(reason.into()))
        );
        invalid.ack();
        let report = next(&service, "reports").await;
        let body = TaskMessage::decode(&report.body()).unwrap().task_data;
        let data: serde_json::Value = serde_json::from_slice(&body.unwrap()).unwrap();
        assert_eq!(data["trackingReports"][0]["status"], "Failed", "{data}");
        report.ack();
    }
}

/// Returns a task for the pipe `items-in`. The id begins with the job's id.
fn task(service: &Service, id: &str) -> Vec<u8> {
    let tracking = Tracking {
        job_task_id: Some(format!("{}:{id}", service.partition)),
        ..Tracking::default()
    };
    let item = RangeItem {
        number: 3,
        params: [].into(),
    };
    TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "items-in", &item).unwrap()
    }
    .encode()
}

/// Sends a task to the paused pipe, as a worker does when it considers the job paused.
async fn hand_over(service: &Service, body: Vec<u8>) {
    let mut message = Outgoing::new(PAUSED_PIPE, body);
    message
        .headers
        .set("x-batchwright-attempts", HeaderValue::Integer(2));
    message
        .headers
        .set("x-note", HeaderValue::Text("kept".into()));
    service.broker.publish(message).await.unwrap();
}

async fn next(service: &Service, pipe: &str) -> Delivery {
    let mut consumer = service.broker.consume(pipe, 1).await.unwrap();
    harness::in_time(&format!("a message in {pipe}"), consumer.next())
        .await
        .unwrap()
}

async fn parked(service: &Service, job: &str) -> u64 {
    let (partition, job) = (
        PartitionId::parse(&service.partition).unwrap(),
        JobId::parse(job).unwrap(),
    );
    service
        .store
        .count_parked_tasks(&partition, &job)
        .await
        .unwrap()
}

async fn wait_until_parked(service: &Service, tasks: u64) {
    wait_for("the tasks of j to be parked", async || {
        match parked(service, "j").await {
            parked if parked == tasks => Ok(()),
            parked => Err(format!("{parked} tasks")),
        }
    })
    .await;
}
