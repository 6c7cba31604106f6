//! How pipes, delays and headers map to queues and properties of `RabbitMQ`.
//!
//! What must stay true:
//! - A declaration or a probe never shares a channel with anything else, because the broker closes
//!   a channel when it refuses a request.
//! - A request on such a channel runs to its end, even if its caller has left. The client library
//!   would close a dropped channel, and if the broker closes the channel at the same moment, lapin
//!   4.12 gives up the whole connection with all its consumers.
//! - A message is delayed only in a queue with exactly the arguments of a delay queue. In any other
//!   queue of that name it would be confirmed and never come back.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::time::Duration;

use contract::{delay_pipe, is_delay_pipe};
use lapin::options::QueueDeclareOptions;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ErrorKind};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::QueueType;
use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use crate::broker::{HeaderValue, Headers, PipeState};
use crate::clock::Clock;

/// Headers that the broker sets itself. They describe one delivery, so they are dropped when a
/// message is forwarded.
const BROKER_HEADERS: [&str; 3] = ["x-delivery-count", "x-acquired-count", "x-death"];
const FIRST_DEATH: &str = "x-first-death-";
/// How the names of queues begin that nobody may declare.
const RESERVED: &str = "amq.";
/// What a frame with headers holds besides them, at most.
const FRAME_ROOM: usize = 256;
const DELIVERY_COUNT: &str = "x-delivery-count";
/// How often the delay queues with other arguments are declared again, to notice that they are
/// deleted.
const RECHECK: Duration = Duration::from_secs(5);

/// Declares queues and asks for their depth.
pub struct Queues {
    queue_type: QueueType,
    /// 0: none.
    max_priority: u8,
    declare: bool,
    /// Queues that were declared elsewhere with other arguments. Each is logged once.
    foreign: Mutex<HashSet<String>>,
    /// Delay queues that exist with other arguments, each with its pipe and delay.
    unusable: Mutex<BTreeMap<String, (String, Duration)>>,
    /// Notified when `unusable` is no longer empty.
    found_unusable: Notify,
    /// Held while a queue is declared. While `RabbitMQ` creates a quorum queue for one client, it
    /// already confirms the declaration of a second client, but refuses messages until the queue is
    /// ready. These messages would be published again, after later ones.
    declaring: tokio::sync::Mutex<()>,
    /// Where the requests run.
    requests: TaskTracker,
}

/// Why a queue cannot be declared or probed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// No queue can have this name or these arguments.
    #[error("{0}")]
    Impossible(Box<dyn Error + Send + Sync>),
    /// The broker refuses the request, for example because the user may not declare queues.
    #[error("{0}")]
    Refused(Box<dyn Error + Send + Sync>),
    /// The delay queue exists with other arguments.
    #[error(
        "the delay queue {queue} exists with other arguments, so delayed messages would not come back from it; delete it: {reason}"
    )]
    Unusable { queue: String, reason: lapin::Error },
    /// The queue does not exist. The broker also refuses a declaration with this error if the queue
    /// exists but cannot be reached now, e.g. because its node is down.
    #[error(transparent)]
    NotFound(lapin::Error),
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}

impl QueueError {
    fn impossible(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Impossible(reason.into())
    }
}

impl From<lapin::Error> for QueueError {
    fn from(error: lapin::Error) -> Self {
        if is_soft(&error, AMQPSoftError::NOTFOUND) {
            Self::NotFound(error)
        } else if is_soft(&error, AMQPSoftError::PRECONDITIONFAILED) {
            Self::impossible(error)
        } else if error.is_amqp_soft_error() {
            Self::Refused(error.into())
        } else {
            Self::Lost(error.into())
        }
    }
}

impl Queues {
    pub fn new(
        queue_type: QueueType,
        max_priority: u8,
        declare: bool,
        requests: TaskTracker,
    ) -> Self {
        if max_priority > 0 && queue_type == QueueType::Quorum {
            tracing::warn!(
                max_priority,
                "quorum queues have no priorities; declaring them without x-max-priority"
            );
        }
        Self {
            queue_type,
            max_priority,
            declare,
            foreign: Mutex::default(),
            unusable: Mutex::default(),
            found_unusable: Notify::new(),
            declaring: tokio::sync::Mutex::default(),
            requests,
        }
    }

