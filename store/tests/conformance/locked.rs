//! Jobs that another session keeps locked in PostgreSQL: they hold up no other job.

use std::collections::BTreeMap;

use contract::rest::{Expiry, ExpiryPolicy, OutputStatus};
use contract::{Condition, ConditionCode, JobStatus};
use futures_util::future::join_all;
use harness::{HeldLock, wait_for};
use store::{
    Blocking, ConditionAct, ConditionPhase, EventKind, Incarnation, JobQuery, JobRequest, Keeping,
    NewBlob, NewOutputs, ParkOutcome, ParkedTask, Recorded,
};
use tokio::time::timeout;

use crate::blocked::{block_by, step};
use crate::fixture::{MINUTE, TestStore, acme, after, event, failed, request, task_id};

suite!(
    @ postgres,
    reports_of_the_other_jobs_count_at_once,
    reports_of_a_job_count_although_something_of_another_one_is_locked,
    job_that_ends_waits_for_a_locked_one_that_waits_for_it,
    tasks_and_outputs_of_the_other_jobs_are_taken,
    tasks_of_the_other_jobs_are_let_go,
    other_jobs_are_swept,
    all_other_jobs_that_match_are_cancelled,
    requests_about_a_locked_job_leave_connections_to_others
);

async fn lock_job(store: &TestStore, job: &str) -> HeldLock {
    let row = format!("select 1 from batchwright.job where job_id = '{job}' for update");
    HeldLock::by(store.url(), &row).await.unwrap()
}

/// Returns the jobs that were left out.
fn left_out(recorded: &Recorded) -> Vec<&str> {
    let jobs = recorded.left_out.keys();
    jobs.map(|(_, job)| job.as_str()).collect()
}

/// Reports these jobs complete.
async fn complete(store: &TestStore, jobs: &[&str]) -> Recorded {
    let events: Vec<_> = jobs
        .iter()
        .map(|job| event(*job, "", EventKind::Complete))
        .collect();
    store.record(&events).await.unwrap()
}

