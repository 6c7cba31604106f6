//! What a reader of an output pipe gets, and where messages go that it cannot understand.

use std::sync::Arc;

use contract::{RangeItem, SourceInfo, TaskMessage, TaskStatus, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::handler::{ORIGIN_HEADER, REASON_HEADER};
use framework::outputs::Failure;
use framework::{Context, NoOutput, Output, Outputs, Reply, Runtime, Settings, TaskError, Worker};
use tokio_util::sync::CancellationToken;

/// Returns an output of a CAF worker, which sets no headers.
fn output(task_id: &str, status: TaskStatus, data: &str) -> TaskMessage {
    let item = RangeItem {
        number: 7,
        params: [].into(),
    };
    TaskMessage {
        task_status: Some(status),
        task_data: Some(data.as_bytes().to_vec()),
        correlation_id: Some("c".into()),
        source_info: Some(SourceInfo {
            name: Some("w".into()),
            version: None,
        }),
        ..TaskMessage::new(task_id, "out", &item).unwrap()
    }
}

fn tracked(message: TaskMessage) -> TaskMessage {
    TaskMessage {
        tracking: Some(Tracking {
            job_task_id: Some("p:j.3.17*".to_owned()),
            ..Tracking::default()
        }),
        ..message
    }
}

async fn publish(broker: &Arc<dyn Broker>, body: impl Into<Vec<u8>>) {
    let message = Outgoing::new("out", body.into());
    broker.publish(message).await.unwrap();
}

async fn next(outputs: &mut Outputs<RangeItem>) -> Output<RangeItem> {
    let next = harness::in_time("an output", outputs.next()).await;
    next.unwrap().unwrap()
}

#[tokio::test]
async fn outputs_are_results_and_failures_with_what_their_messages_tell() {
    let broker: Arc<dyn Broker> = Arc::new(Memory::new());
    let mut outputs = Outputs::<RangeItem>::of(&broker, "out").await.unwrap();
    for message in [
        output("1", TaskStatus::ResultSuccess, "{\"number\":7}"),
        tracked(output("2", TaskStatus::ResultFailure, "{\"number\":7}")),
        tracked(output("3", TaskStatus::ResultException, "\"no\"")),
        output("4", TaskStatus::InvalidTask, "what?"),
    ] {
        publish(&broker, message.encode()).await;
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        let output = next(&mut outputs).await;
        assert_eq!(output.correlation_id.as_deref(), Some("c"));
        assert_eq!(output.worker.as_deref(), Some("w"));
        let result = output.result.as_ref().map(|item| item.number);
        seen.push((
            output.name().to_owned(),
            result.map_err(Failure::clone),
            output.is_negative,
            output.partition.clone(),
            output.job.clone(),
        ));
        output.done();
    }
    let job = |id: &str| Some(id.to_owned());
    let failure = |reason: &str, is_invalid| {
        Err(Failure {
            reason: reason.to_owned(),
            is_invalid,
        })
    };
    assert_eq!(
        seen,
        [
            ("1".to_owned(), Ok(7), false, None, None),
            ("3.17".to_owned(), Ok(7), true, job("p"), job("j")),
            (
                "3.17".to_owned(),
                failure("no", false),
                false,
                job("p"),
                job("j")
            ),
            ("4".to_owned(), failure("what?", true), false, None, None),
        ]
    );
}

/// Is given no task.
struct Idle;

impl Worker for Idle {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

#[tokio::test]
async fn output_of_a_caf_worker_that_is_forwarded_where_its_tracking_ends_tells_its_job() {
    let (broker, stop) = (Arc::new(Memory::new()), CancellationToken::new());
    let shared: Arc<dyn Broker> = broker.clone();
    let mut message = tracked(output("1", TaskStatus::ResultSuccess, "{\"number\":7}"));
    let tracking = message.tracking.as_mut().unwrap();
    tracking.track_to = Some("out".into());
    let diverted = Outgoing::new("idle-in", message.encode());
    shared.publish(diverted).await.unwrap();
    let service = Runtime::new(Settings::new("idle"), Arc::clone(&shared)).worker(Idle);
    let story = async {
        let mut outputs = Outputs::<RangeItem>::of(&shared, "out").await.unwrap();
        let output = next(&mut outputs).await;
        stop.cancel();
        (output.job.clone(), output.task.clone())
    };
    let (_, told) = tokio::join!(service.run_until(stop.clone()), story);
    assert_eq!(told, (Some("j".to_owned()), Some("3.17".to_owned())));
}

#[tokio::test]
async fn message_that_is_no_output_goes_to_the_invalid_pipe_and_stops_nothing() {
    let broker: Arc<dyn Broker> = Arc::new(Memory::new());
    let mut outputs = Outputs::<RangeItem>::of(&broker, "out").await.unwrap();
    let mut good = output("good", TaskStatus::ResultSuccess, "{\"number\":7}");
    let other = TaskMessage {
        task_classifier: Some("Other".into()),
        ..good.clone()
    };
    let newer = TaskMessage {
        task_api_version: 2,
        ..good.clone()
    };
    let bad = output("bad", TaskStatus::ResultSuccess, "{");
    for body in [
        b"junk".to_vec(),
        other.encode(),
        newer.encode(),
        bad.encode(),
    ] {
        publish(&broker, body).await;
    }
    good.correlation_id = None;
    publish(&broker, good.encode()).await;
    let output = next(&mut outputs).await;
    assert_eq!(output.task_id, "good");
    output.done();

    let mut invalid = broker.consume("out-invalid", 10).await.unwrap();
    for reason in [
        "the body is not JSON",
        "Task of type Other found on queue for RangeItem",
        "the task has version 2 of RangeItem",
        "Invalid input message",
    ] {
        let refused = harness::in_time("an invalid message", invalid.next()).await;
        let headers = refused.as_ref().unwrap().headers.clone();
        let Some(HeaderValue::Text(found)) = headers.get(REASON_HEADER) else {
            panic!("{headers:?}")
        };
        assert!(found.starts_with(reason), "{found}");
        let origin = headers.get(ORIGIN_HEADER);
        assert_eq!(origin, Some(&HeaderValue::Text("out".into())));
        refused.unwrap().ack();
    }
    assert_eq!(broker.depth("out").await.unwrap(), 0);
}

#[tokio::test]
async fn output_that_came_back_often_is_published_anew_before_its_reader_gets_it() {
    let broker: Arc<dyn Broker> = Arc::new(Memory::new());
    let sent = output("1", TaskStatus::ResultSuccess, "{\"number\":7}");
    publish(&broker, sent.encode()).await;
    let mut consumer = broker.consume("out", 1).await.unwrap();
    for _ in 0..5 {
        consumer.next().await.unwrap().requeue();
    }
    drop(consumer);
    let mut outputs = Outputs::<RangeItem>::of(&broker, "out").await.unwrap();
    let output = next(&mut outputs).await;
    assert_eq!(output.task_id, "1");
    // Otherwise the reader would get it again, and return it.
    drop(outputs);
    drop(output);
    let again = broker.consume("out", 1).await.unwrap().next().await;
    assert_eq!(again.unwrap().delivery_count, 1);
}

#[tokio::test]
async fn output_that_is_not_settled_comes_again_and_a_settled_one_does_not() {
    let broker: Arc<dyn Broker> = Arc::new(Memory::new());
    let mut outputs = Outputs::<RangeItem>::of(&broker, "out").await.unwrap();
    for id in ["1", "2"] {
        publish(
            &broker,
            output(id, TaskStatus::ResultSuccess, "{\"number\":7}").encode(),
        )
        .await;
    }
    drop(next(&mut outputs).await);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let output = next(&mut outputs).await;
        ids.push(output.task_id.clone());
        output.done();
    }
    ids.sort();
    assert_eq!(ids, ["1", "2"]);
    broker.close().await;
    assert!(outputs.next().await.unwrap().is_none());
}
