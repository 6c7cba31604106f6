//! The failures of a job: pages and groups, with valid and invalid parameters.

use std::collections::BTreeSet;

use contract::rest::Failure;
use contract::{FailedItem, JobTaskId, ReportFailure};
use reqwest::Method;
use serde_json::json;
use store::{EventKind, TrackingEvent};

use crate::service::{Answer, Service, new_job};

async fn with_failures(count: u32) -> Service {
    let service = Service::start().await;
    let mut job = new_job();
    job["onFailure"] = json!("continue");
    service.put("j", &job).await.is(201);
    for number in 1..=count {
        let failure = ReportFailure {
            failure_id: Some("BROKEN".into()),
            failure_message: Some("torn".into()),
            item: Some(FailedItem::new(Some(&format!("page {number}")), b"{}")),
            ..ReportFailure::default()
        };
        let kind = EventKind::Failed(failure);
        service.report("j", &format!(".{number}"), kind).await;
    }
    service
}

#[tokio::test]
async fn failures_are_listed_page_by_page_with_their_items() {
    let service = with_failures(5).await;
    let first = service.get("/jobs/j/failures?limit=3").await.is(200).json();
    assert_eq!(first["failedTasks"], 5);
    assert_eq!(first["failures"].as_array().unwrap().len(), 3);
    let next = first["next"].as_str().unwrap();
    let path = format!("/jobs/j/failures?limit=3&after={next}");
    let last = service.get(&path).await.is(200).json();
    assert_eq!(last["failures"].as_array().unwrap().len(), 2);
    assert_eq!(last.get("next"), None);
    let failure = &last["failures"][1];
    assert_eq!(
        (&failure["taskId"], &failure["label"], &failure["input"]),
        (&json!("5"), &json!("page 5"), &json!("{}"))
    );
    // The job itself shows them, too.
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["failures"][4], *failure);
    let all = service.get("/jobs/j/failures").await.json();
    assert_eq!(all["failures"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn failures_are_exported_as_one_object_on_each_line() {
    let service = with_failures(0).await;
    let event = |number: u32| TrackingEvent {
        task: JobTaskId::parse(&format!("{}:j.{number}", service.partition)).unwrap(),
        kind: EventKind::Failed(ReportFailure::default()),
    };
    // More than a stream reads at a time.
    let events: Vec<_> = (1..=1100).map(event).collect();
    service.store.record(&events).await.unwrap();
    let export = async |path: &str| {
        let request = service.request(Method::GET, &service.path(path));
        Answer::of(request.header("accept", "text/html, Application/X-NDJSON; q=0.9")).await
    };
    let exported = export("/jobs/j/failures?limit=3").await.is(200);
    assert_eq!(exported.headers["content-type"], "application/x-ndjson");
    let tasks: BTreeSet<String> = exported
        .body
        .lines()
        .map(|line| serde_json::from_str::<Failure>(line).unwrap().task_id)
        .collect();
    assert_eq!((exported.body.lines().count(), tasks.len()), (1100, 1100));
    let page = service.get("/jobs/j/failures?limit=1000").await.json();
    let next = page["next"].as_str().unwrap();
    let rest = export(&format!("/jobs/j/failures?after={next}")).await;
    assert_eq!(rest.body.lines().count(), 100);
    let none = with_failures(0).await;
    let request = none.request(Method::GET, &none.path("/jobs/j/failures"));
    let request = request.header("accept", "application/x-ndjson");
    assert_eq!(Answer::of(request).await.is(200).body, "");
    let unknown = export("/jobs/unknown/failures").await;
    unknown.refuses(404, "ERROR: job_id {unknown} not found");
}

#[tokio::test]
async fn failures_are_grouped_on_request() {
    let service = with_failures(4).await;
    let grouped = service.get("/jobs/j/failures?group=true").await.is(200);
    let grouped = grouped.json();
    let group = &grouped["groups"][0];
    assert_eq!(
        (
            &group["failureId"],
            &group["failureMessage"],
            &group["count"]
        ),
        (&json!("BROKEN"), &json!("torn"), &json!(4))
    );
    assert_eq!(group["example"]["label"], "page 1");
    assert_eq!(grouped["ungrouped"], 0);
}

#[tokio::test]
async fn invalid_parameters_of_failures_are_refused() {
    let service = with_failures(0).await;
    for (query, message) in [
        (
            "limit=x",
            "The parameter 'limit' must be a whole number, but is 'x'.",
        ),
        (
            "after=x",
            "The parameter 'after': 'x' is no place among the failures; use the value of 'next' of the page before.",
        ),
        (
            "group=yes",
            "The parameter 'group' must be true or false, but is 'yes'.",
        ),
        (
            "group=true&limit=3",
            "The parameter 'group' cannot be combined with 'limit' or 'after': the groups are one page.",
        ),
    ] {
        let path = format!("/jobs/j/failures?{query}");
        service.get(&path).await.refuses(400, message);
    }
    for nothing in ["", "?limit=", "?limit=-1", "?after=", "?group="] {
        let path = format!("/jobs/j/failures{nothing}");
        let page = service.get(&path).await.is(200).json();
        assert_eq!(page, json!({"failedTasks": 0, "kept": 0, "failures": []}));
    }
    service
        .get("/jobs/unknown/failures")
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
}
