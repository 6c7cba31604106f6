//! The writer on a disk that is full or short of space, under a clock that is set back, and with
//! consumers that come and go.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt as _;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::broker::embedded::disk::{Disk, Probe};
use crate::broker::embedded::lock;
use crate::broker::local::thread::Thread;
use crate::broker::{Confirm, Consumer};
use crate::clock::Clock;

/// Longer than a few retries of a commit.
const LIMIT: Duration = Duration::from_secs(30);
const RESERVE: u64 = 1 << 20;

/// A writer on a file in a folder of its own.
struct TestWriter {
    folder: TempDir,
    commands: Arc<mpsc::UnboundedSender<Command>>,
    state: watch::Receiver<BrokerState>,
    tasks: TaskTracker,
    /// What the file system is said to have free.
    free: Arc<AtomicU64>,
}

impl TestWriter {
    /// Starts a writer. The file is limited to these numbers of pages, one for each commit; the
    /// last one stays.
    fn start(page_limits: &[u32]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path()).unwrap();
        let free = Arc::new(AtomicU64::new(1 << 40));
        let probed = Arc::clone(&free);
        let probe = Probe::new(move || Some(probed.load(Ordering::SeqCst)));
        let file = folder.path().join("broker.db");
        let (disk, recovered) = Disk::open(&file, probe, RESERVE, 0).unwrap();
        let mut disk = disk.with_lock(lock);
        disk.page_limits = page_limits.to_vec().into();
        let (commands, received) = channel();
        let (sender, state) = watch::channel(BrokerState::Connected);
        let bounds = Bounds::default();
        let clock = WallClock::new(Clock::system());
        let health = Health::default();
        let commands_of = Arc::downgrade(&commands) as _;
        let writer = Writer::new(
            commands_of,
            sender,
            recovered,
            bounds,
            RESERVE,
            clock,
            health,
        );
        let (tasks, thread) = (TaskTracker::new(), Thread::start().unwrap());
        tasks.spawn(writer.run(thread, disk, received, CancellationToken::new()));
        Self {
            folder,
            commands,
            state,
            tasks,
            free,
        }
    }

    fn publish(&self, pipe: &str, body: Vec<u8>) -> Confirm {
        let (confirmer, confirm) = Confirm::pair();
        let publish = Command::Publish(Outgoing::new(pipe, body), confirmer);
        assert!(self.commands.send(publish).is_ok());
        confirm
    }

    async fn consume(&self, pipe: &str) -> Consumer {
        let (reply, consumer) = oneshot::channel();
        let consume = Command::Consume {
            pipe: pipe.into(),
            prefetch: 10,
            process: 0,
            reply,
        };
        assert!(self.commands.send(consume).is_ok());
        consumer.await.unwrap()
    }

    async fn blocked(&mut self) -> String {
        let blocked = self
            .state
            .wait_for(|state| matches!(state, BrokerState::Blocked(_) | BrokerState::Refusing(_)));
        let state = timeout(LIMIT, blocked).await.expect("publishing goes on");
        match &*state.unwrap() {
            BrokerState::Blocked(reason) | BrokerState::Refusing(reason) => reason.clone(),
            other => panic!("{other:?}"),
        }
    }

    async fn connected(&mut self) {
        let connected = self
            .state
            .wait_for(|state| *state == BrokerState::Connected);
        timeout(LIMIT, connected)
            .await
            .expect("still blocked")
            .unwrap();
    }

    /// Closes the broker, and returns how many messages the file contains.
    async fn close(self) -> u64 {
        assert!(self.commands.send(Command::Close).is_ok());
        self.tasks.close();
        timeout(LIMIT, self.tasks.wait()).await.expect("no end");
        let file = self.folder.path().join("broker.db");
        let (_, recovered) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
        recovered.pipes.iter().map(|pipe| pipe.stored).sum()
    }
}

async fn stored(confirm: Confirm) {
    let result = timeout(LIMIT, confirm).await.expect("no confirm");
    result.expect("the message is stored");
}

async fn next(consumer: &mut Consumer) -> Delivery {
    let next = timeout(LIMIT, consumer.next()).await;
    next.expect("no delivery").expect("the consumer has ended")
}

