//! The commands that show what goes on: `history`, `watch` of several jobs, `top`, `doctor`, `get
//! --task`, and contexts.

use std::fs;

use harness::wait_for;

use crate::binary::{Home, batchwright, ended, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn person_sees_what_goes_on_and_why_a_job_waits() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    let at = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    for job in ["first", "second"] {
        // The service remarks on jobs without a target pipe, which is no reason to wait.
        let range = [
            "--batch-type",
            "range",
            "--definition",
            "1-5",
            "--target-pipe",
            "none",
        ];
        let submit = [&["submit", job, "--task-pipe", "nobody"][..], &range].concat();
        at(&submit).await.with(0);
    }

    wait_for("the first tasks in their pipe", async || {
        let pipe = at(&["pipes", "nobody", "-o", "json"]).await;
        let both = pipe.out.contains("\"messages\":2,");
        both.then_some(()).ok_or(format!("{pipe:?}"))
    })
    .await;
    let doctor = at(&["doctor", "first"]).await.with(0);
    let lines: Vec<&str> = doctor.out.lines().collect();
    assert!(lines[1].starts_with("ok     job service"), "{doctor:?}");
    let says = |what: &str| lines.iter().any(|line| line.ends_with(what));
    assert!(
        says(
            "first        Waiting; its first task goes to the pipe nobody, and its items go to worker-noop-in"
        ),
        "{doctor:?}"
    );
    assert!(
        says("nobody       nobody reads this pipe: 2 messages wait; the first task of first"),
        "{doctor:?}"
    );
    let all = at(&["doctor"]).await.with(0);
    let whose = "2 messages wait; the first task of second, the first task of first";
    assert!(all.out.contains(whose), "{all:?}");
    let asked = at(&["doctor", "--pipe", "worker-batch-in", "--pipe", "misspelt"]);
    let asked = asked.await.with(0).out;
    assert!(
        asked.contains("0 messages wait for 1 consumer\n"),
        "{asked}"
    );
    assert!(
        asked.contains("misspelt         the pipe does not exist"),
        "{asked}"
    );
    let file = format!("sqlite:{}", home.data().join("jobs.db").display());
    let database = at(&["doctor", "--database", &file]).await.with(0);
    assert!(database.out.contains("SQLite 3."), "{database:?}");
    assert!(!database.out.contains("migrations"), "{database:?}");
    at(&["doctor", "--database", "sqlite:/no/such/file"])
        .await
        .with(1);
    at(&["pause", "first"]).await.with(0);
    let doctor = at(&["doctor", "first", "-o", "json"]).await.with(0).json();
    let mut found = doctor.as_array().unwrap().iter();
    let found = found.find(|it| it["of"] == "first").unwrap().clone();
    assert_eq!(
        (found["of"].as_str(), found["state"].as_str()),
        (Some("first"), Some("note"))
    );
    assert_eq!(
        found["remedy"],
        format!("batchwright resume first --url {url}")
    );
    let nowhere = run(&["doctor", "--url", "http://127.0.0.1:1/job-service/v1"]);
    let nowhere = nowhere.await.with(1);
    assert!(
        nowhere.out.contains("BROKEN  job service  cannot reach"),
        "{nowhere:?}"
    );
    let unknown = at(&["doctor", "unknown"]).await.with(1);
    assert!(
        unknown.out.contains("job_id {unknown} not found"),
        "{unknown:?}"
    );

    let page = at(&["top"]).await.with(0);
    assert!(page.out.contains("2 jobs unfinished, 2 in all"), "{page:?}");
    let shown = at(&["top", "--filter", "id==first", "-o", "name"]).await;
    assert_eq!(shown.with(0).out, "first\n");
    at(&["top", "--filter", "nonsense"]).await.with(1);
    let pipes = at(&["top", "--view", "pipes"]).await.with(0);
    assert!(
        pipes.out.lines().any(|it| it.starts_with("nobody ")),
        "{pipes:?}"
    );
    let names = at(&["top", "--view", "workers", "-o", "name"]).await;
    assert!(names.with(0).out.contains("job-service\n"));

    let task = at(&["get", "first", "--task", "0"]).await.with(0);
    assert_eq!(task.out.lines().next(), Some("task 0 of first: Active"));
    at(&["get", "first", "--task", "0.1"]).await.with(1);

    let tree = at(&["tree", "first"]).await.with(0);
    assert!(tree.out.starts_with("first: Paused, 0.00 %"), "{tree:?}");
    let counts = at(&["tasks", "first", "--count", "-o", "json"])
        .await
        .with(0)
        .json();
    assert_eq!(counts["under"], "0");
    at(&["tasks", "first"]).await.with(0);
    let refused = at(&["tasks", "first", "--state", "open"]).await.with(1);
    assert!(
        refused.err.contains("failed, retrying, running"),
        "{refused:?}"
    );
    at(&["tree", "unknown"]).await.with(1);

    at(&["cancel", "first", "second"]).await.with(0);
    let watched = at(&["watch", "first", "second", "-o", "ndjson"])
        .await
        .with(11);
    assert_eq!(watched.out.lines().count(), 2, "{watched:?}");
    at(&["watch", "first", "unknown"]).await.with(1);
    let history = at(&["history", "first"]).await.with(0);
    let rows: Vec<Vec<&str>> = history
        .out
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["AGE", "ROUND", "STATUS", "BY", "WHY"]);
    assert_eq!(rows[1][2..4], ["Waiting", "client"]);
    assert_eq!(
        rows.last().unwrap()[2..6],
        ["Paused", "→", "Cancelled", "client"]
    );
    let history = at(&["history", "first", "-o", "json"]).await.with(0).json();
    assert_eq!(history.as_array().unwrap().len(), rows.len() - 1);
    at(&["history", "unknown"]).await.with(1);
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test]
async fn context_that_is_named_comes_before_variables_and_another_one_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("contexts.yaml");
    // Nobody listens at either; the error names the URL.
    let contexts = "current: a\ncontexts:\n  a: {url: 'http://127.0.0.1:1/a'}\n  b: {url: 'http://127.0.0.1:1/b'}\n";
    fs::write(&file, contexts).unwrap();
    for (arguments, variables, expected) in [
        (&["count"][..], &[][..], "http://127.0.0.1:1/a"),
        (
            &["count"],
            &[("BATCHWRIGHT_CONTEXT", "b")],
            "http://127.0.0.1:1/b",
        ),
        (
            &["count"],
            &[("BATCHWRIGHT_URL", "http://127.0.0.1:1/own")],
            "http://127.0.0.1:1/own",
        ),
        (
            &["count", "--context", "b"],
            &[("BATCHWRIGHT_URL", "http://127.0.0.1:1/own")],
            "http://127.0.0.1:1/b",
        ),
    ] {
        let mut command = batchwright(arguments);
        command.env("BATCHWRIGHT_CONTEXTS", &file);
        command.envs(variables.iter().copied());
        let ended = ended(command, "").await.with(1);
        assert!(ended.err.contains(&format!("{expected}:")), "{ended:?}");
    }
    let mut command = batchwright(&["count", "--context", "c"]);
    command.env("BATCHWRIGHT_CONTEXTS", &file);
    let refused = ended(command, "").await.with(2);
    assert!(
        refused.err.ends_with("has no context \"c\"; it has a, b\n"),
        "{refused:?}"
    );
}
