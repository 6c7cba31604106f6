//! Failed attempts of tasks: when and where they ran, and when the next one is due.

use contract::rest::{FailedAttempt, TaskEntry, TaskState};
use contract::{FailedRun, JobStatus, OnFailure, ReportFailure};
use store::{
    EventKind, Incarnation, JobRequest, StoreOptions, TaskQuery, TasksAnswer, TrackingEvent,
};

use crate::fixture::{TestStore, acme, event, failed, failure, id, page_of, request};

/// A time to come, for as long as these tests are run.
const NEXT: i64 = 4_000_000_000_000;

suite![
    failed_attempts_of_a_task_are_listed_with_time_and_place,
    repeated_and_reordered_retries_are_kept_and_counted_once,
    job_says_when_the_next_of_its_tasks_is_due,
    attempts_beyond_the_limits_are_counted_and_not_kept,
    an_absurd_number_of_attempts_leaves_room_for_those_of_others,
    attempts_of_earlier_rounds_stay_with_their_failures,
    attempts_of_splits_and_of_the_own_task_are_kept,
    job_without_failed_attempts_has_none,
    task_in_the_tree_has_as_many_attempts_as_the_task_itself,
];

async fn failed_attempts_of_a_task_are_listed_with_time_and_place(store: TestStore) {
    let job = store.started("j").await;
    store.report(&job, "3", retry(1, Some(NEXT))).await;
    store.report(&job, "3", retry(2, Some(NEXT + 5))).await;
    let task = store.task(&job, &[3]).await;
    assert_eq!(
        (task.status, task.attempts, task.next_attempt_time),
        (TaskState::Retrying, Some(2), Some(NEXT + 5))
    );
    assert_eq!(numbers(&task.failed_attempts), [(1, Some(1)), (1, Some(2))]);
    let FailedAttempt {
        failure,
        next_attempt_time,
        ..
    } = &task.failed_attempts[0];
    assert_eq!(*next_attempt_time, Some(NEXT));
    assert_eq!(
        (failure.start_time, failure.failure_time),
        (Some(5), Some(7))
    );
    assert_eq!(
        (failure.host.as_deref(), failure.process),
        (Some("host-1"), Some(4711))
    );
    assert_eq!(failure.failure_id.as_deref(), Some("SLOW"));
    assert!(failure.failure_message.as_ref().unwrap().len() <= 1024 + " …".len());
    // Once the next attempt is known to run, nothing is due.
    store
        .report(&job, "3", EventKind::Started { attempts: 2 })
        .await;
    assert_eq!(store.task(&job, &[3]).await.next_attempt_time, None);

    store.report(&job, "3", last(3)).await;
    let task = store.task(&job, &[3]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Failed, Some(3)));
    assert_eq!(
        numbers(&task.failed_attempts),
        [(1, Some(1)), (1, Some(2)), (1, Some(3))]
    );
    assert_eq!(
        task.failed_attempts[2].failure.host.as_deref(),
        Some("host-1")
    );
    let page = store.failures(&acme(), &id("j"), None, 10).await;
    let listed = &page.unwrap().unwrap().failures[0];
    assert_eq!(
        (listed.host.as_deref(), listed.start_time),
        (Some("host-1"), Some(5))
    );
    assert_eq!(store.job(&job).await.failed_attempts, 2);
    store.delete(&job).await;
    store.create("j").await;
    assert_eq!(store.task(&job, &[]).await.failed_attempts, []);
}

async fn task_in_the_tree_has_as_many_attempts_as_the_task_itself(store: TestStore) {
    let job = store.started("j").await;
    // It fails in its first attempt, so no retry is reported before.
    store.report(&job, "1", last(1)).await;
    assert_eq!(store.task(&job, &[1]).await.attempts, Some(1));
    let listed = store.tasks(&acme(), &id("j"), &TaskQuery::new(10)).await;
    let TasksAnswer::Tasks(page) = listed.unwrap() else {
        panic!("the tree of {job:?} is not known")
    };
    let [TaskEntry::Task(task)] = &page.tasks[..] else {
        panic!("{page:?}")
    };
    assert_eq!(task.attempts, Some(1));
}

