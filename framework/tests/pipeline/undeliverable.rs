//! Messages that can never reach their pipe go to the invalid pipe, and their tasks fail.

use std::sync::Arc;

use contract::{
    RangeItem, ReportStatus, TaskMessage, Tracking, TrackingReport, TrackingReportTask,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Delivery, HeaderValue, Outgoing};
use framework::handler::{ORIGIN_HEADER, REASON_HEADER};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};
use tokio_util::sync::CancellationToken;

/// Completes each item with an output.
struct Echo;

impl Worker for Echo {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        Ok(Reply::send(item))
    }
}

/// A name that no broker takes.
fn too_long(letter: &str) -> String {
    letter.repeat(256)
}

fn message(to: Option<&str>, tracking_pipe: &str) -> TaskMessage {
    let item = RangeItem {
        number: 1,
        params: [].into(),
    };
    TaskMessage {
        to: to.map(Into::into),
        tracking: Some(Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            tracking_pipe: Some(tracking_pipe.into()),
            track_to: Some("end".into()),
            ..Tracking::default()
        }),
        ..TaskMessage::new("t", "", &item).unwrap()
    }
}

async fn next(broker: &Memory, pipe: &str) -> Delivery {
    let mut consumer = broker.consume(pipe, 1).await.unwrap();
    let what = format!("a message in {pipe}");
    harness::in_time(&what, consumer.next()).await.unwrap()
}

/// Runs a worker on this message. Returns the reason in the invalid pipe, and the report if there
/// must be one.
async fn end_of(
    message: TaskMessage,
    is_reported: bool,
    change: impl FnOnce(&mut Settings),
) -> (String, Option<TrackingReport>) {
    let (broker, stop) = (Memory::new(), CancellationToken::new());
    let mut settings = Settings::new("w");
    change(&mut settings);
    let body = message.encode();
    broker
        .publish(Outgoing::new("w-in", body.clone()))
        .await
        .unwrap();
    let service = Runtime::new(settings, Arc::new(broker.clone())).worker(Echo);
    let story = async {
        let invalid = next(&broker, "w-invalid").await;
        assert_eq!(invalid.body(), body, "as it came");
        let origin = invalid.headers.get(ORIGIN_HEADER);
        assert_eq!(origin, Some(&HeaderValue::Text("w-in".into())));
        let reason = match invalid.headers.get(REASON_HEADER) {
            Some(HeaderValue::Text(reason)) => reason.to_string(),
            other => format!("{other:?}"),
        };
        invalid.ack();
        let mut report = None;
        if is_reported {
            let delivery = next(&broker, "tracking").await;
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            report = task.tracking_reports.into_iter().next();
            delivery.ack();
        }
        stop.cancel();
        (reason, report)
    };
    let (ended, seen) = tokio::join!(service.run_until(stop.clone()), story);
    ended.unwrap();
    for pipe in ["w-in", "w-invalid", "tracking"] {
        assert_eq!(broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    seen
}

fn assert_failed(report: Option<TrackingReport>, reason: &str) {
    let report = report.unwrap();
    assert_eq!(
        (report.job_task_id.as_str(), report.status),
        ("p:j.1", ReportStatus::Failed)
    );
    let failure = report.failure.unwrap();
    assert_eq!(failure.failure_message.as_deref(), Some(reason));
    assert_eq!(failure.failure_source.as_deref(), Some("w"));
}

#[tokio::test]
async fn message_for_a_pipe_that_cannot_exist_fails() {
    let message = message(Some(&too_long("x")), "tracking");
    let (reason, report) = end_of(message, true, |_| {}).await;
    assert!(
        reason.ends_with("cannot exist: the name has 256 bytes; the limit is 255"),
        "{reason}"
    );
    assert_failed(report, &reason);
}

#[tokio::test]
async fn task_fails_when_neither_its_result_nor_its_copy_can_be_published() {
    let message = message(Some("w-in"), "tracking");
    let (reason, report) = end_of(message, true, |settings| {
        settings.output = Some(too_long("x"));
        settings.reject = too_long("y");
    })
    .await;
    assert!(reason.starts_with("the pipe yyy"), "{reason}");
    assert_failed(report, &reason);
}

#[tokio::test]
async fn message_whose_tracking_pipe_cannot_exist_ends_in_the_invalid_pipe() {
    for to in [None, Some(too_long("x"))] {
        let message = message(to.as_deref(), &too_long("z"));
        end_of(message, false, |_| {}).await;
    }
}
