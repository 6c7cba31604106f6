//! Behaviour that only `RabbitMQ` has. The rules that hold for every broker are in the conformance
//! suite.

mod lost_channels;
mod refused_outputs;
mod tls;
mod wire;

use std::collections::BTreeMap;

use harness::{PATIENCE, RabbitServer, in_time, unique, wait_for};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::time::timeout;

use super::*;
use crate::broker::{Delivery, PublishError};
use crate::supervision::tests::Log;
use bytes::Bytes;

async fn connect(options: AmqpOptions) -> Amqp {
    let amqp = Amqp::connect(options).unwrap();
    amqp.connected(PATIENCE).await.unwrap();
    amqp
}

async fn shared() -> Amqp {
    connect(AmqpOptions::new(harness::rabbitmq().await.unwrap().url)).await
}

/// Connects to the shared server through a proxy, with this query in the URL.
async fn proxied(query: &str) -> (Amqp, harness::Proxy) {
    let url = harness::rabbitmq().await.unwrap().url;
    let target = url.parse::<AMQPUri>().unwrap();
    let address = tokio::net::lookup_host((target.authority.host, target.authority.port))
        .await
        .unwrap()
        .next()
        .unwrap();
    let proxy = harness::Proxy::start(address).await.unwrap();
    let user = target.authority.userinfo;
    let url = format!(
        "amqp://{}:{}@{}/%2f{query}",
        user.username,
        user.password,
        proxy.address()
    );
    (connect(AmqpOptions::new(url)).await, proxy)
}

/// Waits for the turn of this test on a server that tests stop, kill or block, one after the other.
/// A test that fails may leave it like that; then the next ones fail as well.
async fn disturbed() -> tokio::sync::MutexGuard<'static, RabbitServer> {
    static SERVER: tokio::sync::OnceCell<tokio::sync::Mutex<RabbitServer>> =
        tokio::sync::OnceCell::const_new();
    let start = async || RabbitServer::start().await.map(tokio::sync::Mutex::new);
    SERVER.get_or_try_init(start).await.unwrap().lock().await
}

#[tokio::test]
async fn closing_is_no_reason_to_warn() {
    let log = Log::default();
    let _kept = log.keep();
    let amqp = shared().await;
    let pipe = unique("questions");
    let _questions = amqp.queries(&pipe).await.unwrap();
    let _announcements = amqp.announcements().await.unwrap();
    let queue = contract::queries_pipe(&pipe);
    wait_for("the queue of questions", async || {
        let exists = amqp.exists(&queue).await.unwrap();
        exists.then_some(()).ok_or_else(|| "no queue".to_owned())
    })
    .await;
    amqp.close().await;
    assert!(!log.text().contains("WARN"), "{}", log.text());
}

async fn next(consumer: &mut Consumer) -> Delivery {
    in_time("a delivery", consumer.next())
        .await
        .expect("the consumer has ended")
}

/// Opens a channel on the connection of the publisher.
async fn channel(amqp: &Amqp) -> lapin::Channel {
    amqp.connected(PATIENCE).await.unwrap();
    let connection = amqp.publishing.current().unwrap();
    connection.open_channel().await.unwrap()
}

async fn declare(amqp: &Amqp, queue: &str, arguments: FieldTable) {
    let (channel, durable) = (channel(amqp).await, QueueDeclareOptions::durable());
    let declared = channel.queue_declare(ShortString::from(queue), durable, arguments);
    declared.await.unwrap();
}

async fn delete(amqp: &Amqp, queue: &str) {
    let (channel, queue) = (channel(amqp).await, ShortString::from(queue));
    let deleted = channel.queue_delete(queue, QueueDeleteOptions::default());
    deleted.await.unwrap();
}

#[test]
fn invalid_url_is_rejected_without_revealing_the_password() {
    let refused = Amqp::connect(AmqpOptions::new("http://user:secret@host")).unwrap_err();
    assert!(
        !format!("{refused} {refused:?}").contains("secret"),
        "{refused}"
    );
}

#[tokio::test]
async fn abandoned_connection_attempt_closes_the_socket() {
    use tokio::io::AsyncReadExt as _;

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri: AMQPUri = format!("amqp://{}/%2f", silent.local_addr().unwrap())
        .parse()
        .unwrap();
    let sockets = socket::Sockets::default();
    let attempt = timeout(
        Duration::from_millis(300),
        sockets.connect(uri, None, lapin::ConnectionProperties::default()),
    );
    let (peer, attempt) = tokio::join!(silent.accept(), attempt);
    assert!(attempt.is_err(), "the peer never responds");
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
async fn silently_dropped_connection_is_detected_by_the_heartbeat() {
    let (amqp, proxy) = proxied("?heartbeat=1").await;
    let pipe = unique("forgotten");
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "before")).await.unwrap();
    next(&mut consumer).await.ack();
    proxy.forget();
    let other = shared().await;
    other.publish(Outgoing::new(&*pipe, "after")).await.unwrap();
    // The first message may come again, because its acknowledgement may be lost.
    loop {
        let delivery = next(&mut consumer).await;
        let is_new = &delivery.body()[..] == b"after";
        delivery.ack();
        if is_new {
            return;
        }
    }
}

#[tokio::test]
async fn queue_deleted_while_consumed_is_declared_again() {
    let amqp = shared().await;
    let pipe = unique("deleted");
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "before")).await.unwrap();
    next(&mut consumer).await.ack();
    delete(&amqp, &pipe).await;
    // The publisher also still assumes that the queue exists.
    amqp.publish(Outgoing::new(&*pipe, "after")).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(&delivery.body()[..], b"after");
    delivery.ack();
    amqp.close().await;
}

