//! Creating, cancelling and deleting jobs, and the wake-ups that follow.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use contract::{JobId, JobStatus, OnFailure, TaskTimeLimit};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use sqlx::{Connection as _, Executor as _, PgConnection};
use store::{
    Asked, Cancellation, Creation, EventKind, Incarnation, JobQuery, JobRequest, JobSignal,
    TaskAnswer,
};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::fixture::{
    MINUTE, TestStore, acme, after, continuing, create, event, failed, id, page_of, request,
};

suite![
    new_job_waits_and_its_start_message_is_in_the_outbox,
    repeated_request_changes_nothing_and_a_different_one_conflicts,
    thousand_concurrent_requests_create_the_job_once,
    creations_at_the_same_time_spoil_no_other,
    cancel_takes_effect_once_and_removes_the_unsent_start_message,
    only_reports_of_the_current_incarnation_count,
    commits_wake_the_relay_and_the_sweeper,
    changes_of_a_job_wake_those_who_watch_it_and_no_others,
    release_and_cascade_wake_the_watchers_of_the_dependents,
    jobs_of_another_partition_are_invisible,
    pipes_of_unfinished_jobs_are_known_once_each,
    started_jobs_that_do_not_change_are_found_and_what_they_bring_is_kept,
];

async fn new_job_waits_and_its_start_message_is_in_the_outbox(store: TestStore) {
    let asked = JobRequest {
        name: Some("a new job".to_owned()),
        on_failure: OnFailure::Continue,
        labels: BTreeMap::from([
            ("tag:colour".to_owned(), Some("blue".to_owned())),
            ("bare".to_owned(), None),
        ]),
        ..request("new")
    };
    let start_message =
        |incarnation: &Incarnation| ("start".to_owned(), incarnation.job_task_id().into_bytes());
    let created = store.create_job(&asked, start_message).await;
    let Creation::Created(incarnation) = created.unwrap() else {
        panic!("not created")
    };
    assert!(incarnation.first);
    assert_eq!(incarnation.job_task_id(), "acme:new");
    let job = store.job(&incarnation).await;
    assert_eq!(
        (job.id.as_str(), job.status, job.percentage_complete),
        ("new", JobStatus::Waiting, 0.0)
    );
    assert_eq!(
        (job.name.as_deref(), job.on_failure, job.incarnation),
        (Some("a new job"), OnFailure::Continue, incarnation.number)
    );
    assert_eq!(job.create_time, job.last_update_time);
    assert_eq!(job.labels, asked.labels);
    let messages = store.outbox(10).await.unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(
        (messages[0].pipe.as_str(), &messages[0].body[..]),
        ("start", &b"acme:new"[..])
    );
    store.outbox_sent(&[messages[0].id]).await.unwrap();
    store.outbox_sent(&[]).await.unwrap();
    assert_eq!(store.outbox(10).await.unwrap(), []);
    store.ping().await.unwrap();
}

async fn repeated_request_changes_nothing_and_a_different_one_conflicts(store: TestStore) {
    let asked = request("again");
    let incarnation = store.create("again").await;
    assert_eq!(create(&store, &asked).await, Creation::AlreadyThere);
    assert_eq!(
        create(
            &store,
            &JobRequest {
                content_hash: [8; 32],
                ..asked.clone()
            }
        )
        .await,
        Creation::Conflict
    );
    assert_eq!(store.outbox(10).await.unwrap().len(), 1);
    store.complete(&incarnation, &[""]).await;
    let done = store.job(&incarnation).await;
    assert_eq!(create(&store, &asked).await, Creation::AlreadyThere);
    assert_eq!(store.job(&incarnation).await, done);
    // A completed job has no start message.
    assert_eq!(store.outbox(10).await.unwrap(), []);
}

async fn thousand_concurrent_requests_create_the_job_once(store: TestStore) {
    let request = |n: usize| JobRequest {
        name: Some((n % 2).to_string()),
        content_hash: [u8::try_from(n % 2).unwrap(); 32],
        ..request("one")
    };
    let answers = join_all((0..1000).map(|n| {
        let (store, request) = (&store, request(n));
        async move { (n % 2, create(store, &request).await) }
    }))
    .await;
    let winner = answers
        .iter()
        .find(|(_, answer)| matches!(answer, Creation::Created(_)))
        .unwrap()
        .0;
    let count = |which: fn(&Creation) -> bool, kind| {
        answers
            .iter()
            .filter(|(of, answer)| *of == kind && which(answer))
            .count()
    };
    assert_eq!(
        count(|answer| matches!(answer, Creation::Created(_)), winner),
        1
    );
    assert_eq!(
        count(|answer| *answer == Creation::AlreadyThere, winner),
        499
    );
    assert_eq!(
        count(|answer| *answer == Creation::Conflict, 1 - winner),
        500
    );
    assert_eq!(store.outbox_texts().await.len(), 1);
}

