//! Behaviour that only `RabbitMQ` has. The rules that hold for every broker are in the conformance suite.

mod refused_outputs;
mod wire;

use std::collections::BTreeMap;

use harness::{PATIENCE, RabbitServer, in_time, unique, wait_for};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::time::timeout;

use super::*;
use crate::broker::{Delivery, PublishError};
use bytes::Bytes;

async fn connect(options: AmqpOptions) -> Amqp {
    let amqp = Amqp::connect(options).unwrap();
    amqp.connected(PATIENCE).await.unwrap();
    amqp
}

async fn shared() -> Amqp {
    connect(AmqpOptions::new(harness::rabbitmq().await.unwrap().url)).await
}

async fn next(consumer: &mut Consumer) -> Delivery {
    in_time("a delivery", consumer.next())
        .await
        .expect("the consumer has ended")
}

async fn delete(amqp: &Amqp, queue: &str) {
    let channel = amqp
        .publishing
        .current()
        .unwrap()
        .open_channel()
        .await
        .unwrap();
    channel
        .queue_delete(ShortString::from(queue), QueueDeleteOptions::default())
        .await
        .unwrap();
}

#[test]
fn only_what_is_no_url_is_refused_at_once_and_no_password_is_told() {
    let refused = Amqp::connect(AmqpOptions::new("http://user:secret@host")).unwrap_err();
    assert!(
        !format!("{refused} {refused:?}").contains("secret"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_attempt_to_connect_that_is_given_up_ends_for_the_other_side_too() {
    use tokio::io::AsyncReadExt as _;

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri: AMQPUri = format!("amqp://{}/%2f", silent.local_addr().unwrap())
        .parse()
        .unwrap();
    let sockets = socket::Sockets::default();
    let attempt = timeout(
        Duration::from_millis(300),
        sockets.connect(uri, lapin::ConnectionProperties::default()),
    );
    let (peer, attempt) = tokio::join!(silent.accept(), attempt);
    assert!(attempt.is_err(), "nobody has answered");
    drop(sockets);
    let mut greeting = Vec::new();
    in_time(
        "the end of the socket",
        peer.unwrap().0.read_to_end(&mut greeting),
    )
    .await
    .unwrap();
    assert!(greeting.starts_with(b"AMQP"), "{greeting:?}");
}

#[tokio::test]
async fn a_connection_that_a_network_has_forgotten_is_noticed_though_nothing_is_sent() {
    let target = harness::rabbitmq()
        .await
        .unwrap()
        .url
        .parse::<AMQPUri>()
        .unwrap();
    let address = tokio::net::lookup_host((target.authority.host, target.authority.port))
        .await
        .unwrap()
        .next()
        .unwrap();
    let proxy = harness::Proxy::start(address).await.unwrap();
    let user = target.authority.userinfo;
    let url = format!(
        "amqp://{}:{}@{}/%2f?heartbeat=1",
        user.username,
        user.password,
        proxy.address()
    );
    let amqp = connect(AmqpOptions::new(url)).await;
    let pipe = unique("forgotten");
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "before")).await.unwrap();
    next(&mut consumer).await.ack();
    proxy.forget();
    let other = shared().await;
    other.publish(Outgoing::new(&*pipe, "after")).await.unwrap();
    // What was before may come again: its acknowledgement may have been forgotten, too.
    loop {
        let delivery = next(&mut consumer).await;
        let is_new = &delivery.body[..] == b"after";
        delivery.ack();
        if is_new {
            return;
        }
    }
}

#[tokio::test]
async fn a_queue_that_is_deleted_under_a_consumer_is_declared_again() {
    let amqp = shared().await;
    let pipe = unique("deleted");
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "before")).await.unwrap();
    next(&mut consumer).await.ack();
    delete(&amqp, &pipe).await;
    // The publisher believes that there is a queue, too.
    amqp.publish(Outgoing::new(&*pipe, "after")).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(&delivery.body[..], b"after");
    delivery.ack();
    amqp.close().await;
}

