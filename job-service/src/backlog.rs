//! Measures what waits in the store: how much, and since when. A backlog that grows or is old is a
//! degradation.
//!
//! It is read when somebody asks for the metrics or the health, and not more often than it should.

use std::sync::Arc;
use std::time::Duration;

use contract::metrics::{
    BLOCKED_TASKS, CONDITION_AGE, CONDITIONS, JOBS, LETTER_BYTES, LETTERS, OUTBOX_AGE,
    OUTBOX_MESSAGES, PARKED_TASKS,
};
use contract::rest::ConditionState;
use contract::{Condition, JobStatus};
use framework::health::Health;
use metrics::gauge;
use store::{Backlog, ConditionQuery, ConditionRow, Store};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::conditions::state_of;
use crate::stuck::now;

/// How long a measurement of the store counts as new.
const BACKLOG_AGE: Duration = Duration::from_secs(15);
/// A measurement that takes long is made more rarely: it takes at most this share of the time.
const BACKLOG_SHARE: u32 = 100;
/// How long a message of the outbox is due, and how many are, before the service is degraded.
const OLD_OUTBOX: Duration = Duration::from_mins(1);
const LARGE_OUTBOX: u64 = 100_000;
/// The name of this degradation, and what reports it.
const OUTBOX: &str = "outbox";
const SOURCE: &str = "backlog";
/// The name of the degradation that there are as many conditions as there may be.
const TOO_MANY: &str = "conditions";
/// The number of conditions that are counted.
const MOST_CONDITIONS: u32 = 1000;
/// How long the store may take.
const BACKLOG_LIMIT: Duration = Duration::from_mins(1);

/// Reads what waits in the store, for metrics and health.
#[derive(Debug, Default)]
pub struct BacklogReader {
    /// When to read it again.
    again_at: Arc<Mutex<Option<Instant>>>,
    tasks: TaskTracker,
    end: CancellationToken,
}

impl BacklogReader {
    /// Reads the store, and waits so long for it. A read that takes longer goes on.
    pub async fn look(&self, store: &Store, health: &Health, wait: Duration) {
        let (store, health) = (store.clone(), health.clone());
        let (again_at, end) = (Arc::clone(&self.again_at), self.end.clone());
        let reading = self.tasks.spawn(async move {
            end.run_until_cancelled(measure_backlog(&store, &health, &again_at))
                .await
        });
        // An error means that the store takes longer, or that the service stops.
        let _ = timeout(wait, reading).await;
    }