async fn creations_at_the_same_time_spoil_no_other(store: TestStore) {
    store.create("again").await;
    store.delete_job(&acme(), &id("again")).await.unwrap();
    let labels = |n: u32| BTreeMap::from([("n".to_owned(), Some(n.to_string()))]);
    let mut asked: Vec<JobRequest> = (0..100)
        .map(|n| JobRequest {
            labels: if n % 10 == 0 {
                labels(n)
            } else {
                BTreeMap::new()
            },
            ..request(&format!("job-{n}"))
        })
        .collect();
    asked.insert(50, request("again"));
    // PostgreSQL refuses such a text.
    let refused = JobRequest {
        name: Some("\0".to_owned()),
        ..request("refused")
    };
    let start = |new: &Incarnation| ("in".to_owned(), new.job_task_id().into_bytes());
    let creations = asked.iter().map(|asked| store.create_job(asked, start));
    let (panics, left) = (request("panics"), request("left"));
    let panicking = store.create_job(&panics, |_| panic!("as it should"));
    let (created, _, panicked, _) = tokio::join!(
        join_all(creations),
        store.create_job(&refused, start),
        AssertUnwindSafe(panicking).catch_unwind(),
        async { store.create_job(&left, start).now_or_never() },
    );
    assert!(panicked.is_err());
    let mut bodies = Vec::new();
    for (asked, created) in asked.iter().zip(created) {
        let Creation::Created(created) = created.unwrap() else {
            panic!("{} is not created", asked.job)
        };
        assert_eq!(created.job, asked.job);
        assert_eq!(created.first, asked.job.as_str() != "again");
        let job = store.job(&created).await;
        assert_eq!((&*job.id, &job.labels), (asked.job.as_str(), &asked.labels));
        assert_eq!(store.history(&created).await.len(), 1);
        bodies.push(created.job_task_id());
    }
    let others = ["acme:refused", "acme:left"];
    let mut sent = store.outbox_texts().await;
    sent.retain(|sent| !others.contains(&sent.as_str()));
    sent.sort();
    bodies.sort();
    assert_eq!(sent, bodies);
}

#[tokio::test]
async fn creation_that_waits_for_a_lock_holds_up_no_other() {
    let store = TestStore::open("postgres").await;
    let mut session = PgConnection::connect(store.url()).await.unwrap();
    // As the creation of a job with prerequisites does.
    let lock = "begin; select pg_advisory_xact_lock(hashtextextended('locked', 2))";
    session.execute(sqlx::raw_sql(lock)).await.unwrap();
    let start = |_: &Incarnation| ("in".to_owned(), b"start".to_vec());
    for (name, runs_alone) in [("with", false), ("behind", true)] {
        let locked = JobRequest::new("locked".parse().unwrap(), id(name));
        let others: Vec<_> = (0..3).map(|n| request(&format!("{name}-{n}"))).collect();
        let mut creation = Box::pin(store.create_job(&locked, start));
        assert!(creation.as_mut().now_or_never().is_none());
        if runs_alone {
            // This test has one thread: the transaction begins now, and the others come behind it.
            yield_now().await;
        }
        let mut again = Box::pin(store.create_job(&locked, start));
        assert!(again.as_mut().now_or_never().is_none());
        let created = join_all(others.iter().map(|other| store.create_job(other, start)));
        let created = timeout(MINUTE / 6, created).await;
        for created in created.expect("none of the others waits for the lock") {
            assert!(matches!(created, Ok(Creation::Created(_))), "{created:?}");
        }
        assert!(creation.as_mut().now_or_never().is_none());
        session.execute("rollback").await.unwrap();
        let both = <[_; 2]>::from(tokio::join!(creation, again)).map(Result::unwrap);
        assert!(both.contains(&Creation::AlreadyThere), "{both:?}");
        let created = |creation: &Creation| matches!(creation, Creation::Created(_));
        assert!(both.iter().any(created), "{both:?}");
        session.execute(sqlx::raw_sql(lock)).await.unwrap();
    }
}

