//! `RabbitMQ`. Nothing outside this module and its parts names its client library.
//!
//! Pipes are durable queues behind the default exchange, declared on first use with the arguments that CAF's workers use,
//! so both can share a broker. There are two connections, one to publish and one to consume: a broker that blocks publishers
//! does not keep anybody from settling.
//!
//! What must stay true:
//! - Connections are made again by us, for ever; the client library's own recovery is off, because it can hang.
//! - Whatever waits for the broker (a confirm, an acknowledgement, a declaration) has a time limit; past it the connection
//!   is taken for dead and made anew.
//! - A message is published again until it is confirmed: at least once, in order unless the broker returns it.

mod connection;
mod consumer;
mod control;
mod publisher;
mod queues;
#[cfg(test)]
mod refusals;
mod socket;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use lapin::uri::AMQPUri;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::connection::Line;
use self::consumer::Subscription;
use self::publisher::{Publication, Publisher};
use self::queues::Queues;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Outgoing, PublishError,
};

/// How long anything that the broker is asked may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a question waits for a connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(2);
/// How often each side at least says something, in seconds, unless the URL says `?heartbeat=…`. A side that has heard nothing for
/// two to three times as long takes the other for gone; the broker's own 60 seconds would hold deliveries back for minutes. Less
/// would take a worker for dead whose code does not let go of its threads for a while.
const HEARTBEAT: u16 = 20;
/// How long closing waits for the last confirms.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Where the broker is and how its queues are made.
#[derive(Clone)]
pub struct AmqpOptions {
    /// `amqp://user:password@host:port/vhost`; the default vhost is `%2f`. `?heartbeat=5` has a lost network noticed earlier than
    /// the 20 seconds of the default.
    pub url: String,
    /// All who share a broker must agree on it.
    pub queue_type: QueueType,
    /// The `x-max-priority` that classic queues are declared with; 0: none. Nothing is sent with a priority.
    pub max_priority: u8,
    /// Whether queues are declared on first use. If not, somebody else must.
    pub declare: bool,
    /// The name under which the broker shows the connections.
    pub name: String,
}

/// How the broker keeps a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// Replicated, and counts deliveries.
    Quorum,
    /// Tells only that a delivery is not the first.
    Classic,
}

impl std::str::FromStr for QueueType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            other => Err(format!("is {other:?}; write quorum or classic")),
        }
    }
}

impl AmqpOptions {
    /// Quorum queues, declared on first use.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            queue_type: QueueType::Quorum,
            max_priority: 0,
            declare: true,
            name: "batchwright".into(),
        }
    }
}

impl fmt::Debug for AmqpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: there is a password in it.
        f.debug_struct("AmqpOptions")
            .field("queue_type", &self.queue_type)
            .field("declare", &self.declare)
            .finish_non_exhaustive()
    }
}

/// A broker behind AMQP 0.9.1.
pub struct Amqp {
    place: String,
    publishing: Line,
    consuming: Line,
    publications: mpsc::UnboundedSender<Publication>,
    queues: Arc<Queues>,
    tasks: TaskTracker,
    consumers: TaskTracker,
    /// Publishes what it has, then ends.
    closing: CancellationToken,
    /// Cancelled when the publisher has ended.
    flushed: CancellationToken,
    end: CancellationToken,
    _end: DropGuard,
}