    /// Ends reading.
    pub async fn stop(&self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns why the outbox needs attention, if it does.
fn lag_of_outbox(backlog: &Backlog) -> Option<String> {
    let (waiting, age) = (backlog.due_messages, backlog.oldest_due);
    (age >= OLD_OUTBOX || waiting >= LARGE_OUTBOX).then(|| {
        format!(
            "{waiting} messages of the outbox are due, the oldest for {} s; look at the broker and at the log of the job service",
            age.as_secs()
        )
    })
}

/// Reads the store, unless it is being read, or was read a moment ago. `again_at` is when to read
/// it again.
async fn measure_backlog(store: &Store, health: &Health, again_at: &Mutex<Option<Instant>>) {
    let Ok(mut again_at) = again_at.try_lock() else {
        return;
    };
    let begun = Instant::now();
    if again_at.is_some_and(|at| begun < at) {
        return;
    }
    let conditions = ConditionQuery {
        limit: MOST_CONDITIONS,
        ..ConditionQuery::default()
    };
    let common = Condition::common().key();
    let reads = async {
        tokio::try_join!(
            store.backlog(),
            store.count_letters(),
            store.conditions(&conditions),
            store.condition(&common)
        )
    };
    let backlog = timeout(BACKLOG_LIMIT, reads).await;
    *again_at = Some(begun + BACKLOG_AGE.max(begun.elapsed() * BACKLOG_SHARE));
    let Ok(Ok((backlog, letters, conditions, common))) = backlog else {
        for status in JobStatus::ALL {
            gauge!(JOBS, "status" => status.name()).set(f64::NAN);
        }
        for name in [
            PARKED_TASKS,
            OUTBOX_MESSAGES,
            OUTBOX_AGE,
            LETTERS,
            LETTER_BYTES,
            BLOCKED_TASKS,
            CONDITION_AGE,
        ] {
            gauge!(name).set(f64::NAN);
        }
        for state in ConditionState::ALL {
            gauge!(CONDITIONS, "state" => state.name()).set(f64::NAN);
        }
        return;
    };
    match lag_of_outbox(&backlog) {
        Some(reason) => health.degrade(OUTBOX, SOURCE, reason),
        None => health.recover(OUTBOX, SOURCE),
    }
    let Backlog {
        jobs,
        parked_tasks,
        due_messages,
        oldest_due,
    } = backlog;
    for status in JobStatus::ALL {
        let count = jobs.get(status.name()).copied().unwrap_or_default();
        gauge!(JOBS, "status" => status.name()).set(number(count));
    }
    show_conditions(&conditions);
    match too_many_conditions(common.as_ref()) {
        Some(reason) => health.degrade(TOO_MANY, SOURCE, reason),
        None => health.recover(TOO_MANY, SOURCE),
    }
    gauge!(LETTERS).set(number(letters.letters));
    gauge!(LETTER_BYTES).set(number(letters.bytes));
    gauge!(PARKED_TASKS).set(number(parked_tasks));
    gauge!(OUTBOX_MESSAGES).set(number(due_messages));
    gauge!(OUTBOX_AGE).set(oldest_due);
}

/// Returns how many tasks wait together because there are as many conditions as there may be, if
/// any do.
fn too_many_conditions(common: Option<&ConditionRow>) -> Option<String> {
    let waits = common?.waiting;
    (waits > 0).then(|| {
        format!(
            "{waits} tasks wait together, because there are as many conditions as there may be (--max-conditions); look whether a worker \
             puts what differs from task to task into the parameters of a condition (`batchwright conditions list`)"
        )
    })
}

/// Shows how many conditions there are, how many tasks wait for them, and since when the first of
/// them waits.
fn show_conditions(conditions: &[ConditionRow]) {
    for state in ConditionState::ALL {
        let of_state = conditions.iter().filter(|row| state_of(row.phase) == state);
        gauge!(CONDITIONS, "state" => state.name()).set(number(of_state.count() as u64));
    }
    gauge!(BLOCKED_TASKS).set(number(conditions.iter().map(|row| row.waiting).sum()));
    let waited_for = conditions.iter().filter(|row| row.waiting > 0);
    let oldest = waited_for.map(|row| row.since).min();
    let age = oldest.map_or(0, |since| now().saturating_sub(since).max(0));
    gauge!(CONDITION_AGE).set(Duration::from_millis(age.unsigned_abs()));
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use axum::extract::{RawQuery, State};
    use contract::{JobId, PartitionId};
    use framework::broker::memory::Memory;
    use serde_json::{Value, json};
    use store::{JobRequest, StoreOptions};
    use tokio::time::advance;

    use super::*;
    use crate::ServiceOptions;
    use crate::http::health_check::health_check;
    use crate::state::AppState;

    async fn degradations(state: &Arc<AppState>) -> Vec<Value> {
        let query = RawQuery(Some("name=outbox".to_owned()));
        let (code, body) = health_check(State(Arc::clone(state)), query).await.unwrap();
        assert_eq!(code, 200);
        let body = serde_json::to_value(&body.0).unwrap();
        body.as_array().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_outbox_that_nobody_empties_degrades_the_service_until_it_is_empty() {
        let store = Store::temporary(StoreOptions::default());
        let (broker, options) = (Arc::new(Memory::new()), ServiceOptions::default());
        let state = Arc::new(AppState::new(store.clone(), broker, options));
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let request = JobRequest::new(partition, job);
        let start = |_: &_| ("in".to_owned(), b"{}".to_vec());
        store.create_job(&request, start).await.unwrap();
        advance(Duration::from_secs(59)).await;
        assert_eq!(degradations(&state).await, [json!(null); 0]);
        advance(BACKLOG_AGE).await;
        let degraded = json!({
            "name": "outbox", "healthy": true, "type": "READY", "critical": false, "degraded": true,
            "message": "1 messages of the outbox are due, the oldest for 74 s; look at the broker and at the log of the job service"
        });
        assert_eq!(degradations(&state).await, [degraded]);
        let sent = store.outbox(10).await.unwrap();
        store.outbox_sent(&[sent[0].id]).await.unwrap();
        advance(BACKLOG_AGE).await;
        assert_eq!(degradations(&state).await, [json!(null); 0]);
        state.backlog.stop().await;
    }
}
