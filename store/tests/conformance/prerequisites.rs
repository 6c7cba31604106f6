//! Jobs that wait for other jobs.

use std::collections::BTreeSet;

use contract::JobStatus;
use contract::rest::AwaitedJob;
use futures_util::future::join_all;
use store::{Creation, EventKind, Refusal};

use crate::fixture::{TestStore, acme, after, failed, ids, page_of};

suite![
    job_waits_for_all_its_prerequisites_and_lists_them,
    job_whose_prerequisites_are_completed_starts_at_once,
    refuses_a_job_whose_prerequisite_failed_or_was_cancelled,
    refuses_a_job_that_closes_a_cycle,
    concurrent_creations_never_close_a_cycle,
    dependents_created_while_their_prerequisite_completes_are_started,
    prerequisites_that_complete_concurrently_start_their_dependent_once,
    job_that_had_started_does_not_wait_again_although_nothing_was_reported_of_it,
];

async fn job_waits_for_all_its_prerequisites_and_lists_them(store: TestStore) {
    for job in ["done", "a", "b"] {
        store.create(job).await;
    }
    store.complete_jobs(&["done"]).await;
    store.sent().await;
    store
        .create_scheduled("j", after(&["done", "a", "b,pc", "nobody,pc", "later"]))
        .await;
    let waiting_for = async || store.job("j").await.waiting_for;
    let awaited = |job: &str, status| AwaitedJob {
        job_id: job.to_owned(),
        status,
    };
    assert_eq!(
        waiting_for().await,
        [
            awaited("a", Some(JobStatus::Waiting)),
            awaited("b", Some(JobStatus::Waiting)),
            awaited("later", None)
        ]
    );
    assert_eq!(store.sent().await, [""; 0]);
    store.complete_jobs(&["a"]).await;
    store.report("b", "", EventKind::Progress(50)).await;
    assert_eq!(
        waiting_for().await,
        [
            awaited("b", Some(JobStatus::Active)),
            awaited("later", None)
        ]
    );
    store.create("later").await;
    assert_eq!(store.sent().await, ["later"]);
    store.complete_jobs(&["b"]).await;
    assert_eq!(
        waiting_for().await,
        [awaited("later", Some(JobStatus::Waiting))]
    );
    let mut signal = store.outbox_signal();
    signal.mark_unchanged();
    let recorded = store.report("later", "", EventKind::Complete).await;
    assert_eq!(recorded.finished.len(), 1);
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert_eq!(waiting_for().await, []);
    assert_eq!(store.status("j").await, JobStatus::Waiting);
    assert_eq!(store.sent().await, ["j"]);
    // It starts only once.
    store.complete_jobs(&["later", "a"]).await;
    assert_eq!(store.sent().await, [""; 0]);
    let listed = store.jobs(&acme(), &page_of(9)).await.unwrap();
    assert!(
        listed
            .iter()
            .all(|job| job.waiting_for.is_empty() && job.due_time.is_none())
    );
}

async fn job_whose_prerequisites_are_completed_starts_at_once(store: TestStore) {
    store.create("a").await;
    store.complete_jobs(&["a"]).await;
    store
        .create_scheduled("j", after(&["a", "nobody,pc"]))
        .await;
    assert_eq!(store.sent().await, ["j"]);
}

async fn refuses_a_job_whose_prerequisite_failed_or_was_cancelled(store: TestStore) {
    for job in ["good", "bad", "worse", "gone"] {
        store.create(job).await;
    }
    store.report("worse", "", failed("TORN")).await;
    store.report("bad", "", failed("TORN")).await;
    store.cancel("gone").await;
    store.sent().await;
    let refused = Creation::Refused;
    assert_eq!(
        store
            .try_create("j", after(&["worse", "good", "bad", "gone"]))
            .await,
        refused(Refusal::Failed(ids(&["bad", "worse"])))
    );
    assert_eq!(
        store.try_create("j", after(&["good", "gone,pc"])).await,
        refused(Refusal::Cancelled(ids(&["gone"])))
    );
    assert!(!store.exists("j").await);
    assert_eq!(store.sent().await, [""; 0]);
    // An existing job is returned as such, even if its prerequisite has failed meanwhile.
    store.create_scheduled("j", after(&["good"])).await;
    store.report("good", "", failed("TORN")).await;
    assert_eq!(
        store.try_create("j", after(&["good"])).await,
        Creation::AlreadyThere
    );
}