impl Amqp {
    /// Begins to connect and goes on trying for ever; see [`state`](Broker::state). Fails only when the URL is not one.
    ///
    /// Must be called within a runtime.
    pub fn connect(options: AmqpOptions) -> Result<Self, BrokerError> {
        let AmqpOptions {
            url,
            queue_type,
            max_priority,
            declare,
            name,
        } = options;
        let mut uri: AMQPUri = url.parse().map_err(|reason| BrokerError::Unusable {
            place: "the given URL".into(),
            reason,
        })?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let place = format!("{}:{}", uri.authority.host, uri.authority.port);
        let (tasks, end, closing) = (
            TaskTracker::new(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let line = |purpose: &str| {
            Line::start(
                uri.clone(),
                format!("{name} {purpose}"),
                place.clone(),
                &tasks,
                &end,
            )
        };
        let (publishing, consuming) = (line("publishing"), line("consuming"));
        let queues = Arc::new(Queues::new(queue_type, max_priority, declare));
        let (publications, received) = mpsc::unbounded_channel();
        let publisher = Publisher::new(publishing.clone(), Arc::clone(&queues), received);
        let flushed = CancellationToken::new();
        tasks.spawn({
            let (closing, end, flushed) =
                (closing.clone(), end.clone(), flushed.clone().drop_guard());
            async move {
                publisher.run(closing, end).await;
                drop(flushed);
            }
        });
        Ok(Self {
            place,
            publishing,
            consuming,
            publications,
            queues,
            tasks,
            consumers: TaskTracker::new(),
            closing,
            flushed,
            _end: end.clone().drop_guard(),
            end,
        })
    }

    /// Waits for the first connection, for those who want to know at start-up.
    pub async fn connected(&self, limit: Duration) -> Result<(), BrokerError> {
        let both = async {
            self.publishing.up().await;
            self.consuming.up().await;
        };
        tokio::time::timeout(limit, both).await.map_err(|_| {
            let reason = match self.state() {
                BrokerState::Connecting(reason) => reason,
                state => format!("{state:?}"),
            };
            self.unusable(format!("not connected after {limit:?}: {reason}"))
        })
    }

    async fn count(&self, pipe: &str) -> Result<u64, BrokerError> {
        // Right after the start, and where a connection is just being made again, there will be one.
        let live = tokio::time::timeout(CONNECTION_LIMIT, self.consuming.up()).await;
        let live = live.map_err(|_| self.unusable("not connected".into()))?;
        self.queues
            .depth(&live, pipe)
            .await
            .map_err(|reason| self.unusable(reason))
    }

    fn unusable(&self, reason: String) -> BrokerError {
        BrokerError::Unusable {
            place: self.place.clone(),
            reason,
        }
    }
}

impl Broker for Amqp {
    fn publish(&self, message: Outgoing) -> Confirm {
        let (confirmer, confirm) = Confirm::pair();
        // When the publisher is gone, so is the confirmer, which says that the broker is closed.
        drop(self.publications.send(Publication::new(message, confirmer)));
        confirm
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        if self.closing.is_cancelled() {
            return ready(Err(BrokerError::Closed)).boxed();
        }
        // The protocol's number is of 16 bits, and 0 means without limit.
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX).max(1);
        let (sender, receiver) = mpsc::channel(prefetch.into());
        let subscription = Subscription {
            pipe: pipe.into(),
            prefetch,
            line: self.consuming.clone(),
            queues: Arc::clone(&self.queues),
            deliveries: sender,
            closing: self.closing.clone(),
        };
        self.consumers.spawn(subscription.run(self.end.clone()));
        ready(Ok(Consumer::new(receiver))).boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        let (confirmer, confirm) = Confirm::pair();
        let (line, end) = (self.publishing.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let said = end
                .run_until_cancelled(control::announce(&line, body))
                .await;
            let answer = match said {
                Some(Ok(())) => Ok(()),
                Some(Err(lost)) => Err(PublishError::Refused {
                    pipe: "control".into(),
                    reason: lost.to_string(),
                }),
                None => Err(PublishError::Closed),
            };
            // Whoever does not wait for the answer does not want it.
            drop(confirmer.send(answer));
        });
        confirm
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        if self.closing.is_cancelled() {
            return ready(Err(BrokerError::Closed)).boxed();
        }
        let (sender, receiver) = mpsc::channel(64);
        let (line, end) = (self.consuming.clone(), self.end.clone());
        self.tasks
            .spawn(async move { end.run_until_cancelled(control::listen(line, sender)).await });
        ready(Ok(Announcements::new(receiver))).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.count(pipe).boxed()
    }

    fn state(&self) -> BrokerState {
        if self.closing.is_cancelled() {
            BrokerState::Closed
        } else {
            self.publishing.state().worse(self.consuming.state())
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            self.closing.cancel();
            self.consumers.close();
            // The publisher ends by itself when everything is answered, a consumer when it has told what is settled. Past
            // the limit they are told to.
            let flushed = async { tokio::join!(self.flushed.cancelled(), self.consumers.wait()) };
            drop(tokio::time::timeout(CLOSE_LIMIT, flushed).await);
            self.end.cancel();
            self.tasks.close();
            self.tasks.wait().await;
        }
        .boxed()
    }

    fn kind(&self) -> &'static str {
        "rabbitmq"
    }
}

impl BrokerState {
    fn worse(self, other: Self) -> Self {
        let badness = |state: &Self| match state {
            Self::Connected => 0,
            Self::Blocked(_) => 1,
            Self::Connecting(_) => 2,
            Self::Closed => 3,
        };
        if badness(&other) > badness(&self) {
            other
        } else {
            self
        }
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amqp({}, {:?})", self.place, self.state())
    }
}
