//! Tasks that wait for a condition, and a worker that dies while it tests the condition: no task is
//! lost, another one tests the condition, and all of them are done when the condition has passed
//! and a worker is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use contract::{Condition, ConditionCode, JobStatus, RangeItem};
use framework::{Context, Reply, RetryPolicy, Settings, TaskError};
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::Each;

stories![condition_outlives_the_worker_of_its_canary_and_no_task_is_lost,];

const ITEMS: u64 = 10;

/// What the workers of the story share with it.
#[derive(Clone, Default)]
struct Database {
    is_up: Arc<AtomicBool>,
    /// Whether it accepts connections and never answers.
    is_silent: Arc<AtomicBool>,
    /// The number of tasks that wait for its answer, or have waited.
    asked: Arc<AtomicU64>,
}

/// A condition that nobody tests before a person asks for it.
fn condition() -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
        .policy(RetryPolicy::constant(Duration::from_hours(1)).forever())
        .unwrap()
}

impl Database {
    async fn start(&self, fixture: &Fixture, with_worker: bool) -> System {
        let mut options = fixture.options();
        options.service.conditions.pace.canary_limit = Duration::from_secs(1);
        let stack = batchwright::Stack::new(options);
        if !with_worker {
            return fixture.start(stack).await;
        }
        let worker = Each(
            self.clone(),
            async |database: Self, item: RangeItem, _: Context| {
                if database.is_up.load(Ordering::Relaxed) {
                    return Ok(Reply::send(item));
                }
                if database.is_silent.load(Ordering::Relaxed) {
                    database.asked.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
                Err(TaskError::blocked(condition()))
            },
        );
        let settings = Settings {
            drain: Duration::from_millis(100),
            abort: Duration::from_millis(100),
            ..fixture.settings("items")
        };
        fixture.start(stack.worker(settings, worker)).await
    }
}

async fn condition_outlives_the_worker_of_its_canary_and_no_task_is_lost(fixture: Fixture) {
    let database = Database::default();
    let system = database.start(&fixture, true).await;
    system.client.put("j", &fixture.range(ITEMS)).await.unwrap();
    wait_for("all tasks to wait", async || {
        let job = system.job("j").await;
        let tasks = job.blocked.as_ref().map(|blocked| blocked.tasks);
        if (job.shown_status(), tasks) == (JobStatus::Blocked, Some(ITEMS)) {
            Ok(())
        } else {
            Err(format!("{job:?}"))
        }
    })
    .await;
    let key = condition().key();
    database.is_silent.store(true, Ordering::Relaxed);
    let tested = system.client.steer_condition(key.as_str(), "test").await;
    assert_eq!(tested.unwrap().tasks, ITEMS);
    wait_for("the canary to run", async || {
        match database.asked.load(Ordering::Relaxed) {
            0 => Err("nobody has asked".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    system.stop().await;

    // The canary is back in its pipe, where nobody takes it, so another one follows.
    let system = database.start(&fixture, false).await;
    wait_for("another canary", async || {
        let items = fixture.pipe("items");
        let in_pipe = system.running.broker().depth(&items).await.unwrap();
        let waiting = system.client.condition(key.as_str()).await.unwrap().tasks;
        if in_pipe >= 2 && in_pipe + waiting == ITEMS {
            Ok(())
        } else {
            Err(format!("{in_pipe} in the pipe, {waiting} wait"))
        }
    })
    .await;
    assert_eq!(system.job("j").await.status, JobStatus::Active);
    system.stop().await;

    database.is_up.store(true, Ordering::Relaxed);
    let system = database.start(&fixture, true).await;
    system.completed("j", i64::try_from(ITEMS).unwrap()).await;
    system.has_outputs(&fixture.pipe("output"), 1..=ITEMS).await;
    let left = system.client.condition(key.as_str()).await;
    assert!(
        left.is_err() || left.as_ref().unwrap().tasks == 0,
        "{left:?}"
    );
    system.stop().await;
}
