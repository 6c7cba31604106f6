//! The relay: what stands in the outbox on its way to the broker.
//!
//! It wakes when the store says so, reads the oldest messages, publishes all, waits for the confirms together, and only
//! then takes the confirmed ones out of the outbox.
//!
//! What must stay true:
//! - A message leaves the outbox only after its confirm. A crash in between sends it twice; nothing loses it.
//! - A message that the broker refuses waits longer each time, by itself: it never holds up another.
//! - Nothing is read while there is nothing to do.

use std::collections::HashMap;
use std::time::Duration;

use framework::broker::Broker;
use futures_util::future::join_all;
use store::{OutboxMessage, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stower::outgoing;

/// How many messages are read and published at a time.
const RUN: u32 = 500;

/// Runs until `shutdown`. What is unconfirmed then stays in the outbox.
pub async fn run(store: &Store, broker: &dyn Broker, shutdown: &CancellationToken) {
    let mut relay = Relay { store, broker, confirmed: Vec::new(), refused: HashMap::new() };
    let mut signal = store.outbox_signal();
    let mut failures = 0;
    let mut due = None;
    while wait(&mut signal, due, shutdown).await {
        let passed = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            passed = relay.pass() => passed,
        };
        due = match passed {
            Ok(next) => {
                failures = 0;
                next
            }
            Err(error) => {
                let pause = pause_after(failures);
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, "the outbox cannot be read; start messages wait until it can");
                }
                // Or until a signal: the store gives one when the database is back.
                Some(Instant::now() + pause)
            }
        };
    }
}

/// How long to wait before something that has failed (`failures` + 1) times is tried again.
pub fn pause_after(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(30);
    FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST)
}

/// Waits for a signal or the time when something is due. False when it is time to stop.
pub async fn wait(signal: &mut tokio::sync::watch::Receiver<u64>, due: Option<Instant>, shutdown: &CancellationToken) -> bool {
    let timer = async {
        match due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => false,
        changed = signal.changed() => changed.is_ok(),
        () = timer => true,
    }
}

struct Relay<'a> {
    store: &'a Store,
    broker: &'a dyn Broker,
    /// With the broker, and perhaps still in the outbox: not to be published again.
    confirmed: Vec<i64>,
    /// Refused messages, by id.
    refused: HashMap<i64, Refusal>,
}

struct Refusal {
    failures: u32,
    due: Instant,
}

impl Relay<'_> {
    /// Publishes what is in the outbox. Answers when to look again without a signal.
    async fn pass(&mut self) -> Result<Option<Instant>, StoreError> {
        // Where the last pass could not.
        self.note_confirmed().await?;
        loop {
            // Refused messages are among the oldest: they must not fill the run.
            let limit = RUN.saturating_add(u32::try_from(self.refused.len()).unwrap_or(u32::MAX));
            let messages = self.store.outbox(limit).await?;
            let full = u32::try_from(messages.len()).is_ok_and(|read| read >= limit);
            if !full {
                // All of the outbox is here: what is not has been dealt with elsewhere.
                self.refused.retain(|id, _| messages.iter().any(|message| message.id == *id));
            }
            self.publish(messages).await;
            self.note_confirmed().await?;
            if !full {
                return Ok(self.refused.values().map(|refusal| refusal.due).min());
            }
        }
    }

    async fn note_confirmed(&mut self) -> Result<(), StoreError> {
        if !self.confirmed.is_empty() {
            self.store.outbox_sent(&self.confirmed).await?;
            self.confirmed.clear();
        }
        Ok(())
    }

    async fn publish(&mut self, messages: Vec<OutboxMessage>) {
        let now = Instant::now();
        let is_due = |message: &OutboxMessage| self.refused.get(&message.id).is_none_or(|refusal| refusal.due <= now);
        let due: Vec<_> = messages.into_iter().filter(is_due).collect();
        let publish = |OutboxMessage { id, pipe, body, headers }| {
            let confirm = self.broker.publish(outgoing(pipe, body, headers));
            async move { (id, confirm.await) }
        };
        for (id, answer) in join_all(due.into_iter().map(publish)).await {
            match answer {
                Ok(()) => {
                    self.refused.remove(&id);
                    self.confirmed.push(id);
                }
                Err(error) => self.note_refused(id, &error),
            }
        }
    }

    fn note_refused(&mut self, id: i64, error: &framework::broker::PublishError) {
        let failures = self.refused.get(&id).map_or(0, |refusal| refusal.failures + 1);
        let pause = pause_after(failures);
        tracing::warn!(message = id, %error, ?pause, "a start message was not taken; it stays in the outbox");
        self.refused.insert(id, Refusal { failures, due: Instant::now() + pause });
    }
}
