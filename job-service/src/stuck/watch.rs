//! Finds jobs about which no worker has reported anything for long, and conditions that last long:
//! the log names them, and a metric counts the jobs.
//!
//! What must stay true: no job is named twice while it does not move, and no condition while it
//! lasts; and what is read is bounded by the jobs that have not ended, once in minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::metrics::STUCK_JOBS;
use contract::{Condition, ConditionKey};
use framework::meters;
use metrics::gauge;
use store::{ConditionQuery, ConditionRow, Store, StoreError, StuckJob};
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
pub async fn run(store: &Store, limits: StuckLimits, shutdown: &CancellationToken) {
    let (mut told, mut old) = (Told::default(), OldConditions::default());
    meters::install();
    gauge!(STUCK_JOBS).set(0);
    let pause = (limits.job.min(limits.condition) / 4).clamp(SOONEST, EVERY);
    while shutdown.run_until_cancelled(sleep(pause)).await.is_some() {
        match told.look(store, limits.job).await {
            #[expect(clippy::cast_precision_loss, reason = "there are at most a thousand")]
            Ok(()) => gauge!(STUCK_JOBS).set(told.0.len() as f64),
            Err(error) => {
                gauge!(STUCK_JOBS).set(f64::NAN);
                tracing::debug!(%error, "cannot look for jobs that do not move");
            }
        }
        if let Err(error) = old.look(store, limits.condition).await {
            tracing::debug!(%error, "cannot look for conditions that last long");
        }
    }
}

/// The stuck jobs that the log has named, by incarnation, with the time since when they did not
/// move.
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
struct OldConditions {
    told: BTreeMap<ConditionKey, i64>,
    /// Whether the log has said that there are as many conditions as there may be.
    is_full_told: bool,
}

impl OldConditions {
    async fn look(&mut self, store: &Store, limit: Duration) -> Result<(), StoreError> {
        let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let mut still = BTreeMap::new();
        let (mut lines, mut unnamed) = (0, 0);
        let mut query = ConditionQuery {
            limit: MOST,
            ..ConditionQuery::default()
        };
        loop {
            let rows = store.conditions(&query).await?;
            let is_last = rows.len() < MOST as usize;
            query.after = rows.last().map(|row| row.key.clone());
            let lasts =
                |row: &ConditionRow| row.waiting > 0 && now().saturating_sub(row.since) >= limit;
            for row in rows.into_iter().filter(lasts) {
                let is_told = self.told.get(&row.key) == Some(&row.since);
                if !is_told && lines < MOST_LINES {
                    lines += 1;
                    tell_old(&row);
                } else if !is_told {
                    unnamed += 1;
                }
                still.insert(row.key, row.since);
            }
            if is_last {
                break;
            }
        }
        if unnamed > 0 {
            tracing::warn!(
                conditions = unnamed,
                "more tasks have waited for conditions for long"
            );
        }
        self.told = still;
        self.look_for_too_many(store).await
    }

    async fn look_for_too_many(&mut self, store: &Store) -> Result<(), StoreError> {
        let common = store.condition(&Condition::common().key()).await?;
        let waiting = common.map_or(0, |row| row.waiting);
        if waiting > 0 && !self.is_full_told {
            tracing::warn!(
                waiting,
                "there are as many conditions as there may be; the tasks of further ones wait together"
            );
        }
        self.is_full_told = waiting > 0;
        Ok(())
    }
}

fn tell_old(row: &ConditionRow) {
    tracing::warn!(
        condition = %row.key,
        code = %row.condition.code(),
        reason = row.condition.reason(),
        waiting = row.waiting,
        lasts = span(now().saturating_sub(row.since)),
        "tasks have waited for a condition for long; look whether what they need comes back"
    );
}

#[cfg(test)]
mod tests {
    use contract::{ConditionCode, JobId, JobTaskId, PartitionId};
    use store::{Blocking, JobRequest, NewBlock, ParkedTask, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn a_job_that_does_not_move_is_told_once() {
        let store = Store::temporary(StoreOptions::default());
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

    /// Lets a task of a new job wait for this condition.
    async fn block(store: &Store, job: &str, condition: Condition) {
        let (partition, id) = (PartitionId::parse("p").unwrap(), JobId::parse(job).unwrap());
        let start = |_: &_| ("in".to_owned(), b"{}".to_vec());
        let request = JobRequest::new(partition, id);
        store.create_job(&request, start).await.unwrap();
        let block = NewBlock {
            task: JobTaskId::parse(&format!("p:{job}")).unwrap(),
            identity: vec![1],
            number: 1,
            condition,
            message: ParkedTask {
                pipe: "in".to_owned(),
                body: Vec::new(),
                headers: BTreeMap::new(),
            },
        };
        assert_eq!(
            store.block_tasks(&[block]).await.unwrap(),
            [Blocking::Waits]
        );
    }

    #[tokio::test]
    async fn a_condition_that_lasts_is_told_and_so_is_that_there_are_too_many() {
        let one = StoreOptions {
            max_conditions: 1,
            ..StoreOptions::default()
        };
        let store = Store::temporary(one);
        let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE);
        block(&store, "a", condition.clone()).await;
        let mut old = OldConditions::default();
        old.look(&store, Duration::from_hours(1)).await.unwrap();
        assert!(old.told.is_empty() && !old.is_full_told, "{old:?}");
        old.look(&store, Duration::ZERO).await.unwrap();
        let told: Vec<ConditionKey> = old.told.keys().cloned().collect();
        assert_eq!((told, old.is_full_told), (vec![condition.key()], false));
        let other = condition.parameter("task", "2").unwrap();
        block(&store, "b", other).await;
        old.look(&store, Duration::from_hours(1)).await.unwrap();
        assert!(old.told.is_empty() && old.is_full_told, "{old:?}");
        let (partition, id) = (PartitionId::parse("p").unwrap(), JobId::parse("b").unwrap());
        store.cancel_job(&partition, &id).await.unwrap();
        while store.unpark_tasks(9).await.unwrap() {}
        old.look(&store, Duration::ZERO).await.unwrap();
        assert!(old.told.len() == 1 && !old.is_full_told, "{old:?}");
    }
}
