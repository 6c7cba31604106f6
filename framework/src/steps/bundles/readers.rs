//! Who reads a pipe: whether the pipe of bundles of an input pipe, or that of the gathered reports
//! of a tracking pipe, has consumers, as the broker has said lately.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use contract::bundle_pipe;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::broker::{Broker, PipeState, PublishError};

/// How long the broker's answer counts if the pipe exists.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long it counts if there is no such pipe: RabbitMQ logs each question about one as an error.
const MISSING_AGE: Duration = Duration::from_secs(30);
/// For how long a pipe counts as one without readers after it has refused a message: it may be
/// full.
const REFUSED_AGE: Duration = Duration::from_secs(10);
/// The largest number of pipes of which answers are kept.
const CAPACITY: usize = 1000;

/// What is known about the readers of pipes. A pipe without readers costs a question now and then.
#[derive(Debug)]
pub(crate) struct PipeReaders {
    /// Returns the pipe that has readers or not, by the name by which it is asked for.
    beside: fn(&str) -> Option<String>,
    readings: Mutex<HashMap<String, Reading>>,
}

impl Default for PipeReaders {
    fn default() -> Self {
        Self::beside(bundle_pipe)
    }
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    /// How long it counts.
    max_age: Duration,
    /// What the broker has said; `None` if there is no such pipe, or no answer yet.
    state: Option<PipeState>,
}

impl Reading {
    fn now(state: Option<PipeState>, max_age: Duration) -> Self {
        Self {
            at: Instant::now(),
            max_age,
            state,
        }
    }

    fn is_recent(&self) -> bool {
        self.at.elapsed() < self.max_age
    }

    fn has_readers(&self) -> bool {
        self.state
            .and_then(|state| state.consumers)
            .is_some_and(|consumers| consumers > 0)
    }
}

impl PipeReaders {
    /// Returns what is known about the readers of the pipes themselves.
    pub fn of_pipes() -> Self {
        Self::beside(|pipe| Some(pipe.to_owned()))
    }

    fn beside(beside: fn(&str) -> Option<String>) -> Self {
        Self {
            beside,
            readings: Mutex::default(),
        }
    }

    /// Returns whether somebody reads the pipe beside this one. Asks the broker if nobody has
    /// lately; while one asks, the last answer counts for all others.
    pub async fn has(&self, pipe: &str, broker: &dyn Broker) -> bool {
        if let Some(reading) = self.begin_to_ask(pipe) {
            return reading.has_readers();
        }
        self.ask(pipe, broker).await.has_readers()
    }

    /// Returns the last answer about this pipe if it still counts.
    pub fn known(&self, pipe: &str) -> Option<bool> {
        let reading = self.readings().get(pipe).copied();
        let recent = reading.filter(Reading::is_recent)?;
        Some(recent.has_readers())
    }

    /// Returns whether somebody reads the pipe beside this one, as the broker has said lately;
    /// false if it has not. Never waits: if it is time to ask, a task does.
    pub fn lately(
        self: &Arc<Self>,
        pipe: &str,
        broker: &Arc<dyn Broker>,
        tasks: &TaskTracker,
    ) -> bool {
        let mut readings = self.readings();
        let reading = readings.get(pipe).copied();
        if let Some(reading) = reading.filter(Reading::is_recent) {
            return reading.has_readers();
        }
        // An answer counts until the next one is there, but not after a while in which nobody has
        // asked.
        let lately = reading.filter(|reading| reading.at.elapsed() < reading.max_age + MAX_AGE);
        let asking = Reading::now(lately.and_then(|reading| reading.state), MAX_AGE);
        keep(&mut readings, pipe, asking);
        drop(readings);
        let (readers, broker, pipe) = (Arc::clone(self), Arc::clone(broker), pipe.to_owned());
        tasks.spawn(async move { readers.ask(&pipe, &*broker).await });
        asking.has_readers()
    }

    /// Notes that the pipe beside this one has not taken a message, for this reason. For a while,
    /// nobody counts as its reader.
    pub fn not_taken(&self, pipe: &str, reason: &PublishError) {
        let age = match reason {
            PublishError::Closed => return,
            PublishError::Refused { .. } => REFUSED_AGE,
            PublishError::Impossible { .. }
            | PublishError::Unacceptable { .. }
            | PublishError::Unroutable { .. } => MISSING_AGE,
        };
        keep(&mut self.readings(), pipe, Reading::now(None, age));
        warn!(%reason, ?age, "messages that stand for several are sent one by one for a while");
    }

    /// Returns the last answer unless it is time to ask: then it counts as new, so that nobody else
    /// asks at the same time.
    fn begin_to_ask(&self, pipe: &str) -> Option<Reading> {
        let mut readings = self.readings();
        let Some(reading) = readings.get_mut(pipe) else {
            keep(&mut readings, pipe, Reading::now(None, MAX_AGE));
            return None;
        };
        if reading.is_recent() {
            return Some(*reading);
        }
        *reading = Reading::now(reading.state, MAX_AGE);
        None
    }

