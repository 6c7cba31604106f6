//! What this process counts and measures, and the recorder that keeps it for `/metrics`.
//!
//! The names are in [`contract::metrics`]. A handle must not be made before the recorder is
//! installed: it would count into nothing for ever. So every handle of this crate is made by a
//! function of this module, which installs it first.
//!
//! Counters and histograms are recorded as things happen. Gauges are measured when `/metrics` is
//! read: the part of the process that knows a number registers a function with [`on_scrape`].
//!
//! What must stay true: a handle is made once, not for every delivery.

#[cfg(feature = "prometheus")]
mod process;
#[cfg(feature = "prometheus")]
mod recorder;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use contract::metrics::{BROKER_STATE, CONFIRM_SECONDS, MESSAGES_CONFIRMED, MESSAGES_PUBLISHED};
use futures_util::future::{BoxFuture, join_all};
use metrics::{Counter, Histogram, counter, gauge, histogram};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

#[cfg(feature = "prometheus")]
use self::recorder::rendered;
pub(crate) use worker::{Begun, Counters, LongRun, circuit, discarded, refused_status_checks};

/// The content type of [`scrape`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long one measurement may take. What it did not set keeps its last value.
const MEASUREMENT_LIMIT: Duration = Duration::from_secs(3);

type Measure = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// What is measured at a scrape.
static MEASURES: Mutex<BTreeMap<u64, Measure>> = Mutex::new(BTreeMap::new());

/// A measurement that is made at every scrape until this is dropped.
#[derive(Debug)]
#[must_use = "the measurement ends when this is dropped"]
pub struct Measurement(u64);

/// Returns the counter of results that the embedded broker has dropped.
#[cfg(feature = "embedded")]
pub(crate) fn embedded_dropped() -> Counter {
    install();
    counter!(contract::metrics::EMBEDDED_UNREAD_DROPPED)
}

/// Installs the recorder of this process. Later calls do nothing. A program that wants another
/// recorder installs it before.
pub fn install() {
    #[cfg(feature = "prometheus")]
    recorder::recorder();
}

/// Measures now, and returns all metrics of this process as text.
pub async fn scrape() -> String {
    let measures: Vec<Measure> = measures().values().cloned().collect();
    let limited = measures
        .iter()
        .map(|measure| tokio::time::timeout(MEASUREMENT_LIMIT, measure()));
    join_all(limited).await;
    rendered()
}

#[cfg(not(feature = "prometheus"))]
fn rendered() -> String {
    "# This program is built without the feature `prometheus` of batchwright.\n".to_owned()
}

/// Calls `measure` at every scrape. It sets gauges.
pub fn on_scrape(
    measure: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> Measurement {
    let mut measures = measures();
    let number = measures.last_key_value().map_or(0, |(last, _)| last + 1);
    measures.insert(number, Arc::new(measure));
    Measurement(number)
}

impl Drop for Measurement {
    fn drop(&mut self) {
        measures().remove(&self.0);
    }
}

fn measures() -> MutexGuard<'static, BTreeMap<u64, Measure>> {
    MEASURES.lock()
}

/// Returns a counter without labels, or with one.
pub(crate) fn counter_of(
    name: &'static str,
    label: Option<(&'static str, &'static str)>,
) -> Counter {
    install();
    if let Some((label, value)) = label {
        counter!(name, label => value)
    } else {
        counter!(name)
    }
}

/// Sets the gauges of the state of the broker.
pub(crate) fn set_broker_state(present: &str) {
    // The process shows them before it publishes.
    Publishing::meters();
    for state in [
        "connected",
        "impaired",
        "blocked",
        "refusing",
        "connecting",
        "closed",
    ] {
        gauge!(BROKER_STATE, "state" => state).set(f64::from(u8::from(state == present)));
    }
}

/// The metrics of publishing: how many messages were published, how each was confirmed, and how
/// long that took.
pub(crate) struct Publishing {
    published: Counter,
    confirmed: [Counter; OUTCOMES.len()],
    seconds: Histogram,
}

const OUTCOMES: [&str; 6] = [
    "confirmed",
    "refused",
    "unroutable",
    "impossible",
    "unacceptable",
    "closed",
];

/// The response to a published message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Confirmed,
    Refused,
    Unroutable,
    Impossible,
    Unacceptable,
    Closed,
}

impl Publishing {
    /// Returns the handles of this process.
    pub fn meters() -> &'static Self {
        static PUBLISHING: LazyLock<Publishing> = LazyLock::new(|| Publishing {
            published: counter_of(MESSAGES_PUBLISHED, None),
            confirmed: OUTCOMES
                .map(|outcome| counter_of(MESSAGES_CONFIRMED, Some(("outcome", outcome)))),
            seconds: histogram!(CONFIRM_SECONDS),
        });
        &PUBLISHING
    }

    /// Counts a message, and returns the time.
    pub fn published(&self) -> Instant {
        self.published.increment(1);
        Instant::now()
    }

    pub fn responded(&self, published: Instant, outcome: Outcome) {
        self.confirmed[outcome as usize].increment(1);
        self.seconds.record(published.elapsed());
    }
}
