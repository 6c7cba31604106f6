//! Jobs that are paused and go on: nothing of them is lost, done for nothing, or counted twice.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use contract::{JobStatus, RangeItem};
use framework::{Context, Reply, Worker};
use harness::wait_for;

use crate::place::{Place, SLACK, STATUS_INTERVAL, System};
use crate::workers::{Each, Gate, echo};

stories![
    a_job_that_is_paused_in_the_middle_stops_outlives_restarts_and_is_completed_when_it_is_resumed,
    a_job_that_is_paused_and_resumed_again_and_again_is_counted_exactly,
    a_job_that_is_paused_before_it_begins_waits_and_is_completed_when_it_is_resumed,
    a_paused_job_that_is_cancelled_leaves_nothing_behind,
];

/// When items began.
type Starts = Arc<Mutex<Vec<Instant>>>;

fn noted(starts: &Starts, gate: &Gate) -> impl Worker + use<> {
    Each(
        (Arc::clone(starts), gate.clone()),
        async |(starts, gate): (Starts, Gate), item: RangeItem, ctx: Context| {
            starts.lock().unwrap().push(Instant::now());
            gate.pass(&ctx).await?;
            Ok(Reply::send(item))
        },
    )
}

/// Begins a job and pauses it when so many of its items are done.
async fn paused_in_the_middle(place: &Place, items: u64, done: u32, starts: &Starts) -> System {
    let gate = Gate::closed();
    let system = place.run(noted(starts, &gate)).await;
    system.client.put("j", &place.range(items)).await.unwrap();
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
    // What runs goes on to its end.
    gate.open();
    system
}

/// Waits until what waited in the pipes is in the store.
async fn stowed(place: &Place, system: &System) {
    wait_for("tasks to be stowed", async || {
        match system.stowed("j").await {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
}

async fn a_job_that_is_paused_in_the_middle_stops_outlives_restarts_and_is_completed_when_it_is_resumed(
    place: Place,
) {
    use JobStatus::{Active, Completed, Paused, Waiting};

    let starts = Starts::default();
    let mut system = paused_in_the_middle(&place, 1500, 100, &starts).await;
    let paused = Instant::now();
    stowed(&place, &system).await;
    let open = Gate::closed();
    open.open();
    for _ in 0..2 {
        system.stop().await;
        // Whatever was given back when it stopped is not done by the next one either.
        system = place.run(noted(&starts, &open)).await;
        stowed(&place, &system).await;
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
    system.completed("j", 1500).await;
    system.has_outputs(&place.pipe("output"), 1..=1500).await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    assert_eq!(system.stowed("j").await, 0);
    let statuses: Vec<JobStatus> = system
        .history("j")
        .await
        .into_iter()
        .map(|(status, _)| status)
        .collect();
    assert_eq!(statuses, [Waiting, Active, Paused, Active, Completed]);
    system.stop().await;
}

async fn a_job_that_is_paused_and_resumed_again_and_again_is_counted_exactly(place: Place) {
    let system = place.run(echo()).await;
    system.client.put("j", &place.range(3000)).await.unwrap();
    let mut before = -1;
    for _ in 0..3 {
        // It may be done before it can be paused again.
        if system.client.pause("j").await.is_err() {
            break;
        }
        system
            .drained(&["batch", "items"].map(|pipe| place.pipe(pipe)))
            .await;
        system.client.resume("j").await.unwrap();
        before = wait_for("more items than before", async || {
            match system.job("j").await.completed_items {
                items if items > before => Ok(items),
                items => Err(format!("{items} items")),
            }
        })
        .await;
    }
    system.completed("j", 3000).await;
    system.has_outputs(&place.pipe("output"), 1..=3000).await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    system.stop().await;
}

async fn a_job_that_is_paused_before_it_begins_waits_and_is_completed_when_it_is_resumed(
    place: Place,
) {
    let options = batchwright::StackOptions {
        roles: vec![batchwright::Role::JobService],
        ..place.options()
    };
    let system = place.start(batchwright::Stack::new(options)).await;
    system.client.put("j", &place.range(50)).await.unwrap();
    system.client.pause("j").await.unwrap();
    system.stop().await;
    let system = place.run(echo()).await;
    system
        .drained(&["batch", "paused"].map(|pipe| place.pipe(pipe)))
        .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Paused, 0)
    );
    system.client.resume("j").await.unwrap();
    system.completed("j", 50).await;
    system.stop().await;
}

async fn a_paused_job_that_is_cancelled_leaves_nothing_behind(place: Place) {
    let system = paused_in_the_middle(&place, 500, 20, &Starts::default()).await;
    stowed(&place, &system).await;
    system.client.cancel("j").await.unwrap();
    wait_for("the stowed tasks to go", async || {
        match system.stowed("j").await {
            0 => Ok(()),
            stowed => Err(format!("{stowed} tasks")),
        }
    })
    .await;
    system
        .drained(&["batch", "items", "paused", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items >= 20),
        (JobStatus::Cancelled, true),
        "{state:?}"
    );
    system.stop().await;
}
