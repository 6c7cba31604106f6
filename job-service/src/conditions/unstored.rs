//! How many tasks that wait for conditions are still in the blocked pipe, because workers are
//! faster than the store.
//!
//! What must stay true:
//! - An answer to a status check never waits for the broker: it uses what was measured last.
//! - What was measured counts for a moment only, so that no worker waits because of an old number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use framework::broker::Broker;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// The time between two measurements while tasks come.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long the broker may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a measurement counts.
const COUNTS: Duration = Duration::from_secs(2);

/// The tasks in the blocked pipe.
#[derive(Debug, Default)]
pub struct Unstored {
    come: Notify,
    /// The batches of tasks that are being stored.
    in_hand: AtomicUsize,
    measured: Mutex<Option<(Instant, u64)>>,
}

impl Unstored {
    /// Returns how many tasks there were a moment ago.
    pub fn tasks(&self) -> u64 {
        let measured = self.measured.lock();
        let new = measured.filter(|(at, _)| at.elapsed() < COUNTS);
        new.map_or(0, |(_, tasks)| tasks)
    }

    /// Notes that tasks have come from the pipe, so that there may be more. They are being stored
    /// until the result is dropped.
    pub fn storing(&self) -> Storing<'_> {
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        self.come.notify_one();
        Storing(self)
    }

    /// Measures the pipe while tasks are being stored, and until it is empty. Never ends.
    pub async fn measure(&self, broker: &dyn Broker, pipe: &str) {
        loop {
            self.come.notified().await;
            loop {
                // A broker that does not answer takes no tasks either.
                let depth = timeout(LIMIT, broker.depth(pipe)).await;
                let depth = depth.ok().and_then(Result::ok);
                if let Some(tasks) = depth {
                    self.note(tasks);
                }
                sleep(INTERVAL).await;
                if depth == Some(0) && self.in_hand.load(Ordering::Relaxed) == 0 {
                    break;
                }
            }
        }
    }

    fn note(&self, tasks: u64) {
        let mut measured = self.measured.lock();
        *measured = Some((Instant::now(), tasks));
    }
}

/// Tasks that are being stored.
#[derive(Debug)]
pub struct Storing<'a>(&'a Unstored);

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}
