//! Cancelling and deleting all jobs that match a filter.

use std::collections::BTreeSet;

use contract::ReportFailure;
use framework::broker::{Broker, Event};
use harness::in_time;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::list::{ask, call};
use crate::service::{Service, new_job};

/// Creates more jobs than fit into two batches. One is completed, one failed and one active.
async fn many_jobs(service: &Service) {
    let task = new_job()["task"].take();
    for n in 0..205 {
        let labels = if n % 2 == 0 {
            json!({"even": null})
        } else {
            json!({})
        };
        service
            .put(
                &format!("job-{n}"),
                &json!({"task": task, "labels": labels}),
            )
            .await
            .is(201);
    }
    service.put("other", &json!({"task": task})).await.is(201);
    service.report("job-0", "", EventKind::Complete).await;
    service
        .report("job-1", "", EventKind::Failed(ReportFailure::default()))
        .await;
    service.report("job-2", ".1", EventKind::Complete).await;
}

#[tokio::test]
async fn bulk_cancel_spans_several_batches() {
    let service = Service::start().await;
    many_jobs(&service).await;
    let mut announced = service.broker.announcements().await.unwrap();
    in_time("the start of announcements", announced.next()).await;
    let cancel = async |query: &[(&str, &str)]| {
        call(&service, Method::POST, "/jobs:cancel", query)
            .await
            .is(200)
            .body
    };
    assert_eq!(
        cancel(&[("filter", "id==job-3*;labels.even!=x")]).await,
        r#"{"jobsCanceled":0}"#
    );
    assert_eq!(
        cancel(&[("jobIdStartsWith", "job-")]).await,
        r#"{"jobsCanceled":203}"#
    );
    assert_eq!(
        cancel(&[("jobIdStartsWith", "job-")]).await,
        r#"{"jobsCanceled":0}"#
    );
    for (filter, count) in [
        ("status==Cancelled", 203),
        ("status==Waiting", 1),
        ("status=in=(Completed,Failed)", 2),
    ] {
        assert_eq!(
            ask(&service, "/jobStats/count", &[("filter", filter)])
                .await
                .json(),
            count,
            "{filter}"
        );
    }
    // Few announcements name all of them.
    let mut named = BTreeSet::new();
    while named.len() < 203 {
        let Some(Event::Message(body)) = in_time("an announcement", announced.next()).await else {
            panic!("the announcements ended")
        };
        let message: Value = serde_json::from_slice(&body).unwrap();
        let jobs = message["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job.as_str().unwrap().to_owned());
        named.extend(jobs);
    }
    assert!(named.contains(&format!("{}:job-204", service.partition)));
    assert!(!named.contains(&format!("{}:job-0", service.partition)));
}
