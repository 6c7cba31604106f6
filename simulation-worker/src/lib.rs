//! A worker that only pretends to work: its tasks sleep, log, compute and fail as their data says.
//! For guides, load tests and the demo. The worker in [`noop`] does not even do that.
//!
//! What must stay true: a task costs no more than the limits of its steps allow, and ends soon
//! after its job has ended, whatever it does.
#![warn(missing_docs)]

mod http;
pub mod noop;
mod steps;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use contract::JobTaskId;
use framework::clock::Clock;
use framework::{Context, OrFail, Reply, TaskData, TaskError, Worker};
use serde::{Deserialize, Serialize};

pub use http::Calls;
pub use steps::{Block, Fail, InvalidSimulation, MOST_STEPS, Simulation, Step};

/// How often a task that sleeps or computes looks whether its job has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Does what the steps of its tasks say.
#[derive(Debug, Clone, Default)]
pub struct Simulator {
    calls: Calls,
}

impl Simulator {
    /// Returns a worker whose step `HTTP_CALL` makes these calls. By default it makes none.
    pub const fn calling(calls: Calls) -> Self {
        Self { calls }
    }
}

/// What a simulated task has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulated {
    /// What the item is.
    pub item: String,
    /// The number of the attempt that has succeeded, from 1.
    pub attempt: u32,
    /// The number of steps.
    pub steps: usize,
    /// How long it has slept.
    pub slept_ms: u64,
    /// How long it has kept a processor busy.
    pub computed_ms: u64,
    /// As many letters as the step `OUTPUT` asks for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl TaskData for Simulated {
    const CLASSIFIER: &'static str = "Simulated";
    const API_VERSION: i32 = 1;
}

impl Worker for Simulator {
    type Input = Simulation;
    type Output = Simulated;

    async fn run(&self, task: Simulation, ctx: Context) -> Result<Reply<Simulated>, TaskError> {
        let steps = task.steps().or_invalid()?;
        let mut done = Simulated {
            item: task.item(),
            attempt: ctx.attempt(),
            steps: steps.len(),
            slept_ms: 0,
            computed_ms: 0,
            text: String::new(),
        };
        let mut sends = false;
        for step in steps {
            match step {
                Step::Sleep {
                    duration_ms,
                    up_to_ms,
                } => {
                    let longest = up_to_ms.unwrap_or(duration_ms);
                    let time = fastrand::u64(duration_ms..=longest);
                    sleep(Duration::from_millis(time), &ctx).await?;
                    done.slept_ms += time;
                }
                Step::Log { message } => tracing::info!(item = done.item, said = message, "LOG"),
                Step::Compute { duration_ms } => {
                    compute(Duration::from_millis(duration_ms), &ctx).await?;
                    done.computed_ms += duration_ms;
                }
                Step::HttpCall { url, time_limit_ms } => {
                    let limit = Duration::from_millis(time_limit_ms);
                    tokio::select! {
                        called = self.calls.call(&url, limit) => called?,
                        error = ctx.cancelled() => return Err(error),
                    }
                }
                Step::Output { bytes } => {
                    sends = true;
                    done.text = "x".repeat(bytes);
                }
                Step::Block(block) => {
                    let now = Clock::system().now_millis();
                    if block.blocks(ctx.blocks(), now, fastrand::f64()) {
                        let condition = block.condition(&done.item).or_fail()?;
                        return Err(TaskError::blocked(condition));
                    }
                }
                Step::Fail(fail) => {
                    if fail.fails(ctx.attempt(), round(&ctx), fastrand::f64()) {
                        let message = fail.message_for(&done.item);
                        return Err(if fail.permanent {
                            TaskError::failed(message)
                        } else {
                            TaskError::retry(message)
                        });
                    }
                }
            }
        }
        Ok(if sends {
            Reply::send(done)
        } else {
            Reply::none()
        })
    }
}

/// Returns the round of the job, from 1.
fn round(ctx: &Context) -> u32 {
    let id = ctx.job_task_id().and_then(|id| JobTaskId::parse(id).ok());
    id.map_or(1, |id| id.round)
}

/// Sleeps, and ends with an error if the job ends.
async fn sleep(time: Duration, ctx: &Context) -> Result<(), TaskError> {
    let end = tokio::time::Instant::now() + time;
    loop {
        ctx.check_cancelled()?;
        let rest = end.saturating_duration_since(tokio::time::Instant::now());
        if rest.is_zero() {
            return Ok(());
        }
        tokio::time::sleep(rest.min(LOOK)).await;
    }
}