#[tokio::test]
async fn refused_commit_is_retried_until_it_succeeds() {
    // The disk is full for two commits, then has room.
    let mut writer = TestWriter::start(&[1, 1, 10_000]);
    let confirm = writer.publish("pipe", vec![0; 100_000]);
    writer.blocked().await;
    stored(confirm).await;
    writer.connected().await;
    assert_eq!(writer.close().await, 1);
}

#[tokio::test]
async fn full_disk_heals_when_consumers_settle() {
    let mut writer = TestWriter::start(&[50]);
    let mut consumer = writer.consume("pipe").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        stored(writer.publish("pipe", vec![1; 100_000])).await;
        held.push(next(&mut consumer).await);
    }
    // The small one would fit, but must not overtake the other.
    let waiting = [vec![2; 200_000], vec![3]].map(|body| writer.publish("pipe", body));
    writer.blocked().await;
    held.into_iter().for_each(Delivery::ack);
    for confirm in waiting {
        stored(confirm).await;
    }
    for byte in [2, 3] {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.body()[0], byte);
        delivery.ack();
    }
    writer.connected().await;
    assert_eq!(writer.close().await, 0);
}

#[tokio::test]
async fn publishing_waits_for_the_reserve_except_where_consumers_keep_up() {
    let mut writer = TestWriter::start(&[]);
    let mut consumer = writer.consume("consumed").await;
    writer.free.store(RESERVE + 1000, Ordering::SeqCst);
    stored(writer.publish("consumed", vec![0])).await;
    let mut waits = writer.publish("deep", vec![0; 10_000]);
    let reason = writer.blocked().await;
    assert!(reason.contains("1048576 bytes"), "{reason}");
    stored(writer.publish("consumed", vec![0; 10_000])).await;
    assert!((&mut waits).now_or_never().is_none(), "it took the reserve");

    // Less than half of the reserve is free, so that nothing fits.
    writer.free.store(RESERVE / 4, Ordering::SeqCst);
    for _ in 0..2 {
        next(&mut consumer).await.ack();
    }
    let mut also_waits = writer.publish("consumed", vec![0]);
    assert!((&mut also_waits).now_or_never().is_none());

    writer.free.store(1 << 40, Ordering::SeqCst);
    stored(waits).await;
    stored(also_waits).await;
    writer.connected().await;
    assert_eq!(writer.close().await, 2);
}

#[tokio::test]
async fn delay_ends_in_time_although_the_clock_is_set_back_by_a_day() {
    const DAY: i64 = 86_400_000;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (mut disk, recovered) = Disk::open(&file, Probe::of(&file), 0, 2 * DAY).unwrap();
    let (commands, _received) = channel();
    let (state, _) = watch::channel(BrokerState::Connected);
    let clock = WallClock::new(Clock::simulated(2 * DAY));
    let bounds = Bounds::default();
    let (commands_of, health) = (Arc::downgrade(&commands) as _, Health::default());
    let mut writer = Writer::new(commands_of, state, recovered, bounds, 0, clock, health);
    let publish = |writer: &mut Writer, seconds| {
        let (confirmer, confirm) = Confirm::pair();
        let message = Outgoing {
            delay: Some(Duration::from_secs(seconds)),
            ..Outgoing::new("pipe", vec![0])
        };
        writer.take(Command::Publish(message, confirmer));
        confirm
    };
    let confirm = publish(&mut writer, 30);
    writer.do_all(&mut disk).unwrap();
    stored(confirm).await;
    // Another message is due earlier and must not hide the first.
    writer.clock.set(Clock::simulated(DAY));
    let confirm = publish(&mut writer, 20);
    writer.do_all(&mut disk).unwrap();
    stored(confirm).await;
    let due: Vec<_> = disk.due(i64::MAX, 10, 1000).unwrap();
    assert_eq!(due.len(), 2);
    for Delayed { due, .. } in due {
        assert!((DAY..DAY + 31_000).contains(&due.at), "{due:?}");
    }
    assert!(
        writer.next_due < Some(DAY + 21_000),
        "{:?}",
        writer.next_due
    );
    disk.close();
}

