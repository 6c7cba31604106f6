//! The seam to whatever holds the messages: `RabbitMQ` (`amqp`), a file on this machine (`embedded`), or this process
//! (`memory`).
//!
//! Everything above this module speaks of pipes and deliveries; only the implementations know queues, channels, tags
//! and rows. All of them pass one conformance suite (`framework/tests/broker_conformance.rs`).
//!
//! What must stay true:
//! - A message is confirmed only when it would survive a `kill -9` of this process (`memory` excepted).
//! - A delivery is settled exactly once, by value. One that is dropped unsettled goes back to its pipe.
//! - A message is delivered again until it is settled; the delivery count rises when the process that had it died or
//!   the message was requeued, never by other means.
//! - Order within a pipe is publish order, except for messages that come back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "amqp")]
pub mod amqp;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod memory;

/// A place that keeps messages in pipes until somebody has dealt with them.
pub trait Broker: fmt::Debug + Send + Sync + 'static {
    /// Takes over one message. It is handed on at once, in call order; the answer comes when the broker has it for good.
    /// The pipe is declared on first use.
    ///
    /// Never blocks and never drops: whoever publishes much bounds what it has in flight by awaiting confirms.
    fn publish(&self, message: Outgoing) -> Confirm;

    /// Starts to receive from a pipe, which is declared. At most `prefetch` deliveries are unsettled at any time.
    ///
    /// The consumer outlives lost connections: it ends only when it is dropped or the broker is closed.
    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>>;

    /// How many messages wait in a pipe, not counting those delivered and unsettled or delayed. A pipe that does not
    /// exist has none.
    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>>;

    /// Tells every process that listens right now; those that do not never hear of it.
    fn announce(&self, body: Bytes) -> Confirm;

    /// Begins to listen to announcements, those of this process included. The first that is heard is that all before was
    /// missed; after that nothing is, until the same is heard again. Survives lost connections.
    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>>;

    /// How the broker is right now, for health and metrics.
    fn state(&self) -> BrokerState;

    /// Sends what has been taken over, then lets go of files and connections. Unsettled deliveries will come again.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// `rabbitmq`, `embedded` or `memory`.
    fn kind(&self) -> &'static str;
}

/// A message on its way out.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The pipe where it physically goes.
    pub pipe: Arc<str>,
    pub body: Bytes,
    pub headers: Headers,
    /// Arrives in the pipe this much later.
    pub delay: Option<Duration>,
}

impl Outgoing {
    pub fn new(pipe: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        Self {
            pipe: pipe.into(),
            body: body.into(),
            headers: Headers::default(),
            delay: None,
        }
    }
}

/// Resolves when a published message is safe, or when it is known not to be.
#[derive(Debug)]
#[must_use = "a message is safe only when its confirm has been awaited"]
pub struct Confirm(oneshot::Receiver<Result<(), PublishError>>);

/// The implementation's end of a [`Confirm`].
pub type Confirmer = oneshot::Sender<Result<(), PublishError>>;

impl Confirm {
    pub fn pair() -> (Confirmer, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }
}

impl Future for Confirm {
    type Output = Result<(), PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(PublishError::Closed)))
    }
}

/// Why a message was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The broker was closed before it confirmed. Whether it has the message is not known.
    #[error("the broker was closed before it confirmed the message")]
    Closed,
    /// There is no such pipe, and it could not be declared.
    #[error("the pipe {pipe} does not take messages: {reason}")]
    Unroutable { pipe: String, reason: String },
    /// The broker said no, e.g. because a pipe is full.
    #[error("the broker refused a message for the pipe {pipe}: {reason}")]
    Refused { pipe: String, reason: String },
}

/// Why the broker could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("the broker at {place} cannot be used: {reason}")]
    Unusable { place: String, reason: String },
    #[error(
        "the folder {folder} is in use by the process {pid}; stop it, or choose another folder"
    )]
    FolderInUse { folder: String, pid: String },
    #[error("the broker is closed")]
    Closed,
}

/// How the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerState {
    Connected,
    /// Not connected; why, and that it is being tried again.
    Connecting(String),
    /// The broker holds publishers back, e.g. for want of memory or disk.
    Blocked(String),
    Closed,
}

