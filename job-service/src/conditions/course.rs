//! What happens next to a condition that tasks wait for. Pure: it knows neither clock nor store nor
//! network.
//!
//! What must stay true:
//! - No task fails before the policy of its condition is at its end, unless a tester or a person
//!   says so. A canary of which nothing is heard, for example because no worker is there, is no
//!   test that has not passed.
//! - Tasks are let go only after a test has passed, a canary has ended, or a person has said so;
//!   and no more of them when one of them is blocked again.
//! - A condition always has a next time; one without tasks is forgotten.

use std::time::Duration;

use contract::{Condition, ReportFailure};
use store::{ConditionAct, ConditionPhase, ConditionRow, ConditionStep, Heard};

use crate::stuck::span;

/// How conditions are tested and how their tasks are let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionPace {
    /// The shortest time between two tests, whatever the policy says.
    pub test_interval: Duration,
    /// How long a canary may be silent before there is another one.
    pub canary_limit: Duration,
    /// How many tasks are let go in the first second.
    pub first_release: u32,
    /// How many tasks are let go in a second at the most.
    pub most_released: u32,
}

impl ConditionPace {
    /// The pace of a service that is not told another one.
    pub const DEFAULT: Self = Self {
        test_interval: Duration::from_secs(5),
        canary_limit: Duration::from_mins(5),
        first_release: 10,
        most_released: 1000,
    };
}

/// The number of tasks that fail in one transaction.
const FAILED_AT_ONCE: u32 = 500;
/// The time between two releases.
const RELEASE_INTERVAL: Duration = Duration::from_secs(1);
/// The source of the failures of tasks whose condition has not passed in time.
const SOURCE: &str = "job-service";

/// Where a condition stands when it is due.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    pub condition: &'a Condition,
    pub since: i64,
    pub tests: u32,
    pub tested: Option<i64>,
    pub result: Option<&'a str>,
    pub phase: ConditionPhase,
    pub pace: u32,
    pub heard: Option<Heard>,
    pub waiting: u64,
    /// The canaries that have not ended.
    pub canaries: u64,
}

impl<'a> From<&'a ConditionRow> for Standing<'a> {
    fn from(row: &'a ConditionRow) -> Self {
        Self {
            condition: &row.condition,
            since: row.since,
            tests: row.tests,
            tested: row.tested,
            result: row.result.as_deref(),
            phase: row.phase,
            pace: row.pace,
            heard: row.heard,
            waiting: row.waiting,
            canaries: row.canaries,
        }
    }
}

/// What a test has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The condition has passed.
    Passed,
    /// There is room for so many of the tasks.
    Room(u32),
    /// The condition has not passed, and why.
    NotPassed(String),
    /// The condition will never pass, and why: its tasks fail.
    Never(String),
    /// Only a task can tell. The text says why, if the condition has another tester.
    AskCanary(Option<String>),
}

/// What is done with a condition that is due.
#[derive(Debug, Clone, PartialEq)]
pub enum Course {
    /// It is tested; then [`after_test`] decides.
    Test,
    /// It changes so.
    Step(ConditionStep),
}

