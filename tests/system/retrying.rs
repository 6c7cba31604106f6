//! Jobs that are taken up again: after a failure and after a cancellation, also with reports of
//! earlier rounds that come late.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use batchwright::{Role, Stack};
use contract::rest::{NewJob, OnFailure};
use contract::{
    FileItem, JobStatus, RangeItem, ReportFailure, ReportStatus, TaskTimeLimit, TrackingReport,
};
use framework::{Context, NoOutput, OrFail, Reply, RetryPolicy, Settings, TaskError, Worker};

use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::{Each, Gate};

stories![
    a_job_that_failed_or_was_cancelled_goes_on_where_it_stopped,
    reports_of_a_round_wait_for_a_tracking_worker_that_knows_rounds,
    a_folder_that_has_changed_since_the_first_round_fails_the_split_by_name,
    the_time_limit_of_a_job_ends_the_attempts_at_its_items_in_each_round,
    failed_tasks_run_again_as_their_job_says_in_each_round,
];

/// How often each item has run.
type Runs = Arc<Mutex<BTreeMap<u64, u32>>>;

/// The item that fails while its worker is broken.
const BROKEN: u64 = 77;

/// Runs items that pass the gate; one fails, if `breaks` says so.
async fn system(fixture: &Fixture, runs: &Runs, gate: &Gate, breaks: bool) -> System {
    let worker = Each(
        (Arc::clone(runs), gate.clone(), breaks),
        async |(runs, gate, breaks): (Runs, Gate, bool), item: RangeItem, ctx: Context| {
            gate.pass(&ctx).await?;
            *runs.lock().unwrap().entry(item.number).or_default() += 1;
            if breaks && item.number == BROKEN {
                return Err(TaskError::failed("the item is broken"));
            }
            Ok(Reply::send(item))
        },
    );
    fixture.run(worker).await
}

async fn a_job_that_failed_or_was_cancelled_goes_on_where_it_stopped(fixture: Fixture) {
    let (runs, gate) = (Runs::default(), Gate::closed());
    let broken = system(&fixture, &runs, &gate, true).await;
    let request = NewJob {
        on_failure: OnFailure::Continue,
        ..fixture.range(300)
    };
    broken.client.put("j", &request).await.unwrap();
    gate.open();
    let failed = broken.ended("j").await;
    assert_eq!(
        (failed.status, failed.completed_items, failed.failed_tasks),
        (JobStatus::Failed, 299, 1)
    );
    broken.stop().await;

    // Round 2 is cancelled before its only item runs: the others are done.
    let gate = Gate::closed();
    let mended = system(&fixture, &runs, &gate, false).await;
    let retried = mended.client.retry("j", false).await.unwrap();
    assert_eq!((retried.round, retried.status), (2, JobStatus::Active));
    let now = mended.job("j").await;
    assert_eq!((now.completed_items, now.failed_tasks), (299, 0));
    assert!(now.percentage_complete >= failed.percentage_complete);
    mended.client.cancel("j").await.unwrap();

    // Round 3 is not disturbed by what round 1 and round 2 still report, or have left in the pipes.
    assert_eq!(mended.client.retry("j", false).await.unwrap().round, 3);
    let id = format!("{}:j", mended.partition());
    let late = [
        format!("{id}.1.1"),
        format!("{id}!{}r2.1.1", now.incarnation),
        format!("{id}!{}r2", now.incarnation),
    ];
    let failure = |id: String| TrackingReport {
        failure: Some(ReportFailure::default()),
        ..TrackingReport::new(id, ReportStatus::Failed)
    };
    let reports = fixture.reports(late.into_iter().map(failure).collect());
    mended.publish(&fixture.pipe("tracking"), reports).await;
    gate.open();
    let done = mended.ended("j").await;
    assert_eq!(
        (done.status, done.completed_items, done.failed_tasks),
        (JobStatus::Completed, 300, 0)
    );
    assert_eq!((done.round, done.percentage_complete), (Some(3), 100.0));
    let mut runs = runs.lock().unwrap().clone();
    // The copy of round 2 may have waited at the gate until it opened.
    let broken = runs.remove(&BROKEN).unwrap();
    assert!((2..=3).contains(&broken), "{broken}");
    assert!(runs.values().all(|times| *times == 1), "{runs:?}");
    mended
        .drained(&["batch", "items", "tracking", "tracking.rounds"].map(|pipe| fixture.pipe(pipe)))
        .await;
    mended.stop().await;
}