/// Keeps a processor busy, on a thread that nothing else needs, and ends with an error if the job
/// ends.
async fn compute(time: Duration, ctx: &Context) -> Result<(), TaskError> {
    let stop = StopOnDrop::default();
    let is_stopped = Arc::clone(&stop.0);
    let mut computing = tokio::task::spawn_blocking(move || burn(time, &is_stopped));
    loop {
        ctx.check_cancelled()?;
        if let Ok(ended) = tokio::time::timeout(LOOK, &mut computing).await {
            return ended.or_fail();
        }
    }
}

/// Stops a computation when the task that waits for it ends, for whatever reason.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn burn(time: Duration, is_stopped: &AtomicBool) {
    let begin = Instant::now();
    let mut number = 1_u64;
    while begin.elapsed() < time && !is_stopped.load(Ordering::Relaxed) {
        for _ in 0..10_000 {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use framework::testing::{self, Outcome};
    use serde_json::{Value, json};

    use super::*;

    fn task(steps: &Value) -> Simulation {
        serde_json::from_value(json!({"name": "order 7", "steps": steps})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn steps_run_one_after_another() {
        let steps = json!([
            {"action": "LOG", "message": "begins"}, {"action": "SLEEP", "durationMs": 3_000_000},
            {"action": "SLEEP", "durationMs": 10, "upToMs": 20}, {"action": "COMPUTE", "durationMs": 1}, {"action": "OUTPUT", "bytes": 3},
        ]);
        let run = testing::run(&Simulator::default(), task(&steps)).await;
        let sent = run.sent().unwrap();
        assert_eq!(
            (
                sent.item.as_str(),
                sent.attempt,
                sent.steps,
                sent.computed_ms
            ),
            ("order 7", 1, 5, 1)
        );
        assert_eq!(sent.text, "xxx");
        assert!((3_000_010..=3_000_020).contains(&sent.slept_ms), "{sent:?}");
    }

    #[tokio::test]
    async fn failure_is_transient_or_permanent_or_none_as_the_step_says() {
        let fail = |more: Value| {
            let mut step = json!({"action": "FAIL", "message": "{item} is unknown"});
            let fields = more.as_object().unwrap().clone();
            step.as_object_mut().unwrap().extend(fields);
            task(&json!([step]))
        };
        let message = Some("order 7 is unknown".to_owned());
        let run = testing::run(&Simulator::default(), fail(json!({}))).await;
        assert_eq!(run.retry(), message);
        let run = testing::run(&Simulator::default(), fail(json!({"permanent": true}))).await;
        assert_eq!(run.failure(), message);
        for none in [
            json!({"probability": 0}),
            json!({"untilAttempt": 1}),
            json!({"untilRound": 1}),
        ] {
            let run = testing::run(&Simulator::default(), fail(none)).await;
            // Without the step `OUTPUT` the task sends nothing.
            assert!(run.result.is_ok() && run.sent().is_none(), "{run:?}");
        }
    }

    #[tokio::test]
    async fn task_waits_for_its_condition_until_it_was_blocked_often_enough_or_the_time_has_come() {
        let run = async |step: Value, blocks: u32| {
            let task = task(&json!([step]));
            let run = testing::task(task).blocked_before(blocks);
            matches!(
                run.run(&Simulator::default()).await.outcome(),
                Outcome::Done
            )
        };
        let step = json!({"action": "BLOCK", "code": "LICENCE_IN_USE", "reason": "{item} needs one", "untilBlock": 2});
        let waiting = testing::run(&Simulator::default(), task(&json!([step.clone()]))).await;
        let expected = Outcome::Blocked("LICENCE_IN_USE (order 7 needs one)".to_owned());
        assert_eq!(waiting.outcome(), expected);
        assert!(!run(step.clone(), 1).await && run(step, 2).await);
        let never = json!({"action": "BLOCK", "until": 1});
        assert!(run(never, 0).await);
    }

    #[tokio::test]
    async fn task_that_cannot_be_understood_fails_with_what_is_wrong() {
        let none = serde_json::from_value(json!({"number": 3})).unwrap();
        let run = testing::run(&Simulator::default(), none).await;
        assert!(run.failure().unwrap().contains("has no steps"), "{run:?}");
    }

    #[tokio::test]
    async fn computation_ends_with_the_task_that_waits_for_it() {
        let stop = StopOnDrop::default();
        let is_stopped = Arc::clone(&stop.0);
        let computing = std::thread::spawn(move || burn(Duration::from_hours(1), &is_stopped));
        drop(stop);
        computing.join().unwrap();
    }
}
