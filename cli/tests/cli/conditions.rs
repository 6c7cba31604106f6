//! `batchwright conditions`: what tasks wait for is listed and shown, and its tasks are sent again
//! or fail.

use harness::wait_for;
use serde_json::Value;

use crate::binary::{Home, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_are_listed_shown_released_and_given_up() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    let at = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    let blocks = async |job: &str, code: &str, until: u32| {
        let steps = format!(
            "steps=[{{\"action\": \"BLOCK\", \"code\": \"{code}\", \"reason\": \"none is free\", \"untilBlock\": {until}, \
             \"policy\": \"constant,delay=1h\"}}]"
        );
        let submit = ["submit", job, "--range", "1-3", "--target-pipe", "none"];
        let items = ["--item-pipe", "worker-simulation-in", "--param", &steps];
        at(&[&submit[..], &items].concat()).await.with(0);
        wait_for("all tasks to wait", async || {
            let listed = at(&["conditions", "list", "--job", job, "-o", "json"]).await;
            let listed = listed.with(0).json();
            match &listed[0] {
                one if one["tasks"] == 3 => Ok(one["key"].as_str().unwrap().to_owned()),
                _ => Err(listed.to_string()),
            }
        })
        .await
    };
    let key = blocks("waits", "LICENCE_IN_USE", 1).await;
    let jobs = at(&["list"]).await.with(0).out;
    assert!(jobs.contains("  Blocked  "), "{jobs}");
    let names = at(&["conditions", "list", "-o", "name"]).await.with(0).out;
    assert_eq!(names, format!("{key}\n"));
    let lines = at(&["conditions", "list", "-o", "ndjson"])
        .await
        .with(0)
        .out;
    let line: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(line["code"], "LICENCE_IN_USE");
    for (form, title) in [("table", "TASKS  AGE  STATE"), ("wide", "LAST RESULT")] {
        let table = at(&["conditions", "list", "-o", form]).await.with(0).out;
        let told = table.contains(title) && table.contains("none is free");
        assert!(told && table.lines().count() == 2, "{table}");
    }
    let other = ["conditions", "list", "--code", "QUOTA_EXCEEDED"];
    assert_eq!(at(&other).await.with(0).out, "");
    let shown = at(&["conditions", "show", &key]).await.with(0).out;
    assert!(shown.contains("default:waits (3)\n"), "{shown}");
    let released = at(&["conditions", "release", &key]).await.with(0).out;
    assert_eq!(
        released,
        format!("{key} (LICENCE_IN_USE, 3 tasks) is being released\n")
    );
    at(&["watch", "waits"]).await.with(0);

    let key = blocks("fails", "SYSTEM_NOT_AVAILABLE", 9).await;
    let unknown = "0".repeat(32);
    let failed = at(&["conditions", "fail", "--yes", &unknown, &key]).await;
    let failed = failed.with(1);
    assert!(failed.err.contains("There is no condition"), "{failed:?}");
    assert!(failed.out.contains("is given up"), "{failed:?}");
    let watched = at(&["watch", "fails"]).await;
    assert_ne!(watched.code, 0, "{watched:?}");
    let told = at(&["get", "fails"]).await.out;
    assert!(told.contains("SYSTEM_NOT_AVAILABLE"), "{told}");
    assert_eq!(up.stop().await, Some(0));
}
