//! Claiming messages of the outbox.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::{JobId, PartitionId};
use futures_util::future::join_all;
use harness::wait_for;
use store::{Creation, Incarnation, JobRequest, OutboxMessage};

use crate::fixture::{ANY_SIZE, MINUTE, TestStore, acme, failed, id, in_seconds, request, texts};

suite![
    message_is_claimed_once_until_its_lease_ends,
    each_message_is_claimed_by_one_of_several_relays,
    claim_ends_with_the_message_that_reaches_its_size,
    ended_jobs_leave_no_message_to_claim,
    held_messages_are_claimed_in_turn_between_partitions_and_wait_with_their_jobs,
];

async fn held_messages_are_claimed_in_turn_between_partitions_and_wait_with_their_jobs(
    store: TestStore,
) {
    let other = store.in_another_process().await;
    for job in ["a1", "a2", "a3", "a4"] {
        store.create(job).await;
    }
    for (partition, job) in [("b", "b1"), ("c", "c1")] {
        let partition = PartitionId::parse(partition).unwrap();
        let request = JobRequest::new(partition, id(job));
        store.create_with(request).await;
    }
    let claim = store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    let of = |message: &OutboxMessage| message.partition.clone();
    let partitions: Vec<String> = claim.messages.iter().map(of).collect();
    assert_eq!(partitions, ["acme", "acme", "acme", "acme", "b", "c"]);
    // The second message of the partition is to go first.
    let turns = [2, 1, 3, 4, 1, 1];
    let turns = claim.messages.iter().zip(turns);
    let turns: Vec<_> = turns.map(|(message, turn)| (message.id, turn)).collect();
    let mut signal = other.outbox_signal();
    signal.mark_unchanged();
    store.hold_outbox(&turns).await.unwrap();
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert_eq!(other.held_pipes().await.unwrap(), ["start"]);
    assert_eq!(
        other.count_held(9).await.unwrap(),
        [("start".to_owned(), 6)]
    );
    let claimed = other.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    assert_eq!((claimed.messages, claimed.next_due), (Vec::new(), None));
    assert_eq!(store.backlog().await.unwrap().due_messages, 0);

    let next = async |after: &str, limit: u64| {
        let claim = store.claim_held("start", after, limit, ANY_SIZE, MINUTE);
        let held = claim.await.unwrap().into_iter();
        texts(held.map(|held| held.message).collect())
    };
    assert_eq!(next("", 3).await, ["a2", "b1", "c1"]);
    let a3 = JobId::parse("a3").unwrap();
    store.pause_job(&acme(), &a3).await.unwrap();
    assert_eq!(next("b", 1).await, ["a1"]);
    assert_eq!(next("", 9).await, ["a4"]);
    assert_eq!(next("", 9).await, [""; 0]);
    store.resume_job(&acme(), &a3).await.unwrap();
    assert_eq!(next("z", 9).await, ["a3"]);
    // The relay has died with it.
    assert_eq!(store.held_pipes().await.unwrap(), [""; 0]);
    assert_eq!(store.outbox(9).await.unwrap().len(), 6);
}

async fn message_is_claimed_once_until_its_lease_ends(store: TestStore) {
    let other = store.in_another_process().await;
    store.create("a").await;
    store.create("b").await;
    let first = store.claim_outbox(1, ANY_SIZE, MINUTE).await.unwrap();
    let second = other.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    assert_eq!(
        (
            texts(first.messages.clone()),
            texts(second.messages.clone())
        ),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(first.next_due, Some(Duration::ZERO));
    let none = store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    assert_eq!(none.messages, []);
    // The store returns the time at which the first lease ends.
    assert!(
        none.next_due
            .is_some_and(|due| due > MINUTE / 2 && due <= MINUTE),
        "{none:?}"
    );
    // Claimed messages are still listed.
    assert_eq!(store.outbox_texts().await, ["a", "b"]);

    // A returned message can be claimed by any relay, and waiting relays are woken.
    let mut signal = other.outbox_signal();
    signal.mark_unchanged();
    store
        .lease_outbox(&[(first.messages[0].id, Duration::ZERO)])
        .await
        .unwrap();
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert_eq!(
        texts(
            other
                .claim_outbox(10, ANY_SIZE, Duration::from_millis(30))
                .await
                .unwrap()
                .messages
        ),
        ["a"]
    );
    // Its relay has died.
    let again = wait_for("the lease to end", async || {
        let claim = store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
        if claim.messages.is_empty() {
            Err(format!("{claim:?}"))
        } else {
            Ok(claim)
        }
    })
    .await;
    assert_eq!(texts(again.messages.clone()), ["a"]);
    store
        .outbox_sent(&[again.messages[0].id, second.messages[0].id])
        .await
        .unwrap();
    assert_eq!(store.outbox_texts().await, [""; 0]);
    assert_eq!(
        store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap(),
        store::Claim::default()
    );
}

async fn each_message_is_claimed_by_one_of_several_relays(store: TestStore) {
    join_all((0..60).map(|n| {
        let store = &store;
        async move { store.create(&format!("j{n}")).await }
    }))
    .await;
    let stores = [
        store.in_another_process().await,
        store.in_another_process().await,
        store.clone(),
        store.clone(),
    ];
    let relays = stores.iter().map(|store| async move {
        let mut mine = Vec::new();
        loop {
            let claim = store.claim_outbox(7, ANY_SIZE, MINUTE).await.unwrap();
            if claim.messages.is_empty() {
                return mine;
            }
            let ids: Vec<i64> = claim.messages.iter().map(|message| message.id).collect();
            mine.extend(texts(claim.messages));
            store.outbox_sent(&ids).await.unwrap();
        }
    });
    let all: Vec<String> = join_all(relays)
        .await
        .into_iter()
        .flatten()
        .chain(store.sent().await)
        .collect();
    assert_eq!(
        (all.len(), all.iter().collect::<BTreeSet<_>>().len()),
        (60, 60)
    );
}

async fn claim_ends_with_the_message_that_reaches_its_size(store: TestStore) {
    for (job, bytes) in [("a", 1000), ("b", 3000), ("c", 1), ("d", 1)] {
        let start = move |_: &Incarnation| ("start".to_owned(), vec![b'x'; bytes]);
        let created = store.create_job(&request(job), start).await.unwrap();
        assert!(matches!(created, Creation::Created(_)));
    }
    let sizes = async |limit, bytes| {
        let claim = store.claim_outbox(limit, bytes, MINUTE).await.unwrap();
        let bodies = claim.messages.iter().map(|message| message.body.len());
        bodies.collect::<Vec<_>>()
    };
    assert_eq!(sizes(10, 2000).await, [1000, 3000]);
    assert_eq!(sizes(10, 1).await, [1]);
    assert_eq!(sizes(1, 2000).await, [1]);
    assert_eq!(sizes(10, 2000).await, [0; 0]);
}

async fn ended_jobs_leave_no_message_to_claim(store: TestStore) {
    for job in ["cancelled", "deleted", "failed", "completed"] {
        store.create(job).await;
    }
    store.cancel("cancelled").await;
    store.delete("deleted").await;
    store.report("failed", "", failed("TORN")).await;
    store.complete_jobs(&["completed"]).await;
    assert_eq!(store.sent().await, [""; 0]);
    store.create_scheduled("in-vain", in_seconds(3600)).await;
    store.cancel("in-vain").await;
    assert_eq!(
        store
            .claim_outbox(10, ANY_SIZE, MINUTE)
            .await
            .unwrap()
            .next_due,
        None
    );
}
