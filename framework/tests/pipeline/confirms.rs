//! How a worker behaves while the broker holds confirms back or refuses messages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use contract::{RangeItem, ReportStatus, TaskMessage, Tracking, TrackingReportTask};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Confirmer, Delivery, Outgoing, PublishError};
use framework::{Context, NoOutput, Reply, RetryPolicy, Runtime, Settings, TaskError, Worker};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

/// The pipe whose confirms are held back.
const HELD_PIPE: &str = "out";
/// The path of the status of the job.
const STATUS: &str = "/job-service/v1/partitions/p/jobs/j/status";
/// The number of subtasks of one task that may be unconfirmed.
const WINDOW: u64 = 1000;
/// Longer than any delay of the worker itself, such as the time that a report waits for others.
const A_WHILE: Duration = Duration::from_secs(10);

/// A memory broker that confirms messages to [`HELD_PIPE`] only when the test allows it.
struct HoldingBroker {
    pipes: Memory,
    held: Arc<Mutex<VecDeque<(Outgoing, Confirmer)>>>,
}

impl HoldingBroker {
    fn new() -> Self {
        Self {
            pipes: Memory::new(),
            held: Arc::default(),
        }
    }

    /// Returns the broker as a worker sees it.
    fn for_worker(&self) -> impl Broker + use<> {
        let held = Arc::clone(&self.held);
        self.pipes.clone().intercepting(move |message| {
            if *message.pipe != *HELD_PIPE {
                return Ok(message);
            }
            let (confirmer, confirm) = Confirm::pair();
            held.lock().push_back((message, confirmer));
            Err(confirm)
        })
    }

