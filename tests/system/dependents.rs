//! Jobs that wait for other jobs, while the system stops and starts again.
//!
//! `DEPENDENT_JOBS=1000` makes the chain and the fan that long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use contract::RangeItem;
use contract::rest::NewJob;
use framework::{Reply, Worker};
use futures_util::StreamExt as _;
use futures_util::stream;
use harness::wait_for;

use crate::place::{Place, System};
use crate::workers::Each;

stories![a_chain_and_a_fan_of_jobs_start_each_once_and_in_order_through_restarts];

/// The numbers of the jobs in the order in which they were started.
type Started = Arc<Mutex<Vec<u64>>>;

fn noting(started: &Started) -> impl Worker + use<> {
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
    reason = "a test is asked for more jobs by its environment"
)]
fn length() -> u64 {
    std::env::var("DEPENDENT_JOBS").map_or(30, |text| text.parse().unwrap())
}

fn job(place: &Place, number: u64, prerequisite: Option<String>, delay: Option<i32>) -> NewJob {
    let first = place.job(
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

/// Job 1 is the root; 2 to n+1 are a chain after it, n+2 to 2n+1 a fan.
async fn a_chain_and_a_fan_of_jobs_start_each_once_and_in_order_through_restarts(place: Place) {
    let length = length();
    let started = Started::default();
    let mut system = place.run(noting(&started)).await;
    let jobs = 2..=2 * length + 1;
    let put = |number: u64| {
        let (prerequisite, client) = (prerequisite(number, length), &system.client);
        // Every tenth waits a second longer.
        let new = job(
            &place,
            number,
            Some(format!("j{prerequisite:04}")),
            number.is_multiple_of(10).then_some(1),
        );
        async move { assert!(client.put(&format!("j{number:04}"), &new).await.unwrap()) }
    };
    stream::iter(jobs.clone()).for_each_concurrent(8, put).await;
    system
        .client
        .put("j0001", &job(&place, 1, None, None))
        .await
        .unwrap();
    for part in 1..=3 {
        reached(&system, part * length / 2).await;
        system.stop().await;
        system = place.run(noting(&started)).await;
    }
    reached(&system, 2 * length + 1).await;
    let mut first: BTreeMap<u64, usize> = BTreeMap::new();
    let started = started.lock().unwrap().clone();
    for (at, number) in started.iter().enumerate() {
        first.entry(*number).or_insert(at);
    }
    assert_eq!(first.len() as u64, 2 * length + 1, "each has started");
    // What is sent twice by a stop in the middle is discarded, unless it is the moment of the stop itself.
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

/// Whom a job waits for.
const fn prerequisite(number: u64, length: u64) -> u64 {
    if number <= length + 1 { number - 1 } else { 1 }
}

/// Waits until so many jobs are completed; as long as it goes on, it may take its time.
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
    // None is answered while it starts.
    system.client.count(&query).await.unwrap_or(0)
}
