//! Memos: the results of parts of tasks, which a task that runs again passes over.

use std::time::Duration;

use contract::{JobStatus, MemoKey};
use store::{Incarnation, MemoAnswer, MemoBound, MemoLimits, MemoPlace, StoreOptions, Swept};

use crate::fixture::{TestStore, failed};

suite![
    result_that_was_kept_first_is_the_result_in_every_attempt_and_round,
    memo_of_another_job_task_or_incarnation_is_another_one,
    memos_are_bounded_by_task_and_by_job,
    memos_stay_as_long_as_the_job_can_be_taken_up_again,
];

/// A memo of a task of this job, in its round.
struct Of<'a>(&'a TestStore, &'a Incarnation);

impl Of<'_> {
    async fn ask(&self, path: &[u32], key: &str) -> MemoAnswer {
        let key = key.parse().unwrap();
        self.0.memo(self.place(path, &key)).await.unwrap()
    }

    async fn keep(&self, path: &[u32], key: &str, result: &str) -> MemoAnswer {
        let key = key.parse().unwrap();
        let kept = self.0.keep_memo(self.place(path, &key), result);
        kept.await.unwrap()
    }

    fn place<'a>(&'a self, path: &'a [u32], key: &'a MemoKey) -> MemoPlace<'a> {
        MemoPlace {
            of: self.1.into(),
            path,
            key,
        }
    }
}

fn kept(result: &str) -> MemoAnswer {
    MemoAnswer::Kept(result.to_owned())
}

async fn result_that_was_kept_first_is_the_result_in_every_attempt_and_round(store: TestStore) {
    let job = store.started("j").await;
    let of = Of(&store, &job);
    assert_eq!(of.ask(&[3], "charge").await, MemoAnswer::Unknown);
    // Not a letter of the text changes.
    let result = r#"{"a": 0.1, "nul": "\u0000", "ä": 1e400}"#;
    assert_eq!(of.keep(&[3], "charge", result).await, kept(result));
    assert_eq!(of.keep(&[3], "charge", "2").await, kept(result));
    assert_eq!(of.ask(&[3], "charge").await, kept(result));

    store.report(&job, "3", failed("BROKEN")).await;
    assert_eq!(store.status(&job).await, JobStatus::Failed);
    assert_eq!(of.ask(&[3], "charge").await, MemoAnswer::Ended);
    // Another task has done its part, and hears only then that the job has ended.
    assert_eq!(of.keep(&[4], "charge", "4").await, kept("4"));
    let second = store.retry(&job).await.job;
    let later = Of(&store, &second);
    assert_eq!(later.ask(&[3], "charge").await, kept(result));
    assert_eq!(later.ask(&[4], "charge").await, kept("4"));
    // A task of the earlier round does nothing more, but what it has done is done.
    assert_eq!(of.ask(&[3], "charge").await, MemoAnswer::NoJob);
    assert_eq!(of.keep(&[5], "charge", "5").await, kept("5"));
    assert_eq!(later.ask(&[5], "charge").await, kept("5"));
}

async fn memo_of_another_job_task_or_incarnation_is_another_one(store: TestStore) {
    let (job, other) = (store.started("j").await, store.started("other").await);
    let of = Of(&store, &job);
    of.keep(&[], "a", "0").await;
    of.keep(&[1], "a", "1").await;
    of.keep(&[1, 1], "a", "11").await;
    of.keep(&[1], "A", "2").await;
    for (path, key, expected) in [
        (&[][..], "a", kept("0")),
        (&[1], "a", kept("1")),
        (&[1, 1], "a", kept("11")),
        (&[1], "A", kept("2")),
        (&[11], "a", MemoAnswer::Unknown),
        (&[1], "b", MemoAnswer::Unknown),
    ] {
        assert_eq!(of.ask(path, key).await, expected, "{path:?} {key}");
    }
    assert_eq!(Of(&store, &other).ask(&[1], "a").await, MemoAnswer::Unknown);
    store.delete("j").await;
    assert_eq!(of.ask(&[1], "a").await, MemoAnswer::NoJob);
    let again = store.started("j").await;
    assert_eq!(Of(&store, &again).ask(&[1], "a").await, MemoAnswer::Unknown);
    assert_eq!(of.keep(&[1], "b", "1").await, MemoAnswer::NoJob);
    let later = Incarnation { round: 2, ..again };
    assert_eq!(
        Of(&store, &later).keep(&[1], "a", "1").await,
        MemoAnswer::NoJob
    );
}

async fn memos_are_bounded_by_task_and_by_job(mut store: TestStore) {
    let memos = MemoLimits {
        of_task: 2,
        bytes_of_job: 1000,
    };
    let options = StoreOptions {
        memos,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    let job = store.started("j").await;
    let of = Of(&store, &job);
    let large = format!("\"{}\"", "x".repeat(500));
    assert_eq!(of.keep(&[1], "a", "1").await, kept("1"));
    assert_eq!(of.keep(&[1], "b", "1").await, kept("1"));
    let full = MemoAnswer::Full(MemoBound::OfTask(2));
    assert_eq!(of.ask(&[1], "c").await, full);
    assert_eq!(of.keep(&[1], "c", "1").await, full);
    assert_eq!(of.ask(&[1], "a").await, kept("1"));
    // Whoever has been told that there is room has it.
    assert_eq!(of.keep(&[2], "a", &large).await, kept(&large));
    assert_eq!(of.ask(&[3], "a").await, MemoAnswer::Unknown);
    assert_eq!(of.keep(&[3], "a", &large).await, kept(&large));
    let full = MemoAnswer::Full(MemoBound::OfJob(1000));
    assert_eq!(of.ask(&[4], "a").await, full);
    assert_eq!(of.keep(&[4], "a", "1").await, full);
    assert_eq!(of.ask(&[3], "a").await, kept(&large));
    let other = store.started("other").await;
    assert_eq!(Of(&store, &other).keep(&[4], "a", "1").await, kept("1"));
}

async fn memos_stay_as_long_as_the_job_can_be_taken_up_again(mut store: TestStore) {
    let options = StoreOptions {
        failed_tables_kept: Duration::ZERO,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    let mut jobs = Vec::new();
    for name in ["runs", "complete", "deleted", "failed", "swept"] {
        let job = store.started(name).await;
        for key in ["a", "b"] {
            let memo = Of(&store, &job).keep(&[], key, "1").await;
            assert_eq!(memo, kept("1"), "{name}");
        }
        jobs.push(job);
    }
    let [runs, complete, deleted, failed_job, swept] = &jobs[..] else {
        unreachable!()
    };
    store.complete(complete, &[""]).await;
    store.delete(deleted.job.as_str()).await;
    store.report(failed_job, "", failed("BROKEN")).await;
    store.report(swept, "1", failed("BROKEN")).await;
    let Swept { tables, memos, .. } = store.sweep().await.unwrap();
    assert_eq!((tables, memos), (1, 6));
    assert_eq!(store.sweep().await.unwrap().memos, 0);
    assert_eq!(Of(&store, runs).ask(&[], "a").await, kept("1"));
    for job in [complete, deleted, swept] {
        let refused = Of(&store, job).keep(&[], "c", "1").await;
        assert!(matches!(refused, MemoAnswer::Ended | MemoAnswer::NoJob));
    }
    let second = store.retry(failed_job).await.job;
    assert_eq!(Of(&store, &second).ask(&[], "a").await, kept("1"));
}
