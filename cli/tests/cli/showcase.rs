//! `up --demo`, and the commands of the guide to the simulation worker.

use std::collections::BTreeSet;

use batchwright::client::Client;
use contract::JobStatus;
use contract::rest::{Job, TaskEntry};
use harness::wait_for;

use crate::binary::{Home, run, run_script};
use crate::readme::commands_after;

const GUIDE: &str = include_str!("../../../docs/simulate.md");

/// Returns what a person sees of a job: its status, and what is special about it.
fn shown(job: &Job) -> Vec<String> {
    let mut shown = vec![job.status.name().to_owned()];
    if job.status == JobStatus::Completed {
        shown.extend((job.failed_tasks > 0).then(|| "tolerates failures".to_owned()));
        let kept = job.outputs.as_ref().filter(|outputs| outputs.done > 0);
        shown.extend(kept.map(|_| "keeps outputs".to_owned()));
        shown.extend((job.failed_attempts > 0).then(|| "ran again".to_owned()));
    }
    shown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomer_finds_the_failed_job_of_the_demo_sees_why_and_retries_it() {
    let home = Home::new();
    let up = home.up_with(&["--demo"]).await;
    let told = std::fs::read_to_string(home.folder.path().join("out")).unwrap();
    let page = format!("demo        http://{}/partitions/demo/jobs", home.listen);
    assert!(told.lines().any(|line| line == page), "{told}");

    let client = Client::new(&home.url(), "demo");
    let all = [
        "Active",
        "Cancelled",
        "Completed",
        "Failed",
        "Paused",
        "Waiting",
        "keeps outputs",
        "ran again",
        "tolerates failures",
    ];
    let all = BTreeSet::from(all.map(str::to_owned));
    let mut seen = BTreeSet::new();
    wait_for("jobs of every status", async || {
        let jobs = client.list(&[]).await.map_err(|it| it.to_string())?;
        seen.extend(jobs.iter().flat_map(shown));
        (seen == all).then_some(()).ok_or(format!("{seen:?}"))
    })
    .await;
    // Of a tree, the batches below the first one, until they are done.
    let is_split =
        |entry: &TaskEntry| matches!(entry, TaskEntry::Task(task) if task.subtasks.is_some());
    wait_for("a batch below the first one", async || {
        let tasks = client.tasks("crawl-site-1", &[]).await;
        let tasks = tasks.map_err(|it| it.to_string())?.tasks;
        let tree = client.get("crawl-site-1").await;
        let has_ended = tree.map_err(|it| it.to_string())?.status.is_finished();
        let is_shown = has_ended || tasks.iter().any(is_split);
        is_shown.then_some(()).ok_or(format!("{tasks:?}"))
    })
    .await;

    let url = home.url();
    let of_demo = ["-p", "demo", "--url", &url];
    let command = async |arguments: &[&str]| run(&[arguments, &of_demo].concat()).await;
    let groups = command(&["failures", "send-invoices-1", "--group", "-o", "ndjson"]);
    let groups = groups.await.with(0).out;
    assert_eq!(groups.lines().count(), 3, "{groups}");
    assert!(groups.contains("the customer has no e-mail address"));
    command(&["retry", "send-invoices-1"]).await.with(0);
    command(&["watch", "send-invoices-1"]).await.with(0);

    client.delete("crawl-site-1").await.unwrap();
    assert_eq!(up.stop().await, Some(0));
    let log = std::fs::read_to_string(home.folder.path().join("err")).unwrap();
    assert!(!log.contains("the demo cannot"), "{log}");
    // Its running tasks ended with it, and lacked nothing.
    assert!(!log.contains("dependencies are unavailable"), "{log}");
    let _up = home.up_with(&["--demo"]).await;
    let jobs = wait_for("the job of the last kind to be created again", async || {
        let jobs = client.list(&[("limit", "100".to_owned())]).await;
        let jobs = jobs.map_err(|it| it.to_string())?;
        let ids: BTreeSet<String> = jobs.into_iter().map(|job| job.id).collect();
        let is_back = ids.iter().any(|id| id.starts_with("crawl-site"));
        is_back.then_some(ids.clone()).ok_or(format!("{ids:?}"))
    })
    .await;
    // Only jobs that follow at once may have a successor by now.
    let follows =
        |id: &&String| id.starts_with("import-products") || id.starts_with("report-sales");
    let others: Vec<&String> = jobs.iter().filter(|id| !follows(id)).collect();
    assert_eq!(others.len(), 7, "{jobs:?}");
    assert!(others.iter().all(|id| id.ends_with("-1")), "{jobs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_the_guide_to_simulation_end_well() {
    let home = Home::new();
    let _up = home.up().await;
    let (_, own) = GUIDE.split_once("## Jobs of your own").unwrap();
    for sentence in ["are simulated tasks", "can have a name and steps"] {
        run_script(commands_after(own, sentence), &home)
            .await
            .with(0);
    }
    let client = home.client();
    let simulated = client.get("simulated").await.unwrap();
    assert_eq!(simulated.items.done, 1000);
    assert_eq!(client.get("mixed").await.unwrap().failed_attempts, 1);
}