    /// Declares the queue of a pipe, and the queue for `delay` if one is given.
    pub async fn declare(
        &self,
        connection: &Connection,
        pipe: &str,
        delay: Option<Duration>,
    ) -> Result<(), QueueError> {
        if !self.declare {
            return Ok(());
        }
        if let Some(error) = self
            .declare_queue(
                connection,
                pipe,
                arguments(self.queue_type, self.max_priority),
            )
            .await?
        {
            if is_delay_pipe(pipe) {
                return Err(QueueError::impossible(format!(
                    "the queue holds the delayed messages of another pipe ({error})"
                )));
            }
            self.log_foreign(pipe, &error);
        }
        let Some(delay) = delay else { return Ok(()) };
        self.declare_delay(connection, pipe, delay).await
    }

    /// Declares the queue for a delay. One that another process of ours has declared, with other
    /// settings, is as good.
    async fn declare_delay(
        &self,
        connection: &Connection,
        pipe: &str,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let queue = delay_queue(pipe, delay);
        let mut mismatch = None;
        for (queue_type, max_priority) in [
            (self.queue_type, self.max_priority),
            (QueueType::Quorum, 0),
            (QueueType::Classic, 0),
        ] {
            let arguments = delay_arguments(queue_type, max_priority, pipe, delay);
            let Some(reason) = self.declare_queue(connection, &queue, arguments).await? else {
                if self.unusable().remove(&queue).is_some() {
                    tracing::info!(queue, "the delay queue has the right arguments now");
                }
                return Ok(());
            };
            mismatch.get_or_insert(reason);
        }
        let Some(reason) = mismatch else {
            return Ok(());
        };
        let error = QueueError::Unusable {
            queue: queue.clone(),
            reason,
        };
        let known = (pipe.to_owned(), delay);
        if self.unusable().insert(queue, known).is_none() {
            tracing::error!("{error}");
            self.found_unusable.notify_one();
        }
        Err(error)
    }

    /// Returns which delay queues cannot be used, for health checks; `None` if all can.
    pub fn impairment(&self) -> Option<String> {
        let unusable = self.unusable();
        let names: Vec<&str> = unusable.keys().map(String::as_str).collect();
        (!names.is_empty()).then(|| {
            format!(
                "delay queues exist with other arguments, so messages cannot be delayed in them; delete {}",
                names.join(", ")
            )
        })
    }

    /// Declares the unusable delay queues again from time to time, as long as there are any. Never
    /// returns.
    pub async fn recheck(&self, supervisor: ConnectionSupervisor) {
        loop {
            while self.impairment().is_some() {
                sleep(RECHECK).await;
                let connection = supervisor.connected().await;
                let unusable = self.unusable().clone();
                for (pipe, delay) in unusable.into_values() {
                    // A failure was logged when the queue was found.
                    drop(self.declare(&connection, &pipe, Some(delay)).await);
                }
            }
            self.found_unusable.notified().await;
        }
    }

