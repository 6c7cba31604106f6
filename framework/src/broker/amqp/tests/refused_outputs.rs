//! Outputs that the server refuses or blocks. Only a real server does this.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use contract::headers::REPORT_DETAILS_HEADER;
use contract::{
    FailedItem, RangeItem, ReportFailure, ReportStatus, TaskMessage, TaskStatus, Tracking,
    TrackingReport, TrackingReportTask,
};
use harness::{unique, wait_for};
use lapin::options::{BasicPublishOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::super::*;
use super::{channel, declare, disturbed};
use crate::broker::HeaderValue;
use crate::handler::REASON_HEADER;
use crate::health::Health;
use crate::steps::report_buffer::{ReportBuffer, Reports};
use crate::{Context, Reply, RetryPolicy, Runtime, Settings, TaskError, Worker};

/// Counts its runs. Sends its input as output, or dispatches it as several subtasks.
struct Counting {
    runs: Arc<AtomicU32>,
    split: Option<(String, u32)>,
}

impl Worker for Counting {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let Some((pipe, parts)) = &self.split else {
            return Ok(Reply::send(item));
        };
        for _ in 0..*parts {
            ctx.dispatch(pipe, &item).await?;
        }
        Ok(Reply::none())
    }
}

struct Fixture {
    amqp: Arc<Amqp>,
    name: String,
    runs: Arc<AtomicU32>,
}

impl Fixture {
    async fn new() -> Self {
        let url = harness::rabbitmq().await.unwrap().url;
        let amqp = Arc::new(Amqp::connect(AmqpOptions::new(url)).unwrap());
        Self {
            amqp,
            name: unique("refused"),
            runs: Arc::default(),
        }
    }

    fn pipe(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Declares a pipe that accepts this many messages and refuses more.
    async fn narrow(&self, name: &str, room: u32) -> String {
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-max-length".into(),
            AMQPValue::LongInt(room.cast_signed()),
        );
        let refuse = AMQPValue::LongString("reject-publish".into());
        arguments.insert("x-overflow".into(), refuse);
        let pipe = self.pipe(name);
        declare(&self.amqp, &pipe, arguments).await;
        pipe
    }

    async fn purge(&self, pipe: &str) {
        let (channel, pipe) = (channel(&self.amqp).await, ShortString::from(pipe));
        let purged = channel.queue_purge(pipe, QueuePurgeOptions::default());
        purged.await.unwrap();
    }

    async fn publish(&self, tracking_pipe: &str) {
        let item = RangeItem {
            number: 1,
            params: BTreeMap::new(),
        };
        let tracking = Tracking {
            job_task_id: Some("p:j.1".into()),
            tracking_pipe: Some(tracking_pipe.into()),
            track_to: Some(self.pipe("output").into()),
            ..Tracking::default()
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t.1", self.pipe("in"), &item).unwrap()
        };
        self.amqp
            .publish(Outgoing::new(self.pipe("in"), message.encode()))
            .await
            .unwrap();
    }

    /// Runs a worker with this output pipe and this many attempts until `until` resolves.
    async fn run_until<T>(
        &self,
        output: &str,
        attempts: u32,
        split: Option<(String, u32)>,
        until: impl Future<Output = T>,
    ) -> T {
        let settings = Settings {
            output: Some(output.to_owned()),
            retry: RetryPolicy::constant(Duration::from_millis(100)).attempts(attempts),
            ..Settings::new(self.name.clone())
        };
        let stop = CancellationToken::new();
        let worker = Counting {
            runs: Arc::clone(&self.runs),
            split,
        };
        let runtime =
            Runtime::new(settings, Arc::clone(&self.amqp) as Arc<dyn Broker>).worker(worker);
        let (ended, seen) = tokio::join!(runtime.run_until(stop.clone()), async {
            let seen = until.await;
            stop.cancel();
            seen
        });
        ended.unwrap();
        seen
    }

    /// Returns the first message in a pipe and the reason in its headers.
    async fn first(&self, pipe: &str) -> (TaskMessage, Option<HeaderValue>) {
        let mut consumer = self.amqp.consume(pipe, 1).await.unwrap();
        let delivery = tokio::time::timeout(Duration::from_mins(1), consumer.next())
            .await
            .expect("nothing came")
            .unwrap();
        let found = (
            TaskMessage::decode(&delivery.body()).unwrap(),
            delivery.headers.get(REASON_HEADER).cloned(),
        );
        delivery.ack();
        found
    }

    async fn first_report(&self) -> TrackingReport {
        let (message, _) = self.first(&self.pipe("tracking")).await;
        serde_json::from_slice::<TrackingReportTask>(&message.task_data.unwrap())
            .unwrap()
            .tracking_reports
            .remove(0)
    }

