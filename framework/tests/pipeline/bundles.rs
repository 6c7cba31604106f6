//! Bundles: what a split sends to whom, and how a worker takes a bundle apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use contract::{Bundle, BundleWriter, RangeItem, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Consumer, HeaderValue, Outgoing, PublishError};
use framework::{Context, NoOutput, Payload, Reply, Runtime, Settings, TaskError, Worker};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Dispatches the numbers from 1 to that of its task, with a pause before each, and then goes on
/// for a time.
#[derive(Clone, Copy)]
struct Splitter {
    says_how_many: bool,
    pause: Duration,
    goes_on: Duration,
    bytes: usize,
}

const QUICK: Splitter = Splitter {
    says_how_many: false,
    pause: Duration::ZERO,
    goes_on: Duration::ZERO,
    bytes: 0,
};

impl Worker for Splitter {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, task: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        if self.says_how_many {
            ctx.expect_subtasks(u32::try_from(task.number).unwrap());
        }
        for number in 1..=task.number {
            if !self.pause.is_zero() {
                sleep(self.pause).await;
            }
            let mut item = Payload::of(&item(number))?.labelled(format!("number {number}"));
            item.data.resize(item.data.len() + self.bytes, b' ');
            ctx.dispatch_payload("items-in", item).await?;
        }
        if !self.goes_on.is_zero() {
            sleep(self.goes_on).await;
        }
        Ok(Reply::none())
    }
}

fn item(number: u64) -> RangeItem {
    RangeItem {
        number,
        params: BTreeMap::new(),
    }
}

/// Returns the message of a split into this many subtasks.
fn split(subtasks: u64) -> TaskMessage {
    TaskMessage {
        tracking: Some(Tracking {
            job_task_id: Some("p:j.1".into()),
            tracking_pipe: Some("tracking".into()),
            track_to: Some("end".into()),
            ..Tracking::default()
        }),
        correlation_id: Some("c".into()),
        ..TaskMessage::new("T.1", "splits-in", &item(subtasks)).unwrap()
    }
}

/// Lets a splitter split a task. Somebody reads bundles for its items, if asked. Returns the
/// consumers of single items and of bundles once `count` messages have come, and when each came.
async fn sent(
    splitter: Splitter,
    subtasks: u64,
    bundle: u32,
    has_reader: bool,
    count: usize,
) -> (Vec<Vec<TaskMessage>>, Vec<Duration>) {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    let mut single = pipes.consume("items-in", 1000).await.unwrap();
    let mut bundles = if has_reader {
        pipes.consume("items-in.bundles", 1000).await.unwrap()
    } else {
        pipes.consume("nothing", 1).await.unwrap()
    };
    let message = split(subtasks).encode();
    let task = Outgoing::new("splits-in", message);
    pipes.publish(task).await.unwrap();
    let settings = Settings {
        bundle,
        ..Settings::new("splits")
    };
    let service = Runtime::new(settings, Arc::new(pipes.clone())).worker(splitter);
    let came = async {
        let (began, mut came) = (Instant::now(), (Vec::new(), Vec::new()));
        while came.0.len() < count {
            came.0.push(tokio::select! {
                biased;
                Some(delivery) = single.next() => {
                    let label = delivery.headers.get("x-batchwright-label").cloned();
                    assert!(matches!(label, Some(HeaderValue::Text(_))), "{label:?}");
                    let message = TaskMessage::decode(&delivery.body()).unwrap();
                    delivery.ack();
                    vec![message]
                }
                Some(delivery) = bundles.next() => {
                    let members = members(&delivery.body());
                    delivery.ack();
                    members
                }
            });
            came.1.push(began.elapsed());
        }
        stop.cancel();
        came
    };
    let (ended, came) = tokio::join!(service.run_until(stop.clone()), came);
    ended.unwrap();
    assert_eq!(pipes.depth("items-in").await.unwrap(), 0);
    came
}

fn members(body: &[u8]) -> Vec<TaskMessage> {
    let bundle = Bundle::decode(body).unwrap();
    let label = |number| Some(format!("number {number}"));
    assert!(bundle.members.iter().all(|it| it.label == label(it.number)));
    let members = (0..bundle.members.len()).filter_map(|index| bundle.message(index, body));
    members.collect()
}

fn sizes(sent: &[Vec<TaskMessage>]) -> Vec<usize> {
    sent.iter().map(Vec::len).collect()
}

