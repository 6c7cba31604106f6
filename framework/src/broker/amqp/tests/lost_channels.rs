//! Channels that are lost while tasks run: nothing runs beside itself, and nothing runs again that
//! is done.

use contract::{BundleWriter, RangeItem, TaskMessage};
use harness::{RabbitServer, in_time, unique, wait_for};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::*;
use super::{connect, disturbed, next, proxied, shared};
use crate::broker::Delivery;
use crate::supervision::tests::Log;
use crate::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};

/// The first message of a test, which is in the hands of the consumer when its channel is lost.
const HELD: u64 = 1;
/// The message that is published after the loss, and so arrives after the redelivered ones.
const AFTER: u64 = 99;

/// Records which items it begins, and holds the item `HELD` until `may_go_on` is cancelled.
#[derive(Clone)]
struct Recording {
    begun: Arc<Mutex<Vec<u64>>>,
    changed: watch::Sender<()>,
    may_go_on: CancellationToken,
}

impl Worker for Recording {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.begun.lock().push(item.number);
        self.changed.send_replace(());
        if item.number == HELD {
            self.may_go_on.cancelled().await;
        }
        Ok(Reply::none())
    }
}

impl Recording {
    fn new() -> Self {
        Self {
            begun: Arc::default(),
            changed: watch::Sender::new(()),
            may_go_on: CancellationToken::new(),
        }
    }

    fn begun(&self) -> Vec<u64> {
        self.begun.lock().clone()
    }

    async fn begins(&self, number: u64) {
        let mut changed = self.changed.subscribe();
        let begins = changed.wait_for(|()| self.begun().contains(&number));
        in_time("the begin of an item", begins).await.unwrap();
    }
}

/// Publishes an item for the worker with this input to a pipe.
async fn publish(amqp: &Amqp, pipe: &str, input: &str, number: u64) {
    let item = RangeItem {
        number,
        params: std::collections::BTreeMap::new(),
    };
    let message = TaskMessage::new(format!("t.{number}"), input, &item).unwrap();
    amqp.publish(Outgoing::new(pipe, message.encode()))
        .await
        .unwrap();
}

/// Publishes `before` to the pipe of a worker, loses its connections while it runs the item `HELD`,
/// and publishes `AFTER`. Returns what the worker began.
async fn begun_by(concurrency: usize, pipe: &str, before: &[u64]) -> Vec<u64> {
    let (amqp, proxy) = proxied("").await;
    let (other, worker, stop) = (shared().await, Recording::new(), CancellationToken::new());
    let input = pipe.trim_end_matches(".suspects");
    let settings = Settings {
        concurrency,
        input: input.to_owned(),
        ..Settings::new("w")
    };
    for number in before {
        publish(&other, pipe, input, *number).await;
    }
    let amqp = Arc::new(amqp);
    let service = Runtime::new(settings, Arc::clone(&amqp) as _).worker(worker.clone());
    let story = async {
        worker.begins(HELD).await;
        proxy.refuse();
        // Until the client notices it, it acknowledges on a connection that carries nothing any
        // more.
        wait_for("the loss to be noticed", async || match amqp.state() {
            BrokerState::Connecting(_) => Ok(()),
            state => Err(format!("{state:?}")),
        })
        .await;
        wait_for("the broker to notice it, too", async || {
            match other.depth(pipe).await.unwrap() {
                depth if depth == before.len() as u64 => Ok(()),
                depth => Err(format!("{depth} messages")),
            }
        })
        .await;
        publish(&other, pipe, input, AFTER).await;
        proxy.pass();
        if concurrency > 1 && input == pipe {
            // The copies of the held item have arrived then.
            worker.begins(AFTER).await;
        }
        worker.may_go_on.cancel();
        worker.begins(AFTER).await;
        stop.cancel();
    };
    let (ended, ()) = in_time("the story", async {
        tokio::join!(Box::pin(service.run_until(stop.clone())), story)
    })
    .await;
    ended.unwrap();
    amqp.close().await;
    assert_eq!(other.depth(pipe).await.unwrap(), 0, "something came again");
    worker.begun()
}

#[tokio::test]
async fn task_is_not_begun_again_while_it_runs() {
    let pipe = unique("beside");
    assert_eq!(begun_by(2, &pipe, &[HELD]).await, [HELD, AFTER]);
}

#[tokio::test]
async fn waiting_deliveries_of_a_lost_channel_run_once() {
    let pipe = unique("waiting");
    assert_eq!(
        begun_by(1, &pipe, &[HELD, 2, 3, 4]).await,
        [HELD, 2, 3, 4, AFTER]
    );
}

