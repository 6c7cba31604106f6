//! When jobs start: delays and suspended partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::{JobStatus, PartitionId};
use harness::wait_for;
use store::StartCondition;

use crate::fixture::{ANY_SIZE, MINUTE, TestStore, acme, after, in_seconds};

suite![
    delayed_job_starts_after_its_delay_and_shows_its_due_time,
    delay_counts_from_the_completion_of_the_last_prerequisite,
    suspended_job_starts_only_when_its_partition_is_dispatched,
];

async fn delayed_job_starts_after_its_delay_and_shows_its_due_time(store: TestStore) {
    store.create_scheduled("late", in_seconds(3600)).await;
    store.create_scheduled("soon", in_seconds(1)).await;
    let (late, soon) = (store.job("late").await, store.job("soon").await);
    assert_eq!((late.delay, late.status), (3600, JobStatus::Waiting));
    let due = late.due_time.unwrap() - late.create_time;
    assert!((3_599_000..=3_601_000).contains(&due), "{due}");
    assert!(soon.due_time.is_some());
    let claim = store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    assert!(
        claim.messages.is_empty()
            && claim
                .next_due
                .is_some_and(|due| due <= Duration::from_secs(1)),
        "{claim:?}"
    );
    assert_eq!(store.outbox_texts().await, [""; 0]);
    wait_for("the delay to be over", async || {
        match store.outbox_texts().await {
            due if due == ["soon"] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(store.sent().await, ["soon"]);
    assert_eq!(store.job("soon").await.due_time, None);
}

async fn delay_counts_from_the_completion_of_the_last_prerequisite(store: TestStore) {
    store.create("a").await;
    store.create("b").await;
    store.sent().await;
    store
        .create_scheduled(
            "j",
            StartCondition {
                delay: 3600,
                ..after(&["a", "b"])
            },
        )
        .await;
    assert_eq!(store.job("j").await.due_time, None);
    assert_eq!(
        store
            .claim_outbox(10, ANY_SIZE, MINUTE)
            .await
            .unwrap()
            .next_due,
        None
    );
    store.complete_jobs(&["a"]).await;
    assert_eq!(store.job("j").await.due_time, None);
    store.complete_jobs(&["b"]).await;
    let (due, completed) = (
        store.job("j").await.due_time.unwrap(),
        store.job("b").await.last_update_time,
    );
    assert!(
        (3_599_000..=3_601_000).contains(&(due - completed)),
        "{}",
        due - completed
    );
    assert_eq!(store.sent().await, [""; 0]);
}

async fn suspended_job_starts_only_when_its_partition_is_dispatched(store: TestStore) {
    store.create("a").await;
    store.create_scheduled("j", suspended()).await;
    store
        .create_scheduled(
            "waits",
            StartCondition {
                suspended: true,
                ..after(&["a"])
            },
        )
        .await;
    store
        .create_scheduled(
            "both",
            StartCondition {
                suspended: true,
                ..after(&["a"])
            },
        )
        .await;
    store
        .create_scheduled(
            "late",
            StartCondition {
                delay: 3600,
                ..suspended()
            },
        )
        .await;
    assert_eq!(store.sent().await, ["a"]);
    assert!(store.job("j").await.suspended && !store.job("a").await.suspended);
    store.complete_jobs(&["a"]).await;
    assert_eq!(store.sent().await, [""; 0]);
    assert_eq!(
        store
            .claim_outbox(10, ANY_SIZE, MINUTE)
            .await
            .unwrap()
            .next_due,
        None
    );
    store.cancel("both").await;
    let other = PartitionId::parse("other").unwrap();
    assert_eq!(store.dispatch_partition(&other).await.unwrap(), 0);
    let mut signal = store.outbox_signal();
    signal.mark_unchanged();
    assert_eq!(store.dispatch_partition(&acme()).await.unwrap(), 3);
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert!(!store.job("j").await.suspended);
    assert_eq!(
        store.sent().await.into_iter().collect::<BTreeSet<_>>(),
        ["j", "waits"].map(str::to_owned).into()
    );
    assert_eq!(store.dispatch_partition(&acme()).await.unwrap(), 0);
    // A dispatched job still waits for its prerequisites.
    store.create("b").await;
    store
        .create_scheduled(
            "k",
            StartCondition {
                suspended: true,
                ..after(&["b"])
            },
        )
        .await;
    store.dispatch_partition(&acme()).await.unwrap();
    assert_eq!(store.sent().await, ["b"]);
    store.complete_jobs(&["b"]).await;
    assert_eq!(store.sent().await, ["k"]);
}

fn suspended() -> StartCondition {
    StartCondition {
        suspended: true,
        ..StartCondition::default()
    }
}
