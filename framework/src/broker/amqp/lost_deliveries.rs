//! Deliveries whose channel is lost, and the redeliveries that join them.
//!
//! When a channel is lost, e.g. because a task ran for longer than the broker's consumer timeout,
//! the broker delivers all unacknowledged messages of the channel again, while this process still
//! has them. A redelivery of such a message is not given to the consumer. It *joins* the delivery
//! that this process has: it waits, and is settled like that one.
//!
//! What must stay true:
//! - Only a redelivery joins, only a delivery of a lost channel is joined, and only by one
//!   redelivery at a time. So for each message that is acknowledged without being handled, an equal
//!   message was handled whose own acknowledgement was lost. This also holds if a producer has
//!   published the same message twice: equal messages have the same effect, so it does not matter
//!   which of them the broker forgets.
//! - If the delivery that was joined is returned, its redelivery is given to the consumer.
//! - The memory is bounded: one entry for each delivery that the consumers still have, and
//!   [`ACKED`] for those that were acknowledged before they came again.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::broker::{Headers, Settlement};

/// How long the redelivery of an acknowledged delivery is awaited. The broker may need longer than
/// this process to notice that a connection is lost, by some heartbeats.
const ACKED_FOR: Duration = Duration::from_mins(2);
/// How many acknowledged deliveries are remembered at most, and how many bytes of them.
const ACKED: usize = 10_000;
const ACKED_BYTES: usize = 32 << 20;

/// What a message consists of. Equal messages are the same task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub body: Bytes,
    pub headers: Headers,
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.body.hash(state);
    }
}

/// Sends settlements to a channel: each is the tag of a delivery and what happens to it.
pub type Settlements = mpsc::UnboundedSender<(u64, Settlement)>;

/// A delivery, by the number of its channel and its tag.
pub type DeliveryId = (u64, u64);

/// A delivery that was open when its channel was lost.
pub struct Left {
    pub tag: u64,
    pub content: Content,
    /// Whether the consumer has acknowledged it, although the broker does not know.
    pub is_acked: bool,
}

/// What happens to a redelivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It is a message that the consumer does not have.
    No,
    /// It has joined a delivery that the consumer still has. It is settled when that one is.
    Open,
    /// The consumer has acknowledged the message, so it must be acknowledged.
    Acked,
}

/// The deliveries of lost channels that are still open, or whose acknowledgement was lost with
/// their channel.
#[derive(Default)]
pub struct LostDeliveries(Mutex<State>);

#[derive(Default)]
struct State {
    by_message: HashMap<Message, Vec<Lost>>,
    messages: HashMap<DeliveryId, Message>,
    /// The acknowledged ones in the order of their acknowledgement, with its time. Some may have
    /// come again since.
    acked: VecDeque<(DeliveryId, Instant)>,
    acked_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Message {
    pipe: Arc<str>,
    content: Content,
}

struct Lost {
    id: DeliveryId,
    is_acked: bool,
    joined_by: Option<Redelivery>,
}

struct Redelivery {
    id: DeliveryId,
    settlements: Settlements,
}

impl LostDeliveries {
    /// Adds the deliveries that were left when a channel was lost. `collect` returns them.
    /// Settlements that come meanwhile from other threads wait until they are added.
    pub fn channel_lost(
        &self,
        channel: u64,
        pipe: &Arc<str>,
        now: Instant,
        collect: impl FnOnce() -> Vec<Left>,
    ) {
        let mut state = self.lock();
        for lost in state.by_message.values_mut().flatten() {
            // Its redelivery comes again as well.
            lost.joined_by.take_if(|joined| joined.id.0 == channel);
        }
        for left in collect() {
            state.add((channel, left.tag), pipe, left, now);
        }
    }