    /// Waits until this many messages are held.
    async fn wait_for_held(&self, count: usize) {
        harness::in_time("the messages to be published", async {
            while self.held.lock().len() < count {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Publishes and confirms the held messages in this range, counted from the oldest one.
    async fn confirm(&self, range: impl std::ops::RangeBounds<usize>) {
        let confirmed: Vec<_> = self.held.lock().drain(range).collect();
        for (message, confirmer) in confirmed {
            self.pipes.publish(message).await.unwrap();
            confirmer.resolve(Ok(()));
        }
    }

    /// Refuses the oldest held message, as a full pipe does.
    fn refuse_oldest(&self) {
        let (message, confirmer) = self.held.lock().pop_front().unwrap();
        let refusal = PublishError::refused(&*message.pipe, "the pipe is full");
        confirmer.resolve(Err(refusal));
    }

    /// Refuses the oldest held message for ever, as a broker does with one that is too large.
    fn never_take_oldest(&self) {
        let (message, confirmer) = self.held.lock().pop_front().unwrap();
        let error = PublishError::unacceptable(&*message.pipe, "it is too large");
        confirmer.resolve(Err(error));
    }

    async fn send(&self, number: u64) {
        self.send_tracked(number, None, "tracking").await;
    }

    /// Sends a task of a job whose status is at this URL, with this tracking pipe.
    async fn send_tracked(&self, number: u64, url: Option<String>, pipe: &str) {
        let tracking = Tracking {
            status_check_url: url.map(Into::into),
            tracking_pipe: Some(pipe.into()),
            ..Tracking::default()
        };
        self.send_to("w-in", number, tracking).await;
    }

    /// Sends a task that is addressed to this pipe to the worker.
    async fn send_to(&self, pipe: &str, number: u64, tracking: Tracking) {
        let tracking = Tracking {
            job_task_id: Some(format!("p:j.{number}")),
            ..tracking
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", pipe, &item(number)).unwrap()
        };
        self.pipes
            .publish(Outgoing::new("w-in", message.encode()))
            .await
            .unwrap();
    }

    /// Returns how many messages wait in a pipe.
    async fn depth_of(&self, pipe: &str) -> u64 {
        self.pipes.depth(pipe).await.unwrap()
    }

    async fn next_in(&self, pipe: &str) -> Delivery {
        let mut consumer = self.pipes.consume(pipe, 1).await.unwrap();
        harness::in_time("a message", consumer.next())
            .await
            .unwrap()
    }

    async fn next_report(&self) -> (String, ReportStatus) {
        self.next_report_in("tracking").await
    }

    /// Returns the tasks in the next message of reports.
    async fn reported_in(&self, pipe: &str) -> Vec<String> {
        let delivery = self.next_in(pipe).await;
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        delivery.ack();
        let task: TrackingReportTask = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
        let reports = task.tracking_reports.into_iter();
        let mut tasks: Vec<_> = reports.map(|report| report.job_task_id).collect();
        tasks.sort();
        tasks
    }

    /// Returns the next report, except for those that a task runs.
    async fn next_report_in(&self, pipe: &str) -> (String, ReportStatus) {
        loop {
            let delivery = self.next_in(pipe).await;
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            let report = task.tracking_reports.last().unwrap();
            if report.status != ReportStatus::Progress {
                return (report.job_task_id.clone(), report.status);
            }
        }
    }
}

fn item(number: u64) -> RangeItem {
    RangeItem {
        number,
        params: [].into(),
    }
}

/// The number of an item that takes a while.
const LONG: u64 = 100;
/// The number of an item whose output goes to another pipe.
const ELSEWHERE: u64 = 3;

/// Completes each item with an output.
struct Echo;

impl Worker for Echo {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        if item.number == LONG {
            sleep(A_WHILE).await;
        }
        let pipe = if item.number == ELSEWHERE {
            "else"
        } else {
            HELD_PIPE
        };
        Ok(Reply::send(item).to(pipe).and_complete())
    }
}

/// Dispatches `number` subtasks with these parameters.
#[derive(Default)]
struct Splitter {
    params: BTreeMap<String, String>,
}

impl Worker for Splitter {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, split: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        for number in 1..=split.number {
            let params = self.params.clone();
            ctx.dispatch(HELD_PIPE, &RangeItem { number, params })
                .await?;
        }
        Ok(Reply::none())
    }
}

/// Dispatches `number` subtasks. Drops each dispatch that takes longer than a moment, and
/// dispatches the subtask again if `insists`.
struct ImpatientSplitter {
    insists: bool,
}

impl Worker for ImpatientSplitter {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, split: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        for number in 1..=split.number {
            let subtask = item(number);
            let moment = Duration::from_millis(10);
            loop {
                match timeout(moment, ctx.dispatch(HELD_PIPE, &subtask)).await {
                    Ok(dispatched) => break dispatched?,
                    Err(_) if self.insists => {}
                    Err(_) => break,
                }
            }
        }
        Ok(Reply::none())
    }
}

/// Runs the worker until `story` has ended.
async fn run<T>(broker: &HoldingBroker, worker: impl Worker, story: impl Future<Output = T>) -> T {
    let settings = Settings {
        output: Some(HELD_PIPE.to_owned()),
        retry: RetryPolicy::constant(Duration::from_millis(100)),
        concurrency: 1,
        prefetch: Some(10),
        ..Settings::new("w")
    };
    let stop = CancellationToken::new();
    let service = Runtime::new(settings, Arc::new(broker.for_worker())).worker(worker);
    let (ended, seen) = tokio::join!(service.run_until(stop.clone()), async {
        let seen = story.await;
        stop.cancel();
        seen
    });
    ended.unwrap();
    seen
}

#[tokio::test(start_paused = true)]
async fn task_is_reported_and_settled_only_when_its_output_is_confirmed() {
    let broker = HoldingBroker::new();
    broker.send(1).await;
    let story = async {
        broker.wait_for_held(1).await;
        sleep(A_WHILE).await;
        assert_eq!(broker.depth_of("tracking").await, 0, "reported too early");
        broker.confirm(..).await;
        broker.next_report().await
    };
    let report = run(&broker, Echo, story).await;
    assert_eq!(report, ("p:j.1".to_owned(), ReportStatus::Complete));
}

#[tokio::test(start_paused = true)]
async fn outputs_that_are_refused_or_go_elsewhere_keep_no_other_waiting() {
    let broker = HoldingBroker::new();
    for number in 1..=3 {
        broker.send(number).await;
    }
    let story = async {
        broker.wait_for_held(2).await;
        // The third goes to another pipe.
        assert_eq!(broker.next_report().await.0, "p:j.3");
        broker.refuse_oldest();
        broker.confirm(..).await;
        assert_eq!(broker.next_report().await.0, "p:j.2");
        broker.wait_for_held(1).await;
        broker.confirm(..).await;
        assert_eq!(broker.next_report().await.0, "p:j.1");
    };
    run(&broker, Echo, story).await;
    assert_eq!(broker.depth_of("w-in").await, 0);
}

#[tokio::test(start_paused = true)]
async fn message_that_is_passed_on_waits_for_no_confirm_of_another_pipe() {
    let broker = HoldingBroker::new();
    for (number, pipe) in [(1, HELD_PIPE), (2, "else")] {
        let tracking = Tracking {
            tracking_pipe: Some("tracking".into()),
            track_to: Some(pipe.into()),
            ..Tracking::default()
        };
        broker.send_to(pipe, number, tracking).await;
    }
    let story = async {
        assert_eq!(broker.next_report().await.0, "p:j.2");
        broker.confirm(..).await;
        assert_eq!(broker.next_report().await.0, "p:j.1");
    };
    run(&broker, Echo, story).await;
}

#[tokio::test(start_paused = true)]
async fn what_short_tasks_cause_does_not_wait_for_a_long_one_behind_them() {
    let broker = HoldingBroker::new();
    for number in [1, LONG, 2] {
        broker.send(number).await;
    }
    let story = async {
        broker.wait_for_held(1).await;
        broker.confirm(..).await;
        let report = broker.next_report().await;
        assert_eq!(report, ("p:j.1".to_owned(), ReportStatus::Complete));
        assert!(broker.held.lock().is_empty(), "the long one runs");
        broker.wait_for_held(2).await;
        broker.confirm(..).await;
    };
    run(&broker, Echo, story).await;
    assert_eq!(broker.depth_of("w-in").await, 0);
}

/// Completes each item with an output. The item [`LONG`] keeps its thread busy until the test lets
/// it go, or for [`Self::LIMIT`].
struct Computing {
    computes: Arc<Notify>,
    is_let_go: Mutex<std::sync::mpsc::Receiver<()>>,
    has_given_up: Arc<AtomicBool>,
}

impl Computing {
    const LIMIT: Duration = Duration::from_secs(10);
}

impl Worker for Computing {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        if item.number == LONG {
            self.computes.notify_one();
            let is_let_go = self.is_let_go.lock().recv_timeout(Self::LIMIT);
            self.has_given_up
                .store(is_let_go.is_err(), Ordering::Relaxed);
        }
        Ok(Reply::send(item).and_complete())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_short_tasks_cause_does_not_wait_for_a_computation_behind_them() {
    let broker = HoldingBroker::new();
    let (let_go, is_let_go) = std::sync::mpsc::channel();
    let worker = Computing {
        computes: Arc::default(),
        is_let_go: Mutex::new(is_let_go),
        has_given_up: Arc::default(),
    };
    let (computes, has_given_up) = (worker.computes.clone(), worker.has_given_up.clone());
    for number in [1, LONG] {
        broker.send(number).await;
    }
    let story = async {
        broker.wait_for_held(1).await;
        computes.notified().await;
        broker.confirm(..).await;
        let report = broker.next_report().await;
        assert_eq!(report, ("p:j.1".to_owned(), ReportStatus::Complete));
        let_go.send(()).unwrap();
        broker.wait_for_held(1).await;
        broker.confirm(..).await;
    };
    run(&broker, worker, story).await;
    assert!(!has_given_up.load(Ordering::Relaxed), "the report waits");
    assert_eq!(broker.depth_of("w-in").await, 0);
}

#[tokio::test(start_paused = true)]
async fn output_that_the_broker_never_takes_fails_its_task_at_once() {
    let broker = HoldingBroker::new();
    broker.send(1).await;
    let story = async {
        broker.wait_for_held(1).await;
        broker.never_take_oldest();
        // The pipe takes others: the result, which says why.
        broker.wait_for_held(1).await;
        let result = TaskMessage::decode(&broker.held.lock()[0].0.body).unwrap();
        assert_eq!(
            result.task_data.as_deref(),
            Some(
                &br#""the broker never takes this message for the pipe out: it is too large""#[..]
            )
        );
        broker.confirm(..).await;
        broker.next_report().await
    };
    let report = run(&broker, Echo, story).await;
    assert_eq!(report, ("p:j.1".to_owned(), ReportStatus::Failed));
    assert_eq!(broker.depth_of("w-in").await, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_dispatch_loses_no_unconfirmed_subtask() {
    let broker = HoldingBroker::new();
    broker.send(WINDOW + 1).await;
    let window = usize::try_from(WINDOW).unwrap();
    let story = async {
        broker.wait_for_held(window).await;
        // The last dispatch waits for the oldest confirm and is dropped. All other messages are
        // confirmed.
        sleep(A_WHILE).await;
        broker.confirm(1..).await;
        sleep(A_WHILE).await;
        assert_eq!(broker.depth_of("tracking").await, 0, "reported too early");
        broker.confirm(..).await;
        broker.next_report().await
    };
    let splitter = ImpatientSplitter { insists: false };
    let (id, status) = run(&broker, splitter, story).await;
    let last_part = format!("p:j.{}.{}*", WINDOW + 1, WINDOW + 1);
    assert_eq!((id, status), (last_part, ReportStatus::Complete));
    assert_eq!(broker.depth_of(HELD_PIPE).await, WINDOW);
}

#[tokio::test(start_paused = true)]
async fn few_large_subtasks_are_unconfirmed_at_a_time() {
    let broker = HoldingBroker::new();
    broker.send(10).await;
    let story = async {
        for held in [4, 4, 2] {
            broker.wait_for_held(held).await;
            sleep(A_WHILE).await;
            assert_eq!(broker.held.lock().len(), held);
            broker.confirm(..).await;
        }
        broker.next_report().await
    };
    let splitter = Splitter {
        params: [("text".to_owned(), "x".repeat(1_000_000))].into(),
    };
    let report = run(&broker, splitter, story).await;
    assert_eq!(report, ("p:j.10.11*".to_owned(), ReportStatus::Complete));
}

#[tokio::test]
async fn split_that_waits_for_confirms_hears_that_its_job_has_ended() {
    let jobs = MockServer::start().await;
    let status = |word: &str| {
        let response = ResponseTemplate::new(200).set_body_string(word);
        Mock::given(path(STATUS)).respond_with(response.insert_header("Cache-Control", "max-age=1"))
    };
    status("Active").up_to_n_times(1).mount(&jobs).await;
    status("Cancelled").mount(&jobs).await;
    let broker = HoldingBroker::new();
    let url = format!("{}{STATUS}", jobs.uri());
    broker.send_tracked(WINDOW + 1, Some(url), "tracking").await;
    broker.send(1).await;
    // The broker confirms nothing. The second task has its turn when the first is discarded.
    let held = usize::try_from(WINDOW + 1).unwrap();
    run(&broker, Splitter::default(), async {
        broker.wait_for_held(held).await;
        broker.confirm(held - 1..).await;
        assert_eq!(
            broker.next_report().await,
            ("p:j.1.2*".to_owned(), ReportStatus::Complete)
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_subtask_is_published_again_though_every_dispatch_is_dropped() {
    let broker = HoldingBroker::new();
    broker.send(WINDOW + 1).await;
    let window = usize::try_from(WINDOW).unwrap();
    let story = async {
        broker.wait_for_held(window).await;
        broker.refuse_oldest();
        // The delay before the message is published again is longer than each dispatch that waits
        // for it.
        broker.wait_for_held(window).await;
        broker.confirm(..).await;
        broker.wait_for_held(1).await;
        broker.confirm(..).await;
        broker.next_report().await
    };
    let splitter = ImpatientSplitter { insists: true };
    let (id, status) = run(&broker, splitter, story).await;
    let last_part = format!("p:j.{}.{}*", WINDOW + 1, WINDOW + 2);
    assert_eq!((id, status), (last_part, ReportStatus::Complete));
    assert_eq!(broker.depth_of(HELD_PIPE).await, WINDOW + 1);
}

#[tokio::test(start_paused = true)]
async fn report_that_the_broker_never_takes_takes_no_other_report_with_it() {
    let broker = HoldingBroker::new();
    // The id alone fills a message.
    for job in ["x".repeat(1_000_000), "j".to_owned()] {
        let tracking = Tracking {
            job_task_id: Some(format!("p:{job}")),
            tracking_pipe: Some(HELD_PIPE.into()),
            ..Tracking::default()
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", "w-in", &item(0)).unwrap()
        };
        let task = Outgoing::new("w-in", message.encode());
        broker.pipes.publish(task).await.unwrap();
    }
    run(&broker, Splitter::default(), async {
        broker.wait_for_held(2).await;
        broker.never_take_oldest();
        broker.confirm(..).await;
        broker.next_in("w-invalid").await.ack();
    })
    .await;
    assert_eq!(broker.depth_of("w-in").await, 0);
    assert_eq!(broker.depth_of("w-invalid").await, 0, "the other task");
    let report = broker.next_report_in(HELD_PIPE).await;
    assert_eq!(report, ("p:j".to_owned(), ReportStatus::Complete));
}

/// Counts how often it runs.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl Worker for Counting {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::none())
    }
}

#[tokio::test(start_paused = true)]
async fn reports_that_a_full_pipe_refuses_are_sent_again_and_their_tasks_run_once() {
    let (broker, worker) = (HoldingBroker::new(), Counting::default());
    broker.send_tracked(1, None, HELD_PIPE).await;
    broker.send_tracked(2, None, HELD_PIPE).await;
    run(&broker, worker.clone(), async {
        for _ in 0..3 {
            broker.wait_for_held(1).await;
            broker.refuse_oldest();
        }
        broker.wait_for_held(1).await;
        broker.confirm(..).await;
    })
    .await;
    assert_eq!(broker.reported_in(HELD_PIPE).await, ["p:j.1", "p:j.2"]);
    assert_eq!(worker.0.load(Ordering::Relaxed), 2);
    assert_eq!(broker.depth_of("w-in").await, 0);
}

#[tokio::test(start_paused = true)]
async fn worker_that_stops_waits_for_the_confirm_of_its_reports_and_returns_what_has_none() {
    for is_confirmed in [true, false] {
        let broker = HoldingBroker::new();
        for number in 1..=3 {
            broker.send_tracked(number, None, HELD_PIPE).await;
        }
        let stop = CancellationToken::new();
        let service = Runtime::new(Settings::new("w"), Arc::new(broker.for_worker()))
            .worker(Counting::default());
        let (ended, ()) = tokio::join!(service.run_until(stop.clone()), async {
            broker.wait_for_held(1).await;
            stop.cancel();
            sleep(A_WHILE).await;
            assert_eq!(broker.depth_of("w-in").await, 0, "returned too early");
            if is_confirmed {
                broker.confirm(..).await;
                assert_eq!(broker.reported_in(HELD_PIPE).await.len(), 3);
            }
        });
        ended.unwrap();
        let returned = if is_confirmed { 0 } else { 3 };
        assert_eq!(broker.depth_of("w-in").await, returned);
    }
}
