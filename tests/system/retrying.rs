//! Jobs that are taken up again: after a failure and after a cancellation, also with reports of earlier rounds that come late.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use contract::rest::{NewJob, OnFailure};
use contract::{JobStatus, RangeItem, ReportFailure, ReportStatus, TrackingReport};
use framework::{Context, Reply, TaskError};
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::{Each, Gate};

stories![a_job_that_failed_or_was_cancelled_goes_on_where_it_stopped,];

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

    // Round 2 is cancelled when a few of its items have run.
    let gate = Gate::closed();
    let mended = system(&fixture, &runs, &gate, false).await;
    let retried = mended.client.retry("j", false).await.unwrap();
    assert_eq!((retried.round, retried.status), (2, JobStatus::Active));
    let now = mended.job("j").await;
    assert_eq!((now.completed_items, now.failed_tasks), (299, 0));
    assert!(now.percentage_complete >= failed.percentage_complete);
    gate.admit(3);
    wait_for("items of round 2 to run", async || {
        match runs.lock().unwrap().values().sum() {
            0..303 => Err("none has run".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
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
    assert!(runs.lock().unwrap()[&BROKEN] >= 2);
    mended
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    mended.stop().await;
}
