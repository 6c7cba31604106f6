//! Deleting jobs whose expiry time has passed.

use std::collections::BTreeMap;

use contract::rest::{Expiry, ExpiryPolicy};
use contract::{JobStatus, ReportFailure};
use futures_util::future::join_all;
use store::{EventKind, Incarnation, JobRequest, Swept};

use crate::fixture::{TestStore, acme, id, request};

suite![
    job_expires_by_the_policy_of_its_outcome,
    unfinished_job_never_expires,
    end_of_a_job_wakes_the_sweeper_and_sweep_returns_the_next_expiry,
    expiry_deletes_a_job_as_a_client_does,
    concurrent_sweeps_delete_expired_jobs_in_bounded_steps,
    job_shows_its_expiry_policy,
];

async fn job_expires_by_the_policy_of_its_outcome(store: TestStore) {
    let at_once = "lastUpdateTime+PT0S";
    for (expiry, gone) in [
        (
            Expiry {
                completed: policy(at_once),
                ..always("none")
            },
            [true, false, false],
        ),
        (
            Expiry {
                failed: policy(at_once),
                ..Expiry::default()
            },
            [false, true, false],
        ),
        (
            Expiry {
                cancelled: policy("2020-02-29T12:00:00+02:00"),
                ..always("lastUpdateTime+P1D")
            },
            [false, false, true],
        ),
        (Expiry::default(), [false, false, false]),
    ] {
        let incarnations = end_each(&store, &expiry).await;
        let swept = store.sweep().await.unwrap();
        assert_eq!(
            swept.jobs,
            gone.iter().filter(|gone| **gone).count() as u64,
            "{expiry:?}"
        );
        for (incarnation, gone) in incarnations.iter().zip(gone) {
            assert_eq!(
                store.exists(incarnation).await,
                !gone,
                "{expiry:?}: {incarnation:?}"
            );
            // The next round creates the same jobs.
            store
                .delete_job(&incarnation.partition, &incarnation.job)
                .await
                .unwrap();
        }
    }
}

async fn unfinished_job_never_expires(store: TestStore) {
    let waiting = create(&store, "waiting", always("2020-01-01T00:00:00Z")).await;
    let active = create(&store, "active", always("createTime+PT0S")).await;
    store.report(&active, "1", EventKind::Complete).await;
    // The events of the jobs are what is due next, a day later.
    let Swept {
        jobs, tables, next, ..
    } = store.sweep().await.unwrap();
    assert_eq!((jobs, tables), (0, 0));
    assert!(next.is_some_and(|next| next > 0), "{next:?}");
    assert_eq!(store.status(&waiting).await, JobStatus::Waiting);
    assert_eq!(store.status(&active).await, JobStatus::Active);
}

async fn end_of_a_job_wakes_the_sweeper_and_sweep_returns_the_next_expiry(store: TestStore) {
    let mut signal = store.sweep_signal();
    signal.mark_unchanged();
    let incarnation = create(&store, "later", always("lastUpdateTime+PT10H")).await;
    store.report(&incarnation, "", EventKind::Complete).await;
    harness::in_time("the end of the job to wake the sweeper", signal.changed())
        .await
        .unwrap();
    let swept = store.sweep().await.unwrap();
    let hours = 10 * 3_600_000;
    assert!(
        swept.jobs == 0
            && swept
                .next
                .is_some_and(|next| next > hours - 60_000 && next <= hours),
        "{swept:?}"
    );
    assert_eq!(store.status(&incarnation).await, JobStatus::Completed);
}

async fn expiry_deletes_a_job_as_a_client_does(store: TestStore) {
    let incarnation = create(&store, "phoenix", always("createTime+PT0S")).await;
    store
        .report(
            &incarnation,
            "1",
            EventKind::Failed(ReportFailure::default()),
        )
        .await;
    assert_eq!(store.task_table_size().await.unwrap().tables, 1);
    let watching = store.job_signal(&acme(), &id("phoenix"));
    // The task table of a failed job is kept for a day, but not longer than the job.
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.jobs, swept.tables), (1, 1));
    assert_eq!(store.task_table_size().await.unwrap().tables, 0);
    harness::in_time("the job watchers to be woken", watching.changed()).await;
    assert_eq!(store.history(&incarnation).await, []);
    // The store remembers the past incarnation, so its late reports do not count for a new one.
    let next = create(&store, "phoenix", Expiry::default()).await;
    assert!(!next.first);
    store.report(&incarnation, "1", EventKind::Complete).await;
    assert_eq!(store.status(&next).await, JobStatus::Waiting);
}

async fn concurrent_sweeps_delete_expired_jobs_in_bounded_steps(store: TestStore) {
    for at in 0..120 {
        let incarnation = create(&store, &format!("j{at}"), always("createTime+PT0S")).await;
        store.report(&incarnation, "", EventKind::Complete).await;
    }
    let first = store.sweep().await.unwrap();
    assert_eq!((first.jobs, first.next), (50, Some(0)));
    let both = join_all([store.sweep(), store.sweep()]).await;
    let mut gone: u64 = both.into_iter().map(|swept| swept.unwrap().jobs).sum();
    while gone < 70 {
        let jobs = store.sweep().await.unwrap().jobs;
        assert_ne!(jobs, 0, "{gone} of 70 are gone");
        gone += jobs;
    }
    assert_eq!(gone, 70);
}

async fn job_shows_its_expiry_policy(store: TestStore) {
    let expiry = Expiry {
        failed: policy("createTime+PT9H"),
        ..Expiry::default()
    };
    let incarnation = create(&store, "shown", expiry.clone()).await;
    assert_eq!(store.job(&incarnation).await.expiry, expiry);
    let bare = create(&store, "bare", Expiry::default()).await;
    assert!(store.job(&bare).await.expiry.is_empty());
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the type of the members of an Expiry"
)]
fn policy(text: &str) -> Option<ExpiryPolicy> {
    Some(ExpiryPolicy {
        expiry_time: text.to_owned(),
        ..ExpiryPolicy::default()
    })
}

/// Returns an expiry with the same policy for every outcome.
pub fn always(text: &str) -> Expiry {
    Expiry {
        completed: policy(text),
        failed: policy(text),
        cancelled: policy(text),
    }
}

async fn create(store: &TestStore, job: &str, expiry: Expiry) -> Incarnation {
    store
        .create_with(JobRequest {
            labels: BTreeMap::from([("of".to_owned(), Some(job.to_owned()))]),
            expiry,
            ..request(job)
        })
        .await
}

/// Ends three jobs with this policy: one completed, one failed, one cancelled.
async fn end_each(store: &TestStore, expiry: &Expiry) -> [Incarnation; 3] {
    let completed = create(store, "done", expiry.clone()).await;
    let failed = create(store, "failed", expiry.clone()).await;
    let cancelled = create(store, "cancelled", expiry.clone()).await;
    store.report(&completed, "", EventKind::Complete).await;
    let failure = EventKind::Failed(ReportFailure::default());
    store.report(&failed, "1", failure).await;
    store.cancel(&cancelled).await;
    [completed, failed, cancelled]
}
