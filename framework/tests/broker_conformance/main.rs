//! The rules for every broker: one suite that runs against all of them.
//!
//! Each function is one rule; `one_broker` has those of a single implementation. A broker that
//! cannot be started fails its tests; no test is skipped.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

extern crate batchwright_framework as framework;

mod looks;
mod one_broker;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framework::broker::amqp::{Amqp, AmqpOptions, QueueType};
use framework::broker::embedded::Embedded;
use framework::broker::memory::Memory;
use framework::broker::{
    Broker, BrokerState, Consumer, Delivery, Event, HeaderValue, Headers, Outgoing, PublishError,
};
use framework::clock::Clock;
use futures_util::future::join_all;
use harness::{PATIENCE, in_time};
use looks::{
    looking_at_a_pipe_counts_and_changes_nothing, peeked_messages_stay_as_they_are,
    questions_reach_only_those_who_answer_and_each_one_of_them,
    signs_of_life_reach_those_who_listen_to_them_and_no_others,
};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

/// A broker and its storage, so that it can be opened again.
struct TestBroker {
    broker: Arc<dyn Broker>,
    keeper: Backing,
}

enum Backing {
    Memory(Memory),
    /// The folders of this broker, the latest last.
    Embedded(Vec<TempDir>),
    Amqp(AmqpOptions),
}

impl TestBroker {
    fn memory() -> Self {
        let memory = Memory::new();
        Self {
            broker: Arc::new(memory.process()),
            keeper: Backing::Memory(memory),
        }
    }

    async fn embedded() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Embedded::open(folder.path()).await.unwrap();
        Self {
            broker: Arc::new(broker),
            keeper: Backing::Embedded(vec![folder]),
        }
    }

    async fn amqp(queue_type: QueueType) -> Self {
        let url = harness::rabbitmq().await.unwrap().url;
        let options = AmqpOptions {
            queue_type,
            ..AmqpOptions::new(url)
        };
        Self {
            broker: connect(&options).await,
            keeper: Backing::Amqp(options),
        }
    }

    /// Returns the broker of another process, if there can be one, else this one.
    async fn in_another_process(&self) -> Arc<dyn Broker> {
        match &self.keeper {
            Backing::Memory(memory) => Arc::new(memory.process()),
            Backing::Embedded(_) => Arc::clone(&self.broker),
            Backing::Amqp(options) => connect(options).await,
        }
    }

    /// Closes the broker cleanly and opens it again, as the next process does.
    async fn reopen(&mut self) {
        self.broker.close().await;
        self.broker = match &self.keeper {
            Backing::Memory(memory) => Arc::new(memory.process()),
            Backing::Embedded(folders) => Arc::new(
                Embedded::open(folders.last().unwrap().path())
                    .await
                    .unwrap(),
            ),
            Backing::Amqp(options) => connect(options).await,
        };
    }

    /// Ends the process without a clean close and opens the broker again, as the next process does.
    async fn crash(&mut self) {
        match &mut self.keeper {
            Backing::Memory(memory) => {
                // For the broker in memory a close has the same effect as a crash.
                self.broker.close().await;
                self.broker = Arc::new(memory.process());
            }
            Backing::Embedded(folders) => {
                // A killed process leaves its files as they are at that moment.
                let folder = tempfile::tempdir().unwrap();
                for file in std::fs::read_dir(folders.last().unwrap().path()).unwrap() {
                    let file = file.unwrap();
                    std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
                }
                self.broker = Arc::new(Embedded::open(folder.path()).await.unwrap());
                folders.push(folder);
            }
            // The server treats every end of a connection alike.
            Backing::Amqp(_) => self.reopen().await,
        }
    }

    async fn consume(&self, pipe: &str, prefetch: u32) -> Consumer {
        self.broker.consume(pipe, prefetch).await.unwrap()
    }

    /// Publishes numbered messages and waits for all confirms.
    async fn publish(&self, pipe: &Arc<str>, numbers: std::ops::Range<u32>) {
        let confirms: Vec<_> = numbers
            .map(|n| {
                self.broker
                    .publish(Outgoing::new(Arc::clone(pipe), n.to_string()))
            })
            .collect();
        for confirm in join_all(confirms).await {
            confirm.unwrap();
        }
    }

    async fn wait_for_depth(&self, pipe: &str, depth: u64) {
        harness::wait_for(&format!("{depth} messages in {pipe}"), async || match self
            .broker
            .depth(pipe)
            .await
        {
            Ok(seen) if seen == depth => Ok(()),
            seen => Err(format!("{seen:?}")),
        })
        .await;
    }
}