async fn cancel_takes_effect_once_and_removes_the_unsent_start_message(store: TestStore) {
    let incarnation = store.create("cancel").await;
    let cancel = async || {
        store
            .cancel_job(&incarnation.partition, &incarnation.job)
            .await
            .unwrap()
    };
    assert_eq!(
        cancel().await,
        Cancellation::Cancelled(vec![incarnation.clone()])
    );
    assert_eq!(store.outbox(10).await.unwrap(), []);
    let before = store.job(&incarnation).await;
    assert_eq!(
        (before.status, before.percentage_complete),
        (JobStatus::Cancelled, 0.0)
    );
    assert_eq!(cancel().await, Cancellation::AlreadyCancelled);
    let recorded = store
        .record(&[
            event(&incarnation, "1*", EventKind::Complete),
            event(&incarnation, "", EventKind::Complete),
        ])
        .await
        .unwrap();
    assert_eq!(recorded.ignored, 2);
    assert_eq!(store.job(&incarnation).await, before);
    assert_eq!(store.task_table_size().await.unwrap().tables, 0);

    let done = store.create("done").await;
    store.complete(&done, &["1*"]).await;
    let answer = store.cancel_job(&done.partition, &done.job).await.unwrap();
    assert_eq!(answer, Cancellation::Finished(JobStatus::Completed));
    let nobody = JobId::parse("nobody").unwrap();
    assert_eq!(
        store.cancel_job(&done.partition, &nobody).await.unwrap(),
        Cancellation::NotFound
    );
}

async fn only_reports_of_the_current_incarnation_count(store: TestStore) {
    let mut past: Vec<Incarnation> = Vec::new();
    for round in 0..10 {
        let incarnation = store.create("phoenix").await;
        assert_eq!(incarnation.first, round == 0);
        assert!(
            past.iter()
                .all(|earlier| earlier.number < incarnation.number)
        );
        // Reports of all earlier incarnations, and one of the current incarnation.
        let mut events: Vec<_> = past
            .iter()
            .map(|earlier| event(earlier, "1", EventKind::Complete))
            .collect();
        events.push(event(&incarnation, "3", EventKind::Complete));
        let recorded = store.record(&events).await.unwrap();
        assert_eq!(recorded.ignored, round);
        assert_eq!(store.job(&incarnation).await.completed_items, 1);
        let status = async |n| {
            store
                .job_status(&incarnation.partition, &incarnation.job, n, None)
                .await
                .unwrap()
        };
        assert_eq!(status(None).await, Some(JobStatus::Active));
        assert_eq!(
            status(Some(incarnation.number)).await,
            Some(JobStatus::Active)
        );
        for earlier in &past {
            assert_eq!(status(Some(earlier.number)).await, None);
        }
        store.delete(&incarnation).await;
        assert!(
            !store
                .delete_job(&incarnation.partition, &incarnation.job)
                .await
                .unwrap()
        );
        assert_eq!(status(None).await, None);
        assert_eq!(store.outbox(10).await.unwrap(), []);
        past.push(incarnation);
    }
    // Two sweeps drop the task tables of all past incarnations.
    assert_eq!(store.sweep().await.unwrap().tables, 8);
    assert_eq!(store.sweep().await.unwrap().tables, 2);
    assert_eq!(store.task_table_size().await.unwrap().tables, 0);
}

async fn commits_wake_the_relay_and_the_sweeper(store: TestStore) {
    let waiting = store.in_another_process().await;
    let mut outbox = waiting.outbox_signal();
    let mut sweep = waiting.sweep_signal();
    assert!(
        outbox.has_changed().unwrap() && sweep.has_changed().unwrap(),
        "a new receiver counts as woken"
    );
    outbox.mark_unchanged();
    sweep.mark_unchanged();
    let incarnation = store.create("wake").await;
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
    store.complete(&incarnation, &["1"]).await;
    assert!(!sweep.has_changed().unwrap());
    store.complete(&incarnation, &["2*"]).await;
    harness::in_time("a wake-up", sweep.changed())
        .await
        .unwrap();
}

async fn changes_of_a_job_wake_those_who_watch_it_and_no_others(store: TestStore) {
    let watching = store.in_another_process().await;
    let signal = |job: &str| watching.job_signal(&acme(), &id(job));
    for job in ["a", "b", "c"] {
        store.create(job).await;
    }
    let (a, b, c) = (signal("a"), signal("b"), signal("c"));
    let woken = async |signal: &JobSignal| harness::in_time("a wake-up", signal.changed()).await;
    store.complete_jobs(&["a", "b"]).await;
    woken(&a).await;
    woken(&b).await;
    store.delete("a").await;
    woken(&a).await;
    store.cancel("c").await;
    woken(&c).await;
    // Wake-ups arrive in the order of the commits, so those of the other jobs would be here.
    assert!([&a, &b, &c].map(|signal| signal.changed().now_or_never()) == [None; 3]);
    store.dispatch_partition(&acme()).await.unwrap();
    for signal in [&a, &b, &c] {
        woken(signal).await;
    }
}

