//! Says when much is new in pipes without consumers.

use std::sync::Arc;

use tokio::sync::Notify;

/// Counts what is published to pipes without consumers, and says when to look at it.
#[derive(Debug)]
pub struct Growth {
    bytes: u64,
    step: u64,
    grew: Arc<Notify>,
}

impl Default for Growth {
    fn default() -> Self {
        Self::new(u64::MAX, Arc::default())
    }
}

impl Growth {
    /// Notifies `grew` each time that `step` bytes are new.
    pub fn new(step: u64, grew: Arc<Notify>) -> Self {
        Self {
            bytes: 0,
            step,
            grew,
        }
    }

    /// Counts a published message of this size.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes > self.step {
            self.bytes = 0;
            self.grew.notify_one();
        }
    }
}