    async fn depth(&self, pipe: &str) -> u64 {
        self.amqp.depth(pipe).await.unwrap()
    }

    /// Checks that the task has run once and failed for this reason, and that its copy is in the
    /// reject pipe.
    async fn has_failed(&self, report: TrackingReport, text: &str) {
        assert_eq!(
            (report.status, report.job_task_id.as_str()),
            (ReportStatus::Failed, "p:j.1")
        );
        let reason = report.failure.unwrap().failure_message.unwrap();
        assert!(reason.contains(text), "{reason}");
        assert_eq!(
            self.runs.load(Ordering::Relaxed),
            1,
            "the task is not run again"
        );
        let (copy, _) = self.first(&self.pipe("reject")).await;
        assert_eq!(
            (copy.task_status, copy.job_task_id()),
            (Some(TaskStatus::ResultException), Some("p:j.1"))
        );
        assert_eq!(self.depth(&self.pipe("in")).await, 0);
        self.amqp.close().await;
    }
}

#[tokio::test]
async fn output_for_a_full_pipe_fails_the_task_without_running_it_again() {
    let fixture = Fixture::new().await;
    let output = fixture.narrow("output", 0).await;
    fixture.publish(&fixture.pipe("tracking")).await;
    let report = fixture
        .run_until(&output, 2, None, fixture.first_report())
        .await;
    fixture
        .has_failed(report, "the broker refused a message for the pipe")
        .await;
}

#[tokio::test]
async fn output_for_an_invalid_pipe_fails_the_task_without_running_it_again() {
    let fixture = Fixture::new().await;
    fixture.publish(&fixture.pipe("tracking")).await;
    let report = fixture
        .run_until(&"x".repeat(300), 2, None, fixture.first_report())
        .await;
    fixture.has_failed(report, "cannot exist").await;
}

