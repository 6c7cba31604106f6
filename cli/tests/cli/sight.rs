//! The commands that show what goes on beside the jobs: `workers` and `pipes`.

use harness::wait_for;
use serde_json::Value;

use crate::binary::{Home, run, run_with_input};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_pipes_are_listed_for_people_and_programs() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    let roles = [
        "job-service",
        "worker-batch",
        "worker-example",
        "worker-jobtracking",
        "worker-simulation",
    ];
    wait_for("all workers", async || {
        let names = command(&["workers", "-o", "name"]).await.with(0).out;
        let all = roles.iter().all(|role| names.lines().any(|it| it == *role));
        all.then_some(()).ok_or(names)
    })
    .await;
    let table = command(&["workers"]).await.with(0).out;
    let mut lines = table.lines();
    let titles: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        titles,
        ["WORKER", "SLOTS", "SEEN", "INPUT", "PROCESS", "LONGEST"]
    );
    let batch = lines.find(|line| line.starts_with("worker-batch")).unwrap();
    assert!(batch.contains("0/"), "{table}");
    let workers = command(&["workers", "-o", "json"]).await.with(0).json();
    let processes = workers.as_array().unwrap().iter().map(|it| &it["process"]);
    assert!(processes.clone().all(|it| *it == up.0.id()), "{workers}");

    let put = ["put", "words", "--url", &url, "--classifier", "Number"];
    run_with_input(&put, "{\"n\":1}\n{\"n\":2}\n").await.with(0);
    let table = command(&["pipes"]).await.with(0).out;
    let titles: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        titles,
        [
            "PIPE",
            "ITEMS",
            "WORK",
            "MESSAGES",
            "CONSUMERS",
            "IN/S",
            "OUT/S",
            "ASIDE",
            "WORKERS"
        ]
    );
    let words = table.lines().find(|it| it.starts_with("words ")).unwrap();
    let cells: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(cells[..5], ["words", "2", "-", "2", "0"]);
    for line in command(&["pipes", "-o", "ndjson"])
        .await
        .with(0)
        .out
        .lines()
    {
        serde_json::from_str::<Value>(line).unwrap();
    }
    let shown = command(&["pipes", "words", "--peek", "1"]).await.with(0);
    assert!(
        shown
            .out
            .starts_with("PIPE         words\nITEMS        2\nWORK         -\nMESSAGES     2\n"),
        "{shown:?}"
    );
    let message: Value = serde_json::from_str(shown.out.lines().last().unwrap()).unwrap();
    assert_eq!(message["taskData"]["n"], 1);
    let one = command(&["pipes", "words", "-o", "json"]).await.with(0);
    assert_eq!(one.json()["messages"], 2);
    let unknown = command(&["pipes", "nowhere"]).await.with(1);
    assert!(unknown.err.contains("There is no pipe 'nowhere'"));
    let peek = command(&["pipes", "--peek", "1"]).await.with(2);
    assert!(
        peek.err.contains("<PIPE>") || peek.err.contains("[PIPE]"),
        "{peek:?}"
    );
    assert_eq!(up.stop().await, Some(0));
}
