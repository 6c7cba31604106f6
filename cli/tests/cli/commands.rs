//! The commands: their output and exit codes. Also that `kill -9` neither loses nor duplicates
//! results.

use std::collections::BTreeSet;
use std::net::TcpListener;

use batchwright::advanced::EXAMPLE_OUT_PIPE;
use contract::rest::{Job, NewJob};
use contract::{BatchTask, JobStatus, TaskData, TaskMessage};
use framework::broker::Broker;
use framework::broker::embedded::Embedded;
use harness::{free_port, wait_for};
use serde_json::json;

use crate::binary::{Home, run, run_with_input};
use crate::tolerated::tells_tolerated_failures;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_continues_where_it_was_and_counts_exactly() {
    const LINES: usize = 6_000;
    let home = Home::new();
    home.write("lines.txt", &"some words to count\n".repeat(LINES));
    let mut up = home.up().await;
    let definition = json!({"files": ["lines.txt"], "linesPerItem": 1}).to_string();
    let submitted = run(&[
        "submit",
        "j",
        "--url",
        &home.url(),
        "--batch-type",
        "lines",
        "--definition",
        &definition,
    ])
    .await;
    assert_eq!(submitted.with(0).out, "j created\n");

    // The process is killed once during the split and once in the middle of the items.
    let client = home.client();
    let reached = async |items: i64| {
        wait_for("items", async || match client.get("j").await {
            Ok(Job {
                completed_items, ..
            }) if completed_items >= items => Ok(completed_items),
            state => Err(format!("{state:?}")),
        })
        .await
    };
    let kill_twice = async {
        for items in [1, 1_500] {
            let before = reached(items).await;
            up.kill();
            assert!(
                before < i64::try_from(LINES).unwrap(),
                "the job ended before the process was killed"
            );
            up = home.up().await;
            assert!(client.get("j").await.unwrap().completed_items >= before);
        }
    };
    let url = home.url();
    let watch = ["watch", "j", "--url", &url, "-o", "json"];
    let (watched, ()) = tokio::join!(run(&watch), kill_twice);
    let watched = watched.with(0);
    assert!(
        watched.err.contains("again in ") && watched.err.contains("connected"),
        "{}",
        watched.err
    );
    let job: Job = serde_json::from_value(watched.json()).unwrap();
    assert_eq!(
        (job.status, job.failed_tasks, job.percentage_complete),
        (JobStatus::Completed, 0, 100.0)
    );
    assert_eq!(job.completed_items, i64::try_from(LINES).unwrap());
    assert_eq!(up.stop().await, Some(0));

    // Each item has its output, at least once. Copies of items that are done may still wait: a
    // split that was interrupted sends all its items again, and they are dropped one by one.
    let broker = Embedded::open(&home.data()).await.unwrap();
    let outputs = task_ids(&broker, EXAMPLE_OUT_PIPE).await;
    assert_eq!(outputs.len(), LINES);
    assert!(
        task_ids(&broker, "worker-example-in")
            .await
            .is_subset(&outputs)
    );
    broker.close().await;
}

