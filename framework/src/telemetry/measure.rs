//! The gauges of one worker, which are measured at each scrape.

use std::sync::Arc;
use std::time::Duration;

use contract::metrics::{
    OLDEST_OPEN_DELIVERY, OPEN_DELIVERIES, PIPE_MESSAGES, SLOTS, SLOTS_IN_USE, STUCK_TASKS,
};
use futures_util::FutureExt as _;
use metrics::{Gauge, gauge};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use crate::broker::{Broker, BrokerState};
use crate::config::Settings;
use crate::meters::{Counters, Measurement, on_scrape};
use crate::steps::open_deliveries::OpenDeliveries;

/// How long the depth of a pipe counts as known.
const DEPTH_AGE: Duration = Duration::from_secs(15);
/// How long the broker may take to tell the depth of a pipe.
const DEPTH_LIMIT: Duration = Duration::from_secs(2);

/// What is measured.
struct Worker {
    counters: Counters,
    open: Arc<OpenDeliveries>,
    stuck_task: Duration,
    slots: Arc<Semaphore>,
    concurrency: u32,
    broker: Arc<dyn Broker>,
    input: String,
    depth_read: Mutex<Option<Instant>>,
    gauges: Gauges,
}

struct Gauges {
    open: Gauge,
    oldest: Gauge,
    stuck: Gauge,
    slots: Gauge,
    slots_in_use: Gauge,
    depth: Gauge,
}

/// Measures a worker and its broker at each scrape, until the result is dropped.
pub fn measure(
    settings: &Settings,
    counters: Counters,
    open: Arc<OpenDeliveries>,
    broker: Arc<dyn Broker>,
    (slots, concurrency): (Arc<Semaphore>, u32),
) -> Measurement {
    let of_worker = |name: &'static str| gauge!(name, "worker" => settings.name.clone());
    let worker = Arc::new(Worker {
        gauges: Gauges {
            open: of_worker(OPEN_DELIVERIES),
            oldest: of_worker(OLDEST_OPEN_DELIVERY),
            stuck: of_worker(STUCK_TASKS),
            slots: of_worker(SLOTS),
            slots_in_use: of_worker(SLOTS_IN_USE),
            depth: gauge!(PIPE_MESSAGES, "pipe" => settings.input.clone()),
        },
        counters,
        open,
        stuck_task: settings.stuck_task,
        slots,
        concurrency,
        broker,
        input: settings.input.clone(),
        depth_read: Mutex::default(),
    });
    on_scrape(move || {
        let worker = Arc::clone(&worker);
        async move { worker.measure().await }.boxed()
    })
}

impl Worker {
    async fn measure(&self) {
        let Gauges {
            open,
            oldest,
            stuck,
            slots,
            slots_in_use,
            ..
        } = &self.gauges;
        open.set(number(self.open.count()));
        oldest.set(self.counters.begun.oldest());
        stuck.set(number(self.counters.long.count(self.stuck_task)));
        let free = self.slots.available_permits();
        slots.set(f64::from(self.concurrency));
        slots_in_use.set(f64::from(self.concurrency) - number(free));
        self.broker.measure().await;
        self.measure_depth().await;
    }

    /// Asks the broker how many messages wait in the input pipe, unless it was asked a moment ago.
    async fn measure_depth(&self) {
        let mut read = self.depth_read.lock().await;
        if read.is_some_and(|read| read.elapsed() < DEPTH_AGE) {
            return;
        }
        let is_away = matches!(
            self.broker.state(),
            BrokerState::Connecting(_) | BrokerState::Closed
        );
        let depth = if is_away {
            None
        } else {
            let asked = timeout(DEPTH_LIMIT, self.broker.depth(&self.input)).await;
            asked.ok().and_then(Result::ok)
        };
        *read = depth.map(|_| Instant::now());
        let depth = depth.and_then(|depth| usize::try_from(depth).ok());
        self.gauges.depth.set(depth.map_or(f64::NAN, number));
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: usize) -> f64 {
    count as f64
}
