//! Panics in the loops of a whole system while a job runs.

use std::collections::BTreeSet;

use batchwright::{Stack, StackError};
use contract::{JobStatus, TrackingShards};
use framework::health::Health;
use harness::{in_time, wait_for};

use crate::fixture::{Fixture, System};
use crate::workers::{Gate, echo, gated};

stories![
    every_loop_panics_under_a_job_that_is_counted_exactly,
    a_process_that_cannot_go_on_ends_with_an_error_and_the_next_one_continues,
];

async fn every_loop_panics_under_a_job_that_is_counted_exactly(fixture: Fixture) {
    let gate = Gate::closed();
    let system = fixture.run(gated(&gate)).await;
    let health = system.running.health();
    system.client.put("j", &fixture.range(600)).await.unwrap();
    let mut panicked = BTreeSet::new();
    while let Some((name, begun)) = next(health, &panicked) {
        gate.admit(10);
        health.plan_panic(&name);
        wait_for("the loop to begin again", async || {
            let now = health.loops()[&name];
            (now > begun)
                .then_some(())
                .ok_or_else(|| format!("{name} has begun {now} times"))
        })
        .await;
        panicked.insert(name);
    }
    for role in ["worker-batch", "worker-jobtracking", "items"] {
        for name in ["deliveries", "quarantine", "reports", "announcements"] {
            assert!(
                panicked.contains(&format!("{role}: {name}")),
                "{panicked:?}"
            );
        }
    }
    for name in [
        "relay",
        "announcements",
        "parked tasks",
        "resumed tasks",
        "sweeper",
        "connections",
    ] {
        assert!(
            panicked.contains(&format!("job-service: {name}")),
            "{panicked:?}"
        );
    }
    gate.open();
    system.completed("j", 600).await;
    system.has_outputs(&fixture.pipe("output"), 1..=600).await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    assert_eq!(health.outages(), []);
    system.stop().await;
}

/// Returns a loop that has not panicked yet, and how often it has begun.
fn next(health: &Health, panicked: &BTreeSet<String>) -> Option<(String, u32)> {
    let mut loops = health.loops().into_iter();
    loops.find(|(name, _)| !panicked.contains(name))
}

async fn a_process_that_cannot_go_on_ends_with_an_error_and_the_next_one_continues(
    fixture: Fixture,
) {
    let gate = Gate::closed();
    let mut options = fixture.options();
    // The process has more roles than it would if it read one tracking pipe.
    options.service.tracking_shards = TrackingShards::new(8).unwrap();
    let stack = Stack::new(options).worker(fixture.settings("items"), gated(&gate));
    let System {
        running, client, ..
    } = fixture.start(stack).await;
    client.put("j", &fixture.range(100)).await.unwrap();
    gate.admit(30);
    wait_for("some items", async || {
        let job = client.get("j").await.unwrap();
        (job.completed_items > 10)
            .then_some(())
            .ok_or_else(|| format!("{job:?}"))
    })
    .await;
    // The embedded broker keeps its state in memory; a role cannot begin again either.
    let name = if running.broker().kind() == "embedded" {
        "embedded broker"
    } else {
        "worker-jobtracking"
    };
    running.health().plan_panic(name);
    let ended = in_time("the process to end", running.until_asked_to_stop()).await;
    match ended {
        Err(StackError::GaveUp(reason)) => {
            assert!(
                reason.starts_with(&format!("{name} has panicked")),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    let system = fixture.run(echo()).await;
    system.completed("j", 100).await;
    system.has_outputs(&fixture.pipe("output"), 1..=100).await;
    assert_eq!(system.job("j").await.status, JobStatus::Completed);
    system.stop().await;
}
