//! Counts the deliveries that a runtime has received and not settled yet, and notes since when they
//! are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::time::Instant;

/// How many deliveries are open.
#[derive(Debug, Default)]
pub(crate) struct OpenDeliveries {
    count: AtomicUsize,
    /// How many there can be.
    window: AtomicUsize,
    decreased: Notify,
}

/// Keeps deliveries that have begun open until it is dropped, however their processing ends.
#[derive(Debug)]
#[must_use = "the deliveries count as settled when this is dropped"]
pub(crate) struct KeptOpen {
    open: Arc<OpenDeliveries>,
    count: usize,
    _begun: Arc<Instant>,
}

impl OpenDeliveries {
    pub fn add(&self, n: usize) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    pub fn remove(&self, n: usize) {
        self.count.fetch_sub(n, Ordering::Relaxed);
        self.decreased.notify_one();
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes how many there can be.
    pub fn set_window(&self, window: u32) {
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        self.window.store(window, Ordering::Relaxed);
    }

    /// Returns how many can wait without the others missing their room: an eighth of all.
    pub fn few(&self) -> usize {
        self.window.load(Ordering::Relaxed) / 8
    }

    /// Waits until there are fewer.
    pub async fn decreased(&self) {
        self.decreased.notified().await;
    }

    /// Returns what keeps these deliveries open, which have been added. They began at this time.
    pub fn keep(self: &Arc<Self>, n: usize, begun: Arc<Instant>) -> KeptOpen {
        KeptOpen {
            open: Arc::clone(self),
            count: n,
            _begun: begun,
        }
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.open.remove(self.count);
    }
}
