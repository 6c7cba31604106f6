//! A bundle that was taken apart: each member is a delivery of its own, and the last one that is
//! settled settles the bundle.
//!
//! What must stay true: a bundle that comes back to a process that still has it changes nothing.
//! The broker's connection joins both deliveries ([`Delivery::is_gone`]): members that run go on,
//! those that have ended do not run again, and the settlement of the first delivery settles the
//! second one. A member that is given back while the bundle is gone waits until the bundle is there
//! again: another process that receives the bundle sends the member as well. If that message
//! reaches the process that still runs the member, or has ended it, it [joins](KnownBundles::join)
//! the member and is settled with it.

mod known;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use contract::headers::RETURNED_HEADER;
use contract::{Bundle, BundleError, TaskMessage};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

pub(crate) use self::known::KnownBundles;
use self::known::{GoneBundle, MemberState, index_of};
use super::{Pipeline, REDELIVERY_DELAY};
use crate::RetryPolicy;
use crate::broker::{
    Broker, Delivery, HeaderValue, Headers, Members, Outgoing, PublishError, Settlement, Settler,
};
use crate::steps::bundles::headers_of_member;
use crate::steps::publish::{PendingPublish, await_confirms};

/// How long a member waits for a slot before it goes on as a message of its own.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// The pause before a member is published again which the broker refuses for longer than the retry
/// policy tells.
const PAUSE: Duration = Duration::from_secs(1);
/// Publishes members as messages of their own.
#[derive(Debug, Clone)]
pub(crate) struct OnTheirOwn {
    pub broker: Arc<dyn Broker>,
    /// The pipe that the members are for.
    pub input: Arc<str>,
    pub retry: RetryPolicy,
    /// What the runtime waits for when it stops.
    pub tasks: TaskTracker,
    /// Runs them, because a delivery may be dropped on a thread that is none of the runtime's.
    pub runtime: Handle,
    /// Cancelled when the runtime stops waiting for members that the broker refuses.
    pub shutdown: CancellationToken,
    /// Cancelled when the runtime stops waiting for confirms, too.
    pub abort: CancellationToken,
    pub known: KnownBundles,
}

/// A bundle whose members are deliveries.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Itself, for what outlives a settlement.
    me: Weak<Self>,
    bundle: Arc<Bundle>,
    body: Bytes,
    headers: Headers,
    /// When the process took it up.
    arrived: Instant,
    /// How long a member stays away that goes on by itself. If the bundle has come back, that gives
    /// it time to be acknowledged: a member that kills this process before would be sent once more
    /// with it, and again with each death.
    delay: Option<Duration>,
    on_their_own: OnTheirOwn,
    open: Mutex<Open>,
}

/// What is open of a bundle.
#[derive(Debug)]
struct Open {
    /// The bundle; `None` once it is settled.
    delivery: Option<Delivery>,
    /// How many members are neither settled nor confirmed as messages of their own.
    members: usize,
    /// The members that go on by themselves and whose confirms nobody awaits yet.
    published: Vec<PendingPublish>,
    /// Something awaits their confirms.
    is_awaited: bool,
    /// What has become of each member.
    states: Vec<MemberState>,
    /// How many of them were given back.
    given_back: usize,
    /// The messages that have joined a member, with its index.
    joined: Vec<(usize, Delivery)>,
    /// A member could not be published, because the broker is closed or the runtime stops.
    is_lost: bool,
}

impl Open {
    fn note(&mut self, index: usize, state: MemberState) {
        if let Some(member) = self.states.get_mut(index) {
            *member = state;
        }
    }
}

