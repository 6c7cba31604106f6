//! Work that does not move is told by name: in the log, in the metrics and by the job itself.

use std::fs::read_to_string;

use harness::{HttpClient, wait_for};

use crate::binary::{Home, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_tasks_jobs_that_do_not_move_and_old_conditions_are_told_by_name_everywhere() {
    let home = Home::new();
    let limits = [
        "--stuck-task",
        "1",
        "--stuck-job",
        "2",
        "--old-condition",
        "1",
    ];
    let up = home.up_with(&limits).await;
    let url = home.url();
    for (job, steps) in [
        ("hangs", r#"[{"action": "SLEEP", "durationMs": 600000}]"#),
        (
            "waits",
            r#"[{"action": "BLOCK", "code": "LICENCE_IN_USE", "reason": "none is free", "policy": "constant,delay=1h"}]"#,
        ),
    ] {
        let steps = format!("steps={steps}");
        let submit = [
            "submit",
            job,
            "--range",
            "1-1",
            "--url",
            &url,
            "--target-pipe",
            "none",
        ];
        let items = ["--item-pipe", "worker-simulation-in", "--param", &steps];
        run(&[&submit[..], &items].concat()).await.with(0);
    }
    let log = home.folder.path().join("err");
    wait_for("all to be in the log", async || {
        let log = read_to_string(&log).unwrap();
        let tells = |what: &str, name: &str| {
            log.lines()
                .any(|line| line.contains(what) && line.contains(name))
        };
        let is_all = tells("a task has been running for long", "hangs")
            && tells("a job does not move", "default:hangs")
            && tells(
                "tasks have waited for a condition for long",
                "LICENCE_IN_USE",
            );
        if is_all { Ok(()) } else { Err(log) }
    })
    .await;
    let client = home.client();
    wait_for("the notes of the jobs", async || {
        let hangs = client.get("hangs").await.unwrap().notes;
        let waits = client.get("waits").await.unwrap().notes;
        let says = |notes: &[String], what: &str| notes.iter().any(|note| note.contains(what));
        let is_all = says(&hangs, "has been running for")
            && says(&hangs, "Nothing has been reported of the job for")
            && says(&waits, "Tasks have waited for the condition LICENCE_IN_USE");
        if is_all {
            assert!(!says(&waits, "Nothing has been reported"), "{waits:?}");
            return Ok(());
        }
        Err(format!("{hangs:?} {waits:?}"))
    })
    .await;
    let http = HttpClient::new(format!("http://{}", home.listen));
    wait_for("the metrics", async || {
        let metrics = http.get("/metrics").await.is(200).body;
        let value = |name: &str| {
            let line = metrics.lines().find(|line| line.starts_with(name))?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        let told = [
            value("batchwright_stuck_tasks{worker=\"worker-simulation\"} "),
            value("batchwright_stuck_jobs "),
            value("batchwright_oldest_condition_seconds ").map(|age| age.min(1.0).ceil()),
        ];
        if told == [Some(1.0); 3] {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    })
    .await;
    drop(up);
}
