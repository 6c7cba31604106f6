//! The table of endpoints, one test a row, in its order.

use serde_json::json;

use crate::service::{Service, Store};

on_both_stores![a_ping_is_answered, a_job_is_created_told_and_complete];

async fn a_ping_is_answered(store: Store) {
    let service = Service::start(store).await;
    let answer = service.call(reqwest::Method::GET, "/job-service/v1/ping", None, &[]).await.is(200);
    assert_eq!(answer.json(), json!({"success": true}));
}

async fn a_job_is_created_told_and_complete(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    service.create("j", &service.new_job("in")).await;
    let (message, _) = workers.next().await;
    assert_eq!(message["tracking"]["jobTaskId"], service.task("j", ""));
    service.complete("j", "").await;
    service.becomes("j", "Completed", 100.0).await;
}
