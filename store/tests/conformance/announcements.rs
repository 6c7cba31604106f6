//! Announcements: which changes of a job write one to the outbox, and how relays claim them.

use std::time::Duration;

use contract::rest::{Above, Tolerance};
use contract::{FailedItem, JobShare, JobStatus, OnFailure};
use harness::wait_for;
use store::{
    Change, ClaimedAnnouncements, EventKind, Incarnation, JobQuery, JobRequest, StartCondition,
};

use crate::expiry::always;
use crate::fixture::{ANY_SIZE, MINUTE, TestStore, acme, after, event, failed, failure, request};

suite![
    change_by_a_client_is_announced,
    failure_is_announced_if_it_leaves_work_and_completion_never_is,
    announcement_outlives_its_job_and_is_not_held_back_with_it,
    announcement_is_claimed_once_until_its_lease_ends,
];

impl TestStore {
    /// Claims all announcements and confirms them as sent, like a relay. Returns the ids of the
    /// jobs.
    async fn announced(&self) -> Vec<String> {
        let claim = self.claim_announcements(1000, MINUTE).await.unwrap();
        self.announcements_sent(&claim).await;
        names(&claim)
    }

    async fn announcements_sent(&self, claim: &ClaimedAnnouncements) {
        let ids: Vec<i64> = claim.announcements.iter().map(|it| it.id).collect();
        self.outbox_sent(&ids).await.unwrap();
    }
}

/// Returns the ids of the announced jobs, which are in the partition `acme`.
fn names(claim: &ClaimedAnnouncements) -> Vec<String> {
    let name = |name: &str| name.strip_prefix("acme:").unwrap().to_owned();
    claim.announcements.iter().map(|it| name(&it.job)).collect()
}

async fn change_by_a_client_is_announced(store: TestStore) {
    let job = store.started("j").await;
    store.create_scheduled("next", after(&["j"])).await;
    store.report(&job, "1", EventKind::Complete).await;
    assert_eq!(store.announced().await, [""; 0], "it has begun");
    store.pause(&job).await;
    assert_eq!(store.announced().await, ["j"]);
    store.pause(&job).await;
    assert_eq!(store.announced().await, [""; 0], "it is paused already");
    let share = JobShare::of(300).unwrap();
    let adjust = || store.adjust_job(&job.partition, &job.job, share);
    assert_eq!(adjust().await.unwrap(), Change::Made);
    assert_eq!(store.job(&job).await.share, share);
    assert_eq!(store.announced().await, ["j"]);
    assert_eq!(adjust().await.unwrap(), Change::NotNeeded);
    assert_eq!(
        store.announced().await,
        [""; 0],
        "it has this share already"
    );
    store.resume(&job).await;
    assert_eq!(store.announced().await, ["j"]);
    store.cancel(&job).await;
    assert_eq!(store.announced().await, ["j", "next"]);
    store.retry(&job).await;
    assert_eq!(store.announced().await, ["j"]);
    store.cancel(&job).await;
    assert_eq!(store.announced().await, ["j"]);
    let second = store
        .create_with(JobRequest {
            replaces: Some(job.number),
            ..request("j")
        })
        .await;
    assert_eq!(store.announced().await, ["j"]);
    store.delete(&second).await;
    assert_eq!(store.announced().await, ["j"]);

    for name in ["a", "b"] {
        store.started(name).await;
    }
    let some = JobQuery::default();
    store.cancel_some_jobs(&acme(), &some, 10).await.unwrap();
    assert_eq!(store.announced().await, ["a", "b"]);
    store.delete_some_jobs(&acme(), &some, 10).await.unwrap();
    assert_eq!(store.announced().await, ["a", "b", "next"]);
    let expired = JobRequest {
        expiry: always("lastUpdateTime+PT0S"),
        ..request("expired")
    };
    store.create_with(expired).await;
    store.complete_jobs(&["expired"]).await;
    assert_eq!(store.sweep().await.unwrap().jobs, 1);
    assert_eq!(store.announced().await, [""; 0], "it had ended before");
}

