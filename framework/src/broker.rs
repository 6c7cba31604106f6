//! The seam between workers and message brokers.
//!
//! A [`Broker`] stores messages in named pipes until a consumer has settled them. There are two
//! implementations: `RabbitMQ` ([`amqp`]), and a [`Local`] broker inside this process, which keeps
//! its messages in a file ([`embedded`]) or only in memory ([`memory`]). Everything above this
//! module speaks of pipes and deliveries; only the implementations know queues, channels, tags and
//! rows. All of them pass one conformance suite (`framework/tests/broker_conformance`).
//!
//! What must stay true:
//! - A message is confirmed only if it would survive a `kill -9` of this process (except in
//!   `memory`).
//! - A delivery is settled exactly once, by value. Dropping an unsettled delivery requeues it.
//! - A message is delivered again until it is settled. The delivery count rises when the process
//!   that held the message died or when the message was requeued, and for no other reason; on
//!   `RabbitMQ` also if the message took longer than 300 ms to arrive at a consumer, or its
//!   settlement to the queue, when the consumer was resized and the queue was nearly empty.
//! - A message that is delivered again while the consumer still has it is not given to it a second
//!   time: it is settled like the delivery that the consumer has. Only `RabbitMQ` takes deliveries
//!   back while their process lives.
//! - Within a pipe, messages keep their publish order, except for messages that are delivered
//!   again.
//! - Looking at a pipe changes nothing in it, neither the order nor a delivery count.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};

use crate::meters::set_broker_state;

#[cfg(feature = "amqp")]
pub mod amqp;
mod announcements;
mod delivery;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
pub(crate) mod gauges;
mod local;
mod local_fanout;
pub mod memory;
mod message;
pub(crate) mod queries;

pub use self::announcements::{Announcements, Event};
pub use self::delivery::{Consumer, Delivery, Settlement, Settler};
pub(crate) use self::delivery::{Content, Members, RESIZABLE_TO};
pub use self::error::{BrokerError, PublishError};
pub use self::gauges::Gauges;
pub use self::local::Local;
pub use self::message::{Confirm, Confirmer, HeaderValue, Headers, Outgoing};
pub use self::queries::{Queries, Query, Unanswered};