async fn release_and_cascade_wake_the_watchers_of_the_dependents(store: TestStore) {
    for job in ["first", "other"] {
        store.create(job).await;
    }
    store.create_scheduled("released", after(&["first"])).await;
    store.create_scheduled("ended", after(&["other"])).await;
    let signal = |job: &str| store.job_signal(&acme(), &id(job));
    let (released, ended) = (signal("released"), signal("ended"));
    let woken = async |signal: &JobSignal| harness::in_time("a wake-up", signal.changed()).await;
    store.complete_jobs(&["first"]).await;
    woken(&released).await;
    store.cancel("other").await;
    woken(&ended).await;
    assert_eq!(released.changed().now_or_never(), None);
}

async fn jobs_of_another_partition_are_invisible(store: TestStore) {
    let there = JobRequest {
        partition: "there".parse().unwrap(),
        ..continuing("j")
    };
    let job = store.create_with(there).await;
    store.report(&job, "1", failed("BROKEN")).await;
    let before = store.job(&job).await;
    let (acme, j, any) = (acme(), id("j"), JobQuery::default());
    assert!(!store.exists("j").await);
    assert_eq!(store.jobs(&acme, &page_of(9)).await.unwrap(), []);
    assert_eq!(store.count_jobs(&acme, &any).await.unwrap(), 0);
    assert_eq!(store.task_answer("j", &[1]).await, TaskAnswer::NoJob);
    let failures = store.failures(&acme, &j, None, 9).await;
    assert_eq!(failures.unwrap(), None);
    let cancelled = store.cancel_job(&acme, &j).await;
    assert_eq!(cancelled.unwrap(), Cancellation::NotFound);
    assert!(!store.delete_job(&acme, &j).await.unwrap());
    assert_eq!(store.job(&job).await, before);
}

async fn pipes_of_unfinished_jobs_are_known_once_each(store: TestStore) {
    for (job, pipe) in [("a", "in-2"), ("b", "in-1"), ("c", "in-2"), ("d", "in-0")] {
        let request = request(job);
        let created = store.create_job(&request, |_| (pipe.to_owned(), Vec::new()));
        created.await.unwrap();
    }
    store.cancel("d").await;
    assert_eq!(store.task_pipes(10).await.unwrap(), ["in-1", "in-2"]);
    assert_eq!(store.task_pipes(1).await.unwrap(), ["in-1"]);
    store.cancel("a").await;
    store.cancel("b").await;
    assert_eq!(store.task_pipes(10).await.unwrap(), ["in-2"]);
}

async fn started_jobs_that_do_not_change_are_found_and_what_they_bring_is_kept(store: TestStore) {
    let policy = "jobweaver,attempts=3".parse().unwrap();
    let brings = JobRequest {
        retry: Some(policy),
        task_time_limit: TaskTimeLimit::of_seconds(90),
        ..request("brings")
    };
    let brings = store.create_with(brings).await;
    let names = async |idle: Duration, limit| -> Vec<String> {
        let stuck = store.stuck_jobs(idle, limit).await.unwrap();
        stuck.into_iter().map(|job| job.job.to_string()).collect()
    };
    // Its start message waits in the outbox.
    assert_eq!(names(Duration::ZERO, 9).await, [""; 0]);
    store.sent().await;
    let (active, paused) = (store.started("active").await, store.paused("paused").await);
    store.sent().await;
    assert_eq!(names(Duration::ZERO, 9).await, ["brings", "active"]);
    assert_eq!(names(Duration::ZERO, 1).await, ["brings"]);
    assert_eq!(names(Duration::from_mins(5), 9).await, [""; 0]);
    store.resume(&paused).await;
    store.cancel(&active).await;
    assert_eq!(names(Duration::ZERO, 9).await, ["brings", "paused"]);

    let of = async |job: &Incarnation| match store.job_for_workers(job.into()).await.unwrap() {
        Asked::Found(known) => known.retry,
        other => panic!("{other:?}"),
    };
    let in_full = "exponential,first=10s,factor=2,longest=5m,attempts=3,within=none";
    assert_eq!(of(&brings).await.as_deref(), Some(in_full));
    let job = store.job(&brings).await;
    assert_eq!(job.retry.as_deref(), Some(in_full));
    assert_eq!(job.task_time_limit, TaskTimeLimit::of_seconds(90));
    assert_eq!(store.job(&paused).await.task_time_limit, None);
    assert_eq!(of(&paused).await, None);
}
