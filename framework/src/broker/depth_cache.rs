//! Recent readings of pipe depths, for producers that wait while a pipe is too full.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Broker, BrokerError};

/// How long a reading is used before the broker is asked again.
const MAX_AGE: Duration = Duration::from_millis(50);

/// Caches the depth of each pipe that was asked for.
#[derive(Debug, Default)]
pub(crate) struct DepthCache(Mutex<HashMap<String, Reading>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    depth: u64,
    /// How many messages this process has published to the pipe since the reading.
    added: u64,
}

impl DepthCache {
    /// Returns the depth of the pipe: the latest reading plus what this process has published
    /// since. Asks the broker if the reading is older than [`MAX_AGE`].
    ///
    /// # Errors
    /// The error of [`Broker::depth`].
    pub async fn depth(&self, pipe: &str, broker: &dyn Broker) -> Result<u64, BrokerError> {
        let recent = self
            .readings()
            .get(pipe)
            .filter(|reading| reading.at.elapsed() < MAX_AGE)
            .copied();
        if let Some(Reading { depth, added, .. }) = recent {
            return Ok(depth.saturating_add(added));
        }
        let depth = broker.depth(pipe).await?;
        let mut readings = self.readings();
        readings.retain(|_, reading| reading.at.elapsed() < MAX_AGE);
        readings.insert(
            pipe.to_owned(),
            Reading {
                at: Instant::now(),
                depth,
                added: 0,
            },
        );
        Ok(depth)
    }

    /// Counts one message that this process publishes to the pipe.
    pub fn add(&self, pipe: &str) {
        if let Some(reading) = self.readings().get_mut(pipe) {
            reading.added += 1;
        }
    }

    fn readings(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Outgoing;
    use crate::broker::memory::Memory;

    #[tokio::test(start_paused = true)]
    async fn depth_includes_messages_published_since_the_last_reading() {
        let (broker, depths) = (Memory::new(), DepthCache::default());
        broker.publish(Outgoing::new("pipe", "one")).await.unwrap();
        assert_eq!(depths.depth("pipe", &broker).await.unwrap(), 1);
        depths.add("pipe");
        depths.add("a pipe without a reading");
        assert_eq!(depths.depth("pipe", &broker).await.unwrap(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn old_reading_is_replaced() {
        let (broker, depths) = (Memory::new(), DepthCache::default());
        assert_eq!(depths.depth("pipe", &broker).await.unwrap(), 0);
        broker.publish(Outgoing::new("pipe", "one")).await.unwrap();
        assert_eq!(depths.depth("pipe", &broker).await.unwrap(), 0);
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(depths.depth("pipe", &broker).await.unwrap(), 1);
    }
}
