//! What can be told of one task, and what becomes of one that fails at first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract::rest::{NewJob, OnFailure};
use contract::{JobStatus, RangeItem, TaskStatus};
use framework::{Context, OrFail, Reply, RetryPolicy, Settings, TaskError};
use harness::wait_for;
use serde_json::Value;

use crate::place::{Answer, Place};
use crate::workers::{Each, Gate};

stories![
    the_state_of_every_task_is_told_in_the_middle_and_at_the_end,
    a_task_that_fails_twice_is_done_by_its_third_attempt,
    a_task_that_fails_every_time_is_given_up_and_a_copy_kept,
];

async fn the_state_of_every_task_is_told_in_the_middle_and_at_the_end(place: Place) {
    let gate = Gate::closed();
    let worker = Each(
        gate.clone(),
        async |gate: Gate, item: RangeItem, ctx: Context| {
            if item.number == 17 {
                Err::<(), _>("no such order").or_fail()?;
            }
            if item.number > 25 {
                gate.pass(&ctx).await?;
            }
            Ok(Reply::send(item))
        },
    );
    let system = place.run(worker).await;
    // Three parts of ten items.
    system
        .client
        .put(
            "j",
            &NewJob {
                on_failure: OnFailure::Continue,
                ..place.range(30)
            },
        )
        .await
        .unwrap();
    wait_for("all items that are not held back", async || {
        let state = system.job("j").await;
        if (state.completed_items, state.failed_tasks) == (24, 1) {
            Ok(())
        } else {
            Err(format!("{state:?}"))
        }
    })
    .await;
    let status = async |task: &str| {
        let Answer { code, body } = system.read(&format!("/jobs/j/tasks/{task}")).await;
        assert_eq!(code, 200, "{task}: {body}");
        assert_eq!(body["id"], task.trim_end_matches('*'));
        body
    };
    for (task, expected) in [
        ("0", "Active"),
        ("1", "Completed"),
        ("1.5", "Completed"),
        ("1.10", "Completed"),
        ("4*", "Completed"),
    ] {
        assert_eq!(status(task).await["status"], expected, "{task}");
    }
    for (task, expected) in [
        ("2.6", "Completed"),
        ("3", "Active"),
        ("3.5", "Completed"),
        ("3.9", "Waiting"),
    ] {
        assert_eq!(status(task).await["status"], expected, "{task}");
    }
    let third = status("3").await;
    assert_eq!(
        (&third["subtasks"], &third["completedSubtasks"]),
        (&Value::from(11), &Value::from(6)),
        "five items and the split itself"
    );
    let failed = status("2.7").await;
    assert_eq!(
        (&failed["status"], &failed["failure"]["failureMessage"]),
        (&Value::from("Failed"), &Value::from("no such order"))
    );
    assert_eq!(failed["failure"]["taskId"], "2.7");
    for (path, code) in [
        ("/jobs/j/tasks/5", 404),
        ("/jobs/j/tasks/3.12", 404),
        ("/jobs/j/tasks/x", 400),
        ("/jobs/k/tasks/1", 404),
    ] {
        let answer = system.read(path).await;
        assert_eq!(answer.code, code, "{path}: {answer:?}");
        assert!(answer.body["message"].is_string(), "{answer:?}");
    }

    gate.open();
    assert_eq!(system.ended("j").await.status, JobStatus::Failed);
    for (task, expected) in [
        ("0", "Failed"),
        ("1.5", "Completed"),
        ("2.7", "Failed"),
        ("3", "Completed"),
        ("3.9", "Completed"),
    ] {
        assert_eq!(status(task).await["status"], expected, "{task}");
    }
    system.stop().await;
}

/// A worker that tries again soon, and not often.
fn impatient(place: &Place) -> Settings {
    Settings {
        retry: RetryPolicy::constant(Duration::from_millis(50)).attempts(4),
        ..place.settings("items")
    }
}

async fn a_task_that_fails_twice_is_done_by_its_third_attempt(place: Place) {
    type Attempts = Arc<Mutex<BTreeMap<u64, Vec<u32>>>>;
    let seen = Attempts::default();
    let worker = Each(
        Arc::clone(&seen),
        async |seen: Attempts, item: RangeItem, ctx: Context| {
            seen.lock()
                .unwrap()
                .entry(item.number)
                .or_default()
                .push(ctx.attempt());
            if item.number == 3 && ctx.attempt() < 3 {
                Err(std::io::Error::other("not yet"))?;
            }
            Ok::<_, TaskError>(Reply::send(item))
        },
    );
    let system = place
        .start(place.stack().worker(impatient(&place), worker))
        .await;
    system.client.put("j", &place.range(5)).await.unwrap();
    system.completed("j", 5).await;
    system.has_outputs(&place.pipe("output"), 1..=5).await;
    let seen = seen.lock().unwrap().clone();
    assert_eq!(
        seen,
        BTreeMap::from([
            (1, vec![1]),
            (2, vec![1]),
            (3, vec![1, 2, 3]),
            (4, vec![1]),
            (5, vec![1])
        ])
    );
    system.stop().await;
}

async fn a_task_that_fails_every_time_is_given_up_and_a_copy_kept(place: Place) {
    let worker = Each((), async |(), item: RangeItem, _| match item.number {
        3 => Err(TaskError::retry("no reply from the warehouse")),
        _ => Ok(Reply::send(item)),
    });
    let system = place
        .start(place.stack().worker(impatient(&place), worker))
        .await;
    system.client.put("j", &place.range(5)).await.unwrap();
    let state = system.ended("j").await;
    assert_eq!(
        (state.status, state.failed_tasks),
        (JobStatus::Failed, 1),
        "{state:?}"
    );
    let text = "no reply from the warehouse (given up after 4 attempts)";
    assert_eq!(state.failures[0].failure_message.as_deref(), Some(text));
    assert_eq!(state.failures[0].task_id, "3");
    let task = system.read("/jobs/j/tasks/3").await.body;
    assert_eq!(
        (&task["status"], &task["failure"]["failureMessage"]),
        (&Value::from("Failed"), &Value::from(text))
    );

    let (copy, _) = system.take_one(&place.pipe("items-reject")).await;
    assert_eq!(copy.task_status, Some(TaskStatus::ResultException));
    assert!(copy.job_task_id().unwrap().ends_with(":j.3"), "{copy:?}");
    let item: RangeItem = serde_json::from_slice(&copy.task_data.unwrap()).unwrap();
    assert_eq!(item.number, 3);
    system.stop().await;
}
