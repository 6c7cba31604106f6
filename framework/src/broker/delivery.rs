//! Received messages: a [`Consumer`] yields [`Delivery`]s, each of which is settled exactly once.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use contract::TaskMessage;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::message::{Headers, Outgoing};

/// Receives the deliveries of one pipe, in order.
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
    resize: Option<Resize>,
}

/// The prefetch to which every consumer can be resized, unless its broker says otherwise.
pub(crate) const RESIZABLE_TO: u32 = 1000;

/// See [`Delivery::came_back_often`].
const OFTEN: u32 = 5;

/// Changes how many deliveries of a consumer may be unsettled.
type Resize = Box<dyn Fn(u32) + Send + Sync>;

impl Consumer {
    /// Wraps the receiving end of a channel. For implementations of [`Broker`](super::Broker):
    /// dropping the consumer closes the channel, whereupon the implementation stops consuming.
    pub fn new(deliveries: mpsc::Receiver<Delivery>) -> Self {
        Self {
            deliveries,
            resize: None,
        }
    }

    /// Wraps the receiving end of a channel, like [`Self::new`]; `resize` changes the prefetch of
    /// the consumer.
    #[must_use]
    pub fn resizable(
        deliveries: mpsc::Receiver<Delivery>,
        resize: impl Fn(u32) + Send + Sync + 'static,
    ) -> Self {
        Self {
            deliveries,
            resize: Some(Box::new(resize)),
        }
    }

    /// Changes how many further deliveries may be unsettled; 0 counts as 1. The consumer keeps what
    /// it has. Soon after the call, at most `prefetch` deliveries arrive in addition to these. Does
    /// nothing if the broker cannot do it.
    pub fn resize(&self, prefetch: u32) {
        if let Some(resize) = &self.resize {
            resize(prefetch.max(1));
        }
    }

    /// Returns the next delivery, or `None` once the broker is closed.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Waits for one delivery, then appends it and all others that are ready to `into`, at most
    /// `limit`. Returns how many; 0 once the broker is closed.
    pub async fn next_many(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        self.deliveries.recv_many(into, limit).await
    }

    /// Appends the deliveries that are ready now, until `into` holds `limit` of them. Returns how
    /// many were appended.
    pub fn take_waiting(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        let before = into.len();
        while into.len() < limit
            && let Ok(delivery) = self.deliveries.try_recv()
        {
            into.push(delivery);
        }
        into.len() - before
    }
}

/// A message that was handed to this process. It must be settled; dropping an unsettled delivery
/// requeues it.
pub struct Delivery {
    /// The pipe from which it was consumed.
    pub pipe: Arc<str>,
    content: Content,
    /// The headers, as they were published; the broker's own are left out.
    pub headers: Headers,
    /// How often the message was delivered before and came back unsettled. Classic queues of
    /// `RabbitMQ` report at most 1.
    pub delivery_count: u32,
    /// When the message was sent, or its delay was over, in seconds since 1970; `None` if nobody
    /// has noted it.
    pub sent: Option<i64>,
    tag: u64,
    settler: Option<Arc<dyn Settler>>,
}

/// What a delivery carries. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Content {
    /// A message.
    Body(Bytes),
    /// The member of a bundle with this index.
    Member(Arc<dyn Members>, usize),
}

/// The members of a bundle that was taken apart, by their indices. It also settles their
/// deliveries.
pub(crate) trait Members: Settler {
    /// Returns the task message of a member.
    fn message(&self, index: usize) -> Option<TaskMessage>;

    /// Returns the number of bytes of the task data of a member.
    fn bytes(&self, index: usize) -> usize;

    /// Returns until when a member that has not begun waits for a slot.
    fn waits_until(&self) -> Instant;
}

impl Content {
    /// Returns the body of the message. That of a member is made when it is asked for.
    pub fn body(&self) -> Bytes {
        match self {
            Self::Body(body) => body.clone(),
            Self::Member(bundle, index) => {
                let message = bundle.message(*index);
                message.map_or_else(Bytes::new, |message| message.encode().into())
            }
        }
    }

    /// Returns the number of bytes of the body; of a member, those of its task data.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Body(body) => body.len(),
            Self::Member(bundle, index) => bundle.bytes(*index),
        }
    }

    /// Returns the task message, or why the body is none.
    pub fn decode(&self) -> Result<TaskMessage, String> {
        match self {
            Self::Body(body) => TaskMessage::decode(body).map_err(|error| error.to_string()),
            Self::Member(bundle, index) => bundle
                .message(*index)
                .ok_or_else(|| "the bundle has no such member".to_owned()),
        }
    }
}

