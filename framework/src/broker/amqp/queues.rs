//! How pipes, delays, headers and bodies look to `RabbitMQ`.
//!
//! What must stay true: a declaration or a probe never shares a channel with anything else, because a refusal closes the
//! channel.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, ErrorKind};

use super::QueueType;
use super::connection::{Live, Lost};
use crate::broker::{HeaderValue, Headers};

/// Headers by which the broker itself speaks; they say nothing about a message that is published again.
const BROKERS_OWN: [&str; 3] = ["x-delivery-count", "x-acquired-count", "x-death"];
const FIRST_DEATH: &str = "x-first-death-";
const DELIVERY_COUNT: &str = "x-delivery-count";

pub struct Queues {
    queue_type: QueueType,
    /// 0: none.
    max_priority: u8,
    declare: bool,
    /// Queues that somebody else has declared in another way; said once.
    foreign: Mutex<HashSet<String>>,
    /// Held while a queue is declared. `RabbitMQ` tells a second declarer that a quorum queue is there while it still makes it for the
    /// first, and refuses what is published to it until it is made: those messages would arrive after later ones.
    declaring: tokio::sync::Mutex<()>,
}

/// Why there is no queue.
#[derive(Debug, thiserror::Error)]
pub enum Undeclared {
    #[error("{0}")]
    Refused(String),
    /// A queue that is there and cannot be reached now, e.g. because its node is down.
    #[error("{0}")]
    Away(String),
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Queues {
    pub fn new(queue_type: QueueType, max_priority: u8, declare: bool) -> Self {
        if max_priority > 0 && queue_type == QueueType::Quorum {
            tracing::warn!(
                max_priority,
                "quorum queues know no priorities; they are declared without"
            );
        }
        Self {
            queue_type,
            max_priority,
            declare,
            foreign: Mutex::default(),
            declaring: tokio::sync::Mutex::default(),
        }
    }

    /// Sees to it that the pipe's queue exists, and the queue for a delay if one is given.
    pub async fn declare(
        &self,
        live: &Live,
        pipe: &str,
        delay: Option<Duration>,
    ) -> Result<(), Undeclared> {
        if !self.declare {
            return Ok(());
        }
        self.declare_queue(live, pipe, self.arguments()).await?;
        let Some(delay) = delay else { return Ok(()) };
        self.declare_queue(
            live,
            &delay_queue(pipe, delay),
            self.delay_arguments(pipe, delay),
        )
        .await
    }

    /// How many messages are ready in the queue; none when there is no such queue. Looking must not make one: declared from here, a
    /// delay pipe would be a pipe that nothing ever comes back from.
    pub async fn depth(&self, live: &Live, pipe: &str) -> Result<u64, String> {
        match passive(live, pipe).await {
            Ok(ready) => Ok(ready),
            Err(Refusal::NotFound) => Ok(0),
            Err(Refusal::Other(reason)) => Err(reason),
            Err(Refusal::Lost(lost)) => Err(lost.to_string()),
        }
    }

    async fn declare_queue(
        &self,
        live: &Live,
        queue: &str,
        arguments: FieldTable,
    ) -> Result<(), Undeclared> {
        let name =
            ShortString::try_new(queue).map_err(|error| Undeclared::Refused(error.to_string()))?;
        let _turn = self.declaring.lock().await;
        let channel = live.channel().await?;
        let declared = live.within_limit(
            "a declaration",
            channel.queue_declare(name, QueueDeclareOptions::durable(), arguments),
        );
        let Err(error) = declared.await? else {
            drop(channel.close(200, "declared".into()).await);
            return Ok(());
        };
        match refusal(&error) {
            Refusal::Other(reason) if is_soft(&error, AMQPSoftError::PRECONDITIONFAILED) => {
                match passive(live, queue).await {
                    Ok(_) => {
                        self.say_once(queue, &reason);
                        Ok(())
                    }
                    Err(Refusal::Lost(lost)) => Err(lost.into()),
                    Err(_) => Err(Undeclared::Refused(reason)),
                }
            }
            Refusal::Lost(lost) => Err(lost.into()),
            Refusal::NotFound => Err(Undeclared::Away(error.to_string())),
            Refusal::Other(_) => Err(Undeclared::Refused(error.to_string())),
        }
    }

    fn say_once(&self, queue: &str, reason: &str) {
        let is_news = self
            .foreign
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(queue.to_owned());
        if is_news {
            tracing::warn!(
                pipe = queue,
                reason,
                "this pipe has been declared otherwise; using it as it is"
            );
        }
    }

    fn arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let queue_type = match self.queue_type {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), text(queue_type));
        if self.max_priority > 0 && self.queue_type == QueueType::Classic {
            arguments.insert(
                "x-max-priority".into(),
                AMQPValue::LongInt(self.max_priority.into()),
            );
        }
        arguments
    }

    /// A message waits here for its time to live and is then "dead-lettered" into the pipe. Only with both of the last
    /// two arguments can a crash not lose it.
    fn delay_arguments(&self, pipe: &str, delay: Duration) -> FieldTable {
        let mut arguments = self.arguments();
        arguments.insert(
            "x-message-ttl".into(),
            AMQPValue::LongLongInt(millis(delay)),
        );
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(pipe));
        arguments.insert("x-overflow".into(), text("reject-publish"));
        if self.queue_type == QueueType::Quorum {
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        }
        arguments
    }
}

