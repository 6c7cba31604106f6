//! Connections to the broker that are re-established whenever they are lost.
//!
//! A [`Connector`] starts supervisors. A [`ConnectionSupervisor`] owns one connection after
//! another. The rest of this module takes the current one as a [`Connection`] and asks for the next
//! when it is lost.
//!
//! What must stay true:
//! - A user of a connection stops when its `lost` token is cancelled. It never waits for the client
//!   library to report that the connection is gone, because the library may not.
//! - An abandoned connection leaves neither a thread nor a socket behind.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use contract::metrics::BROKER_RECONNECTS;
use futures_util::StreamExt as _;
use lapin::uri::AMQPUri;
use lapin::{Channel, ConnectionProperties, ErrorKind, Event};
use metrics::Counter;
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::RESPONSE_LIMIT;
use super::socket::Sockets;
use crate::broker::BrokerState;
use crate::health::Health;
use crate::meters::counter_of;
use crate::supervision::supervise;

/// How often the client library's own state of the connection is checked, in case it does not
/// report a loss.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The delays between two attempts to connect, before jitter.
const SHORTEST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// How long closing a connection in order may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Makes the connections of a process.
pub struct Connector {
    pub uri: AMQPUri,
    pub tls: Option<Arc<ClientConfig>>,
    /// The first part of the name of each connection in the broker's list.
    pub name: String,
    /// `host:port` for the log.
    pub location: String,
    pub health: Health,
    /// Where the supervisors run until `end` is cancelled.
    pub tasks: TaskTracker,
    pub end: CancellationToken,
}

/// Keeps one connection open. Clones share the connection.
#[derive(Clone)]
pub struct ConnectionSupervisor {
    link: watch::Receiver<Link>,
}

#[derive(Clone)]
enum Link {
    /// Not connected, for this reason; the supervisor keeps trying.
    Down(String),
    Up(Connection),
    /// Connected, but the broker accepts no messages, for this reason.
    Blocked(Connection, String),
}

/// One connection, until it is lost. Clones are the same connection.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<lapin::Connection>,
    /// Cancelled when the connection is lost. A user that receives no response in time cancels it,
    /// too.
    pub lost: CancellationToken,
}

/// Why a connection or one of its channels can no longer be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionLost {
    #[error("not connected")]
    NotConnected,
    #[error("the connection is lost")]
    Closed,
    #[error("the connection has ended")]
    Ended,
    #[error("the broker did not respond")]
    GivenUp,
    #[error("the broker did not respond within {limit:?} ({request})")]
    TimedOut {
        request: &'static str,
        limit: Duration,
    },
    #[error("the connection has no channel left: the broker has refused a request on each of them")]
    WornOut,
    #[error("the channel has ended")]
    ChannelEnded,
    #[error("the broker has cancelled the consumer")]
    ConsumerCancelled,
    #[error(transparent)]
    Client(#[from] lapin::Error),
}

impl Connection {
    /// Opens a channel. Abandons the connection if it has none left.
    pub async fn open_channel(&self) -> Result<Channel, ConnectionLost> {
        for _ in 0..=self.inner.configuration().channel_max() {
            let opened = self.within_limit("a channel", self.inner.create_channel());
            match opened.await? {
                // The reason for which the server has closed an earlier channel with this number.
                // The client library (4.12) keeps it, fails the next channel with the number by it,
                // and does not use the number again.
                Err(error) if error.is_amqp_soft_error() => {}
                Err(error) if matches!(error.kind(), ErrorKind::ChannelsLimitReached) => break,
                opened => return Ok(opened?),
            }
        }
        Err(self.give_up(ConnectionLost::WornOut))
    }