#[tokio::test]
async fn output_is_published_when_a_full_pipe_has_room_again() {
    let fixture = Fixture::new().await;
    let output = fixture.narrow("output", 1).await;
    fixture
        .amqp
        .publish(Outgoing::new(output.as_str(), "fills the pipe"))
        .await
        .unwrap();
    fixture.publish(&fixture.pipe("tracking")).await;
    let story = async {
        wait_for("the run", async || {
            match fixture.runs.load(Ordering::Relaxed) {
                0 => Err("none".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
        fixture.purge(&output).await;
        fixture.first(&output).await
    };
    let (message, _) = fixture.run_until(&output, 100, None, story).await;
    assert_eq!(
        (message.task_id.as_str(), message.task_status),
        ("t.1", Some(TaskStatus::ResultSuccess))
    );
    assert_eq!(
        fixture.runs.load(Ordering::Relaxed),
        1,
        "the task is not run again"
    );
    fixture.amqp.close().await;
}

#[tokio::test]
async fn split_whose_subtasks_are_refused_fails_and_does_not_run_again() {
    let fixture = Fixture::new().await;
    let narrow = fixture.narrow("target", 3).await;
    fixture.publish(&fixture.pipe("tracking")).await;
    let report = fixture
        .run_until(
            &fixture.pipe("output"),
            2,
            Some((narrow, 5)),
            fixture.first_report(),
        )
        .await;
    fixture
        .has_failed(report, "the broker refused a message for the pipe")
        .await;
}

#[tokio::test]
async fn task_whose_reports_cannot_be_sent_goes_to_the_invalid_pipe() {
    let fixture = Fixture::new().await;
    fixture.publish(&"x".repeat(300)).await;
    let (message, reason) = fixture
        .run_until(
            &fixture.pipe("output"),
            2,
            None,
            fixture.first(&fixture.pipe("invalid")),
        )
        .await;
    assert_eq!(message.task_id, "t.1");
    let Some(HeaderValue::Text(reason)) = reason else {
        panic!("no reason")
    };
    assert!(
        reason.starts_with("its reports cannot be sent: the pipe xxx"),
        "{reason}"
    );
    assert_eq!(
        fixture.runs.load(Ordering::Relaxed),
        1,
        "the task is not run again"
    );
    fixture.amqp.close().await;
}

#[tokio::test]
async fn depth_is_available_right_after_the_start() {
    let fixture = Fixture::new().await;
    let pipe = fixture.pipe("any");
    assert_eq!(fixture.amqp.depth(&pipe).await.unwrap(), 0);
    fixture
        .amqp
        .publish(Outgoing::new(pipe.as_str(), "1"))
        .await
        .unwrap();
    wait_for("the depth", async || match fixture.depth(&pipe).await {
        1 => Ok(()),
        depth => Err(format!("{depth}")),
    })
    .await;
    fixture.amqp.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_settled_while_the_server_blocks_publishers() {
    let server = disturbed().await;
    let amqp = Amqp::connect(AmqpOptions::new(server.url())).unwrap();
    amqp.connected(Duration::from_secs(30)).await.unwrap();
    let (before, after) = (unique("before"), unique("after"));
    for n in 0..20 {
        amqp.publish(Outgoing::new(&*before, n.to_string()))
            .await
            .unwrap();
    }
    server.run_short_of_memory(true).await.unwrap();
    // The server blocks a connection only once it publishes.
    let held = amqp.publish(Outgoing::new(&*after, "held back"));
    wait_for("the state", async || match amqp.state() {
        BrokerState::Blocked(reason) if reason.contains("memory") => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
    let mut consumer = amqp.consume(&before, 5).await.unwrap();
    for n in 0..20 {
        let delivery = consumer.next().await.unwrap();
        assert_eq!(
            (delivery.delivery_count, &delivery.body()[..]),
            (0, n.to_string().as_bytes())
        );
        delivery.ack();
    }
    assert!(
        matches!(amqp.state(), BrokerState::Blocked(_)),
        "{:?}",
        amqp.state()
    );
    server.run_short_of_memory(false).await.unwrap();
    held.await.unwrap();
    wait_for("the state", async || match amqp.state() {
        BrokerState::Connected => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
    wait_for("the message, once", async || {
        match amqp.depth(&after).await.unwrap() {
            1 => Ok(()),
            depth => Err(format!("{depth}")),
        }
    })
    .await;
    amqp.close().await;
}

#[tokio::test]
async fn counting_headers_that_are_not_numbers_are_ignored() {
    for queue_type in ["quorum", "classic"] {
        let fixture = Fixture::new().await;
        let input = fixture.pipe("in");
        let queue_type = AMQPValue::LongString(queue_type.into());
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), queue_type.clone());
        declare(&fixture.amqp, &input, arguments).await;
        let mut headers = FieldTable::default();
        for name in [
            "x-delivery-count",
            "x-caf-worker-retry",
            "x-batchwright-attempts",
            "x-batchwright-deaths",
            "x-death",
        ] {
            headers.insert(name.into(), AMQPValue::LongString("many".into()));
        }
        let item = RangeItem {
            number: 1,
            params: BTreeMap::new(),
        };
        let body = TaskMessage::new("t.1", fixture.pipe("in"), &item)
            .unwrap()
            .encode();
        let properties = lapin::BasicProperties::default().with_headers(headers);
        let (channel, options) = (channel(&fixture.amqp).await, BasicPublishOptions::default());
        let published = channel.basic_publish("".into(), input.into(), options, &body, properties);
        published.await.unwrap();
        let output = fixture.pipe("output");
        let (message, _) = fixture
            .run_until(&output, 2, None, fixture.first(&output))
            .await;
        assert_eq!(
            (message.task_id.as_str(), message.task_status),
            ("t.1", Some(TaskStatus::ResultSuccess)),
            "{queue_type:?}"
        );
        assert_eq!(fixture.runs.load(Ordering::Relaxed), 1);
        fixture.amqp.close().await;
    }
}

#[tokio::test]
async fn reports_are_sent_without_details_that_no_frame_has_room_for() {
    let url = harness::rabbitmq().await.unwrap().url;
    let options = AmqpOptions::new(format!("{url}?frame_max=8192"));
    let amqp = Arc::new(Amqp::connect(options).unwrap());
    amqp.connected(Duration::from_secs(30)).await.unwrap();
    let (pipe, tasks) = (unique("small-frames"), TaskTracker::new());
    let reports = ReportBuffer::start(
        Arc::clone(&amqp) as Arc<dyn Broker>,
        Arc::default(),
        (&tasks, &CancellationToken::new()),
        Health::default(),
        "reports".into(),
    );
    let failed = TrackingReport::failed(
        "p:j.1",
        ReportFailure {
            item: Some(FailedItem::new(Some("an item"), &[b'x'; 1000])),
            ..ReportFailure::default()
        },
    );
    let mut sent = amqp.consume(&pipe, 1).await.unwrap();
    for (count, has_details) in [(1, true), (20, false)] {
        let confirmed = reports.send(Reports {
            pipe: pipe.as_str().into(),
            correlation_id: None,
            traced: None,
            list: vec![failed.clone(); count],
        });
        harness::in_time("the confirm", confirmed).await.unwrap();
        let delivery = harness::in_time("the reports", sent.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        let task: TrackingReportTask =
            serde_json::from_slice(message.task_data.as_deref().unwrap()).unwrap();
        assert_eq!(task.tracking_reports.len(), count);
        assert_eq!(
            delivery.headers.get(REPORT_DETAILS_HEADER).is_some(),
            has_details
        );
        delivery.ack();
    }
}