/// Carries out settlements for an implementation of [`Broker`](super::Broker).
pub trait Settler: Send + Sync {
    /// Settles the delivery with this tag. Must not block.
    fn settle(&self, tag: u64, settlement: Settlement);

    /// Returns whether the broker has taken the delivery with this tag back, because its channel is
    /// lost, and has not delivered the message to this process again.
    fn is_gone(&self, _tag: u64) -> bool {
        false
    }
}

/// How a delivery is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The message was handled; the broker forgets it.
    Ack,
    /// The message goes back to its pipe. It is delivered again, here or elsewhere, with a higher
    /// delivery count.
    Requeue,
    /// The message is dropped, or dead-lettered if the broker is configured to do so.
    Reject,
}

impl Delivery {
    /// Returns an unsettled delivery. For implementations of [`Broker`](super::Broker); only
    /// `settler` interprets `tag`.
    pub fn new(
        pipe: Arc<str>,
        body: Bytes,
        headers: Headers,
        delivery_count: u32,
        tag: u64,
        settler: Arc<dyn Settler>,
    ) -> Self {
        Self {
            pipe,
            content: Content::Body(body),
            headers,
            delivery_count,
            sent: None,
            tag,
            settler: Some(settler),
        }
    }

    /// Returns the delivery of a member of a bundle, as if the message had come by itself in
    /// `pipe`.
    pub(crate) fn of_member(
        pipe: Arc<str>,
        headers: Headers,
        bundle: Arc<dyn Members>,
        index: usize,
    ) -> Self {
        Self {
            pipe,
            content: Content::Member(Arc::clone(&bundle), index),
            headers,
            delivery_count: 0,
            sent: None,
            tag: index as u64,
            settler: Some(bundle),
        }
    }

    /// Returns the payload, as it was published. If it came in a bundle, that is what it would have
    /// been alone.
    pub fn body(&self) -> Bytes {
        self.content.body()
    }

    /// Returns the number of bytes of the payload; of a member of a bundle, those of its task data.
    pub fn bytes(&self) -> usize {
        self.content.bytes()
    }

    pub(crate) const fn content(&self) -> &Content {
        &self.content
    }

    /// Returns until when the delivery waits for a slot, before it goes on as a message of its own,
    /// if it is the member of a bundle.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        match &self.content {
            Content::Body(_) => None,
            Content::Member(bundle, _) => Some(bundle.waits_until()),
        }
    }

    /// Notes when the message was sent, or its delay was over, in seconds since 1970.
    #[must_use]
    pub const fn sent_at(mut self, sent: Option<i64>) -> Self {
        self.sent = sent;
        self
    }

    /// Returns whether the broker has taken the delivery back, because its channel is lost. The
    /// message is delivered again, here or elsewhere. A worker that has not begun to handle it
    /// drops it. Once it is delivered again to this process, which still has this delivery, both
    /// are one: they are settled together, and the delivery is no longer gone.
    pub fn is_gone(&self) -> bool {
        self.settler
            .as_ref()
            .is_some_and(|settler| settler.is_gone(self.tag))
    }

    /// Returns whether the message came back five times. Brokers give up on a message that comes
    /// back ever more often: by default, `RabbitMQ` 4 drops it after twenty times. So its consumer
    /// publishes it [anew](Self::anew), and acknowledges this delivery once that is confirmed.
    pub const fn came_back_often(&self) -> bool {
        self.delivery_count >= OFTEN
    }

    /// Returns the message as it came, to publish it to its pipe again. The broker counts the
    /// deliveries of that from 0.
    pub fn anew(&self) -> Outgoing {
        Outgoing {
            headers: self.headers.clone(),
            ..Outgoing::new(Arc::clone(&self.pipe), self.body())
        }
    }

    /// Acknowledges the message: the broker forgets it.
    pub fn ack(self) {
        self.settle(Settlement::Ack);
    }

    /// Returns the message to its pipe. It is delivered again with a higher delivery count.
    pub fn requeue(self) {
        self.settle(Settlement::Requeue);
    }

    /// Rejects the message: the broker drops or dead-letters it.
    pub fn reject(self) {
        self.settle(Settlement::Reject);
    }

    fn settle(mut self, settlement: Settlement) {
        if let Some(settler) = self.settler.take() {
            settler.settle(self.tag, settlement);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(settler) = self.settler.take() {
            settler.settle(self.tag, Settlement::Requeue);
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("deliveries", &self.deliveries)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pipe,
            content,
            headers,
            delivery_count,
            tag,
            ..
        } = self;
        write!(
            f,
            "Delivery({tag} from {pipe}, {} bytes, {headers:?}, delivered {delivery_count} times before)",
            content.bytes()
        )
    }
}
