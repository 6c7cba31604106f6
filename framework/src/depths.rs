//! How full pipes are, asked seldom: for those who hold back while others catch up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::broker::{Broker, BrokerError};

/// How long a reading holds.
const HOLDS: Duration = Duration::from_millis(250);

/// The depths of the pipes that somebody has asked for.
#[derive(Debug, Default)]
pub(crate) struct Depths(Mutex<HashMap<String, Reading>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    depth: u64,
    /// What this process has sent there since.
    added: u64,
}

impl Depths {
    /// How many messages wait in the pipe, as it was read a moment ago, and what this process has added since.
    pub async fn of(&self, pipe: &str, broker: &dyn Broker) -> Result<u64, BrokerError> {
        let recent = self
            .readings()
            .get(pipe)
            .filter(|reading| reading.at.elapsed() < HOLDS)
            .copied();
        if let Some(Reading { depth, added, .. }) = recent {
            return Ok(depth.saturating_add(added));
        }
        let depth = broker.depth(pipe).await?;
        let mut readings = self.readings();
        // A reading that no longer holds is of no use to anybody.
        readings.retain(|_, reading| reading.at.elapsed() < HOLDS);
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

    /// This process sends one more message there.
    pub fn add(&self, pipe: &str) {
        if let Some(reading) = self.readings().get_mut(pipe) {
            reading.added += 1;
        }
    }

    fn readings(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Outgoing;
    use crate::broker::memory::Memory;

    #[tokio::test]
    async fn what_is_added_since_the_last_reading_counts() {
        let (broker, depths) = (Memory::new(), Depths::default());
        broker.publish(Outgoing::new("pipe", "one")).await.unwrap();
        assert_eq!(depths.of("pipe", &broker).await.unwrap(), 1);
        depths.add("pipe");
        depths.add("another that nobody asked for");
        assert_eq!(depths.of("pipe", &broker).await.unwrap(), 2);
    }
}