/// What a consumer receives, in order.
#[derive(Debug)]
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
}

impl Consumer {
    /// For implementations: dropping the consumer closes the channel, which ends consuming.
    pub fn new(deliveries: mpsc::Receiver<Delivery>) -> Self {
        Self { deliveries }
    }

    /// The next delivery; `None` when the broker was closed.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Waits for one delivery and takes what else is there, up to `limit`. Zero when the broker was closed.
    pub async fn next_many(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        self.deliveries.recv_many(into, limit).await
    }

    /// Takes what is there right now, until `into` holds `limit`; answers how many that were.
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

/// What is announced to every process.
#[derive(Debug)]
pub struct Announcements(mpsc::Receiver<Heard>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Said(Bytes),
    /// Nothing was heard for a while: anything may have been said.
    Missed,
}

impl Announcements {
    /// For implementations: dropping it closes the channel, which ends listening.
    pub fn new(heard: mpsc::Receiver<Heard>) -> Self {
        Self(heard)
    }

    /// The next announcement; `None` when the broker was closed.
    pub async fn next(&mut self) -> Option<Heard> {
        self.0.recv().await
    }
}

/// Announcements within one process.
#[derive(Debug, Clone)]
pub(crate) struct Hall {
    said: tokio::sync::broadcast::Sender<Bytes>,
    tasks: tokio_util::task::TaskTracker,
}

impl Default for Hall {
    fn default() -> Self {
        Self {
            said: tokio::sync::broadcast::Sender::new(1024),
            tasks: tokio_util::task::TaskTracker::new(),
        }
    }
}

impl Hall {
    pub fn announce(&self, body: Bytes) -> Confirm {
        let (confirmer, confirm) = Confirm::pair();
        // An error means that nobody listens.
        let _ = self.said.send(body);
        let _ = confirmer.send(Ok(()));
        confirm
    }

    pub fn listen(&self) -> Announcements {
        use tokio::sync::broadcast::error::RecvError;

        let mut said = self.said.subscribe();
        let (sender, receiver) = mpsc::channel(64);
        self.tasks.spawn(async move {
            let mut heard = Heard::Missed;
            while sender.send(heard).await.is_ok() {
                let next = tokio::select! {
                    next = said.recv() => next,
                    () = sender.closed() => return,
                };
                heard = match next {
                    Ok(body) => Heard::Said(body),
                    Err(RecvError::Lagged(_)) => Heard::Missed,
                    Err(RecvError::Closed) => return,
                };
            }
        });
        Announcements::new(receiver)
    }
}

/// One message, handed to this process. It must be settled; dropping it sends it back.
pub struct Delivery {
    /// The pipe from which it came.
    pub pipe: Arc<str>,
    pub body: Bytes,
    pub headers: Headers,
    /// How often it had been handed out before and came back.
    pub delivery_count: u32,
    tag: u64,
    settler: Option<Arc<dyn Settler>>,
}

/// What an implementation does when a delivery is settled. Must not block.
pub trait Settler: Send + Sync {
    fn settle(&self, tag: u64, settlement: Settlement);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Dealt with: forget it.
    Ack,
    /// Give it back: it is delivered again, here or elsewhere, with a higher count.
    Requeue,
    /// Drop it; a broker that is set up so may keep it elsewhere.
    Reject,
}

impl Delivery {
    /// For implementations. The tag means something to the settler only.
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
            body,
            headers,
            delivery_count,
            tag,
            settler: Some(settler),
        }
    }

    pub fn ack(self) {
        self.settle(Settlement::Ack);
    }

    pub fn requeue(self) {
        self.settle(Settlement::Requeue);
    }

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

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pipe,
            body,
            headers,
            delivery_count,
            tag,
            ..
        } = self;
        write!(
            f,
            "Delivery({tag} from {pipe}, {} bytes, {headers:?}, delivered {delivery_count} times before)",
            body.len()
        )
    }
}

/// Headers of a message: few, so a list. Names are case-sensitive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, HeaderValue)>);

/// Other types of values that a broker knows are not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    Text(String),
    Integer(i64),
}

impl Headers {
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    pub fn set(&mut self, name: &str, value: HeaderValue) {
        self.0.retain(|(n, _)| n != name);
        self.0.push((name.to_owned(), value));
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
