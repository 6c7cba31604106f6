//! How fast and how steadily a server sends a source.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Reading;
use crate::SplitError;

/// What is asked of a server that sends a source. A source that falls short fails its split.
#[derive(Debug, Clone, Copy)]
pub struct SourceLimits {
    /// The fewest bytes a second, on average over each [`window`](Self::window).
    pub least_speed: u64,
    /// The time over which the speed is measured. Only the time counts in which a split waits for
    /// the server.
    pub window: Duration,
    /// How often a response may break off before its end. The rest of it is asked for again.
    pub most_breaks: u32,
}

impl Default for SourceLimits {
    /// Returns the limits with 1 KiB a second over a minute, and 100 breaks.
    fn default() -> Self {
        Self {
            least_speed: 1024,
            window: Duration::from_mins(1),
            most_breaks: 100,
        }
    }
}

/// Waits for what a server sends of one source, and measures it.
pub(crate) struct Flow {
    reading: Reading,
    /// The name of the source, for people.
    name: String,
    /// How long it was waited for in this window, and how many bytes came meanwhile.
    waited: Duration,
    bytes: u64,
    #[cfg(feature = "sources")]
    breaks: u32,
}

impl Flow {
    pub fn new(reading: &Reading, name: String) -> Self {
        Self {
            reading: reading.clone(),
            name,
            waited: Duration::ZERO,
            bytes: 0,
            #[cfg(feature = "sources")]
            breaks: 0,
        }
    }

    /// Blocks the thread until the server has done this. Fails if the server is too slow, or nobody
    /// waits any more.
    pub fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, SplitError> {
        let reading = self.reading.clone();
        let work = async {
            let mut work = pin!(work);
            loop {
                let (begun, left) = (Instant::now(), self.left());
                let done = timeout(left, &mut work).await;
                self.waited += begun.elapsed();
                match done {
                    Ok(done) => return Ok(done),
                    Err(_) => self.end_window()?,
                }
            }
        };
        reading.wait(work)?
    }

    /// Notes bytes that have come.
    pub fn came(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Notes that a response has broken off. Fails if that was once too often.
    #[cfg(feature = "sources")]
    pub fn broke_off(&mut self) -> Result<(), SplitError> {
        self.breaks += 1;
        let most = self.reading.limits.most_breaks;
        if self.breaks <= most {
            return Ok(());
        }
        Err(SplitError::Definition(format!(
            "{:?} broke off {} times; at most {most} are possible (--source-breaks). Upload it, or name a place that sends it whole",
            self.name, self.breaks
        )))
    }

    /// Returns how long the server may still take in this window.
    fn left(&self) -> Duration {
        let window = self.reading.limits.window;
        let left = window.saturating_sub(self.waited);
        left.max(Duration::from_millis(1))
    }

    /// Begins the next window. Fails if too little came in this one.
    fn end_window(&mut self) -> Result<(), SplitError> {
        let SourceLimits {
            least_speed,
            window,
            ..
        } = self.reading.limits;
        let (bytes, waited) = (self.bytes, self.waited);
        let least = u128::from(least_speed).saturating_mul(window.as_millis()) / 1000;
        if u128::from(bytes) < least {
            return Err(SplitError::Definition(format!(
                "{:?} is sent too slowly: {bytes} bytes came in {} s, and the least is {least_speed} bytes a second \
                 (--source-least-speed). Upload it, or name a place that sends it faster",
                self.name,
                waited.as_secs()
            )));
        }
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        Ok(())
    }
}