    fn unusable(&self) -> MutexGuard<'_, BTreeMap<String, (String, Duration)>> {
        self.unusable.lock()
    }

    /// Returns how many messages are ready in a queue, and how many consumers it has; `None` if it
    /// does not exist. Does not declare the queue, because it may be a delay queue whose arguments
    /// this method does not know: messages in it would never reach their pipe.
    pub async fn look(
        &self,
        connection: &Connection,
        pipe: &str,
    ) -> Result<Option<PipeState>, QueueError> {
        match self.probe(connection, pipe).await {
            Err(QueueError::NotFound(_)) => Ok(None),
            probed => probed.map(Some),
        }
    }

    /// Returns how many messages are ready in a queue, without declaring it.
    async fn probe(&self, connection: &Connection, queue: &str) -> Result<PipeState, QueueError> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let queue = self
            .ask(connection, queue, passive, FieldTable::default())
            .await??;
        Ok(PipeState {
            messages: queue.message_count().into(),
            consumers: Some(queue.consumer_count().into()),
            ..PipeState::default()
        })
    }

    /// Sends the declaration of a queue, and returns what the broker answers. The request runs to
    /// its end, whether the caller waits for it or not.
    async fn ask(
        &self,
        connection: &Connection,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<lapin::Result<lapin::Queue>, QueueError> {
        let name = ShortString::try_new(queue).map_err(QueueError::impossible)?;
        let connection = connection.clone();
        let request = self.requests.spawn(async move {
            let channel = connection.open_channel().await?;
            let declare = channel.queue_declare(name, options, arguments);
            let declared = connection.within_limit("a declaration", declare).await?;
            if declared.is_ok() {
                end(&connection, &channel).await?;
            }
            Ok(declared)
        });
        let ended = request.await.unwrap_or(Err(ConnectionLost::Ended));
        Ok(ended?)
    }

    /// Declares a queue that exists, which changes nothing. Returns what the broker says if it has
    /// other arguments.
    pub async fn other_arguments(
        &self,
        connection: &Connection,
        pipe: &str,
    ) -> Result<Option<String>, QueueError> {
        let arguments = arguments(self.queue_type, self.max_priority);
        let difference = self.declare_queue(connection, pipe, arguments).await?;
        Ok(difference.map(|error| error.to_string()))
    }

    /// Declares a queue. Returns the broker's error if the queue exists with other arguments.
    async fn declare_queue(
        &self,
        connection: &Connection,
        queue: &str,
        arguments: FieldTable,
    ) -> Result<Option<lapin::Error>, QueueError> {
        let _turn = self.declaring.lock().await;
        let durable = QueueDeclareOptions::durable();
        let Err(error) = self.ask(connection, queue, durable, arguments).await? else {
            return Ok(None);
        };
        if queue.starts_with(RESERVED) && is_soft(&error, AMQPSoftError::ACCESSREFUSED) {
            return Err(QueueError::impossible(error));
        }
        if !is_soft(&error, AMQPSoftError::PRECONDITIONFAILED) {
            return Err(error.into());
        }
        match self.probe(connection, queue).await {
            Ok(_) => Ok(Some(error)),
            Err(lost @ QueueError::Lost(_)) => Err(lost),
            Err(_) => Err(error.into()),
        }
    }

    fn log_foreign(&self, queue: &str, reason: &lapin::Error) {
        let is_new = self.foreign.lock().insert(queue.to_owned());
        if is_new {
            tracing::warn!(
                pipe = queue,
                %reason,
                "the queue of this pipe was declared with other arguments; using it as it is"
            );
        }
    }
}

fn arguments(queue_type: QueueType, max_priority: u8) -> FieldTable {
    let mut arguments = FieldTable::default();
    let type_name = match queue_type {
        QueueType::Quorum => "quorum",
        QueueType::Classic => "classic",
    };
    arguments.insert("x-queue-type".into(), text(type_name));
    if max_priority > 0 && queue_type == QueueType::Classic {
        arguments.insert(
            "x-max-priority".into(),
            AMQPValue::LongInt(max_priority.into()),
        );
    }
    arguments
}

/// Arguments of a queue in which messages wait for `delay`, after which the broker dead-letters
/// them into the pipe. Without either of the last two arguments, a crash could lose a message.
fn delay_arguments(
    queue_type: QueueType,
    max_priority: u8,
    pipe: &str,
    delay: Duration,
) -> FieldTable {
    let mut arguments = arguments(queue_type, max_priority);
    arguments.insert(
        "x-message-ttl".into(),
        AMQPValue::LongLongInt(millis(delay)),
    );
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(pipe));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    if queue_type == QueueType::Quorum {
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    }
    arguments
}

/// Returns the name of the queue for messages with this delay. Each delay has a queue of its own,
/// so that no message waits behind one with a longer delay.
pub fn delay_queue(pipe: &str, delay: Duration) -> String {
    delay_pipe(pipe, millis(delay))
}

