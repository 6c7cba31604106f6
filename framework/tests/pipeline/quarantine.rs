//! Messages that processes held when they crashed and that are never given up: all of a handler
//! that runs no code of an author, and those that a worker only passes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use contract::{RangeItem, TaskMessage, quarantine_pipe};
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::embedded::Embedded;
use framework::broker::memory::Memory;
use framework::broker::{Broker, Delivery, HeaderValue, Outgoing};
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
use harness::{in_time, unique, wait_for};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The header with the number of processes that crashed while they handled a message alone.
const CRASHES: &str = "x-batchwright-deaths";
/// How often a message comes back before it is quarantined.
const OFTEN: u32 = 5;
/// More crashes than a worker with an author's code accepts.
const MANY: i64 = 30;
/// The message at which the handler stays until it is told to go on.
const HELD: &str = "held";

/// A message as the handler got it: its id, the crashes that its header counts, and the size of its
/// batch.
type Handled = (String, Option<i64>, usize);

/// Never gives up.
#[derive(Clone, Default)]
struct Patient {
    handled: Arc<Mutex<Vec<Handled>>>,
    may_go_on: CancellationToken,
}

impl BatchHandler for Patient {
    fn max_batch(&self) -> usize {
        10
    }

    fn gives_up(&self) -> bool {
        false
    }

    async fn handle(&self, batch: &[Received], _: &Publisher) -> Vec<Disposition> {
        for received in batch {
            let id = &received.message().task_id;
            let crashes = match received.headers().get(CRASHES) {
                Some(HeaderValue::Integer(crashes)) => Some(*crashes),
                _ => None,
            };
            let handled = (id.clone(), crashes, batch.len());
            self.handled.lock().push(handled);
            if id == HELD {
                self.may_go_on.cancelled().await;
            }
        }
        let done = |_| Disposition::Done(Outputs::default());
        batch.iter().map(done).collect()
    }
}

impl Patient {
    fn ids(&self) -> BTreeSet<String> {
        let handled = self.handled.lock();
        handled.iter().map(|(id, ..)| id.clone()).collect()
    }

    /// Waits until the handler has got messages with these ids, each by itself.
    async fn gets_alone(&self, ids: &[&str]) {
        let expected = ids.iter().copied().map(str::to_owned).collect();
        wait_for("the messages to be handled", async || match self.ids() {
            ids if ids == expected => Ok(()),
            ids => Err(format!("{ids:?}")),
        })
        .await;
        let handled = self.handled.lock();
        assert!(handled.iter().all(|(.., size)| *size == 1), "{handled:?}");
    }
}

fn message(id: &str, to: &str, pipe: &str) -> Outgoing {
    let item = RangeItem {
        number: 1,
        params: [].into(),
    };
    let message = TaskMessage::new(id, to, &item).unwrap();
    Outgoing::new(pipe, message.encode())
}

/// Publishes messages, which then come back this many times. A requeue counts as a crash does.
async fn come_back(broker: &dyn Broker, pipe: &str, messages: Vec<Outgoing>, times: u32) {
    let all = messages.len();
    for message in messages {
        broker.publish(message).await.unwrap();
    }
    let mut consumer = broker.consume(pipe, 10).await.unwrap();
    for _ in 0..times {
        let mut held = Vec::new();
        while held.len() < all {
            held.extend(in_time("a message", consumer.next()).await);
        }
        held.into_iter().for_each(Delivery::requeue);
    }
}

/// Runs the handler until `story` has ended.
async fn run(broker: &Arc<dyn Broker>, name: &str, patient: &Patient, story: impl Future) {
    let stop = CancellationToken::new();
    let service = Runtime::new(Settings::new(name), Arc::clone(broker)).handler(patient.clone());
    let story = async {
        story.await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), story);
    ended.unwrap();
}

