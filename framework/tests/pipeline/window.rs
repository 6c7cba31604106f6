//! How many deliveries a worker takes: few long ones, so that other processes have work, many short
//! ones, and few large ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::{RangeItem, TaskMessage};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Outgoing};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Takes its time for each item, and records the largest number of items that its process held.
#[derive(Clone)]
struct Timed {
    time: Duration,
    published: u64,
    done: Arc<AtomicUsize>,
    own: Arc<AtomicUsize>,
    pipes: Memory,
    depths: Arc<Mutex<Vec<u64>>>,
}

impl Worker for Timed {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        let depth = self.pipes.depth("w-in").await?;
        self.depths.lock().push(depth);
        sleep(self.time).await;
        self.own.fetch_add(1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::none())
    }
}

/// Lets processes of a worker with default settings handle `count` items that take this long. Each
/// joins after its delay. Returns how many items each did, how long it took, and how many items
/// waited in the pipe at each begin.
async fn work(count: u64, time: Duration, joins: &[Duration]) -> (Vec<usize>, Duration, Vec<u64>) {
    work_with(count, 0, time, joins).await
}

/// Like [`work`], with items of this many bytes.
async fn work_with(
    count: u64,
    bytes: usize,
    time: Duration,
    joins: &[Duration],
) -> (Vec<usize>, Duration, Vec<u64>) {
    let pipes = Memory::new();
    let params = BTreeMap::from([("text".to_owned(), "x".repeat(bytes))]);
    for number in 0..count {
        let item = RangeItem {
            number,
            params: params.clone(),
        };
        let message = TaskMessage::new(format!("t.{number}"), "w-in", &item).unwrap();
        pipes
            .publish(Outgoing::new("w-in", message.encode()))
            .await
            .unwrap();
    }
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let first = Timed {
        time,
        published: count,
        done: Arc::default(),
        own: Arc::default(),
        pipes: pipes.clone(),
        depths: Arc::default(),
    };
    let workers: Vec<Timed> = joins
        .iter()
        .map(|_| Timed {
            own: Arc::default(),
            ..first.clone()
        })
        .collect();
    let processes = workers.iter().zip(joins).map(|(worker, delay)| {
        let process = Arc::new(pipes.process());
        let service = Runtime::new(Settings::new("w"), process).worker(worker.clone());
        let stop = stop.clone();
        async move {
            sleep(*delay).await;
            service.run_until(stop).await.unwrap();
        }
    });
    let until_done = async {
        while first.done.load(Ordering::Relaxed) < usize::try_from(first.published).unwrap() {
            sleep(Duration::from_millis(10)).await;
        }
        let took = began.elapsed();
        stop.cancel();
        took
    };
    let (_, took) = tokio::join!(futures_util::future::join_all(processes), until_done);
    let own = workers
        .iter()
        .map(|worker| worker.own.load(Ordering::Relaxed));
    let depths = first.depths.lock().clone();
    (own.collect(), took, depths)
}

#[tokio::test(start_paused = true)]
async fn second_process_gets_some_of_few_long_tasks() {
    let second = Duration::from_secs(1);
    let (done, ..) = work(12, second * 60, &[Duration::ZERO, second]).await;
    assert_eq!(done, [8, 4]);
}

// One that holds more than it has slots for lets the others wait for it at the end.
#[tokio::test(start_paused = true)]
async fn processes_end_few_long_tasks_together() {
    let second = Duration::from_secs(1);
    let (done, took, _) = work(64, second, &[Duration::ZERO; 2]).await;
    // Four tasks a slot.
    assert!(took < second * 9 / 2, "{done:?} in {took:?}");
}

#[tokio::test(start_paused = true)]
async fn process_that_joins_later_gets_its_share_of_long_tasks() {
    let second = Duration::from_secs(1);
    let (done, took, _) = work(400, second, &[Duration::ZERO, second * 6]).await;
    // Alone, the first does 48 in the first six seconds; the rest is shared.
    assert!(done[1] >= 170, "{done:?} in {took:?}");
    assert!(took < second * 30, "{done:?} in {took:?}");
}

/// Returns the largest number of items of this many bytes that one process held.
async fn most_held(count: u64, bytes: usize) -> u64 {
    let (_, _, depths) = work_with(count, bytes, Duration::from_millis(1), &[Duration::ZERO]).await;
    let held = depths.iter().zip(0_u64..);
    held.map(|(depth, begun)| count - depth - begun)
        .max()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn process_takes_many_short_tasks() {
    assert!(most_held(5_000, 0).await > 500);
}

// Otherwise a thousand short tasks with large data would fill the memory.
#[tokio::test(start_paused = true)]
async fn process_takes_few_large_tasks_however_short_they_are() {
    let held = most_held(300, 256 << 10).await;
    assert!(held <= 8 + 64, "{held}");
}