#[tokio::test(start_paused = true)]
async fn quick_subtasks_go_in_bundles_and_are_what_they_would_be_alone() {
    let (alone, _) = sent(QUICK, 10, 4, false, 10).await;
    assert_eq!(sizes(&alone), [1; 10]);
    // The first one waits for nobody.
    let (bundled, _) = sent(QUICK, 10, 4, true, 4).await;
    assert_eq!(sizes(&bundled), [1, 4, 4, 1]);
    assert_eq!(bundled.concat(), alone.concat());
}

#[tokio::test(start_paused = true)]
async fn first_subtask_waits_for_others_only_if_they_are_known_to_follow_and_no_longer_than_20_ms()
{
    let several = Splitter {
        says_how_many: true,
        ..QUICK
    };
    let (bundled, _) = sent(several, 10, 4, true, 3).await;
    assert_eq!(sizes(&bundled), [4, 4, 2]);
    let (one, _) = sent(several, 1, 4, true, 1).await;
    assert_eq!(one, sent(QUICK, 1, 4, false, 1).await.0);
    let slow = Splitter {
        pause: Duration::from_secs(1),
        ..several
    };
    let (alone, times) = sent(slow, 2, 4, true, 2).await;
    assert_eq!(sizes(&alone), [1; 2]);
    let least = Duration::from_millis(980);
    assert!(times[1] >= times[0] + least, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_bundled_where_that_is_turned_off_or_little_is_saved() {
    let (sent_alone, _) = sent(QUICK, 5, 1, true, 5).await;
    assert_eq!(sizes(&sent_alone), [1; 5]);
    let large = Splitter {
        bytes: 16 * 1024,
        ..QUICK
    };
    let (sent_alone, _) = sent(large, 5, 100, true, 5).await;
    assert_eq!(sizes(&sent_alone), [1; 5]);
}

#[tokio::test(start_paused = true)]
async fn subtasks_go_by_themselves_where_the_broker_never_takes_their_bundle() {
    // So many that the split has to wait for confirms, and so few that it does not.
    for subtasks in [2500, 10] {
        let (pipes, stop) = (Memory::new(), CancellationToken::new());
        let _reader = pipes.consume("items-in.bundles", 1000).await.unwrap();
        let mut single = pipes.consume("items-in", 1000).await.unwrap();
        let refusing = pipes.clone().intercepting(|message| {
            if *message.pipe == *"items-in.bundles" {
                let refused = PublishError::unacceptable("items-in.bundles", "it is too large");
                return Err(Confirm::ready(Err(refused)));
            }
            Ok(message)
        });
        let task = Outgoing::new("splits-in", split(subtasks).encode());
        pipes.publish(task).await.unwrap();
        let service = Runtime::new(Settings::new("splits"), Arc::new(refusing)).worker(QUICK);
        let numbers = async {
            let mut numbers = BTreeSet::new();
            for _ in 0..subtasks {
                numbers.insert(number(&mut single).await);
            }
            stop.cancel();
            numbers
        };
        let (ended, numbers) = tokio::join!(service.run_until(stop.clone()), numbers);
        ended.unwrap();
        assert_eq!(numbers, (1..=subtasks).collect());
        for pipe in ["items-in", "splits-in", "splits-reject"] {
            assert_eq!(pipes.depth(pipe).await.unwrap(), 0, "{pipe}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bundle_is_bounded_by_its_bytes() {
    let splitter = Splitter {
        bytes: 16_000,
        ..QUICK
    };
    let (bundled, _) = sent(splitter, 20, 100, true, 4).await;
    assert_eq!(sizes(&bundled), [1, 8, 8, 3]);
}

#[tokio::test(start_paused = true)]
async fn slow_subtask_waits_for_no_other() {
    let pause = Duration::from_millis(2);
    let slow = Splitter { pause, ..QUICK };
    let (alone, times) = sent(slow, 5, 100, true, 5).await;
    assert_eq!(sizes(&alone), [1; 5]);
    // Whatever the broker takes is the same for all.
    assert!(times[4] <= times[0] + pause * 5, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn bundle_goes_after_20_ms_although_its_split_goes_on() {
    let splitter = Splitter {
        goes_on: Duration::from_mins(1),
        ..QUICK
    };
    let (bundled, times) = sent(splitter, 10, 100, true, 2).await;
    assert_eq!(sizes(&bundled), [1, 9]);
    assert!(
        times[1] <= times[0] + Duration::from_millis(21),
        "{times:?}"
    );
}

/// Takes its time for each task, and notes its number.
#[derive(Clone)]
struct Slow {
    time: Duration,
    done: Arc<Mutex<Vec<(usize, u64)>>>,
    process: usize,
}

impl Worker for Slow {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, task: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        sleep(self.time).await;
        self.done.lock().push((self.process, task.number));
        Ok(Reply::none())
    }
}

fn bundle(numbers: std::ops::RangeInclusive<u32>) -> Outgoing {
    let mut writer = BundleWriter::default();
    for number in numbers {
        let data = serde_json::to_vec(&item(number.into())).unwrap();
        writer.add(number, &data, None);
    }
    let shared = TaskMessage {
        task_id: "T.1".to_owned(),
        ..TaskMessage::new("T.1", "items-in", &item(0)).unwrap()
    };
    Outgoing::new("items-in.bundles", writer.encode(shared))
}

/// Lets processes with one slot each run the tasks of a bundle. Returns which process ran which
/// task, and how long all of them took.
async fn run_all(tasks: u32, time: Duration, processes: usize) -> (Vec<(usize, u64)>, Duration) {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    pipes.publish(bundle(1..=tasks)).await.unwrap();
    let done = Arc::<Mutex<Vec<(usize, u64)>>>::default();
    let services = (0..processes).map(|process| {
        let settings = Settings {
            concurrency: 1,
            ..Settings::new("items")
        };
        let worker = Slow {
            time,
            done: Arc::clone(&done),
            process,
        };
        Runtime::new(settings, Arc::new(pipes.process()))
            .worker(worker)
            .run_until(stop.clone())
    });
    let began = Instant::now();
    let until_done = async {
        while done.lock().len() < tasks as usize {
            sleep(Duration::from_millis(10)).await;
        }
        let took = began.elapsed();
        // A bundle that is not settled comes again.
        sleep(Duration::from_mins(10)).await;
        stop.cancel();
        took
    };
    let (_, took) = tokio::join!(futures_util::future::join_all(services), until_done);
    for pipe in ["items-in", "items-in.bundles"] {
        assert_eq!(pipes.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    let done = done.lock().clone();
    (done, took)
}

#[tokio::test(start_paused = true)]
async fn each_member_of_a_bundle_runs_once_in_its_order() {
    let (done, _) = run_all(20, Duration::from_millis(1), 1).await;
    let numbers: Vec<u64> = done.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn long_tasks_of_a_bundle_are_shared_with_other_processes() {
    let (done, took) = run_all(8, Duration::from_mins(1), 4).await;
    let each = |process| done.iter().filter(|(of, _)| *of == process).count();
    assert!((0..4).all(|process| each(process) > 0), "{done:?}");
    let numbers: BTreeSet<u64> = done.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, (1..=8).collect());
    // Alone, a process needs eight minutes.
    assert!(took < Duration::from_secs(182), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn slots_do_not_stay_free_because_bundles_are_small() {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    for pair in 0..32 {
        let numbers = 2 * pair + 1..=2 * pair + 2;
        pipes.publish(bundle(numbers)).await.unwrap();
    }
    let settings = Settings {
        concurrency: 16,
        ..Settings::new("items")
    };
    let worker = Slow {
        time: Duration::from_secs(1),
        done: Arc::default(),
        process: 0,
    };
    let done = Arc::clone(&worker.done);
    let service = Runtime::new(settings, Arc::new(pipes.process())).worker(worker);
    let (began, all) = (Instant::now(), async {
        while done.lock().len() < 64 {
            sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    });
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), all);
    ended.unwrap();
    // Four tasks a slot.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn bundles_wait_as_such_while_nothing_can_begin_and_go_on_when_something_can() {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    for _ in 0..200 {
        pipes.publish(bundle(1..=2)).await.unwrap();
    }
    let settings = Settings {
        concurrency: 1,
        ..Settings::new("items")
    };
    let worker = Slow {
        time: Duration::from_mins(10),
        done: Arc::default(),
        process: 0,
    };
    let done = Arc::clone(&worker.done);
    let service = Runtime::new(settings, Arc::new(pipes.process())).worker(worker);
    let depth = async || pipes.depth("items-in.bundles").await.unwrap();
    let story = async {
        sleep(Duration::from_mins(9)).await;
        let waiting = depth().await;
        assert!((100..190).contains(&waiting), "{waiting} of 200");
        // The first task ends, and another one begins.
        sleep(Duration::from_secs(62)).await;
        assert_eq!(done.lock().len(), 1);
        let fewer = depth().await;
        assert!(fewer + 7 < waiting, "{waiting} -> {fewer}");
        stop.cancel();
    };
    let (_, ()) = tokio::join!(service.run_until(stop.clone()), story);
}

#[tokio::test(start_paused = true)]
async fn members_go_to_others_although_single_tasks_wait_before_them() {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    let minute = Duration::from_mins(1);
    for number in [8, 9] {
        let alone = TaskMessage::new("alone", "items-in", &item(number)).unwrap();
        let alone = Outgoing::new("items-in", alone.encode());
        pipes.publish(alone).await.unwrap();
    }
    let settings = Settings {
        concurrency: 1,
        prefetch: Some(2),
        ..Settings::new("items")
    };
    let worker = Slow {
        time: minute,
        done: Arc::default(),
        process: 0,
    };
    let service = Runtime::new(settings, Arc::new(pipes.process())).worker(worker);
    let others = async {
        // One of the single tasks runs now, the other one waits for it, and the worker holds no
        // more.
        sleep(Duration::from_secs(1)).await;
        for numbers in [1..=2, 3..=4, 5..=6] {
            pipes.publish(bundle(numbers)).await.unwrap();
        }
        let began = Instant::now();
        let mut others = pipes.consume("items-in", 10).await.unwrap();
        let mut came = BTreeSet::new();
        while came.len() < 6 {
            came.insert(number(&mut others).await);
        }
        stop.cancel();
        (came, began.elapsed())
    };
    let (ended, (came, took)) = tokio::join!(service.run_until(stop.clone()), others);
    ended.unwrap();
    assert_eq!(came, (1..=6).collect());
    assert!(took < minute / 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn process_that_stops_gives_the_members_that_have_not_begun_to_others() {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    pipes.publish(bundle(1..=5)).await.unwrap();
    let settings = Settings {
        concurrency: 1,
        ..Settings::new("items")
    };
    let worker = Slow {
        time: Duration::from_millis(50),
        done: Arc::default(),
        process: 0,
    };
    let done = Arc::clone(&worker.done);
    let process = Arc::new(pipes.process());
    let service = Runtime::new(settings, process).worker(worker);
    let stops = async {
        sleep(Duration::from_millis(20)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), stops);
    ended.unwrap();
    assert_eq!(*done.lock(), [(0, 1)]);
    let mut single = pipes.consume("items-in", 10).await.unwrap();
    let mut numbers = Vec::new();
    for _ in 0..4 {
        numbers.push(number(&mut single).await);
    }
    assert_eq!(numbers, [2, 3, 4, 5]);
    assert_eq!(pipes.depth("items-in.bundles").await.unwrap(), 0);
}

async fn number(consumer: &mut Consumer) -> u64 {
    let delivery = harness::in_time("a task", consumer.next()).await.unwrap();
    let message = TaskMessage::decode(&delivery.body()).unwrap();
    delivery.ack();
    let task: RangeItem = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
    task.number
}

#[tokio::test(start_paused = true)]
async fn message_in_a_pipe_of_bundles_that_is_none_goes_to_the_invalid_pipe_once() {
    let (pipes, stop) = (Memory::new(), CancellationToken::new());
    let broken = Outgoing::new("items-in.bundles", "no\nbundle\n");
    pipes.publish(broken).await.unwrap();
    pipes.publish(bundle(1..=1)).await.unwrap();
    let worker = Slow {
        time: Duration::ZERO,
        done: Arc::default(),
        process: 0,
    };
    let done = Arc::clone(&worker.done);
    let service = Runtime::new(Settings::new("items"), Arc::new(pipes.process())).worker(worker);
    let mut invalid = pipes.consume("items-invalid", 10).await.unwrap();
    let found = async {
        let delivery = harness::in_time("it", invalid.next()).await.unwrap();
        stop.cancel();
        delivery
    };
    let (ended, found) = tokio::join!(service.run_until(stop.clone()), found);
    ended.unwrap();
    assert_eq!(&*found.body(), b"no\nbundle\n");
    assert_eq!(pipes.depth("items-invalid").await.unwrap(), 0);
    assert_eq!(*done.lock(), [(0, 1)]);
}

/// Sends each task back as its result.
struct Echo;

impl Worker for Echo {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, task: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        Ok(Reply::send(task))
    }
}

/// Lets a worker take a bundle of these tasks and send their results to `out`, where somebody has
/// begun to read with `read`.
async fn echoed<R>(tasks: u32, pipes: Arc<dyn Broker>, read: impl Future<Output = R>) -> R {
    let stop = CancellationToken::new();
    let mut writer = BundleWriter::default();
    for number in 1..=tasks {
        let data = serde_json::to_vec(&item(number.into())).unwrap();
        writer.add(number, &data, Some(&format!("number {number}")));
    }
    let shared = TaskMessage {
        to: Some("items-in".into()),
        ..split(0)
    };
    let bundle = Outgoing::new("items-in.bundles", writer.encode(shared));
    pipes.publish(bundle).await.unwrap();
    let settings = Settings {
        output: Some("out".into()),
        ..Settings::new("items")
    };
    let service = Runtime::new(settings, pipes).worker(Echo);
    let read = async {
        let read = read.await;
        stop.cancel();
        read
    };
    let (ended, read) = tokio::join!(service.run_until(stop.clone()), read);
    ended.unwrap();
    read
}

/// Returns what a reader of the results of ten tasks sees of them, in the order of their numbers.
async fn seen(bundle: u32) -> Vec<(u64, [Option<String>; 3], String)> {
    let pipes = Memory::new();
    let settings = Settings {
        input: "out".into(),
        bundle,
        ..Settings::new("reader")
    };
    let runtime = Runtime::new(settings, Arc::new(pipes.process()));
    let mut outputs = runtime.outputs::<RangeItem>().await.unwrap();
    let mut seen = echoed(10, Arc::new(pipes.process()), async {
        let mut seen = Vec::new();
        while seen.len() < 10 {
            let output = outputs.next().await.unwrap().unwrap();
            let told = [&output.job, &output.task, &output.label].map(Clone::clone);
            let id = output.task_id.clone();
            seen.push((output.take().unwrap().number, told, id));
        }
        seen
    })
    .await;
    outputs.close().await;
    for pipe in ["out", "out.bundles"] {
        assert_eq!(pipes.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    seen.sort();
    seen
}

#[tokio::test(start_paused = true)]
async fn results_in_bundles_tell_what_they_would_tell_alone() {
    let alone = seen(1).await;
    assert_eq!(seen(100).await, alone);
    let told = ["j", "1.10", "number 10"].map(|text| Some(text.to_owned()));
    assert_eq!(alone[9], (10, told, "T.1.10".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn results_of_a_split_share_messages_and_one_by_itself_waits_for_no_other() {
    for (tasks, bundled) in [(10, true), (1, false)] {
        let pipes = Memory::new();
        let mut single = pipes.consume("out", 100).await.unwrap();
        let mut bundles = pipes.consume("out.bundles", 100).await.unwrap();
        let began = Instant::now();
        let (shared, took) = echoed(tasks, Arc::new(pipes.process()), async {
            let (mut alone, mut shared) = (0, 0);
            while alone + shared < tasks {
                tokio::select! {
                    Some(delivery) = single.next() => {
                        alone += 1;
                        delivery.ack();
                    }
                    Some(delivery) = bundles.next() => {
                        shared += u32::try_from(members(&delivery.body()).len()).unwrap();
                        delivery.ack();
                    }
                }
            }
            (shared, began.elapsed())
        })
        .await;
        assert_eq!(shared > tasks / 2, bundled, "{shared} of {tasks}");
        assert!(bundled || took.is_zero(), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn result_goes_by_itself_where_its_bundle_cannot_be_stored() {
    let pipes = Memory::new();
    let mut single = pipes.consume("out", 100).await.unwrap();
    let _readers = pipes.consume("out.bundles", 100).await.unwrap();
    let refusing = pipes.clone().intercepting(|message| {
        if *message.pipe == *"out.bundles" {
            let refused = PublishError::refused("out.bundles", "as planned");
            return Err(Confirm::ready(Err(refused)));
        }
        Ok(message)
    });
    let ids = echoed(5, Arc::new(refusing), async {
        let mut ids = BTreeSet::new();
        while ids.len() < 5 {
            let delivery = single.next().await.unwrap();
            ids.insert(TaskMessage::decode(&delivery.body()).unwrap().task_id);
            delivery.ack();
        }
        ids
    });
    assert_eq!(ids.await.len(), 5);
}
