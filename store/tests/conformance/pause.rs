//! Pausing and resuming jobs.

use contract::{JobId, JobStatus, ReportFailure};
use store::{Change, EventKind};

use crate::fixture::TestStore;

suite![
    pause_and_resume_change_the_status_and_the_history,
    finished_job_is_neither_paused_nor_resumed,
    paused_job_counts_reports_and_ends,
];

async fn pause_and_resume_change_the_status_and_the_history(store: TestStore) {
    let incarnation = store.started("j").await;
    assert_eq!(
        store.resume(&incarnation).await,
        Change::Impossible(JobStatus::Waiting)
    );
    assert_eq!(
        (
            store.pause(&incarnation).await,
            store.status(&incarnation).await
        ),
        (Change::Made, JobStatus::Paused)
    );
    assert_eq!(
        (
            store.pause(&incarnation).await,
            store.status(&incarnation).await
        ),
        (Change::NotNeeded, JobStatus::Paused)
    );
    // This also holds for a job that was Waiting before the pause.
    assert_eq!(
        (
            store.resume(&incarnation).await,
            store.status(&incarnation).await
        ),
        (Change::Made, JobStatus::Active)
    );
    assert_eq!(
        (
            store.resume(&incarnation).await,
            store.status(&incarnation).await
        ),
        (Change::NotNeeded, JobStatus::Active)
    );
    store.report(&incarnation, "1", EventKind::Complete).await;
    assert_eq!(store.pause(&incarnation).await, Change::Made);
    let history = store.history(&incarnation).await;
    let steps: Vec<_> = history
        .iter()
        .map(|step| (step.to, step.actor.as_str(), step.reason.as_str()))
        .collect();
    assert_eq!(
        steps,
        [
            (JobStatus::Waiting, "client", "created"),
            (JobStatus::Paused, "client", "paused"),
            (JobStatus::Active, "client", "resumed"),
            (JobStatus::Paused, "client", "paused"),
        ]
    );
    let unknown = JobId::parse("unknown").unwrap();
    assert_eq!(
        store
            .pause_job(&incarnation.partition, &unknown)
            .await
            .unwrap(),
        Change::NotFound
    );
    assert_eq!(
        store
            .resume_job(&incarnation.partition, &unknown)
            .await
            .unwrap(),
        Change::NotFound
    );
    assert_eq!(
        store
            .count_parked_tasks(&incarnation.partition, &unknown)
            .await
            .unwrap(),
        0
    );
}

async fn finished_job_is_neither_paused_nor_resumed(store: TestStore) {
    for (job, status) in [
        ("done", JobStatus::Completed),
        ("failed", JobStatus::Failed),
        ("cancelled", JobStatus::Cancelled),
    ] {
        let incarnation = store.started(job).await;
        let failure = EventKind::Failed(ReportFailure::default());
        match status {
            JobStatus::Completed => drop(store.report(&incarnation, "", EventKind::Complete).await),
            JobStatus::Failed => drop(store.report(&incarnation, "", failure).await),
            _ => drop(store.cancel(&incarnation).await),
        }
        assert_eq!(
            (
                store.pause(&incarnation).await,
                store.resume(&incarnation).await
            ),
            (Change::Impossible(status), Change::Impossible(status))
        );
    }
}

async fn paused_job_counts_reports_and_ends(store: TestStore) {
    let incarnation = store.paused("j").await;
    store.report(&incarnation, "1", EventKind::Complete).await;
    assert_eq!(
        store.status(&incarnation).await,
        JobStatus::Paused,
        "a report does not resume a job"
    );
    store.report(&incarnation, "2*", EventKind::Complete).await;
    assert_eq!(store.status(&incarnation).await, JobStatus::Completed);
    let incarnation = store.paused("k").await;
    store
        .report(
            &incarnation,
            "1",
            EventKind::Failed(ReportFailure::default()),
        )
        .await;
    assert_eq!(store.status(&incarnation).await, JobStatus::Failed);
}
