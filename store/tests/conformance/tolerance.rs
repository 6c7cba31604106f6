//! Jobs that tolerate failed items.

use contract::rest::{Above, FailureLimit, TaskState, Tolerance};
use contract::{Announced, FailedItem, JobStatus, OnFailure, ReportFailure};
use store::{EventKind, Incarnation, JobQuery, JobRequest, Retry, RetryCursor};

use crate::fixture::{TestStore, acme, after, event, failed, failure, id, request, retrying};

suite![
    tolerance_is_stored_with_the_job,
    job_completes_with_as_many_failed_items_as_it_tolerates,
    one_more_failed_item_than_is_tolerated_stops_the_job,
    job_that_continues_above_its_tolerance_fails_at_the_end,
    percentage_stops_a_job_early_only_once_it_is_certain,
    failed_split_is_never_tolerated,
    failed_batch_without_subtasks_is_no_item,
    dependents_start_after_tolerated_failures,
    paused_and_cancelled_jobs_keep_their_rules,
    retry_runs_only_the_tolerated_failures_again,
    completed_job_is_not_retried_once_nothing_is_left,
    retry_of_all_takes_up_what_was_tolerated_and_nothing_that_is_done,
];

async fn tolerance_is_stored_with_the_job(mut store: TestStore) {
    for (job, on_failure) in [
        ("number", tolerating("100", Above::Stop)),
        ("share", tolerating("0.25%", Above::Continue)),
        ("none", OnFailure::Stop),
        ("any", OnFailure::Continue),
    ] {
        create(&store, job, on_failure).await;
        store.reopen().await;
        assert_eq!(store.job(job).await.on_failure, on_failure, "{job}");
    }
}

async fn job_completes_with_as_many_failed_items_as_it_tolerates(mut store: TestStore) {
    let job = create(&store, "j", tolerating("2", Above::Stop)).await;
    store.complete(&job, &["1", "2", "6*"]).await;
    store.report(&job, "3", failed("BROKEN")).await;
    store.report(&job, "3", failed("BROKEN")).await;
    store.report(&job, "4", failed("OTHER")).await;
    let open = store.job(&job).await;
    assert_eq!((open.status, open.failed_tasks), (JobStatus::Active, 2));
    store.reopen().await;
    let recorded = store.report(&job, "5", EventKind::Complete).await;
    assert_eq!(recorded.finished, [(job.clone(), JobStatus::Completed)]);

    let done = store.job(&job).await;
    assert_eq!(
        (done.status, done.completed_items, done.failed_tasks),
        (JobStatus::Completed, 3, 2)
    );
    assert!((done.percentage_complete - 100.0).abs() < f64::EPSILON);
    assert_eq!(
        (done.items.total, done.items.done, done.items.failed),
        (Some(5), 3, 2)
    );
    assert!(done.items.total_is_final);
    assert_eq!(done.failures.len(), 2);
    for (path, state) in [
        (1, TaskState::Completed),
        (3, TaskState::Failed),
        (5, TaskState::Completed),
    ] {
        assert_eq!(store.task_status(&job, &[path]).await, Some(state));
    }
    let (actor, reason) = store.last_transition("j").await;
    assert_eq!(
        (actor.as_str(), reason.as_str()),
        (
            "tracking",
            "every task is done or has failed; 2 failed, and 2 are tolerated"
        )
    );
}

async fn one_more_failed_item_than_is_tolerated_stops_the_job(mut store: TestStore) {
    let job = create(&store, "j", tolerating("2", Above::Stop)).await;
    store.complete(&job, &["1", "9*"]).await;
    for path in ["2", "3"] {
        store.report(&job, path, failed("BROKEN")).await;
        store.reopen().await;
        assert_eq!(store.status(&job).await, JobStatus::Active);
    }
    store.report(&job, "4", failed("BROKEN")).await;
    let stopped = store.job(&job).await;
    assert_eq!(
        (stopped.status, stopped.failed_tasks),
        (JobStatus::Failed, 3)
    );
    assert!(stopped.percentage_complete < 100.0);
    let (_, reason) = store.last_transition("j").await;
    assert_eq!(
        reason,
        "3 items have failed, which is more than the 2 that are tolerated"
    );
    // Nothing is tolerated by a tolerance of 0.
    let job = create(&store, "none", tolerating("0", Above::Stop)).await;
    store.report(&job, "1", failed("BROKEN")).await;
    assert_eq!(store.status(&job).await, JobStatus::Failed);
}