async fn repeated_and_reordered_retries_are_kept_and_counted_once(store: TestStore) {
    let job = store.started("j").await;
    for attempt in [2, 1, 2, 1] {
        store.report(&job, "1", retry(attempt, None)).await;
    }
    let twice = [
        event(&job, "2", retry(1, None)),
        event(&job, "2", retry(1, None)),
    ];
    store.record(&twice).await.unwrap();
    // A worker of another kind gives no number and no details.
    let unnumbered = EventKind::Retry {
        attempts: None,
        failure: None,
    };
    store.report(&job, "3", unnumbered.clone()).await;
    store.report(&job, "3", unnumbered).await;
    assert_eq!(store.job(&job).await.failed_attempts, 2 + 1 + 1);
    for (number, expected) in [(1, 2), (2, 1), (3, 1)] {
        let task = store.task(&job, &[number]).await;
        assert_eq!(task.failed_attempts.len(), expected, "{task:?}");
        assert_eq!(task.next_attempt_time, None);
    }
    // What is done has no attempts to come.
    store.complete(&job, &["1"]).await;
    store.report(&job, "1", retry(3, Some(NEXT))).await;
    let now = store.job(&job).await;
    assert_eq!((now.failed_attempts, now.next_attempt_time), (4, None));
    let task = store.task(&job, &[1]).await;
    assert_eq!(
        (task.status, task.failed_attempts.len()),
        (TaskState::Completed, 2)
    );
}

async fn job_says_when_the_next_of_its_tasks_is_due(store: TestStore) {
    let job = store.started("j").await;
    store.report(&job, "1", retry(1, Some(NEXT + 60))).await;
    store.report(&job, "2", retry(1, Some(NEXT + 10))).await;
    store.report(&job, "3", retry(1, Some(1000))).await;
    let now = store.job(&job).await;
    assert_eq!(
        (now.items.retrying, now.next_attempt_time),
        (Some(3), Some(NEXT + 10)),
        "the time of the third task is over"
    );
    let all = page_of(10);
    let listed = store.jobs(&acme(), &all).await.unwrap();
    assert_eq!(listed[0].next_attempt_time, Some(NEXT + 10));
    // A new round knows nothing of the waiting of the one before.
    let second = store.retry_after_cancel("j").await;
    assert_eq!(store.job(&second).await.next_attempt_time, None);
    store.report(&second, "4", retry(1, Some(NEXT + 30))).await;
    assert_eq!(store.job(&second).await.next_attempt_time, Some(NEXT + 30));
    store.cancel(&second).await;
    assert_eq!(store.job(&second).await.next_attempt_time, None);
}

async fn attempts_beyond_the_limits_are_counted_and_not_kept(mut store: TestStore) {
    store
        .reopen_with(StoreOptions {
            max_failures: 100,
            ..StoreOptions::default()
        })
        .await;
    let job = store.started("of_one_task").await;
    for attempt in 1..=30 {
        store.report(&job, "1", retry(attempt, Some(NEXT))).await;
    }
    let task = store.task(&job, &[1]).await;
    assert_eq!(task.attempts, Some(30));
    assert_eq!(
        task.failed_attempts.len(),
        20 + 1,
        "the first ones, and the last"
    );
    assert_eq!(task.failed_attempts[20].attempt, Some(30));

    let job = store.started("of_one_job").await;
    for numbers in (1..=150).collect::<Vec<u32>>().chunks(40) {
        let events = retries(&job, numbers);
        store.record(&events).await.unwrap();
    }
    assert_eq!(store.job(&job).await.failed_attempts, 150);
    let mut kept = 0;
    for number in 1..=150 {
        let task = store.task(&job, &[number]).await;
        assert_eq!(
            (task.status, task.next_attempt_time),
            (TaskState::Retrying, Some(NEXT))
        );
        store.complete(&job, &[&number.to_string()]).await;
        kept += store.task(&job, &[number]).await.failed_attempts.len();
    }
    assert_eq!(kept, 100);

    store.reopen_with(StoreOptions::default()).await;
    let job = store.started("of_one_flush").await;
    let events = retries(&job, &(1..=1100).collect::<Vec<_>>());
    store.record(&events).await.unwrap();
    assert_eq!(store.job(&job).await.failed_attempts, 1100);
    store.complete(&job, &["1", "1100"]).await;
    assert_eq!(store.task(&job, &[1]).await.failed_attempts.len(), 1);
    assert_eq!(store.task(&job, &[1100]).await.failed_attempts, []);
}

async fn an_absurd_number_of_attempts_leaves_room_for_those_of_others(store: TestStore) {
    let job = store.started("j").await;
    for attempts in [i32::MAX, 7, i32::MIN] {
        store.report(&job, "1", retry(attempts, None)).await;
    }
    store.report(&job, "", retry(i32::MAX, None)).await;
    store.report(&job, "2", retry(2, None)).await;
    assert_eq!(store.task(&job, &[1]).await.attempts, Some(i32::MAX));
    let other = store.task(&job, &[2]).await;
    assert_eq!(numbers(&other.failed_attempts), [(1, Some(2))]);
    assert_eq!(store.job(&job).await.failed_attempts, 1000 + 1000 + 2);
}

