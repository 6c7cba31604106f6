//! Conditions, and what blocks a job, as the API shows them.

use contract::rest::{BlockingCondition, ConditionState, Job, WaitedCondition};
use store::{ConditionPhase, ConditionRow, Store, StoreError};

use crate::conditions::expires;

/// Adds to what blocks a job the conditions, which lists do not show.
pub async fn show_conditions(store: &Store, job: &mut Job) -> Result<(), StoreError> {
    let Some(blocked) = &mut job.blocked else {
        return Ok(());
    };
    let condition = |(row, tasks): (ConditionRow, u64)| BlockingCondition {
        next_test: next_test(&row),
        key: row.key.to_string(),
        code: row.condition.code().to_string(),
        reason: row.condition.reason().to_owned(),
        since: row.since,
        tasks,
        tests: row.tests,
    };
    let by = store.blocked_by(job.incarnation).await?;
    blocked.conditions = by.into_iter().map(condition).collect();
    Ok(())
}

/// Returns a condition without its jobs.
pub fn shown(row: ConditionRow) -> WaitedCondition {
    let condition = &row.condition;
    WaitedCondition {
        key: row.key.to_string(),
        code: condition.code().to_string(),
        parameters: condition.parameters().clone(),
        tester: condition.tester().clone(),
        policy: condition.test_policy().to_string(),
        reason: condition.reason().to_owned(),
        since: row.since,
        state: state_of(row.phase),
        tests: row.tests,
        next_test: next_test(&row),
        expires: expires(&row),
        last_result: row.result,
        tasks: row.waiting,
        jobs: None,
    }
}

fn next_test(row: &ConditionRow) -> Option<i64> {
    (row.phase == ConditionPhase::Testing).then_some(row.next_time)
}

/// Returns the state of a condition in this phase.
pub const fn state_of(phase: ConditionPhase) -> ConditionState {
    match phase {
        ConditionPhase::Testing => ConditionState::Waiting,
        ConditionPhase::Canary => ConditionState::Canary,
        ConditionPhase::Releasing | ConditionPhase::Idle => ConditionState::Releasing,
        ConditionPhase::Failing => ConditionState::Failing,
    }
}