/// Takes all messages of a pipe. Returns the ids of their tasks.
async fn task_ids(broker: &Embedded, pipe: &str) -> BTreeSet<String> {
    let depth = broker.depth(pipe).await.unwrap();
    let mut consumer = broker.consume(pipe, 1000).await.unwrap();
    let mut ids = BTreeSet::new();
    for _ in 0..depth {
        let delivery = consumer.next().await.unwrap();
        ids.insert(TaskMessage::decode(&delivery.body()).unwrap().task_id);
        delivery.ack();
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_process_on_a_folder_names_the_folder_and_the_owner() {
    let home = Home::new();
    let up = home.up().await;
    let data = home.data();
    let data = data.to_str().unwrap();
    let second = run(&["up", "--data", data, "--listen", "127.0.0.1:0"])
        .await
        .with(1);
    assert!(
        second.err.contains(data) && second.err.contains(&format!("process {}", up.0.id())),
        "{second:?}"
    );
    // The first process still works.
    assert!(
        home.client()
            .get("unknown")
            .await
            .unwrap_err()
            .to_string()
            .contains("404")
    );
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submit_get_watch_and_cancel_report_by_text_json_and_exit_code() {
    let home = Home::new();
    home.write("a.txt", "one two\nthree\n");
    let up = home.up().await;
    let url = home.url();
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;

    let lines = [
        "--batch-type",
        "lines",
        "--definition",
        r#"{"files":["a.txt"],"linesPerItem":1}"#,
    ];
    let done = command(
        &[
            &[
                "submit",
                "done",
                "--watch",
                "-o",
                "json",
                "--name",
                "Two lines",
                "--label",
                "a=b",
            ],
            &lines[..],
        ]
        .concat(),
    )
    .await;
    let job = done.with(0).json();
    assert_eq!(
        (&job["status"], &job["completedItems"], &job["name"]),
        (&json!("Completed"), &json!(2), &json!("Two lines"))
    );
    assert_eq!(job["labels"], json!({"a": "b"}));
    let shown = command(&["get", "done"]).await.with(0).out;
    let begins = "done: Completed, 100.00 %, 2 items\n  name            Two lines\n";
    assert!(shown.starts_with(begins), "{shown}");
    assert_eq!(
        command(&["watch", "done", "-o", "json"])
            .await
            .with(0)
            .json(),
        job
    );

    let bad = command(&[
        "submit",
        "failed",
        "--batch-type",
        "lines",
        "--definition",
        r#"{"files":["nothing"]}"#,
        "--delay",
        "1",
        "--watch",
    ])
    .await
    .with(10);
    assert!(
        bad.out
            .contains("failed: Failed, 0.00 %, 0 items, 1 failed"),
        "{bad:?}"
    );
    assert!(bad.out.contains("there is no file \"nothing\""), "{bad:?}");
    assert_eq!(
        command(&["get", "failed", "-o", "json"])
            .await
            .with(10)
            .json()["failedTasks"],
        1
    );

    lists_and_groups_failures(&url).await;
    tells_tolerated_failures(&url).await;

    let waiting = [
        "submit",
        "waiting",
        "-o",
        "json",
        "--task-pipe",
        "nobody",
        "--batch-type",
        "range",
        "--definition",
        "1-5",
    ];
    assert_eq!(
        command(&waiting).await.with(0).json(),
        json!({"id": "waiting", "created": true})
    );
    assert_eq!(
        command(&waiting).await.with(0).json(),
        json!({"id": "waiting", "created": false})
    );
    assert_eq!(
        command(&["get", "waiting", "-o", "json"])
            .await
            .with(0)
            .json()["status"],
        "Waiting"
    );
    assert_eq!(
        command(&["pause", "waiting", "-o", "json"])
            .await
            .with(0)
            .json()["status"],
        "Paused"
    );
    assert_eq!(
        command(&["resume", "waiting", "-o", "json"])
            .await
            .with(0)
            .json()["status"],
        "Active"
    );
    assert_eq!(
        command(&["cancel", "waiting", "-o", "json"])
            .await
            .with(0)
            .json()["status"],
        "Cancelled"
    );
    let shown = command(&["get", "waiting"]).await.with(11).out;
    let begins = "waiting: Cancelled, 0.00 %, 0 items\n";
    assert!(shown.starts_with(begins), "{shown}");
    command(&["watch", "waiting"]).await.with(11);

    // From a file and from standard input, in a partition.
    let batch = BatchTask {
        batch_type: Some("lines".into()),
        batch_definition: Some(lines[3].into()),
        ..BatchTask::default()
    };
    let whole = json!({"task": {
        "taskClassifier": BatchTask::CLASSIFIER, "taskApiVersion": 1, "taskPipe": "worker-batch-in", "targetPipe": EXAMPLE_OUT_PIPE,
        "taskData": BatchTask { target_pipe: Some("worker-example-in".into()), ..batch },
    }});
    assert!(serde_json::from_value::<NewJob>(whole.clone()).is_ok());
    let file = home.folder.path().join("job.json");
    std::fs::write(&file, whole.to_string()).unwrap();
    command(&[
        "submit",
        "j",
        "-p",
        "acme",
        "--watch",
        "--file",
        file.to_str().unwrap(),
    ])
    .await
    .with(0);
    let piped = [
        "submit", "k", "-p", "acme", "--watch", "--url", &url, "--file", "-",
    ];
    run_with_input(&piped, &whole.to_string()).await.with(0);

    for (arguments, code, text) in [
        (
            &["get", "unknown"][..],
            1,
            "job_id {unknown} not found (HTTP 404, JOB_NOT_FOUND)",
        ),
        (
            &["get", "j", "-o", "json"],
            1,
            r#"{"message":"ERROR: job_id {j} not found","code":"JOB_NOT_FOUND","#,
        ),
        (&["watch", "unknown"], 1, "job_id {unknown} not found"),
        (
            &["cancel", "done"],
            1,
            "cannot be cancelled as it has a status of Completed",
        ),
        (
            &["pause", "done"],
            1,
            "cannot be paused as it has a status of {Completed}",
        ),
        (
            &["resume", "done"],
            1,
            "cannot be resumed as it has a status of {Completed}",
        ),
        (
            &[
                "submit",
                "a:b",
                "--batch-type",
                "range",
                "--definition",
                "1-2",
            ],
            1,
            "invalid characters",
        ),
        (
            &[
                "submit",
                "done",
                "--batch-type",
                "range",
                "--definition",
                "1-2",
            ],
            1,
            "Job already exists (HTTP 403, JOB_EXISTS)",
        ),
        (&["submit", "x"], 1, "--file"),
        (
            &["submit", "x", "--file", "/nowhere.json"],
            1,
            "cannot read /nowhere.json",
        ),
        (
            &["submit", "x", "--file", "Cargo.toml"],
            1,
            "Cargo.toml is not a valid job",
        ),
        (
            &[
                "submit",
                "x",
                "--label",
                "noValue",
                "--batch-type",
                "range",
                "--definition",
                "1-2",
            ],
            1,
            "\"noValue\" is not a label",
        ),
        (&["submit", "x", "--batch-type", "range"], 2, "--definition"),
    ] {
        let ended = command(arguments).await.with(code);
        assert!(
            ended.err.contains(text) && ended.out.is_empty(),
            "{arguments:?}: {ended:?}"
        );
    }
    assert_eq!(up.stop().await, Some(0));
}

/// Looks at the failure of the job `failed`, whose file is missing.
async fn lists_and_groups_failures(url: &str) {
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", url]].concat()).await;
    let listed = command(&["failures", "failed"]).await.with(0).out;
    let expected = "\
TASK  ITEM                         KIND              MESSAGE
0     lines {\"files\":[\"nothing\"]}  RESULT_EXCEPTION  batch definition of lines: there is no file \"nothing\"
";
    assert_eq!(listed, expected);
    let wide = command(&["failures", "failed", "-o", "wide"])
        .await
        .with(0)
        .out;
    for shown in [
        "WORKER        PROCESS",
        "worker-batch  ",
        "ms  {\"batchDefinition\":\"",
    ] {
        assert!(wide.contains(shown), "{wide}");
    }
    let groups = command(&["failures", "failed", "--group"])
        .await
        .with(0)
        .out;
    let expected = "\
COUNT  KIND              EXAMPLE                      MESSAGE
    1  RESULT_EXCEPTION  lines {\"files\":[\"nothing\"]}  batch definition of lines: there is no file \"nothing\"
";
    assert_eq!(groups, expected);
    let line = command(&["failures", "failed", "-o", "json"]);
    assert_eq!(
        line.await.with(0).json()[0]["label"],
        r#"lines {"files":["nothing"]}"#
    );
    let groups = command(&["failures", "failed", "--group", "-o", "json"]);
    let groups = groups.await.with(0).json();
    assert_eq!(
        (&groups["failedTasks"], &groups["groups"][0]["count"]),
        (&json!(1), &json!(1))
    );
    command(&["failures", "unknown"]).await.with(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_command_fails_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, below_a_file) = (path("data"), path("file/data"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let amqp = "amqp://127.0.0.1:1/%2f";
    let up = ["up", "--data", &data, "--listen", "127.0.0.1:0"];
    let with = |more: &[&'static str]| [&up[..], more].concat();
    let service = format!("http://127.0.0.1:{}/job-service/v1", free_port());
    for (arguments, code, texts) in [
        (
            with(&["--database", "mysql://db/jobs"]),
            1,
            &["mysql://db/jobs", "postgres://"][..],
        ),
        (
            with(&["--broker", "http://rabbit"]),
            1,
            &["the broker at the given URL", "Invalid AMQP scheme: http"],
        ),
        (
            vec!["up", "--data", &data, "--listen", &taken],
            1,
            &[taken.as_str(), "choose another address"],
        ),
        (
            vec!["up", "--data", &below_a_file],
            1,
            &[below_a_file.as_str()],
        ),
        (with(&["--databse", "x"]), 2, &["--databse", "--database"]),
        (
            with(&["--route", "detour"]),
            2,
            &["--route", "direct or reroute"],
        ),
        (with(&["--max-parts", "9"]), 2, &["--max-parts"]),
        (vec!["up", "--listen", "8080"], 2, &["--listen", "8080"]),
        (
            vec!["run", "tracker", "--broker", amqp],
            2,
            &["\"tracker\" is not a role", "tracking-worker"],
        ),
        (vec!["run", "batch-worker"], 1, &["--broker"]),
        (
            vec!["run", "tracking-worker", "--broker", amqp],
            1,
            &["--database"],
        ),
        (
            vec!["get", "j", "--url", &service],
            1,
            &[service.as_str(), "cannot reach the job service"],
        ),
        (
            vec!["outputs", "j", "--url", &service],
            1,
            &["cannot reach the job service"],
        ),
        (vec!["cancel", "j", "--url", "no url"], 1, &["no url"]),
        (vec!["upp"], 2, &["upp"]),
    ] {
        let ended = run(&arguments).await.with(code);
        assert!(
            texts.iter().all(|text| ended.err.contains(text)) && ended.out.is_empty(),
            "{arguments:?}: {ended:?}"
        );
        assert!(!ended.err.contains("panicked"), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_counts_the_words_of_a_folder_correctly() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..40 {
        std::fs::create_dir_all(folder.path().join(format!("{}", number % 7))).unwrap();
        let text = format!("file {number}\n{}", "some more words\n".repeat(number * 5));
        std::fs::write(
            folder.path().join(format!("{}/{number}.txt", number % 7)),
            text,
        )
        .unwrap();
    }
    let demo = run(&["demo", folder.path().to_str().unwrap()])
        .await
        .with(0);
    assert!(
        demo.out.contains("\nthe files with the most words:\n"),
        "{demo:?}"
    );
    assert!(demo.out.contains("\n      3900  words\n"), "{demo:?}");
    assert!(demo.out.contains("\n       587  4/39.txt\n"), "{demo:?}");
    assert!(
        demo.out.lines().all(|line| line.chars().count() <= 80),
        "{demo:?}"
    );
    let nothing = run(&["demo", "/nowhere/at/all"]).await.with(1);
    assert!(nothing.err.contains("/nowhere/at/all"), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_count_and_bulk_commands_follow_their_conditions() {
    let home = Home::new();
    let up = home.up().await;
    for (job, team) in [("b", "search"), ("A", "search"), ("c", "mail")] {
        let label = format!("team={team}");
        let job = [
            "submit",
            job,
            "--url",
            &home.url(),
            "--batch-type",
            "range",
            "--definition",
            "1-2",
            "--item-pipe",
            "nobody-in",
        ];
        run(&[&job[..], &["--label", &label]].concat())
            .await
            .with(0);
    }
    let url = home.url();
    let ids = async |arguments: &[&str]| -> Vec<String> {
        let listed = run(&[&["list", "--url", &url, "-o", "json"], arguments].concat())
            .await
            .with(0)
            .json();
        listed
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&["--sort", "jobId:asc"]).await, ["A", "b", "c"]);
    assert_eq!(
        ids(&[
            "--filter",
            "labels.team==search;id!=x",
            "--sort",
            "jobId:desc"
        ])
        .await,
        ["b", "A"]
    );
    assert_eq!(ids(&["--label-exist", "team", "--limit", "1"]).await, ["c"]);
    let lines = async |form: &str| {
        let list = ["list", "--url", &url, "--sort", "jobId:asc", "-o", form];
        let out = run(&list).await.with(0).out;
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines("name").await, ["A", "b", "c"]);
    let objects = lines("ndjson").await;
    assert_eq!(objects.len(), 3);
    assert_eq!(serde_json::from_str::<Job>(&objects[1]).unwrap().id, "b");
    for (form, titles) in [("table", "ID  NAME  STATUS"), ("wide", "ITEMS  FAILED")] {
        let table = lines(form).await;
        assert!(table[0].contains(titles) && table.len() == 4, "{table:?}");
        assert!(table[1].ends_with("  team=search"), "{table:?}");
    }
    let count = run(&[
        "count",
        "--url",
        &url,
        "--filter",
        "labels.team=in=(search,x)",
    ])
    .await
    .with(0);
    assert_eq!(count.out, "2\n");
    let wrong = run(&["delete", "--url", &url, "--yes", "--filter", "colour==red"])
        .await
        .with(1);
    assert!(
        wrong.err.contains("colour (HTTP 400, INVALID_FILTER)"),
        "{wrong:?}"
    );
    let wrong = run(&["count", "--url", &url, "--filter", "colour==red"])
        .await
        .with(1);
    assert!(
        wrong
            .err
            .contains("Unsupported filter key specified: colour"),
        "{wrong:?}"
    );

    let bulk = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    for command in ["cancel", "delete"] {
        for (arguments, reason) in [
            (&[][..], "required arguments were not provided"),
            (&["--starts-with", ""], "jobIdStartsWith is empty"),
            (&["--label-exist", " , "], "labelExist is empty"),
            (&["--all", "--filter", "id==b"], "cannot be used with"),
            (&["b", "--all"], "cannot be used with"),
        ] {
            let refused = bulk(&[&[command], arguments].concat()).await.with(2);
            assert!(refused.err.contains(reason), "{refused:?}");
        }
    }
    assert_eq!(ids(&["--status-type", "NotFinished"]).await.len(), 3);
    let cancelled = bulk(&["cancel", "--filter", "labels.team==search"]).await;
    assert_eq!(cancelled.with(0).out, "2 jobs cancelled\n");
    let deleted = bulk(&[
        "delete",
        "--label-exist",
        "team",
        "--status-type",
        "Inactive",
    ])
    .await;
    assert_eq!(deleted.with(0).out, "2 jobs deleted\n");
    let some = bulk(&["delete", "unknown", "c"]).await.with(1);
    assert_eq!(some.out, "1 job deleted\n");
    assert!(some.err.contains("job_id {unknown} not found"), "{some:?}");
    let deleted = bulk(&["delete", "--all", "-o", "json"]).await;
    assert_eq!(deleted.with(0).json(), json!({"jobsDeleted": 0}));
    assert_eq!(up.stop().await, Some(0));
}
