//! Lets `tests/instructions` measure the ledger, which is private. Not part of the API: it may change at any time.

use contract::{OnFailure, Step};

use crate::TrackingEvent;
use crate::ledger::{JobTotals, Ledger, NodeRow, keys_of};

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

    /// Applies the events of one flush, as `Store::record` does. The events must touch all rows and decide nothing.
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