/// Returns the name of a pipe that only this test uses.
fn pipe() -> Arc<str> {
    harness::unique("conformance").into()
}

async fn connect(options: &AmqpOptions) -> Arc<dyn Broker> {
    let amqp = Amqp::connect(options.clone()).unwrap();
    amqp.connected(PATIENCE).await.unwrap();
    Arc::new(amqp)
}

async fn next(consumer: &mut Consumer) -> Delivery {
    in_time("a delivery", consumer.next())
        .await
        .expect("the consumer has ended")
}

fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(&delivery.body())
        .unwrap()
        .parse()
        .unwrap()
}

async fn next_numbers(consumer: &mut Consumer, count: usize) -> Vec<u32> {
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let delivery = next(consumer).await;
        numbers.push(number(&delivery));
        delivery.ack();
    }
    numbers
}

/// How long a consumer that must get nothing is watched.
const QUIET: Duration = Duration::from_millis(200);

/// Returns whether no delivery arrives within [`QUIET`]. Tests use it only to check a bound, never
/// to wait for progress.
async fn is_quiet(consumer: &mut Consumer) -> bool {
    timeout(QUIET, consumer.next()).await.is_err()
}

async fn confirmed_messages_arrive_once_and_in_order(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..300).await;
    let mut consumer = fixture.consume(&pipe, 10).await;
    fixture.publish(&pipe, 300..500).await;
    assert_eq!(
        next_numbers(&mut consumer, 500).await,
        (0..500).collect::<Vec<_>>()
    );
    assert!(is_quiet(&mut consumer).await);
    fixture.wait_for_depth(&pipe, 0).await;
}

async fn prefetch_limits_unsettled_deliveries(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..10).await;
    let mut consumer = fixture.consume(&pipe, 3).await;
    let mut held = vec![
        next(&mut consumer).await,
        next(&mut consumer).await,
        next(&mut consumer).await,
    ];
    assert!(is_quiet(&mut consumer).await);
    fixture.wait_for_depth(&pipe, 7).await;
    held.remove(0).ack();
    assert_eq!(number(&next(&mut consumer).await), 3);
}

async fn resized_consumer_keeps_its_deliveries_and_receives_others(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..20).await;
    let mut consumer = fixture.consume(&pipe, 2).await;
    let mut held = vec![next(&mut consumer).await, next(&mut consumer).await];
    consumer.resize(5);
    for _ in 2..5 {
        held.push(next(&mut consumer).await);
    }
    consumer.resize(1);
    // Some may be on their way.
    while let Ok(delivery) = timeout(QUIET, consumer.next()).await {
        held.extend(delivery);
    }
    let mut seen: Vec<u32> = held.iter().map(number).collect();
    assert!(held.iter().all(|delivery| delivery.delivery_count == 0));
    held.into_iter().for_each(Delivery::ack);
    while seen.len() < 20 {
        let delivery = next(&mut consumer).await;
        assert!(seen.len() < 15 || seen.len() == 19 || is_quiet(&mut consumer).await);
        assert_eq!(delivery.delivery_count, 0);
        seen.push(number(&delivery));
        delivery.ack();
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}

