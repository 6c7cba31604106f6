//! Announcements and signs of life: a fan-out exchange for each, and for each subscriber a queue
//! that is deleted with its connection.
//!
//! Every worker binds the exchange of announcements, and takes a message that it does not
//! understand for news of every job. So signs of life, which only job services read, have an
//! exchange of their own.
//!
//! A process sends at most some twenty announcements a second, and a sign every few seconds, so
//! each one takes a channel of its own. A subscriber that loses its channel reports
//! [`Event::Missed`] and subscribes again.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, ExchangeKind};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use super::queues::{end, is_soft};
use crate::broker::Event;

/// The exchange of announcements.
pub const CONTROL: &str = "batchwright.control";
/// The exchange of signs of life.
pub const WORKERS: &str = "batchwright.workers";
/// The delay before a lost subscription is made again.
const RESUBSCRIBE_DELAY: Duration = Duration::from_millis(500);
/// The longest delay, after which a subscription that is refused again and again is tried once
/// more.
const LONGEST_DELAY: Duration = Duration::from_mins(1);

/// Publishes a message to the exchange and waits for the broker's confirm.
pub async fn announce(
    supervisor: &ConnectionSupervisor,
    exchange: &'static str,
    body: Bytes,
) -> Result<(), ConnectionLost> {
    let connection = supervisor.current().ok_or(ConnectionLost::NotConnected)?;
    let channel = channel_with_exchange(&connection, exchange).await?;
    let confirmed = async {
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(
                exchange.into(),
                "".into(),
                options,
                &body,
                BasicProperties::default(),
            )
            .await?
            .await
    };
    connection.request("an announcement", confirmed).await?;
    // It is confirmed, whatever becomes of the channel.
    drop(end(&connection, &channel).await);
    Ok(())
}

/// Sends all messages of the exchange to `events` until the receiver is dropped.
pub async fn subscribe(
    supervisor: &ConnectionSupervisor,
    exchange: &'static str,
    events: &mpsc::Sender<Event>,
) {
    let mut refusals = Refusals::default();
    loop {
        let connection = tokio::select! {
            connection = supervisor.connected() => connection,
            () = events.closed() => return,
        };
        let delay = match subscribe_on(&connection, exchange, events, &mut refusals).await {
            Ok(()) => return,
            Err(reason) => {
                let (delay, is_new) = refusals.add(reason.to_string());
                if is_new {
                    tracing::warn!(
                        %reason,
                        exchange,
                        "not subscribed to an exchange; trying again, less and less often if the reason stays. If access is refused, grant \
                         the user of this process the rights to configure, write and read the exchange"
                    );
                }
                delay
            }
        };
        tokio::select! {
            () = sleep(delay) => {}
            () = events.closed() => return,
        }
    }
}

/// Why there was no subscription since the last one, so that the same reason is told once and costs
/// little.
#[derive(Debug, Default)]
pub struct Refusals {
    reason: Option<String>,
    /// How often the same reason has come in succession.
    times: u32,
}

impl Refusals {
    /// Notes a reason. Returns how long to wait, and whether it has not been told.
    pub fn add(&mut self, reason: String) -> (Duration, bool) {
        let is_new = self.reason.as_ref() != Some(&reason);
        self.times = if is_new { 0 } else { self.times + 1 };
        self.reason = Some(reason);
        let delay = RESUBSCRIBE_DELAY.saturating_mul(1 << self.times.min(16));
        (delay.min(LONGEST_DELAY), is_new)
    }

    /// Notes that there is a subscription.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

async fn subscribe_on(
    connection: &Connection,
    exchange: &'static str,
    events: &mpsc::Sender<Event>,
    refusals: &mut Refusals,
) -> Result<(), ConnectionLost> {
    let channel = channel_with_exchange(connection, exchange).await?;
    let consume = async {
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel
            .queue_declare("".into(), options, FieldTable::default())
            .await?
            .name()
            .clone();
        channel
            .queue_bind(
                queue.clone(),
                exchange.into(),
                "".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        channel
            .basic_consume(queue, "".into(), options, FieldTable::default())
            .await
    };
    let mut messages = connection.request("a subscription", consume).await?;
    refusals.end();
    // Announcements from before this moment were not received.
    let mut event = Event::Missed;
    loop {
        if events.send(event).await.is_err() {
            return Ok(());
        }
        event = tokio::select! {
            message = messages.next() => match message {
                Some(delivery) => Event::Message(delivery?.data.into()),
                None => return Err(ConnectionLost::ChannelEnded),
            },
            () = connection.lost.cancelled() => return Err(ConnectionLost::Closed),
            () = events.closed() => return Ok(()),
        };
    }
}

/// Returns whether an exchange exists. Does not declare it.
pub async fn exists(connection: &Connection, exchange: &str) -> Result<bool, ConnectionLost> {
    let channel = connection.open_channel().await?;
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.exchange_declare(
        exchange.into(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    match connection.within_limit("an exchange", declared).await? {
        Ok(()) => {
            end(connection, &channel).await?;
            Ok(true)
        }
        Err(error) if is_soft(&error, AMQPSoftError::NOTFOUND) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn channel_with_exchange(
    connection: &Connection,
    exchange: &'static str,
) -> Result<Channel, ConnectionLost> {
    let channel = connection.open_channel().await?;
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.exchange_declare(
        exchange.into(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    connection.request("an exchange", declared).await?;
    Ok(channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_and_tried_again_less_and_less_often() {
        let mut refusals = Refusals::default();
        let mut waited = Duration::ZERO;
        let mut told = 0;
        let mut tries = 0;
        while waited < Duration::from_hours(1) {
            let (delay, is_new) = refusals.add("access is refused".to_owned());
            (waited, tries) = (waited + delay, tries + 1);
            told += u32::from(is_new);
        }
        assert_eq!((told, tries), (1, 66));
        assert_eq!(refusals.add("closed".to_owned()), (RESUBSCRIBE_DELAY, true));
        refusals.end();
        assert_eq!(refusals.add("closed".to_owned()), (RESUBSCRIBE_DELAY, true));
    }
}
