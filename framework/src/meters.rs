//! What this process counts and measures, and the recorder that keeps it for `/metrics`.

use std::fmt;

use metrics::{Counter, counter};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// The counters of one worker. Their names follow CAF's (`core.tasksReceived`, …) in Prometheus' spelling.
#[derive(Clone)]
pub(crate) struct Counters {
    pub received: Counter,
    pub done: Counter,
    pub forwarded: Counter,
    pub paused: Counter,
    pub invalid: Counter,
}

impl Counters {
    pub fn of(worker: &str) -> Self {
        let counter = |name: &'static str| counter!(name, "worker" => worker.to_owned());
        Self {
            received: counter("batchwright_tasks_received_total"),
            done: counter("batchwright_tasks_done_total"),
            forwarded: counter("batchwright_tasks_forwarded_total"),
            paused: counter("batchwright_tasks_paused_total"),
            invalid: counter("batchwright_tasks_rejected_total"),
        }
    }
}

/// Returns the counter of the messages that a worker discards for this reason.
pub(crate) fn discarded(worker: &str, reason: &'static str) -> Counter {
    counter!("batchwright_tasks_discarded_total", "worker" => worker.to_owned(), "reason" => reason)
}

/// Returns the counter of the status checks that a worker does not make, because their URL is not allowed.
pub(crate) fn refused_status_checks(worker: &str) -> Counter {
    counter!("batchwright_status_checks_refused_total", "worker" => worker.to_owned())
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}

/// Installs the recorder of the counters of this process. Later calls return the same one; `None` if the program has
/// installed another one.
pub(crate) fn install_recorder() -> Option<PrometheusHandle> {
    static RECORDER: std::sync::OnceLock<Option<PrometheusHandle>> = std::sync::OnceLock::new();
    RECORDER
        .get_or_init(|| PrometheusBuilder::new().install_recorder().ok())
        .clone()
}
