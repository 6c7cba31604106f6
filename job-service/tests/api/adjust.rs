//! Jobs that share a pipe: how much of it each gets, and who says so.

use contract::rest::ErrorCode;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::page::submit;
use crate::service::{Answer, Service, new_job};

impl Service {
    async fn adjust(&self, job: &str, change: &Value) -> Answer {
        let path = self.path(&format!("/jobs/{job}"));
        self.call(Method::PATCH, &path, Some(change.to_string()))
            .await
    }
}

/// Returns a batch of numbers for the pipe `items-in`.
fn batch() -> Value {
    let mut job = new_job();
    job["task"]["taskClassifier"] = json!("BatchWorker");
    job["task"]["taskApiVersion"] = json!(1);
    job["task"]["taskData"] = json!({
        "batchType": "range", "batchDefinition": {"from": 1, "to": 9},
        "taskMessageType": "number", "targetPipe": "items-in"
    });
    job
}

#[tokio::test]
async fn share_is_changed_while_a_job_runs_and_told_to_its_workers() {
    let service = Service::start().await;
    let mut job = batch();
    job["share"] = json!(300);
    service.put("j", &job).await.is(201);
    let share = async || service.get("/jobs/j").await.json()["share"].clone();
    assert_eq!(share().await, 300);
    let status = service.get("/jobs/j/status").await;
    assert_eq!(status.header("x-batchwright-share"), "300");

    service.adjust("j", &json!({"share": 7})).await.is(204);
    assert_eq!(share().await, 7);
    for change in [
        json!({}),
        json!({"share": 0}),
        json!({"share": 1001}),
        json!({"shares": 5}),
    ] {
        let refused = service.adjust("j", &change).await.is(400);
        assert!(!refused.error().is_empty(), "{change}");
    }
    service
        .adjust("j", &json!({"share": 0}))
        .await
        .contains("from 1 to 1000");
    job["share"] = json!(2000);
    service
        .put("k", &job)
        .await
        .is(400)
        .contains("from 1 to 1000");
    service.adjust("none", &json!({"share": 5})).await.is(404);
    service.adjust("j", &json!({"share": 100})).await.is(204);
    assert_eq!(share().await, Value::Null);

    let form = format!("/partitions/{}/jobs/j/share", service.partition);
    let own = ("sec-fetch-site", "same-origin");
    let page = submit(&service, &form, "share=7", own).await.is(303);
    assert!(page.header("location").ends_with("/jobs/j"), "{page:?}");
    assert_eq!(share().await, 7);
    submit(&service, &form, "share=0", own)
        .await
        .is(400)
        .contains("from 1 to 1000");

    service.cancel("j").await.is(204);
    let ended = service.adjust("j", &json!({"share": 5})).await.is(409);
    let code = ended.header("x-batchwright-error");
    assert_eq!(code, ErrorCode::WrongJobStatus.as_str());
}

#[tokio::test]
async fn job_says_with_whom_it_shares_the_pipe_of_its_items() {
    let service = Service::start().await;
    let notes = async || service.get("/jobs/j").await.json()["notes"].to_string();
    for job in ["j", "k", "l"] {
        service.put(job, &batch()).await.is(201);
        service.report(job, ".1", EventKind::Complete).await;
    }
    assert!(
        notes()
            .await
            .contains("shares the pipe 'items-in' with 2 other jobs: 34 %"),
        "{}",
        notes().await
    );
    service.cancel("k").await.is(204);
    service.adjust("j", &json!({"share": 300})).await.is(204);
    assert!(
        notes().await.contains("with 1 other job: 75 %"),
        "{}",
        notes().await
    );
    service.cancel("l").await.is(204);
    assert!(!notes().await.contains("shares"), "{}", notes().await);
}
