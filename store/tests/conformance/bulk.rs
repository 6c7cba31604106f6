//! Cancelling and deleting all jobs that match a query.

use Comparison::NotEqual;
use JobStatus::{Active, Cancelled, Completed, Waiting};
use contract::{JobStatus, PartitionId, ReportFailure};
use store::{Comparison, EventKind, Filter, Incarnation, JobQuery, RetryCursor, TextField};

use crate::fixture::{TestStore, acme, after, failed};
use crate::queries::{is, texts};

suite![
    bulk_cancel_works_in_batches_and_passes_over_finished_jobs,
    bulk_delete_works_in_batches_and_ignores_the_status,
    concurrent_bulk_operations_end_each_job_once,
    none_of_many_jobs_is_left_out_although_others_take_jobs_meanwhile,
];

async fn bulk_cancel_works_in_batches_and_passes_over_finished_jobs(store: TestStore) {
    for n in 0..7 {
        let incarnation = store
            .create_labelled(&format!("job-{n}"), None, &[("team", Some("a"))])
            .await;
        let failure = EventKind::Failed(ReportFailure::default());
        match n {
            0 => drop(store.report(&incarnation, "", EventKind::Complete).await),
            1 => drop(store.report(&incarnation, "", failure).await),
            2 => drop(store.report(&incarnation, "1", EventKind::Complete).await),
            _ => {}
        }
    }
    store.create_labelled("other", None, &[]).await;
    let query = JobQuery {
        labels: texts(&["team"]),
        ..JobQuery::default()
    };
    let mut cancelled = Vec::new();
    for expected in [3, 2, 0] {
        let some = store.cancel_some_jobs(&acme(), &query, 3).await.unwrap();
        assert_eq!(some.len(), expected);
        cancelled.extend(
            some.into_iter()
                .map(|incarnation| incarnation.job.to_string()),
        );
    }
    cancelled.sort();
    assert_eq!(cancelled, ["job-2", "job-3", "job-4", "job-5", "job-6"]);
    assert_eq!(
        store.accepted(Filter::Status(vec![Cancelled])).await,
        cancelled
    );
    assert_eq!(
        store.accepted(Filter::Status(vec![Waiting])).await,
        ["other"]
    );
    let history = store.history("job-2").await;
    assert_eq!(
        history.iter().map(|step| step.to).collect::<Vec<_>>(),
        [Waiting, Active, Cancelled]
    );
    assert_eq!(store.outbox_texts().await, ["other"]);
    let finished = JobQuery {
        statuses: vec![Completed],
        ..JobQuery::default()
    };
    assert_eq!(
        store.cancel_some_jobs(&acme(), &finished, 3).await.unwrap(),
        []
    );
}

async fn bulk_delete_works_in_batches_and_ignores_the_status(store: TestStore) {
    store.create_five_jobs().await;
    let query = JobQuery {
        filter: Some(is(TextField::Id, NotEqual, "plain")),
        ..JobQuery::default()
    };
    let mut deleted = 0;
    for expected in [3, 1, 0] {
        let some = store.delete_some_jobs(&acme(), &query, 3).await.unwrap();
        assert_eq!(some.len(), expected);
        deleted += some.len();
    }
    assert_eq!(deleted, 4);
    assert_eq!(store.find(JobQuery::default()).await, ["plain"]);
    assert!(
        !store.create_labelled("gone", None, &[]).await.first,
        "its past incarnation is remembered"
    );
    let elsewhere = PartitionId::parse("elsewhere").unwrap();
    assert_eq!(
        store
            .count_jobs(&elsewhere, &JobQuery::default())
            .await
            .unwrap(),
        1
    );
}

async fn concurrent_bulk_operations_end_each_job_once(store: TestStore) {
    for n in 0..20 {
        store.create_labelled(&format!("job-{n}"), None, &[]).await;
    }
    let query = JobQuery::default();
    let ended = async |delete: bool| {
        let mut jobs = Vec::new();
        loop {
            let some = if delete {
                store.delete_some_jobs(&acme(), &query, 3).await.unwrap()
            } else {
                store.cancel_some_jobs(&acme(), &query, 3).await.unwrap()
            };
            if some.is_empty() {
                return jobs.len();
            }
            jobs.extend(some);
        }
    };
    let (a, b, c) = tokio::join!(ended(false), ended(false), ended(false));
    assert_eq!(a + b + c, 20);
    let (a, b, c) = tokio::join!(ended(true), ended(true), ended(true));
    assert_eq!(a + b + c, 20);
}

/// The jobs that were refused go while the others wait for their turn.
async fn none_of_many_jobs_is_left_out_although_others_take_jobs_meanwhile(store: TestStore) {
    let missing = store.create("missing").await;
    for job in ["d0", "d1"] {
        store.create_scheduled(job, after(&["missing"])).await;
    }
    store.report(&missing, "", failed("BROKEN")).await;
    store.delete("missing").await;
    for job in ["j0", "j1", "j2", "j3"] {
        store.started(job).await;
        store.cancel(job).await;
    }
    let again = |job: &Incarnation, _: &store::Definition| Ok(job.job_task_id().into_bytes());
    let mut cursor = RetryCursor::default();
    let mut some = async || -> Vec<String> {
        let all = JobQuery::default();
        let batch = store
            .retry_some_jobs(&acme(), &all, false, &mut cursor, 2, again)
            .await
            .unwrap();
        let jobs = batch.jobs.into_iter();
        jobs.map(|(job, _)| job.to_string()).collect()
    };
    assert_eq!(some().await, ["d0", "d1"]);
    store.delete("d0").await;
    store.delete("d1").await;
    assert_eq!(some().await, ["j0", "j1"]);
    assert_eq!(some().await, ["j2", "j3"]);
    assert_eq!(some().await, [""; 0]);
}
