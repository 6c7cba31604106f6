//! Work that does not move: jobs of which nothing has been reported for long, tasks that run for
//! long, and conditions that last long. The notes of a job say so.
//!
//! What must stay true: a job that waits for a known time (its start, its next attempt), for a
//! person, or only for conditions is not stuck.

pub mod watch;

use std::time::Duration;

use contract::rest::Job;
use contract::{JobStatus, PartitionId};
use framework::clock::Clock;

use crate::pipes::seen_workers::SeenWorkers;

/// How long work may not move before that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckLimits {
    /// A task that runs, or waits in its worker.
    pub task: Duration,
    /// A job of which nothing is reported.
    pub job: Duration,
    /// A condition that tasks wait for.
    pub condition: Duration,
}

impl Default for StuckLimits {
    fn default() -> Self {
        Self {
            task: framework::config::DEFAULT_STUCK_TASK,
            job: Self::JOB,
            condition: Self::CONDITION,
        }
    }
}

impl StuckLimits {
    /// The default of [`Self::job`].
    pub const JOB: Duration = Duration::from_hours(1);
    /// The default of [`Self::condition`].
    pub const CONDITION: Duration = Duration::from_hours(1);

    /// Adds what does not move to the notes of a job. The workers tell which of their tasks run.
    pub fn note(self, workers: &SeenWorkers, partition: &PartitionId, job: &mut Job) {
        let (limits, now) = (self, now());
        if let Some(since) = stuck_since(job, now, limits.job) {
            job.notes.push(format!(
                "Nothing has been reported of the job for {}. Look whether a worker takes its tasks (`batchwright workers`, `batchwright \
                 pipes`), and what it logs.",
                span(now - since)
            ));
        }
        job.notes.extend(old_conditions(job, now, limits.condition));
        if !job.status.is_finished()
            && let Some(long) = workers.longest_of(partition, &job.id, limits.task)
        {
            job.notes.push(format!(
                "The task {} has been running for {} in {} on {} (process {}). Look whether it hangs.",
                long.task,
                span(i64::try_from(long.age.as_millis()).unwrap_or(i64::MAX)),
                long.worker,
                long.host,
                long.process
            ));
        }
    }
}

/// Returns a note on each condition of a job for which tasks have waited for at least this long.
fn old_conditions(job: &Job, now: i64, limit: Duration) -> Vec<String> {
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let conditions = job.blocked.iter().flat_map(|it| &it.conditions);
    let old = conditions.filter(|it| now.saturating_sub(it.since) >= limit);
    old.map(|it| {
        format!(
            "Tasks have waited for the condition {} for {}: {}. Look whether what they need comes back (`batchwright conditions show {}`).",
            it.code,
            span(now - it.since),
            it.reason,
            it.key
        )
    })
    .collect()
}

/// Returns since when a job has not moved, if that is for longer than the limit and it waits for
/// nothing that will come.
pub fn stuck_since(job: &Job, now: i64, limit: Duration) -> Option<i64> {
    let may_move = matches!(job.status, JobStatus::Active | JobStatus::Waiting);
    let waits = job.suspended
        || !job.waiting_for.is_empty()
        || job.due_time.is_some()
        // For how long its conditions last is told of them.
        || job
            .blocked
            .as_ref()
            .is_some_and(|blocked| blocked.nothing_else_under_way)
        || job.next_attempt_time.is_some_and(|next| next > now);
    let since = job.last_update_time;
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    (may_move && !waits && now.saturating_sub(since) >= limit).then_some(since)
}

/// Returns the time, in milliseconds since 1970.
pub fn now() -> i64 {
    Clock::system().now_millis()
}

/// Returns a time span as a person says it.
pub fn span(millis: i64) -> String {
    match millis / 1000 {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} min", seconds / 60),
        seconds if seconds < 172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const HOUR: i64 = 3_600_000;

    fn job(change: Value) -> Job {
        let mut fields = json!({
            "id": "j", "name": null, "description": null, "externalData": null, "createTime": 0, "lastUpdateTime": HOUR,
            "status": "Active", "percentageComplete": 10.0, "failures": [], "labels": {}
        });
        let Value::Object(change) = change else {
            panic!("{change}")
        };
        fields.as_object_mut().unwrap().extend(change);
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn conditions_that_last_long_are_told_by_name() {
        let condition = |code: &str, since: i64| {
            json!({
                "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": code, "reason": "refused", "since": since, "tasks": 7, "tests": 3
            })
        };
        let conditions = [condition("OLD", 0), condition("NEW", HOUR + 1)];
        let job = job(json!({"blocked": {"tasks": 14, "conditions": conditions}}));
        let told = old_conditions(&job, 2 * HOUR, Duration::from_hours(1));
        let expected = "Tasks have waited for the condition OLD for 2 h: refused. Look whether what they need comes back (`batchwright \
             conditions show 0d3a506323d39ba742675eceb7c8cf7c`).";
        assert_eq!(told, [expected]);
    }

    #[test]
    fn a_job_is_stuck_when_nothing_is_reported_and_nothing_will_come_by_itself() {
        for (change, now, stuck) in [
            (json!({}), 2 * HOUR, true),
            (json!({}), 2 * HOUR - 1, false),
            (json!({"status": "Waiting"}), 2 * HOUR, true),
            (json!({"status": "Paused"}), 9 * HOUR, false),
            (json!({"status": "Completed"}), 9 * HOUR, false),
            (
                json!({"status": "Waiting", "suspended": true}),
                9 * HOUR,
                false,
            ),
            (
                json!({"status": "Waiting", "dueTime": 10 * HOUR}),
                9 * HOUR,
                false,
            ),
            (
                json!({"status": "Waiting", "waitingFor": [{"jobId": "other", "status": null}]}),
                9 * HOUR,
                false,
            ),
            (json!({"nextAttemptTime": 9 * HOUR + 1}), 9 * HOUR, false),
            (json!({"nextAttemptTime": 9 * HOUR}), 9 * HOUR, true),
            (
                json!({"blocked": {"tasks": 1, "nothingElseUnderWay": true}}),
                9 * HOUR,
                false,
            ),
            (
                json!({"blocked": {"tasks": 1, "nothingElseUnderWay": false}}),
                9 * HOUR,
                true,
            ),
            // A clock that was set back.
            (json!({}), 0, false),
        ] {
            let since = stuck_since(&job(change.clone()), now, Duration::from_hours(1));
            assert_eq!(since, stuck.then_some(HOUR), "{change} at {now}");
        }
    }
}
