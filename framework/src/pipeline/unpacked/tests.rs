use std::sync::atomic::{AtomicBool, Ordering};

use contract::{BatchTask, BundleWriter};

use super::*;
use crate::broker::memory::Memory;
use crate::broker::{Confirm, Consumer};

struct Bench {
    pipes: Memory,
    bundles: Consumer,
    on_their_own: OnTheirOwn,
}

impl Bench {
    async fn with(members: u32) -> Self {
        let pipes = Memory::new();
        let mut writer = BundleWriter::default();
        for number in 1..=members {
            writer.add(number, b"{}", Some("label"));
        }
        let shared = TaskMessage::new("T", "in", &BatchTask::default()).unwrap();
        let bundle = Outgoing::new("in.bundles", writer.encode(shared));
        pipes.publish(bundle).await.unwrap();
        let broker = Arc::new(pipes.process());
        Self {
            bundles: broker.consume("in.bundles", 1).await.unwrap(),
            on_their_own: OnTheirOwn {
                broker,
                input: "in".into(),
                retry: RetryPolicy::default(),
                tasks: TaskTracker::new(),
                runtime: Handle::current(),
                shutdown: CancellationToken::new(),
                abort: CancellationToken::new(),
                known: KnownBundles::default(),
            },
            pipes,
        }
    }

    async fn members(&mut self) -> Vec<Delivery> {
        let bundle = self.bundles.next().await.unwrap();
        Unpacked::take_apart(bundle, &self.on_their_own).unwrap()
    }

    /// Returns how often the bundle has come back; `None` if it was acknowledged.
    async fn came_back(mut self) -> Option<u32> {
        self.on_their_own.tasks.close();
        self.on_their_own.tasks.wait().await;
        drop((self.bundles, self.on_their_own));
        if self.pipes.depth("in.bundles").await.unwrap() == 0 {
            return None;
        }
        self.bundles = self.pipes.consume("in.bundles", 1).await.unwrap();
        Some(self.bundles.next().await.unwrap().delivery_count)
    }

    /// Returns the ids of the tasks that were sent by themselves.
    async fn single(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let waiting = self.pipes.depth("in").await.unwrap();
        let mut single = self.pipes.consume("in", 100).await.unwrap();
        for _ in 0..waiting {
            let delivery = single.next().await.unwrap();
            assert_eq!(
                crate::steps::output::label_in(&delivery.headers),
                Some("label")
            );
            ids.push(TaskMessage::decode(&delivery.body()).unwrap().task_id);
            delivery.ack();
        }
        ids
    }
}

#[tokio::test]
async fn bundle_is_acknowledged_with_its_last_member() {
    for settled in [1, 2] {
        let mut bench = Bench::with(2).await;
        let mut members = bench.members().await.into_iter();
        members.by_ref().take(settled).for_each(Delivery::ack);
        let rest: Vec<Delivery> = members.collect();
        bench.on_their_own.broker.close().await;
        drop(rest);
        let came_back = bench.came_back().await;
        assert_eq!(came_back.is_none(), settled == 2, "{settled} settled");
    }
}

#[tokio::test]
async fn member_that_is_given_back_goes_by_itself_and_then_the_bundle_is_acknowledged() {
    let mut bench = Bench::with(3).await;
    let mut members = bench.members().await.into_iter();
    members.next().unwrap().ack();
    members.next().unwrap().requeue();
    assert_eq!(bench.single().await, ["T.2"]);
    drop(members);
    assert_eq!(bench.single().await, ["T.3"]);
    assert_eq!(bench.came_back().await, None);
}

#[tokio::test(start_paused = true)]
async fn member_that_the_broker_refuses_is_sent_again_while_another_one_runs() {
    let mut bench = Bench::with(3).await;
    let refusals = Mutex::new(6);
    let refusing = bench.pipes.process().intercepting(move |message| {
        let mut left = refusals.lock();
        if *left == 0 {
            return Ok(message);
        }
        *left -= 1;
        Err(Confirm::ready(Err(PublishError::refused("in", "full"))))
    });
    bench.on_their_own.broker = Arc::new(refusing);
    let mut members = bench.members().await.into_iter();
    let running = members.next().unwrap();
    drop(members);
    let mut single = bench.pipes.consume("in", 100).await.unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let in_time = tokio::time::timeout(Duration::from_hours(1), single.next());
        let delivery = in_time.await.unwrap().unwrap();
        ids.insert(TaskMessage::decode(&delivery.body()).unwrap().task_id);
        delivery.ack();
    }
    assert_eq!(ids, ["T.2", "T.3"].map(str::to_owned).into());
    running.ack();
    drop(single);
    assert_eq!(bench.came_back().await, None);
}

#[tokio::test(start_paused = true)]
async fn bundle_that_comes_back_is_taken_apart_and_acknowledged_before_its_members_return() {
    let mut bench = Bench::with(2).await;
    bench.bundles.next().await.unwrap().requeue();
    assert!(bench.members().await.is_empty());
    let pipes = bench.pipes.clone();
    let mut single = pipes.consume("in", 100).await.unwrap();
    let began = Instant::now();
    assert_eq!(bench.came_back().await, None);
    assert!(began.elapsed() < REDELIVERY_DELAY);
    for id in ["T.1", "T.2"] {
        let delivery = single.next().await.unwrap();
        assert!(began.elapsed() >= REDELIVERY_DELAY);
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        assert_eq!(message.task_id, id);
        delivery.ack();
    }
}

