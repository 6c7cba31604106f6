//! An item that crashes each process that runs it, and an item that takes very long: neither delays
//! the others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use contract::rest::{NewJob, OnFailure};
use contract::{JobStatus, RangeItem, TaskStatus};
use framework::config::Route;
use framework::{Context, Reply, Settings};
use harness::{sized, wait_for};

use crate::fixture::{Fixture, Servers};
use crate::workers::{Each, Gate};

/// A worker process that is started again whenever it crashes.
struct Restarted {
    over: Arc<AtomicBool>,
    child: Arc<Mutex<Option<Child>>>,
    crashes: Arc<AtomicU32>,
}

impl Restarted {
    fn start(arguments: Vec<String>) -> Self {
        let started = Self {
            over: Arc::default(),
            child: Arc::default(),
            crashes: Arc::default(),
        };
        let (over, current, crashes) = (
            Arc::clone(&started.over),
            Arc::clone(&started.child),
            Arc::clone(&started.crashes),
        );
        tokio::task::spawn_blocking(move || {
            while !over.load(Ordering::Relaxed) {
                let child = Command::new(env!("CARGO_BIN_EXE_crashing-worker"))
                    .args(&arguments)
                    .spawn()
                    .unwrap();
                let output = Arc::clone(&current);
                *output.lock().unwrap() = Some(child);
                // The lock is released between two checks, so that `drop` can kill the process.
                while output
                    .lock()
                    .unwrap()
                    .as_mut()
                    .is_some_and(|child| child.try_wait().unwrap().is_none())
                {
                    std::thread::park_timeout(Duration::from_millis(10));
                }
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        });
        started
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Ok(mut child) = self.child.lock()
            && let Some(child) = child.as_mut()
        {
            // It may have crashed already.
            let _ = child.kill();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_crashes_its_worker_is_rejected_and_the_others_complete() {
    let items: u64 = sized(1_000, 10_000);
    let (crashing, prefetch) = (items / 2, items / 10);
    let fixture = Fixture::new(Route::Direct, Servers::Real).await;
    let system = fixture.start(fixture.stack()).await;
    let runs = fixture.files().join("runs");
    let worker = Restarted::start(vec![
        harness::rabbitmq().await.unwrap().url,
        fixture
            .pipe("items")
            .strip_suffix("-items")
            .unwrap()
            .to_owned(),
        crashing.to_string(),
        prefetch.to_string(),
        runs.to_str().unwrap().to_owned(),
    ]);
    let began = Instant::now();
    system
        .client
        .put(
            "j",
            &NewJob {
                on_failure: OnFailure::Continue,
                ..fixture.range(items)
            },
        )
        .await
        .unwrap();
    let state = system.ended("j").await;
    let took = began.elapsed();
    let done = i64::try_from(items - 1).unwrap();
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        (JobStatus::Failed, done, 1),
        "{state:?}"
    );
    assert_eq!(
        state.failures[0].failure_message,
        Some(fixture.failure_text("items could not process the item."))
    );

    let (copy, _) = system.take_one(&fixture.pipe("items-reject")).await;
    let item: RangeItem = serde_json::from_slice(&copy.task_data.unwrap()).unwrap();
    assert_eq!(
        (item.number, copy.task_status),
        (crashing, Some(TaskStatus::ResultException))
    );
    system
        .drained(
            &[
                "items",
                "items.suspects",
                "items-reject",
                "items-invalid",
                "tracking",
            ]
            .map(|pipe| fixture.pipe(pipe)),
        )
        .await;

    let mut times = BTreeMap::<u64, u32>::new();
    for line in std::fs::read_to_string(&runs).unwrap().lines() {
        *times.entry(line.parse().unwrap()).or_default() += 1;
    }
    let killed = times.remove(&crashing).unwrap();
    let mut others = BTreeMap::<u32, usize>::new();
    for runs in times.values() {
        *others.entry(*runs).or_default() += 1;
    }
    println!(
        "{items} items, prefetch {prefetch}, in {took:?}: the crashing item ran {killed} times; the others, by number of runs: {others:?}"
    );
    assert_eq!(times.len() as u64, items - 1, "every other item has run");
    let crashes = worker.crashes.load(Ordering::Relaxed);
    assert!(
        killed == crashes && (8..=9).contains(&killed),
        "{killed}, {crashes}: once in a bundle if it came in one, five times among other items, three times alone"
    );
    assert!(others.keys().all(|runs| *runs <= killed + 1), "{others:?}");
    drop(worker);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_done_once_runs_twice_only_if_its_process_dies_before_its_result_is_kept() {
    let fixture = Fixture::new(Route::Direct, Servers::Real).await;
    let system = fixture.start(fixture.stack()).await;
    let [runs, effects] = ["runs", "effects"].map(|name| fixture.files().join(name));
    let items = fixture.pipe("items");
    let worker = Restarted::start(vec![
        harness::rabbitmq().await.unwrap().url,
        items.strip_suffix("-items").unwrap().to_owned(),
        "1".to_owned(),
        "1".to_owned(),
        runs.to_str().unwrap().to_owned(),
        effects.to_str().unwrap().to_owned(),
    ]);
    system.client.put("j", &fixture.range(1)).await.unwrap();
    system.completed("j", 1).await;
    let times = |path: &PathBuf| std::fs::read_to_string(path).unwrap().lines().count();
    assert_eq!(worker.crashes.load(Ordering::Relaxed), 2);
    assert_eq!(times(&runs), 3);
    // The second run does not know of the first one, and the third knows of the second.
    assert_eq!(times(&effects), 2);
    drop(worker);
    system.stop().await;
}

stories![a_long_item_does_not_stall_the_others];

async fn a_long_item_does_not_stall_the_others(fixture: Fixture) {
    let items: u64 = sized(500, 10_000);
    let gate = Gate::closed();
    let worker = Each(
        gate.clone(),
        async |gate: Gate, item: RangeItem, ctx: Context| {
            if item.number == 1 && item.params.contains_key("long") {
                gate.pass(&ctx).await?;
            }
            Ok(Reply::send(item))
        },
    );
    let settings = Settings {
        prefetch: Some(100),
        ..fixture.settings("items")
    };
    let system = fixture
        .start(fixture.stack().worker(settings, worker))
        .await;
    let began = Instant::now();
    system
        .client
        .put("short", &fixture.range(items))
        .await
        .unwrap();
    system
        .completed("short", i64::try_from(items).unwrap())
        .await;
    let short = began.elapsed();

    let mut with_a_long_one = fixture.range(items);
    let data = with_a_long_one
        .task
        .as_mut()
        .and_then(|task| task.task_data.as_mut())
        .unwrap();
    data["taskMessageParams"] = serde_json::json!({ "long": "yes" });
    let began = Instant::now();
    system.client.put("long", &with_a_long_one).await.unwrap();
    wait_for("all others, while one is held", async || {
        match system.job("long").await.completed_items {
            done if done == i64::try_from(items - 1).unwrap() => Ok(()),
            done => Err(format!("{done} items")),
        }
    })
    .await;
    let long = began.elapsed();
    println!("{items} items: in {short:?}; in {long:?} but one that is held");
    assert_eq!(system.job("long").await.status, JobStatus::Active);
    gate.open();
    system
        .completed("long", i64::try_from(items).unwrap())
        .await;
    system.has_outputs(&fixture.pipe("output"), 1..=items).await;
    system.stop().await;
}
