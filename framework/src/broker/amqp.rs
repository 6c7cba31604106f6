//! The broker that uses `RabbitMQ`. Only this module and its submodules name the client library,
//! lapin.
//!
//! Pipes are durable queues behind the default exchange. They are declared on first use with the
//! arguments that CAF's workers use, so that both can share a server. There are three connections,
//! one to publish, one to consume, and one to ask for the state of queues: while the server blocks
//! publishers, deliveries can still be settled, and a question that it refuses does not interrupt
//! consumers.
//!
//! What must stay true:
//! - We re-establish lost connections, without a limit on attempts. The client library's own
//!   recovery is off, because it can hang.
//! - Everything that waits for the server (a confirm, an acknowledgement, a declaration) has a time
//!   limit. When it is exceeded, we abandon the connection and open another.
//! - A message is published again until it is confirmed: at least once, and in order unless the
//!   server returns it.

pub(crate) mod ack_batcher;
mod connection;
mod consumer;
mod consuming_channels;
mod control;
mod in_order;
pub(crate) mod lost_deliveries;
mod publisher;
mod queries;
mod queues;
mod socket;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use lapin::uri::{AMQPScheme, AMQPUri};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::connection::{Connection, ConnectionLost, ConnectionSupervisor, Connector};
use self::consumer::Subscription;
use self::consuming_channels::ConsumingChannels;
use self::lost_deliveries::LostDeliveries;
use self::publisher::{Publication, Publisher};
use self::queries::Asker;
use self::queues::{QueueError, Queues};
use super::queries::{AT_ONCE, LocalQueries};
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Outgoing, PipeState,
    PublishError, Queries, RESIZABLE_TO, Unanswered,
};
use crate::health::Health;
use crate::supervision::{supervise, until};
use crate::tls::Tls;

/// How long the server may take to respond to a request.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);
/// How long a call to [`Broker::depth`] waits for a connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(2);
/// The heartbeat interval in seconds, unless the URL sets `?heartbeat=…`. A side that receives
/// nothing for two to three intervals considers the other dead. With the server's default of 60
/// seconds, the deliveries of a lost worker would be held back for minutes. A much shorter interval
/// would declare workers dead whose code blocks its threads for a while.
const HEARTBEAT: u16 = 20;
/// The size of the largest frame, in bytes, which is what `RabbitMQ` allows by default. The client
/// library reserves memory for 64 frames of a connection. If it learns the size only from the
/// broker, it writes to all of that memory, so that even an idle connection has it.
///
/// Smaller ones would save memory, but the headers of a message come in one frame, and one that is
/// too large ends the connection.
const MAX_FRAME_BYTES: u32 = 128 << 10;
/// A URL that says how they look; the virtual host `/` is written `%2f`.
const EXAMPLE_URL: &str = "amqp://user:password@host:5672/%2f";
/// How long closing waits for the last confirms.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How to connect to `RabbitMQ`, and how to declare queues.
#[derive(Clone)]
pub struct AmqpOptions {
    /// `amqp://user:password@host:port/vhost`, where the default vhost is `%2f`. `amqps://`
    /// encrypts the connection and checks the server's certificate. `?heartbeat=5` sets the
    /// heartbeat interval in seconds (default: 20); a lost network is noticed after two to three
    /// intervals.
    pub url: String,
    /// The type of the queues. All programs that share a server must use the same.
    pub queue_type: QueueType,
    /// The `x-max-priority` of classic queues; 0 for none. Messages are always sent without a
    /// priority.
    pub max_priority: u8,
    /// Whom connections with `amqps://` trust, and the client's certificate.
    pub tls: Tls,
    /// Whether queues are declared on first use. If not, they must already exist.
    pub declare: bool,
    /// The server lists the connections as `<name> publishing`, `<name> consuming` and `<name>
    /// looking`.
    pub name: String,
    /// What the process can do. Everything in a process shares one.
    pub health: Health,
}

/// How `RabbitMQ` stores a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// Replicated; counts the deliveries of each message.
    Quorum,
    /// Not replicated; only reports whether a message was delivered before.
    Classic,
}

impl std::str::FromStr for QueueType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            other => Err(format!(
                "{other:?} is not a queue type; expected quorum or classic"
            )),
        }
    }
}

impl AmqpOptions {
    /// Returns the default options for this URL: quorum queues, declared on first use.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            queue_type: QueueType::Quorum,
            max_priority: 0,
            tls: Tls::default(),
            declare: true,
            name: "batchwright".into(),
            health: Health::default(),
        }
    }
}

