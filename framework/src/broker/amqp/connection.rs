//! A connection that is always made again.
//!
//! What must stay true: whoever uses a connection stops when its `lost` token is cancelled, and never waits for the client
//! library to say that the connection is gone; it may not. A connection that is given up leaves neither a thread nor a socket.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::StreamExt as _;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Event};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ANSWER_LIMIT;
use super::socket::Sockets;
use crate::broker::BrokerState;

/// How often the client library's own idea of the connection is looked at, should it forget to say what happened.
const LOOK: Duration = Duration::from_secs(1);
/// Between two attempts to connect, half of it by chance.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// One supervised connection. Clones are the same one.
#[derive(Clone)]
pub struct Line {
    link: watch::Receiver<Link>,
}

#[derive(Clone)]
enum Link {
    /// Why, and it is being tried again.
    Down(String),
    Up(Live),
    /// Connected, but the broker takes no messages.
    Blocked(Live, String),
}

/// A connection while it lasts.
#[derive(Clone)]
pub struct Live {
    connection: Arc<Connection>,
    /// Cancelled when the connection is gone, and by anyone who finds it dead.
    pub lost: CancellationToken,
}

impl Live {
    pub async fn channel(&self) -> Result<Channel, Lost> {
        self.within_limit("a channel", self.connection.create_channel())
            .await?
            .map_err(|error| Lost(error.to_string()))
    }

    /// Waits for the broker's answer; a connection that does not give one in time is given up.
    pub async fn within_limit<T>(
        &self,
        what: &str,
        answer: impl Future<Output = T>,
    ) -> Result<T, Lost> {
        tokio::select! {
            answer = timeout(ANSWER_LIMIT, answer) => answer.map_err(|_| self.give_up(what, ANSWER_LIMIT)),
            () = self.lost.cancelled() => Err(Lost("the connection is lost".into())),
        }
    }

    /// The broker owed something for too long.
    pub fn give_up(&self, what: &str, limit: Duration) -> Lost {
        if self.lost.is_cancelled() {
            return Lost("the connection is lost".into());
        }
        let reason = format!("the broker did not answer within {limit:?} ({what})");
        tracing::warn!(%reason, "giving up the connection to the broker");
        self.lost.cancel();
        Lost(reason)
    }
}

/// The connection, or a channel of it, is no more.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

impl Line {
    pub fn start(
        uri: AMQPUri,
        name: String,
        place: String,
        tasks: &TaskTracker,
        end: &CancellationToken,
    ) -> Self {
        let (sender, link) = watch::channel(Link::Down("not tried yet".into()));
        tasks.spawn(
            Supervisor {
                uri,
                name,
                place,
                link: sender,
            }
            .run(end.clone()),
        );
        Self { link }
    }

    /// The connection, if there is one now.
    pub fn live(&self) -> Option<Live> {
        self.link.borrow().live()
    }

    /// Waits for a connection; never when the broker is closed.
    pub async fn up(&self) -> Live {
        let mut link = self.link.clone();
        let live = link
            .wait_for(|link| link.live().is_some())
            .await
            .ok()
            .and_then(|link| link.live());
        match live {
            Some(live) => live,
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
    fn live(&self) -> Option<Live> {
        match self {
            Self::Down(_) => None,
            Self::Up(live) | Self::Blocked(live, _) => {
                (!live.lost.is_cancelled()).then(|| live.clone())
            }
        }
    }
}

struct Supervisor {
    uri: AMQPUri,
    name: String,
    place: String,
    link: watch::Sender<Link>,
}

impl Supervisor {
    async fn run(self, end: CancellationToken) {
        let delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(LONGEST_PAUSE)
            .with_jitter();
        let mut delay = delays.without_max_times().build();
        loop {
            // Whatever becomes of the connection, its sockets go with this turn.
            let sockets = Sockets::default();
            let Some(connected) = end.run_until_cancelled(self.connect(&sockets)).await else {
                return;
            };
            let reason = match connected {
                Ok(live) => {
                    tracing::info!(broker = %self.place, name = %self.name, "connected to the broker");
                    delay = delays.without_max_times().build();
                    let reason = self.watch(&live, &end).await;
                    live.lost.cancel();
                    // In good order if the other side still listens, which it need not.
                    drop(timeout(CLOSE_LIMIT, live.connection.close(200, "closed".into())).await);
                    reason
                }
                Err(reason) => reason,
            };
            drop(sockets);
            if end.is_cancelled() {
                return;
            }
            self.down(reason);
            end.run_until_cancelled(sleep(delay.next().unwrap_or(ANSWER_LIMIT)))
                .await;
        }
    }

    /// Said once, however often it is tried again for the same reason.
    fn down(&self, reason: String) {
        let is_news = !matches!(&*self.link.borrow(), Link::Down(known) if *known == reason);
        if is_news {
            tracing::warn!(broker = %self.place, name = %self.name, %reason, "not connected to the broker; trying again until it is there");
        }
        self.link.send_replace(Link::Down(reason));
    }

    async fn connect(&self, sockets: &Sockets) -> Result<Live, String> {
        let properties =
            ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let connection = timeout(ANSWER_LIMIT, sockets.connect(self.uri.clone(), properties))
            .await
            .map_err(|_| format!("no answer within {ANSWER_LIMIT:?}"))?
            .map_err(|error| error.to_string())?;
        let live = Live {
            connection: Arc::new(connection),
            lost: CancellationToken::new(),
        };
        self.link.send_replace(Link::Up(live.clone()));
        Ok(live)
    }

    /// Returns when the connection is gone, with the reason.
    async fn watch(&self, live: &Live, end: &CancellationToken) -> String {
        let mut events = Box::pin(live.connection.events_listener());
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(broker = %self.place, %reason, "the broker holds publishers back");
                        self.link.send_replace(Link::Blocked(live.clone(), reason));
                    }
                    Some(Event::ConnectionUnblocked) => {
                        tracing::info!(broker = %self.place, "the broker takes messages again");
                        self.link.send_replace(Link::Up(live.clone()));
                    }
                    // A channel's error is the business of whoever has the channel.
                    Some(Event::Error(error)) if !live.connection.status().connected() => return error.to_string(),
                    Some(_) => {}
                    None => return "the connection has ended".into(),
                },
                () = sleep(LOOK) => if !live.connection.status().connected() {
                    return "the connection has ended".into();
                },
                () = live.lost.cancelled() => return "the broker did not answer".into(),
                () = end.cancelled() => return "closed".into(),
            }
        }
    }
}