impl Unpacked {
    /// Takes a bundle apart, and returns its members to be handled here. There are none if the
    /// bundle has come back: then they are on their way as messages of their own. Returns a
    /// delivery that is no bundle, and why.
    pub fn take_apart(
        delivery: Delivery,
        on_their_own: &OnTheirOwn,
    ) -> Result<Vec<Delivery>, Box<(Delivery, BundleError)>> {
        let body = delivery.body();
        let bundle = match Bundle::decode(&body) {
            Ok(bundle) => Arc::new(bundle),
            Err(error) => return Err(Box::new((delivery, error))),
        };
        let (members, sent) = (bundle.members.len(), delivery.sent);
        let came_back = delivery.delivery_count > 0;
        let unpacked = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            bundle,
            body,
            headers: delivery.headers.clone(),
            arrived: Instant::now(),
            delay: came_back.then_some(REDELIVERY_DELAY),
            on_their_own: on_their_own.clone(),
            open: Mutex::new(Open {
                delivery: Some(delivery),
                members,
                published: Vec::new(),
                is_awaited: false,
                states: vec![MemberState::Open; members],
                given_back: 0,
                joined: Vec::new(),
                is_lost: false,
            }),
        });
        if members == 0 {
            unpacked.settled(unpacked.open(), 0);
        }
        let pipe = &on_their_own.input;
        let of_member = |index| {
            let headers = unpacked.headers_of(index);
            Delivery::of_member(
                Arc::clone(pipe),
                headers,
                Arc::<Self>::clone(&unpacked),
                index,
            )
            .sent_at(sent)
        };
        let deliveries: Vec<Delivery> = (0..members).map(of_member).collect();
        if came_back {
            let states = on_their_own.known.take(&unpacked.body);
            for (index, delivery) in deliveries.into_iter().enumerate() {
                let state = states.as_ref().and_then(|states| states.get(index));
                if state.is_none_or(|state| *state == MemberState::GivenBack) {
                    // It goes on by itself.
                    delivery.requeue();
                } else {
                    delivery.ack();
                }
            }
            return Ok(Vec::new());
        }
        on_their_own.known.hold(&unpacked);
        Ok(deliveries)
    }

    fn headers_of(&self, index: usize) -> Headers {
        let member = self.bundle.members.get(index);
        let label = member.and_then(|member| member.label.as_deref());
        let number = member.map_or(0, |member| member.number);
        headers_of_member(&self.headers, number, label)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// Keeps the delivery of a message until its member is settled; acknowledges it if that has
    /// ended. Returns it if it is no member that this process has.
    fn join(&self, message: &TaskMessage, delivery: Delivery) -> Option<Delivery> {
        let Some(index) = index_of(message, &self.bundle, &self.body) else {
            return Some(delivery);
        };
        let mut open = self.open();
        match open.states.get(index) {
            Some(MemberState::Open) => open.joined.push((index, delivery)),
            Some(MemberState::Ended) => {
                drop(open);
                delivery.ack();
            }
            _ => return Some(delivery),
        }
        None
    }

    /// Publishes a member as a message of its own. It is settled when that is confirmed, whether or
    /// not others still run.
    fn send_on(&self, open: &mut Open, index: usize, message: &TaskMessage) {
        let OnTheirOwn { broker, input, .. } = &self.on_their_own;
        open.note(index, MemberState::Sent);
        let mut headers = self.headers_of(index);
        if self.delay.is_some() {
            headers.set(RETURNED_HEADER, HeaderValue::Text("true".into()));
        }
        let message = Outgoing {
            headers,
            delay: self.delay,
            ..Outgoing::new(Arc::clone(input), message.encode())
        };
        open.published.push(PendingPublish::new(&**broker, message));
        if open.is_awaited {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        open.is_awaited = true;
        let (to, abort) = (&self.on_their_own, self.on_their_own.abort.clone());
        // Dropped on `abort`, the bundle goes back to the broker.
        let settled = async move { abort.run_until_cancelled(me.await_confirms()).await };
        to.tasks.spawn_on(settled, &to.runtime);
    }

    /// Takes the members whose confirms nobody awaits yet, for the one that does from now on. If
    /// there are none, nobody does.
    fn take_published(&self) -> Option<Vec<PendingPublish>> {
        let mut open = self.open();
        open.is_awaited = !open.published.is_empty();
        open.is_awaited.then(|| std::mem::take(&mut open.published))
    }

    /// Awaits the confirms of the members that are published, until there are no more.
    async fn await_confirms(self: Arc<Self>) {
        while let Some(mut published) = self.take_published() {
            let members = published.len();
            for member in &mut published {
                member.at_once_if_refused(&*self.on_their_own.broker).await;
            }
            let taken = self.on_their_own.until_taken(published).await;
            let mut open = self.open();
            open.is_lost |= taken.is_err();
            self.settled(open, members);
        }
    }

    /// Counts so many members of the bundle as settled. The last one settles the bundle.
    fn settled(&self, mut open: MutexGuard<'_, Open>, members: usize) {
        open.members = open.members.saturating_sub(members);
        if open.given_back > 0 && !is_gone(&open) {
            open.given_back = 0;
            for index in 0..open.states.len() {
                let is_given_back = open.states.get(index) == Some(&MemberState::GivenBack);
                if let Some(message) = is_given_back.then(|| self.message(index)).flatten() {
                    self.send_on(&mut open, index, &message);
                }
            }
        }
        if open.members > open.given_back {
            return;
        }
        let Some(delivery) = open.delivery.take() else {
            return;
        };
        let members = std::mem::take(&mut open.states);
        let (is_complete, is_lost) = (open.given_back == 0, open.is_lost);
        drop(open);
        if is_lost {
            delivery.requeue();
            return;
        }
        if delivery.is_gone() || !is_complete {
            self.on_their_own.known.remember(GoneBundle {
                bundle: Arc::clone(&self.bundle),
                body: self.body.clone(),
                members,
            });
        }
        if is_complete {
            delivery.ack();
        } else {
            delivery.requeue();
        }
    }
}

/// Returns whether the broker has taken the bundle back.
fn is_gone(open: &Open) -> bool {
    open.delivery.as_ref().is_none_or(Delivery::is_gone)
}

impl OnTheirOwn {
    /// Returns how the members of bundles for a worker are sent.
    pub fn of<H>(pipeline: &Pipeline<H>) -> Self {
        Self {
            broker: Arc::clone(&pipeline.broker),
            input: pipeline.pipes.input.as_str().into(),
            retry: pipeline.retry.clone(),
            tasks: pipeline.running.clone(),
            runtime: Handle::current(),
            shutdown: pipeline.shutdown.clone(),
            abort: pipeline.abort.clone(),
            known: KnownBundles::default(),
        }
    }

    /// Waits until the broker has taken these members. Those that it refuses are published again
    /// until the runtime stops: if the bundle came back instead, all others would be sent twice.
    /// Returns an error if the broker is closed, or the runtime stops.
    async fn until_taken(&self, mut published: Vec<PendingPublish>) -> Result<(), PublishError> {
        loop {
            let confirmed =
                await_confirms(&mut published, &*self.broker, &self.retry, &self.shutdown);
            let reason = match confirmed.await {
                Ok(()) => return Ok(()),
                Err(closed @ PublishError::Closed) => return Err(closed),
                Err(reason) => reason,
            };
            warn!(pipe = %self.input, members = published.len(), %reason, "members of a bundle cannot be sent one by one; they are sent again");
            let pause = tokio::time::sleep(PAUSE);
            if self.shutdown.run_until_cancelled(pause).await.is_none() {
                return Err(PublishError::Closed);
            }
            for member in &mut published {
                member.anew_if_not_taken(&*self.broker);
            }
        }
    }
}

impl Members for Unpacked {
    fn message(&self, index: usize) -> Option<TaskMessage> {
        self.bundle.message(index, &self.body)
    }

    fn bytes(&self, index: usize) -> usize {
        let member = self.bundle.members.get(index);
        member.map_or(0, |member| member.data.len())
    }

    fn waits_until(&self) -> Instant {
        self.arrived + PATIENCE
    }
}

impl Settler for Unpacked {
    fn settle(&self, tag: u64, settlement: Settlement) {
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        let mut open = self.open();
        let joined = |joined: &mut (usize, Delivery)| joined.0 == index;
        let joined: Vec<_> = open.joined.extract_if(.., joined).collect();
        let is_given_back = settlement == Settlement::Requeue && joined.is_empty();
        let message = is_given_back.then(|| self.message(index)).flatten();
        match message {
            None => {
                open.note(
                    index,
                    match settlement {
                        Settlement::Ack | Settlement::Reject => MemberState::Ended,
                        // By the message that has joined.
                        Settlement::Requeue => MemberState::Sent,
                    },
                );
                self.settled(open, 1);
            }
            Some(_) if is_gone(&open) => {
                open.note(index, MemberState::GivenBack);
                open.given_back += 1;
                self.settled(open, 0);
            }
            Some(message) => self.send_on(&mut open, index, &message),
        }
        for (_, delivery) in joined {
            match settlement {
                Settlement::Ack => delivery.ack(),
                Settlement::Requeue => delivery.requeue(),
                Settlement::Reject => delivery.reject(),
            }
        }
    }

    fn is_gone(&self, tag: u64) -> bool {
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        let open = self.open();
        let mut joined = open.joined.iter().filter(|(joined, _)| *joined == index);
        is_gone(&open) && joined.all(|(_, delivery)| delivery.is_gone())
    }
}

#[cfg(test)]
mod tests;