async fn failure_is_announced_if_it_leaves_work_and_completion_never_is(store: TestStore) {
    let of_batch = || {
        let mut failure = failure("TORN");
        failure.item = Some(FailedItem {
            batch: true,
            ..FailedItem::default()
        });
        EventKind::Failed(failure)
    };
    let tolerant = OnFailure::Tolerate(Tolerance {
        limit: "1".parse().unwrap(),
        above: Above::Stop,
    });
    let (done, torn) = (|| EventKind::Complete, || failed("TORN"));
    for (job, on_failure, events, status, is_announced) in [
        (
            "one-of-several",
            OnFailure::Stop,
            vec![("1", done()), ("2", torn())],
            JobStatus::Failed,
            true,
        ),
        (
            "the-last-one",
            OnFailure::Stop,
            vec![("1", done()), ("3*", done()), ("2", torn())],
            JobStatus::Failed,
            false,
        ),
        (
            "two-at-the-end",
            OnFailure::Continue,
            vec![("1", torn()), ("3*", done()), ("2", torn())],
            JobStatus::Failed,
            false,
        ),
        (
            "own-task",
            OnFailure::Stop,
            vec![("", torn())],
            JobStatus::Failed,
            false,
        ),
        (
            "own-task-after-a-subtask",
            OnFailure::Stop,
            vec![("1", done()), ("", torn())],
            JobStatus::Failed,
            true,
        ),
        (
            "batch",
            OnFailure::Stop,
            vec![("", of_batch())],
            JobStatus::Failed,
            true,
        ),
        (
            "split-as-a-whole",
            OnFailure::Continue,
            vec![("1.1", done()), ("1", torn()), ("2*", done())],
            JobStatus::Failed,
            true,
        ),
        (
            "more-than-tolerated",
            tolerant,
            vec![("1", torn()), ("4*", done()), ("2", torn())],
            JobStatus::Failed,
            true,
        ),
        (
            "tolerated",
            tolerant,
            vec![("1", torn()), ("3*", done()), ("2", done())],
            JobStatus::Completed,
            false,
        ),
        (
            "completed",
            OnFailure::Stop,
            vec![("1", done()), ("2*", done())],
            JobStatus::Completed,
            false,
        ),
    ] {
        let created = store
            .create_with(JobRequest {
                on_failure,
                ..request(job)
            })
            .await;
        // It fails with the job, and no task of it has ever been sent.
        store
            .create_scheduled(&format!("{job}-next"), after(&[job]))
            .await;
        for (path, kind) in events {
            assert_eq!(store.announced().await, [""; 0], "{job}");
            store.record(&[event(&created, path, kind)]).await.unwrap();
        }
        assert_eq!(store.status(&created).await, status, "{job}");
        let expected: Vec<&str> = is_announced.then_some(job).into_iter().collect();
        assert_eq!(store.announced().await, expected, "{job}");
        // What is reported late is announced no more.
        store.report(&created, "2", torn()).await;
        assert_eq!(store.announced().await, [""; 0], "{job}");
    }
}

async fn announcement_outlives_its_job_and_is_not_held_back_with_it(store: TestStore) {
    store.create("paused").await;
    store.pause("paused").await;
    let suspended = StartCondition {
        suspended: true,
        ..StartCondition::default()
    };
    let suspended = store.create_scheduled("suspended", suspended).await;
    fail_in_the_middle(&store, &suspended).await;
    let deleted = store.create("deleted").await;
    fail_in_the_middle(&store, &deleted).await;
    store.delete(&deleted).await;
    // It is no message of a pipe either.
    assert_eq!(store.sent().await, [""; 0]);
    assert_eq!(store.outbox_texts().await, [""; 0]);
    assert_eq!(store.backlog().await.unwrap().due_messages, 4);
    let none = store.claim_outbox(10, ANY_SIZE, MINUTE).await.unwrap();
    assert_eq!(none.next_due, None);
    let expected = ["paused", "suspended", "deleted", "deleted"];
    assert_eq!(store.announced().await, expected);
    assert_eq!(store.backlog().await.unwrap().due_messages, 0);
    assert_eq!(
        store.claim_announcements(10, MINUTE).await.unwrap(),
        ClaimedAnnouncements::default()
    );
    store.resume("paused").await;
    assert_eq!(store.sent().await, ["paused"]);
}

async fn fail_in_the_middle(store: &TestStore, job: &Incarnation) {
    store.report(job, "1", failed("TORN")).await;
}

async fn announcement_is_claimed_once_until_its_lease_ends(store: TestStore) {
    let other = store.in_another_process().await;
    let mut signal = other.announcement_signal();
    signal.mark_unchanged();
    for job in ["a", "b"] {
        store.started(job).await;
        store.cancel(job).await;
    }
    let mut woken = async || {
        let changed = harness::in_time("a wake-up", signal.changed());
        changed.await.unwrap();
    };
    woken().await;
    let first = store.claim_announcements(1, MINUTE).await.unwrap();
    assert_eq!(names(&first), ["a"]);
    assert_eq!(first.next_due, Some(Duration::ZERO));
    let second = other.claim_announcements(10, MINUTE).await.unwrap();
    assert_eq!(names(&second), ["b"]);
    let none = store.claim_announcements(10, MINUTE).await.unwrap();
    assert_eq!(none.announcements, []);
    let due = none.next_due.unwrap();
    assert!(due > MINUTE / 2 && due <= MINUTE, "{due:?}");

    store.announcements_sent(&second).await;
    let given_back = [(first.announcements[0].id, Duration::ZERO)];
    store.lease_outbox(&given_back).await.unwrap();
    woken().await;
    let short = Duration::from_millis(30);
    let again = other.claim_announcements(10, short).await.unwrap();
    assert_eq!(names(&again), ["a"]);
    // Its relay has died.
    let again = wait_for("the lease to end", async || {
        let claim = store.claim_announcements(10, MINUTE).await.unwrap();
        if claim.announcements.is_empty() {
            Err(format!("{claim:?}"))
        } else {
            Ok(claim)
        }
    })
    .await;
    assert_eq!(again.announcements, first.announcements);
}