async fn attempts_of_earlier_rounds_stay_with_their_failures(store: TestStore) {
    let first = store
        .create_with(JobRequest {
            on_failure: OnFailure::Continue,
            ..request("j")
        })
        .await;
    store.report(&first, "1", retry(1, None)).await;
    store.report(&first, "1", last(2)).await;
    store.complete(&first, &["2*"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Failed);

    let second = store.retry(&first).await.job;
    let task = store.task(&second, &[1]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Waiting, None));
    assert_eq!(task.earlier_failures[0].attempts, Some(2));
    assert_eq!(numbers(&task.failed_attempts), [(1, Some(1)), (1, Some(2))]);
    store.report(&second, "1", retry(1, None)).await;
    // That of the earlier round is over.
    store.report(&first, "1", retry(3, None)).await;
    store.report(&second, "1", failed("BROKEN")).await;
    let task = store.task(&second, &[1]).await;
    assert_eq!(
        numbers(&task.failed_attempts),
        [(1, Some(1)), (1, Some(2)), (2, Some(1)), (2, Some(2))]
    );
    assert_eq!(store.job(&second).await.failed_attempts, 2);
}

async fn attempts_of_splits_and_of_the_own_task_are_kept(store: TestStore) {
    let job = store.started("j").await;
    // Attempts of the own task and of a split, before and after what they have dispatched is
    // reported.
    store.report(&job, "", retry(1, Some(NEXT))).await;
    assert_eq!(store.job(&job).await.next_attempt_time, Some(NEXT));
    assert_eq!(store.task(&job, &[]).await.next_attempt_time, Some(NEXT));
    store.report(&job, "1", retry(1, None)).await;
    store.complete(&job, &["1.1"]).await;
    store.report(&job, "1", retry(2, None)).await;
    store.report(&job, "1", retry(2, None)).await;
    store.report(&job, "", retry(2, None)).await;
    assert_eq!(store.job(&job).await.failed_attempts, 4);
    for path in [&[][..], &[1]] {
        let task = store.task(&job, path).await;
        assert_eq!(
            numbers(&task.failed_attempts),
            [(1, Some(1)), (1, Some(2))],
            "{path:?}"
        );
    }
    // The next round counts anew.
    let second = store.retry_after_cancel("j").await;
    store.report(&second, "1", retry(1, None)).await;
    assert_eq!(store.job(&second).await.failed_attempts, 5);
}

async fn job_without_failed_attempts_has_none(store: TestStore) {
    let job = store.started("j").await;
    store.complete(&job, &["1"]).await;
    store.report(&job, "2", failed("BROKEN")).await;
    let now = store.job(&job).await;
    assert_eq!((now.failed_attempts, now.next_attempt_time), (0, None));
    assert_eq!(store.task(&job, &[1]).await.failed_attempts, []);
    // The failure is the only attempt.
    let task = store.task(&job, &[2]).await;
    assert_eq!(numbers(&task.failed_attempts), [(1, None)]);
}

fn numbers(attempts: &[FailedAttempt]) -> Vec<(u32, Option<i32>)> {
    attempts.iter().map(|it| (it.round, it.attempt)).collect()
}

/// Returns the first failed attempt of each of these tasks.
fn retries(job: &Incarnation, numbers: &[u32]) -> Vec<TrackingEvent> {
    let retry = |number: &u32| event(job, &number.to_string(), retry(1, Some(NEXT)));
    numbers.iter().map(retry).collect()
}

fn retry(attempt: i32, next: Option<i64>) -> EventKind {
    EventKind::Retry {
        attempts: Some(attempt),
        failure: Some(ran("SLOW", attempt, next)),
    }
}

/// Returns the last failure of a task, in the attempt with this number.
fn last(attempt: i32) -> EventKind {
    EventKind::Failed(ran("BROKEN", attempt, None))
}

fn ran(kind: &str, attempt: i32, next: Option<i64>) -> ReportFailure {
    let message = format!("{}\0", "ü".repeat(2000));
    ReportFailure {
        failure_message: Some(message),
        run: Some(FailedRun {
            attempt: u32::try_from(attempt).ok(),
            began: Some(5),
            host: Some("host-1".to_owned()),
            process: Some(4711),
            next,
        }),
        ..failure(kind)
    }
}
