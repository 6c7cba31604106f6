//! The relay: publishes the messages of the outbox.
//!
//! The outbox contains the start messages of new jobs and the tasks of resumed jobs. The relay wakes when the store signals new
//! messages or when the next message is due. It claims the oldest messages, publishes them all, awaits their confirms together, and
//! deletes the confirmed ones from the outbox.
//!
//! What must stay true:
//! - A message leaves the outbox only after its confirm. After a crash in between, it is sent twice; it is never lost.
//! - Several relays may share one store, but only one handles a message at a time. It holds a lease and renews it while it waits
//!   for the confirm. The lease of a crashed relay expires; a relay that is stopped releases its leases.
//! - A message that the broker refuses waits longer after each attempt. It never delays other messages.
//! - A message that can never be sent fails its task, and with a start message its job.
//! - The relay does not poll: it sends no query while it has nothing to do.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use contract::headers::{CAUSE_HEADER, ORIGIN_HEADER, REASON_HEADER, WORKER_HEADER};
use contract::rest::LetterCause;
use contract::{FailedItem, JobTaskId, ReportFailure, ReservedPipes, TaskMessage};
use framework::broker::{Broker, Confirm, Headers, PublishError};
use framework::clock::Clock;
use framework::handler::UNDELIVERABLE;
use framework::health::Health;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use store::{
    Claim, EventKind, Header, Keep, NewLetter, OutboxMessage, Store, StoreError, TrackingEvent,
};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::stored_message::{to_headers, to_outgoing};
use super::wakeup::{backoff, wait};
use crate::letters::Found;

/// The maximum number of messages that are claimed and published at a time.
const BATCH: u32 = 500;
/// The bytes of their bodies after which no further message is claimed.
const BATCH_BYTES: u64 = 32 * 1024 * 1024;
/// How long a claim lasts without renewal. The messages of a crashed relay wait this long.
const LEASE: Duration = Duration::from_secs(10);
/// How long a relay that is stopped tries to release its leases.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// The minimum delay before the outbox is read again when no message was due.
const MIN_DELAY: Duration = Duration::from_millis(5);
/// How long the outbox cannot be read before the process is not ready.
const OUTAGE_AFTER: Duration = Duration::from_secs(10);
/// The degradation of an outbox whose messages the broker does not take, and what reports it.
const OUTBOX: &str = "outbox";
const SOURCE: &str = "relay";
/// Whom a failure of the relay names as its source.
const FAILURE_SOURCE: &str = "job-service";
/// The maximum number of messages whose refusals are counted.
const MAX_REFUSED: usize = 10_000;

/// The relay. If it panics, what it knows outlives that.
pub struct Relay<'a> {
    store: &'a Store,
    broker: &'a dyn Broker,
    health: &'a Health,
    /// The pipes that nothing is sent to. A job of an earlier build may name one.
    reserved: &'a ReservedPipes,
    /// The messages that this relay has leased and the broker has not confirmed.
    claimed: BTreeSet<i64>,
    /// Confirmed messages that may still be in the outbox. They must not be published again.
    confirmed: Vec<i64>,
    /// The number of refusals per message id.
    refusals: HashMap<i64, u32>,
}

impl<'a> Relay<'a> {
    pub fn new(
        store: &'a Store,
        broker: &'a dyn Broker,
        reserved: &'a ReservedPipes,
        health: &'a Health,
    ) -> Self {
        Self {
            store,
            broker,
            health,
            reserved,
            claimed: BTreeSet::new(),
            confirmed: Vec::new(),
            refusals: HashMap::new(),
        }
    }

