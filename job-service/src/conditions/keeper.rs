//! Tests the conditions that tasks wait for, and lets the tasks go, or fails them.
//!
//! Several services share the conditions: each claims one that is due, for a while. What happens to
//! it is decided by [`crate::conditions`], and done by the store in one transaction.
//!
//! What must stay true:
//! - Nothing polls. The loop sleeps until a condition is due, or until the store signals that one
//!   may be due earlier. A test that hangs delays no other condition.
//! - The clock of the store decides whether a policy is at its end. That of this machine may be
//!   wrong.

use std::time::Duration;

use contract::metrics::{CONDITION_TESTS, TASKS_EXPIRED, TASKS_RELEASED};
use framework::meters;
use futures_util::stream::{self, StreamExt as _};
use metrics::counter;
use store::{
    ClaimedCondition, ConditionAct, ConditionPhase, ConditionRow, ConditionStep, Stepped, Store,
    StoreError,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::conditions::{Course, Testers, Verdict, after_test, due};
use crate::stuck::span;
use crate::wakeup::{backoff, wait};

/// How many conditions are in hand at the same time.
const AT_ONCE: usize = 16;
/// For how long a condition is claimed beyond the time of its test.
const CLAIM: Duration = Duration::from_secs(50);
/// How long a condition rests after a step of it has failed.
const REST: Duration = Duration::from_secs(5);

/// Runs until `shutdown` is cancelled. A step is one short transaction, and it is never
/// interrupted.
pub async fn run(store: &Store, testers: &Testers, shutdown: &CancellationToken) {
    show_counters();
    let keeper = Keeper {
        store,
        testers,
        shutdown,
    };
    let seeker = Seeker {
        signal: store.condition_signal(),
        at: None,
        failures: 0,
    };
    // What is claimed and what is in hand go on side by side: each of them may hold the connection
    // that the other one waits for.
    let claimed = stream::unfold(seeker, |seeker| keeper.next(seeker));
    claimed
        .for_each_concurrent(AT_ONCE, |claimed| keeper.keep(claimed))
        .await;
}

/// When to look for the next condition that is due.
struct Seeker {
    signal: watch::Receiver<u64>,
    at: Option<Instant>,
    failures: u32,
}

/// Logs once that the store cannot be asked. Returns when to ask again.
fn failed(error: &StoreError, failures: &mut u32) -> Instant {
    if *failures == 0 {
        tracing::warn!(%error, code = error.code().as_str(), "cannot look after the conditions that tasks wait for; trying again");
    }
    let pause = backoff(*failures);
    *failures += 1;
    Instant::now() + pause
}

/// Shows all counters from the beginning: an alert sees an increase from 0, and not from nothing.
fn show_counters() {
    meters::install();
    for result in RESULTS {
        counter!(CONDITION_TESTS, "result" => result).increment(0);
    }
    for name in [TASKS_RELEASED, TASKS_EXPIRED] {
        counter!(name).increment(0);
    }
}

/// The results of tests, as the metric names them.
const RESULTS: [&str; 3] = ["passed", "notPassed", "canary"];

const fn result_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed | Verdict::Room(1..) => RESULTS[0],
        Verdict::Room(0) | Verdict::NotPassed(_) | Verdict::Never(_) => RESULTS[1],
        Verdict::AskCanary(_) => RESULTS[2],
    }
}

/// Looks after conditions.
struct Keeper<'a> {
    store: &'a Store,
    testers: &'a Testers,
    shutdown: &'a CancellationToken,
}

impl Keeper<'_> {
    /// Waits for a condition that is due, and claims it. Returns `None` when the service stops.
    async fn next(&self, mut seeker: Seeker) -> Option<(ClaimedCondition, Seeker)> {
        let claim = self.testers.options().test_limit + CLAIM;
        while wait(&mut seeker.signal, seeker.at, self.shutdown).await {
            let found = match self.store.claim_condition(claim).await {
                Ok(Some(claimed)) => {
                    (seeker.at, seeker.failures) = (Some(Instant::now()), 0);
                    return Some((claimed, seeker));
                }
                Ok(None) => self.store.next_condition().await,
                Err(error) => Err(error),
            };
            seeker.at = match found {
                Ok(next) => {
                    seeker.failures = 0;
                    next.map(|next| Instant::now() + next)
                }
                Err(error) => Some(failed(&error, &mut seeker.failures)),
            };
        }
        None
    }

    /// Does with a condition what is due.
    async fn keep(&self, ClaimedCondition { row, time }: ClaimedCondition) {
        let pace = self.testers.options().pace;
        // The limits of its policy are times of the store's clock.
        let claimed = Instant::now();
        let now = || time.saturating_add(millis(claimed.elapsed()));
        let step = match due(&(&row).into(), now(), pace) {
            Course::Step(step) => step,
            Course::Test => {
                let test = self.testers.test(&row.condition, self.store);
                let Some(verdict) = self.shutdown.run_until_cancelled(test).await else {
                    return;
                };
                counter!(CONDITION_TESTS, "result" => result_of(&verdict)).increment(1);
                after_test(&(&row).into(), verdict, now(), pace)
            }
        };
        if let Err(error) = self.take(&row, &step, now()).await {
            tracing::warn!(%error, code = error.code().as_str(), condition = %row.key, "a step of a condition has failed; trying again");
            // Its claim ends by itself.
            let rest = tokio::time::sleep(REST);
            self.shutdown.run_until_cancelled(rest).await;
        }
    }

    async fn take(
        &self,
        row: &ConditionRow,
        step: &ConditionStep,
        now: i64,
    ) -> Result<(), StoreError> {
        let Some(stepped) = self.store.step_condition(row, step).await? else {
            return Ok(());
        };
        match &step.act {
            ConditionAct::Canary | ConditionAct::Release(_) => {
                counter!(TASKS_RELEASED).increment(stepped.tasks);
            }
            ConditionAct::Fail(..) => counter!(TASKS_EXPIRED).increment(stepped.tasks),
            ConditionAct::Nothing | ConditionAct::Forget => {}
        }
        tell(row, step, &stepped, now);
        Ok(())
    }
}

/// Logs what happens to a condition: each change of its phase, and its end.
fn tell(row: &ConditionRow, step: &ConditionStep, stepped: &Stepped, now: i64) {
    let waiting = stepped.waiting;
    let lasted = span(now.saturating_sub(row.since));
    let (key, code) = (&row.key, row.condition.code());
    let result = step.result.as_deref();
    if step.act == ConditionAct::Forget {
        tracing::info!(condition = %key, %code, "no task waits for the condition any more");
        return;
    }
    match step.phase {
        ConditionPhase::Failing if row.phase != ConditionPhase::Failing => {
            tracing::warn!(condition = %key, %code, lasted, tests = step.tests, result, waiting, "a condition was given up; its tasks fail");
        }
        ConditionPhase::Releasing if row.phase != ConditionPhase::Releasing => {
            tracing::info!(condition = %key, %code, lasted, tests = step.tests, result, waiting, "a condition has passed; its tasks are sent again");
        }
        ConditionPhase::Canary if stepped.tasks > 0 => {
            tracing::info!(condition = %key, %code, lasted, tests = step.tests, result, waiting, "a task is sent to test a condition");
        }
        ConditionPhase::Testing if step.result.is_some() => {
            tracing::info!(condition = %key, %code, lasted, tests = step.tests, result, waiting, "a condition was tested");
        }
        _ => {}
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
