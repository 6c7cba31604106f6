//! The effects of the end of a job on the jobs that wait for it.

use std::collections::{BTreeMap, BTreeSet};

use contract::{JobStatus, JobTaskId, ReportFailure};
use store::{EventKind, JobQuery, TrackingEvent};

use crate::fixture::{TestStore, acme, after, page_of};

suite![
    failure_fails_all_dependents_and_names_the_failed_job,
    cancellation_cancels_all_dependents,
    cancelled_dependent_neither_starts_nor_fails,
    deletion_cancels_dependents_unless_the_job_was_completed,
    bulk_cancel_and_delete_include_dependents,
    chain_and_fan_of_a_thousand_dependents_end_in_one_transaction,
];

async fn failure_fails_all_dependents_and_names_the_failed_job(store: TestStore) {
    store.create("root").await;
    store.create("other").await;
    // Some names sort before the root's, so the first attempt lacks locks and is repeated.
    store.create_scheduled("b", after(&["root", "other"])).await;
    store.create_scheduled("a", after(&["b", "root"])).await;
    store.create_scheduled("z", after(&["a", "later"])).await;
    store.create_scheduled("beside", after(&["other"])).await;
    let recorded = store.report("root", "", failed()).await;
    let mut finished: Vec<_> = recorded
        .finished
        .iter()
        .map(|(incarnation, status)| (incarnation.job.as_str(), *status))
        .collect();
    finished.sort_unstable();
    assert_eq!(
        finished,
        ["a", "b", "root", "z"].map(|job| (job, JobStatus::Failed))
    );
    for job in ["a", "b", "z"] {
        let state = store.job(job).await;
        assert_eq!(
            (state.status, state.percentage_complete, state.failed_tasks),
            (JobStatus::Failed, 0.0, 1),
            "{job}"
        );
        assert_eq!(
            state.failure_counts,
            BTreeMap::from([("TORN".to_owned(), 1)])
        );
        let failure = &state.failures[0];
        assert_eq!(
            failure.failure_source.as_deref(),
            Some("acme:root:worker-pages")
        );
        assert_eq!(
            (failure.failure_id.as_deref(), failure.failure_time),
            (Some("TORN"), Some(7))
        );
        assert_eq!(
            failure.failure_message.as_deref(),
            Some("the page is torn\0")
        );
        assert!(state.waiting_for.is_empty());
    }
    assert_eq!(
        store.last_transition("z").await,
        (
            "prerequisite".to_owned(),
            "its prerequisite a has failed".to_owned()
        )
    );
    assert_eq!(
        store.job("root").await.failures[0]
            .failure_source
            .as_deref(),
        Some("worker-pages")
    );
    assert_eq!(store.status("beside").await, JobStatus::Waiting);
    store.complete_jobs(&["other"]).await;
    assert_eq!(store.sent().await, ["beside"]);
}

async fn cancellation_cancels_all_dependents(store: TestStore) {
    store.create("m").await;
    store.create_scheduled("c", after(&["m"])).await;
    store.create_scheduled("b", after(&["c"])).await;
    store.create_scheduled("z", after(&["c", "b"])).await;
    let cancelled: BTreeSet<String> = store.cancel("m").await.into_iter().collect();
    assert_eq!(cancelled, ["b", "c", "m", "z"].map(str::to_owned).into());
    for job in ["m", "c", "b", "z"] {
        assert_eq!(store.status(job).await, JobStatus::Cancelled, "{job}");
    }
    assert_eq!(
        store.last_transition("c").await,
        (
            "prerequisite".to_owned(),
            "its prerequisite m was cancelled".to_owned()
        )
    );
    assert_eq!(store.sent().await, [""; 0]);
}

async fn cancelled_dependent_neither_starts_nor_fails(store: TestStore) {
    for prerequisite in ["good", "bad"] {
        store.create(prerequisite).await;
        store
            .create_scheduled(&format!("after-{prerequisite}"), after(&[prerequisite]))
            .await;
        store.cancel(&format!("after-{prerequisite}")).await;
    }
    store.sent().await;
    store.complete_jobs(&["good"]).await;
    store.report("bad", "", failed()).await;
    assert_eq!(store.sent().await, [""; 0]);
    for job in ["after-good", "after-bad"] {
        let state = store.job(job).await;
        assert_eq!(
            (state.status, state.failures.len()),
            (JobStatus::Cancelled, 0)
        );
    }
}