async fn reports_of_a_round_wait_for_a_tracking_worker_that_knows_rounds(fixture: Fixture) {
    let (runs, gate) = (Runs::default(), Gate::closed());
    gate.open();
    let broken = system(&fixture, &runs, &gate, true).await;
    let request = NewJob {
        on_failure: OnFailure::Continue,
        ..fixture.range(100)
    };
    broken.client.put("j", &request).await.unwrap();
    assert_eq!(broken.ended("j").await.failed_tasks, 1);
    broken.stop().await;

    // As if CAF's were the only tracking worker, which takes from its own pipe alone.
    let mut options = fixture.options();
    options.roles.retain(|role| *role != Role::TrackingWorker);
    let again = || {
        Each(Arc::clone(&runs), async |runs: Runs, item: RangeItem, _| {
            *runs.lock().unwrap().entry(item.number).or_default() += 1;
            Ok(Reply::send(item))
        })
    };
    let stack = Stack::new(options).worker(fixture.settings("items"), again());
    let without = fixture.start(stack).await;
    without.client.retry("j", false).await.unwrap();
    let rounds = fixture.pipe("tracking.rounds");
    wait_for("the reports to wait", async || {
        match without.running.broker().depth(&rounds).await {
            Ok(0) => Err("none waits".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    without
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    assert_eq!(without.job("j").await.status, JobStatus::Active);
    without.stop().await;

    let with = fixture.run(again()).await;
    with.completed("j", 100).await;
    with.drained(&[rounds]).await;
    with.stop().await;
    assert_eq!(runs.lock().unwrap()[&BROKEN], 2);
}

/// How often each file has been read.
type Reads = Arc<Mutex<BTreeMap<String, u32>>>;

/// Reads files below a folder; one that says so is broken.
#[derive(Clone)]
struct Reader(PathBuf, Reads);

impl Worker for Reader {
    type Input = FileItem;
    type Output = NoOutput;

    async fn run(&self, file: FileItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        *self.1.lock().unwrap().entry(file.path.clone()).or_default() += 1;
        let text = std::fs::read_to_string(self.0.join(&file.path)).or_fail()?;
        if text == "broken" {
            return Err(TaskError::failed("the file is broken"));
        }
        Ok(Reply::none())
    }
}

async fn a_folder_that_has_changed_since_the_first_round_fails_the_split_by_name(fixture: Fixture) {
    let (root, reads) = (fixture.files(), Reads::default());
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(root.join("tree")).unwrap();
        std::fs::write(root.join("tree").join(name), text).unwrap();
    };
    for (name, text) in [("a.txt", "a"), ("b.txt", "broken"), ("c.txt", "c")] {
        write(name, text);
    }
    let reader = Reader(root.clone(), Arc::clone(&reads));
    let stack = fixture.stack().worker(fixture.settings("items"), reader);
    let system = fixture.start(stack).await;
    let request = NewJob {
        on_failure: OnFailure::Continue,
        ..fixture.batch("glob", r#"{"folder":"tree","pattern":"**/*.txt"}"#)
    };
    system.client.put("j", &request).await.unwrap();
    let failed = system.ended("j").await;
    assert_eq!((failed.completed_items, failed.failed_tasks), (2, 1));

    // The folder loses a file and gains one, so that it has as many as before.
    std::fs::remove_file(root.join("tree/a.txt")).unwrap();
    write("d.txt", "d");
    write("b.txt", "mended");
    system.client.retry("j", false).await.unwrap();
    let changed = system.ended("j").await;
    assert_eq!(changed.status, JobStatus::Failed);
    let message = changed.failures[0].failure_message.clone().unwrap();
    assert!(
        message.contains(
            "the source of task 1 has changed since round 1: the folder \"tree\" (pattern \"**/*.txt\" below \"tree\"), split into \
             at most 10 parts."
        ),
        "{message}"
    );
    assert!(!reads.lock().unwrap().contains_key("tree/d.txt"));

    // Other times and other contents are no other source.
    std::fs::remove_file(root.join("tree/d.txt")).unwrap();
    write("a.txt", "another a");
    system.client.retry("j", false).await.unwrap();
    system.completed("j", 3).await;
    let of = |name: &str, times| (format!("tree/{name}.txt"), times);
    assert_eq!(
        *reads.lock().unwrap(),
        BTreeMap::from([of("a", 1), of("b", 2), of("c", 1)])
    );
    system.stop().await;
}

async fn the_time_limit_of_a_job_ends_the_attempts_at_its_items_in_each_round(fixture: Fixture) {
    let hangs = Each((), async |(), item: RangeItem, _| {
        if item.number == BROKEN {
            std::future::pending::<()>().await;
        }
        Ok(Reply::send(item))
    });
    let settings = Settings {
        retry: RetryPolicy::immediate().attempts(1),
        ..fixture.settings("items")
    };
    let system = fixture.start(fixture.stack().worker(settings, hangs)).await;
    let request = NewJob {
        task_time_limit: TaskTimeLimit::of_seconds(1),
        on_failure: OnFailure::Continue,
        ..fixture.range(BROKEN + 3)
    };
    system.client.put("j", &request).await.unwrap();
    let expected = fixture.failure_text(
        "the task took longer than the time limit of 1s that its job sets (given up after 1 attempt)",
    );
    for round in 1..=2 {
        let ended = system.ended("j").await;
        let failures = ended.failures.iter();
        let texts: Vec<_> = failures
            .filter_map(|failure| failure.failure_message.as_deref())
            .collect();
        assert_eq!(
            (ended.round.unwrap_or(1), texts),
            (round, vec![expected.as_str()])
        );
        if round == 1 {
            system.client.retry("j", false).await.unwrap();
        }
    }
    system.stop().await;
}

/// The workers' own policy takes more than eight minutes for ten attempts.
async fn failed_tasks_run_again_as_their_job_says_in_each_round(fixture: Fixture) {
    let runs = Runs::default();
    let worker = Each(
        Arc::clone(&runs),
        async |runs: Runs, item: RangeItem, ctx: Context| {
            *runs.lock().unwrap().entry(item.number).or_default() += 1;
            if item.number == 4 || u64::from(ctx.attempt()) < item.number {
                return Err(TaskError::retry("not yet"));
            }
            Ok(Reply::send(item))
        },
    );
    let system = fixture.run(worker).await;
    let policy = r#"{"policy": "stepwise", "steps": ["20ms", "40ms"], "attempts": 4}"#;
    let request = NewJob {
        on_failure: OnFailure::Continue,
        retry: Some(serde_json::from_str(policy).unwrap()),
        ..fixture.range(4)
    };
    system.client.put("j", &request).await.unwrap();
    let failed = system.ended("j").await;
    assert_eq!((failed.completed_items, failed.failed_tasks), (3, 1));
    assert_eq!(
        failed.retry.as_deref(),
        Some("stepwise,steps=20ms/40ms,attempts=4,within=1d")
    );
    let expected = [(1, 1), (2, 2), (3, 3), (4, 4)];
    assert_eq!(*runs.lock().unwrap(), BTreeMap::from(expected));

    system.client.retry("j", false).await.unwrap();
    system.ended("j").await;
    assert_eq!(runs.lock().unwrap()[&4], 8);
    system.stop().await;
}