    /// Lets a redelivery join an equal delivery of a lost channel, if there is one.
    pub fn join(
        &self,
        id: DeliveryId,
        pipe: &Arc<str>,
        content: &Content,
        settlements: &Settlements,
        now: Instant,
    ) -> Joined {
        let mut state = self.lock();
        state.forget_acked(now);
        if state.messages.is_empty() {
            return Joined::No;
        }
        let message = Message {
            pipe: Arc::clone(pipe),
            content: content.clone(),
        };
        let equal = state.by_message.get_mut(&message);
        let Some(lost) = equal
            .into_iter()
            .flatten()
            .find(|lost| lost.joined_by.is_none())
        else {
            return Joined::No;
        };
        if lost.is_acked {
            let acked = lost.id;
            state.remove(acked);
            return Joined::Acked;
        }
        lost.joined_by = Some(Redelivery {
            id,
            settlements: settlements.clone(),
        });
        Joined::Open
    }

    /// Settles a delivery of a lost channel, and the redelivery that has joined it.
    pub fn settle(&self, id: DeliveryId, settlement: Settlement, now: Instant) {
        let mut state = self.lock();
        let Some(message) = state.messages.get(&id).cloned() else {
            return;
        };
        let lost = state.by_message.get_mut(&message);
        let Some(lost) = lost.into_iter().flatten().find(|lost| lost.id == id) else {
            return;
        };
        let joined = lost.joined_by.take();
        // Sending fails if the channel of the redelivery is closed, which settles nothing: then the
        // message comes again.
        let is_told = joined.is_some_and(
            |Redelivery {
                 id: (_, tag),
                 settlements,
             }| { settlements.send((tag, settlement)).is_ok() },
        );
        if is_told || settlement != Settlement::Ack {
            state.remove(id);
        } else {
            lost.is_acked = true;
            state.remember_acked(id, message.weight(), now);
        }
    }

    /// Returns whether the broker has delivered the message of a lost delivery to this process
    /// again: it has joined.
    pub fn is_joined(&self, id: DeliveryId) -> bool {
        let state = self.lock();
        let equal = state.messages.get(&id);
        let equal = equal.and_then(|message| state.by_message.get(message));
        let lost = equal.and_then(|equal| equal.iter().find(|lost| lost.id == id));
        lost.is_some_and(|lost| lost.joined_by.is_some())
    }

    /// Returns how many deliveries of a pipe are open and not joined: their redeliveries may come.
    pub fn awaited(&self, pipe: &str) -> usize {
        let state = self.lock();
        let of_pipe = state
            .by_message
            .iter()
            .filter(|(message, _)| *message.pipe == *pipe);
        of_pipe
            .flat_map(|(_, lost)| lost)
            .filter(|lost| !lost.is_acked && lost.joined_by.is_none())
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn add(&mut self, id: DeliveryId, pipe: &Arc<str>, left: Left, now: Instant) {
        let Left {
            content, is_acked, ..
        } = left;
        let message = Message {
            pipe: Arc::clone(pipe),
            content,
        };
        self.messages.insert(id, message.clone());
        let weight = message.weight();
        self.by_message.entry(message).or_default().push(Lost {
            id,
            is_acked,
            joined_by: None,
        });
        if is_acked {
            self.remember_acked(id, weight, now);
        }
    }

    fn remember_acked(&mut self, id: DeliveryId, weight: usize, now: Instant) {
        self.acked.push_back((id, now));
        self.acked_bytes += weight;
        self.forget_acked(now);
    }

    /// Forgets the oldest acknowledged deliveries while they are too old or too many.
    fn forget_acked(&mut self, now: Instant) {
        while let Some(&(id, since)) = self.acked.front()
            && (self.acked.len() > ACKED
                || self.acked_bytes > ACKED_BYTES
                || now.duration_since(since) > ACKED_FOR
                || !self.messages.contains_key(&id))
        {
            self.remove(id);
            self.acked.pop_front();
        }
    }

    fn remove(&mut self, id: DeliveryId) {
        let Some(message) = self.messages.remove(&id) else {
            return;
        };
        if let Some(equal) = self.by_message.get_mut(&message) {
            if equal.iter().any(|lost| lost.id == id && lost.is_acked) {
                self.acked_bytes -= message.weight();
            }
            equal.retain(|lost| lost.id != id);
            if equal.is_empty() {
                self.by_message.remove(&message);
            }
        }
    }
}

impl Message {
    /// Returns about how much memory it needs, in bytes.
    fn weight(&self) -> usize {
        self.content.body.len() + 300
    }
}

#[cfg(test)]
mod tests;