async fn deletion_cancels_dependents_unless_the_job_was_completed(store: TestStore) {
    store.create("m").await;
    store.create_scheduled("a", after(&["m"])).await;
    store.create_scheduled("z", after(&["a"])).await;
    store.delete("m").await;
    assert_eq!(
        (store.status("a").await, store.status("z").await),
        (JobStatus::Cancelled, JobStatus::Cancelled)
    );
    assert_eq!(
        store.last_transition("a").await.1,
        "its prerequisite m was deleted"
    );
    // The next incarnation does not affect them. Nothing waits for a completed job, so its deletion
    // cancels nothing.
    store.create("m").await;
    store.create_scheduled("b", after(&["m"])).await;
    let m = store.job("m").await.incarnation;
    let event = TrackingEvent {
        task: JobTaskId::parse(&format!("acme:m!{m}")).unwrap(),
        kind: EventKind::Complete,
    };
    store.record(&[event]).await.unwrap();
    store.delete("m").await;
    assert_eq!(store.status("b").await, JobStatus::Waiting);
    assert_eq!(store.sent().await, ["b"]);
    // A deleted dependent is not started by its prerequisite.
    store.create_scheduled("c", after(&["never"])).await;
    store.delete("c").await;
    store.create("never").await;
    store.complete_jobs(&["never"]).await;
    assert_eq!(store.sent().await, [""; 0]);
}

async fn bulk_cancel_and_delete_include_dependents(store: TestStore) {
    store.create("x-1").await;
    store.create_scheduled("x-2", after(&["x-1"])).await;
    store.create_scheduled("a", after(&["x-2"])).await;
    store.create("b").await;
    let query = JobQuery {
        id_prefix: Some("x-".to_owned()),
        limit: 1,
        ..JobQuery::default()
    };
    let incarnations = store.cancel_some_jobs(&acme(), &query, 1).await.unwrap();
    assert_eq!(
        incarnations
            .iter()
            .map(|incarnation| incarnation.job.as_str())
            .collect::<BTreeSet<_>>(),
        ["a", "x-1", "x-2"].into()
    );
    assert_eq!(
        store.cancel_some_jobs(&acme(), &query, 1).await.unwrap(),
        []
    );
    assert_eq!(
        (store.status("a").await, store.status("b").await),
        (JobStatus::Cancelled, JobStatus::Waiting)
    );
    store.create_scheduled("c", after(&["b"])).await;
    let all = JobQuery {
        id_prefix: Some("b".to_owned()),
        limit: 9,
        ..JobQuery::default()
    };
    assert_eq!(
        store
            .delete_some_jobs(&acme(), &all, 9)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(store.status("c").await, JobStatus::Cancelled);
    let everybody = page_of(9);
    assert_eq!(
        store
            .delete_some_jobs(&acme(), &everybody, 9)
            .await
            .unwrap()
            .len(),
        4
    );
}

async fn chain_and_fan_of_a_thousand_dependents_end_in_one_transaction(store: TestStore) {
    const N: usize = 1000;
    let name = |n: usize| format!("c{:04}", N - n);
    for (first, kind) in [("fails", failed()), ("falls", EventKind::Progress(1))] {
        store.create(first).await;
        // Half of the dependents form a chain, the other half a fan.
        for n in 0..N {
            let waits_for = if n == 0 || n >= N / 2 {
                first.to_owned()
            } else {
                format!("{first}-{}", name(n - 1))
            };
            store
                .create_scheduled(&format!("{first}-{}", name(n)), after(&[&waits_for]))
                .await;
        }
        store.report(first, "", kind).await;
    }
    assert_eq!(store.cancel("falls").await.len(), N + 1);
    store.sent().await;
    let count = async |prefix: &str, status| {
        let query = JobQuery {
            id_prefix: Some(prefix.to_owned()),
            statuses: vec![status],
            ..JobQuery::default()
        };
        store.count_jobs(&acme(), &query).await.unwrap()
    };
    assert_eq!(count("fails", JobStatus::Failed).await, 1001);
    assert_eq!(count("falls", JobStatus::Cancelled).await, 1001);
    assert_eq!(
        store.job("fails-c0501").await.failures[0]
            .failure_source
            .as_deref(),
        Some("acme:fails:worker-pages")
    );
}

fn failed() -> EventKind {
    EventKind::Failed(ReportFailure {
        failure_id: Some("TORN".to_owned()),
        failure_time: Some(7),
        failure_source: Some("worker-pages".to_owned()),
        failure_message: Some("the page is torn\0".to_owned()),
        item: None,
        run: None,
    })
}