#[tokio::test]
async fn message_for_a_missing_queue_is_unroutable_if_declaring_is_off() {
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
async fn queue_declared_with_other_arguments_is_used_as_it_is() {
    let amqp = shared().await;
    let pipe = unique("foreign");
    declare(&amqp, &pipe, FieldTable::default()).await;
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    amqp.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    next(&mut consumer).await.ack();
}

#[tokio::test]
async fn delay_queue_with_other_arguments_is_refused_until_it_is_deleted() {
    let amqp = shared().await;
    let pipe = unique("delayed");
    let taken = queues::delay_queue(&pipe, Duration::from_millis(1));
    // The same session declares the queue as a pipe, so it must remember more than the name.
    amqp.publish(Outgoing::new(&*taken, "1")).await.unwrap();
    let delayed = || Outgoing {
        delay: Some(Duration::from_millis(1)),
        ..Outgoing::new(&*pipe, "2")
    };
    let refused = amqp.publish(delayed()).await.unwrap_err();
    assert!(
        matches!(&refused, PublishError::Refused { .. }) && refused.to_string().contains(&taken),
        "{refused}"
    );
    assert!(
        matches!(amqp.state(), BrokerState::Impaired(reason) if reason.contains(&taken)),
        "{:?}",
        amqp.state()
    );
    delete(&amqp, &taken).await;
    amqp.publish(delayed()).await.unwrap();
    assert_eq!(amqp.state(), BrokerState::Connected);
    let mut consumer = amqp.consume(&pipe, 1).await.unwrap();
    next(&mut consumer).await.ack();
    // A process with another queue type shares it.
    let url = harness::rabbitmq().await.unwrap().url;
    let classic = connect(AmqpOptions {
        queue_type: QueueType::Classic,
        ..AmqpOptions::new(url)
    })
    .await;
    classic.publish(delayed()).await.unwrap();
    next(&mut consumer).await.ack();
    // The delay queue is no pipe, either.
    let refused = amqp.publish(Outgoing::new(&*taken, "3")).await;
    assert!(
        matches!(refused, Err(PublishError::Impossible { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn message_that_the_protocol_cannot_carry_is_refused_alone() {
    use crate::broker::HeaderValue;

    let amqp = shared().await;
    let pipe = unique("carried");
    let with_header = |name: String, value: HeaderValue| {
        let mut message = Outgoing::new(&*pipe, "1");
        message.headers.set(name, value);
        message
    };
    // The server closes the connection for a frame that is too long.
    for message in [
        with_header("x".repeat(300), HeaderValue::Integer(1)),
        with_header("x".into(), HeaderValue::Text("x".repeat(150_000).into())),
    ] {
        let (refused, taken) = tokio::join!(
            in_time("a result", amqp.publish(message)),
            in_time("a confirm", amqp.publish(Outgoing::new(&*pipe, "2"))),
        );
        assert!(
            matches!(refused, Err(PublishError::Unacceptable { .. })),
            "{refused:?}"
        );
        taken.unwrap();
    }
}

#[tokio::test]
async fn pipe_that_the_server_never_declares_is_impossible() {
    let amqp = shared().await;
    // The long name leaves no room for the name of its delay queue.
    let delayed = Outgoing {
        delay: Some(Duration::from_secs(1)),
        ..Outgoing::new("x".repeat(250), "1")
    };
    for message in [Outgoing::new("amq.reserved", "1"), delayed] {
        let refused = in_time("a result", amqp.publish(message)).await;
        assert!(
            matches!(refused, Err(PublishError::Impossible { .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn deliveries_behind_an_open_one_are_acknowledged_soon() {
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
    // No later delivery triggers the acknowledgements. After a while, another process must find
    // only the open delivery.
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
async fn no_message_is_lost_when_the_server_stops_or_is_killed() {
    let server = disturbed().await;
    let amqp = connect(AmqpOptions::new(server.url())).await;
    let pipe = unique("survives");
    let mut consumer = amqp.consume(&pipe, 100).await.unwrap();
    let over = CancellationToken::new();
    let published = std::cell::Cell::new(0);
    let publishing = async {
        // So that messages are in flight whenever the server goes down.
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
        // When the last message arrives, all others have been published, but some may be delivered
        // again after it.
        let last = Bytes::from_static(b"last");
        while !seen.contains_key(&last) || seen.len() <= published.get() {
            let delivery = next(&mut consumer).await;
            *seen.entry(delivery.body()).or_default() += 1;
            delivery.ack();
        }
    };
    let interrupting = async {
        // If RabbitMQ is killed right after it has declared a queue, it loses a part of it. So stop
        // it first, then kill it.
        for kill in [false, true] {
            let before = published.get();
            wait_for("messages in flight", async || {
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
    tokio::join!(publishing, consuming, interrupting);
    in_time("the end", amqp.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_queue_does_not_affect_consumers_of_other_queues() {
    let server = disturbed().await;
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
    // The queue is stuck for longer than a request may take.
    tokio::time::sleep(RESPONSE_LIMIT + Duration::from_secs(2)).await;
    held.ack();
    amqp.publish(Outgoing::new(&*well, "2")).await.unwrap();
    let second = next(&mut other).await;
    assert_eq!(&*second.body(), b"2");
    second.ack();
    assert!(!connection.is_lost());

    server.control(&["eval", &leader("resume")]).await.unwrap();
    assert_eq!(&*next(&mut consumer).await.body(), b"of the stuck");
}