// A broker may deliver again what is on its way while a consumer is resized, and forget what the
// consumer has settled.
async fn no_message_comes_again_because_a_consumer_is_resized(fixture: TestBroker) {
    const MESSAGES: u32 = 20_000;
    let pipe = pipe();
    for first in (0..MESSAGES).step_by(2000) {
        fixture.publish(&pipe, first..first + 2000).await;
    }
    let mut consumer = fixture.consume(&pipe, 600).await;
    let (mut seen, mut held) = (Vec::new(), Vec::new());
    while seen.len() < MESSAGES as usize {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.delivery_count, 0, "message {}", number(&delivery));
        seen.push(number(&delivery));
        held.push(Some(delivery));
        if !seen.len().is_multiple_of(500) {
            continue;
        }
        // As slots settle that handle deliveries beside one another: many settlements have gaps
        // before them.
        for slot in 0..8 {
            let settled = held.iter_mut().skip(slot).step_by(8);
            settled.filter_map(Option::take).for_each(Delivery::ack);
            tokio::task::yield_now().await;
        }
        held.clear();
        // While the queue has enough messages for the window, so that the broker always has some on
        // their way.
        if seen.len() < MESSAGES as usize - 2000 {
            let is_even = seen.len().is_multiple_of(1000);
            consumer.resize(if is_even { 600 } else { 1000 });
        }
    }
    assert!(is_quiet(&mut consumer).await, "a message has come twice");
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..MESSAGES), "a message has come twice");
}

async fn consumer_that_is_resized_to_the_largest_prefetch_receives_as_many(fixture: TestBroker) {
    let pipe = pipe();
    let largest = fixture.broker.largest_prefetch();
    fixture.publish(&pipe, 0..largest + 1).await;
    let mut consumer = fixture.consume(&pipe, 1).await;
    consumer.resize(largest);
    let mut held = Vec::new();
    for _ in 0..largest {
        held.push(next(&mut consumer).await);
    }
    assert!(is_quiet(&mut consumer).await);
    held.pop().unwrap().ack();
    assert_eq!(number(&next(&mut consumer).await), largest);
}

async fn only_a_requeued_delivery_is_counted_as_redelivered(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..3).await;
    let mut consumer = fixture.consume(&pipe, 1).await;
    let first = next(&mut consumer).await;
    assert_eq!((number(&first), first.delivery_count), (0, 0));
    first.requeue();
    let mut seen = BTreeSet::new();
    // The broker decides at which position a requeued message returns.
    for _ in 0..3 {
        let delivery = next(&mut consumer).await;
        seen.insert((number(&delivery), delivery.delivery_count));
        delivery.ack();
    }
    assert_eq!(seen, BTreeSet::from([(0, 1), (1, 0), (2, 0)]));
}

async fn delivery_count_never_falls(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..1).await;
    let mut consumer = fixture.consume(&pipe, 1).await;
    next(&mut consumer).await.requeue();
    let mut last = 0;
    for _ in 0..3 {
        let delivery = next(&mut consumer).await;
        // A classic queue reports only that a delivery is not the first.
        assert!(
            delivery.delivery_count >= 1 && delivery.delivery_count >= last,
            "{delivery:?} after {last}"
        );
        last = delivery.delivery_count;
        delivery.requeue();
    }
}

async fn dropped_delivery_is_redelivered(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..1).await;
    let mut consumer = fixture.consume(&pipe, 1).await;
    drop(next(&mut consumer).await);
    let again = next(&mut consumer).await;
    assert_eq!((number(&again), again.delivery_count), (0, 1));
}

async fn acked_and_rejected_deliveries_are_not_redelivered(fixture: TestBroker) {
    let mut fixture = fixture;
    let pipe = pipe();
    fixture.publish(&pipe, 0..4).await;
    let mut consumer = fixture.consume(&pipe, 4).await;
    next(&mut consumer).await.ack();
    next(&mut consumer).await.reject();
    let kept = next(&mut consumer).await;
    next(&mut consumer).await.ack();
    fixture.reopen().await;
    drop((kept, consumer));
    let mut consumer = fixture.consume(&pipe, 4).await;
    let again = next(&mut consumer).await;
    assert_eq!((number(&again), again.delivery_count), (2, 1));
    assert!(is_quiet(&mut consumer).await);
}

async fn two_consumers_share_a_pipe(fixture: TestBroker) {
    let pipe = pipe();
    let mut one = fixture.consume(&pipe, 5).await;
    let mut other = fixture.consume(&pipe, 5).await;
    fixture.publish(&pipe, 0..10).await;
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        for consumer in [&mut one, &mut other] {
            let delivery = next(consumer).await;
            seen.insert(number(&delivery));
            // Kept unsettled: no consumer may receive more than five.
            std::mem::forget(delivery);
        }
    }
    assert_eq!(seen.len(), 10);
}

