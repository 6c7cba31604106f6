//! Taking a job up again: what a new round keeps, clears and counts.

use std::time::Duration;

use contract::JobStatus;
use contract::rest::TaskState;
use store::{
    Begun, EventKind, Incarnation, JobQuery, JobRequest, ParkOutcome, ParkedTask, Refusal, Retry,
    RetryCursor, StartCondition, StoreOptions,
};

use crate::fixture::{
    JobRef, TestStore, acme, after, create, event, failed, id, ids, in_seconds, request, retrying,
    task_id,
};

suite![
    failed_job_goes_on_where_it_stopped,
    cancelled_job_goes_on_in_the_middle_of_nested_splits,
    job_without_subtasks_goes_on,
    job_that_continues_forgets_its_failures_and_keeps_them_as_earlier_ones,
    nothing_left_to_do_completes_the_job_at_once,
    job_that_never_started_waits_again,
    jobs_that_fell_with_another_are_named_and_wait_again_on_request,
    job_that_cannot_go_on_says_why,
    tasks_of_an_earlier_round_are_not_parked,
    of_many_retries_at_once_one_begins_a_round,
    job_that_is_cancelled_and_retried_ten_times_is_exact,
    retry_and_sweep_at_once_leave_either_a_round_or_a_reason,
    kept_tables_are_bounded_in_number,
    job_that_goes_on_does_not_expire,
    many_jobs_go_on_each_once,
    definition_is_kept_as_long_as_its_job,
];

async fn failed_job_goes_on_where_it_stopped(store: TestStore) {
    let first = store.started("j").await;
    store.complete(&first, &["1", "2"]).await;
    store.report(&first, "4", retrying(1)).await;
    store.report(&first, "3", failed("BROKEN")).await;
    store.complete(&first, &["5"]).await;
    let before = store.job(&first).await;
    assert_eq!((before.status, before.failed_tasks), (JobStatus::Failed, 1));

    let Begun { job, status, .. } = store.retry(&first).await;
    assert_eq!((job.round, status), (2, JobStatus::Active));
    assert_eq!(
        job.job_task_id(),
        format!("acme:j!{}r2", first.number),
        "also of a first incarnation"
    );
    assert_eq!(store.sent().await, [format!("again {}", job.job_task_id())]);
    let now = store.job(&first).await;
    assert_eq!(
        (now.status, now.round, now.completed_items),
        (JobStatus::Active, Some(2), 3)
    );
    assert!(now.percentage_complete >= before.percentage_complete);
    assert_eq!((now.failed_tasks, now.failures.len()), (0, 0));
    assert!(now.failure_counts.is_empty());
    for (path, state) in [(3, TaskState::Waiting), (4, TaskState::Waiting)] {
        assert_eq!(store.task_status(&first, &[path]).await, Some(state));
    }
    let (actor, reason) = store.last_transition("j").await;
    assert_eq!(
        (actor.as_str(), reason.as_str()),
        ("client", "taken up again: round 2 after Failed")
    );

    // What the earlier round still reports as done is done; the rest of its reports is over.
    let late = [
        event(&first, "6", failed("LATE")),
        event(&first, "7", retrying(1)),
        event(&first, "7", EventKind::Progress(90)),
        event(&first, "7", EventKind::Started { attempts: 3 }),
        event(&first, "6", EventKind::Complete),
        event(&first, "9", failed("LATE")),
        event(&first, "", failed("LATE")),
    ];
    assert_eq!(store.record(&late).await.unwrap().ignored, 6);
    let now = store.job(&first).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Active, 0));
    assert_eq!(now.completed_items, 4);
    assert_eq!(
        store.task_status(&first, &[7]).await,
        Some(TaskState::Waiting)
    );

    // All of it is dispatched again.
    store
        .complete(&job, &["1", "2", "3", "4", "5", "6", "7", "8*"])
        .await;
    let now = store.job(&first).await;
    assert_eq!(
        (now.status, now.completed_items, now.percentage_complete),
        (JobStatus::Completed, 7, 100.0)
    );
}

