//! What happens to all jobs, as a stream of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use harness::in_time;
use reqwest::Method;
use serde_json::{Value, json};
use store::{EventKind, FaultPoint, Store, StoreOptions};

use crate::page::page;
use crate::service::{Backend, Service, new_job};

on_both_databases![
    client_that_comes_back_gets_every_event_once_and_in_order,
    all_partitions_have_one_order,
];

async fn client_that_comes_back_gets_every_event_once_and_in_order(backend: Backend) {
    let service = Service::start_on(backend).await;
    let mut open = Stream::of(&service, "/events", None).await;
    service.put("j", &new_job()).await.is(201);
    let created = open.next().await;
    assert_eq!(
        (
            &created.name[..],
            &created.data["jobId"],
            &created.data["to"]
        ),
        ("created", &json!("j"), &json!("Waiting"))
    );
    assert_eq!(created.data["partitionId"], json!(service.partition));
    drop(open);
    service.report("j", ".1", EventKind::Complete).await;
    service.report("j", ".2*", EventKind::Complete).await;
    let mut again = Stream::of(&service, "/events", Some(&created.id)).await;
    service.delete("j").await.is(204);
    let mut steps = Vec::new();
    for _ in 0..3 {
        let event = again.next().await;
        steps.push(format!(
            "{} {} {}",
            event.name, event.data["from"], event.data["to"]
        ));
        assert_eq!(json!(event.id.parse::<i64>().unwrap()), event.data["id"]);
    }
    assert_eq!(
        steps,
        [
            r#"status "Waiting" "Active""#,
            r#"status "Active" "Completed""#,
            r#"deleted "Completed" null"#,
        ]
    );
    let mut oldest = Stream::of(&service, "/events?since=0", None).await;
    assert_eq!(oldest.next().await.id, created.id);
    let mut hour = Stream::of(&service, "/events?since=PT1H", None).await;
    assert_eq!(hour.next().await.id, created.id);
    let mut behind = Stream::of(&service, &format!("/events?since={}", created.id), None).await;
    assert_eq!(behind.next().await.name, "status");
}

async fn all_partitions_have_one_order(backend: Backend) {
    let service = Service::start_on(backend).await;
    let path = "/job-service/v1/events";
    let mut all = Stream::at(service.request(Method::GET, path)).await;
    let mut own = Stream::of(&service, "/events", None).await;
    let elsewhere = "/job-service/v1/partitions/elsewhere/jobs/there";
    let body = Some(new_job().to_string());
    service.call(Method::PUT, elsewhere, body).await.is(201);
    service.put("here", &new_job()).await.is(201);
    assert_eq!(all.next().await.data["jobId"], "there");
    assert_eq!(all.next().await.data["jobId"], "here");
    assert_eq!(own.next().await.data["jobId"], "here");
    service.stop().await;
    assert_eq!(own.try_next().await.map(|event| event.id), None);
}

