//! How reports share messages: those of tasks that end one after the other, and those of a worker
//! that may hold few deliveries.

use std::sync::Arc;
use std::time::Duration;

use contract::headers::REPORT_DETAILS_HEADER;
use contract::{
    Announced, CompleteTasks, GatheredReports, RangeItem, TaskData, TaskMessage, Tracking,
    TrackingReportTask,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Consumer, Delivery, HeaderValue, Outgoing, PublishError};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

struct NoOp;

impl Worker for NoOp {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

/// Returns a task of the worker `w`, which is tracked in this pipe.
fn task(number: u64, tracking: &str) -> Outgoing {
    let params = [].into();
    let item = RangeItem { number, params };
    let message = TaskMessage {
        tracking: Some(Tracking {
            job_task_id: Some(format!("p:j.{number}")),
            tracking_pipe: Some(tracking.into()),
            ..Tracking::default()
        }),
        ..TaskMessage::new("t", "w-in", &item).unwrap()
    };
    Outgoing::new("w-in", message.encode())
}

/// Settles a message and returns its data.
fn data<T: TaskData>(delivery: Delivery) -> T {
    let message = TaskMessage::decode(&delivery.body()).unwrap();
    delivery.ack();
    assert_eq!(message.task_classifier.as_deref(), Some(T::CLASSIFIER));
    serde_json::from_slice(&message.task_data.unwrap()).unwrap()
}

/// Lets a worker complete a hundred tasks that come in these intervals. Returns how many messages
/// report them, and how long after its publication the last one was reported.
async fn report(interval: Duration, prefetch: Option<u32>) -> (usize, Duration) {
    let (broker, stop) = (Memory::new(), CancellationToken::new());
    let settings = Settings {
        prefetch,
        ..Settings::new("w")
    };
    let service = Runtime::new(settings, Arc::new(broker.clone())).worker(NoOp);
    let publish = async {
        for number in 1..=100 {
            sleep(interval).await;
            broker.publish(task(number, "tracking")).await.unwrap();
        }
        Instant::now()
    };
    let count = async {
        let mut reports = broker.consume("tracking", 1000).await.unwrap();
        let (mut messages, mut tasks) = (0, 0);
        while tasks < 100 {
            let delivery = reports.next().await.unwrap();
            let reported: TrackingReportTask = data(delivery);
            tasks += reported.tracking_reports.len();
            messages += 1;
        }
        (messages, Instant::now())
    };
    let (ended, (published, (messages, reported))) =
        tokio::join!(service.run_until(stop.clone()), async {
            let both = harness::in_time("all reports", async { tokio::join!(publish, count) });
            let both = both.await;
            stop.cancel();
            both
        });
    ended.unwrap();
    (messages, reported - published)
}

#[tokio::test(start_paused = true)]
async fn tasks_that_end_one_shortly_after_the_other_are_reported_together_and_soon() {
    let (messages, latest) = report(Duration::from_millis(1), Some(1000)).await;
    assert!((15..=30).contains(&messages), "{messages} messages");
    assert!(latest <= Duration::from_millis(6), "{latest:?}");
}

#[tokio::test(start_paused = true)]
async fn report_of_a_task_that_comes_alone_waits_for_nothing() {
    let (messages, latest) = report(Duration::from_secs(1), Some(1000)).await;
    assert_eq!((messages, latest), (100, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn worker_that_may_hold_few_tasks_does_not_wait_between_them() {
    let (_, latest) = report(Duration::ZERO, Some(4)).await;
    assert!(latest < Duration::from_millis(5), "{latest:?}");
}

#[tokio::test(start_paused = true)]
async fn reports_go_to_the_tracking_pipe_if_the_broker_does_not_take_gathered_ones() {
    let (broker, stop) = (Memory::new(), CancellationToken::new());
    let refusing = broker.clone().intercepting(|message| {
        if *message.pipe == *"tracking.reports" {
            let refused = PublishError::unroutable("tracking.reports", "no right to declare it");
            return Err(Confirm::ready(Err(refused)));
        }
        Ok(message)
    });
    let service = Runtime::new(Settings::new("w"), Arc::new(refusing)).worker(NoOp);
    let act = async {
        let _reader = broker.consume("tracking.reports", 10).await.unwrap();
        let mut listed = broker.consume("tracking", 10).await.unwrap();
        for number in 1..=3 {
            broker.publish(task(number, "tracking")).await.unwrap();
            let report = harness::in_time("a report", listed.next()).await.unwrap();
            let report: TrackingReportTask = data(report);
            let id = &report.tracking_reports[0].job_task_id;
            assert_eq!(*id, format!("p:j.{number}"));
        }
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), act);
    ended.unwrap();
    assert_eq!(broker.depth("w-invalid").await.unwrap(), 0);
}

/// Says of what it consists, and goes on for a minute.
struct Split;

impl Worker for Split {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        let announced = Announced {
            batches: 0,
            items: Some(2),
        };
        ctx.expect_parts(2, announced);
        sleep(Duration::from_mins(1)).await;
        Ok(Reply::none())
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_split_announces_is_sent_again_if_the_broker_refuses_it() {
    let (broker, stop) = (Memory::new(), CancellationToken::new());
    let refusals = Mutex::new(3);
    let refusing = broker.clone().intercepting(move |message| {
        let mut left = refusals.lock();
        if *left == 0 || *message.pipe != *"tracking" {
            return Ok(message);
        }
        *left -= 1;
        Err(Confirm::ready(Err(PublishError::refused(
            "tracking", "full",
        ))))
    });
    let service = Runtime::new(Settings::new("w"), Arc::new(refusing)).worker(Split);
    let act = async {
        let mut reports = broker.consume("tracking", 10).await.unwrap();
        broker.publish(task(1, "tracking")).await.unwrap();
        let began = Instant::now();
        let delivery = harness::in_time("a report", reports.next()).await.unwrap();
        let details = delivery.headers.get(REPORT_DETAILS_HEADER).cloned();
        let report: TrackingReportTask = data(delivery);
        assert_eq!(report.tracking_reports[0].job_task_id, "p:j.1.3*");
        let Some(HeaderValue::Text(details)) = details else {
            panic!("{details:?}")
        };
        assert!(details.contains("\"items\":2"), "{details}");
        assert!(began.elapsed() < Duration::from_secs(10));
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), act);
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reports_are_gathered_while_somebody_reads_them_and_not_after_a_pause() {
    let (broker, stop) = (Memory::new(), CancellationToken::new());
    let service = Runtime::new(Settings::new("w"), Arc::new(broker.clone())).worker(NoOp);
    let next = async |reports: &mut Consumer| {
        let report = harness::in_time("a report", reports.next());
        report.await.unwrap()
    };
    let act = async {
        let mut each = broker.consume("tracking", 10).await.unwrap();
        let mut gathered = broker.consume("tracking.reports", 10).await.unwrap();
        // Nobody has asked who reads gathered reports.
        broker.publish(task(1, "tracking")).await.unwrap();
        let first: TrackingReportTask = data(next(&mut each).await);
        assert_eq!(first.tracking_reports[0].job_task_id, "p:j.1");
        for (number, tracking) in [(2, "tracking"), (3, "tracking.rounds")] {
            broker.publish(task(number, tracking)).await.unwrap();
            let later: GatheredReports = data(next(&mut gathered).await);
            let number = u32::try_from(number).unwrap();
            let complete = CompleteTasks {
                split: "p:j".to_owned(),
                numbers: vec![(number, number)],
            };
            assert_eq!((later.complete, later.others), (vec![complete], vec![]));
        }
        drop(gathered);
        sleep(Duration::from_secs(2)).await;
        for number in [4, 5] {
            broker.publish(task(number, "tracking")).await.unwrap();
            let last: TrackingReportTask = data(next(&mut each).await);
            let id = &last.tracking_reports[0].job_task_id;
            assert_eq!(*id, format!("p:j.{number}"));
        }
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run_until(stop.clone()), act);
    ended.unwrap();
}
