//! Systems that stop in the middle of their jobs and start again, on the same folder or the same
//! servers.
//!
//! `DEPENDENT_JOBS=1000` makes the chain and the fan of dependent jobs that long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use contract::RangeItem;
use contract::rest::NewJob;
use framework::{Reply, Worker};
use futures_util::StreamExt as _;
use futures_util::stream;
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::{Each, echo};

stories![
    a_stopped_system_continues_after_a_restart,
    dependent_jobs_start_once_and_in_order_across_restarts,
];

async fn a_stopped_system_continues_after_a_restart(fixture: Fixture) {
    let mut system = fixture.run(echo()).await;
    system.client.put("j", &fixture.range(900)).await.unwrap();
    let mut before = -1;
    for _ in 0..3 {
        before = wait_for("more items than before", async || {
            match system.job("j").await.completed_items {
                items if items > before => Ok(items),
                items => Err(format!("{items} items")),
            }
        })
        .await;
        system.stop().await;
        system = fixture.run(echo()).await;
        assert!(system.job("j").await.completed_items >= before);
    }
    system.completed("j", 900).await;
    system.has_outputs(&fixture.pipe("output"), 1..=900).await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    system.stop().await;
}

/// The numbers of the jobs in the order in which they were started.
type Started = Arc<Mutex<Vec<u64>>>;

fn recording(started: &Started) -> impl Worker + use<> {
    Each(
        Arc::clone(started),
        async |started: Started, item: RangeItem, _| {
            started.lock().unwrap().push(item.number);
            Ok(Reply::send(item))
        },
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the environment asks for a larger experiment"
)]
fn length() -> u64 {
    std::env::var("DEPENDENT_JOBS").map_or(30, |text| text.parse().unwrap())
}

fn job(fixture: &Fixture, number: u64, prerequisite: Option<String>, delay: Option<i32>) -> NewJob {
    let first = fixture.job(
        "items",
        &RangeItem {
            number,
            params: BTreeMap::new(),
        },
    );
    NewJob {
        prerequisite_job_ids: prerequisite.map(|id| vec![Some(id)]),
        delay,
        ..first
    }
}

/// Job 1 is the root. Jobs 2 to n+1 are a chain behind it; jobs n+2 to 2n+1 all wait for job 1.
async fn dependent_jobs_start_once_and_in_order_across_restarts(fixture: Fixture) {
    let length = length();
    let started = Started::default();
    let mut system = fixture.run(recording(&started)).await;
    let jobs = 2..=2 * length + 1;
    let put = |number: u64| {
        let (prerequisite, client) = (prerequisite(number, length), &system.client);
        // Every tenth job has a delay of one second.
        let new = job(
            &fixture,
            number,
            Some(format!("j{prerequisite:04}")),
            number.is_multiple_of(10).then_some(1),
        );
        async move { assert!(client.put(&format!("j{number:04}"), &new).await.unwrap()) }
    };
    stream::iter(jobs.clone()).for_each_concurrent(8, put).await;
    system
        .client
        .put("j0001", &job(&fixture, 1, None, None))
        .await
        .unwrap();
    for part in 1..=3 {
        reached(&system, part * length / 2).await;
        system.stop().await;
        system = fixture.run(recording(&started)).await;
    }
    reached(&system, 2 * length + 1).await;
    let mut first: BTreeMap<u64, usize> = BTreeMap::new();
    let started = started.lock().unwrap().clone();
    for (at, number) in started.iter().enumerate() {
        first.entry(*number).or_insert(at);
    }
    assert_eq!(first.len() as u64, 2 * length + 1, "every job has started");
    // A stop may send a start message twice. The second one is discarded, unless it ran at the
    // moment of the stop.
    assert!(
        started.len() as u64 <= 2 * length + 1 + 3 * 8,
        "{} starts",
        started.len()
    );
    for number in jobs {
        let prerequisite = prerequisite(number, length);
        assert!(
            first[&prerequisite] < first[&number],
            "{number} has started before {prerequisite}"
        );
    }
    system.stop().await;
}

/// Returns the job for which a job waits.
const fn prerequisite(number: u64, length: u64) -> u64 {
    if number <= length + 1 { number - 1 } else { 1 }
}

/// Waits until this many jobs are completed. Each further completion extends the time limit.
async fn reached(system: &System, jobs: u64) {
    let mut before = None;
    while before.is_none_or(|before| before < jobs) {
        let more = wait_for("more jobs to be completed", async || {
            match completed(system).await {
                count if before.is_none_or(|before| count > before) => Ok(count),
                count => Err(format!("{count} of {jobs} completed")),
            }
        });
        before = Some(more.await);
    }
}

async fn completed(system: &System) -> u64 {
    let query = [("statusType", "Completed".to_owned())];
    // There is no response while the system starts.
    system.client.count(&query).await.unwrap_or(0)
}