async fn job_that_continues_above_its_tolerance_fails_at_the_end(store: TestStore) {
    let job = create(&store, "j", tolerating("1", Above::Continue)).await;
    store.complete(&job, &["5*"]).await;
    for path in ["1", "2", "3"] {
        store.report(&job, path, failed("BROKEN")).await;
        assert_eq!(store.status(&job).await, JobStatus::Active);
    }
    store.complete(&job, &["4"]).await;
    let failed = store.job(&job).await;
    assert_eq!((failed.status, failed.failed_tasks), (JobStatus::Failed, 3));
    let (_, reason) = store.last_transition("j").await;
    assert_eq!(
        reason,
        "every task is done or has failed; 3 failed, and 1 is tolerated"
    );
}

async fn percentage_stops_a_job_early_only_once_it_is_certain(store: TestStore) {
    let announced = |batches, items| EventKind::Announced {
        stated: Some(Announced { batches, items }),
        digest: None,
    };
    let job = create(&store, "j", tolerating("10%", Above::Stop)).await;
    store.report(&job, "3*", announced(2, None)).await;
    store.report(&job, "1.11*", announced(0, None)).await;
    for number in 1..=3 {
        let path = format!("1.{number}");
        store.report(&job, &path, failed("BROKEN")).await;
        assert_eq!(
            store.status(&job).await,
            JobStatus::Active,
            "of 10 known items, {number} have failed, and nobody knows how many there are"
        );
    }
    store.report(&job, "2.11*", announced(0, None)).await;
    assert_eq!(store.status(&job).await, JobStatus::Failed, "3 of 20");
    let (_, reason) = store.last_transition("j").await;
    assert_eq!(
        reason,
        "3 of 20 items have failed, which is more than the 10% that are tolerated"
    );
}

async fn failed_split_is_never_tolerated(store: TestStore) {
    let all = tolerating("100%", Above::Continue);
    let job = create(&store, "continues", all).await;
    store.complete(&job, &["1", "2.1", "3*"]).await;
    store.report(&job, "2", failed("SPLITTER")).await;
    let ended = store.job(&job).await;
    assert_eq!((ended.status, ended.failed_tasks), (JobStatus::Failed, 1));
    let (_, reason) = store.last_transition("continues").await;
    assert_eq!(
        reason,
        "every task is done or has failed; 1 failed, among them a split, which is never tolerated"
    );
    let job = create(&store, "stops", tolerating("100%", Above::Stop)).await;
    store.complete(&job, &["2.1", "9*"]).await;
    store.report(&job, "2", failed("SPLITTER")).await;
    assert_eq!(store.status(&job).await, JobStatus::Failed);
    let (_, reason) = store.last_transition("stops").await;
    assert_eq!(reason, "a split has failed, which is never tolerated");
}

async fn failed_batch_without_subtasks_is_no_item(mut store: TestStore) {
    let batch = || {
        EventKind::Failed(ReportFailure {
            item: Some(FailedItem::new(None, b"{}").of_type(Some("BatchWorker"))),
            ..failure("INVALID_TASK")
        })
    };
    let job = create(&store, "j", tolerating("100%", Above::Continue)).await;
    store.report(&job, "2", retrying(2)).await;
    store.report(&job, "2", batch()).await;
    store.reopen().await;
    store.report(&job, "2", batch()).await;
    let task = store.task(&job, &[2]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Failed, Some(3)));
    store.complete(&job, &["1", "3*"]).await;
    let ended = store.job(&job).await;
    assert_eq!((ended.status, ended.failed_tasks), (JobStatus::Failed, 1));
}

