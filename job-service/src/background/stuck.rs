//! Finds jobs about which no worker has reported anything for long, and conditions that last long: the log names them, and a metric counts
//! the jobs.
//!
//! What must stay true: no job is named twice while it does not move, and no condition while it lasts; and what is read is bounded by the
//! jobs that have not ended, once in minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::metrics::STUCK_JOBS;
use framework::meters;
use metrics::gauge;
use store::{ConditionQuery, Store, StoreError, StuckJob};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::stuck::{StuckLimits, now, span, stuck_since};

/// The most jobs that are looked at.
const MOST: u32 = 1000;
/// The most jobs that the log names at once.
const MOST_LINES: usize = 20;
/// How often to look, at the most rarely. With a short limit, four times within it.
const EVERY: Duration = Duration::from_mins(5);
const SOONEST: Duration = Duration::from_secs(1);

/// Looks for jobs that do not move until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    limits: StuckLimits,
    old_condition: Duration,
    shutdown: &CancellationToken,
) {
    let (mut told, mut old) = (Told::default(), OldConditions::default());
    meters::install();
    gauge!(STUCK_JOBS).set(0);
    let pause = (limits.job.min(old_condition) / 4).clamp(SOONEST, EVERY);
    while shutdown.run_until_cancelled(sleep(pause)).await.is_some() {
        match told.look(store, limits.job).await {
            #[expect(clippy::cast_precision_loss, reason = "there are at most a thousand")]
            Ok(()) => gauge!(STUCK_JOBS).set(told.0.len() as f64),
            Err(error) => {
                gauge!(STUCK_JOBS).set(f64::NAN);
                tracing::debug!(%error, "cannot look for jobs that do not move");
            }
        }
        if let Err(error) = old.look(store, old_condition).await {
            tracing::debug!(%error, "cannot look for conditions that last long");
        }
    }
}

/// The stuck jobs that the log has named, by incarnation, with the time since when they did not move.
#[derive(Debug, Default)]
struct Told(BTreeMap<i64, i64>);

impl Told {
    async fn look(&mut self, store: &Store, limit: Duration) -> Result<(), StoreError> {
        let stuck = store.stuck_jobs(limit, MOST).await?;
        let mut still = BTreeMap::new();
        let mut new = Vec::new();
        for job in stuck {
            if self.0.get(&job.incarnation) == Some(&job.since) {
                still.insert(job.incarnation, job.since);
            } else {
                new.push(job);
            }
        }
        let mut lines = 0;
        let mut unnamed = 0;
        for job in new {
            let StuckJob {
                partition,
                job: id,
                incarnation,
                since,
            } = job;
            if lines == MOST_LINES {
                unnamed += 1;
            } else {
                let found = store.job(&partition, &id).await?;
                let Some(found) = found.filter(|found| found.incarnation == incarnation) else {
                    continue;
                };
                if stuck_since(&found, now(), limit) != Some(since) {
                    continue;
                }
                lines += 1;
                tracing::warn!(
                    job = %format_args!("{partition}:{id}"),
                    status = found.status.name(),
                    idle_for = span(now().saturating_sub(since)),
                    "a job does not move; look whether a worker takes its tasks and what it says"
                );
            }
            still.insert(incarnation, since);
        }
        if unnamed > 0 {
            tracing::warn!(jobs = unnamed, "more jobs do not move");
        }
        self.0 = still;
        Ok(())
    }
}

/// The conditions that the log has named because they last long, by key, with the time since when.
#[derive(Debug, Default)]
struct OldConditions(BTreeMap<String, i64>);

impl OldConditions {
    async fn look(&mut self, store: &Store, limit: Duration) -> Result<(), StoreError> {
        let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let query = ConditionQuery {
            limit: MOST,
            ..ConditionQuery::default()
        };
        let now = now();
        let rows = store.conditions(&query).await?;
        let old = rows
            .into_iter()
            .filter(|row| row.waiting > 0 && now.saturating_sub(row.since) >= limit);
        let mut still = BTreeMap::new();
        for (at, row) in old.enumerate() {
            let key = row.key.to_string();
            if self.0.get(&key) != Some(&row.since) && at < MOST_LINES {
                tracing::warn!(
                    condition = key,
                    code = %row.condition.code(),
                    reason = row.condition.reason(),
                    waiting = row.waiting,
                    lasts = span(now.saturating_sub(row.since)),
                    "tasks have waited for a condition for long; look whether what they need comes back"
                );
            }
            still.insert(key, row.since);
        }
        self.0 = still;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use contract::{JobId, PartitionId};
    use store::JobRequest;

    use super::*;

    #[tokio::test]
    async fn a_job_that_does_not_move_is_told_once() {
        let store = Store::open("memory:").await.unwrap();
        let (partition, id) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let request = JobRequest::new(partition.clone(), id.clone());
        let start = |_: &_| ("in".to_owned(), b"{}".to_vec());
        store.create_job(&request, start).await.unwrap();
        let mut told = Told::default();
        // Its start message has not been sent: the relay is what does not move.
        told.look(&store, Duration::ZERO).await.unwrap();
        assert!(told.0.is_empty(), "{told:?}");
        let messages = store.outbox(1).await.unwrap();
        store.outbox_sent(&[messages[0].id]).await.unwrap();
        told.look(&store, Duration::from_hours(1)).await.unwrap();
        assert!(told.0.is_empty(), "{told:?}");
        told.look(&store, Duration::ZERO).await.unwrap();
        let first = told.0.clone();
        assert_eq!(first.len(), 1);
        told.look(&store, Duration::ZERO).await.unwrap();
        assert_eq!(told.0, first);
        store.cancel_job(&partition, &id).await.unwrap();
        told.look(&store, Duration::ZERO).await.unwrap();
        assert!(told.0.is_empty(), "{told:?}");
    }
}