#[tokio::test]
async fn quarantined_task_is_not_begun_again_after_its_channel_was_lost() {
    let pipe = format!("{}.suspects", unique("isolated"));
    assert_eq!(begun_by(2, &pipe, &[HELD]).await, [HELD, AFTER]);
}

/// Sets how long a delivery may be unsettled, in milliseconds, and how often the server looks for
/// those that are.
async fn limit_deliveries(server: &RabbitServer, limit: u32, looks: u32) {
    let set = format!(
        "[application:set_env(rabbit, N, V) || {{N, V}} <- [{{consumer_timeout, {limit}}}, {{channel_tick_interval, {looks}}}]]."
    );
    server.control(&["eval", &set]).await.unwrap();
}

/// Waits until the server has closed a channel of this pipe, and no longer closes any.
async fn channel_is_closed(log: &Log, pipe: &str, server: &RabbitServer) {
    let of_pipe = format!("pipe={pipe} ");
    wait_for("a channel to be closed", async || {
        let log = log.text();
        let mut lines = log.lines().filter(|line| line.contains(&of_pipe));
        let is_closed = lines.any(|line| line.contains("consuming was interrupted"));
        is_closed.then_some(()).ok_or(log)
    })
    .await;
    limit_deliveries(server, 1_800_000, 60_000).await;
}

#[tokio::test]
async fn redelivery_from_a_channel_that_a_resized_consumer_has_left_does_not_arrive() {
    let server = disturbed().await;
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        limit_deliveries(&server, 1000, 200).await;
        let log = Log::default();
        let _kept = log.keep();
        let amqp = connect(AmqpOptions {
            queue_type,
            ..AmqpOptions::new(server.url())
        })
        .await;
        let pipe = unique("resized");
        amqp.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
        let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
        let held = next(&mut consumer).await;
        consumer.resize(20);
        channel_is_closed(&log, &pipe, &server).await;
        amqp.publish(Outgoing::new(&*pipe, "2")).await.unwrap();
        let second = next(&mut consumer).await;
        assert_eq!(&second.body()[..], b"2", "{queue_type:?}");
        second.ack();
        held.ack();
        amqp.close().await;
        let other = connect(AmqpOptions::new(server.url())).await;
        assert_eq!(other.depth(&pipe).await.unwrap(), 0, "{queue_type:?}");
    }
}

/// Returns a bundle of these items for the worker with this input.
fn bundle(input: &str, numbers: &[u64]) -> Outgoing {
    let mut writer = BundleWriter::default();
    for number in numbers {
        let data = format!("{{\"number\":{number}}}");
        writer.add(u32::try_from(*number).unwrap(), data.as_bytes(), None);
    }
    let params = std::collections::BTreeMap::new();
    let shared = TaskMessage::new("t", input, &RangeItem { number: 0, params }).unwrap();
    Outgoing::new(contract::bundle_pipe(input).unwrap(), writer.encode(shared))
}