#[tokio::test]
async fn pipes_that_wait_for_memory_degrade_the_process_until_deliveries_are_settled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let health = Health::default();
    let (mut writer, mut disk, _commands, mut received) = idle_writer(&file, health.clone());
    writer.memory = Arc::new(Memory::new(1, 0));
    let mut consumer = consume(&mut writer, 1).await;
    for _ in 0..2 {
        let (confirmer, _) = Confirm::pair();
        writer.take(Command::Publish(Outgoing::new("pipe", vec![0]), confirmer));
    }
    writer.do_all(&mut disk).unwrap();
    let delivery = next(&mut consumer).await;
    let told = health.degradations();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].name, "memory");
    assert!(told[0].reason.contains("1 pipes wait on disk"), "{told:?}");
    delivery.ack();
    writer.take(received.recv().await.unwrap());
    writer.do_all(&mut disk).unwrap();
    assert_eq!(health.degradations(), []);
    next(&mut consumer).await.ack();
    disk.close();
}

#[test]
fn folder_is_free_although_a_process_that_is_being_started_has_the_locked_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let held = lock(folder.path()).unwrap();
    let _inherited = held.0.try_clone().unwrap();
    lock(folder.path()).unwrap_err();
    drop(held);
    lock(folder.path()).unwrap();
}

#[tokio::test]
async fn folder_is_locked_while_work_goes_on_for_which_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (disk, _) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
    let disk = disk.with_lock(lock(folder.path()).unwrap());
    let thread = Thread::start().unwrap();
    let (goes_on, ends) = std::sync::mpsc::channel::<()>();
    drop(thread.run(move || (ends.recv(), disk)));
    lock(folder.path()).unwrap_err();
    drop(goes_on);
    thread.run(|| ()).await;
    lock(folder.path()).unwrap();
}

#[tokio::test]
async fn messages_that_a_consumer_gave_back_reach_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (mut writer, mut disk, _commands, mut received) = idle_writer(&file, Health::default());
    let mut first = consume(&mut writer, 10).await;
    for body in 0..3 {
        let (confirmer, _) = Confirm::pair();
        writer.take(Command::Publish(
            Outgoing::new("pipe", vec![body]),
            confirmer,
        ));
    }
    writer.do_all(&mut disk).unwrap();
    // One stays with the consumer, so that the others stay in memory.
    let _held = next(&mut first).await;
    drop((next(&mut first).await, next(&mut first).await, first));
    for _ in 0..2 {
        writer.take(received.recv().await.unwrap());
    }
    writer.do_all(&mut disk).unwrap();
    let mut second = consume(&mut writer, 10).await;
    writer.do_all(&mut disk).unwrap();
    for body in [1, 2] {
        let delivery = second.next().now_or_never().expect("no message").unwrap();
        assert_eq!(
            (&delivery.body()[..], delivery.delivery_count),
            (&[body][..], 1)
        );
    }
    disk.close();
}

fn channel() -> (
    Arc<mpsc::UnboundedSender<Command>>,
    mpsc::UnboundedReceiver<Command>,
) {
    let (commands, received) = mpsc::unbounded_channel();
    (Arc::new(commands), received)
}

/// Returns a writer that does what the test lets it do, and what its consumers send.
fn idle_writer(
    file: &std::path::Path,
    health: Health,
) -> (
    Writer,
    Disk,
    Arc<mpsc::UnboundedSender<Command>>,
    mpsc::UnboundedReceiver<Command>,
) {
    let (disk, recovered) = Disk::open(file, Probe::of(file), 0, 0).unwrap();
    let (commands, received) = channel();
    let (state, _) = watch::channel(BrokerState::Connected);
    let (clock, bounds) = (WallClock::new(Clock::system()), Bounds::default());
    let commands_of = Arc::downgrade(&commands) as _;
    let writer = Writer::new(commands_of, state, recovered, bounds, 0, clock, health);
    (writer, disk, commands, received)
}

async fn consume(writer: &mut Writer, prefetch: usize) -> Consumer {
    let (reply, consumer) = oneshot::channel();
    writer.take(Command::Consume {
        pipe: "pipe".into(),
        prefetch,
        process: 0,
        reply,
    });
    consumer.await.unwrap()
}
