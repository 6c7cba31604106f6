//! Lets `tests/instructions` measure the ledger, `tests/simulation` see which tasks wait, and
//! `tests/conformance` see what filters accept; all are private. Not part of the API: it may change
//! at any time.

use contract::{JobTaskId, OnFailure, PartitionId, Step};

use crate::db::run_tx::{End, JobLocks};
use crate::db::sql;
use crate::db::sql::conditions::BlockState;
use crate::ledger::{JobTotals, Ledger, NodeRow, keys_of, path_of};
use crate::{JobQuery, Result, Store, TrackingEvent};

/// Returns the sorted ids of the jobs of a partition that match a query when operations on many
/// jobs look at them again.
pub async fn accepted(
    store: &Store,
    partition: &PartitionId,
    query: &JobQuery,
) -> Result<Vec<String>> {
    let all = JobQuery {
        limit: u32::MAX,
        ..JobQuery::default()
    };
    let jobs = store.choose(partition, &all).await?;
    let accepted = jobs.values().filter(|chosen| query.selects(chosen));
    let mut ids: Vec<String> = accepted.map(|chosen| chosen.job.job.to_string()).collect();
    ids.sort();
    Ok(ids)
}

/// Returns how often a task was blocked that waits in the store, once for each of its messages that
/// do.
pub async fn waiting_blocks(store: &Store, task: &JobTaskId) -> Result<Vec<u32>> {
    let job = JobLocks::from([(task.partition.clone(), task.job.clone())]);
    store
        .run_tx_on_jobs("waiting_blocks", job, |tx| {
            Box::pin(async move {
                let job = tx.lock_known_jobs().await?.pop();
                let Some(job) = job.filter(|job| job.matches(task.incarnation)) else {
                    return Ok(End::Rollback(Vec::new()));
                };
                let path = path_of(task.steps.iter().map(|step| step.number));
                let mut rows = sql::conditions::blocks(tx, job.incarnation, &[path]).await?;
                rows.retain(|row| row.round == task.round && row.state == BlockState::Waiting);
                Ok(End::Rollback(rows.iter().map(|row| row.number).collect()))
            })
        })
        .await
}

/// The ledger of a job without failures, as stored.
#[derive(Debug)]
pub struct LedgerState {
    totals: JobTotals,
    rows: Vec<NodeRow>,
}

impl LedgerState {
    /// Returns the ledger of a new job.
    pub fn new(on_failure: OnFailure) -> Self {
        Self {
            totals: JobTotals::new(on_failure),
            rows: Vec::new(),
        }
    }

    /// Applies the events of one flush, as `Store::record` does. The events must touch all rows and
    /// decide nothing.
    ///
    /// Returns the totals and rows to save.
    #[must_use]
    pub fn flush(&self, events: &[TrackingEvent]) -> Self {
        let mut ledger = Ledger::new(
            self.totals.clone(),
            crate::StoreOptions::DEFAULT_FAILURES,
            0,
        );
        std::hint::black_box(keys_of(steps(events)));
        ledger.load(self.rows.clone());
        std::hint::black_box(ledger.also_needed(steps(events)));
        for event in events {
            ledger.apply(&event.task.steps, &event.kind);
        }
        let outcome = ledger.finish();
        Self {
            totals: outcome.totals,
            rows: outcome.nodes.rows,
        }
    }
}

fn steps(events: &[TrackingEvent]) -> impl Iterator<Item = &[Step]> {
    events.iter().map(|event| event.task.steps.as_slice())
}