#[tokio::test]
async fn members_of_a_bundle_are_not_begun_again_while_they_run() {
    let server = disturbed().await;
    limit_deliveries(&server, 1000, 200).await;
    let log = Log::default();
    let _kept = log.keep();
    let amqp = Arc::new(connect(AmqpOptions::new(server.url())).await);
    let (worker, stop, input) = (Recording::new(), CancellationToken::new(), unique("long"));
    let settings = Settings {
        // So many that the worker asks for more bundles once it sees that they are small.
        concurrency: 64,
        input: input.clone(),
        ..Settings::new("w")
    };
    let service = Runtime::new(settings, Arc::clone(&amqp) as _).worker(worker.clone());
    let story = async {
        amqp.publish(bundle(&input, &[HELD, 2])).await.unwrap();
        worker.begins(HELD).await;
        channel_is_closed(&log, &format!("{input}.bundles"), &server).await;
        amqp.publish(bundle(&input, &[AFTER])).await.unwrap();
        worker.begins(AFTER).await;
        worker.may_go_on.cancel();
        stop.cancel();
    };
    let (ended, ()) = in_time("the story", async {
        tokio::join!(Box::pin(service.run_until(stop.clone())), story)
    })
    .await;
    ended.unwrap();
    amqp.close().await;
    assert_eq!(worker.begun(), [HELD, 2, AFTER]);
    let other = connect(AmqpOptions::new(server.url())).await;
    let delayed = queues::delay_queue(&input, Duration::from_secs(1));
    for pipe in [&input, &format!("{input}.bundles"), &delayed] {
        assert_eq!(other.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
}

/// Consumes the message `1`, loses the channel, and consumes the message `2`.
async fn consume_around_a_loss(
    queue_type: QueueType,
) -> (Amqp, harness::Proxy, String, Consumer, Delivery) {
    let (proxied, proxy) = proxied("").await;
    let url = harness::rabbitmq().await.unwrap().url;
    let other = connect(AmqpOptions {
        queue_type,
        ..AmqpOptions::new(url)
    })
    .await;
    let pipe = unique("joined");
    other.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    let mut consumer = proxied.consume(&pipe, 10).await.unwrap();
    let first = next(&mut consumer).await;
    assert!(!first.is_gone());
    proxy.cut();
    other.publish(Outgoing::new(&*pipe, "2")).await.unwrap();
    let second = next(&mut consumer).await;
    assert_eq!(&second.body()[..], b"2");
    second.ack();
    is_there_again(&first).await;
    (proxied, proxy, pipe, consumer, first)
}

async fn is_there_again(delivery: &Delivery) {
    wait_for("the message to be there again", async || {
        (!delivery.is_gone())
            .then_some(())
            .ok_or_else(|| "it is gone".to_owned())
    })
    .await;
}

#[tokio::test]
async fn redelivery_is_acknowledged_with_the_delivery_that_is_open() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let (amqp, _proxy, pipe, consumer, first) = consume_around_a_loss(queue_type).await;
        first.ack();
        amqp.close().await;
        drop(consumer);
        assert_eq!(shared().await.depth(&pipe).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn redelivery_arrives_when_the_delivery_that_is_open_is_returned() {
    let (_amqp, proxy, pipe, mut consumer, first) = consume_around_a_loss(QueueType::Quorum).await;
    // The channel of the redelivery is lost as well.
    proxy.cut();
    let other = shared().await;
    other.publish(Outgoing::new(&*pipe, "3")).await.unwrap();
    next(&mut consumer).await.ack();
    is_there_again(&first).await;
    drop(first);
    let again = next(&mut consumer).await;
    assert_eq!((&again.body()[..], again.delivery_count), (&b"1"[..], 1));
    again.ack();
}

#[tokio::test]
async fn redelivery_of_a_message_that_is_acknowledged_does_not_arrive() {
    let (proxied, proxy) = proxied("").await;
    let (other, pipe) = (shared().await, unique("finished"));
    other.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    let mut consumer = proxied.consume(&pipe, 10).await.unwrap();
    let first = next(&mut consumer).await;
    proxy.refuse();
    wait_for("the loss to be noticed", async || {
        if first.is_gone() {
            Ok(())
        } else {
            Err("not gone".to_owned())
        }
    })
    .await;
    first.ack();
    proxy.pass();
    other.publish(Outgoing::new(&*pipe, "2")).await.unwrap();
    let second = next(&mut consumer).await;
    assert_eq!(&second.body()[..], b"2");
    second.ack();
}

#[tokio::test]
async fn caller_that_leaves_in_the_middle_of_a_refused_request_costs_no_connection() {
    let (amqp, pipe, missing) = (shared().await, unique("held"), unique("missing"));
    amqp.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    let mut consumer = amqp.consume(&pipe, 10).await.unwrap();
    let held = next(&mut consumer).await;
    for rounds in 0..600 {
        let patience = async {
            for _ in 0..rounds * 4 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = amqp.depth(&missing) => {}
            () = patience => {}
        }
    }
    drop(amqp.depth(&missing).await);
    assert!(!held.is_gone());
    held.ack();
}

#[tokio::test]
async fn looks_go_on_after_a_request_was_refused_on_each_channel_and_end_no_consumer() {
    let url = harness::rabbitmq().await.unwrap().url;
    let amqp = connect(AmqpOptions::new(format!("{url}?channel_max=20"))).await;
    let (pipe, missing) = (unique("existing"), unique("missing"));
    amqp.publish(Outgoing::new(&*pipe, "1")).await.unwrap();
    let consuming = amqp.consuming.current().unwrap();
    for look in 0..50 {
        let looked = (amqp.depth(&missing).await, amqp.depth(&pipe).await);
        assert!(matches!(looked, (Ok(0), Ok(1))), "{look}: {looked:?}");
    }
    assert!(!consuming.is_lost());
}
