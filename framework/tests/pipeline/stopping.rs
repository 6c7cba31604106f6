//! Tasks that stop before they are done: their time is over, or their job has ended.

use std::sync::Arc;
use std::time::Duration;

use contract::headers::TASK_TIME_LIMIT_HEADER;
use contract::{RangeItem, ReportStatus, TaskData, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::clock::Clock;
use framework::{Context, NoOutput, Reply, RetryPolicy, Settings, TaskError, Worker};
use harness::in_time;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::retries::{message, reports, run_until};

/// Hangs, and hands out its context.
struct Hanging(mpsc::UnboundedSender<Context>);

impl Worker for Hanging {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.0.send(ctx)?;
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_that_exceeds_its_time_has_failed_and_what_it_left_behind_can_see_it() {
    let pipes = Memory::new();
    let (handed, mut contexts) = mpsc::unbounded_channel();
    pipes.publish(message(1, "tracking")).await.unwrap();
    let settings = Settings {
        time_limit: Some(Duration::from_secs(90)),
        retry: RetryPolicy::immediate().attempts(2),
        ..Settings::new("w")
    };
    let reports = run_until(&pipes, settings, Hanging(handed), reports(&pipes, 1)).await;
    let failures = reports.iter().filter_map(|report| {
        let failure = report.failure.as_ref()?;
        Some((report.status, failure.failure_message.as_deref()?))
    });
    assert_eq!(
        failures.collect::<Vec<_>>(),
        [
            (
                ReportStatus::Retry,
                "the task took longer than its time limit of 90s"
            ),
            (
                ReportStatus::Failed,
                "the task took longer than its time limit of 90s (given up after 2 attempts)"
            ),
        ]
    );
    for attempt in 1..=2 {
        let ctx = contexts.recv().await.unwrap();
        assert_eq!(ctx.attempt(), attempt);
        let error = ctx.check_cancelled().unwrap_err();
        assert!(error.to_string().contains("time limit"), "{error}");
    }
}

/// Dispatches a task and sends one, both for the same pipe.
struct Dispatching;

impl Worker for Dispatching {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        ctx.dispatch("hang-in", &item).await?;
        Ok(Reply::send(item).to("hang-in"))
    }
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_job_holds_for_all_that_its_tasks_dispatch_and_send_and_a_garbled_one_for_nothing()
 {
    for (header, hanging) in [("30", true), ("30 s", false), ("0", false), ("-1", false)] {
        let pipes = Memory::new();
        let mut first = message(1, "tracking");
        let header = HeaderValue::Text(header.into());
        first.headers.set(TASK_TIME_LIMIT_HEADER, header);
        first.pipe = "w-in".into();
        pipes.publish(first).await.unwrap();
        run_until(&pipes, Settings::new("w"), Dispatching, async {
            let dispatched = || async { pipes.depth("hang-in").await.unwrap() };
            while dispatched().await < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let (handed, _contexts) = mpsc::unbounded_channel();
        let settings = Settings {
            time_limit: Some(Duration::from_secs(90)),
            retry: RetryPolicy::constant(Duration::from_secs(5)).attempts(2),
            ..Settings::new("hang")
        };
        let all = reports(&pipes, 2);
        let reports = run_until(&pipes, settings, Hanging(handed), all).await;
        let failures = reports.iter().filter_map(|report| report.failure.as_ref());
        let failures: Vec<_> = failures
            .filter_map(|failure| failure.failure_message.as_deref())
            .collect();
        let whose = if hanging {
            "the time limit of 30s that its job sets"
        } else {
            "its time limit of 90s"
        };
        assert!(
            failures.len() == 4 && failures.iter().all(|text| text.contains(whose)),
            "{failures:?}"
        );
    }
}

/// Waits until it is cancelled.
struct Cancellable(Mutex<mpsc::UnboundedSender<()>>);

impl Worker for Cancellable {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.0.lock().await.send(())?;
        Err(ctx.cancelled().await)
    }
}

#[tokio::test]
async fn task_that_waits_for_cancellation_ends_when_the_end_of_its_job_is_announced() {
    let (pipes, jobs) = (Memory::new(), MockServer::start().await);
    let job_is = async |status: &str| {
        jobs.reset().await;
        let response = ResponseTemplate::new(200)
            .set_body_json(status)
            .insert_header("cache-control", "max-age=3600");
        Mock::given(any()).respond_with(response).mount(&jobs).await;
    };
    job_is("Active").await;
    let item: RangeItem = serde_json::from_str(r#"{"number": 1}"#).unwrap();
    let tracking = Tracking {
        job_task_id: Some("p:j.1".to_owned()),
        status_check_url: Some((jobs.uri() + "/job-service/v1/partitions/p/jobs/j/status").into()),
        ..Tracking::default()
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "w-in", &item).unwrap()
    };
    let message = Outgoing::new("w-in", message.encode());
    pipes.publish(message).await.unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let broker: Arc<dyn Broker> = Arc::new(pipes.clone());
    let cancelled = async {
        in_time("the begin", begins.recv()).await.unwrap();
        job_is("Cancelled").await;
        framework::announcement::announce(&*broker, vec!["p:j".to_owned()])
            .await
            .unwrap();
    };
    let worker = Cancellable(Mutex::new(begun));
    // The worker drains: it stops only when the task has ended.
    let settings = Settings {
        drain: Duration::from_hours(1),
        ..Settings::new("w")
    };
    let ended = Box::pin(run_until(&pipes, settings, worker, cancelled));
    in_time("the end of the task", ended).await;
    assert_eq!(pipes.depth("w-in").await.unwrap(), 0);
}

/// Asks whether it is cancelled, and ends at once.
struct Short;

impl Worker for Short {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        ctx.check_cancelled()?;
        Ok(Reply::none())
    }
}

#[tokio::test]
async fn short_task_whose_message_needs_no_status_check_asks_nobody() {
    let (pipes, jobs) = (Memory::new(), MockServer::start().await);
    let item: RangeItem = serde_json::from_str(r#"{"number": 1}"#).unwrap();
    let tracking = Tracking {
        job_task_id: Some("p:j.1".to_owned()),
        // After the start of the process, which may have missed announcements before.
        last_status_check_time: Some(Clock::system().now_millis() + 30_000),
        status_check_interval_millis: 60_000,
        status_check_url: Some((jobs.uri() + "/job-service/v1/partitions/p/jobs/j/status").into()),
        tracking_pipe: Some("tracking".into()),
        ..Tracking::default()
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "w-in", &item).unwrap()
    };
    let message = Outgoing::new("w-in", message.encode());
    pipes.publish(message).await.unwrap();
    let settings = Settings::new("w");
    let reports = run_until(&pipes, settings, Short, reports(&pipes, 1)).await;
    assert_eq!(reports[0].status, ReportStatus::Complete);
    assert!(jobs.received_requests().await.unwrap().is_empty());
}

/// An item whose type has no label.
#[derive(Serialize, Deserialize)]
struct Page {
    number: u64,
}

impl TaskData for Page {
    const CLASSIFIER: &'static str = RangeItem::CLASSIFIER;
    const API_VERSION: i32 = 1;
}

/// Dispatches a subtask with a label, to itself; the subtask fails.
struct Labelling;

impl Worker for Labelling {
    type Input = Page;
    type Output = NoOutput;

    async fn run(&self, page: Page, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        if page.number == 7 {
            return Err(TaskError::failed("the page is torn"));
        }
        let page = Page { number: 7 };
        let label = "page 7 of scan.tif";
        ctx.dispatch_labelled(ctx.input_pipe(), &page, label)
            .await?;
        Ok(Reply::none())
    }
}

#[tokio::test]
async fn failure_shows_the_label_that_the_task_was_dispatched_with() {
    let pipes = Memory::new();
    pipes.publish(message(0, "tracking")).await.unwrap();
    let reports = run_until(&pipes, Settings::new("w"), Labelling, reports(&pipes, 2)).await;
    let labels = reports.iter().filter_map(|report| {
        let item = report.failure.as_ref()?.item.as_ref()?;
        Some((report.job_task_id.as_str(), item.label.as_deref()?))
    });
    let expected = [("p:j.0.1", "page 7 of scan.tif")];
    assert_eq!(labels.collect::<Vec<_>>(), expected);
}