/// Stores messages in pipes until a consumer has settled them.
pub trait Broker: fmt::Debug + Send + Sync + 'static {
    /// Publishes one message. Messages are sent in the order of the calls; the returned [`Confirm`]
    /// resolves when the broker has stored the message for good. The pipe is declared on first use.
    ///
    /// Never blocks and never drops a message. Callers that publish many messages must bound how
    /// many are in flight by awaiting confirms.
    fn publish(&self, message: Outgoing) -> Confirm;

    /// Starts to consume a pipe, and declares it. At most `prefetch` deliveries are unsettled at
    /// any time; 0 counts as 1.
    ///
    /// The consumer survives lost connections. It ends only when it is dropped or when the broker
    /// is closed.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](Self::close).
    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>>;

    /// Returns the largest prefetch to which a consumer can be resized ([`Consumer::resize`]).
    /// Workers of short tasks use it.
    fn largest_prefetch(&self) -> u32 {
        RESIZABLE_TO
    }

    /// Returns how many messages wait in a pipe. Messages that are delivered and unsettled, or
    /// delayed, do not count. A pipe that does not exist has none, and is not declared by the call.
    ///
    /// # Errors
    /// [`BrokerError::Unusable`] if the broker cannot be reached, [`BrokerError::Closed`] after
    /// [`close`](Self::close).
    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>>;

    /// Returns whether a pipe exists, and does not declare it. A broker that finds nothing wrong
    /// with questions about pipes that do not exist may return `true` for each.
    ///
    /// # Errors
    /// As [`depth`](Self::depth).
    fn exists<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<bool, BrokerError>> {
        let _ = pipe;
        ready(Ok(true)).boxed()
    }

    /// Makes the places in which messages of a pipe wait for these delays, where the broker has
    /// such places. Otherwise they are made when the first message needs them.
    ///
    /// # Errors
    /// As [`depth`](Self::depth).
    fn prepare<'a>(
        &'a self,
        pipe: &'a str,
        delays: &'a [Duration],
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        let _ = (pipe, delays);
        ready(Ok(())).boxed()
    }

    /// Returns what the broker knows about a pipe; `None` if the pipe does not exist, which the
    /// call does not change. By default that is its depth.
    ///
    /// # Errors
    /// As [`depth`](Self::depth).
    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        async move {
            let exists = self.exists(pipe).await?;
            let messages = self.depth(pipe).await?;
            let state = PipeState {
                messages,
                ..PipeState::default()
            };
            Ok(exists.then_some(state))
        }
        .boxed()
    }

    /// Returns what the broker knows about all pipes, by name; `None` if it does not tell which
    /// pipes exist.
    ///
    /// # Errors
    /// As [`depth`](Self::depth).
    fn look_at_all(
        &self,
    ) -> BoxFuture<'_, Result<Option<BTreeMap<String, PipeState>>, BrokerError>> {
        ready(Ok(None)).boxed()
    }

    /// Returns the first messages of a pipe, which stay where they are: at most `limit`, and none
    /// after the one with which they have this number of `bytes`. Messages that consumers have not
    /// settled belong to them. `None` if the broker cannot read a message without taking it.
    ///
    /// # Errors
    /// As [`depth`](Self::depth).
    fn peek<'a>(
        &'a self,
        pipe: &'a str,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<Peeked>>, BrokerError>> {
        let _ = (pipe, limit, bytes);
        ready(Ok(None)).boxed()
    }

    /// Sends an announcement to every process that listens at this moment. It is not stored: a
    /// process that does not listen never receives it.
    fn announce(&self, body: Bytes) -> Confirm;

    /// Subscribes to announcements, including those of this process. The first event is always
    /// [`Event::Missed`], because earlier announcements are lost; afterwards every announcement is
    /// received until the next `Missed`. The subscription survives lost connections.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](Self::close).
    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>>;

    /// Returns whether this broker carries signs of life ([`signs`](crate::signs)).
    fn carries_signs(&self) -> bool {
        false
    }

    /// Sends a sign of life to every job service that listens at this moment. It is not stored.
    fn tell(&self, sign: Bytes) -> Confirm {
        let _ = sign;
        Confirm::ready(Ok(()))
    }

    /// Subscribes to the signs of life, as [`announcements`](Self::announcements) does to
    /// announcements.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](Self::close), and if this broker carries no signs.
    fn signs(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Err(BrokerError::Closed)).boxed()
    }

    /// Asks one of those who answer questions about a pipe ([`queries`](Self::queries)), and waits
    /// this long for the answer. Nothing is stored. A question is given to one of them, and never
    /// to another one after that.
    ///
    /// # Errors
    /// [`Unanswered`] says why there is no answer; at once, if nobody answers questions about the
    /// pipe.
    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        let (_, _) = (question, limit);
        ready(Err(Unanswered::Nobody(pipe.to_owned()))).boxed()
    }

    /// Returns whether this broker carries questions.
    fn carries_queries(&self) -> bool {
        false
    }

    /// Receives questions about a pipe, beside others who do, until the result is dropped. Survives
    /// lost connections.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](Self::close), and if this broker carries no
    /// questions.
    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        let _ = pipe;
        ready(Err(BrokerError::Closed)).boxed()
    }

    /// Returns the present state, for health checks and metrics.
    fn state(&self) -> BrokerState;

    /// Sets the gauges of this broker: its state, and what else it knows about itself. For
    /// [`on_scrape`](crate::meters::on_scrape).
    fn measure(&self) -> BoxFuture<'_, ()> {
        set_broker_state(self.state().name());
        ready(()).boxed()
    }

    /// Sends everything that was published, then releases files and connections. Unsettled
    /// deliveries are delivered again, to this process or another.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Returns `rabbitmq`, `embedded` or `memory`.
    fn kind(&self) -> &'static str;
}

impl BrokerState {
    /// Returns the name in the metrics.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Impaired(_) => "impaired",
            Self::Connecting(_) => "connecting",
            Self::Blocked(_) => "blocked",
            Self::Refusing(_) => "refusing",
            Self::Closed => "closed",
        }
    }
}

/// What a broker knows about a pipe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipeState {
    /// How many messages wait in it.
    pub messages: u64,
    /// How many consumers it has, if that is known.
    pub consumers: Option<u64>,
    /// How many messages come to it after a delay, if that is known.
    pub delayed: Option<u64>,
    /// How many messages came and left, if that is known.
    pub flow: Option<Flow>,
}

/// A message of a pipe that was read and not taken.
#[derive(Debug, Clone)]
pub struct Peeked {
    /// The headers.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

/// How many messages came into a pipe and left it, from any moment on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// How many came.
    pub came: u64,
    /// How many left.
    pub left: u64,
}

/// The state of a broker, for health checks and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerState {
    /// Messages can be published and consumed.
    Connected,
    /// Connected, but some messages cannot be published for this reason.
    Impaired(String),
    /// Not connected, for this reason. The broker keeps trying to connect.
    Connecting(String),
    /// Connected, but the broker accepts no messages for this reason, e.g. because it lacks memory
    /// or disk space. It does again when consumers have made room.
    Blocked(String),
    /// The broker can store nothing at all for this reason: its disk refuses every change.
    Refusing(String),
    /// The broker was closed.
    Closed,
}