async fn dependents_start_after_tolerated_failures(store: TestStore) {
    let first = create(&store, "first", tolerating("50%", Above::Stop)).await;
    store.create_scheduled("second", after(&["first"])).await;
    assert!(store.sent().await.is_empty());
    store.report(&first, "1", failed("BROKEN")).await;
    store.complete(&first, &["2", "3*"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Completed);
    assert_eq!(store.sent().await, ["second"]);
    // A job that is created later finds it complete as well.
    store.create_scheduled("third", after(&["first"])).await;
    assert_eq!(store.sent().await, ["third"]);
}

async fn paused_and_cancelled_jobs_keep_their_rules(store: TestStore) {
    let job = create(&store, "paused", tolerating("1", Above::Stop)).await;
    store.complete(&job, &["3*"]).await;
    store.pause(&job).await;
    store.report(&job, "1", failed("BROKEN")).await;
    store.complete(&job, &["2"]).await;
    assert_eq!(store.status(&job).await, JobStatus::Completed);

    let job = create(&store, "cancelled", tolerating("1", Above::Stop)).await;
    store.complete(&job, &["3*"]).await;
    store.report(&job, "1", failed("BROKEN")).await;
    store.cancel(&job).await;
    store.complete(&job, &["2"]).await;
    assert_eq!(store.status(&job).await, JobStatus::Cancelled);
    let again = retry(&store, "cancelled").await;
    assert_eq!(store.job("cancelled").await.failed_tasks, 0);
    store.complete(&again, &["1"]).await;
    assert_eq!(
        store.totals("cancelled").await,
        (JobStatus::Completed, 2, 0)
    );
}

async fn retry_runs_only_the_tolerated_failures_again(mut store: TestStore) {
    let expiring = JobRequest {
        expiry: serde_json::from_str(r#"{"Completed": {"expiryTime": "lastUpdateTime+PT1H"}}"#)
            .unwrap(),
        ..of("j", tolerating("50%", Above::Stop))
    };
    let first = store.create_with(expiring).await;
    store.sent().await;
    store
        .complete(&first, &["1", "2.1", "2.2", "2.4*", "5*"])
        .await;
    store.report(&first, "2.3", failed("BROKEN")).await;
    store.report(&first, "3", failed("BROKEN")).await;
    store.complete(&first, &["4"]).await;
    assert_eq!(store.totals(&first).await, (JobStatus::Completed, 4, 2));
    assert_eq!(store.sweep().await.unwrap().tables, 0, "its table is kept");
    // A report that comes late makes one of them done; nothing else counts any more.
    let late = [
        event(&first, "3", EventKind::Complete),
        event(&first, "2", failed("LATE")),
        event(&first, "2.9*", EventKind::Progress(0)),
    ];
    assert_eq!(store.record(&late).await.unwrap().ignored, 2);
    assert_eq!(store.totals(&first).await, (JobStatus::Completed, 5, 1));
    store.reopen().await;

    let again = retry(&store, "j").await;
    assert_eq!(
        store.sent().await,
        [format!("again {}", again.job_task_id())]
    );
    let now = store.job("j").await;
    assert_eq!(
        (now.status, now.completed_items, now.failed_tasks),
        (JobStatus::Active, 5, 0)
    );
    assert!((80.0..100.0).contains(&now.percentage_complete));
    assert_eq!(now.end_time, None);
    assert_eq!(store.sweep().await.unwrap().jobs, 0);
    assert_eq!(
        store.task_status(&again, &[2, 3]).await,
        Some(TaskState::Waiting)
    );
    // What is done may run again; it counts once.
    store
        .complete(&again, &["1", "2.1", "2.4*", "3", "4", "5*"])
        .await;
    assert_eq!(store.status(&again).await, JobStatus::Active);
    store.complete(&again, &["2.3"]).await;
    assert_eq!(store.totals("j").await, (JobStatus::Completed, 6, 0));
    assert_eq!(store.sweep().await.unwrap().tables, 1);
}

async fn completed_job_is_not_retried_once_nothing_is_left(store: TestStore) {
    let job = create(&store, "j", tolerating("50%", Above::Stop)).await;
    store.complete(&job, &["1", "2", "3*"]).await;
    assert_eq!(
        try_retry(&store, "j").await,
        Retry::WrongStatus(JobStatus::Completed)
    );
    // Fails again in its second round, and is tolerated again.
    let job = create(&store, "again", tolerating("1", Above::Stop)).await;
    store.report(&job, "1", failed("BROKEN")).await;
    store.complete(&job, &["2", "3*"]).await;
    for _ in 0..2 {
        let again = retry(&store, "again").await;
        store.report(&again, "1", failed("BROKEN")).await;
        let ended = store.job("again").await;
        assert_eq!(
            (ended.status, ended.failed_tasks, ended.completed_items),
            (JobStatus::Completed, 1, 1)
        );
    }
}

async fn retry_of_all_takes_up_what_was_tolerated_and_nothing_that_is_done(store: TestStore) {
    let done = create(&store, "done", tolerating("1", Above::Stop)).await;
    store.complete(&done, &["1", "2*"]).await;
    for job in ["older", "newer"] {
        let job = create(&store, job, tolerating("1", Above::Stop)).await;
        store.report(&job, "1", failed("BROKEN")).await;
        store.complete(&job, &["2*"]).await;
        assert_eq!(store.status(&job).await, JobStatus::Completed);
    }
    let again = |job: &Incarnation, _: &store::Definition| Ok(job.job_task_id().into_bytes());
    let retry_all = async |query: &JobQuery| {
        let (mut cursor, mut jobs) = (RetryCursor::default(), Vec::new());
        loop {
            let batch = store
                .retry_some_jobs(&acme(), query, false, &mut cursor, 1, again)
                .await
                .unwrap();
            if batch.jobs.is_empty() {
                return jobs;
            }
            jobs.extend(batch.jobs.into_iter().map(|(job, _)| job.to_string()));
        }
    };
    let of = |statuses: &[JobStatus]| JobQuery {
        statuses: statuses.to_vec(),
        ..JobQuery::default()
    };
    assert_eq!(
        retry_all(&of(&[JobStatus::Failed, JobStatus::Active])).await,
        [""; 0]
    );
    assert_eq!(
        retry_all(&of(&[JobStatus::Completed])).await,
        ["older", "newer"]
    );
    assert_eq!(store.status("older").await, JobStatus::Active);
    assert_eq!(store.status("done").await, JobStatus::Completed);
    store.cancel("newer").await;
    assert_eq!(retry_all(&JobQuery::default()).await, ["newer"]);
}

fn tolerating(limit: &str, above: Above) -> OnFailure {
    let limit: FailureLimit = limit.parse().unwrap();
    OnFailure::Tolerate(Tolerance { limit, above })
}

fn of(job: &str, on_failure: OnFailure) -> JobRequest {
    JobRequest {
        on_failure,
        ..request(job)
    }
}

/// Creates a job and takes its start message out of the outbox.
async fn create(store: &TestStore, job: &str, on_failure: OnFailure) -> Incarnation {
    let incarnation = store.create_with(of(job, on_failure)).await;
    store.sent().await;
    incarnation
}

async fn try_retry(store: &TestStore, job: &str) -> Retry {
    let start = |job: &Incarnation, _: &store::Definition| {
        Ok(format!("again {}", job.job_task_id()).into_bytes())
    };
    let retry = store.retry_job(&acme(), &id(job), false, start).await;
    retry.unwrap()
}

async fn retry(store: &TestStore, job: &str) -> Incarnation {
    match try_retry(store, job).await {
        Retry::Begun(begun) => begun.job,
        other => panic!("{job}: {other:?}"),
    }
}
