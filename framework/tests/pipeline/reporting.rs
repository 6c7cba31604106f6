//! How reports share messages: those of tasks that end one after the other, and those of a worker that may hold few deliveries.

use std::sync::Arc;
use std::time::Duration;

use contract::{RangeItem, TaskMessage, Tracking, TrackingReportTask};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Outgoing};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
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

/// Lets a worker complete a hundred tasks that come in these intervals. Returns how many messages report them, and how long after its
/// publication the last one was reported.
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
            let params = [].into();
            let item = RangeItem { number, params };
            let message = TaskMessage {
                tracking: Some(Tracking {
                    job_task_id: Some(format!("p:j.{number}")),
                    tracking_pipe: Some("tracking".to_owned()),
                    ..Tracking::default()
                }),
                ..TaskMessage::new("t", "w-in", &item).unwrap()
            };
            let message = Outgoing::new("w-in", message.encode());
            broker.publish(message).await.unwrap();
        }
        Instant::now()
    };
    let count = async {
        let mut reports = broker.consume("tracking", 1000).await.unwrap();
        let (mut messages, mut tasks) = (0, 0);
        while tasks < 100 {
            let delivery = reports.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            let data = message.task_data.unwrap();
            let reported: TrackingReportTask = serde_json::from_slice(&data).unwrap();
            tasks += reported.tracking_reports.len();
            messages += 1;
            delivery.ack();
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
