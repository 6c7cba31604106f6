//! Signs of life: every few seconds a worker tells the job services what it is and what it does.
//!
//! They go over an exchange of their own, which only job services bind. Nothing stores them, and
//! nobody waits for them: a worker whose signs do not arrive works as before.

use std::sync::Arc;
use std::time::Duration;

use contract::{RunningTask, SignOfLife};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::broker::{Broker, BrokerState, Gauges};
use crate::config::Settings;
use crate::context::{RunningTasks, Shared};
use crate::meters::Counters;
use crate::pipeline::busy_threads::polled;
use crate::process_name::ProcessName;
use crate::steps::open_deliveries::OpenDeliveries;

/// How often a worker sends a sign of life.
pub const EVERY: Duration = Duration::from_secs(5);
/// When it does so for the second time: a job service that starts with it may not listen yet.
const SOON: Duration = Duration::from_secs(1);
/// How long a sign may take. The last one holds up the end of the worker for this time at most.
const LIMIT: Duration = Duration::from_secs(1);

/// How much of the reason why a worker takes nothing is told, in bytes.
const LONGEST_REASON: usize = 200;

/// Sends the signs of life of one worker.
pub(crate) struct Teller {
    broker: Arc<dyn Broker>,
    fixed: SignOfLife,
    started: Instant,
    counters: Counters,
    running: Arc<RunningTasks>,
    gauges: Arc<Gauges>,
    open: Arc<OpenDeliveries>,
    slots: Arc<Semaphore>,
    concurrency: u32,
    unavailable: watch::Receiver<Option<String>>,
}

impl Teller {
    pub fn of(
        settings: &Settings,
        shared: &Shared,
        open: Arc<OpenDeliveries>,
        (slots, concurrency): (Arc<Semaphore>, u32),
        unavailable: watch::Receiver<Option<String>>,
    ) -> Self {
        let fixed = SignOfLife {
            version: settings.version.clone(),
            input: Some(settings.input.clone()),
            output: settings.output.clone(),
            reject: Some(settings.reject.clone()),
            invalid: Some(settings.invalid.clone()),
            slots: Some(concurrency),
            ..sign_of(&settings.name)
        };
        Self {
            broker: Arc::clone(&shared.broker),
            fixed,
            started: Instant::now(),
            counters: shared.counters.clone(),
            running: Arc::clone(&shared.running),
            gauges: Arc::clone(&shared.gauges),
            open,
            slots,
            concurrency,
            unavailable,
        }
    }

    /// Returns whether the broker carries signs.
    pub fn can_tell(&self) -> bool {
        self.broker.carries_signs()
    }

    /// Sends signs of life until `stop` is cancelled, and a last one that says that the worker
    /// ends.
    pub async fn run(&self, stop: &CancellationToken) {
        let mut pause = SOON;
        loop {
            tell(&*self.broker, &self.sign()).await;
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                break;
            }
            pause = EVERY;
        }
        let last = SignOfLife {
            ended: true,
            ..self.fixed.clone()
        };
        tell(&*self.broker, &last).await;
    }

    fn sign(&self) -> SignOfLife {
        let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX);
        let longest = self.counters.long.longest();
        SignOfLife {
            slots_in_use: Some(self.concurrency.saturating_sub(free)),
            open: u64::try_from(self.open.count()).ok(),
            jobs: self.running.by_job(polled()),
            speeds: self.gauges.speeds(SignOfLife::MOST_SPEEDS),
            unavailable: self.unavailable.borrow().as_deref().map(start_of),
            age: millis(self.started.elapsed()),
            longest: longest.map(|(age, task)| RunningTask {
                task,
                age: millis(age),
            }),
            ..self.fixed.clone()
        }
    }
}

/// Returns a sign with the facts of this process, and an id of its own.
pub fn sign_of(name: &str) -> SignOfLife {
    SignOfLife {
        id: Uuid::new_v4().to_string(),
        name: name.to_owned(),
        host: ProcessName::of_this_process()
            .host()
            .unwrap_or("unknown")
            .to_owned(),
        process: std::process::id(),
        ..SignOfLife::default()
    }
}

/// Sends a sign, if the broker can be reached now.
pub async fn tell(broker: &dyn Broker, sign: &SignOfLife) {
    if matches!(
        broker.state(),
        BrokerState::Connecting(_) | BrokerState::Closed
    ) {
        return;
    }
    let body = serde_json::to_vec(sign).unwrap_or_default();
    match timeout(LIMIT, broker.tell(body.into())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, worker = sign.name, "a sign of life was not sent");
        }
        Err(_) => tracing::debug!(worker = sign.name, "a sign of life takes long"),
    }
}

/// Returns the start of a text that may be of any length.
fn start_of(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_REASON)].to_owned()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