async fn dropped_consumer_returns_its_prefetched_messages(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..10).await;
    let mut consumer = fixture.consume(&pipe, 5).await;
    let held = next(&mut consumer).await;
    drop(consumer);
    fixture.wait_for_depth(&pipe, 9).await;
    held.ack();
    let mut consumer = fixture.consume(&pipe, 20).await;
    let mut seen = next_numbers(&mut consumer, 9).await;
    seen.sort_unstable();
    assert_eq!(seen, (1..10).collect::<Vec<_>>());
    assert!(is_quiet(&mut consumer).await);
}

async fn confirmed_messages_survive_the_process(fixture: TestBroker) {
    let mut fixture = fixture;
    let pipe = pipe();
    fixture.publish(&pipe, 0..100).await;
    fixture.crash().await;
    fixture.wait_for_depth(&pipe, 100).await;
    let mut consumer = fixture.consume(&pipe, 10).await;
    assert_eq!(
        next_numbers(&mut consumer, 100).await,
        (0..100).collect::<Vec<_>>()
    );
}

async fn delivery_says_when_its_message_was_sent(fixture: TestBroker) {
    let mut fixture = fixture;
    let (pipe, before) = (pipe(), Clock::system().now_seconds());
    fixture.publish(&pipe, 0..1).await;
    let after = Clock::system().now_seconds();
    fixture.crash().await;
    let mut consumer = fixture.consume(&pipe, 1).await;
    let sent = next(&mut consumer).await.sent;
    assert!(sent.is_some_and(|sent| (before..=after).contains(&sent)));
}

async fn after_a_crash_only_unsettled_deliveries_return_and_are_counted(fixture: TestBroker) {
    let mut fixture = fixture;
    let pipe = pipe();
    fixture.publish(&pipe, 0..10).await;
    let mut consumer = fixture.consume(&pipe, 4).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&mut consumer).await);
    }
    fixture.crash().await;
    // Settling them now has no effect.
    held.into_iter().for_each(Delivery::ack);
    let mut consumer = fixture.consume(&pipe, 10).await;
    for n in 0..10 {
        let delivery = next(&mut consumer).await;
        assert_eq!(
            (number(&delivery), delivery.delivery_count),
            (n, u32::from(n < 4))
        );
        delivery.ack();
    }
}

async fn close_counts_an_unsettled_delivery_once(fixture: TestBroker) {
    let mut fixture = fixture;
    let pipe = pipe();
    fixture.publish(&pipe, 0..4).await;
    let mut consumer = fixture.consume(&pipe, 2).await;
    let _held = (next(&mut consumer).await, next(&mut consumer).await);
    fixture.reopen().await;
    assert!(in_time("the end", consumer.next()).await.is_none());
    let mut consumer = fixture.consume(&pipe, 10).await;
    for n in 0..4 {
        let delivery = next(&mut consumer).await;
        assert_eq!(
            (number(&delivery), delivery.delivery_count),
            (n, u32::from(n < 2))
        );
        delivery.ack();
    }
}

async fn delayed_message_arrives_after_its_delay(fixture: TestBroker) {
    let pipe = pipe();
    let mut consumer = fixture.consume(&pipe, 10).await;
    // The test does not wait for the first message: a later one that is due earlier must not wait
    // behind it.
    for delay in [3_600_000, 300, 100] {
        let message = Outgoing {
            delay: Some(Duration::from_millis(delay)),
            ..Outgoing::new(Arc::clone(&pipe), delay.to_string())
        };
        let published = Instant::now();
        fixture.broker.publish(message).await.unwrap();
        if delay < 1000 {
            let delivery = next(&mut consumer).await;
            assert_eq!(u64::from(number(&delivery)), delay);
            assert!(
                published.elapsed() >= Duration::from_millis(delay),
                "{delivery:?} arrived after {:?}",
                published.elapsed()
            );
            delivery.ack();
        }
    }
}

