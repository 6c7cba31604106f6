//! Who reads bundles: whether the pipe of bundles of an input pipe has consumers, as the broker has said lately.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::bundle_pipe;
use tokio::time::Instant;

use crate::broker::{Broker, PipeState};

/// How long the broker's answer counts if the pipe exists.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long it counts as the number of bundles that wait.
const DEPTH_AGE: Duration = Duration::from_millis(50);
/// How long it counts if there is no such pipe: RabbitMQ logs each question about one as an error.
const MISSING_AGE: Duration = Duration::from_secs(30);
/// The largest number of pipes of which answers are kept.
const CAPACITY: usize = 1000;

/// What is known about the readers of bundles. Pipes without such readers cost a question now and then.
#[derive(Debug, Default)]
pub(crate) struct BundleReaders(Mutex<HashMap<String, Reading>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    /// What the broker has said; `None` if there is no such pipe, or the question failed.
    state: Option<PipeState>,
}

impl Reading {
    fn is_recent(&self) -> bool {
        let max_age = if self.state.is_some() {
            MAX_AGE
        } else {
            MISSING_AGE
        };
        self.at.elapsed() < max_age
    }

    fn has_readers(&self) -> bool {
        self.state
            .and_then(|state| state.consumers)
            .is_some_and(|consumers| consumers > 0)
    }
}

impl BundleReaders {
    /// Returns whether somebody reads bundles for this pipe. Asks the broker if nobody has lately.
    pub async fn has(&self, pipe: &str, broker: &dyn Broker) -> bool {
        let recent = self.readings().get(pipe).copied();
        match recent.filter(Reading::is_recent) {
            Some(reading) => reading.has_readers(),
            None => self.ask(pipe, broker).await.has_readers(),
        }
    }

    /// Returns how many bundles wait for the readers of this pipe, as the broker has said up to [`DEPTH_AGE`] ago; 0 for a pipe to which
    /// this process sends no bundles.
    pub async fn waiting(&self, pipe: &str, broker: &dyn Broker) -> u64 {
        let known = self.readings().get(pipe).copied();
        let Some(mut reading) = known.filter(|reading| reading.state.is_some()) else {
            return 0;
        };
        if reading.at.elapsed() >= DEPTH_AGE {
            reading = self.ask(pipe, broker).await;
        }
        reading.state.map_or(0, |state| state.messages)
    }

    async fn ask(&self, pipe: &str, broker: &dyn Broker) -> Reading {
        let state = match bundle_pipe(pipe) {
            // A question that fails is no reason to keep a subtask waiting: it goes by itself.
            Some(bundles) => broker.look(&bundles).await.ok().flatten(),
            None => None,
        };
        let reading = Reading {
            at: Instant::now(),
            state,
        };
        let mut readings = self.readings();
        if readings.len() >= CAPACITY {
            readings.retain(|_, reading| reading.is_recent());
        }
        if readings.len() < CAPACITY {
            readings.insert(pipe.to_owned(), reading);
        }
        reading
    }

    fn readings(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::memory::Memory;

    #[tokio::test(start_paused = true)]
    async fn readers_are_seen_when_they_come_and_when_they_go() {
        let (broker, readers) = (Memory::new(), BundleReaders::default());
        assert!(!readers.has("in", &broker).await);
        let consumer = broker.consume("in.bundles", 1).await.unwrap();
        assert!(!readers.has("in", &broker).await, "asked too early");
        tokio::time::advance(MISSING_AGE).await;
        assert!(readers.has("in", &broker).await);
        drop(consumer);
        broker
            .publish(crate::broker::Outgoing::new("in.bundles", "bundle"))
            .await
            .unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert!(!readers.has("in", &broker).await);
        assert_eq!(readers.waiting("in", &broker).await, 1);
        assert_eq!(readers.waiting("another", &broker).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded() {
        let (broker, readers) = (Memory::new(), BundleReaders::default());
        for number in 0..CAPACITY + 10 {
            readers.has(&format!("in-{number}"), &broker).await;
        }
        assert_eq!(readers.readings().len(), CAPACITY);
        tokio::time::advance(MISSING_AGE).await;
        readers.has("in", &broker).await;
        assert_eq!(readers.readings().len(), 1);
    }
}
