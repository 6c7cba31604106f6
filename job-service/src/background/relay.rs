//! The relay: what stands in the outbox on its way to the broker.
//!
//! It wakes when the store says so or the next message is due, claims the oldest messages, publishes all, waits for the confirms
//! together, and only then takes the confirmed ones out of the outbox.
//!
//! What must stay true:
//! - A message leaves the outbox only after its confirm. A crash in between sends it twice; nothing loses it.
//! - Of the relays on one store, one has a message at a time: it holds a lease, which it renews for as long as it waits for the
//!   confirm. A relay that dies gives its messages back by no longer renewing, one that is stopped says so.
//! - A message that the broker refuses waits longer each time, by itself: it never holds up another.
//! - Nothing is read while there is nothing to do.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use framework::broker::Broker;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use store::{Claim, OutboxMessage, Store, StoreError};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::stored_message::to_outgoing;
use super::wakeup::{backoff, wait};

/// How many messages are read and published at a time.
const RUN: u32 = 500;
/// How long messages wait that a relay had which has died.
const LEASE: Duration = Duration::from_secs(10);
/// How long a relay that is stopped tries to give its messages back.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(2);
/// The shortest time after which something is looked for that was just not there.
const IDLE: Duration = Duration::from_millis(5);
/// Of how many refused messages is remembered how often they were refused.
const REFUSALS: usize = 10_000;

/// Runs until `shutdown`. What is unconfirmed then stays in the outbox.
pub async fn run(store: &Store, broker: &dyn Broker, shutdown: &CancellationToken) {
    let mut relay = Relay {
        store,
        broker,
        claimed: BTreeSet::new(),
        confirmed: Vec::new(),
        refusals: HashMap::new(),
    };
    let mut signal = store.outbox_signal();
    let mut failures = 0;
    let mut due = None;
    while wait(&mut signal, due, shutdown).await {
        let passed = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            passed = relay.pass() => passed,
        };
        due = match passed {
            Ok(next) => {
                failures = 0;
                next
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, "the outbox cannot be read; start messages wait until it can");
                }
                // Or until a signal: the store gives one when the database is back.
                Some(Instant::now() + pause)
            }
        };
    }
    relay.give_back().await;
}

struct Relay<'a> {
    store: &'a Store,
    broker: &'a dyn Broker,
    /// Leased to this relay, and not known to be with the broker.
    claimed: BTreeSet<i64>,
    /// With the broker, and perhaps still in the outbox: not to be published again.
    confirmed: Vec<i64>,
    /// How often messages have been refused, by id.
    refusals: HashMap<i64, u32>,
}

impl Relay<'_> {
    /// Publishes what is due in the outbox. Answers when to look again without a signal.
    async fn pass(&mut self) -> Result<Option<Instant>, StoreError> {
        // Where the last pass could not.
        self.note_confirmed().await?;
        loop {
            let Claim { messages, next_due } = self.store.claim_outbox(RUN, LEASE).await?;
            if messages.is_empty() {
                return Ok(next_due.and_then(|due| Instant::now().checked_add(due.max(IDLE))));
            }
            self.claimed
                .extend(messages.iter().map(|message| message.id));
            let refused = self.publish(messages).await;
            self.note_confirmed().await?;
            // A refused message comes again when this lease ends.
            self.store.lease_outbox(&refused).await?;
            for (id, _) in &refused {
                self.claimed.remove(id);
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

    /// Publishes these messages; answers those that were refused, each with how long it is to wait.
    async fn publish(&mut self, messages: Vec<OutboxMessage>) -> Vec<(i64, Duration)> {
        let publish = |OutboxMessage {
                           id,
                           pipe,
                           body,
                           headers,
                       }| {
            let confirm = self.broker.publish(to_outgoing(pipe, body, headers));
            async move { (id, confirm.await) }
        };
        let mut open: BTreeSet<i64> = messages.iter().map(|message| message.id).collect();
        let mut answers: FuturesUnordered<_> = messages.into_iter().map(publish).collect();
        let mut refused = Vec::new();
        let mut renewal = interval_at(Instant::now() + LEASE / 3, LEASE / 3);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                answer = answers.next() => {
                    let Some((id, answer)) = answer else { return refused };
                    open.remove(&id);
                    match answer {
                        Ok(()) => {
                            self.refusals.remove(&id);
                            self.claimed.remove(&id);
                            self.confirmed.push(id);
                        }
                        Err(error) => refused.push((id, self.note_refused(id, &error))),
                    }
                }
                _ = renewal.tick() => {
                    let leases: Vec<_> = open.iter().map(|id| (*id, LEASE)).collect();
                    if let Err(error) = self.store.lease_outbox(&leases).await {
                        tracing::warn!(%error, "the broker is slow and the store is gone; start messages may be sent twice");
                    }
                }
            }
        }
    }

    /// Answers how long the message is to wait.
    fn note_refused(&mut self, id: i64, error: &framework::broker::PublishError) -> Duration {
        if self.refusals.len() >= REFUSALS {
            self.refusals.clear();
        }
        let failures = self.refusals.entry(id).or_default();
        let pause = backoff(*failures);
        *failures += 1;
        tracing::warn!(message = id, %error, ?pause, "a start message was not taken; it stays in the outbox");
        pause
    }

    /// Lets others have at once what this relay does not send any more.
    async fn give_back(mut self) {
        let giving_back = async {
            self.note_confirmed().await?;
            let leases: Vec<_> = self
                .claimed
                .iter()
                .map(|id| (*id, Duration::ZERO))
                .collect();
            self.store.lease_outbox(&leases).await
        };
        match timeout(GIVE_BACK_LIMIT, giving_back).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "start messages could not be given back; they wait for the end of their lease");
            }
            Err(_) => tracing::warn!(
                "start messages could not be given back in time; they wait for the end of their lease"
            ),
        }
    }
}