async fn refuses_a_job_that_closes_a_cycle(store: TestStore) {
    let cycle = |jobs: &[&str]| Creation::Refused(Refusal::Cycle(ids(jobs)));
    assert_eq!(
        store.try_create("a", after(&["a"])).await,
        cycle(&["a", "a"])
    );
    assert_eq!(
        store.try_create("a", after(&["a,pc"])).await,
        cycle(&["a", "a"])
    );
    store.create_scheduled("b", after(&["a"])).await;
    store.create_scheduled("c", after(&["b", "x"])).await;
    assert_eq!(
        store.try_create("a", after(&["c"])).await,
        cycle(&["a", "c", "b", "a"])
    );
    assert_eq!(
        store.try_create("x", after(&["c"])).await,
        cycle(&["x", "c", "x"])
    );
    store.create_scheduled("a", after(&["x"])).await;
    store.create("x").await;
    for (job, next) in [("x", "a"), ("a", "b"), ("b", "c")] {
        assert_eq!(store.sent().await, [job]);
        store.complete_jobs(&[job]).await;
        assert_eq!(store.outbox_texts().await, [next]);
    }
}

async fn concurrent_creations_never_close_a_cycle(store: TestStore) {
    for round in 0..10 {
        let name = |n: usize| format!("r{round}-{}", n % 4);
        // Each job waits for the next one; if all four were created, none would ever start.
        let answers = join_all((0..4).map(|n| {
            let store = &store;
            async move { store.try_create(&name(n), after(&[&name(n + 1)])).await }
        }))
        .await;
        let refused = answers
            .iter()
            .filter(|answer| matches!(answer, Creation::Refused(Refusal::Cycle(_))))
            .count();
        let created = answers
            .iter()
            .filter(|answer| matches!(answer, Creation::Created(_)))
            .count();
        assert_eq!((refused, created), (1, 3), "{answers:?}");
    }
}

async fn dependents_created_while_their_prerequisite_completes_are_started(store: TestStore) {
    for round in 0..10 {
        let prerequisite = format!("p{round}");
        // In every second round the prerequisite does not exist yet either.
        if round % 2 == 0 {
            store.create(&prerequisite).await;
        }
        let created = join_all((0..6).map(|n| {
            let (store, prerequisite) = (&store, &prerequisite);
            async move {
                match n {
                    0 if round % 2 == 0 => store.complete_jobs(&[prerequisite]).await,
                    0 => {
                        store.create(prerequisite).await;
                        store.complete_jobs(&[prerequisite]).await;
                    }
                    n => drop(
                        store
                            .create_scheduled(&format!("r{round}-{n}"), after(&[prerequisite]))
                            .await,
                    ),
                }
            }
        }));
        created.await;
        let sent: BTreeSet<String> = store
            .sent()
            .await
            .into_iter()
            .filter(|job| *job != prerequisite)
            .collect();
        assert_eq!(sent.len(), 5, "{sent:?}");
    }
}

async fn prerequisites_that_complete_concurrently_start_their_dependent_once(store: TestStore) {
    let mut sent = Vec::new();
    for round in 0..10 {
        // Names that sort before and after that of the dependent, because locks are taken in the
        // order of names.
        let prerequisites: Vec<String> = ["a", "b", "y", "z"]
            .iter()
            .map(|name| format!("{name}{round}"))
            .collect();
        for job in &prerequisites {
            store.create(job).await;
        }
        let list: Vec<&str> = prerequisites.iter().map(String::as_str).collect();
        store
            .create_scheduled(&format!("m{round}"), after(&list))
            .await;
        join_all(prerequisites.iter().map(|job| {
            let store = &store;
            async move { store.complete_jobs(&[job]).await }
        }))
        .await;
        sent.extend(store.sent().await);
    }
    let started: Vec<&String> = sent.iter().filter(|job| job.starts_with('m')).collect();
    assert_eq!(started.len(), 10, "{started:?}");
}

async fn job_that_had_started_does_not_wait_again_although_nothing_was_reported_of_it(
    store: TestStore,
) {
    for (job, prerequisite, fails) in [("j", "p", true), ("k", "q", false)] {
        store.create(prerequisite).await;
        store.create_scheduled(job, after(&[prerequisite])).await;
        store.complete_jobs(&[prerequisite]).await;
        store.sent().await;
        if fails {
            store.report(job, "", failed("BROKEN")).await;
        } else {
            store.cancel(job).await;
        }
        store.delete(prerequisite).await;
        let begun = store.retry(job).await;
        assert_eq!(begun.status, JobStatus::Active, "{job}");
        assert_eq!(store.job(job).await.waiting_for, []);
        assert_eq!(store.sent().await.len(), 1, "{job}");
    }
    // Nor does a new job with the id of a prerequisite count.
    for job in ["a", "b"] {
        store.create(job).await;
    }
    store.create_scheduled("l", after(&["a", "b"])).await;
    store.complete_jobs(&["a", "b"]).await;
    store.sent().await;
    store.cancel("l").await;
    store.delete("a").await;
    store.create("a").await;
    store.cancel("a").await;
    assert_eq!(store.retry("l").await.status, JobStatus::Active);
}
