//! Checks the queues and messages on the server against what CAF's workers declare, send and
//! expect.

use harness::unique;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel};

use super::super::*;
use crate::broker::HeaderValue;
use crate::clock::Clock;

async fn connect(change: impl FnOnce(&mut AmqpOptions)) -> Amqp {
    let mut options = AmqpOptions::new(harness::rabbitmq().await.unwrap().url);
    change(&mut options);
    let amqp = Amqp::connect(options).unwrap();
    amqp.connected(Duration::from_mins(1)).await.unwrap();
    amqp
}

/// Opens a channel, as another program would.
async fn channel(amqp: &Amqp) -> Channel {
    amqp.publishing
        .current()
        .unwrap()
        .open_channel()
        .await
        .unwrap()
}

/// Publishes until the message is confirmed. A new queue has no leader for a while and refuses
/// messages.
async fn publish(amqp: &Amqp, message: Outgoing) {
    while amqp.publish(message.clone()).await.is_err() {}
}

async fn get(channel: &Channel, queue: &str) -> BasicGetMessage {
    harness::wait_for("a message", async || {
        let got = channel
            .basic_get(ShortString::from(queue), BasicGetOptions { no_ack: true })
            .await
            .unwrap();
        got.ok_or("none".to_owned())
    })
    .await
}

/// Returns whether the queue exists and was declared with exactly these arguments.
async fn is_declared(amqp: &Amqp, queue: &str, arguments: &[(&str, AMQPValue)]) -> bool {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    // As CAF declares it: durable, neither exclusive nor auto-deleted. If the server refuses, it
    // closes the channel.
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel(amqp)
        .await
        .queue_declare(ShortString::from(queue), options, table)
        .await
        .is_ok()
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[tokio::test]
async fn queues_are_declared_as_by_caf() {
    let quorum = connect(|_| {}).await;
    let classic = connect(|options| options.queue_type = QueueType::Classic).await;
    let ranked =
        connect(|options| (options.queue_type, options.max_priority) = (QueueType::Classic, 5))
            .await;
    // Quorum queues have no priorities.
    let unranked = connect(|options| options.max_priority = 5).await;
    let kind = |name| ("x-queue-type", text(name));
    for (amqp, arguments) in [
        (&quorum, vec![kind("quorum")]),
        (&classic, vec![kind("classic")]),
        (
            &ranked,
            vec![kind("classic"), ("x-max-priority", AMQPValue::LongInt(5))],
        ),
        (&unranked, vec![kind("quorum")]),
    ] {
        let [published, consumed] = ["published", "consumed"].map(unique);
        publish(amqp, Outgoing::new(&*published, "body")).await;
        publish(amqp, Outgoing::new(&*consumed, "body")).await;
        drop(amqp.consume(&consumed, 1).await.unwrap());
        for pipe in [&published, &consumed] {
            assert!(is_declared(amqp, pipe, &arguments).await, "{arguments:?}");
            let others = [&arguments[..], &[("x-max-length", AMQPValue::LongInt(1))]].concat();
            assert!(
                !is_declared(amqp, pipe, &others).await,
                "{arguments:?}: anything would do"
            );
        }
    }
    for amqp in [quorum, classic, ranked, unranked] {
        amqp.close().await;
    }
}

#[test]
fn time_that_a_publisher_does_not_tell_is_not_known() {
    for (told, known) in [
        (0, None),
        (u64::MAX, None),
        (1_795_359_678, Some(1_795_359_678)),
    ] {
        let properties = BasicProperties::default().with_timestamp(told);
        assert_eq!(queues::sent(&properties), known);
    }
    assert_eq!(queues::sent(&BasicProperties::default()), None);
}

#[tokio::test]
async fn message_is_persistent_plain_text_with_headers_and_the_time_only() {
    let amqp = connect(|_| {}).await;
    let (pipe, before) = (unique("properties"), Clock::system().now_seconds());
    publish(&amqp, Outgoing::new(&*pipe, "body")).await;
    let got = get(&channel(&amqp).await, &pipe).await;
    let sent = got.properties.timestamp().unwrap();
    assert!((before..=Clock::system().now_seconds()).contains(&sent.cast_signed()));
    let mut expected = BasicProperties::default()
        .with_timestamp(sent)
        .with_content_type("text/plain".into())
        .with_delivery_mode(2);
    // The server counts deliveries in the same table.
    let mut headers = got.properties.headers().clone().unwrap();
    assert!(
        headers
            .inner()
            .keys()
            .all(|name| name.as_str() == "x-delivery-count"),
        "{headers:?}"
    );
    expected = expected.with_headers(std::mem::take(&mut headers));
    assert_eq!(got.properties, expected);
    assert_eq!(
        (got.exchange.as_str(), got.routing_key.as_str()),
        ("", pipe.as_str())
    );
    assert_eq!(got.data, b"body");
    amqp.close().await;
}

#[tokio::test]
async fn republished_message_keeps_all_headers_but_the_servers() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let amqp = connect(|options| options.queue_type = queue_type).await;
        let [from, to] = ["from", "to"].map(unique);
        publish(&amqp, Outgoing::new(&*from, "probe")).await;
        publish(&amqp, Outgoing::new(&*to, "probe")).await;
        // As a CAF worker forwards it: with all headers of the delivery.
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(7));
        headers.insert("x-caf-worker-retry".into(), text("3"));
        headers.insert("x-batchwright-attempts".into(), AMQPValue::LongInt(2));
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_headers(headers);
        let others = channel(&amqp).await;
        let sent = others.basic_publish(
            "".into(),
            ShortString::from(&*from),
            BasicPublishOptions::default(),
            b"body",
            properties,
        );
        sent.await.unwrap().await.unwrap();
        let mut consumer = amqp.consume(&from, 10).await.unwrap();
        let delivery = loop {
            let delivery = consumer.next().await.unwrap();
            if delivery.body() == "body" {
                break delivery;
            }
            delivery.ack();
        };
        assert_eq!(
            delivery.headers.get("x-caf-worker-retry"),
            Some(&HeaderValue::Text("3".into()))
        );
        publish(
            &amqp,
            Outgoing {
                headers: delivery.headers.clone(),
                ..Outgoing::new(&*to, delivery.body())
            },
        )
        .await;
        delivery.ack();
        let got = loop {
            let got = get(&others, &to).await;
            if got.data == b"body" {
                break got;
            }
        };
        let headers = got.properties.headers().clone().unwrap();
        let number = |name: &str| {
            headers
                .inner()
                .get(name)
                .and_then(AMQPValue::as_long_long_int)
        };
        assert_eq!(number("x-batchwright-attempts"), Some(2));
        assert!(
            number("x-delivery-count").is_none_or(|count| count == 0),
            "{headers:?}"
        );
        assert_eq!(
            got.properties
                .content_type()
                .as_ref()
                .map(ShortString::as_str),
            Some("text/plain")
        );
        amqp.close().await;
    }
}
