//! Requests with keys, and jobs that replace others.

use std::time::Duration;

use contract::JobStatus;
use contract::rest::TaskState;
use store::{Creation, JobRequest, RequestKey, StoreOptions};

use crate::fixture::{TestStore, acme, after, create, failed, id, request};

suite![
    a_key_creates_one_job,
    of_many_requests_with_one_key_at_once_one_creates_a_job,
    a_request_that_creates_nothing_leaves_its_key,
    keys_are_forgotten_after_their_retention,
    a_job_takes_the_place_of_one_that_has_ended,
    only_the_incarnation_that_was_read_is_replaced_and_only_once_it_has_ended,
    of_many_replacements_at_once_one_is_made,
];

/// Returns a request with a key, which asks for `what`.
fn keyed(job: &str, key: &str, what: u8) -> JobRequest {
    JobRequest {
        key: Some(RequestKey {
            key: key.to_owned(),
            fingerprint: [what; 32],
        }),
        ..request(job)
    }
}

fn replacing(job: &str, incarnation: i64) -> JobRequest {
    JobRequest {
        replaces: Some(incarnation),
        ..request(job)
    }
}

async fn a_key_creates_one_job(mut store: TestStore) {
    store.create_with(keyed("a", "k", 1)).await;
    assert_eq!(
        create(&store, &keyed("b", "k", 1)).await,
        Creation::Repeated(id("a"))
    );
    assert_eq!(
        create(&store, &keyed("b", "k", 2)).await,
        Creation::KeyTaken(id("a"))
    );
    assert!(!store.exists("b").await);
    assert_eq!(store.outbox_texts().await, ["a"]);
    // Keys are compared byte for byte, and each partition has its own.
    store.create_with(keyed("c", "K", 1)).await;
    let elsewhere = JobRequest {
        partition: contract::PartitionId::parse("other").unwrap(),
        ..keyed("a", "k", 2)
    };
    store.create_with(elsewhere).await;
    // A key outlives its job, and the process.
    store.delete("a").await;
    store.reopen().await;
    assert_eq!(
        create(&store, &keyed("b", "k", 1)).await,
        Creation::Repeated(id("a"))
    );
}

