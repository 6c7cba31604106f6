//! Watching a job as a stream of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;
use harness::{in_time, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use store::{EventKind, FaultPoint, Store, StoreOptions};

use crate::service::{Service, new_job};

#[tokio::test]
async fn watcher_sees_each_state_of_a_job_until_its_end() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let mut watcher = Watcher::of(&service, "j").await;
    assert_eq!(watcher.next().await.unwrap()["status"], "Waiting");
    service.report("j", ".1", EventKind::Complete).await;
    let job = watcher.next().await.unwrap();
    assert_eq!(
        (&job["status"], &job["completedItems"]),
        (&json!("Active"), &json!(1))
    );
    assert_eq!(job, service.get("/jobs/j").await.json());
    service.report("j", ".2*", EventKind::Complete).await;
    assert_eq!(watcher.next().await.unwrap()["status"], "Completed");
    assert_eq!(watcher.next().await, None, "the stream ends with the job");
    service
        .get("/jobs/unknown/events")
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
}

#[tokio::test]
async fn watch_ends_when_the_job_is_deleted_or_the_service_stops() {
    let service = Service::start().await;
    for job in ["deleted", "left"] {
        service.put(job, &new_job()).await.is(201);
    }
    let (mut deleted, mut left) = (
        Watcher::of(&service, "deleted").await,
        Watcher::of(&service, "left").await,
    );
    deleted.next().await.unwrap();
    left.next().await.unwrap();
    service.delete("deleted").await.is(204);
    assert_eq!(deleted.next().await, Some(json!({})));
    assert_eq!(deleted.next().await, None);
    service.stop().await;
    assert_eq!(left.next().await, None);
}

#[tokio::test]
async fn streams_of_one_job_share_its_reads_and_other_jobs_cause_none() {
    const STREAMS: usize = 50;
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let store = Store::simulated(StoreOptions::default(), move |point| {
        if point == FaultPoint::Read {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        false
    });
    let service = Service::start_over(store).await;
    for job in ["j", "other"] {
        service.put(job, &new_job()).await.is(201);
    }
    let mut watchers = join_all((0..STREAMS).map(|_| Watcher::of(&service, "j"))).await;
    for watcher in &mut watchers {
        assert_eq!(watcher.next().await.unwrap()["status"], "Waiting");
    }
    let before = reads.load(Ordering::Relaxed);
    for task in 1..=5 {
        let task = format!(".{task}");
        service.report("other", &task, EventKind::Complete).await;
    }
    service.report("j", ".1", EventKind::Complete).await;
    for watcher in &mut watchers {
        assert_eq!(watcher.next().await.unwrap()["completedItems"], 1);
    }
    // The row of the job and what belongs to it.
    let reads = reads.load(Ordering::Relaxed) - before;
    assert!(reads <= 5, "{reads} reads");
}

#[tokio::test]
async fn stream_begins_with_a_state_that_is_as_new_as_its_request() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let mut open = Vec::new();
    for task in 1..=10 {
        let steps = format!(".{task}");
        service.report("j", &steps, EventKind::Complete).await;
        let mut watcher = Watcher::of(&service, "j").await;
        assert_eq!(watcher.next().await.unwrap()["completedItems"], task);
        open.push(watcher);
    }
}

#[tokio::test]
async fn stream_of_a_waiting_job_shows_what_becomes_of_its_prerequisite() {
    let service = Service::start().await;
    service.put("first", &new_job()).await.is(201);
    let mut dependent = new_job();
    dependent["prerequisiteJobIds"] = json!(["first"]);
    service.put("second", &dependent).await.is(201);
    let mut watcher = Watcher::of(&service, "second").await;
    let mut prerequisite = async || watcher.next().await.unwrap()["waitingFor"][0].clone();
    assert_eq!(prerequisite().await["status"], "Waiting");
    service.report("first", ".1", EventKind::Complete).await;
    assert_eq!(prerequisite().await["status"], "Active");
    service.report("first", ".2*", EventKind::Complete).await;
    assert_eq!(prerequisite().await, Value::Null);
}

#[tokio::test]
async fn open_streams_outlive_an_outage_of_the_store() {
    let (away, failed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_away, count) = (Arc::clone(&away), Arc::clone(&failed));
    let store = Store::simulated(StoreOptions::default(), move |point| {
        let fails = point == FaultPoint::Read && is_away.load(Ordering::Relaxed);
        count.fetch_add(fails.into(), Ordering::Relaxed);
        fails
    });
    let service = Service::start_over(store).await;
    service.put("j", &new_job()).await.is(201);
    let mut watcher = Watcher::of(&service, "j").await;
    watcher.next().await.unwrap();
    away.store(true, Ordering::Relaxed);
    service.report("j", ".1", EventKind::Complete).await;
    wait_for("the stream to notice", async || {
        let failed = failed.load(Ordering::Relaxed);
        (failed > 0).then_some(()).ok_or(failed.to_string())
    })
    .await;
    let refused = service.get("/jobs/j/events").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    away.store(false, Ordering::Relaxed);
    assert_eq!(watcher.next().await.unwrap()["completedItems"], 1);
}

/// Reads the events of a job.
pub struct Watcher {
    response: reqwest::Response,
    read: String,
}

impl Watcher {
    pub async fn of(service: &Service, job: &str) -> Self {
        let response = service
            .request(Method::GET, &service.path(&format!("/jobs/{job}/events")))
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            read: String::new(),
        }
    }

    /// Returns the data of the next event.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let data = event
                    .lines()
                    .find_map(|line| line.strip_prefix("data:"))
                    .map(|data| serde_json::from_str(data).unwrap());
                self.read = rest.to_string();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let chunk = in_time("an event of the job", self.response.chunk())
                .await
                .unwrap()?;
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}
