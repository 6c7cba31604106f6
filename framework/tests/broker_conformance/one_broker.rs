//! What only one implementation of the broker has: a folder, a bound of memory, a server with a
//! limit of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use framework::broker::amqp::{AmqpOptions, QueueType};
use framework::broker::embedded::Embedded;
use framework::broker::{
    Broker as _, BrokerError, HeaderValue, Outgoing, PublishError, Unanswered,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use harness::{PATIENCE, in_time};
use tokio_util::task::TaskTracker;

use super::looks::wait_until_answered;
use super::{TestBroker, connect, next, next_numbers, number, pipe};

#[tokio::test]
async fn folder_in_use_is_refused_and_names_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let first = Embedded::open(folder.path()).await.unwrap();
    let refused = Embedded::open(folder.path()).await.unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, BrokerError::FolderInUse { .. }), "{text}");
    assert!(
        text.contains(&folder.path().display().to_string())
            && text.contains(&std::process::id().to_string()),
        "{text}"
    );
    first.close().await;
    // A process that another test starts right now has the lock until its program begins.
    let free = async {
        while Embedded::open(folder.path()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the folder to be free", free).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_messages_than_fit_in_memory_stay_ordered_and_counted() {
    const COUNT: u32 = 50_000;
    let mut fixture = TestBroker::embedded().await;
    let pipe = pipe();
    fixture.publish(&pipe, 0..COUNT).await;
    assert_eq!(fixture.broker.depth(&pipe).await.unwrap(), 50_000);
    let mut consumer = fixture.consume(&pipe, 1000).await;
    assert_eq!(
        next_numbers(&mut consumer, 25_000).await,
        (0..25_000).collect::<Vec<_>>()
    );
    fixture.publish(&pipe, COUNT..COUNT + 1000).await;
    drop(consumer);
    fixture.wait_for_depth(&pipe, 26_000).await;
    fixture.reopen().await;
    assert_eq!(fixture.broker.depth(&pipe).await.unwrap(), 26_000);
    let mut consumer = fixture.consume(&pipe, 1000).await;
    assert_eq!(
        next_numbers(&mut consumer, 26_000).await,
        (25_000..51_000).collect::<Vec<_>>()
    );
    fixture.wait_for_depth(&pipe, 0).await;
}

/// A frame of headers that is larger than what the client has agreed to ends its connection, again
/// and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_whose_headers_fill_a_frame_is_received() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let fixture = TestBroker::amqp(queue_type).await;
        let (pipe, text) = (pipe(), "x".repeat(127 << 10));
        let body = vec![b'x'; 1 << 20];
        let mut message = Outgoing::new(Arc::clone(&pipe), body.clone());
        let value = HeaderValue::Text(text.into());
        message.headers.set("x-long", value.clone());
        let mut consumer = fixture.consume(&pipe, 10).await;
        for _ in 0..3 {
            fixture.broker.publish(message.clone()).await.unwrap();
            let delivery = in_time("the message", consumer.next()).await.unwrap();
            assert_eq!(delivery.headers.get("x-long"), Some(&value));
            assert_eq!(delivery.body(), body);
            delivery.ack();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_that_finds_its_own_process_busy_is_answered_by_another_one() {
    let fixture = TestBroker::amqp(QueueType::Quorum).await;
    let (broker, other) = (&fixture.broker, fixture.in_another_process().await);
    let pipe = pipe();
    let mut others = other.queries(&pipe).await.unwrap();
    wait_until_answered(&**broker, &pipe, &mut others).await;
    // Nobody takes these.
    let _busy = broker.queries(&pipe).await.unwrap();
    let asking = (0..100).map(|_| broker.ask(&pipe, "?".into(), PATIENCE));
    let mut asking: FuturesUnordered<_> = asking.collect();
    let answering = async {
        while let Some(query) = others.next().await {
            query.answer("!".into());
        }
    };
    tokio::select! {
        first = in_time("an answer", asking.next()) => assert_eq!(first, Some(Ok("!".into()))),
        () = answering => panic!("the broker has ended"),
    }
}

/// A question that ends a process ends no other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_in_the_hand_of_a_process_that_dies_is_asked_nobody_else() {
    let fixture = TestBroker::amqp(QueueType::Quorum).await;
    let broker = Arc::clone(&fixture.broker);
    let (living, dying) = (
        fixture.in_another_process().await,
        fixture.in_another_process().await,
    );
    let pipe = pipe();
    let mut living = living.queries(&pipe).await.unwrap();
    wait_until_answered(&*broker, &pipe, &mut living).await;
    let mut others = dying.queries(&pipe).await.unwrap();
    // In turn, as soon as the server knows both.
    let asked = harness::wait_for("a question to the one that dies", async || {
        let (broker, pipe) = (Arc::clone(&broker), Arc::clone(&pipe));
        let asked =
            TaskTracker::new().spawn(async move { broker.ask(&pipe, "?".into(), PATIENCE).await });
        tokio::select! {
            query = others.next() => Ok((asked, query)),
            _ = living.next() => Err("the other one was asked".to_owned()),
        }
    });
    let (asked, held) = asked.await;
    drop(others);
    dying.close().await;
    let again = in_time("an end", asked).await.unwrap();
    assert_eq!(again, Err(Unanswered::NoAnswer(pipe.to_string())));
    drop(held);
}

/// `RabbitMQ` closes the channel for a message that is too large, and with it loses every
/// unconfirmed neighbour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_the_server_never_takes_is_refused_alone() {
    const LIMIT: usize = 65_536;
    let server = harness::RabbitServer::start_with(&format!("max_message_size = {LIMIT}\n"))
        .await
        .unwrap();
    let broker = connect(&AmqpOptions::new(server.url())).await;
    let pipe = pipe();
    let large = [(100, LIMIT + 1), (250, 3 * LIMIT)];
    let body = |n: usize| match large.iter().find(|(at, _)| *at == n) {
        Some((_, bytes)) => vec![b'x'; *bytes],
        None => n.to_string().into_bytes(),
    };
    let confirms: Vec<_> = (0..400)
        .map(|n| broker.publish(Outgoing::new(Arc::clone(&pipe), body(n))))
        .collect();
    for (n, confirm) in confirms.into_iter().enumerate() {
        let outcome = in_time("a result", confirm).await;
        match large.iter().find(|(at, _)| *at == n) {
            None => outcome.unwrap(),
            Some((_, bytes)) => {
                let error = outcome.unwrap_err();
                assert!(
                    matches!(error, PublishError::Unacceptable { .. }),
                    "{error}"
                );
                assert!(
                    error.to_string().contains(&format!(" {bytes} bytes")),
                    "{error}"
                );
            }
        }
    }
    // The largest that it takes.
    let largest = Outgoing::new(Arc::clone(&pipe), vec![b'x'; LIMIT]);
    broker.publish(largest).await.unwrap();
    let mut consumer = broker.consume(&pipe, 1000).await.unwrap();
    let mut seen = BTreeSet::new();
    loop {
        let delivery = next(&mut consumer).await;
        let is_last = delivery.body().len() == LIMIT;
        if !is_last {
            seen.insert(number(&delivery));
        }
        delivery.ack();
        if is_last {
            break;
        }
    }
    let expected = (0..400).filter(|n| large.iter().all(|(at, _)| at != n));
    assert!(seen.into_iter().map(|n| n as usize).eq(expected));
    broker.close().await;
}