async fn of_many_requests_with_one_key_at_once_one_creates_a_job(store: TestStore) {
    let other = store.in_another_process().await;
    for round in 0..5 {
        let key = format!("key-{round}");
        let requests: Vec<_> = (0..8)
            .map(|n| keyed(&format!("job-{round}-{n}"), &key, 1))
            .collect();
        let requests = requests.iter().enumerate();
        let creations = futures_util::future::join_all(requests.map(|(n, request)| {
            let store = if n % 2 == 0 { &*store } else { &other };
            create(store, request)
        }))
        .await;
        let created: Vec<_> = creations
            .iter()
            .filter_map(|creation| match creation {
                Creation::Created(incarnation) => Some(incarnation.job.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(created.len(), 1, "{creations:?}");
        let repeated = Creation::Repeated(created[0].clone());
        let others = creations.iter().filter(|it| **it == repeated);
        assert_eq!(others.count(), 7, "{creations:?}");
    }
    assert_eq!(store.outbox_texts().await.len(), 5);
}

async fn a_request_that_creates_nothing_leaves_its_key(store: TestStore) {
    store.create("f").await;
    store.report("f", "", failed("BROKEN")).await;
    let refused = JobRequest {
        start: after(&["f"]),
        ..keyed("a", "k", 1)
    };
    assert!(matches!(
        create(&store, &refused).await,
        Creation::Refused(_)
    ));
    store.create_with(keyed("b", "k", 2)).await;
}

async fn keys_are_forgotten_after_their_retention(mut store: TestStore) {
    store.create_with(keyed("a", "k", 1)).await;
    let next = store.sweep().await.unwrap().next;
    let day = 24 * 60 * 60 * 1000;
    assert!(next.is_some_and(|next| next <= day), "{next:?}");
    assert_eq!(
        create(&store, &keyed("b", "k", 1)).await,
        Creation::Repeated(id("a"))
    );
    store
        .reopen_with(StoreOptions {
            request_keys_kept: Duration::ZERO,
            events_kept: Duration::ZERO,
            ..StoreOptions::default()
        })
        .await;
    assert_eq!(store.sweep().await.unwrap().next, None);
    store.create_with(keyed("b", "k", 2)).await;
}

async fn a_job_takes_the_place_of_one_that_has_ended(store: TestStore) {
    let first = store.started("j").await;
    store.complete(&first, &["1"]).await;
    store.report(&first, "2", failed("BROKEN")).await;
    let second = store.create_with(replacing("j", first.number)).await;
    assert!(second.number > first.number && !second.first && second.round == 1);
    let job = store.job("j").await;
    assert_eq!(
        (job.status, job.failed_tasks, job.percentage_complete),
        (JobStatus::Waiting, 0, 0.0)
    );
    assert_eq!(store.history("j").await.len(), 1);
    assert_eq!(store.sent().await, ["j"]);
    assert_eq!(store.sweep().await.unwrap().tables, 1);
    // What the job before still reports does not count.
    store.complete(&first, &["2", "3*"]).await;
    assert_eq!(store.status("j").await, JobStatus::Waiting);
    assert_eq!(store.task_status(&second, &[1]).await, None);
    store.complete(&second, &["1*"]).await;
    assert_eq!(
        store.task_status(&second, &[]).await,
        Some(TaskState::Completed)
    );
}

async fn only_the_incarnation_that_was_read_is_replaced_and_only_once_it_has_ended(
    store: TestStore,
) {
    let prerequisite = store.started("p").await;
    let old = store.create_scheduled("j", after(&["p"])).await;
    let again = JobRequest {
        start: after(&["p"]),
        ..replacing("j", old.number)
    };
    assert_eq!(
        create(&store, &again).await,
        Creation::NotEnded(JobStatus::Waiting)
    );
    store.cancel("j").await;
    let new = store.create_with(again.clone()).await;
    // It waits for its prerequisites anew.
    assert_eq!(store.sent().await, [""; 0]);
    assert_eq!(create(&store, &again).await, Creation::NotThere);
    store.complete(&prerequisite, &[""]).await;
    assert_eq!(store.sent().await, ["j"]);
    store.delete("j").await;
    let gone = replacing("j", new.number);
    assert_eq!(create(&store, &gone).await, Creation::NotThere);
    // A job that cannot be created leaves the one before in its place.
    let failed_one = store.started("j").await;
    store.report(&failed_one, "", failed("BROKEN")).await;
    store.started("f").await;
    store.report("f", "", failed("BROKEN")).await;
    let refused = JobRequest {
        start: after(&["f"]),
        ..replacing("j", failed_one.number)
    };
    assert!(matches!(
        create(&store, &refused).await,
        Creation::Refused(_)
    ));
    let kept = store.source(&acme(), &id("j")).await.unwrap().unwrap();
    assert_eq!(kept.incarnation, failed_one.number);
    assert_eq!(store.status("j").await, JobStatus::Failed);
}

async fn of_many_replacements_at_once_one_is_made(store: TestStore) {
    let other = store.in_another_process().await;
    let old = store.started("j").await;
    store.cancel(&old).await;
    let request = replacing("j", old.number);
    let creations = futures_util::future::join_all((0..8).map(|n| {
        let store = if n % 2 == 0 { &*store } else { &other };
        create(store, &request)
    }))
    .await;
    let made = creations
        .iter()
        .filter(|it| matches!(it, Creation::Created(_)));
    assert_eq!(made.count(), 1, "{creations:?}");
    let others = creations.iter().filter(|it| **it == Creation::NotThere);
    assert_eq!(others.count(), 7, "{creations:?}");
    assert_eq!(store.sent().await, ["j"]);
}