#[tokio::test(start_paused = true)]
async fn member_whose_delay_the_broker_refuses_returns_at_once() {
    let mut bench = Bench::with(1).await;
    bench.bundles.next().await.unwrap().requeue();
    let refusing = bench.pipes.process().intercepting(|message| {
        if message.delay.is_none() {
            return Ok(message);
        }
        let refused = PublishError::refused("in", "the delay queue has other arguments");
        Err(Confirm::ready(Err(refused)))
    });
    bench.on_their_own.broker = Arc::new(refusing);
    assert!(bench.members().await.is_empty());
    let mut single = bench.pipes.consume("in", 100).await.unwrap();
    let in_time = tokio::time::timeout(REDELIVERY_DELAY / 2, single.next());
    in_time.await.unwrap().unwrap().ack();
    drop(single);
    assert_eq!(bench.came_back().await, None);
}

/// A broker that takes its deliveries back, and delivers them again.
#[derive(Default)]
struct Unsteady {
    is_gone: AtomicBool,
    settled: Mutex<Vec<Settlement>>,
}

impl Settler for Unsteady {
    fn settle(&self, _: u64, settlement: Settlement) {
        self.settled.lock().push(settlement);
    }

    fn is_gone(&self, _: u64) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

impl Bench {
    /// Takes the bundle apart, as it comes from the settler, and has come back so often.
    async fn members_by(&mut self, settler: &Arc<Unsteady>, count: u32) -> Vec<Delivery> {
        // Dropped, it goes back, and is there for the next time.
        let body = self.bundles.next().await.unwrap().body();
        let (pipe, headers) = ("in.bundles".into(), Headers::default());
        let settler = Arc::clone(settler) as Arc<dyn Settler>;
        let bundle = Delivery::new(pipe, body, headers, count, 1, settler);
        Unpacked::take_apart(bundle, &self.on_their_own).unwrap()
    }

    async fn sent(&self) -> Vec<String> {
        self.on_their_own.tasks.close();
        self.on_their_own.tasks.wait().await;
        self.single().await
    }
}

#[tokio::test(start_paused = true)]
async fn bundle_that_comes_back_while_members_run_is_settled_with_them() {
    let (mut bench, broker) = (Bench::with(3).await, Arc::new(Unsteady::default()));
    let mut members = bench.members_by(&broker, 0).await.into_iter();
    let [running, given_back, ended] = [(); 3].map(|()| members.next().unwrap());
    ended.ack();
    broker.is_gone.store(true, Ordering::Relaxed);
    assert!(running.is_gone());
    drop(given_back);
    assert_eq!(
        bench.sent().await,
        [""; 0],
        "another process may have the bundle"
    );
    broker.is_gone.store(false, Ordering::Relaxed);
    assert!(!running.is_gone());
    running.ack();
    assert_eq!(bench.sent().await, ["T.2"]);
    assert_eq!(*broker.settled.lock(), [Settlement::Ack]);
}

#[tokio::test(start_paused = true)]
async fn members_that_had_ended_before_the_bundle_went_back_do_not_run_again() {
    let (mut bench, broker) = (Bench::with(3).await, Arc::new(Unsteady::default()));
    let mut members = bench.members_by(&broker, 0).await.into_iter();
    members.next().unwrap().ack();
    broker.is_gone.store(true, Ordering::Relaxed);
    drop(members);
    assert_eq!(*broker.settled.lock(), [Settlement::Requeue]);
    broker.is_gone.store(false, Ordering::Relaxed);
    assert!(bench.members_by(&broker, 1).await.is_empty());
    tokio::time::sleep(REDELIVERY_DELAY * 2).await;
    assert_eq!(bench.sent().await, ["T.2", "T.3"]);
    let settled = [Settlement::Requeue, Settlement::Ack];
    assert_eq!(*broker.settled.lock(), settled);
}

#[tokio::test(start_paused = true)]
async fn members_that_another_process_sends_are_not_run_beside_themselves() {
    let (mut bench, broker) = (Bench::with(4).await, Arc::new(Unsteady::default()));
    let mut members = bench.members_by(&broker, 0).await.into_iter();
    let [running, failing, ended, given_back] = [(); 4].map(|()| members.next().unwrap());
    ended.ack();
    broker.is_gone.store(true, Ordering::Relaxed);
    drop(given_back);
    let here = std::mem::take(&mut bench.on_their_own.known);
    assert!(bench.members_by(&Arc::default(), 1).await.is_empty());
    let mut consumer = bench.pipes.consume("in", 100).await.unwrap();
    let mut received = Vec::new();
    while received.len() < 4 {
        assert_ne!(consumer.next_many(&mut received, 100).await, 0);
    }
    received.sort_by_key(Delivery::body);
    here.join(&mut received, 0);
    let ids = |received: &[Delivery]| -> Vec<String> {
        let decoded = received.iter().map(|delivery| delivery.content().decode());
        decoded.map(|message| message.unwrap().task_id).collect()
    };
    assert_eq!(ids(&received), ["T.4"], "the others are here");
    assert!(!running.is_gone(), "its message is here");
    // What this process itself sends is not the member any more, e.g. to try it again.
    let again = Outgoing::new("in", running.body());
    bench.pipes.publish(again).await.unwrap();
    let mut sent_here = vec![consumer.next().await.unwrap()];
    here.join(&mut sent_here, 0);
    assert_eq!(ids(&sent_here), ["T.1"]);
    running.ack();
    failing.requeue();
    assert_eq!(ids(&[consumer.next().await.unwrap()]), ["T.2"]);
    received
        .into_iter()
        .chain(sent_here)
        .for_each(Delivery::ack);
    drop(consumer);
    assert_eq!(bench.single().await, ["T.2"]);
}

#[tokio::test]
async fn bundle_without_members_is_acknowledged() {
    let mut bench = Bench::with(0).await;
    assert!(bench.members().await.is_empty());
    assert_eq!(bench.came_back().await, None);
}