/// Returns what is done with a condition that is due at the time `now`.
pub fn due(row: &Standing<'_>, now: i64, pace: ConditionPace) -> Course {
    Course::Step(match (row.phase, row.heard) {
        // No task waits that could be tested for, or let go.
        (ConditionPhase::Testing | ConditionPhase::Failing, _) if row.waiting == 0 => forget(row),
        // What was let go before is told late. The time of the test has not changed.
        (ConditionPhase::Testing, Some(_)) => wait_for_test(row, now, pace),
        (ConditionPhase::Testing, None) => return Course::Test,
        (ConditionPhase::Canary, Some(Heard::Ended)) => {
            release(row, pace, "the canary has ended".to_owned())
        }
        (ConditionPhase::Canary, Some(Heard::Again)) => {
            test_later(row, now, pace, "the canary was blocked again".to_owned())
        }
        // The last task has gone elsewhere, or its job was deleted.
        (ConditionPhase::Canary, _) if row.waiting == 0 && row.canaries == 0 => forget(row),
        // No other task can test it. Its time goes on, because the canary may be blocked again.
        (ConditionPhase::Canary, _) if row.waiting == 0 => ConditionStep {
            next: millis(pace.canary_limit),
            ..same(row)
        },
        (ConditionPhase::Canary, Some(Heard::Elsewhere)) => canary(row, pace, row.tests, None),
        // It is silent, or there was no task that could go. That tells nothing of the condition:
        // the next one makes the same test.
        (ConditionPhase::Canary, None) => {
            let tests = row.tests.saturating_sub(1);
            match delay(&Standing { tests, ..*row }, now) {
                Some(_) => {
                    let why = "the last canary was silent".to_owned();
                    canary(row, pace, row.tests, Some(why))
                }
                None => fail(row, now),
            }
        }
        (ConditionPhase::Releasing | ConditionPhase::Idle, Some(Heard::Again)) => {
            let why = "a task that was let go was blocked again".to_owned();
            test_later(row, now, pace, why)
        }
        (ConditionPhase::Releasing, _) if row.waiting == 0 => idle(row, pace),
        (ConditionPhase::Releasing, _) => release_more(row, pace),
        (ConditionPhase::Idle, _) if row.waiting == 0 => forget(row),
        // Tasks have come that had not waited before.
        (ConditionPhase::Idle, _) => ConditionStep {
            restarts: true,
            ..begin_again(row, pace)
        },
        (ConditionPhase::Failing, _) => fail(row, now),
    })
}

/// Returns what is done with a condition after a test.
pub fn after_test(
    row: &Standing<'_>,
    verdict: Verdict,
    now: i64,
    pace: ConditionPace,
) -> ConditionStep {
    let tests = row.tests.saturating_add(1);
    let tested = Standing { tests, ..*row };
    match verdict {
        Verdict::Passed => release(&tested, pace, "passed".to_owned()),
        // Each task that is let go takes room. The others go on waiting, and their time begins
        // again, because some are moving.
        Verdict::Room(room) if room > 0 => ConditionStep {
            restarts: true,
            result: Some(format!("room for {room}")),
            act: ConditionAct::Release(room.min(pace.most_released)),
            ..begin_again(row, pace)
        },
        Verdict::Room(_) => test_later(&tested, now, pace, "no room".to_owned()),
        Verdict::NotPassed(why) => test_later(&tested, now, pace, why),
        Verdict::Never(why) => fail_because(&tested, now, &why),
        Verdict::AskCanary(why) => canary(row, pace, tests, why),
    }
}

/// Returns the time at which the tasks of a condition fail if it has not passed by then; `None` if
/// there is none.
pub fn expires(row: &ConditionRow) -> Option<i64> {
    let limit = row.condition.test_policy().time_limit()?;
    let limit = i64::try_from(limit.as_millis()).ok()?;
    row.since.checked_add(limit)
}

/// Returns the delay of the policy before the next test; `None` if it allows none.
fn delay(row: &Standing<'_>, now: i64) -> Option<Duration> {
    let lasted = u64::try_from(now.saturating_sub(row.since)).unwrap_or(0);
    let lasted = Duration::from_millis(lasted);
    row.condition.delay_before_test(row.tests, lasted)
}

/// Leaves a condition as it is. The next time is now.
fn same(row: &Standing<'_>) -> ConditionStep {
    ConditionStep {
        phase: row.phase,
        tests: row.tests,
        restarts: false,
        result: None,
        pace: row.pace,
        next: 0,
        act: ConditionAct::Nothing,
    }
}

fn forget(row: &Standing<'_>) -> ConditionStep {
    ConditionStep {
        act: ConditionAct::Forget,
        ..same(row)
    }
}

/// Waits for those that were let go: they may be blocked again.
fn idle(row: &Standing<'_>, pace: ConditionPace) -> ConditionStep {
    ConditionStep {
        phase: ConditionPhase::Idle,
        next: millis(pace.canary_limit),
        ..same(row)
    }
}