#[tokio::test]
async fn two_services_on_one_database_send_the_same_events() {
    let one = Service::start_on(Backend::Postgres).await;
    let store = Store::open(one.database_url()).await.unwrap();
    let two = Service::start_over(store).await;
    let path = "/job-service/v1/events";
    let mut at_one = Stream::at(one.request(Method::GET, path)).await;
    let mut at_two = Stream::at(two.request(Method::GET, path)).await;
    let jobs: Vec<String> = (0..20).map(|n| format!("j{n}")).collect();
    let creating = jobs.iter().enumerate().map(async |(at, job)| {
        let service = if at % 2 == 0 { &one } else { &two };
        service.put(job, &new_job()).await.is(201);
    });
    join_all(creating).await;
    let (mut seen, mut names) = (Vec::new(), Vec::new());
    for _ in &jobs {
        let event = at_one.next().await;
        assert_eq!(at_two.next().await.id, event.id);
        seen.push(event.id.parse::<i64>().unwrap());
        names.push(event.data["jobId"].as_str().unwrap().to_owned());
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    names.sort();
    let mut expected = jobs.clone();
    expected.sort();
    assert_eq!(names, expected);
}

#[tokio::test]
async fn stream_says_when_events_are_missing_and_goes_on() {
    let options = StoreOptions {
        most_events: 2,
        ..StoreOptions::default()
    };
    let store = Store::temporary(options);
    let service = Service::start_over(store).await;
    for job in ["a", "b", "c", "d"] {
        service.put(job, &new_job()).await.is(201);
    }
    service.store.sweep().await.unwrap();
    let mut old = Stream::of(&service, "/events", Some("1")).await;
    let reset = old.next().await;
    assert_eq!((&reset.name[..], &reset.id[..]), ("reset", "2"));
    assert_eq!(reset.data["after"], 2);
    let message = reset.data["message"].as_str().unwrap();
    assert!(
        message.contains("Read the list of the jobs again"),
        "{message}"
    );
    assert_eq!(old.next().await.data["jobId"], "c");
    // A reader that asks for the events that are kept misses nothing; nor does one that has seen
    // all that are gone.
    for path in ["/events?since=0", "/events?since=2"] {
        let mut stream = Stream::of(&service, path, None).await;
        assert_eq!(stream.next().await.data["jobId"], "c", "{path}");
    }
    let mut future = Stream::of(&service, "/events", Some("99")).await;
    let reset = future.next().await;
    assert_eq!((&reset.name[..], &reset.id[..]), ("reset", "4"));
    service.put("e", &new_job()).await.is(201);
    assert_eq!(future.next().await.data["jobId"], "e");
}

#[tokio::test]
async fn ids_that_are_none_are_refused_by_name() {
    let service = Service::start().await;
    for id in ["", "x", "-1", "1.5", "9223372036854775808", "1 2"] {
        let refused = service.request(Method::GET, &service.path("/events"));
        let refused = refused.header("Last-Event-ID", id).send().await.unwrap();
        assert_eq!(refused.status(), 400, "{id}");
        let text = refused.text().await.unwrap();
        let named = format!("'Last-Event-ID': '{id}' is no id of an event");
        assert!(text.contains(&named), "{text}");
    }
    for since in ["x", "-1", "P1Y", "2026-01-01"] {
        let refused = service.get(&format!("/events?since={since}")).await;
        refused.refuses(
            400,
            &format!("The parameter 'since': '{since}' is neither the id of an event nor a span of time such as PT10M."),
        );
    }
    let refused = service.get("/events?sinse=1&strict=true").await;
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[tokio::test]
async fn streams_share_the_reads_of_the_store() {
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
    let streams = (0..STREAMS).map(|_| Stream::of(&service, "/events", None));
    let mut streams = join_all(streams).await;
    service.put("warm-up", &new_job()).await.is(201);
    for stream in &mut streams {
        stream.next().await;
    }
    let before = reads.load(Ordering::Relaxed);
    service.report("warm-up", ".1", EventKind::Complete).await;
    for stream in &mut streams {
        assert_eq!(stream.next().await.data["to"], "Active");
    }
    let reads = reads.load(Ordering::Relaxed) - before;
    assert!(reads <= 4, "{reads} reads");
}

#[tokio::test]
async fn list_of_the_page_is_told_when_something_has_happened_in_its_partition() {
    let service = Service::start().await;
    let root = format!("/partitions/{}", service.partition);
    let list = async || page(&service, &format!("{root}/jobs")).await.is(200).body;
    let names_stream = format!(r#"data-events="{root}/live""#);
    assert!(list().await.contains(&names_stream));
    let live = service.request(Method::GET, &format!("{root}/live"));
    let mut live = Stream::at(live).await;
    let elsewhere = "/job-service/v1/partitions/elsewhere/jobs/there";
    let body = Some(new_job().to_string());
    service.call(Method::PUT, elsewhere, body).await.is(201);
    service.put("here", &new_job()).await.is(201);
    // Progress is no event: the list is read every few seconds only while it shows a job at work.
    assert!(!list().await.contains("data-runs"));
    service.report("here", ".1", EventKind::Complete).await;
    assert!(list().await.contains("<table data-runs>"));
    assert_eq!(live.next().await.name, "changed");
    service.delete("here").await.is(204);
    assert!(!list().await.contains("data-runs"));
    assert_eq!(live.next().await.name, "changed");
}

/// Reads a stream of events.
struct Stream {
    response: reqwest::Response,
    read: String,
}

#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Stream {
    async fn of(service: &Service, path: &str, last: Option<&str>) -> Self {
        let request = service.request(Method::GET, &service.path(path));
        Self::at(match last {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        })
        .await
    }

    async fn at(request: reqwest::RequestBuilder) -> Self {
        let response = in_time("the stream to begin", request.send())
            .await
            .unwrap();
        assert_eq!(response.status(), 200, "{response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            read: String::new(),
        }
    }

    async fn next(&mut self) -> Event {
        self.try_next().await.unwrap()
    }

    async fn try_next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().to_owned()
                };
                let (id, name, data) = (field("id: "), field("event: "), field("data: "));
                self.read = rest.to_string();
                if !data.is_empty() {
                    let data = serde_json::from_str(&data).unwrap_or_default();
                    return Some(Event { id, name, data });
                }
                continue;
            }
            let chunk = in_time("an event", self.response.chunk()).await.unwrap()?;
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}