async fn crashes_condemn_nothing(broker: Arc<dyn Broker>) {
    let name = unique("patient");
    let (input, elsewhere) = (format!("{name}-in"), format!("{name}-next"));
    let suspects = quarantine_pipe(&input);
    let held_when_processes_crashed = vec![
        message("own", &input, &input),
        message("diverted", &elsewhere, &input),
    ];
    come_back(&*broker, &input, held_when_processes_crashed, OFTEN).await;
    let alone = vec![message("alone", &input, &suspects)];
    come_back(&*broker, &suspects, alone, 1).await;
    let mut condemned = message("condemned", &input, &suspects);
    condemned.headers.set(CRASHES, HeaderValue::Integer(MANY));
    broker.publish(condemned).await.unwrap();

    let patient = Patient::default();
    let story = patient.gets_alone(&["alone", "condemned", "diverted", "own"]);
    run(&broker, &name, &patient, story).await;
    let handled = patient.handled.lock().clone();
    let crashes = |id: &str| {
        let handled = handled.iter().find(|(of, ..)| of == id);
        handled.and_then(|(_, crashes, _)| *crashes)
    };
    assert_eq!(crashes("own"), None);
    // `RabbitMQ` may count the end of the consumer that brought them back, too.
    let condemned = crashes("condemned");
    assert!(
        [Some(MANY), Some(MANY + 1)].contains(&condemned),
        "{handled:?}"
    );
    // It was published anew, with the crashes so far.
    assert!(matches!(crashes("alone"), Some(1 | 2)), "{handled:?}");
    for pipe in [&input, &suspects, &format!("{name}-invalid")] {
        assert_eq!(broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    broker.close().await;
}

#[tokio::test]
async fn crashes_never_condemn_a_message_of_a_handler_that_never_gives_up() {
    crashes_condemn_nothing(Arc::new(Memory::new())).await;
    let folder = tempfile::tempdir().unwrap();
    let embedded = Embedded::open(folder.path()).await.unwrap();
    crashes_condemn_nothing(Arc::new(embedded)).await;
    let options = AmqpOptions::new(harness::rabbitmq().await.unwrap().url);
    let amqp = Amqp::connect(options).unwrap();
    amqp.connected(harness::PATIENCE).await.unwrap();
    crashes_condemn_nothing(Arc::new(amqp)).await;
}

#[tokio::test(start_paused = true)]
async fn quarantined_message_that_takes_long_keeps_no_other_one_waiting() {
    let broker: Arc<dyn Broker> = Arc::new(Memory::new());
    for id in [HELD, "suspect"] {
        let message = message(id, "w-in", "w-in.suspects");
        broker.publish(message).await.unwrap();
    }
    let patient = Patient::default();
    let story = async {
        patient.gets_alone(&[HELD, "suspect"]).await;
        for id in ["1", "2"] {
            broker.publish(message(id, "w-in", "w-in")).await.unwrap();
            // It is handled before the next one comes.
            sleep(Duration::from_secs(1)).await;
        }
        patient.gets_alone(&["1", "2", HELD, "suspect"]).await;
        patient.may_go_on.cancel();
    };
    run(&broker, "w", &patient, story).await;
    assert_eq!(broker.depth("w-in.suspects").await.unwrap(), 0);
}

struct Idle;

impl Worker for Idle {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

#[tokio::test(start_paused = true)]
async fn message_that_a_worker_only_passes_on_is_published_anew_and_not_quarantined() {
    let (memory, published) = (Memory::new(), Arc::<Mutex<Vec<String>>>::default());
    let passed_on = message("t", "next", "w-in");
    come_back(&memory, "w-in", vec![passed_on], OFTEN).await;
    let noted = Arc::clone(&published);
    let broker = memory.clone().intercepting(move |message| {
        noted.lock().push(message.pipe.to_string());
        Ok(message)
    });
    let stop = CancellationToken::new();
    let service = Runtime::new(Settings::new("w"), Arc::new(broker)).worker(Idle);
    let story = async {
        let mut next = memory.consume("next", 1).await.unwrap();
        in_time("the message", next.next()).await.unwrap().ack();
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), story);
    ended.unwrap();
    assert_eq!(*published.lock(), ["w-in", "next"]);
}