    /// Waits for the broker's response to a request, which `request` names in the log. Abandons the
    /// connection if there is none within [`RESPONSE_LIMIT`].
    pub async fn request<T>(
        &self,
        request: &'static str,
        response: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, ConnectionLost> {
        Ok(self.within_limit(request, response).await??)
    }

    /// Like [`request`](Self::request), for callers that handle the client library's errors
    /// themselves.
    pub async fn within_limit<T>(
        &self,
        request: &'static str,
        response: impl Future<Output = T>,
    ) -> Result<T, ConnectionLost> {
        tokio::select! {
            response = timeout(RESPONSE_LIMIT, response) => response.map_err(|_| self.abandon(request, RESPONSE_LIMIT)),
            () = self.lost.cancelled() => Err(ConnectionLost::Closed),
        }
    }

    /// Abandons the connection, because the broker did not respond to a request within `limit`.
    pub fn abandon(&self, request: &'static str, limit: Duration) -> ConnectionLost {
        self.give_up(ConnectionLost::TimedOut { request, limit })
    }

    /// Abandons the connection for this reason, unless it is lost already.
    fn give_up(&self, reason: ConnectionLost) -> ConnectionLost {
        if self.is_lost() {
            return ConnectionLost::Closed;
        }
        tracing::warn!(%reason, "abandoning the connection to the broker");
        self.lost.cancel();
        reason
    }

    /// Returns the size of the largest frame that both sides agreed on, in bytes.
    pub fn max_frame_bytes(&self) -> usize {
        usize::try_from(self.inner.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    fn ended(&self) -> bool {
        !self.inner.status().connected()
    }
}

impl Connector {
    /// Starts to connect. `purpose` is the rest of the connection's name, and its label in the
    /// metrics.
    pub fn start(&self, purpose: &'static str) -> ConnectionSupervisor {
        let (sender, link) = watch::channel(Link::Down("not tried yet".into()));
        let reconnector = Reconnector {
            uri: self.uri.clone(),
            tls: self.tls.clone(),
            name: format!("{} {purpose}", self.name),
            location: self.location.clone(),
            reconnects: counter_of(BROKER_RECONNECTS, Some(("connection", purpose))),
            link: sender,
            health: self.health.clone(),
        };
        let end = self.end.clone();
        self.tasks.spawn(async move {
            let name = format!("rabbitmq: connection {}", reconnector.name);
            supervise(&reconnector.health, &name, &end, || reconnector.run(&end)).await
        });
        ConnectionSupervisor { link }
    }
}

impl ConnectionSupervisor {
    /// Returns the connection, if there is one now.
    pub fn current(&self) -> Option<Connection> {
        self.link.borrow().connection()
    }

    /// Waits for a connection. Never returns once the broker is closed.
    pub async fn connected(&self) -> Connection {
        let mut link = self.link.clone();
        let connection = link
            .wait_for(|link| link.connection().is_some())
            .await
            .ok()
            .and_then(|link| link.connection());
        match connection {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    pub fn state(&self) -> BrokerState {
        match &*self.link.borrow() {
            Link::Down(reason) => BrokerState::Connecting(reason.clone()),
            Link::Up(_) => BrokerState::Connected,
            Link::Blocked(_, reason) => BrokerState::Blocked(reason.clone()),
        }
    }
}

impl Link {
    fn connection(&self) -> Option<Connection> {
        match self {
            Self::Down(_) => None,
            Self::Up(connection) | Self::Blocked(connection, _) => {
                (!connection.is_lost()).then(|| connection.clone())
            }
        }
    }
}

/// What a server reports to those whom it does not let in, and what can be done about it.
const REMEDIES: [(&str, &str); 5] = [
    (
        "ACCESS_REFUSED - Login",
        "check the user name and the password in the URL of the broker",
    ),
    (
        "NOT_ALLOWED - vhost",
        "correct the virtual host, which is the path of the broker's URL (%2f for /), or make it: rabbitmqctl add_vhost",
    ),
    (
        "NOT_ALLOWED - access to vhost",
        "let the user into the virtual host: rabbitmqctl set_permissions -p VHOST USER '.*' '.*' '.*'",
    ),
    (
        "Connection refused",
        "start the broker, or correct host and port in its URL",
    ),
    (
        "failed to lookup address",
        "correct the host in the URL of the broker",
    ),
];

/// Returns the reason why there is no connection, with what can be done about it.
fn with_remedy(reason: String) -> String {
    let remedy = REMEDIES
        .iter()
        .find(|(reported, _)| reason.contains(reported));
    match remedy {
        Some((_, remedy)) => format!("{reason}; {remedy}"),
        None => reason,
    }
}

/// The task behind a [`ConnectionSupervisor`].
struct Reconnector {
    uri: AMQPUri,
    /// For the scheme `amqps`.
    tls: Option<Arc<ClientConfig>>,
    name: String,
    location: String,
    reconnects: Counter,
    link: watch::Sender<Link>,
    health: Health,
}

impl Reconnector {
    async fn run(&self, end: &CancellationToken) {
        let delays = ExponentialBuilder::new()
            .with_min_delay(SHORTEST_DELAY)
            .with_max_delay(LONGEST_DELAY)
            .with_jitter()
            .without_max_times();
        let (mut delay, mut was_connected) = (delays.build(), false);
        loop {
            // However the connection ends, its sockets are closed at the end of this iteration.
            let sockets = Sockets::default();
            let Some(connected) = end.run_until_cancelled(self.connect(&sockets)).await else {
                return;
            };
            let reason = match connected {
                Ok(connection) => {
                    tracing::info!(broker = %self.location, name = %self.name, "connected to the broker");
                    delay = delays.build();
                    self.reconnects.increment(u64::from(was_connected));
                    was_connected = true;
                    // Also if this panics, its users must not wait for a connection that nobody
                    // watches.
                    let lost = connection.lost.clone().drop_guard();
                    let reason = self.watch(&connection, end).await;
                    drop(lost);
                    self.health.recover("broker", &self.name);
                    // The broker may be gone and never respond to the request to close.
                    drop(timeout(CLOSE_LIMIT, connection.inner.close(200, "closed".into())).await);
                    reason
                }
                Err(reason) => reason,
            };
            drop(sockets);
            if end.is_cancelled() {
                return;
            }
            self.set_down(&reason);
            end.run_until_cancelled(sleep(delay.next().unwrap_or(RESPONSE_LIMIT)))
                .await;
        }
    }

    /// Publishes the state and logs it, but only if the reason has changed.
    fn set_down(&self, reason: &ConnectionLost) {
        let reason = with_remedy(reason.to_string());
        let is_new = !matches!(&*self.link.borrow(), Link::Down(known) if *known == reason);
        if is_new {
            tracing::warn!(broker = %self.location, name = %self.name, %reason, "not connected to the broker; retrying until it is available");
        }
        self.link.send_replace(Link::Down(reason));
    }

    async fn connect(&self, sockets: &Sockets) -> Result<Connection, ConnectionLost> {
        let properties =
            ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let connecting = sockets.connect(self.uri.clone(), self.tls.clone(), properties);
        let inner =
            timeout(RESPONSE_LIMIT, connecting)
                .await
                .map_err(|_| ConnectionLost::TimedOut {
                    request: "a connection",
                    limit: RESPONSE_LIMIT,
                })??;
        let connection = Connection {
            inner: Arc::new(inner),
            lost: CancellationToken::new(),
        };
        self.link.send_replace(Link::Up(connection.clone()));
        Ok(connection)
    }

    /// Waits until the connection is lost, and returns the reason. Publishes meanwhile whether the
    /// broker blocks it.
    async fn watch(&self, connection: &Connection, end: &CancellationToken) -> ConnectionLost {
        let mut events = Box::pin(connection.inner.events_listener());
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(broker = %self.location, %reason, "the broker blocks publishers");
                        let text = format!("the broker blocks publishers: {reason}");
                        self.health.degrade("broker", &self.name, text);
                        self.link.send_replace(Link::Blocked(connection.clone(), reason));
                    }
                    Some(Event::ConnectionUnblocked) => {
                        tracing::info!(broker = %self.location, "the broker accepts messages again");
                        self.health.recover("broker", &self.name);
                        self.link.send_replace(Link::Up(connection.clone()));
                    }
                    // The error of a single channel is handled by its user.
                    Some(Event::Error(error)) if connection.ended() => return error.into(),
                    Some(_) => {}
                    None => return ConnectionLost::Ended,
                },
                () = sleep(CHECK_INTERVAL) => if connection.ended() {
                    return ConnectionLost::Ended;
                },
                () = connection.lost.cancelled() => return ConnectionLost::GivenUp,
                () = end.cancelled() => return ConnectionLost::Closed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_why_a_server_lets_nobody_in_ends_with_the_remedy() {
        for (reported, ending) in [
            (
                "protocol error: AMQP soft error: ACCESS-REFUSED: ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.",
                "PLAIN.; check the user name and the password in the URL of the broker",
            ),
            (
                "protocol error: AMQP hard error: NOT-ALLOWED: NOT_ALLOWED - vhost nope not found",
                "not found; correct the virtual host, which is the path of the broker's URL (%2f for /), or make it: rabbitmqctl add_vhost",
            ),
            (
                "NOT_ALLOWED - access to vhost 'jobs' refused for user 'ann'",
                "'ann'; let the user into the virtual host: rabbitmqctl set_permissions -p VHOST USER '.*' '.*' '.*'",
            ),
            (
                "IO error: Connection refused (os error 111)",
                "(os error 111); start the broker, or correct host and port in its URL",
            ),
            (
                "IO error: failed to lookup address information: Name or service not known",
                "not known; correct the host in the URL of the broker",
            ),
            ("the connection is lost", "the connection is lost"),
        ] {
            let reason = with_remedy(reported.to_owned());
            assert!(
                reason.starts_with(reported) && reason.ends_with(ending),
                "{reason}"
            );
        }
    }
}
