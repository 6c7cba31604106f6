//! The relay of start messages and announcements to the broker, also when the broker refuses them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contract::{JobId, JobStatus, PartitionId, TaskMessage, Tracking};
use framework::broker::embedded::{Embedded, EmbeddedOptions};
use framework::broker::memory::Memory;
use framework::broker::{Broker, BrokerState, Confirm, Event, PublishError};
use framework::health::Health;
use futures_util::future::join_all;
use harness::{Database, in_time, wait_for};
use job_service::JobService;
use reqwest::Method;
use serde_json::Value;
use store::{JobQuery, JobRequest, Store, StoreOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::service::{Backend, Service, new_job, options};

on_both_databases![starting_service_sends_what_is_left_in_the_outbox,];

#[tokio::test]
async fn new_job_is_refused_while_the_embedded_broker_is_short_of_space() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        reserve: u64::MAX,
        ..EmbeddedOptions::default()
    };
    let broker = Embedded::open_with(folder.path(), options).await;
    let broker = Arc::new(broker.unwrap());
    wait_for("the broker to block", async || match broker.state() {
        BrokerState::Blocked(_) => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
    let service = Service::start_beside(broker).await;
    let answer = service.put("j", &new_job()).await.is(503);
    assert!(answer.body.contains("short of space"), "{}", answer.body);
    service.get("/jobs/j").await.is(404);
}

async fn starting_service_sends_what_is_left_in_the_outbox(backend: Backend) {
    let database = Database::create(backend).await;
    let store = Store::open(&database.url).await.unwrap();
    for n in 0..3 {
        create(&store, n, "in").await;
    }
    assert_eq!(store.outbox(10).await.unwrap().len(), 3);
    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    outbox_is_empty(&store).await;
    background.stop().await;
    // In the order in which the jobs were created.
    let mut consumer = broker.consume("in", 10).await.unwrap();
    for n in 0..3 {
        let delivery = harness::in_time("a message", consumer.next())
            .await
            .unwrap();
        assert_eq!(delivery.body(), n.to_string());
        delivery.ack();
    }
}

#[tokio::test]
async fn every_one_of_many_jobs_starts() {
    let store = Store::temporary(StoreOptions::default());
    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    for chunk in (0..1200_u32).collect::<Vec<_>>().chunks(100) {
        join_all(chunk.iter().map(|n| create(&store, *n, "in"))).await;
    }
    let mut consumer = broker.consume("in", 10).await.unwrap();
    let mut started = BTreeSet::new();
    while started.len() < 1200 {
        let delivery = in_time("a message", consumer.next()).await.unwrap();
        assert!(started.insert(delivery.body()), "{:?}", delivery.body());
        delivery.ack();
    }
    outbox_is_empty(&store).await;
    background.stop().await;
}

#[tokio::test]
async fn job_of_another_partition_does_not_wait_behind_many_in_a_pipe_that_nobody_empties() {
    const JOBS: u32 = 1000;
    let store = Store::temporary(StoreOptions::default());
    for n in 0..JOBS {
        create(&store, n, "in").await;
    }
    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    let bodies = async || {
        let peeked = broker.peek("in", JOBS as usize, usize::MAX).await;
        let messages = peeked.unwrap().unwrap_or_default();
        messages
            .into_iter()
            .map(|message| message.body)
            .collect::<Vec<_>>()
    };
    let before = wait_for("the first messages", async || match bodies().await.len() {
        0 => Err("none".to_owned()),
        some => Ok(some),
    });
    let before = before.await;
    let partition = PartitionId::parse("another").unwrap();
    let request = JobRequest::new(partition, JobId::parse("j").unwrap());
    let created = store.create_job(&request, |_| ("in".to_owned(), b"another".to_vec()));
    created.await.unwrap();
    let ahead = wait_for("the other job", async || {
        let bodies = bodies().await;
        let at = bodies.iter().position(|body| &**body == b"another");
        at.ok_or_else(|| format!("{}", bodies.len()))
    });
    let ahead = ahead.await;
    assert!(ahead < before + 100, "{before} {ahead}");
    assert!(store.outbox(JOBS).await.unwrap().len() > 500);
    background.stop().await;
}

#[tokio::test]
async fn refused_message_does_not_block_the_others() {
    let store = Store::temporary(StoreOptions::default());
    for n in 0..2 {
        create(&store, n, "full").await;
    }
    let memory = Memory::new();
    let refused = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&refused);
    let broker = memory.clone().intercepting(move |message| {
        let next = |times: u32| (times < 6).then_some(times + 1);
        let is_full = &*message.pipe == "full"
            && count
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
                .is_ok();
        if is_full {
            let error = PublishError::refused("full", "it is full");
            return Err(Confirm::ready(Err(error)));
        }
        Ok(message)
    });
    let background = Background::start(&store, Arc::new(broker));
    create(&store, 2, "in").await;
    wait_for(
        "the message behind the refused ones",
        async || match memory.depth("in").await {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    // The relay repeats refused messages until the broker accepts them.
    outbox_is_empty(&store).await;
    assert_eq!(
        (
            memory.depth("full").await.unwrap(),
            memory.depth("in").await.unwrap()
        ),
        (2, 1)
    );
    assert_eq!(refused.load(Ordering::Relaxed), 6);
    background.stop().await;
}

#[tokio::test]
async fn pipe_that_never_confirms_does_not_hold_up_the_others() {
    let store = Store::temporary(StoreOptions::default());
    let memory = Memory::new();
    let (hung, mut published) = tokio::sync::mpsc::unbounded_channel();
    let broker = memory.clone().intercepting(move |message| {
        if &*message.pipe != "hung" {
            return Ok(message);
        }
        // The test keeps the other end.
        let (confirmer, confirm) = Confirm::pair();
        hung.send(confirmer).unwrap();
        Err(confirm)
    });
    let background = Background::start(&store, Arc::new(broker));
    create(&store, 0, "hung").await;
    let confirmer = harness::in_time("the message for the pipe that hangs", published.recv());
    let confirmer = confirmer.await.unwrap();
    create(&store, 1, "in").await;
    wait_for("the message for the other pipe", async || {
        match memory.depth("in").await {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(store.outbox(10).await.unwrap()[0].body, b"0");
    confirmer.resolve(Ok(()));
    outbox_is_empty(&store).await;
    // It was sent once.
    assert!(published.try_recv().is_err());
    background.stop().await;
}

#[tokio::test]
async fn announcements_of_many_jobs_share_messages_and_wait_for_no_pipe_that_does_not_confirm() {
    let store = Store::temporary(StoreOptions::default());
    let memory = Memory::new();
    let (hung, published) = tokio::sync::mpsc::unbounded_channel();
    let broker = memory.clone().intercepting(move |message| {
        // The test keeps the other end.
        let (confirmer, confirm) = Confirm::pair();
        hung.send((message, confirmer)).unwrap();
        Err(confirm)
    });
    // As many messages as the relay leaves without a confirm, and some that it does not claim.
    let (stuck, more) = (5000, 5100);
    for n in 0..more {
        create(&store, n, "hung").await;
    }
    let background = Background::start(&store, Arc::new(broker));
    wait_for("the relay to stop claiming", async || {
        match published.len() {
            sent if sent == stuck => Ok(()),
            sent => Err(format!("{sent} messages")),
        }
    })
    .await;
    let mut heard = memory.announcements().await.unwrap();
    assert_eq!(heard.next().await, Some(Event::Missed));
    let JobRequest { partition, .. } = request(0);
    let all = JobQuery::default();
    let cancelled = store.cancel_some_jobs(&partition, &all, 1200);
    assert_eq!(cancelled.await.unwrap().len(), 1200);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 1200 {
        let event = harness::in_time("an announcement", heard.next()).await;
        let Some(Event::Message(body)) = event else {
            panic!("{event:?}")
        };
        let message: Value = serde_json::from_slice(&body).unwrap();
        sizes.push(message["jobs"].as_array().unwrap().len());
    }
    assert_eq!(sizes, [1000, 200]);
    wait_for("the announcements to leave the outbox", async || {
        let claim = store.claim_announcements(1, Duration::ZERO).await.unwrap();
        claim.next_due.map_or(Ok(()), |due| Err(format!("{due:?}")))
    })
    .await;
    assert_eq!(published.len(), stuck);
    background.stop().await;
}

#[tokio::test]
async fn starting_service_announces_what_an_earlier_one_has_left() {
    let store = Store::temporary(StoreOptions::default());
    create(&store, 0, "in").await;
    let JobRequest { partition, job, .. } = request(0);
    // Twice, and the job is gone: one announcement.
    store.pause_job(&partition, &job).await.unwrap();
    store.delete_job(&partition, &job).await.unwrap();
    let broker = Memory::new();
    let mut heard = broker.announcements().await.unwrap();
    assert_eq!(heard.next().await, Some(Event::Missed));
    let background = Background::start(&store, Arc::new(broker));
    let event = harness::in_time("an announcement", heard.next()).await;
    let expected = Event::Message(r#"{"jobs":["p:j0"]}"#.into());
    assert_eq!(event, Some(expected));
    background.stop().await;
}

#[tokio::test(start_paused = true)]
async fn degradation_ends_with_the_job_whose_message_the_broker_refused() {
    let store = Store::temporary(StoreOptions::default());
    let broker = Memory::new().intercepting(|message| match &*message.pipe {
        "full" => {
            let error = PublishError::refused("full", "it is full");
            Err(Confirm::ready(Err(error)))
        }
        _ => Ok(message),
    });
    let background = Background::start(&store, Arc::new(broker));
    create(&store, 0, "full").await;
    let degradations = || background.health.degradations();
    wait_for("the degradation", async || match degradations() {
        found if found.is_empty() => Err("none".to_owned()),
        _ => Ok(()),
    })
    .await;
    let JobRequest { partition, job, .. } = request(0);
    store.cancel_job(&partition, &job).await.unwrap();
    wait_for("the end of the degradation", async || {
        match degradations() {
            found if found.is_empty() => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
    background.stop().await;
}

#[tokio::test]
async fn start_message_that_can_never_be_sent_fails_its_job_alone() {
    let store = Store::temporary(StoreOptions::default());
    // The second job is from a service with other settings, which did not refuse its pipe.
    let impossible = [(0, "x".repeat(256)), (2, "in.delay.400".to_owned())];
    for (n, pipe) in impossible.clone() {
        let start = move |incarnation: &store::Incarnation| {
            let tracking = Tracking {
                job_task_id: Some(incarnation.job_task_id()),
                ..Tracking::default()
            };
            let message = TaskMessage {
                tracking: Some(tracking),
                ..TaskMessage::new("t", "", &contract::BatchTask::default()).unwrap()
            };
            (pipe.clone(), message.encode())
        };
        store.create_job(&request(n), start).await.unwrap();
    }
    create(&store, 1, "in").await;
    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    outbox_is_empty(&store).await;
    background.stop().await;
    assert_eq!(broker.depth("in").await.unwrap(), 1);
    let job = |n: u32| {
        let JobRequest { partition, job, .. } = request(n);
        let store = store.clone();
        async move { store.job(&partition, &job).await.unwrap().unwrap() }
    };
    assert_eq!(job(1).await.status, JobStatus::Waiting);
    for (n, text) in [
        (0, "cannot exist: the name has 256 bytes; the limit is 255"),
        (2, "no task may be addressed to the pipe 'in.delay.400'"),
    ] {
        let failed = job(n).await;
        assert_eq!(failed.status, JobStatus::Failed);
        let failure = &failed.failures[0];
        assert_eq!(failure.failure_id.as_deref(), Some("UNDELIVERABLE"));
        let reason = failure.failure_message.as_deref().unwrap();
        assert!(reason.contains(text), "{reason}");
    }
    assert_eq!(broker.depth("in.delay.400").await.unwrap(), 0);
}

#[tokio::test]
async fn next_service_sends_messages_that_a_closed_broker_did_not_accept() {
    let store = Store::temporary(StoreOptions::default());
    let closed = Arc::new(Memory::new());
    closed.close().await;
    let background = Background::start(&store, closed);
    create(&store, 0, "in").await;
    background.stop().await;
    assert_eq!(store.outbox(10).await.unwrap().len(), 1);

    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    outbox_is_empty(&store).await;
    background.stop().await;
    assert_eq!(broker.depth("in").await.unwrap(), 1);
}

#[tokio::test]
async fn stopped_service_ends() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    service.stop().await;
    assert!(
        service
            .request(Method::GET, "/job-service/v1/ping")
            .send()
            .await
            .is_err()
    );
}

/// A relay and a sweeper without HTTP.
struct Background {
    tracker: TaskTracker,
    stop: CancellationToken,
    health: Health,
}

impl Background {
    fn start(store: &Store, broker: Arc<dyn Broker>) -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let (options, token) = (options("http://127.0.0.1"), stop.clone());
        let health = options.health.clone();
        let service = JobService::new(store.clone(), broker, options);
        tracker.spawn(async move { service.run_background(token).await });
        tracker.close();
        Self {
            tracker,
            stop,
            health,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        harness::in_time("the service to end", self.tracker.wait()).await;
    }
}

async fn create(store: &Store, n: u32, pipe: &str) {
    let start = (pipe.to_owned(), n.to_string().into_bytes());
    store
        .create_job(&request(n), move |_| start.clone())
        .await
        .unwrap();
}

fn request(n: u32) -> JobRequest {
    JobRequest::new(
        PartitionId::parse("p").unwrap(),
        JobId::parse(&format!("j{n}")).unwrap(),
    )
}

async fn outbox_is_empty(store: &Store) {
    wait_for("the outbox to be empty", async || {
        match store.outbox(10).await {
            Ok(messages) if messages.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn relay_survives_an_unavailable_database() {
    let server = harness::PostgresServer::start().await.unwrap();
    let store = Store::open(&server.create_database().await.unwrap().url)
        .await
        .unwrap();
    let broker = Memory::new();
    let background = Background::start(&store, Arc::new(broker.clone()));
    create(&store, 0, "in").await;
    outbox_is_empty(&store).await;

    server.kill().await.unwrap();
    server.start_again().await.unwrap();
    wait_for("the store to accept a job again", async || {
        store
            .create_job(&request(1), |_| ("in".to_owned(), b"1".to_vec()))
            .await
            .map_err(|error| error.to_string())
    })
    .await;
    outbox_is_empty(&store).await;
    background.stop().await;
    assert!(broker.depth("in").await.unwrap() >= 2);
}