async fn delayed_message_survives_the_process(fixture: TestBroker) {
    let mut fixture = fixture;
    let pipe = pipe();
    let message = Outgoing {
        delay: Some(Duration::from_millis(400)),
        ..Outgoing::new(Arc::clone(&pipe), "7")
    };
    fixture.broker.publish(message).await.unwrap();
    fixture.crash().await;
    let mut consumer = fixture.consume(&pipe, 10).await;
    let delivery = next(&mut consumer).await;
    assert_eq!((number(&delivery), delivery.delivery_count), (7, 0));
}

async fn bodies_of_all_sizes_and_headers_arrive_unchanged(fixture: TestBroker) {
    let pipe = pipe();
    let mut headers = Headers::default();
    headers.set("x-text", HeaderValue::Text("grüße\n\"\u{1F600}".into()));
    headers.set("x-number", HeaderValue::Integer(-9_007_199_254_740_993));
    let bodies = [0, 1, 500, 70_000, 1 << 20].map(|size| {
        (0..size)
            .map(|n| u8::try_from(n % 251).unwrap())
            .collect::<Bytes>()
    });
    for body in &bodies {
        let message = Outgoing {
            headers: headers.clone(),
            ..Outgoing::new(Arc::clone(&pipe), body.clone())
        };
        fixture.broker.publish(message).await.unwrap();
    }
    let mut consumer = fixture.consume(&pipe, 2).await;
    for body in &bodies {
        let delivery = next(&mut consumer).await;
        assert!(
            delivery.body() == *body,
            "a body of {} bytes came as {}",
            body.len(),
            delivery.body().len()
        );
        assert_eq!(delivery.headers.iter().count(), 2);
        assert!(
            headers
                .iter()
                .all(|(name, value)| delivery.headers.get(name) == Some(value)),
            "{delivery:?}"
        );
        assert_eq!(&*delivery.pipe, &*pipe);
        delivery.ack();
    }
}

async fn unknown_pipe_is_empty_and_declared_on_first_use(fixture: TestBroker) {
    let pipe = pipe();
    assert_eq!(fixture.broker.depth(&pipe).await.unwrap(), 0);
    fixture.publish(&pipe, 0..3).await;
    fixture.wait_for_depth(&pipe, 3).await;
    let mut consumer = fixture.consume(&pipe, 10).await;
    assert_eq!(next_numbers(&mut consumer, 3).await, [0, 1, 2]);
    fixture.wait_for_depth(&pipe, 0).await;
}

async fn message_for_an_impossible_pipe_is_refused_alone(fixture: TestBroker) {
    let pipe = pipe();
    for name in [String::new(), "ü".repeat(128)] {
        let (refused, taken) = tokio::join!(
            fixture.broker.publish(Outgoing::new(name, "0")),
            fixture
                .broker
                .publish(Outgoing::new(Arc::clone(&pipe), "1")),
        );
        assert!(
            matches!(refused, Err(PublishError::Impossible { .. })),
            "{refused:?}"
        );
        taken.unwrap();
    }
    fixture.wait_for_depth(&pipe, 2).await;
}

async fn twenty_thousand_messages_pass_in_windows(fixture: TestBroker) {
    const COUNT: u32 = 20_000;
    let pipe = pipe();
    let mut consumer = fixture.consume(&pipe, 1000).await;
    let publishing = async {
        for start in (0..COUNT).step_by(1000) {
            fixture.publish(&pipe, start..start + 1000).await;
        }
    };
    let consuming = async {
        let mut batch = Vec::new();
        let mut expected = 0;
        while expected < COUNT {
            in_time("deliveries", consumer.next_many(&mut batch, 500)).await;
            for delivery in batch.drain(..) {
                assert_eq!(number(&delivery), expected);
                expected += 1;
                delivery.ack();
            }
        }
    };
    tokio::join!(publishing, consuming);
    fixture.wait_for_depth(&pipe, 0).await;
}