impl fmt::Debug for AmqpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL is left out, because it contains a password.
        f.debug_struct("AmqpOptions")
            .field("queue_type", &self.queue_type)
            .field("declare", &self.declare)
            .finish_non_exhaustive()
    }
}

/// A [`Broker`] that uses a `RabbitMQ` server (AMQP 0.9.1).
pub struct Amqp {
    /// `host:port`.
    location: String,
    publishing: ConnectionSupervisor,
    consuming: ConnectionSupervisor,
    looking: ConnectionSupervisor,
    publications: mpsc::UnboundedSender<Publication>,
    queues: Arc<Queues>,
    lost: Arc<LostDeliveries>,
    channels: Arc<ConsumingChannels>,
    asker: Box<Asker>,
    local_queries: LocalQueries,
    tasks: TaskTracker,
    consumers: TaskTracker,
    /// Cancelled to make the publisher send its remaining messages and end.
    closing: CancellationToken,
    /// Cancelled when the publisher has ended.
    flushed: CancellationToken,
    health: Health,
    end: CancellationToken,
    _end: DropGuard,
}

impl Amqp {
    /// Starts to connect in the background, and retries without a limit; [`state`](Broker::state)
    /// returns the current state. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError::Unusable`] if the URL is invalid. The error does not contain the URL.
    pub fn connect(options: AmqpOptions) -> Result<Self, BrokerError> {
        let AmqpOptions {
            url,
            queue_type,
            max_priority,
            tls,
            declare,
            name,
            health,
        } = options;
        let mut uri: AMQPUri = url.parse().map_err(|reason: String| {
            let reason = format!("{reason}; expected a URL like {EXAMPLE_URL}");
            BrokerError::unusable("the given URL", reason)
        })?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        uri.query.frame_max.get_or_insert(MAX_FRAME_BYTES);
        let location = format!("{}:{}", uri.authority.host, uri.authority.port);
        let tls = match uri.scheme {
            AMQPScheme::AMQP => None,
            AMQPScheme::AMQPS => {
                let config = tls
                    .client_config()
                    .map_err(|reason| BrokerError::unusable(&*location, reason))?;
                Some(Arc::new(config))
            }
        };
        let (tasks, end, closing) = (
            TaskTracker::new(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let connector = Connector {
            uri,
            tls,
            name,
            location,
            health: health.clone(),
            tasks: tasks.clone(),
            end: end.clone(),
        };
        let publishing = connector.start("publishing");
        let consuming = connector.start("consuming");
        let looking = connector.start("looking");
        let queues = Arc::new(Queues::new(
            queue_type,
            max_priority,
            declare,
            tasks.clone(),
        ));
        tasks.spawn({
            let (queues, publishing, end) = (Arc::clone(&queues), publishing.clone(), end.clone());
            let health = health.clone();
            async move {
                let recheck = || queues.recheck(publishing.clone());
                let supervised = supervise(&health, "rabbitmq: unusable queues", &end, recheck);
                until(&end, supervised).await
            }
        });
        let (publications, received) = mpsc::unbounded_channel();
        let publisher = Publisher::new(publishing.clone(), Arc::clone(&queues), received);
        let flushed = CancellationToken::new();
        tasks.spawn({
            let (closing, end, flushed) =
                (closing.clone(), end.clone(), flushed.clone().drop_guard());
            let (health, publishing) = (health.clone(), Mutex::new((publisher, None)));
            async move {
                let publish = || async {
                    let (publisher, open) = &mut *publishing.lock().await;
                    publisher.run(open, &closing, &end).await;
                };
                supervise(&health, "rabbitmq: publisher", &end, publish).await;
                drop(flushed);
            }
        });
        let local_queries = LocalQueries::default();
        let asker = Asker::new(
            local_queries.clone(),
            publishing.clone(),
            tasks.clone(),
            health.clone(),
            end.clone(),
        );
        Ok(Self {
            location: connector.location,
            looking,
            asker: Box::new(asker),
            local_queries,
            publishing,
            consuming,
            publications,
            queues,
            lost: Arc::default(),
            channels: Arc::default(),
            tasks,
            consumers: TaskTracker::new(),
            closing,
            flushed,
            health,
            _end: end.clone().drop_guard(),
            end,
        })
    }

    /// Waits for the connections, for programs that must not start without them.
    ///
    /// # Errors
    /// [`BrokerError::Unusable`] with the latest reason if they are not established within `limit`.
    pub async fn connected(&self, limit: Duration) -> Result<(), BrokerError> {
        let all = async {
            self.publishing.connected().await;
            self.consuming.connected().await;
            self.looking.connected().await;
        };
        tokio::time::timeout(limit, all).await.map_err(|_| {
            let reason = match self.state() {
                BrokerState::Connecting(reason) => reason,
                state => format!("{state:?}"),
            };
            self.unusable(format!("not connected after {limit:?}: {reason}"))
        })
    }

    /// Returns in which way a queue that exists has other arguments than those it would be declared
    /// with here; `None` if it has the same.
    ///
    /// # Errors
    /// [`BrokerError::Unusable`] if the broker cannot be reached or does not answer this.
    pub async fn other_arguments(&self, pipe: &str) -> Result<Option<String>, BrokerError> {
        let connection = self.looking().await?;
        self.queues
            .other_arguments(&connection, pipe)
            .await
            .map_err(|reason| self.unusable(reason))
    }

    /// The exchanges over which processes tell what has changed, and tell of themselves.
    pub const EXCHANGES: [&str; 2] = [control::CONTROL, control::WORKERS];

    /// Returns whether an exchange exists, and does not declare it.
    ///
    /// # Errors
    /// [`BrokerError::Unusable`] if the broker cannot be reached or does not answer this.
    pub async fn look_at_exchange(&self, exchange: &str) -> Result<bool, BrokerError> {
        let connection = self.looking().await?;
        let looked = control::exists(&connection, exchange).await;
        looked.map_err(|reason| self.unusable(reason))
    }

    /// Returns the connection for questions about queues. Each one that the server refuses uses up
    /// a number of a channel. When none is left, this connection is replaced, and no consumer is
    /// interrupted.
    async fn looking(&self) -> Result<Connection, BrokerError> {
        if self.closing.is_cancelled() {
            return Err(BrokerError::Closed);
        }
        // Wait a little: right after the start, or after a lost connection, there will soon be one.
        tokio::time::timeout(CONNECTION_LIMIT, self.looking.connected())
            .await
            .map_err(|_| self.unusable(ConnectionLost::NotConnected))
    }

    /// Returns what is known about a queue; `None` if it does not exist.
    async fn look_at(&self, pipe: &str) -> Result<Option<PipeState>, BrokerError> {
        loop {
            let connection = self.looking().await?;
            match self.queues.look(&connection, pipe).await {
                Err(QueueError::Lost(ConnectionLost::WornOut)) => {}
                looked => return looked.map_err(|reason| self.unusable(reason)),
            }
        }
    }

    /// Sends a message to those who listen to the exchange.
    fn publish_to(&self, exchange: &'static str, body: Bytes) -> Confirm {
        let (confirmer, confirm) = Confirm::announcement();
        let (supervisor, end) = (self.publishing.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let announced = end
                .run_until_cancelled(control::announce(&supervisor, exchange, body))
                .await;
            confirmer.resolve(match announced {
                Some(Ok(())) => Ok(()),
                Some(Err(lost)) => Err(PublishError::refused(exchange, lost)),
                None => Err(PublishError::Closed),
            });
        });
        confirm
    }

    /// Listens to the exchange.
    fn subscribe_to(
        &self,
        exchange: &'static str,
        name: &'static str,
    ) -> Result<Announcements, BrokerError> {
        if self.closing.is_cancelled() {
            return Err(BrokerError::Closed);
        }
        let (sender, receiver) = mpsc::channel(64);
        let (supervisor, end) = (self.consuming.clone(), self.end.clone());
        let health = self.health.clone();
        self.tasks.spawn(async move {
            let subscribe = || control::subscribe(&supervisor, exchange, &sender);
            let supervised = supervise(&health, name, &end, subscribe);
            until(&end, supervised).await
        });
        Ok(Announcements::new(receiver))
    }

    /// Receives the questions about a pipe.
    fn serve_queries(&self, pipe: &str) -> Result<Queries, BrokerError> {
        if self.closing.is_cancelled() {
            return Err(BrokerError::Closed);
        }
        let (sender, receiver) = mpsc::channel(usize::from(AT_ONCE));
        let (consuming, publishing) = (self.consuming.clone(), self.publishing.clone());
        let listed = self.local_queries.list(pipe, sender.clone());
        let (health, end, pipe) = (self.health.clone(), self.end.clone(), pipe.to_owned());
        self.tasks.spawn(async move {
            let _listed = listed;
            let name = format!("rabbitmq: questions about {pipe}");
            let serve = || queries::serve(&consuming, &publishing, &pipe, &sender);
            let supervised = supervise(&health, &name, &end, serve);
            until(&end, supervised).await
        });
        Ok(Queries::new(receiver))
    }

    fn unusable(&self, reason: impl Into<Box<dyn Error + Send + Sync>>) -> BrokerError {
        BrokerError::unusable(&*self.location, reason)
    }
}

impl Broker for Amqp {
    fn publish(&self, message: Outgoing) -> Confirm {
        if let Some(error) = PublishError::of_name(&message.pipe) {
            return Confirm::ready(Err(error));
        }
        let (confirmer, confirm) = Confirm::pair();
        // If the publisher has ended, the confirmer is dropped here, which resolves the confirm to
        // `Closed`.
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
        // In the protocol the number has 16 bits, and 0 means no limit.
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX).max(1);
        let (sender, receiver) = mpsc::channel(usize::from(prefetch).max(RESIZABLE_TO as usize));
        let (resize, prefetch) = watch::channel(prefetch);
        let subscription = Subscription {
            pipe: pipe.into(),
            prefetch,
            supervisor: self.consuming.clone(),
            queues: Arc::clone(&self.queues),
            lost: Arc::clone(&self.lost),
            channels: Arc::clone(&self.channels),
            deliveries: sender,
            health: self.health.clone(),
            tasks: self.consumers.clone(),
            closing: self.closing.clone(),
        };
        let (health, end) = (self.health.clone(), self.end.clone());
        let subscription = Arc::new(subscription);
        self.consumers.spawn(async move {
            let name = format!("rabbitmq: consumer of {}", subscription.pipe);
            let consume = || Arc::clone(&subscription).run(end.clone());
            supervise(&health, &name, &end, consume).await
        });
        let resize = move |prefetch| {
            let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
            // A change costs a channel.
            resize.send_if_modified(|now| std::mem::replace(now, prefetch) != prefetch);
        };
        ready(Ok(Consumer::resizable(receiver, resize))).boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.publish_to(control::CONTROL, body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(self.subscribe_to(control::CONTROL, "rabbitmq: announcements")).boxed()
    }