async fn cancelled_job_goes_on_in_the_middle_of_nested_splits(store: TestStore) {
    let first = store.started("j").await;
    store.report(&first, "3*", EventKind::Progress(0)).await;
    store
        .complete(&first, &["1.1", "1.2", "1.4*", "2.1.1"])
        .await;
    store.report(&first, "2.1.2", EventKind::Progress(50)).await;
    store.report(&first, "2.2", retrying(1)).await;
    let percent = store.job(&first).await.percentage_complete;
    store.cancel(&first).await;
    // Workers have not heard of it yet.
    store.complete(&first, &["2.1.3*"]).await;
    store.report(&first, "2.1.2", failed("LATE")).await;
    let now = store.job(&first).await;
    assert_eq!((now.status, now.completed_items), (JobStatus::Cancelled, 3));
    assert!((now.percentage_complete - percent).abs() < 0.001);

    let job = store.retry(&first).await.job;
    let now = store.job(&job).await;
    assert_eq!(
        (now.status, now.completed_items, now.percentage_complete),
        (JobStatus::Active, 3, percent)
    );
    assert_eq!(
        store.task_status(&job, &[2, 2]).await,
        Some(TaskState::Waiting)
    );
    store
        .complete(
            &job,
            &["1.1", "1.2", "1.3", "1.4*", "2.1.1", "2.1.2", "2.1.3*"],
        )
        .await;
    assert_eq!(store.status(&job).await, JobStatus::Active);
    store.complete(&job, &["2.2", "2.3*", "3*"]).await;
    let now = store.job(&job).await;
    assert_eq!((now.status, now.completed_items), (JobStatus::Completed, 6));
    assert_eq!(store.task_table_size().await.unwrap().tables, 1);
    assert_eq!(store.sweep().await.unwrap().tables, 1);
}

async fn job_without_subtasks_goes_on(store: TestStore) {
    let first = store.started("failed").await;
    store.report(&first, "", retrying(1)).await;
    store.report(&first, "", failed("BROKEN")).await;
    let job = store.retry(&first).await.job;
    let task = store.task(&job, &[]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Active, None));
    store.report(&first, "", failed("LATE")).await;
    assert_eq!(store.status(&job).await, JobStatus::Active);
    store.report(&job, "", EventKind::Complete).await;
    let now = store.job(&job).await;
    assert_eq!((now.status, now.completed_items), (JobStatus::Completed, 1));

    // What the earlier round did counts.
    let first = store.started("cancelled").await;
    store.cancel(&first).await;
    let job = store.retry(&first).await.job;
    store.report(&first, "", EventKind::Complete).await;
    assert_eq!(store.status(&job).await, JobStatus::Completed);

    // A later incarnation, too.
    store.delete("failed").await;
    let second = store.started("failed").await;
    store.cancel(&second).await;
    let job = store.retry(&second).await.job;
    assert_eq!(
        job.job_task_id(),
        format!("acme:failed!{}r2", second.number)
    );
    let old = [event(&first, "", EventKind::Complete)];
    assert_eq!(store.record(&old).await.unwrap().ignored, 1);
}

async fn job_that_continues_forgets_its_failures_and_keeps_them_as_earlier_ones(store: TestStore) {
    let first = store.create_continuing("j").await;
    store.complete(&first, &["1", "2.1", "4*"]).await;
    store.report(&first, "2.2", failed("BROKEN")).await;
    store.report(&first, "2.3", failed("OTHER")).await;
    store.complete(&first, &["2.4*"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Active);
    store.report(&first, "3", failed("BROKEN")).await;
    let now = store.job(&first).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Failed, 3));

    let second = store.retry(&first).await.job;
    let now = store.job(&second).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Active, 0));
    assert_eq!(now.failures, []);
    store.report(&second, "2.2", failed("AGAIN")).await;
    store.complete(&second, &["2.3", "3"]).await;
    let now = store.job(&second).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Failed, 1));
    assert_eq!(now.failure_counts["AGAIN"], 1);

    let third = store.retry(&second).await.job;
    assert_eq!(third.round, 3);
    // Of both earlier rounds.
    store.report(&first, "2.2", failed("LATE")).await;
    store.report(&second, "2.2", failed("LATE")).await;
    let task = store.task(&third, &[2, 2]).await;
    assert_eq!((task.status, task.failure), (TaskState::Waiting, None));
    let earlier: Vec<_> = task
        .earlier_failures
        .iter()
        .map(|it| (it.round, it.failure.failure_id.as_deref()))
        .collect();
    assert_eq!(earlier, [(1, Some("BROKEN")), (2, Some("AGAIN"))]);
    store.complete(&third, &["2.2"]).await;
    assert_eq!(store.totals(&third).await, (JobStatus::Completed, 5, 0));
}

