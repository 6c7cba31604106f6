//! `batchwright events`: what happens to all jobs, across a `kill -9` of the job service.

use std::fs::File;
use std::process::Stdio;

use harness::{in_time, wait_for};
use serde_json::Value;

use crate::binary::{Home, batchwright, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_on_behind_the_last_one_when_the_service_was_killed() {
    let home = Home::new();
    let mut up = home.up().await;
    let url = home.url();
    let at = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    let submit = async |job: &str| {
        let range = ["--batch-type", "range", "--definition", "1-5"];
        let submit = [&["submit", job, "--task-pipe", "nobody"][..], &range].concat();
        at(&submit).await.with(0);
    };
    submit("first").await;
    let seen = home.folder.path().join("seen");
    let arguments = ["events", "--since", "0", "-o", "ndjson", "--limit", "3"];
    let mut follow = batchwright(&[&arguments[..], &["--url", &url]].concat());
    follow.stdout(File::create(&seen).unwrap());
    let mut follow = follow.stderr(Stdio::null()).spawn().unwrap();
    let seen = || -> Vec<Value> {
        let text = std::fs::read_to_string(&seen).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    wait_for("the first event", async || match seen().len() {
        1 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    up.kill();
    let up = home.up().await;
    at(&["pause", "first"]).await.with(0);
    at(&["delete", "first", "--yes"]).await.with(0);
    let ended = tokio::task::spawn_blocking(move || follow.wait().unwrap());
    let ended = in_time("the command to end", ended).await.unwrap();
    assert!(ended.success());
    let kinds: Vec<Value> = seen().iter().map(|event| event["event"].clone()).collect();
    assert_eq!(kinds, ["created", "status", "deleted"]);

    let all = ["events", "--since", "PT1H", "--all-partitions", "--limit"];
    let lines = at(&[&all[..], &["3"]].concat()).await.with(0).out;
    let lines: Vec<&str> = lines.lines().collect();
    assert!(
        lines[0].ends_with("UTC  default/first  created, Waiting"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("  default/first  Waiting → Paused (client: "),
        "{lines:?}"
    );
    assert!(
        lines[2].ends_with("  default/first  deleted, was Paused (client: deleted)"),
        "{lines:?}"
    );
    let refused = at(&["events", "--since", "yesterday"]).await.with(1);
    assert!(refused.err.contains("'since': 'yesterday'"), "{refused:?}");
    assert_eq!(up.stop().await, Some(0));
}