/// Reports these jobs complete until none of them is left out.
async fn complete_once_free(store: &TestStore, jobs: &[&str]) {
    wait_for("the jobs to be free", async || {
        let recorded = complete(store, jobs).await;
        let left = left_out(&recorded);
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
}

async fn reports_of_the_other_jobs_count_at_once(store: TestStore) {
    for job in ["a", "b", "c", "d"] {
        store.create(job).await;
    }
    let lock = lock_job(&store, "b").await;
    let recorded = complete(&store, &["a", "b", "c", "unknown"]).await;
    assert_eq!((left_out(&recorded), recorded.ignored), (vec!["b"], 1));
    assert_eq!(recorded.finished.len(), 2);
    for (job, status) in [
        ("a", JobStatus::Completed),
        ("b", JobStatus::Waiting),
        ("c", JobStatus::Completed),
    ] {
        assert_eq!(store.status(job).await, status, "{job}");
    }
    // It is not tried again at once, and holds up nothing.
    let recorded = complete(&store, &["b", "d"]).await;
    assert_eq!(left_out(&recorded), ["b"]);
    assert_eq!(store.status("d").await, JobStatus::Completed);
    lock.let_go().await.unwrap();
    complete_once_free(&store, &["b"]).await;
    assert_eq!(store.status("b").await, JobStatus::Completed);
}

async fn reports_of_a_job_count_although_something_of_another_one_is_locked(store: TestStore) {
    let (first, second) = (store.create("a").await, store.create("b").await);
    for job in [&first, &second] {
        store.complete(job, &["1"]).await;
    }
    let table = format!("lock table batchwright.task_{}", first.number);
    let lock = HeldLock::by(store.url(), &table).await.unwrap();
    let ends = |job| ["2", "3*"].map(|path| event(job, path, EventKind::Complete));
    let events = [ends(&first), ends(&second)].concat();
    let recorded = store.record(&events).await.unwrap();
    assert_eq!(left_out(&recorded), ["a"]);
    assert_eq!(store.status("b").await, JobStatus::Completed);
    lock.let_go().await.unwrap();
    wait_for("the table to be free", async || {
        let recorded = store.record(&events).await.unwrap();
        let left = left_out(&recorded);
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    assert_eq!(store.status("a").await, JobStatus::Completed);
}

async fn job_that_ends_waits_for_a_locked_one_that_waits_for_it(store: TestStore) {
    // The one that waits precedes or follows the one that ends in the order of locks.
    for [waiting, ends, fails] in [["a", "m", "n"], ["z", "o", "p"]] {
        let (begins, falls) = (format!("{waiting}-begins"), format!("{waiting}-falls"));
        let other = &format!("{waiting}-other");
        for job in [ends, fails, other] {
            store.create(job).await;
        }
        store.create_scheduled(&begins, after(&[ends])).await;
        store.create_scheduled(waiting, after(&[fails])).await;
        store.create_scheduled(&falls, after(&[waiting])).await;
        store.sent().await;
        let locks = [
            lock_job(&store, &begins).await,
            lock_job(&store, &falls).await,
        ];
        let events = [
            event(ends, "", EventKind::Complete),
            event(fails, "", failed("BROKEN")),
            event(other, "", EventKind::Complete),
        ];
        let recorded = store.record(&events).await.unwrap();
        let left = left_out(&recorded);
        assert!(left.contains(&ends) && left.contains(&fails), "{left:?}");
        assert_eq!(store.status(other).await, JobStatus::Completed);
        assert_eq!(store.status(ends).await, JobStatus::Waiting);
        assert_eq!(store.sent().await, [""; 0]);
        for lock in locks {
            lock.let_go().await.unwrap();
        }
        wait_for("the jobs to be free", async || {
            let recorded = store.record(&events).await.unwrap();
            let left = left_out(&recorded);
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        })
        .await;
        assert_eq!(store.sent().await, [begins]);
        assert_eq!(store.status(&falls).await, JobStatus::Failed);
    }
}

fn task(name: &str) -> ParkedTask {
    ParkedTask {
        pipe: "items".to_owned(),
        body: name.into(),
        headers: BTreeMap::default(),
    }
}

async fn keeping(store: &TestStore, job: &str) -> Incarnation {
    let request = JobRequest {
        output_pipe: Some("kept-in".to_owned()),
        ..request(job)
    };
    store.create_with(request).await
}

fn outputs(job: &Incarnation) -> NewOutputs {
    NewOutputs {
        job: job.clone(),
        blobs: vec![NewBlob {
            name: job.job.to_string(),
            bytes: 3,
            status: OutputStatus::Done,
            tasks: vec![vec![1]],
            crc32: 0,
        }],
        left_out: Vec::new(),
        reason: None,
    }
}

async fn tasks_and_outputs_of_the_other_jobs_are_taken(store: TestStore) {
    let paused = [store.paused("a").await, store.paused("b").await];
    let parked = paused
        .each_ref()
        .map(|job| (task_id(job, "1"), task("parked")));
    let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE);
    let blocks = [store.started("c").await, store.started("d").await];
    let blocks = blocks.map(|job| block_by(&job, "", 1, condition.clone()));
    let kept = [keeping(&store, "e").await, keeping(&store, "f").await];
    let new = kept.each_ref().map(outputs);
    let mut locks = Vec::new();
    for job in ["a", "c", "e"] {
        locks.push(lock_job(&store, job).await);
    }
    let outcomes = store.park_tasks(&parked).await.unwrap();
    assert!(
        matches!(outcomes[..], [ParkOutcome::Locked(_), ParkOutcome::Parked]),
        "{outcomes:?}"
    );
    let outcomes = store.block_tasks(&blocks).await.unwrap();
    assert!(
        matches!(outcomes[..], [Blocking::Locked(_), Blocking::Waits]),
        "{outcomes:?}"
    );
    let outcomes = store.keep_outputs(&new).await.unwrap();
    assert!(
        matches!(outcomes[..], [Keeping::Locked(_), Keeping::Kept]),
        "{outcomes:?}"
    );
    store.note_waiting_outputs(&kept, "full").await.unwrap();
    assert_eq!(
        store.job("f").await.outputs.unwrap().waiting.as_deref(),
        Some("full")
    );
    let locked = store.still_locked(&kept).await.unwrap();
    let locked: Vec<_> = locked.into_keys().map(|(_, job)| job).collect();
    assert_eq!(locked, ["e"]);
    for lock in locks {
        lock.let_go().await.unwrap();
    }
    wait_for("the job to be free", async || {
        let outcomes = store.keep_outputs(&new[..1]).await.unwrap();
        let [Keeping::Kept] = outcomes[..] else {
            return Err(format!("{outcomes:?}"));
        };
        Ok(())
    })
    .await;
}

async fn tasks_of_the_other_jobs_are_let_go(store: TestStore) {
    let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE);
    let [first, second] = [store.started("a").await, store.started("b").await];
    for (job, path) in [(&first, "1"), (&first, "2"), (&second, "1")] {
        let block = [block_by(job, path, 1, condition.clone())];
        let blocked = store.block_tasks(&block).await.unwrap();
        assert_eq!(blocked, [Blocking::Waits]);
    }
    let lock = lock_job(&store, "a").await;
    let key = condition.key();
    let due = store.command_condition(&key, ConditionPhase::Testing);
    assert!(due.await.unwrap());
    let claimed = store.claim_condition(MINUTE).await.unwrap().unwrap().row;
    let release = step(ConditionPhase::Releasing, ConditionAct::Release(2));
    let stepped = store.step_condition(&claimed, &release).await.unwrap();
    let stepped = stepped.unwrap();
    assert_eq!((stepped.tasks, stepped.waiting), (1, 2));
    // Tasks of paused jobs leave after the resume of their job.
    let resumed = [store.paused("c").await, store.paused("d").await];
    let parked = resumed
        .each_ref()
        .map(|job| (task_id(job, "1"), task(job.job.as_str())));
    store.park_tasks(&parked).await.unwrap();
    for job in &resumed {
        store.resume(job).await;
    }
    store.sent().await;
    let other = lock_job(&store, "c").await;
    assert!(store.unpark_tasks(500).await.unwrap());
    assert_eq!(store.sent().await, ["d"]);
    lock.let_go().await.unwrap();
    other.let_go().await.unwrap();
    while store.unpark_tasks(500).await.unwrap() {}
    assert_eq!(store.sent().await, ["c"]);
}

async fn other_jobs_are_swept(store: TestStore) {
    let at_once = ExpiryPolicy {
        expiry_time: "lastUpdateTime+PT0S".to_owned(),
        ..ExpiryPolicy::default()
    };
    let expiry = Expiry {
        completed: Some(at_once),
        ..Expiry::default()
    };
    for job in ["a", "b"] {
        let expiry = expiry.clone();
        let request = JobRequest {
            expiry,
            ..request(job)
        };
        store.create_with(request).await;
    }
    let tables = [store.create("c").await, store.create("d").await];
    for job in &tables {
        store.complete(job, &["1"]).await;
        store.complete(job, &["2*"]).await;
    }
    store.complete_jobs(&["a", "b"]).await;
    let job = lock_job(&store, "a").await;
    let read = format!("select 1 from batchwright.task_{}", tables[0].number);
    let reader = HeldLock::by(store.url(), &read).await.unwrap();
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.jobs, swept.tables), (1, 1));
    assert!(store.exists("a").await && !store.exists("b").await);
    job.let_go().await.unwrap();
    reader.let_go().await.unwrap();
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.jobs, swept.tables), (1, 1));
}