    fn carries_signs(&self) -> bool {
        true
    }

    fn tell(&self, sign: Bytes) -> Confirm {
        self.publish_to(control::WORKERS, sign)
    }

    fn signs(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(self.subscribe_to(control::WORKERS, "rabbitmq: signs of life")).boxed()
    }

    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        self.asker.ask(pipe, question, limit).boxed()
    }

    fn carries_queries(&self) -> bool {
        true
    }

    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        ready(self.serve_queries(pipe)).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        async move {
            let state = self.look_at(pipe).await?;
            Ok(state.map_or(0, |state| state.messages))
        }
        .boxed()
    }

    fn exists<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<bool, BrokerError>> {
        async move { Ok(self.look_at(pipe).await?.is_some()) }.boxed()
    }

    fn prepare<'a>(
        &'a self,
        pipe: &'a str,
        delays: &'a [Duration],
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        async move {
            let connection = self.looking().await?;
            for delay in delays {
                let declared = self.queues.declare(&connection, pipe, Some(*delay)).await;
                declared.map_err(|reason| self.unusable(reason))?;
            }
            Ok(())
        }
        .boxed()
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        self.look_at(pipe).boxed()
    }

    fn state(&self) -> BrokerState {
        if self.closing.is_cancelled() {
            BrokerState::Closed
        } else {
            let queues = self.queues.impairment();
            self.publishing
                .state()
                .worse(self.consuming.state())
                .worse(self.looking.state())
                .worse(queues.map_or(BrokerState::Connected, BrokerState::Impaired))
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            self.closing.cancel();
            self.consumers.close();
            // The publisher ends when every message has a result, a consumer when it has sent its
            // settlements. After the limit they are stopped.
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
    /// Returns the worse of two states.
    fn worse(self, other: Self) -> Self {
        let severity = |state: &Self| match state {
            Self::Connected => 0,
            Self::Impaired(_) => 1,
            Self::Blocked(_) => 2,
            Self::Refusing(_) => 3,
            Self::Connecting(_) => 4,
            Self::Closed => 5,
        };
        if severity(&other) > severity(&self) {
            other
        } else {
            self
        }
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amqp({}, {:?})", self.location, self.state())
    }
}
