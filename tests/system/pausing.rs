//! A paused job: its items stop, none is lost, and none is counted twice.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use contract::{JobStatus, RangeItem};
use framework::{Context, Reply, Worker};
use harness::wait_for;

use crate::fixture::{Fixture, SLACK, STATUS_INTERVAL, System};
use crate::workers::{Each, Gate};

stories![a_paused_job_survives_restarts_and_completes_when_resumed,];

/// When items began.
type Began = Arc<Mutex<Vec<Instant>>>;

fn recorded(starts: &Began, gate: &Gate) -> impl Worker + use<> {
    Each(
        (Arc::clone(starts), gate.clone()),
        async |(starts, gate): (Began, Gate), item: RangeItem, ctx: Context| {
            starts.lock().unwrap().push(Instant::now());
            gate.pass(&ctx).await?;
            Ok(Reply::send(item))
        },
    )
}

/// Begins a job and pauses it when `done` of its items are completed.
async fn paused_in_the_middle(fixture: &Fixture, items: u64, done: u32, starts: &Began) -> System {
    let gate = Gate::closed();
    let system = fixture.run(recorded(starts, &gate)).await;
    system.client.put("j", &fixture.range(items)).await.unwrap();
    gate.admit(done as usize);
    wait_for("the middle of the job", async || {
        match system.job("j").await.completed_items {
            completed if completed == i64::from(done) => Ok(()),
            completed => Err(format!("{completed} items")),
        }
    })
    .await;
    system.client.pause("j").await.unwrap();
    assert_eq!(system.job("j").await.status, JobStatus::Paused);
    // Running items finish.
    gate.open();
    system
}

/// Waits until the tasks that were in the pipes are parked in the store.
async fn parked(fixture: &Fixture, system: &System) {
    wait_for("tasks to be parked", async || {
        match system.parked("j").await {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
}

async fn a_paused_job_survives_restarts_and_completes_when_resumed(fixture: Fixture) {
    use JobStatus::{Active, Completed, Paused, Waiting};

    let starts = Began::default();
    let mut system = paused_in_the_middle(&fixture, 1000, 100, &starts).await;
    let paused = Instant::now();
    parked(&fixture, &system).await;
    let open = Gate::closed();
    open.open();
    for _ in 0..2 {
        system.stop().await;
        // The next process does not run the tasks that the stopped one returned to the broker
        // either.
        system = fixture.run(recorded(&starts, &open)).await;
        parked(&fixture, &system).await;
    }
    let state = system.job("j").await;
    assert_eq!(state.status, JobStatus::Paused);
    assert!((100..1000).contains(&state.completed_items), "{state:?}");
    let last = starts.lock().unwrap().iter().max().copied().unwrap();
    assert!(
        last <= paused + STATUS_INTERVAL + SLACK,
        "an item began {:?} after the pause",
        last - paused
    );
    system.client.resume("j").await.unwrap();
    system.completed("j", 1000).await;
    system.has_outputs(&fixture.pipe("output"), 1..=1000).await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    assert_eq!(system.parked("j").await, 0);
    let statuses: Vec<JobStatus> = system
        .history("j")
        .await
        .into_iter()
        .map(|(status, _)| status)
        .collect();
    assert_eq!(statuses, [Waiting, Active, Paused, Active, Completed]);
    system.stop().await;
}