async fn all_other_jobs_that_match_are_cancelled(store: TestStore) {
    for job in ["a", "b", "c"] {
        store.create(job).await;
    }
    let lock = lock_job(&store, "a").await;
    let query = JobQuery::default();
    let cancel = async || store.cancel_some_jobs(&acme(), &query, 2).await;
    for job in ["b", "c"] {
        let cancelled = cancel().await.unwrap();
        let cancelled: Vec<_> = cancelled.iter().map(|it| it.job.as_str()).collect();
        assert_eq!(cancelled, [job]);
    }
    let error = cancel().await.unwrap_err().to_string();
    assert!(error.ends_with("keeps the job acme:a locked"), "{error}");
    lock.let_go().await.unwrap();
    wait_for("the job to be free", async || {
        let cancelled = cancel().await.map_err(|error| error.to_string())?;
        assert_eq!(cancelled.len(), 1);
        Ok(())
    })
    .await;
}

async fn requests_about_a_locked_job_leave_connections_to_others(store: TestStore) {
    let locked = store.create("locked").await;
    store.create("other").await;
    let lock = lock_job(&store, "locked").await;
    // More than there are connections.
    let pauses = (0..32).map(|_| store.pause_job(&locked.partition, &locked.job));
    let mut pauses = Box::pin(join_all(pauses));
    let others = async {
        for _ in 0..9 {
            assert_eq!(store.status("other").await, JobStatus::Waiting);
        }
    };
    tokio::select! {
        ended = &mut pauses => panic!("{ended:?}"),
        done = timeout(MINUTE / 6, others) => done.expect("a connection for the others"),
    }
    lock.let_go().await.unwrap();
    for ended in pauses.await {
        ended.unwrap();
    }
}