/// Waits for the test that is due after the last one.
fn wait_for_test(row: &Standing<'_>, now: i64, pace: ConditionPace) -> ConditionStep {
    let last = row.tested.unwrap_or(row.since);
    let Some(delay) = delay(row, last) else {
        return fail(row, now);
    };
    let passed = u64::try_from(now.saturating_sub(last)).unwrap_or(0);
    ConditionStep {
        next: millis(delay.max(pace.test_interval)).saturating_sub(passed),
        ..same(row)
    }
}

/// Waits for the next test after one that has not passed; without one, the tasks fail.
fn test_later(row: &Standing<'_>, now: i64, pace: ConditionPace, why: String) -> ConditionStep {
    match delay(row, now) {
        Some(delay) => ConditionStep {
            phase: ConditionPhase::Testing,
            result: Some(why),
            pace: 0,
            next: millis(delay.max(pace.test_interval)),
            ..same(row)
        },
        None => fail_because(row, now, &why),
    }
}

/// Waits for the first test of the policy.
fn begin_again(row: &Standing<'_>, pace: ConditionPace) -> ConditionStep {
    let first = row.condition.delay_before_test(0, Duration::ZERO);
    ConditionStep {
        phase: ConditionPhase::Testing,
        tests: 0,
        pace: 0,
        next: millis(first.unwrap_or_default().max(pace.test_interval)),
        ..same(row)
    }
}

fn canary(
    row: &Standing<'_>,
    pace: ConditionPace,
    tests: u32,
    why: Option<String>,
) -> ConditionStep {
    let result = match why {
        Some(why) => format!("a canary runs: {why}"),
        None => "a canary runs".to_owned(),
    };
    ConditionStep {
        phase: ConditionPhase::Canary,
        tests,
        result: Some(result),
        pace: 0,
        next: millis(pace.canary_limit),
        act: ConditionAct::Canary,
        ..same(row)
    }
}

fn release(row: &Standing<'_>, pace: ConditionPace, why: String) -> ConditionStep {
    let row = Standing { pace: 0, ..*row };
    ConditionStep {
        result: Some(why),
        ..release_more(&row, pace)
    }
}

/// Lets twice as many tasks go as the last time.
fn release_more(row: &Standing<'_>, pace: ConditionPace) -> ConditionStep {
    let number = match row.pace {
        0 => pace.first_release,
        last => last.saturating_mul(2),
    };
    let number = number.clamp(1, pace.most_released.max(1));
    ConditionStep {
        phase: ConditionPhase::Releasing,
        pace: number,
        next: millis(RELEASE_INTERVAL),
        act: ConditionAct::Release(number),
        ..same(row)
    }
}

fn fail_because(row: &Standing<'_>, now: i64, why: &str) -> ConditionStep {
    let row = Standing {
        result: Some(why),
        ..*row
    };
    ConditionStep {
        result: Some(why.to_owned()),
        ..fail(&row, now)
    }
}

fn fail(row: &Standing<'_>, now: i64) -> ConditionStep {
    ConditionStep {
        phase: ConditionPhase::Failing,
        pace: 0,
        act: ConditionAct::Fail(FAILED_AT_ONCE, Box::new(failure(row, now))),
        ..same(row)
    }
}

/// Returns the failure of the tasks of a condition that is given up.
fn failure(row: &Standing<'_>, now: i64) -> ReportFailure {
    let (code, reason) = (row.condition.code(), row.condition.reason());
    let lasted = span(now.saturating_sub(row.since));
    let last = row.result;
    let last = last.map_or_else(String::new, |result| format!("; last result: {result}"));
    let tests = if row.tests == 1 { "test" } else { "tests" };
    let message = format!(
        "the condition {code} was given up after {lasted} and {} {tests}: {reason}{last}",
        row.tests
    );
    ReportFailure {
        failure_id: Some(code.to_string()),
        failure_time: Some(now),
        failure_source: Some(SOURCE.to_owned()),
        failure_message: Some(message),
        ..ReportFailure::default()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
