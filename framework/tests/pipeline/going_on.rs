//! Tasks that dispatch a part of their subtasks, and go on later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use contract::{RangeItem, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Confirmer, Outgoing, PublishError};
use framework::{Context, NoOutput, Reply, Runtime, Settings, Source, TaskError, Worker};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::retries::{reports, run_until};

/// Dispatches as many subtasks as its number says, four in each delivery.
#[derive(Clone, Copy)]
struct FourByFour {
    /// What the subtasks are made from.
    source: Option<fn(u32) -> String>,
}

impl Worker for FourByFour {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, task: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        if let Some(source) = self.source {
            let mut made_from = Source::new("the numbers");
            made_from.add(source(ctx.dispatched_before()));
            ctx.repeatable(&made_from).await?;
        }
        ctx.expect_subtasks(u32::try_from(task.number).unwrap());
        let before = u64::from(ctx.resume().await?);
        for number in (before + 1..=task.number).take(4) {
            let params = BTreeMap::new();
            ctx.dispatch("items", &RangeItem { number, params }).await?;
        }
        if before + 4 < task.number {
            return Err(TaskError::go_on(Duration::from_secs(1)));
        }
        Ok(Reply::none())
    }
}

fn ten() -> Outgoing {
    let task = RangeItem {
        number: 10,
        params: BTreeMap::new(),
    };
    let message = TaskMessage {
        tracking: Some(Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            tracking_pipe: Some("tracking".into()),
            ..Tracking::default()
        }),
        ..TaskMessage::new("t", "w-in", &task).unwrap()
    };
    Outgoing::new("w-in", message.encode())
}

/// Returns the ids of the subtasks, in order.
async fn dispatched(pipes: &Memory) -> Vec<String> {
    let count = pipes.depth("items").await.unwrap();
    let mut consumer = pipes.consume("items", 100).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..count {
        let delivery = consumer.next().await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        ids.push(message.job_task_id().unwrap().to_owned());
        delivery.ack();
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn task_that_goes_on_dispatches_each_subtask_once_and_is_complete_after_the_last() {
    for source in [None, Some((|_| "1 to 10".to_owned()) as fn(u32) -> String)] {
        let pipes = Memory::new();
        pipes.publish(ten()).await.unwrap();
        let worker = FourByFour { source };
        // Each delivery tells the number of subtasks; the last report says that it is done.
        let told = run_until(&pipes, Settings::new("w"), worker, reports(&pipes, 1)).await;
        let ids: Vec<_> = told.iter().map(|report| &*report.job_task_id).collect();
        assert_eq!(ids, ["p:j.1.11*"; 4]);
        let expected: Vec<_> = (1..=10).map(|number| format!("p:j.1.{number}")).collect();
        assert_eq!(dispatched(&pipes).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn task_whose_source_changes_before_it_goes_on_fails() {
    let pipes = Memory::new();
    pipes.publish(ten()).await.unwrap();
    let source = Some((|before| before.to_string()) as fn(u32) -> String);
    let worker = FourByFour { source };
    let told = run_until(&pipes, Settings::new("w"), worker, reports(&pipes, 1)).await;
    let failure = told.last().unwrap().failure.as_ref().unwrap();
    let reason = failure.failure_message.as_deref().unwrap();
    assert!(
        reason.starts_with("the source of task 1 has changed within round 1: the numbers."),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn task_does_not_come_back_before_what_it_has_dispatched_is_safe() {
    let pipes = Memory::new();
    let held: Arc<Mutex<Vec<(Outgoing, Confirmer)>>> = Arc::default();
    let (again, holding) = (Arc::new(Mutex::new(0)), Arc::clone(&held));
    let counted = Arc::clone(&again);
    let broker = pipes.clone().intercepting(move |message| {
        if *message.pipe == *"items" {
            let (confirmer, confirm) = Confirm::pair();
            holding.lock().push((message, confirmer));
            return Err(confirm);
        }
        *counted.lock() += u32::from(message.delay.is_some());
        Ok(message)
    });
    pipes.publish(ten()).await.unwrap();
    let stop = CancellationToken::new();
    let worker = FourByFour { source: None };
    let runtime = Runtime::new(Settings::new("w"), Arc::new(broker)).worker(worker);
    let (ended, ()) = tokio::join!(runtime.run_until(stop.clone()), async {
        for deliveries in 0..2 {
            // Long after everything else has come to rest.
            tokio::time::sleep(Duration::from_mins(1)).await;
            assert_eq!((*again.lock(), held.lock().len()), (deliveries, 4));
            for (message, confirmer) in std::mem::take(&mut *held.lock()) {
                drop(pipes.publish(message));
                confirmer.resolve(Ok(()));
            }
        }
        stop.cancel();
    });
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn task_whose_subtask_can_never_be_sent_fails_and_does_not_come_back() {
    let pipes = Memory::new();
    let again = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&again);
    let broker = pipes.clone().intercepting(move |message| {
        if *message.pipe == *"items" {
            let error = PublishError::impossible("items", "it is too large");
            return Err(Confirm::ready(Err(error)));
        }
        *counted.lock() += u32::from(message.delay.is_some());
        Ok(message)
    });
    pipes.publish(ten()).await.unwrap();
    let stop = CancellationToken::new();
    let worker = FourByFour { source: None };
    let runtime = Runtime::new(Settings::new("w"), Arc::new(broker)).worker(worker);
    let (ended, told) = tokio::join!(runtime.run_until(stop.clone()), async {
        let told = reports(&pipes, 1).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        stop.cancel();
        told
    });
    ended.unwrap();
    let failure = told.last().unwrap().failure.as_ref().unwrap();
    let reason = failure.failure_message.as_deref().unwrap();
    assert!(reason.contains("it is too large"), "{reason}");
    assert_eq!(*again.lock(), 0);
}
