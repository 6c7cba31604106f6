//! The counters of a process. Names follow CAF's (`core.tasksReceived`, …) in Prometheus' spelling.

use metrics::{Counter, counter};

/// Handles to the counters of one worker, looked up once.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub received: Counter,
    pub done: Counter,
    pub passed_on: Counter,
    pub paused: Counter,
    pub discarded: Counter,
    pub invalid: Counter,
}

impl Metrics {
    pub fn of(worker: &str) -> Self {
        let counter = |name: &'static str| counter!(name, "worker" => worker.to_owned());
        Self {
            received: counter("batchwright_tasks_received_total"),
            done: counter("batchwright_tasks_done_total"),
            passed_on: counter("batchwright_tasks_forwarded_total"),
            paused: counter("batchwright_tasks_paused_total"),
            discarded: counter("batchwright_tasks_discarded_total"),
            invalid: counter("batchwright_tasks_rejected_total"),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
