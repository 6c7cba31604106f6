//! Watching a job as a stream of events.

use harness::in_time;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

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

/// Reads the events of a job.
struct Watcher {
    response: reqwest::Response,
    read: String,
}

impl Watcher {
    async fn of(service: &Service, job: &str) -> Self {
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
    async fn next(&mut self) -> Option<Value> {
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