#[tokio::test]
async fn a_message_for_nobody_is_unroutable_when_declaring_is_off() {
    let url = harness::rabbitmq().await.unwrap().url;
    let amqp = connect(AmqpOptions {
        declare: false,
        ..AmqpOptions::new(url)
    })
    .await;
    let refused = amqp
        .publish(Outgoing::new(unique("nobody"), "1"))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, PublishError::Unroutable { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_queue_that_was_declared_otherwise_is_used_as_it_is() {
    let amqp = shared().await;
    let pipe = unique("foreign");
    let channel = amqp
        .publishing
        .current()
        .unwrap()
        .open_channel()
        .await
        .unwrap();
    let name = ShortString::from(pipe.as_str());
    channel
        .queue_declare(name, QueueDeclareOptions::durable(), FieldTable::default())
        .await
        .unwrap();
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    next(&mut consumer).await.ack();
}

#[tokio::test]
async fn a_message_that_the_protocol_cannot_carry_is_refused_and_hurts_nobody() {
    let amqp = shared().await;
    let pipe = unique("carried");
    let mut message = Outgoing::new(&*pipe, "1");
    message
        .headers
        .set(&"x".repeat(300), crate::broker::HeaderValue::Integer(1));
    let (refused, taken) = tokio::join!(
        amqp.publish(message),
        amqp.publish(Outgoing::new(&*pipe, "2"))
    );
    assert!(
        matches!(refused, Err(PublishError::Refused { .. })),
        "{refused:?}"
    );
    taken.unwrap();
    let refused = amqp.publish(Outgoing::new("x".repeat(300), "1")).await;
    assert!(
        matches!(refused, Err(PublishError::Unroutable { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn neighbours_of_an_open_delivery_are_acknowledged_soon() {
    let amqp = shared().await;
    let pipe = unique("neighbours");
    for n in 0..4 {
        amqp.publish(Outgoing::new(&*pipe, n.to_string()))
            .await
            .unwrap();
    }
    let mut consumer = amqp.consume(&pipe, 100).await.unwrap();
    let open = next(&mut consumer).await;
    for _ in 1..4 {
        next(&mut consumer).await.ack();
    }
    // Nothing comes that could push them; after a while another process must find only the open one.
    tokio::time::sleep(ack_batcher::PATIENCE * 3).await;
    amqp.end.cancel();
    amqp.tasks.close();
    amqp.tasks.wait().await;
    let other = shared().await;
    wait_for("the open delivery to come back", async || {
        match other.depth(&pipe).await {
            Ok(1) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    drop(open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_dies_and_comes_back_loses_nothing() {
    let server = RabbitServer::start().await.unwrap();
    let amqp = connect(AmqpOptions::new(server.url())).await;
    let pipe = unique("survives");
    let mut consumer = amqp.consume(&pipe, 100).await.unwrap();
    let over = CancellationToken::new();
    let published = std::cell::Cell::new(0);
    let publishing = async {
        // Messages are on their way whenever something happens.
        while !over.is_cancelled() {
            let confirms = (0..50)
                .map(|n| amqp.publish(Outgoing::new(&*pipe, (published.get() + n).to_string())));
            for confirm in confirms.collect::<Vec<_>>() {
                confirm.await.unwrap();
            }
            published.set(published.get() + 50);
        }
        amqp.publish(Outgoing::new(&*pipe, "last")).await.unwrap();
    };
    let consuming = async {
        let mut seen = BTreeMap::<Bytes, u32>::new();
        // The last message says that all others have been published, but some may come again after it.
        let last = Bytes::from_static(b"last");
        while !seen.contains_key(&last) || seen.len() <= published.get() {
            let delivery = next(&mut consumer).await;
            *seen.entry(delivery.body.clone()).or_default() += 1;
            delivery.ack();
        }
    };
    let trouble = async {
        // Killed right after it has declared a queue, RabbitMQ forgets it in part: stop first, and the queue is an old one.
        for kill in [false, true] {
            let before = published.get();
            wait_for("messages to be on their way", async || {
                if published.get() > before {
                    Ok(())
                } else {
                    Err(before.to_string())
                }
            })
            .await;
            if kill {
                server.kill().await.unwrap();
            } else {
                server.stop().await.unwrap();
            }
            wait_for("the loss to be noticed", async || match amqp.state() {
                BrokerState::Connecting(_) => Ok(()),
                state => Err(format!("{state:?}")),
            })
            .await;
            assert!(amqp.depth(&pipe).await.is_err());
            server.start_again().await.unwrap();
            amqp.connected(PATIENCE).await.unwrap();
        }
        over.cancel();
    };
    tokio::join!(publishing, consuming, trouble);
    in_time("the end", amqp.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_does_not_answer_takes_nothing_from_others() {
    let server = RabbitServer::start().await.unwrap();
    let amqp = connect(AmqpOptions::new(server.url())).await;
    let (well, stuck) = (unique("well"), unique("stuck"));
    let leader = |verb: &str| format!("sys:{verb}(whereis('%2F_{stuck}')).");
    amqp.publish(Outgoing::new(&*stuck, "of the stuck"))
        .await
        .unwrap();
    server.control(&["eval", &leader("suspend")]).await.unwrap();
    let mut other = amqp.consume(&well, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*well, "1")).await.unwrap();
    let held = next(&mut other).await;

    let connection = amqp.consuming.current().unwrap();
    let mut consumer = amqp.consume(&stuck, 10).await.unwrap();
    // The fault lasts so long.
    tokio::time::sleep(ANSWER_LIMIT + Duration::from_secs(2)).await;
    held.ack();
    amqp.publish(Outgoing::new(&*well, "2")).await.unwrap();
    let second = next(&mut other).await;
    assert_eq!(&*second.body, b"2");
    second.ack();
    assert!(!connection.is_lost());

    server.control(&["eval", &leader("resume")]).await.unwrap();
    assert_eq!(&*next(&mut consumer).await.body, b"of the stuck");
}
