//! The relay: publishes the messages of the outbox.
//!
//! The outbox contains the start messages of new jobs, the tasks of resumed jobs, tasks that were
//! let go because of a condition, and dead letters that are sent again. The relay wakes when the
//! store signals new messages or when the next message is due. It claims the oldest messages,
//! publishes them all, and deletes those that the broker confirms from the outbox. Most confirms
//! come soon, and their messages are deleted together; meanwhile it claims no others. It does not
//! wait for those that take longer. Messages that do not fit in their pipe are held in the outbox
//! until there is room ([`rooms`](super::rooms)).
//!
//! What must stay true:
//! - A message leaves the outbox only after its confirm. After a crash in between, it is sent
//!   twice; it is never lost.
//! - Several relays may share one store, but only one handles a message at a time. It holds a lease
//!   and renews it while it waits for the confirm. The lease of a crashed relay expires; a relay
//!   that is stopped releases its leases.
//! - A message that the broker refuses waits longer after each attempt. It never delays other
//!   messages, and neither does one that the broker does not confirm, up to a number.
//! - A message that can never be sent fails its task, and with a start message its job.
//! - The messages that a relay holds are bounded by their bytes, however many jobs start.
//! - The relay does not poll: it sends no query while it has nothing to do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

use contract::headers::{CAUSE_HEADER, ORIGIN_HEADER, REASON_HEADER, WORKER_HEADER};
use contract::rest::LetterCause;
use contract::{FailedItem, JobTaskId, ReportFailure, ReservedPipes, TaskMessage};
use framework::broker::{Broker, Confirm, Outgoing, PublishError};
use framework::clock::Clock;
use framework::handler::UNDELIVERABLE;
use framework::health::Health;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use store::{
    Claim, EventKind, Header, Keep, NewLetter, OutboxMessage, Store, StoreError, TrackingEvent,
};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::letters::Found;
use crate::outbox::rooms::{Free, Rooms};
use crate::pipes::PipesState;
use crate::pipes::stored_message::{to_headers, to_outgoing};
use crate::wakeup::{at, backoff, wait};

/// The maximum number of messages that are claimed and published at a time.
const BATCH: usize = 500;
/// The maximum number of messages without a confirm. While there are as many, no further ones are
/// claimed.
const MOST_OPEN: usize = 5000;
/// The bytes of their bodies after which no further message is claimed.
const MOST_BYTES: u64 = 32 * 1024 * 1024;
/// The bytes after which no further one is claimed at the same time: the database hands over each
/// body in several copies.
const BATCH_BYTES: u64 = 8 * 1024 * 1024;
/// How long the relay waits for the confirms of the messages that it has published before it goes
/// on.
const MOMENT: Duration = Duration::from_millis(100);
/// How long a claim lasts without renewal. The messages of a crashed relay wait this long.
const LEASE: Duration = Duration::from_secs(10);
/// How often claims are renewed, and how long a message may be without a confirm before that is
/// reported.
const RENEWAL: Duration = Duration::from_secs(3);
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
    /// How much fits in the pipes.
    rooms: Rooms<'a>,
    /// The pipes that nothing is sent to. A job that was created under other settings may name one.
    reserved: &'a ReservedPipes,
    /// The messages that this relay has leased and the broker has not confirmed.
    claimed: BTreeMap<i64, Claimed>,
    /// Those of them that can never be sent, and why.
    impossible: Vec<(i64, Outgoing, PublishError)>,
    /// Those of them that the broker has refused, and how long each must wait.
    refused: Vec<(i64, Duration)>,
    /// Confirmed messages that may still be in the outbox. They must not be published again.
    confirmed: Vec<i64>,
    /// The refusals of messages by their ids, as long as this relay may get them again.
    refusals: HashMap<i64, Refusals>,
}

/// A message that the relay has published.
struct Claimed {
    since: Instant,
    bytes: u64,
}

/// How often the broker has refused a message.
#[derive(Default)]
struct Refusals {
    count: u32,
    /// By when the message is claimed again. If it is not, its job has ended, or another relay has
    /// it.
    until: Option<Instant>,
}

/// Published messages whose confirms are awaited.
type Open = FuturesUnordered<BoxFuture<'static, Answered>>;

