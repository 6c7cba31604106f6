//! The metrics of one worker.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use contract::metrics::{
    CIRCUIT_OPEN, CIRCUIT_TRIPS, STATUS_CHECKS_REFUSED, TASK_SECONDS, TASKS_BLOCKED,
    TASKS_DISCARDED, TASKS_DONE, TASKS_FAILED, TASKS_FORWARDED, TASKS_GIVEN_UP, TASKS_PAUSED,
    TASKS_QUARANTINED, TASKS_RECEIVED, TASKS_REDELIVERED, TASKS_REJECTED, TASKS_RETRIED,
    TASKS_SNOOZED, TIME_IN_PIPE,
};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::install;

/// The counters of one worker. The names of the older ones follow CAF's (`core.tasksReceived`, …)
/// in Prometheus' spelling.
#[derive(Clone)]
pub(crate) struct Counters {
    pub received: Counter,
    pub done: Counter,
    pub failed: Counter,
    pub retried: Counter,
    pub given_up: Counter,
    pub forwarded: Counter,
    pub paused: Counter,
    pub blocked: Counter,
    pub invalid: Counter,
    pub quarantined: Counter,
    pub snoozed: Counter,
    pub redelivered: Counter,
    pub in_pipe: Histogram,
    pub handling: Histogram,
    pub begun: Arc<Begun>,
    pub long: Arc<LongRuns>,
}

impl Counters {
    pub fn of(worker: &str) -> Self {
        install();
        let counter = |name: &'static str| counter!(name, "worker" => worker.to_owned());
        Self {
            received: counter(TASKS_RECEIVED),
            done: counter(TASKS_DONE),
            failed: counter(TASKS_FAILED),
            retried: counter(TASKS_RETRIED),
            given_up: counter(TASKS_GIVEN_UP),
            forwarded: counter(TASKS_FORWARDED),
            paused: counter(TASKS_PAUSED),
            blocked: counter(TASKS_BLOCKED),
            invalid: counter(TASKS_REJECTED),
            quarantined: counter(TASKS_QUARANTINED),
            snoozed: counter(TASKS_SNOOZED),
            redelivered: counter(TASKS_REDELIVERED),
            in_pipe: histogram!(TIME_IN_PIPE, "worker" => worker.to_owned()),
            handling: histogram!(TASK_SECONDS, "worker" => worker.to_owned()),
            begun: Arc::default(),
            long: Arc::default(),
        }
    }
}

/// Returns the counter of the messages that a worker discards for this reason.
pub(crate) fn discarded(worker: &str, reason: &'static str) -> Counter {
    install();
    counter!(TASKS_DISCARDED, "worker" => worker.to_owned(), "reason" => reason)
}

/// Returns the counter of the status checks that a worker does not make, because their URL is not
/// allowed.
pub(crate) fn refused_status_checks(worker: &str) -> Counter {
    install();
    counter!(STATUS_CHECKS_REFUSED, "worker" => worker.to_owned())
}

/// Returns the state of the circuit breaker of a worker, which is 0 also if it has none, and the
/// counter of its trips.
pub(crate) fn circuit(worker: &str) -> (Gauge, Counter) {
    install();
    let open = gauge!(CIRCUIT_OPEN, "worker" => worker.to_owned());
    open.set(0);
    (open, counter!(CIRCUIT_TRIPS, "worker" => worker.to_owned()))
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}

/// Deliveries that begin within this time of each other count as one.
const GRAIN: Duration = Duration::from_millis(100);

/// When the deliveries that are being processed began.
///
/// Only what begins them takes the lock. Their ends drop a reference, because they come from all
/// threads at once.
#[derive(Debug, Default)]
pub(crate) struct Begun(Mutex<VecDeque<Weak<Instant>>>);

impl Begun {
    /// Returns what the deliveries that begin now must keep until their end.
    pub fn now(&self) -> Arc<Instant> {
        let now = Instant::now();
        let mut times = self.times();
        if let Some(latest) = times.back().and_then(Weak::upgrade)
            && now.duration_since(*latest) < GRAIN
        {
            return latest;
        }
        times.retain(|begun| begun.strong_count() > 0);
        let begun = Arc::new(now);
        times.push_back(Arc::downgrade(&begun));
        begun
    }

    /// Returns how long the oldest is open; zero if none is.
    pub fn oldest(&self) -> Duration {
        let oldest = self.times().iter().find_map(Weak::upgrade);
        oldest.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    fn times(&self) -> MutexGuard<'_, VecDeque<Weak<Instant>>> {
        self.0.lock()
    }
}

/// The tasks that run for a while. Short ones are not noted.
#[derive(Debug, Default)]
pub(crate) struct LongRuns(Mutex<LongRunsState>);

#[derive(Debug, Default)]
struct LongRunsState {
    last_number: u64,
    /// In the order in which they were noted.
    running: BTreeMap<u64, (Instant, String)>,
}

/// A task that runs for a while, until this is dropped.
#[derive(Debug)]
#[must_use = "the task counts as running until this is dropped"]
pub(crate) struct LongRun {
    runs: Arc<LongRuns>,
    number: u64,
}

impl LongRuns {
    /// Notes a task that began at this time.
    pub fn note(self: &Arc<Self>, since: Instant, task: String) -> LongRun {
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.running.insert(number, (since, task));
        LongRun {
            runs: Arc::clone(self),
            number,
        }
    }

    /// Returns for how long the task runs that runs longest, and which it is.
    pub fn longest(&self) -> Option<(Duration, String)> {
        let state = self.lock();
        let (since, task) = state.running.values().min_by_key(|(since, _)| *since)?;
        Some((since.elapsed(), task.clone()))
    }

    /// Returns how many tasks have been running for this time or longer.
    pub fn count(&self, limit: Duration) -> usize {
        let state = self.lock();
        let old = state.running.values();
        old.filter(|(since, _)| since.elapsed() >= limit).count()
    }

    fn lock(&self) -> MutexGuard<'_, LongRunsState> {
        self.0.lock()
    }
}

impl Drop for LongRun {
    fn drop(&mut self) {
        self.runs.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_open_delivery_is_the_first_that_has_not_ended() {
        let begun = Begun::default();
        assert_eq!(begun.oldest(), Duration::ZERO);
        let first = begun.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        let second = begun.now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(begun.oldest(), Duration::from_secs(6));
        drop(first);
        assert_eq!(begun.oldest(), Duration::from_secs(1));
        drop(second);
        assert_eq!(begun.oldest(), Duration::ZERO);
    }
}
