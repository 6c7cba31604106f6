//! Over how many shards of a tracking pipe jobs have been spread.

use std::collections::BTreeSet;

use contract::TrackingShards;
use harness::in_time;

use crate::fixture::TestStore;

suite![
    jobs_that_are_created_one_after_the_other_have_different_shards,
    number_of_shards_of_a_pipe_rises_and_never_falls,
    whoever_waits_is_woken_when_there_are_more_shards,
];

fn shards(number: u32) -> TrackingShards {
    TrackingShards::new(number).unwrap()
}

async fn jobs_that_are_created_one_after_the_other_have_different_shards(store: TestStore) {
    for number in 2..=4 {
        let mut used = BTreeSet::new();
        for job in 0..number {
            let created = store.create(&format!("{job}-of-{number}")).await;
            used.insert(shards(number).pipe("tracking", created.number));
        }
        let all = shards(number).pipes("tracking").into_iter().collect();
        assert_eq!(used, all);
    }
}

async fn number_of_shards_of_a_pipe_rises_and_never_falls(store: TestStore) {
    let noted = async |pipe: &str| store.tracking_shards(pipe).await.unwrap().number();
    assert_eq!(noted("tracking").await, 1);
    for (number, expected) in [(3, 3), (2, 3), (3, 3), (64, 64), (1, 64)] {
        let note = store.note_tracking_shards("tracking", shards(number));
        note.await.unwrap();
        assert_eq!(noted("tracking").await, expected, "after {number}");
    }
    assert_eq!(noted("another").await, 1);
}

async fn whoever_waits_is_woken_when_there_are_more_shards(store: TestStore) {
    let mut signal = store.tracking_shards_signal();
    in_time("a new receiver", signal.changed()).await.unwrap();
    store.note_tracking_shards("t", shards(2)).await.unwrap();
    in_time("more shards", signal.changed()).await.unwrap();
}
