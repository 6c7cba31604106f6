//! Announcements: a fan-out exchange, and for each listener a queue of its own that goes with its connection.
//!
//! Announcing is rare, so each announcement takes a channel of its own. A listener that loses its channel has missed
//! something, says so, and listens again.

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

use super::connection::{Line, Live, Lost};
use crate::broker::Heard;

const EXCHANGE: &str = "batchwright.control";
const PAUSE: Duration = Duration::from_millis(500);

/// Says something to everyone who listens.
pub async fn announce(connection: &Line, body: Bytes) -> Result<(), Lost> {
    let live = connection
        .live()
        .ok_or_else(|| Lost("not connected".into()))?;
    let channel = exchange(&live).await?;
    let said = async {
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
    live.within_limit("an announcement", said)
        .await?
        .map_err(|error| Lost(error.to_string()))?;
    drop(channel.close(200, "announced".into()).await);
    Ok(())
}

/// Listens until nobody wants to hear any more.
pub async fn listen(connection: Line, heard: mpsc::Sender<Heard>) {
    loop {
        let live = tokio::select! {
            live = connection.up() => live,
            () = heard.closed() => return,
        };
        match listen_on(&live, &heard).await {
            Ok(()) => return,
            Err(reason) => {
                tracing::warn!(%reason, "announcements are missed; listening again as soon as possible");
            }
        }
        sleep(PAUSE).await;
    }
}

async fn listen_on(live: &Live, heard: &mpsc::Sender<Heard>) -> Result<(), Lost> {
    let channel = exchange(live).await?;
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
    let mut said = live
        .within_limit("listening", consume)
        .await?
        .map_err(|error| Lost(error.to_string()))?;
    // What was said before this moment was not heard.
    let mut next = Heard::Missed;
    loop {
        if heard.send(next).await.is_err() {
            return Ok(());
        }
        next = tokio::select! {
            said = said.next() => match said {
                Some(Ok(delivery)) => Heard::Said(delivery.data.into()),
                Some(Err(error)) => return Err(Lost(error.to_string())),
                None => return Err(Lost("the channel has ended".into())),
            },
            () = live.lost.cancelled() => return Err(Lost("the connection is lost".into())),
            () = heard.closed() => return Ok(()),
        };
    }
}

async fn exchange(live: &Live) -> Result<Channel, Lost> {
    let channel = live.channel().await?;
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
    live.within_limit("the control exchange", declared)
        .await?
        .map_err(|error| Lost(error.to_string()))?;
    Ok(channel)
}
