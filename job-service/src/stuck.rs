//! Work that does not move: jobs of which nothing has been reported for long, and tasks that run for long. The notes of a job say so.
//!
//! What must stay true: a job that waits for a known time (its start, its next attempt) or for a person is not stuck.

use std::time::Duration;

use contract::rest::Job;
use contract::{JobStatus, PartitionId};
use framework::clock::Clock;

use crate::seen_workers::SeenWorkers;

/// How long work may not move before that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckLimits {
    /// A task that runs, or waits in its worker.
    pub task: Duration,
    /// A job of which nothing is reported.
    pub job: Duration,
}

impl Default for StuckLimits {
    fn default() -> Self {
        Self {
            task: framework::config::DEFAULT_STUCK_TASK,
            job: Duration::from_hours(1),
        }
    }
}

impl StuckLimits {
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

/// Returns since when a job has not moved, if that is for longer than the limit and it waits for nothing that will come.
pub fn stuck_since(job: &Job, now: i64, limit: Duration) -> Option<i64> {
    let may_move = matches!(
        job.status,
        JobStatus::Active | JobStatus::Waiting | JobStatus::Blocked
    );
    let waits = job.suspended
        || !job.waiting_for.is_empty()
        || job.due_time.is_some()
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
    fn a_job_is_stuck_when_nothing_is_reported_and_nothing_will_come_by_itself() {
        for (change, now, stuck) in [
            (json!({}), 2 * HOUR, true),
            (json!({}), 2 * HOUR - 1, false),
            (json!({"status": "Waiting"}), 2 * HOUR, true),
            (json!({"status": "Blocked"}), 2 * HOUR, true),
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
            // A clock that was set back.
            (json!({}), 0, false),
        ] {
            let since = stuck_since(&job(change.clone()), now, Duration::from_hours(1));
            assert_eq!(since, stuck.then_some(HOUR), "{change} at {now}");
        }
    }
}