    /// Asks how many bundles wait for the readers of this pipe; 0 for a pipe to which this process
    /// sends no bundles.
    pub async fn waiting(&self, pipe: &str, broker: &dyn Broker) -> u64 {
        let known = self.readings().get(pipe).copied();
        if known.is_none_or(|reading| reading.state.is_none()) {
            return 0;
        }
        let state = self.ask(pipe, broker).await.state;
        state.map_or(0, |state| state.messages)
    }

    async fn ask(&self, pipe: &str, broker: &dyn Broker) -> Reading {
        let answer = match (self.beside)(pipe) {
            Some(bundles) => broker.look(&bundles).await,
            None => Ok(None),
        };
        let reading = match answer {
            Ok(Some(state)) => Reading::now(Some(state), MAX_AGE),
            Ok(None) => Reading::now(None, MISSING_AGE),
            // A question that fails changes nothing.
            Err(_) => {
                let last = self.readings().get(pipe).and_then(|last| last.state);
                Reading::now(last, MAX_AGE)
            }
        };
        keep(&mut self.readings(), pipe, reading);
        reading
    }

    fn readings(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.readings.lock()
    }
}

/// Keeps an answer. Answers that are too old make room for it; if all are recent, and of other
/// pipes, it is not kept.
fn keep(readings: &mut HashMap<String, Reading>, pipe: &str, reading: Reading) {
    if let Some(known) = readings.get_mut(pipe) {
        *known = reading;
        return;
    }
    if readings.len() >= CAPACITY {
        readings.retain(|_, reading| reading.is_recent());
    }
    if readings.len() < CAPACITY {
        readings.insert(pipe.to_owned(), reading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::memory::Memory;

    #[tokio::test(start_paused = true)]
    async fn readers_are_seen_when_they_come_and_when_they_go() {
        let (broker, readers) = (Memory::new(), PipeReaders::default());
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
    async fn one_asks_while_the_last_answer_counts_for_the_others() {
        let (broker, readers) = (Memory::new(), PipeReaders::default());
        let _consumer = broker.consume("in.bundles", 1).await.unwrap();
        assert!(readers.begin_to_ask("in").is_none());
        assert!(!readers.begin_to_ask("in").unwrap().has_readers());
        // Whoever asks may be dropped before the answer.
        tokio::time::advance(MAX_AGE).await;
        assert!(readers.has("in", &broker).await);
        tokio::time::advance(MAX_AGE).await;
        assert!(readers.begin_to_ask("in").is_none());
        assert!(readers.begin_to_ask("in").unwrap().has_readers());
    }

    #[tokio::test(start_paused = true)]
    async fn answer_counts_until_the_next_one_but_not_after_a_while() {
        let broker: Arc<dyn Broker> = Arc::new(Memory::new());
        let (readers, tasks) = (Arc::<PipeReaders>::default(), TaskTracker::new());
        tasks.close();
        let lately = async |pause: Duration| {
            tokio::time::advance(pause).await;
            let told = readers.lately("in", &broker, &tasks);
            tasks.wait().await;
            told
        };
        let consumer = broker.consume("in.bundles", 1).await.unwrap();
        assert!(!lately(Duration::ZERO).await, "nobody has asked");
        assert!(lately(Duration::ZERO).await);
        drop(consumer);
        assert!(lately(MAX_AGE).await);
        assert!(!lately(Duration::ZERO).await, "the next answer");
        let _consumer = broker.consume("in.bundles", 1).await.unwrap();
        assert!(!lately(MAX_AGE).await);
        assert!(lately(MAX_AGE).await);
        assert!(!lately(3 * MAX_AGE).await, "too old");
    }

    #[tokio::test(start_paused = true)]
    async fn pipe_that_has_not_taken_a_message_counts_as_unread_for_a_while() {
        let (broker, readers) = (Memory::new(), PipeReaders::default());
        let _consumer = broker.consume("in.bundles", 1).await.unwrap();
        for (reason, age) in [
            (PublishError::refused("in.bundles", "full"), REFUSED_AGE),
            (
                PublishError::unroutable("in.bundles", "no right"),
                MISSING_AGE,
            ),
        ] {
            assert!(readers.has("in", &broker).await);
            readers.not_taken("in", &reason);
            tokio::time::advance(age / 2).await;
            assert!(!readers.has("in", &broker).await, "{reason}");
            tokio::time::advance(age / 2).await;
        }
        assert!(readers.has("in", &broker).await);
        readers.not_taken("in", &PublishError::Closed);
        assert!(readers.has("in", &broker).await, "it says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded() {
        let (broker, readers) = (Memory::new(), PipeReaders::default());
        for number in 0..CAPACITY + 10 {
            readers.has(&format!("in-{number}"), &broker).await;
        }
        assert_eq!(readers.readings().len(), CAPACITY);
        tokio::time::advance(MISSING_AGE).await;
        readers.has("in", &broker).await;
        assert_eq!(readers.readings().len(), 1);
    }
}