    /// Runs until `shutdown` is cancelled. Unconfirmed messages then stay in the outbox.
    pub async fn run(&mut self, shutdown: &CancellationToken) {
        // After a panic: it has forgotten the confirms of these.
        if !self.claimed.is_empty() {
            self.release_leases().await;
        }
        let mut signal = self.store.outbox_signal();
        let mut failures = 0;
        let mut due = None;
        let (mut failing_since, mut outage) = (None, None);
        while wait(&mut signal, due, shutdown).await {
            let passed = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                passed = self.pass() => passed,
            };
            due = match passed {
                Ok(next) => {
                    (failures, failing_since, outage) = (0, None, None);
                    next
                }
                Err(error) => {
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    if outage.is_none() && since.elapsed() >= OUTAGE_AFTER {
                        let reason = format!("the outbox cannot be read: {error}");
                        outage = Some(self.health.outage("job-service: outbox", reason));
                    }
                    let pause = backoff(failures);
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(%error, code = error.code().as_str(), "cannot read the outbox; its messages wait until the store is available");
                    }
                    // A signal ends the pause early: the store sends one when the database is back.
                    Some(Instant::now() + pause)
                }
            };
        }
        self.release_leases().await;
    }

    /// Publishes every message that is due. Returns when the next one is due; `None` waits for a signal.
    async fn pass(&mut self) -> Result<Option<Instant>, StoreError> {
        // The previous pass may have failed before it deleted these.
        self.delete_confirmed().await?;
        loop {
            let Claim { messages, next_due } =
                self.store.claim_outbox(BATCH, BATCH_BYTES, LEASE).await?;
            if messages.is_empty() {
                return Ok(next_due.and_then(|due| Instant::now().checked_add(due.max(MIN_DELAY))));
            }
            self.claimed
                .extend(messages.iter().map(|message| message.id));
            let refused = self.publish(messages).await;
            self.delete_confirmed().await?;
            // A refused message can be claimed again when this lease expires.
            self.store.lease_outbox(&refused).await?;
            for (id, _) in &refused {
                self.claimed.remove(id);
            }
            self.tell_refusals();
        }
    }

    /// Tells the health checks whether the broker refuses messages.
    fn tell_refusals(&self) {
        match self.refusals.len() {
            0 => self.health.recover(OUTBOX, SOURCE),
            count => {
                let reason = format!("the broker refuses {count} messages; they are sent again");
                self.health.degrade(OUTBOX, SOURCE, reason);
            }
        }
    }

    async fn delete_confirmed(&mut self) -> Result<(), StoreError> {
        if !self.confirmed.is_empty() {
            self.store.outbox_sent(&self.confirmed).await?;
            self.confirmed.clear();
        }
        Ok(())
    }

    /// Publishes the messages and awaits their confirms. Returns the id of each refused message and how long it must wait.
    async fn publish(&mut self, messages: Vec<OutboxMessage>) -> Vec<(i64, Duration)> {
        let (broker, reserved) = (self.broker, self.reserved);
        let publish = |OutboxMessage {
                           id,
                           pipe,
                           body,
                           headers,
                       }| {
            let message = to_outgoing(pipe, body, headers);
            let kept = (
                message.pipe.clone(),
                message.headers.clone(),
                message.body.clone(),
            );
            let confirm = match reserved.check(&message.pipe, None) {
                Ok(()) => broker.publish(message),
                Err(refusal) => {
                    Confirm::ready(Err(PublishError::impossible(&*message.pipe, refusal)))
                }
            };
            async move { (id, kept, confirm.await) }
        };
        let mut open: BTreeSet<i64> = messages.iter().map(|message| message.id).collect();
        let mut confirms: FuturesUnordered<_> = messages.into_iter().map(publish).collect();
        let mut refused = Vec::new();
        let mut renewal = interval_at(Instant::now() + LEASE / 3, LEASE / 3);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                confirm = confirms.next() => {
                    let Some((id, (pipe, headers, body), outcome)) = confirm else { return refused };
                    open.remove(&id);
                    let outcome = match outcome {
                        Err(error) if error.is_permanent() => {
                            let letter = unroutable(&pipe, &headers, &body, &error);
                            self.fail_task(&body, letter, error).await
                        }
                        outcome => outcome,
                    };
                    match outcome {
                        Ok(()) => {
                            self.refusals.remove(&id);
                            self.claimed.remove(&id);
                            self.confirmed.push(id);
                        }
                        Err(error) => refused.push((id, self.count_refusal(id, &error))),
                    }
                }
                _ = renewal.tick() => {
                    let reason = format!("{} messages wait for the broker to confirm them", open.len());
                    self.health.degrade(OUTBOX, SOURCE, reason);
                    let leases: Vec<_> = open.iter().map(|id| (*id, LEASE)).collect();
                    if let Err(error) = self.store.lease_outbox(&leases).await {
                        tracing::warn!(%error, code = error.code().as_str(), "cannot renew the leases of the outbox while the broker is slow; messages may be sent twice");
                    }
                }
            }
        }
    }

    /// Keeps a message that can never be sent as a dead letter, and fails its task, so that the message has nothing to do in the
    /// outbox any more. Returns the error if the message must stay: the store is not available or has no room.
    async fn fail_task(
        &self,
        body: &[u8],
        letter: NewLetter,
        error: PublishError,
    ) -> Result<(), PublishError> {
        let is_of_task = letter.task.is_some();
        match self.store.keep_letters(&[letter]).await {
            Ok(kept) => match kept.first() {
                Some(Keep::Kept | Keep::Known) if !is_of_task => return Ok(()),
                Some(Keep::Kept | Keep::Known) => {}
                _ => {
                    tracing::warn!(%error, "there is no room for a dead letter that can never be sent");
                }
            },
            Err(unkept) => {
                tracing::warn!(error = %unkept, code = unkept.code().as_str(), "cannot keep a message that can never be sent; trying again");
                return Err(error);
            }
        }
        let message = TaskMessage::decode(body).ok();
        let task = message
            .as_ref()
            .and_then(|message| JobTaskId::parse(message.job_task_id()?).ok());
        let Some((message, task)) = message.as_ref().zip(task) else {
            return Err(error);
        };
        tracing::warn!(%task, %error, "a message can never be sent; its task fails");
        let kind = EventKind::Failed(ReportFailure {
            failure_id: Some(UNDELIVERABLE.to_owned()),
            failure_time: Some(Clock::system().now_millis()),
            failure_source: Some(FAILURE_SOURCE.to_owned()),
            failure_message: Some(error.to_string()),
            item: message.task_data.as_deref().map(|data| {
                FailedItem::new(None, data).of_type(message.task_classifier.as_deref())
            }),
            run: None,
        });
        match self.store.record(&[TrackingEvent { task, kind }]).await {
            Ok(_) => Ok(()),
            Err(unrecorded) => {
                tracing::warn!(error = %unrecorded, code = unrecorded.code().as_str(), "cannot record the failure; trying again");
                Err(error)
            }
        }
    }

    /// Counts a refusal. Returns how long the message must wait.
    fn count_refusal(&mut self, id: i64, error: &PublishError) -> Duration {
        if self.refusals.len() >= MAX_REFUSED {
            self.refusals.clear();
        }
        let failures = self.refusals.entry(id).or_default();
        let pause = backoff(*failures);
        *failures += 1;
        tracing::warn!(message = id, %error, ?pause, "the broker refused a message; it stays in the outbox");
        pause
    }

    /// Releases all leases so that other relays can claim the messages at once.
    async fn release_leases(&mut self) {
        let releasing = async {
            self.delete_confirmed().await?;
            let leases: Vec<_> = self
                .claimed
                .iter()
                .map(|id| (*id, Duration::ZERO))
                .collect();
            self.store.lease_outbox(&leases).await
        };
        match timeout(RELEASE_LIMIT, releasing).await {
            Ok(Ok(())) => self.claimed.clear(),
            Ok(Err(error)) => {
                tracing::warn!(%error, code = error.code().as_str(), "cannot release the leases of the outbox; its messages wait until the leases expire");
            }
            Err(_) => tracing::warn!(
                "releasing the leases of the outbox timed out; its messages wait until the leases expire"
            ),
        }
    }
}

/// Returns the dead letter of a message that can never be sent.
fn unroutable(pipe: &str, headers: &Headers, body: &[u8], error: &PublishError) -> NewLetter {
    let mut headers = to_headers(headers);
    let reason = error.to_string();
    let explanation = [
        (CAUSE_HEADER, LetterCause::Unroutable.name()),
        (REASON_HEADER, &reason),
        (ORIGIN_HEADER, pipe),
        (WORKER_HEADER, FAILURE_SOURCE),
    ];
    headers
        .extend(explanation.map(|(name, value)| (name.to_owned(), Header::Text(value.to_owned()))));
    let found = Found {
        pipe,
        body: body.to_vec().into(),
        headers,
        sent: None,
    };
    found.into_letter(usize::MAX)
}
