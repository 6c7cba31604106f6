//! Announcements: a fan-out exchange, and for each subscriber a queue that is deleted with its connection.
//!
//! Announcements are rare, so each one takes a channel of its own. A subscriber that loses its channel reports
//! [`Event::Missed`] and subscribes again.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, ExchangeKind};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use crate::broker::Event;

const EXCHANGE: &str = "batchwright.control";
/// The delay before a lost subscription is made again.
const RESUBSCRIBE_DELAY: Duration = Duration::from_millis(500);

/// Publishes an announcement and waits for the broker's confirm.
pub async fn announce(
    supervisor: &ConnectionSupervisor,
    body: Bytes,
) -> Result<(), ConnectionLost> {
    let connection = supervisor.current().ok_or(ConnectionLost::NotConnected)?;
    let channel = channel_with_exchange(&connection).await?;
    let confirmed = async {
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(
                EXCHANGE.into(),
                "".into(),
                options,
                &body,
                BasicProperties::default(),
            )
            .await?
            .await
    };
    connection.request("an announcement", confirmed).await?;
    drop(channel.close(200, "announced".into()).await);
    Ok(())
}

/// Sends all announcements to `events` until the receiver is dropped.
pub async fn subscribe(supervisor: &ConnectionSupervisor, events: &mpsc::Sender<Event>) {
    loop {
        let connection = tokio::select! {
            connection = supervisor.connected() => connection,
            () = events.closed() => return,
        };
        match subscribe_on(&connection, events).await {
            Ok(()) => return,
            Err(reason) => {
                tracing::warn!(%reason, "the subscription to announcements was lost; subscribing again");
            }
        }
        sleep(RESUBSCRIBE_DELAY).await;
    }
}

async fn subscribe_on(
    connection: &Connection,
    events: &mpsc::Sender<Event>,
) -> Result<(), ConnectionLost> {
    let channel = channel_with_exchange(connection).await?;
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
                EXCHANGE.into(),
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

async fn channel_with_exchange(connection: &Connection) -> Result<Channel, ConnectionLost> {
    let channel = connection.open_channel().await?;
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.exchange_declare(
        EXCHANGE.into(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    connection.request("the control exchange", declared).await?;
    Ok(channel)
}