/// Returns the properties of a message with these headers that is sent now. Fails if a name is
/// longer than the protocol's 255 bytes, or if the headers do not fit into one frame of this size:
/// the broker would close the connection.
pub fn properties(
    headers: &Headers,
    delay: Option<Duration>,
    frame: usize,
) -> Result<BasicProperties, String> {
    let mut table = FieldTable::default();
    let mut bytes = FRAME_ROOM;
    for (name, value) in headers.iter().filter(|(name, _)| !is_broker_header(name)) {
        let name =
            ShortString::try_new(name).map_err(|error| format!("the header {name}: {error}"))?;
        // A length and a type each for name and value.
        bytes += name.as_str().len() + 6;
        let value = match value {
            HeaderValue::Text(value) => {
                bytes += value.len();
                text(value)
            }
            HeaderValue::Integer(value) => {
                bytes += size_of::<i64>();
                AMQPValue::LongLongInt(*value)
            }
        };
        table.insert(name, value);
    }
    if bytes > frame {
        return Err(format!(
            "its headers take {bytes} bytes; the broker accepts {frame}"
        ));
    }
    Ok(BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_delivery_mode(2)
        .with_timestamp(sent_at(delay))
        .with_headers(table))
}

/// Returns when a message that is sent now with this delay begins to wait in its pipe, in seconds
/// since 1970.
fn sent_at(delay: Option<Duration>) -> u64 {
    let delay = delay.map_or(0, millis);
    let at = Clock::system().now_millis().saturating_add(delay) / 1000;
    at.try_into().unwrap_or(0)
}

/// Returns when a received message was sent, in seconds since 1970, if its publisher says so.
/// Others than ours may.
pub fn sent(properties: &BasicProperties) -> Option<i64> {
    let sent = properties.timestamp().and_then(|sent| sent.try_into().ok());
    // Some publishers set it to nothing.
    sent.filter(|sent: &i64| *sent > 0)
}

/// Returns the headers of a received message, and how often it was delivered before.
pub fn headers(properties: &BasicProperties, redelivered: bool) -> (Headers, u32) {
    let mut headers = Headers::default();
    let mut delivery_count = u32::from(redelivered);
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if name.as_str() == DELIVERY_COUNT {
            if let Some(HeaderValue::Integer(count)) = header_value(value) {
                delivery_count = u32::try_from(count).unwrap_or(0);
            }
        } else if !is_broker_header(name.as_str())
            && let Some(value) = header_value(value)
        {
            headers.set(name.as_str(), value);
        }
    }
    (headers, delivery_count)
}

/// Converts a header. Returns `None` for types that [`HeaderValue`] does not have.
fn header_value(value: &AMQPValue) -> Option<HeaderValue> {
    match value {
        AMQPValue::LongString(text) => Some(HeaderValue::Text(
            String::from_utf8_lossy(text.as_bytes()).into(),
        )),
        AMQPValue::ShortString(text) => Some(HeaderValue::Text(text.as_str().into())),
        AMQPValue::ShortShortInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::ShortShortUInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::ShortInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::ShortUInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::LongInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::LongUInt(n) => Some(HeaderValue::Integer((*n).into())),
        AMQPValue::LongLongInt(n) => Some(HeaderValue::Integer(*n)),
        _ => None,
    }
}

fn is_broker_header(name: &str) -> bool {
    BROKER_HEADERS.contains(&name) || name.starts_with(FIRST_DEATH)
}

pub fn is_soft(error: &lapin::Error, soft: AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == AMQPErrorKind::Soft(soft))
}

/// Closes a channel that has served its purpose.
pub async fn end(connection: &Connection, channel: &Channel) -> Result<(), ConnectionLost> {
    let closing = channel.close(200, "done".into());
    // Whatever the reason is, the channel has ended.
    connection
        .within_limit("the end of a channel", closing)
        .await
        .map(drop)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn millis(delay: Duration) -> i64 {
    i64::try_from(delay.as_millis()).unwrap_or(i64::MAX).max(1)
}