/// A published message, and what the broker says.
type Answered = (i64, Outgoing, Result<(), PublishError>);

/// What the relay does next.
enum Next {
    /// Messages may be due.
    Claim,
    /// Pipes may have room for messages that are held.
    Look,
    /// The broker has answered.
    Settle(Answered),
    /// The messages without a confirm need new leases.
    Renew,
}

impl<'a> Relay<'a> {
    pub fn new(
        store: &'a Store,
        broker: &'a dyn Broker,
        pipes: &'a PipesState,
        health: &'a Health,
    ) -> Self {
        Self {
            store,
            broker,
            health,
            rooms: Rooms::new(broker, &pipes.workers, &pipes.gauges),
            reserved: &pipes.reserved,
            claimed: BTreeMap::new(),
            impossible: Vec::new(),
            refused: Vec::new(),
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
        let mut open = Open::new();
        let mut renewal = interval_at(Instant::now() + RENEWAL, RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0;
        let mut due = None;
        let (mut failing_since, mut outage) = (None, None);
        loop {
            let next = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(answered) = open.next() => Next::Settle(answered),
                _ = renewal.tick(), if !open.is_empty() => Next::Renew,
                () = at(self.rooms.next_look()), if self.has_room(&open) => Next::Look,
                goes_on = wait(&mut signal, due, shutdown), if self.has_room(&open) => {
                    if !goes_on {
                        break;
                    }
                    Next::Claim
                }
            };
            let step = async {
                match next {
                    Next::Claim => return self.pass(&mut open).await,
                    Next::Look => self.let_go(&mut open).await?,
                    Next::Settle(answered) => self.settle(answered, &mut open).await?,
                    Next::Renew => self.renew().await?,
                }
                Ok(due)
            };
            let stepped = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                stepped = step => stepped,
            };
            due = match stepped {
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
                    let again = Instant::now() + pause;
                    self.rooms.not_before(again + MIN_DELAY);
                    Some(again)
                }
            };
        }
        self.release_leases().await;
    }

    /// Publishes the oldest messages that are due. Returns when to look again; `None` waits for a
    /// signal.
    async fn pass(&mut self, open: &mut Open) -> Result<Option<Instant>, StoreError> {
        // The previous pass may have failed before it deleted these.
        self.delete_confirmed().await?;
        let limit = BATCH.min(MOST_OPEN - open.len().min(MOST_OPEN));
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let bytes = BATCH_BYTES.min(MOST_BYTES.saturating_sub(self.bytes()));
        let Claim { messages, next_due } = self.store.claim_outbox(limit, bytes, LEASE).await?;
        if messages.is_empty() {
            self.rooms.know(self.store.held_pipes().await?);
            let forgotten = self.forget_refusals();
            self.tell();
            let due = next_due.and_then(|due| Instant::now().checked_add(due.max(MIN_DELAY)));
            return Ok(due.into_iter().chain(forgotten).min());
        }
        // If a lease has expired that could not be renewed, the broker has the message already.
        let new = messages.into_iter();
        let new = new.filter(|message| !self.claimed.contains_key(&message.id));
        let (mut fitting, mut held, mut free) = (Vec::new(), Vec::new(), HashMap::new());
        for message in new.collect::<Vec<_>>() {
            if self.rooms.admits(&message.pipe, &mut free).await {
                fitting.push(message);
            } else {
                held.push((message.id, self.rooms.hold(&message)));
            }
        }
        self.send(fitting, open).await?;
        self.store.hold_outbox(&held).await?;
        // There may be more.
        Ok(Some(Instant::now()))
    }

    /// Publishes messages that were held for pipes which have room now.
    async fn let_go(&mut self, open: &mut Open) -> Result<(), StoreError> {
        self.delete_confirmed().await?;
        let mut is_over = false;
        for Free {
            pipe,
            after,
            messages,
        } in self.rooms.look().await
        {
            let limit = BATCH.min(MOST_OPEN - open.len().min(MOST_OPEN)) as u64;
            let bytes = BATCH_BYTES.min(MOST_BYTES.saturating_sub(self.bytes()));
            if limit == 0 || bytes == 0 {
                break;
            }
            let limit = messages.min(limit);
            let claim = self
                .store
                .claim_held(&pipe, &after, limit, bytes, LEASE)
                .await?;
            is_over |= claim.is_empty();
            self.rooms.let_go(&pipe, &claim);
            let messages = claim.into_iter().map(|held| held.message);
            let messages = messages.filter(|message| !self.claimed.contains_key(&message.id));
            let messages = messages.collect();
            self.send(messages, open).await?;
        }
        if is_over {
            // Or others had the messages at that moment.
            self.rooms.know(self.store.held_pipes().await?);
        }
        self.rooms.pause();
        Ok(())
    }

    /// Publishes messages, and waits a moment for their confirms.
    async fn send(
        &mut self,
        messages: Vec<OutboxMessage>,
        open: &mut Open,
    ) -> Result<(), StoreError> {
        let mut new: BTreeSet<i64> = messages.iter().map(|message| message.id).collect();
        for message in messages {
            open.push(self.publish(message));
        }
        let answers = async {
            while !new.is_empty()
                && let Some(answered) = open.next().await
            {
                new.remove(&answered.0);
                self.note(answered);
            }
        };
        // The others are settled as they come.
        let _ = timeout(MOMENT, answers).await;
        self.save().await
    }

    /// Takes what the broker has answered so far, this first.
    async fn settle(&mut self, first: Answered, open: &mut Open) -> Result<(), StoreError> {
        let mut next = Some(first);
        while let Some(answered) = next {
            self.note(answered);
            next = open.next().now_or_never().flatten();
        }
        self.save().await
    }

    /// Renews the leases of the messages without a confirm.
    async fn renew(&self) -> Result<(), StoreError> {
        self.tell();
        let leases: Vec<_> = self.claimed.keys().map(|id| (*id, LEASE)).collect();
        let renewed = self.store.lease_outbox(&leases).await;
        renewed.inspect_err(|error| {
            tracing::warn!(%error, code = error.code().as_str(), "cannot renew the leases of the outbox while the broker is slow; messages may be sent twice");
        })
    }

    fn has_room(&self, open: &Open) -> bool {
        open.len() < MOST_OPEN && self.bytes() < MOST_BYTES
    }

    /// Returns the bytes of the messages without a confirm.
    fn bytes(&self) -> u64 {
        self.claimed.values().map(|claimed| claimed.bytes).sum()
    }

    /// Tells the health checks whether the broker refuses messages, or leaves them without a
    /// confirm.
    fn tell(&self) {
        let slow = |claimed: &&Claimed| claimed.since.elapsed() >= RENEWAL;
        let slow = self.claimed.values().filter(slow).count();
        let mut reasons = Vec::new();
        if !self.refusals.is_empty() {
            let count = self.refusals.len();
            reasons.push(format!(
                "the broker refuses {count} messages; they are sent again"
            ));
        }
        if slow > 0 {
            reasons.push(format!(
                "{slow} messages wait for the broker to confirm them"
            ));
        }
        if reasons.is_empty() {
            self.health.recover(OUTBOX, SOURCE);
        } else {
            self.health.degrade(OUTBOX, SOURCE, reasons.join("; "));
        }
    }

    /// Forgets the refusals of messages that were not claimed again in time. Returns when the next
    /// one is forgotten.
    fn forget_refusals(&mut self) -> Option<Instant> {
        let (claimed, now) = (&self.claimed, Instant::now());
        self.refusals.retain(|id, refusals| {
            claimed.contains_key(id) || refusals.until.is_none_or(|until| until > now)
        });
        let waiting = self.refusals.iter();
        let waiting = waiting.filter(|(id, _)| !claimed.contains_key(id));
        waiting.filter_map(|(_, refusals)| refusals.until).min()
    }

    async fn delete_confirmed(&mut self) -> Result<(), StoreError> {
        if !self.confirmed.is_empty() {
            self.store.outbox_sent(&self.confirmed).await?;
            self.confirmed.clear();
        }
        Ok(())
    }

    /// Publishes a message. Returns what the broker says.
    fn publish(&mut self, message: OutboxMessage) -> BoxFuture<'static, Answered> {
        let OutboxMessage {
            id,
            pipe,
            body,
            headers,
            ..
        } = message;
        let claimed = Claimed {
            since: Instant::now(),
            bytes: body.len() as u64,
        };
        self.claimed.insert(id, claimed);
        let message = to_outgoing(pipe, body, headers);
        let confirm = match self.reserved.check(&message.pipe, None) {
            Ok(()) => self.broker.publish(message.clone()),
            Err(refusal) => Confirm::ready(Err(PublishError::impossible(&*message.pipe, refusal))),
        };
        async move { (id, message, confirm.await) }.boxed()
    }

    /// Notes what the broker has answered.
    fn note(&mut self, (id, message, outcome): Answered) {
        match outcome {
            Ok(()) => self.note_sent(id),
            Err(error) if error.is_permanent() => self.impossible.push((id, message, error)),
            Err(error) => self.note_refusal(id, &error),
        }
    }

    /// Notes that a message has nothing to do in the outbox any more.
    fn note_sent(&mut self, id: i64) {
        self.refusals.remove(&id);
        self.claimed.remove(&id);
        self.confirmed.push(id);
    }

    /// Counts a refusal. The message must wait.
    fn note_refusal(&mut self, id: i64, error: &PublishError) {
        if self.refusals.len() >= MAX_REFUSED {
            self.refusals.clear();
        }
        let refusals = self.refusals.entry(id).or_default();
        let pause = backoff(refusals.count);
        refusals.count += 1;
        refusals.until = Some(Instant::now() + pause + LEASE);
        self.refused.push((id, pause));
        tracing::warn!(message = id, %error, ?pause, "the broker refused a message; it stays in the outbox");
    }

    /// Saves what was noted: fails the tasks that can never be sent, deletes the confirmed
    /// messages, and lets the refused ones wait.
    async fn save(&mut self) -> Result<(), StoreError> {
        for (id, message, error) in mem::take(&mut self.impossible) {
            match self.fail_task(&message, error).await {
                Ok(()) => self.note_sent(id),
                Err(error) => self.note_refusal(id, &error),
            }
        }
        let refused = mem::take(&mut self.refused);
        let saved = async {
            self.delete_confirmed().await?;
            // A refused message can be claimed again when this lease expires.
            self.store.lease_outbox(&refused).await
        };
        let saved = saved.await;
        for (id, _) in &refused {
            self.claimed.remove(id);
        }
        self.tell();
        saved
    }

    /// Keeps a message that can never be sent as a dead letter, and fails its task, so that the
    /// message has nothing to do in the outbox any more. Returns the error if the message must
    /// stay: the store is not available, or has no room for a letter without a task. A task fails
    /// also without a letter.
    async fn fail_task(&self, unsent: &Outgoing, error: PublishError) -> Result<(), PublishError> {
        let letter = unroutable(unsent, &error);
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
        let message = TaskMessage::decode(&unsent.body).ok();
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
            // The message is claimed again later.
            Ok(recorded) if !recorded.left_out.is_empty() => Err(error),
            Ok(_) => Ok(()),
            Err(unrecorded) => {
                tracing::warn!(error = %unrecorded, code = unrecorded.code().as_str(), "cannot record the failure; trying again");
                Err(error)
            }
        }
    }

    /// Releases all leases so that other relays can claim the messages at once.
    async fn release_leases(&mut self) {
        let claimed = mem::take(&mut self.claimed);
        self.impossible.clear();
        self.refused.clear();
        let releasing = async {
            self.delete_confirmed().await?;
            let leases: Vec<_> = claimed.keys().map(|id| (*id, Duration::ZERO)).collect();
            self.store.lease_outbox(&leases).await
        };
        match timeout(RELEASE_LIMIT, releasing).await {
            Ok(Ok(())) => {}
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
fn unroutable(unsent: &Outgoing, error: &PublishError) -> NewLetter {
    let mut headers = to_headers(&unsent.headers);
    let reason = error.to_string();
    let explanation = [
        (CAUSE_HEADER, LetterCause::Unroutable.name()),
        (REASON_HEADER, &reason),
        (ORIGIN_HEADER, &unsent.pipe),
        (WORKER_HEADER, FAILURE_SOURCE),
    ];
    headers
        .extend(explanation.map(|(name, value)| (name.to_owned(), Header::Text(value.to_owned()))));
    let found = Found {
        pipe: &unsent.pipe,
        body: unsent.body.clone(),
        headers,
        sent: None,
    };
    found.into_letter(usize::MAX)
}