async fn pipe_declared_by_both_ends_at_once_keeps_its_order(fixture: TestBroker) {
    join_all((0..10).map(async |_| {
        let pipe = pipe();
        let mut consumer = fixture.consume(&pipe, 100).await;
        let consuming = async {
            assert_eq!(
                next_numbers(&mut consumer, 100).await,
                (0..100).collect::<Vec<_>>()
            );
        };
        tokio::join!(fixture.publish(&pipe, 0..100), consuming);
    }))
    .await;
}

async fn one_open_delivery_does_not_stall_its_neighbours(fixture: TestBroker) {
    let pipe = pipe();
    fixture.publish(&pipe, 0..100).await;
    let mut consumer = fixture.consume(&pipe, 10).await;
    let open = next(&mut consumer).await;
    assert_eq!(
        next_numbers(&mut consumer, 99).await,
        (1..100).collect::<Vec<_>>()
    );
    open.ack();
}

async fn closed_broker_returns_errors(fixture: TestBroker) {
    let pipe = pipe();
    let mut consumer = fixture.consume(&pipe, 10).await;
    fixture.broker.close().await;
    assert_eq!(fixture.broker.state(), BrokerState::Closed);
    assert!(consumer.next().await.is_none());
    assert!(
        fixture
            .broker
            .publish(Outgoing::new(pipe.clone(), "1"))
            .await
            .is_err()
    );
    assert!(fixture.broker.consume(&pipe, 1).await.is_err());
}

async fn every_listener_receives_announcements_made_after_it_subscribed(fixture: TestBroker) {
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let mut listener = fixture.broker.announcements().await.unwrap();
        assert_eq!(listener.next().await, Some(Event::Missed));
        listeners.push(listener);
    }
    let announcement = pipe();
    fixture
        .broker
        .announce(announcement.to_string().into())
        .await
        .unwrap();
    for listener in &mut listeners {
        // On a shared server other tests send announcements, too.
        while listener.next().await.unwrap() != Event::Message(announcement.to_string().into()) {}
    }
}

/// Makes four tests of each function, one per broker.
macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        suite!(@ memory, std::future::ready(TestBroker::memory()), $($test),+);
        suite!(@ embedded, TestBroker::embedded(), $($test),+);
        suite!(@ amqp_quorum, TestBroker::amqp(super::QueueType::Quorum), $($test),+);
        suite!(@ amqp_classic, TestBroker::amqp(super::QueueType::Classic), $($test),+);
    };
    (@ $broker:ident, $open:expr, $($test:ident),+) => {
        mod $broker {
            use super::TestBroker;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let fixture = $open.await;
                harness::in_time("the test to end", super::$test(fixture)).await;
            })+
        }
    };
}

suite!(
    confirmed_messages_arrive_once_and_in_order,
    prefetch_limits_unsettled_deliveries,
    resized_consumer_keeps_its_deliveries_and_receives_others,
    no_message_comes_again_because_a_consumer_is_resized,
    consumer_that_is_resized_to_the_largest_prefetch_receives_as_many,
    only_a_requeued_delivery_is_counted_as_redelivered,
    delivery_count_never_falls,
    dropped_delivery_is_redelivered,
    acked_and_rejected_deliveries_are_not_redelivered,
    two_consumers_share_a_pipe,
    dropped_consumer_returns_its_prefetched_messages,
    confirmed_messages_survive_the_process,
    delivery_says_when_its_message_was_sent,
    after_a_crash_only_unsettled_deliveries_return_and_are_counted,
    close_counts_an_unsettled_delivery_once,
    delayed_message_arrives_after_its_delay,
    delayed_message_survives_the_process,
    bodies_of_all_sizes_and_headers_arrive_unchanged,
    unknown_pipe_is_empty_and_declared_on_first_use,
    message_for_an_impossible_pipe_is_refused_alone,
    twenty_thousand_messages_pass_in_windows,
    pipe_declared_by_both_ends_at_once_keeps_its_order,
    one_open_delivery_does_not_stall_its_neighbours,
    closed_broker_returns_errors,
    every_listener_receives_announcements_made_after_it_subscribed,
    looking_at_a_pipe_counts_and_changes_nothing,
    peeked_messages_stay_as_they_are,
    signs_of_life_reach_those_who_listen_to_them_and_no_others,
    questions_reach_only_those_who_answer_and_each_one_of_them,
);