/// One queue for each delay, so that nothing waits behind a longer one.
pub fn delay_queue(pipe: &str, delay: Duration) -> String {
    format!("{pipe}.delay.{}", millis(delay))
}

/// What a message carries besides its body. Fails when a name is longer than the protocol's 255 bytes.
pub fn properties(headers: &Headers) -> Result<BasicProperties, String> {
    let mut table = FieldTable::default();
    for (name, value) in headers.iter().filter(|(name, _)| !is_brokers_own(name)) {
        let name =
            ShortString::try_new(name).map_err(|error| format!("the header {name}: {error}"))?;
        let value = match value {
            HeaderValue::Text(value) => text(value),
            HeaderValue::Integer(value) => AMQPValue::LongLongInt(*value),
        };
        table.insert(name, value);
    }
    Ok(BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_delivery_mode(2)
        .with_headers(table))
}

/// A received message's headers, and how often it had been delivered before.
pub fn headers(properties: &BasicProperties, redelivered: bool) -> (Headers, u32) {
    let mut headers = Headers::default();
    let mut delivery_count = u32::from(redelivered);
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if name.as_str() == DELIVERY_COUNT {
            if let Some(HeaderValue::Integer(count)) = known(value) {
                delivery_count = u32::try_from(count).unwrap_or(0);
            }
        } else if !is_brokers_own(name.as_str())
            && let Some(value) = known(value)
        {
            headers.set(name.as_str(), value);
        }
    }
    (headers, delivery_count)
}

fn known(value: &AMQPValue) -> Option<HeaderValue> {
    match value {
        AMQPValue::LongString(text) => Some(HeaderValue::Text(
            String::from_utf8_lossy(text.as_bytes()).into_owned(),
        )),
        AMQPValue::ShortString(text) => Some(HeaderValue::Text(text.to_string())),
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

fn is_brokers_own(name: &str) -> bool {
    BROKERS_OWN.contains(&name) || name.starts_with(FIRST_DEATH)
}

/// What an error means for a queue.
enum Refusal {
    NotFound,
    Other(String),
    Lost(Lost),
}

fn refusal(error: &lapin::Error) -> Refusal {
    if is_soft(error, AMQPSoftError::NOTFOUND) {
        Refusal::NotFound
    } else if error.is_amqp_soft_error() {
        Refusal::Other(error.to_string())
    } else {
        Refusal::Lost(Lost(error.to_string()))
    }
}

fn is_soft(error: &lapin::Error, soft: AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == AMQPErrorKind::Soft(soft))
}

/// Looks at a queue without changing anything: how many messages are ready.
async fn passive(live: &Live, queue: &str) -> Result<u64, Refusal> {
    let name = ShortString::try_new(queue).map_err(|error| Refusal::Other(error.to_string()))?;
    let channel = live.channel().await.map_err(Refusal::Lost)?;
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::durable()
    };
    let declared = live
        .within_limit(
            "a queue's depth",
            channel.queue_declare(name, options, FieldTable::default()),
        )
        .await;
    let queue = declared
        .map_err(Refusal::Lost)?
        .map_err(|error| refusal(&error))?;
    drop(channel.close(200, "looked".into()).await);
    Ok(queue.message_count().into())
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn millis(delay: Duration) -> i64 {
    i64::try_from(delay.as_millis()).unwrap_or(i64::MAX).max(1)
}
