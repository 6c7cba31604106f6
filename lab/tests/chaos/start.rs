//! Roles that start before their servers.

use std::collections::BTreeMap;

use batchwright_lab::chaos::CHAOS_WORKER;
use contract::metrics::{METRICS, Metric};
use harness::{Family, wait_for};

use crate::SIZE;
use crate::story::{Story, max_depth};

/// Returns what a role says about the servers that it needs, in READY and in its log.
fn needs(role: &str) -> &'static [&'static str] {
    match role {
        "job-service" | "tracking-worker" => &["the database is not available", "not connected"],
        _ => &["not connected"],
    }
}

/// Checks that the roles together show every metric but those of the embedded broker, of kept
/// outputs and of trouble, and what they counted.
async fn every_role_shows_documented_metrics(system: &Story) {
    let mut shown = BTreeMap::new();
    for role in &system.roles() {
        let seen = system.scrape(role).await;
        for (state, value) in [("connected", 1.0), ("connecting", 0.0)] {
            let said = seen.value("batchwright_broker_state", &[("state", state)]);
            assert!(same(said, value), "{role} {state}");
        }
        assert!(same(seen.value("batchwright_ready", &[]), 1.0), "{role}");
        if role == CHAOS_WORKER {
            let done = seen.value(
                "batchwright_task_seconds_count",
                &[("worker", CHAOS_WORKER)],
            );
            assert!(same(done, items()), "{done}");
        }
        shown.extend(seen.families().clone());
    }
    let elsewhere = [
        // A system without kept outputs has no output worker.
        "batchwright_output",
        "batchwright_embedded_",
        "batchwright_degraded",
        "batchwright_loop_panics",
    ];
    let here = |metric: &&Metric| {
        elsewhere
            .iter()
            .all(|other| !metric.name.starts_with(other))
    };
    let documented: BTreeMap<String, Family> = METRICS
        .iter()
        .filter(here)
        .map(|metric| {
            let family = Family::new(metric.kind.name(), metric.meaning, metric.labels);
            (metric.name.to_owned(), family)
        })
        .collect();
    shown.retain(|name, _| elsewhere.iter().all(|other| !name.starts_with(other)));
    assert_eq!(shown, documented);
}

/// Returns whether two counts are equal.
fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < 0.5
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer items")]
fn items() -> f64 {
    SIZE.items as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_wait_for_their_servers_and_say_so() {
    let system = Story::begin(SIZE.items, max_depth()).await;
    tokio::try_join!(
        system.servers().postgres.stop(),
        system.servers().rabbitmq.stop()
    )
    .unwrap();
    for role in &system.roles() {
        system.start(role).unwrap();
    }
    for role in &system.roles() {
        wait_for(
            &format!("{role} to name the servers that it waits for"),
            async || {
                let (code, ready) = system.health(role, "READY").await?;
                let log = system.log(role);
                let names = |text: &str| needs(role).iter().all(|need| text.contains(need));
                if code == 503 && names(&ready) && names(&log) {
                    Ok(())
                } else {
                    Err(format!("{code} {ready}\n{log}"))
                }
            },
        )
        .await;
        assert_eq!(
            system.health(role, "ALIVE").await.unwrap().0,
            200,
            "{role} is alive"
        );
    }
    for role in ["job-service", "tracking-worker"] {
        let log = system.log(role);
        assert!(log.contains("code=\"DATABASE_UNAVAILABLE\""), "{log}");
    }
    system.servers().postgres.start_again().await.unwrap();
    system.servers().rabbitmq.start_again().await.unwrap();
    for role in &system.roles() {
        wait_for(&format!("{role} to be ready"), async || {
            match system.health(role, "READY").await? {
                (200, _) => Ok(()),
                seen => Err(format!("{seen:?}\n{}", system.log(role))),
            }
        })
        .await;
        // The log records an outage once, and again when its reason changes: not at each attempt to
        // connect.
        let log = system.log(role);
        let outage = "the database is not available; trying again";
        let told: Vec<&str> = log
            .lines()
            .filter_map(|line| Some(line.split_once(outage)?.1))
            .collect();
        let repeated = told.windows(2).any(|two| two[0] == two[1]);
        assert!(!repeated, "{role} has logged an outage twice:\n{log}");
    }
    let ends = async { system.ended().await.map(drop).unwrap() };
    system.runs(ends).await;
    every_role_shows_documented_metrics(&system).await;
    system.end("roles before their servers").await;
}