async fn nothing_left_to_do_completes_the_job_at_once(store: TestStore) {
    // The task that failed was done after all, by an attempt that nobody knew of.
    let first = store.started("late").await;
    store.complete(&first, &["1", "3*"]).await;
    store.report(&first, "2", failed("BROKEN")).await;
    store.complete(&first, &["2"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Failed);
    store.sent().await;
    let Begun { job, status, .. } = store.retry(&first).await;
    assert_eq!((job.round, status), (2, JobStatus::Completed));
    let now = store.job(&first).await;
    assert_eq!(
        (now.status, now.completed_items, now.percentage_complete),
        (JobStatus::Completed, 2, 100.0)
    );
    assert_eq!(store.sent().await, [""; 0]);
    assert_eq!(store.sweep().await.unwrap().tables, 1);

    // The sizes of a split and of a split below it contradict each other; everything is done,
    // whatever they are.
    for path in ["", "1."] {
        let job = format!("contradiction{}", path.len());
        let first = store.started(&job).await;
        let at = |number: &str| format!("{path}{number}");
        if !path.is_empty() {
            store.complete(&first, &["2*"]).await;
        }
        store.complete(&first, &[&at("3*")]).await;
        store
            .complete(&first, &[&at("4*"), &at("1"), &at("2")])
            .await;
        let now = store.job(&first).await;
        assert_eq!(
            (now.status, now.failures[0].failure_id.as_deref()),
            (JobStatus::Failed, Some("SPLIT_SIZE_CONFLICT")),
            "{job}"
        );
        assert_eq!(store.retry(&first).await.status, JobStatus::Completed);
        assert_eq!(store.status(&first).await, JobStatus::Completed);
    }
}

async fn job_that_never_started_waits_again(store: TestStore) {
    store.create("p").await;
    let start = StartCondition {
        delay: 3600,
        ..after(&["p", "missing"])
    };
    let waiting = store.create_scheduled("waiting", start).await;
    let delayed = store.create_scheduled("delayed", in_seconds(3600)).await;
    store.pause(&delayed).await;
    let suspended = StartCondition {
        suspended: true,
        ..StartCondition::default()
    };
    let suspended = store.create_scheduled("suspended", suspended).await;
    store.sent().await;
    for job in [&waiting, &delayed, &suspended] {
        store.cancel(job).await;
        let Begun { job, status, .. } = store.retry(job).await;
        assert_eq!((job.round, status), (2, JobStatus::Waiting), "{}", job.job);
    }
    assert_eq!(store.sent().await, [""; 0]);
    let awaited = store.job(&waiting).await.waiting_for;
    let awaited: Vec<_> = awaited.iter().map(|it| it.job_id.as_str()).collect();
    assert_eq!(awaited, ["missing", "p"]);
    assert!(store.job(&delayed).await.due_time.is_some());
    assert!(store.job(&suspended).await.suspended);
    store.dispatch_partition(&acme()).await.unwrap();
    assert_eq!(
        store.sent().await,
        [format!("again acme:suspended!{}r2", suspended.number)]
    );
    // The prerequisites complete in either order, and the delay begins then.
    store.create("missing").await;
    store.complete_jobs(&["p"]).await;
    assert_eq!(store.job(&waiting).await.due_time, None);
    store.complete_jobs(&["missing"]).await;
    assert!(store.job(&waiting).await.due_time.is_some());
    // Once it has started, it is taken up without its delay.
    let job = store.retry_after_cancel("waiting").await;
    store.complete(&job, &["1"]).await;
    let job = store.retry_after_cancel("waiting").await;
    assert_eq!(store.status(&job).await, JobStatus::Active);
    assert_eq!(store.job(&job).await.due_time, None);
}

async fn jobs_that_fell_with_another_are_named_and_wait_again_on_request(store: TestStore) {
    let root = store.started("m").await;
    let other = store.started("z").await;
    store.create_scheduled("a", after(&["m"])).await;
    store.create_scheduled("c", after(&["a"])).await;
    store.create_scheduled("x", after(&["m", "z"])).await;
    store.report(&root, "", failed("BROKEN")).await;
    store.report(&other, "", failed("BROKEN")).await;
    for job in ["a", "c", "x"] {
        assert_eq!(store.status(job).await, JobStatus::Failed);
    }
    // None of them can go on before its prerequisite does.
    for (job, prerequisite) in [("a", "m"), ("c", "a")] {
        let refused = store.try_retry(job, false).await;
        let refusal = Refusal::Failed(ids(&[prerequisite]));
        assert_eq!(refused, Retry::Refused(refusal));
        assert_eq!(store.job(job).await.round, None);
    }
    let begun = store.retry(&root).await;
    assert_eq!(
        (begun.revived.len(), begun.fallen),
        (0, ids(&["a", "c", "x"]))
    );
    store.cancel(&root).await;

    let Retry::Begun(begun) = store.try_retry("m", true).await else {
        panic!("a round begins")
    };
    let revived: Vec<_> = begun.revived.iter().map(|job| job.job.clone()).collect();
    assert_eq!((revived, begun.fallen), (ids(&["a", "c"]), ids(&["x"])));
    for (job, status) in [
        ("a", JobStatus::Waiting),
        ("c", JobStatus::Waiting),
        ("x", JobStatus::Failed),
    ] {
        assert_eq!(store.status(job).await, status, "{job}");
        assert_eq!(store.job(job).await.failed_tasks == 0, job != "x");
    }
    // It can go on once its other prerequisite does.
    let Retry::Begun(begun) = store.try_retry("z", true).await else {
        panic!("a round begins")
    };
    assert_eq!((begun.revived.len(), begun.fallen.len()), (0, 0));
    store.retry("x").await;
    store.sent().await;
    let done = |job: &Incarnation| event(job, "", EventKind::Complete);
    store.record(&[done(&root)]).await.unwrap();
    assert_eq!(
        store.sent().await,
        [format!(
            "again {}",
            store.incarnation("a").await.job_task_id()
        )]
    );
    store
        .record(&[done(&store.incarnation("a").await), done(&other)])
        .await
        .unwrap();
    assert_eq!(store.sent().await.len(), 2);
}

async fn job_that_cannot_go_on_says_why(mut store: TestStore) {
    assert_eq!(store.try_retry("unknown", false).await, Retry::NotFound);
    let job = store.started("j").await;
    let wrong = |status| Retry::WrongStatus(status);
    assert_eq!(store.try_retry("j", false).await, wrong(JobStatus::Waiting));
    store.complete(&job, &["1"]).await;
    assert_eq!(store.try_retry("j", true).await, wrong(JobStatus::Active));
    store.complete(&job, &["2*"]).await;
    assert_eq!(
        store.try_retry("j", false).await,
        wrong(JobStatus::Completed)
    );
    assert_eq!(store.job(&job).await.round, None);

    store
        .reopen_with(StoreOptions {
            failed_tables_kept: Duration::ZERO,
            ..StoreOptions::default()
        })
        .await;
    for (name, ends) in [("failed", true), ("cancelled", false)] {
        let job = store.started(name).await;
        store.complete(&job, &["1"]).await;
        if ends {
            store.report(&job, "2", failed("BROKEN")).await;
        } else {
            store.cancel(&job).await;
        }
        let before = store.job(&job).await;
        while store.sweep().await.unwrap().tables > 0 {}
        assert_eq!(store.try_retry(name, true).await, Retry::Forgotten);
        assert_eq!(store.job(&job).await, before);
    }
}

async fn tasks_of_an_earlier_round_are_not_parked(store: TestStore) {
    let first = store.paused("j").await;
    let task = |pipe: &str| ParkedTask {
        pipe: pipe.to_owned(),
        body: Vec::new(),
        headers: store::Headers::default(),
    };
    let park = async |job: &Incarnation| {
        let tasks = [(task_id(job, "1"), task("in"))];
        store.park_tasks(&tasks).await.unwrap()
    };
    assert_eq!(park(&first).await, [ParkOutcome::Parked]);
    store.cancel(&first).await;
    // Nobody has dropped the parked task yet.
    let second = store.retry(&first).await.job;
    let parked = store.count_parked_tasks(&acme(), &id("j")).await;
    assert_eq!(parked.unwrap(), 0);
    store.sent().await;
    while store.unpark_tasks(10).await.unwrap() {}
    assert_eq!(store.sent().await, [""; 0]);
    assert_eq!(park(&first).await, [ParkOutcome::Discard]);
    assert_eq!(park(&second).await, [ParkOutcome::SendBack]);
    store.pause(&second).await;
    assert_eq!(park(&first).await, [ParkOutcome::Discard]);
    assert_eq!(park(&second).await, [ParkOutcome::Parked]);
    let status = async |round| {
        let number = Some(first.number);
        let found = store.job_status(&acme(), &id("j"), number, round).await;
        found.unwrap()
    };
    assert_eq!(status(Some(1)).await, None);
    assert_eq!(status(Some(2)).await, Some(JobStatus::Paused));
    assert_eq!(status(Some(3)).await, None);
    assert_eq!(status(None).await, Some(JobStatus::Paused));
}

async fn of_many_retries_at_once_one_begins_a_round(store: TestStore) {
    let job = store.started("j").await;
    store.complete(&job, &["1"]).await;
    store.create_scheduled("d", after(&["j"])).await;
    store.report(&job, "2", failed("BROKEN")).await;
    let other = store.in_another_process().await;
    let retry = async |store: &store::Store| {
        let retry = store.retry_job(&acme(), &id("j"), true, again).await;
        retry.unwrap()
    };
    let retries = futures_util::future::join_all(
        (0..8).map(|at| retry(if at % 2 == 0 { &other } else { &store })),
    );
    let retries = retries.await;
    let begun = retries.iter().filter(|it| matches!(it, Retry::Begun(_)));
    assert_eq!(begun.count(), 1, "{retries:?}");
    let refused = Retry::WrongStatus(JobStatus::Active);
    assert_eq!(retries.iter().filter(|it| **it == refused).count(), 7);
    assert_eq!(store.job(&job).await.round, Some(2));
    assert_eq!(store.sent().await.len(), 1);
}

async fn job_that_is_cancelled_and_retried_ten_times_is_exact(store: TestStore) {
    let mut rounds = vec![store.started("j").await];
    for done in 1..=10 {
        let job = rounds.last().unwrap().clone();
        store.complete(&job, &[&done.to_string()]).await;
        store.report(&job, "11", EventKind::Progress(50)).await;
        if done % 2 == 0 {
            store.report(&job, "12", failed("BROKEN")).await;
        } else {
            store.cancel(&job).await;
        }
        let now = store.job(&job).await;
        assert_eq!(now.completed_items, done);
        rounds.push(store.retry(&job).await.job);
        // Of every earlier round.
        for job in &rounds[..rounds.len() - 1] {
            store.report(job, "12", failed("LATE")).await;
            store.report(job, "1", EventKind::Complete).await;
        }
        let now = store.job(&job).await;
        assert_eq!((now.status, now.failed_tasks), (JobStatus::Active, 0));
    }
    let last = rounds.last().unwrap();
    assert_eq!(last.round, 11);
    store.complete(last, &["11", "13*"]).await;
    assert_eq!(store.status(last).await, JobStatus::Active);
    store.complete(&rounds[3], &["12"]).await;
    let now = store.job(last).await;
    assert_eq!(
        (now.status, now.completed_items),
        (JobStatus::Completed, 12)
    );
}

async fn retry_and_sweep_at_once_leave_either_a_round_or_a_reason(mut store: TestStore) {
    store
        .reopen_with(StoreOptions {
            failed_tables_kept: Duration::ZERO,
            ..StoreOptions::default()
        })
        .await;
    for at in 0..6 {
        let name = format!("j{at}");
        let job = store.started(&name).await;
        store.complete(&job, &["1"]).await;
        store.cancel(&job).await;
        let (retry, swept) = tokio::join!(store.try_retry(&name, false), store.sweep());
        swept.unwrap();
        let tables = store.task_table_size().await.unwrap().tables;
        match retry {
            Retry::Begun(Begun { job, .. }) => {
                assert_eq!(store.sweep().await.unwrap().tables, 0);
                store.complete(&job, &["2", "3*"]).await;
                let now = store.job(&job).await;
                assert_eq!((now.status, now.completed_items), (JobStatus::Completed, 2));
            }
            Retry::Forgotten => assert!(tables <= 1, "{tables}"),
            other => panic!("{other:?}"),
        }
        while store.sweep().await.unwrap().tables > 0 {}
    }
}

async fn kept_tables_are_bounded_in_number(mut store: TestStore) {
    store
        .reopen_with(StoreOptions {
            most_failed_tables: 2,
            ..StoreOptions::default()
        })
        .await;
    let mut jobs = Vec::new();
    for at in 0..5 {
        let job = store.started(&format!("j{at}")).await;
        store.complete(&job, &["1"]).await;
        store.cancel(&job).await;
        jobs.push(job);
    }
    assert_eq!(store.sweep().await.unwrap().tables, 3);
    assert_eq!(store.sweep().await.unwrap().tables, 0);
    for (at, job) in jobs.iter().enumerate() {
        let retry = store.try_retry(job, false).await;
        assert_eq!(matches!(retry, Retry::Begun(_)), at >= 3, "{at}: {retry:?}");
    }
}

async fn job_that_goes_on_does_not_expire(store: TestStore) {
    let policy = contract::rest::ExpiryPolicy {
        expiry_time: "lastUpdateTime+PT0S".to_owned(),
        ..Default::default()
    };
    let request = JobRequest {
        expiry: contract::rest::Expiry {
            cancelled: Some(policy),
            ..Default::default()
        },
        ..request("j")
    };
    let job = store.create_with(request).await;
    store.complete(&job, &["1"]).await;
    store.cancel(&job).await;
    store.retry(&job).await;
    assert_eq!(store.sweep().await.unwrap().jobs, 0);
    assert!(store.exists(&job).await);
    store.cancel(&job).await;
    assert_eq!(store.sweep().await.unwrap().jobs, 1);
}

async fn many_jobs_go_on_each_once(store: TestStore) {
    for at in 0..7 {
        let job = store.started(&format!("j{at}")).await;
        store.complete(&job, &["1"]).await;
        match at {
            0 => {}
            3 => store.complete(&job, &["2*"]).await,
            _ => drop(store.cancel(&job).await),
        }
    }
    // The oldest one cannot go on, and stands before the others.
    store.create_scheduled("d", after(&["missing"])).await;
    let missing = store.create("missing").await;
    store.report(&missing, "", failed("BROKEN")).await;
    let (mut cursor, mut begun, mut refused) = (RetryCursor::default(), Vec::new(), Vec::new());
    loop {
        let batch = store
            .retry_some_jobs(&acme(), &JobQuery::default(), false, &mut cursor, 2, again)
            .await
            .unwrap();
        if batch.jobs.is_empty() {
            break;
        }
        assert!(batch.jobs.len() <= 2);
        for (job, retry) in batch.jobs {
            match retry {
                // It fails again at once.
                Retry::Begun(Begun { job, .. }) => {
                    store.cancel(&job).await;
                    begun.push(job.job.to_string());
                }
                Retry::Refused(_) => refused.push(job.to_string()),
                other => panic!("{job}: {other:?}"),
            }
        }
    }
    begun.sort();
    assert_eq!(begun, ["j1", "j2", "j4", "j5", "j6", "missing"]);
    assert_eq!(refused, ["d"]);
}

async fn definition_is_kept_as_long_as_its_job(store: TestStore) {
    let definition = br#"{"name": "big"}"#.repeat(10_000);
    let request = JobRequest {
        definition: definition.clone(),
        headers: [(
            "traceparent".to_owned(),
            store::Header::Text("00".to_owned()),
        )]
        .into(),
        ..request("j")
    };
    let read = async || store.definition(&acme(), &id("j")).await.unwrap();
    assert_eq!(read().await, None);
    create(&store, &request).await;
    let kept = read().await.unwrap();
    assert_eq!((kept.request, kept.pipe.as_str()), (definition, "start"));
    assert_eq!((kept.start, kept.headers), (b"j".to_vec(), request.headers));
    let job = store.retry_after_cancel("j").await;
    assert!(read().await.is_some());
    store.delete(&job).await;
    assert_eq!(read().await, None);
    store.create("j").await;
    assert_eq!(read().await.unwrap().request, b"");
}

/// Makes the start message of a round: it names the job's own task.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the store takes a function that may fail"
)]
fn again(job: &Incarnation, _: &store::Definition) -> Result<Vec<u8>, String> {
    Ok(format!("again {}", job.job_task_id()).into_bytes())
}

impl TestStore {
    pub async fn try_retry(&self, job: impl JobRef, dependents: bool) -> Retry {
        self.retry_job(&job.partition(), &job.job(), dependents, again)
            .await
            .unwrap()
    }

    pub async fn retry(&self, job: impl JobRef) -> Begun {
        let name = job.job();
        match self.try_retry(job, false).await {
            Retry::Begun(begun) => begun,
            other => panic!("{name}: {other:?}"),
        }
    }

    pub async fn retry_after_cancel(&self, job: &str) -> Incarnation {
        self.cancel(job).await;
        self.retry(job).await.job
    }

    /// Returns the job in its present round.
    pub async fn incarnation(&self, job: &str) -> Incarnation {
        let (found, partition, job) = (self.job(job).await, acme(), id(job));
        let key = self.life_key(&partition, &job, found.incarnation).await;
        Incarnation {
            partition,
            job,
            number: found.incarnation,
            first: true,
            round: found.round.unwrap_or(1),
            key: key.unwrap(),
        }
    }
}
