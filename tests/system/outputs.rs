//! Jobs whose outputs the service keeps: each output once, and all of them when the job is
//! Completed.

use std::collections::BTreeSet;

use contract::rest::{KeptOutput, NewJob, OnFailure, OutputStatus, Outputs};
use contract::{JobStatus, RangeItem};
use framework::{OrFail, Reply, Settings, Worker};
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::Each;

stories![
    a_completed_job_has_kept_every_output_once,
    a_failed_job_has_kept_its_results_and_its_failures,
];

/// Sends each item on, and fails the one with the number 7 if its job asks for that.
fn worker() -> impl Worker {
    Each((), async |(), item: RangeItem, _| {
        if item.number == 7 && item.params.contains_key("fails") {
            Err("the page is torn").or_fail()?;
        }
        Ok(Reply::send(item))
    })
}

async fn start(fixture: &Fixture) -> System {
    let settings = Settings {
        output: None,
        ..fixture.settings("items")
    };
    let stack = fixture.stack().worker(settings, worker());
    fixture.start(stack).await
}

/// Returns a job that keeps its outputs.
fn keeping(job: NewJob) -> NewJob {
    let task = job.task.map(|task| contract::rest::JobTask {
        target_pipe: None,
        ..task
    });
    NewJob {
        task,
        outputs: Some(Outputs::Keep),
        ..job
    }
}

/// Returns the kept outputs of the job `j`, and checks that their numbers rise.
async fn outputs(system: &System, query: &str) -> Vec<KeptOutput> {
    let response = system.get(&format!("/jobs/j/outputs{query}")).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let lines = response.body.lines();
    let outputs: Vec<KeptOutput> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(outputs.is_sorted_by_key(|output| output.offset));
    outputs
}

fn numbers(outputs: &[KeptOutput]) -> BTreeSet<u64> {
    let number = |output: &KeptOutput| output.output.as_ref().unwrap()["number"].as_u64();
    outputs.iter().map(|it| number(it).unwrap()).collect()
}

async fn a_completed_job_has_kept_every_output_once(fixture: Fixture) {
    let system = start(&fixture).await;
    let job = keeping(fixture.range(300));
    system.client.put("j", &job).await.unwrap();
    system.completed("j", 300).await;
    // Without a pause: Completed means that all is kept.
    let kept = outputs(&system, "").await;
    assert_eq!(kept.len(), 300);
    assert_eq!(numbers(&kept), (1..=300).collect());
    let tasks: BTreeSet<&str> = kept.iter().map(|output| output.task.as_str()).collect();
    assert_eq!(tasks.len(), 300);
    let offsets: Vec<u64> = kept.iter().map(|output| output.offset).collect();
    assert_eq!(offsets, (0..300).collect::<Vec<_>>());
    let some = outputs(&system, "?offset=120&limit=50&status=done").await;
    assert_eq!(some, kept[120..170]);
    assert!(outputs(&system, "?status=failed").await.is_empty());
    let state = system.job("j").await.outputs.unwrap();
    assert_eq!((state.done, state.failed, state.not_kept), (300, 0, 0));
    system.drained(&[fixture.pipe("kept")]).await;
    system.stop().await;
}

async fn a_failed_job_has_kept_its_results_and_its_failures(fixture: Fixture) {
    let system = start(&fixture).await;
    let mut job = keeping(fixture.range(20));
    job.on_failure = OnFailure::Continue;
    let data = job.task.as_mut().unwrap().task_data.as_mut().unwrap();
    data["taskMessageParams"] = serde_json::json!({"fails": "yes"});
    system.client.put("j", &job).await.unwrap();
    assert_eq!(system.ended("j").await.status, JobStatus::Failed);
    // The job has failed when its worker says so, and its failure may be kept a moment later.
    let kept = wait_for("the failure to be kept", async || {
        let kept = outputs(&system, "").await;
        if kept.len() == 20 {
            Ok(kept)
        } else {
            Err(format!("{kept:?}"))
        }
    })
    .await;
    let (done, failed): (Vec<_>, Vec<_>) = kept
        .into_iter()
        .partition(|output| output.status == OutputStatus::Done);
    assert_eq!(numbers(&done), (1..=20).filter(|n| *n != 7).collect());
    let [failed] = &failed[..] else {
        panic!("{failed:?}")
    };
    let failure = failed.failure.as_ref().unwrap();
    assert_eq!(failure.failure_message.as_deref(), Some("the page is torn"));
    assert_eq!(outputs(&system, "?status=failed").await.len(), 1);
    system.stop().await;
}
