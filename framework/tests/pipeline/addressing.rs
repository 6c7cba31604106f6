//! What a task may address, and how deep its subtasks may be nested: whatever is refused fails with
//! the reason.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::{JobTaskId, RangeItem, ReportStatus, TaskMessage, TaskStatus, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::handler::REASON_HEADER;
use framework::{Context, Reply, Settings, TaskError, Worker};

use super::retries::{reports, run_until};

/// Does what the item says, with the pipe that it names.
struct Addressing;

impl Worker for Addressing {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        let param = |name| item.params.get(name).cloned().unwrap_or_default();
        let pipe = param("pipe");
        match param("do").as_str() {
            "dispatch" => ctx.dispatch(&pipe, &item).await?,
            "ignore" => drop(ctx.dispatch(&pipe, &item).await),
            "expect" => ctx.expect_subtasks(0),
            "expect-most" => ctx.expect_subtasks(u32::MAX),
            "reply" => return Ok(Reply::send(item).to(pipe)),
            "" => {}
            // What fails for ever is not cured by running again, whatever the author's code makes
            // of it.
            again => {
                let dispatched = ctx.dispatch(&pipe, &item).await;
                dispatched.map_err(|error| match again {
                    "retry" => TaskError::retry(error.to_string()),
                    "wait" => TaskError::unavailable(error.to_string()),
                    _ => TaskError::snooze(Duration::from_millis(1)),
                })?;
            }
        }
        Ok(Reply::none())
    }
}

/// Returns a task of `job_task_id` whose worker does `what` with `pipe`.
fn task(job_task_id: &str, what: &str, pipe: &str) -> TaskMessage {
    let params = [("do", what), ("pipe", pipe)];
    let item = RangeItem {
        number: 1,
        params: BTreeMap::from(params.map(|(name, value)| (name.to_owned(), value.to_owned()))),
    };
    TaskMessage {
        tracking: Some(Tracking {
            job_task_id: Some(job_task_id.to_owned()),
            tracking_pipe: Some("tracking".into()),
            ..Tracking::default()
        }),
        ..TaskMessage::new("t", "w-in", &item).unwrap()
    }
}

/// Runs a worker until it has reported the outcome of this task. Returns the status and the reason
/// of a failure.
async fn outcome(pipes: &Memory, task: &TaskMessage) -> (ReportStatus, String) {
    let settings = Settings {
        output: Some("out".to_owned()),
        ..Settings::new("w")
    };
    pipes
        .publish(Outgoing::new("w-in", task.encode()))
        .await
        .unwrap();
    let mut reports = run_until(pipes, settings, Addressing, reports(pipes, 1)).await;
    let report = reports.pop().unwrap();
    assert_eq!(Some(report.job_task_id.as_str()), task.job_task_id());
    let reason = report.failure.and_then(|failure| failure.failure_message);
    (report.status, reason.unwrap_or_default())
}

#[tokio::test]
async fn task_that_addresses_a_reserved_pipe_fails_with_the_reason() {
    for pipe in [
        "w-in.delay.400",
        "other-in.suspects",
        "Tracking",
        "worker-paused-in",
        "w-invalid",
        "w-reject",
    ] {
        for what in ["dispatch", "ignore", "retry", "wait", "snooze", "reply"] {
            let pipes = Memory::new();
            let (status, reason) = outcome(&pipes, &task("p:j.1", what, pipe)).await;
            assert_eq!(status, ReportStatus::Failed, "{what} {pipe}");
            let text = format!("no task may be addressed to the pipe '{pipe}', which ");
            assert!(reason.starts_with(&text), "{reason}");
            assert_eq!(pipes.depth(pipe).await.unwrap(), 0, "{what} {pipe}");
        }
    }
}

#[tokio::test]
async fn message_for_a_reserved_pipe_goes_to_the_invalid_pipe_and_its_task_fails() {
    let pipes = Memory::new();
    let sent = TaskMessage {
        to: Some("other-in.delay.400".into()),
        ..task("p:j.1", "", "")
    };
    let (status, reason) = outcome(&pipes, &sent).await;
    assert_eq!(status, ReportStatus::Failed);
    assert!(reason.contains("'other-in.delay.400'"), "{reason}");
    assert_eq!(pipes.depth("other-in.delay.400").await.unwrap(), 0);
    let mut invalid = pipes.consume("w-invalid", 1).await.unwrap();
    let kept = harness::in_time("the kept message", invalid.next())
        .await
        .unwrap();
    assert_eq!(kept.body(), sent.encode());
    assert_eq!(
        kept.headers.get(REASON_HEADER),
        Some(&HeaderValue::Text(reason.into()))
    );
    kept.ack();
}

#[tokio::test]
async fn result_that_ends_in_a_reject_pipe_is_still_forwarded() {
    let pipes = Memory::new();
    let sent = TaskMessage {
        to: Some("w-reject".into()),
        task_status: Some(TaskStatus::ResultException),
        ..task("p:j.1", "", "")
    };
    pipes
        .publish(Outgoing::new("w-in", sent.encode()))
        .await
        .unwrap();
    let mut rejected = pipes.consume("w-reject", 1).await.unwrap();
    let arrived = run_until(&pipes, Settings::new("w"), Addressing, async {
        harness::in_time("the result", rejected.next()).await
    });
    let arrived = arrived.await.unwrap();
    assert_eq!(arrived.body(), sent.encode());
    arrived.ack();
}

#[tokio::test]
async fn task_of_more_subtasks_than_can_be_counted_fails() {
    let task = task("p:j.1", "expect-most", "");
    let (status, reason) = outcome(&Memory::new(), &task).await;
    assert_eq!(status, ReportStatus::Failed);
    assert!(
        reason.contains("a task of 4294967295 subtasks cannot be counted; at most 2147483646"),
        "{reason}"
    );
}

#[tokio::test]
async fn task_on_the_deepest_level_fails_if_it_is_split_and_runs_otherwise() {
    let level = |steps: usize| format!("p:j{}", ".1".repeat(steps));
    for what in ["dispatch", "ignore", "expect"] {
        let task = task(&level(JobTaskId::MAX_DEPTH), what, "items");
        let (status, reason) = outcome(&Memory::new(), &task).await;
        assert_eq!(status, ReportStatus::Failed, "{what}");
        assert!(reason.contains("level 64 of its job"), "{reason}");
    }
    let unsplit = task(&level(JobTaskId::MAX_DEPTH), "", "");
    assert_eq!(
        outcome(&Memory::new(), &unsplit).await.0,
        ReportStatus::Complete
    );
    // A message id grows in the same way, whether or not the task is tracked.
    let long = TaskMessage {
        task_id: "t".repeat(JobTaskId::MAX_BYTES),
        ..task("p:j.1", "dispatch", "items")
    };
    let (status, reason) = outcome(&Memory::new(), &long).await;
    assert_eq!(status, ReportStatus::Failed);
    assert!(reason.contains("longer than 2048 bytes"), "{reason}");
}
