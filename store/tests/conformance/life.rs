//! The keys of lives of jobs: who has the key is answered, and what is gone is gone for all.

use store::{Asked, AskedJob, DatabaseLook, MemoAnswer, MemoPlace};

use crate::fixture::TestStore;

suite![
    worker_with_another_key_is_told_nothing_and_what_is_gone_is_gone_whatever_the_key,
    every_life_has_a_key_of_its_own_in_all_its_rounds,
    life_of_before_there_were_keys_goes_on_without_one,
];

const FOUND: [Asked<()>; 3] = [const { Asked::Found(()) }; 3];
const GONE: [Asked<()>; 3] = [const { Asked::Gone }; 3];
const WRONG_KEY: [Asked<()>; 3] = [const { Asked::WrongKey }; 3];

impl TestStore {
    /// Returns what a worker is told of the status and of a split, and when it keeps a memo.
    async fn asked(&self, of: AskedJob<'_>) -> [Asked<()>; 3] {
        let status = self.job_for_workers(of).await.unwrap().map(drop);
        let split = (**self).split(of, &[], 0).await.unwrap().map(drop);
        let (path, key) = (&[1][..], &"charge".parse().unwrap());
        let place = MemoPlace { of, path, key };
        let (read, kept) = (self.memo(place).await, self.keep_memo(place, "1").await);
        let memo = match (read.unwrap(), kept.unwrap()) {
            (MemoAnswer::NoJob, MemoAnswer::NoJob) => Asked::Gone,
            (MemoAnswer::WrongKey, MemoAnswer::WrongKey) => Asked::WrongKey,
            (_, MemoAnswer::Kept(_)) => Asked::Found(()),
            other => panic!("{other:?}"),
        };
        [status, split, memo]
    }
}

async fn worker_with_another_key_is_told_nothing_and_what_is_gone_is_gone_whatever_the_key(
    store: TestStore,
) {
    let (job, other) = (store.started("j").await, store.started("other").await);
    let of = AskedJob::from(&job);
    let with = |key, is_key_needed| AskedJob {
        key,
        is_key_needed,
        ..of
    };
    let (wrong, needed) = (with(other.key.as_ref(), false), with(None, true));
    for (of, told) in [
        (wrong, WRONG_KEY),
        (needed, WRONG_KEY),
        (of, FOUND),
        (with(None, false), FOUND),
    ] {
        assert_eq!(store.asked(of).await, told, "{of:?}");
        let past = AskedJob {
            incarnation: Some(job.number - 1),
            ..of
        };
        assert_eq!(store.asked(past).await, GONE, "{past:?}");
    }
    store.delete("j").await;
    for of in [of, wrong, needed] {
        assert_eq!(store.asked(of).await, GONE, "{of:?}");
    }
}

async fn every_life_has_a_key_of_its_own_in_all_its_rounds(store: TestStore) {
    let first = store.started("j").await;
    let round = store.retry_after_cancel("j").await;
    assert_eq!((&round.key, round.round), (&first.key, 2));
    store.delete("j").await;
    let second = store.started("j").await;
    assert!(first.key.is_some() && second.key.is_some() && first.key != second.key);
    for (number, key) in [(first.number, None), (second.number, second.key.clone())] {
        let known = store.life_key(&second.partition, &second.job, number);
        assert_eq!(known.await.unwrap(), key);
    }
}

async fn life_of_before_there_were_keys_goes_on_without_one(store: TestStore) {
    let looked = async || DatabaseLook::at(store.url()).await.unwrap();
    let (job, _) = (store.started("j").await, store.create("other").await);
    let before = "update job set life_key = null where job_id = 'j'";
    store.write(before).await;
    assert_eq!(looked().await.jobs_without_key, Some(1));
    let of = AskedJob::from(&job);
    assert_eq!(store.asked(of).await, WRONG_KEY);
    let (key, is_key_needed) = (None, true);
    let without = AskedJob {
        key,
        is_key_needed,
        ..of
    };
    assert_eq!(store.asked(without).await, FOUND);
    assert_eq!(store.retry_after_cancel("j").await.key, None);
    store.cancel("j").await;
    assert_eq!(looked().await.jobs_without_key, Some(0));
}
