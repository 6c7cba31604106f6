//! Jobs that are spread over several tracking pipes, while their number changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use batchwright::{Role, Stack, StackOptions};
use contract::rest::{NewJob, OnFailure};
use contract::{
    JobId, JobStatus, PartitionId, RangeItem, TaskMessage, TrackingShards, rounds_pipe,
};
use framework::{Context, Reply, TaskError, Worker};
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::{Each, Gate, echo, gated};

stories![
    jobs_of_several_shards_are_exact_in_each_round_beside_one_from_before_the_shards,
    jobs_go_on_whoever_reads_their_shard_also_when_there_are_fewer,
];

/// The items of each job.
const ITEMS: u64 = 120;

fn spread_over(fixture: &Fixture, shards: u32) -> StackOptions {
    let mut options = fixture.options();
    options.service.tracking_shards = TrackingShards::new(shards).unwrap();
    options
}

async fn start(fixture: &Fixture, options: StackOptions, worker: impl Worker) -> System {
    let stack = Stack::new(options).worker(fixture.settings("items"), worker);
    fixture.start(stack).await
}

/// Returns the pipe where the first round of a job is tracked, as its start message says.
async fn tracking_pipe(system: &System, job: &str) -> String {
    let partition = PartitionId::parse(system.partition()).unwrap();
    let (store, job) = (system.running.store().unwrap(), JobId::parse(job).unwrap());
    let definition = store.definition(&partition, &job).await.unwrap().unwrap();
    let message = TaskMessage::decode(&definition.start).unwrap();
    message.tracking.unwrap().tracking_pipe.unwrap().into()
}

/// Creates jobs, and returns where they are tracked.
async fn create(system: &System, fixture: &Fixture, jobs: &[&str]) -> BTreeSet<String> {
    let request = NewJob {
        on_failure: OnFailure::Continue,
        ..fixture.range(ITEMS)
    };
    let mut pipes = BTreeSet::new();
    for job in jobs {
        system.client.put(job, &request).await.unwrap();
        pipes.insert(tracking_pipe(system, job).await);
    }
    pipes
}

/// Waits until something waits in a pipe.
async fn filled(system: &System, pipe: &str) {
    wait_for(pipe, async || {
        match system.running.broker().depth(pipe).await {
            Ok(0) => Err("nothing waits".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}

async fn jobs_of_several_shards_are_exact_in_each_round_beside_one_from_before_the_shards(
    fixture: Fixture,
) {
    let tracking = fixture.pipe("tracking");
    let shards = [0, 1, 2].map(|shard| format!("{tracking}-{shard}"));
    let gate = Gate::closed();
    let before = start(&fixture, fixture.options(), gated(&gate)).await;
    let pipes = create(&before, &fixture, &["old"]).await;
    assert_eq!(pipes, BTreeSet::from([tracking.clone()]));
    gate.admit(10);
    wait_for("some items of the job", async || {
        let done = before.job("old").await.completed_items;
        if done >= 10 {
            Ok(())
        } else {
            Err(done.to_string())
        }
    })
    .await;
    // As the job service of another process does. A tracking worker that runs reads the shards from
    // then on.
    let (store, three) = (
        before.running.store().unwrap(),
        TrackingShards::new(3).unwrap(),
    );
    let noted = store.note_tracking_shards(&tracking, three);
    noted.await.unwrap();
    for pipe in shards
        .iter()
        .flat_map(|pipe| [pipe.clone(), rounds_pipe(pipe)])
    {
        wait_for("a reader of the shard", async || {
            match before.running.broker().look(&pipe).await {
                Ok(Some(state)) if state.consumers == Some(1) => Ok(()),
                looked => Err(format!("{pipe}: {looked:?}")),
            }
        })
        .await;
    }
    before.stop().await;

    let breaks = Arc::new(AtomicBool::new(true));
    let worker = Each(
        Arc::clone(&breaks),
        async |breaks: Arc<AtomicBool>, item: RangeItem, ctx: Context| {
            if item.number == 77
                && ctx.job().as_deref() == Some("b")
                && breaks.load(Ordering::Relaxed)
            {
                return Err(TaskError::failed("the item is broken"));
            }
            Ok(Reply::send(item))
        },
    );
    let system = start(&fixture, spread_over(&fixture, 3), worker).await;
    let jobs = ["a", "b", "c", "d", "e"];
    let pipes = create(&system, &fixture, &jobs).await;
    assert_eq!(pipes, BTreeSet::from(shards.clone()));
    let items = i64::try_from(ITEMS).unwrap();
    for job in ["old", "a", "c", "d", "e"] {
        system.completed(job, items).await;
    }
    let failed = system.ended("b").await;
    assert_eq!(
        (failed.status, failed.completed_items, failed.failed_tasks),
        (JobStatus::Failed, items - 1, 1)
    );
    breaks.store(false, Ordering::Relaxed);
    system.client.retry("b", false).await.unwrap();
    system.completed("b", items).await;
    assert_eq!(system.job("b").await.round, Some(2));

    let all = shards.iter().chain([&tracking]);
    let mut all: Vec<String> = all
        .flat_map(|pipe| [pipe.clone(), rounds_pipe(pipe)])
        .collect();
    all.extend(["batch", "items"].map(|pipe| fixture.pipe(pipe)));
    system.drained(&all).await;
    system.stop().await;
}

async fn jobs_go_on_whoever_reads_their_shard_also_when_there_are_fewer(fixture: Fixture) {
    let tracking = fixture.pipe("tracking");
    let shards = [0, 1, 2].map(|shard| format!("{tracking}-{shard}"));
    let items = i64::try_from(ITEMS).unwrap();

    // Nobody reads what the jobs report: it waits in their shards, and nowhere else.
    let mut options = spread_over(&fixture, 3);
    options.roles.retain(|role| *role != Role::TrackingWorker);
    let unread = start(&fixture, options, echo()).await;
    let mut jobs = Vec::new();
    for job in ["a", "b", "c"] {
        create(&unread, &fixture, &[job]).await;
        jobs.push((tracking_pipe(&unread, job).await, job));
    }
    jobs.sort();
    assert!(jobs.iter().map(|(pipe, _)| pipe).eq(&shards), "{jobs:?}");
    for pipe in &shards {
        filled(&unread, pipe).await;
    }
    unread
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    unread.stop().await;

    // One process reads one of the shards.
    let mut options = spread_over(&fixture, 3);
    options.tracked_shards = vec![1];
    let one = start(&fixture, options, echo()).await;
    one.completed(jobs[1].1, items).await;
    for at in [0, 2] {
        filled(&one, &shards[at]).await;
        assert_eq!(one.job(jobs[at].1).await.status, JobStatus::Waiting);
    }
    one.stop().await;

    // New jobs use no shard, and those of the shards end.
    let none = start(&fixture, spread_over(&fixture, 1), echo()).await;
    let pipes = create(&none, &fixture, &["d"]).await;
    assert_eq!(pipes, BTreeSet::from([tracking]));
    for job in ["a", "b", "c", "d"] {
        none.completed(job, items).await;
    }
    none.drained(&shards).await;
    none.stop().await;
}
