//! The command worker: commands that fail, hang, print too much, leave children behind or are
//! refused.

use std::path::Path;

use contract::JobStatus;
use contract::rest::Job;
use harness::wait_for;
use serde_json::{Value, json};

use crate::binary::{Ended, Home, run, run_script, run_with_input};
use crate::readme::commands_after;

const GUIDE: &str = include_str!("../../../docs/commands.md");

const COMMANDS: &str = r#"
cat: [cat, --, "{item}"]
upper: {run: [tr, a-z, A-Z], item: stdin}
environment: {run: [sh, -c, 'env | sort; pwd; ls -A', --, "{item}"], environment: {LANG: C.UTF-8}}
undashed: [echo, "{item}"]
wrong: [sh, -c, 'echo to $1 >&2; echo "no such customer" >&2; exit 3', --, "{item}"]
hangs: {run: [sh, -c, 'trap "" TERM; while :; do sleep 1; done', --, "{item}"], timeLimit: 1}
floods: {run: [sh, -c, 'yes >&2 & yes', --, "{item}"], maxOutput: 1000}
leaves: [sh, -c, 'setsid sleep 1234 & echo $!; echo x > file', --, "{item}"]
hungry: {run: [dd, if=/dev/zero, of=/dev/null, bs=200M, count=1], item: none, memory: 64}
waits: [sh, -c, 'setsid sleep 4321 & echo $! > "$1.new"; mv "$1.new" "$1"; exec sleep 1000', --, "{item}"]
later: {run: [sh, -c, 'test -e "$1" && exit; touch "$1"; exit 75', --, "{item}"], retryOn: [75]}
"#;

/// A system with these commands.
async fn system(home: &Home) -> crate::binary::Up {
    home.write("commands.yaml", COMMANDS);
    let file = home.folder.path().join("root/commands.yaml");
    home.up_with(&[
        "--commands",
        file.to_str().unwrap(),
        "--status-interval",
        "1",
    ])
    .await
}

async fn command(home: &Home, arguments: &[&str]) -> Ended {
    run(&[arguments, &["--url", &home.url()]].concat()).await
}

/// Submits a job, waits for its end and returns it with its outputs and its failures.
async fn done(home: &Home, job: &str, arguments: &[&str]) -> (Job, Vec<Value>, Vec<String>) {
    let submit = [
        &["submit", job, "--outputs", "keep", "--continue-on-failure"],
        arguments,
    ]
    .concat();
    let submitted = command(home, &submit).await.with(0);
    assert_eq!(submitted.out, format!("{job} created\n"));
    let watched = command(home, &["watch", job, "-o", "json"]).await;
    let ended: Job = serde_json::from_value(watched.json()).unwrap();
    let lines = |text: &str| -> Vec<Value> {
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let outputs = command(home, &["outputs", job, "--status", "done"])
        .await
        .with(0)
        .out;
    let failures = command(home, &["failures", job, "-o", "ndjson"])
        .await
        .with(0)
        .out;
    let outputs = lines(&outputs)
        .into_iter()
        .map(|line| line["output"].clone());
    let reasons = lines(&failures).into_iter().map(|line| {
        line["failureMessage"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    (ended, outputs.collect(), reasons.collect())
}

fn is_running(process: &str) -> bool {
    // What nobody has waited for yet is a zombie.
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status
        .rsplit(") ")
        .next()
        .is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_do_their_items_and_leave_nothing_behind() {
    let home = Home::new();
    home.write("a.txt", "one\n");
    let up = system(&home).await;

    // A file, a value, a number, and lines are items; none is an option.
    let (job, outputs, _) = done(&home, "files", &["--glob", "a.*", "--command", "cat"]).await;
    assert_eq!(job.status, JobStatus::Completed);
    assert_eq!(outputs[0]["output"], json!("one\n"));
    let values = r#"["a b; exit", {"x": 1}]"#;
    let (_, mut outputs, _) =
        done(&home, "values", &["--list", values, "--command", "upper"]).await;
    outputs.sort_by_key(|it| it["item"].to_string());
    assert_eq!(outputs[0]["output"], json!("A B; EXIT"));
    assert_eq!(outputs[1]["output"], json!(r#"{"X":1}"#));
    assert_eq!(outputs[0]["exitCode"], json!(0));
    let lines = [
        "--batch-type",
        "lines",
        "--definition",
        r#"{"files": ["a.txt"], "linesPerItem": 1}"#,
    ];
    let (_, outputs, _) = done(
        &home,
        "lines",
        &[&lines[..], &["--command", "upper"]].concat(),
    )
    .await;
    assert_eq!(outputs[0]["output"], json!("ONE"));
    home.write("people.csv", "id,name\n1,\"a\nb\"\n");
    let (_, outputs, _) = done(
        &home,
        "rows",
        &["--csv", "people.csv", "--command", "upper"],
    )
    .await;
    assert_eq!(outputs[0]["output"], json!(r#"{"ID":"1","NAME":"A\NB"}"#));
    // A definition may be JSON as it is; every plugin has a worker.
    let definition = json!({"folder": ".", "pattern": "a.*"});
    let data =
        json!({"batchType": "glob", "batchDefinition": definition, "targetPipe": "worker-noop-in"});
    let task = json!({"taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskPipe": "worker-batch-in", "taskData": data});
    home.write("job.json", &json!({ "task": task }).to_string());
    let file = home.folder.path().join("root/job.json");
    let submit = [
        "submit",
        "as-json",
        "--file",
        file.to_str().unwrap(),
        "--watch",
    ];
    let watched = command(&home, &submit).await.with(0);
    assert!(
        watched.out.contains("as-json: Completed, 100.00 %, 1 "),
        "{watched:?}"
    );

    let (job, _, failures) = done(
        &home,
        "dash",
        &["--list", r#"["--help"]"#, "--command", "undashed"],
    )
    .await;
    assert_eq!(job.status, JobStatus::Failed);
    assert!(
        failures[0].contains("the item begins with `-`"),
        "{failures:?}"
    );
    let (_, outputs, _) = done(
        &home,
        "option",
        &["--list", r#"["--help"]"#, "--command", "environment"],
    )
    .await;
    let seen = outputs[0]["output"].as_str().unwrap();
    let names: Vec<&str> = seen
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    // The shell adds some of its own.
    let known = [
        "HOME", "LANG", "PATH", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_",
    ];
    assert!(names.iter().all(|name| known.contains(name)), "{seen}");
    assert!(known[..4].iter().all(|name| names.contains(name)), "{seen}");
    let folder = seen.lines().last().unwrap();
    assert!(
        folder.contains("batchwright-command-") && !Path::new(folder).exists(),
        "{seen}"
    );

    // Failures tell the command, its end and its last words; only what the operator names runs
    // again.
    for (name, problem) in [
        (
            "wrong",
            "the command 'wrong' ended with exit code 3: to 1 | no such customer",
        ),
        (
            "hangs",
            "the command 'hangs' was stopped: it took longer than its time limit of 1 s",
        ),
        (
            "floods",
            "the command 'floods' was stopped: it wrote more than 1000 bytes of output (maxOutput): y | y",
        ),
        ("hungry", "the command 'hungry' ended with exit code 1: /"),
    ] {
        let (job, _, failures) = done(&home, name, &["--range", "1-1", "--command", name]).await;
        assert_eq!(job.status, JobStatus::Failed);
        assert!(failures[0].starts_with(problem), "{failures:?}");
    }
    let unknown = command(&home, &["submit", "--range", "1-1", "--command", "nosuch"]);
    let unknown = unknown.await.with(1).err;
    let problem = "There is no command \"nosuch\"; this worker has cat, environment, floods";
    assert!(unknown.contains(problem), "{unknown}");
    let once = home.folder.path().join("once");
    let item = json!([once]).to_string();
    let (job, _, _) = done(&home, "later", &["--list", &item, "--command", "later"]).await;
    assert_eq!((job.status, once.exists()), (JobStatus::Completed, true));

    // What has left the group ends with its command, too.
    let (_, outputs, _) = done(&home, "leaves", &["--range", "1-1", "--command", "leaves"]).await;
    let left = outputs[0]["output"].as_str().unwrap().trim().to_owned();
    assert!(left.parse::<u32>().is_ok() && !is_running(&left), "{left}");

    // A command ends soon after its job was cancelled, and with its worker, even if that is killed.
    let mut up = up;
    for end in ["cancel", "kill"] {
        let file = home.folder.path().join(end);
        let item = json!([file]).to_string();
        command(
            &home,
            &["submit", end, "--list", &item, "--command", "waits"],
        )
        .await
        .with(0);
        let process = wait_for("the command", async || {
            std::fs::read_to_string(&file).map_err(|error| error.to_string())
        })
        .await;
        let process = process.trim();
        assert!(is_running(process));
        if end == "kill" {
            up.kill();
        } else {
            command(&home, &["cancel", end]).await.with(0);
        }
        wait_for("the end of the command", async || {
            (!is_running(process))
                .then_some(())
                .ok_or_else(|| "it runs".to_owned())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_brings_a_command_of_its_own_only_to_a_system_that_allows_any() {
    let home = Home::new();
    let up = home.up().await;
    let echo = [
        "--each-line",
        "-",
        "--outputs",
        "-",
        "--",
        "printf",
        "<%s>",
        "{item}",
    ];
    let submit = async |job: &str| {
        let url = home.url();
        run_with_input(
            &[&["submit", job, "--url", &url][..], &echo].concat(),
            "one\n\nt wo\r\n--x\n",
        )
        .await
    };
    // Before the command worker answers questions, its items fail one by one.
    let refused = wait_for("a command worker that answers", async || {
        let refused = submit(&harness::unique("j")).await;
        assert_ne!(refused.code, 0, "{refused:?}");
        let is_refused = refused.err.contains("INVALID_BATCH");
        is_refused.then(|| refused.err.clone()).ok_or(refused.err)
    })
    .await;
    assert!(refused.contains("--allow-any-command"), "{refused}");
    assert_eq!(up.stop().await, Some(0));

    for (flags, problem) in [
        (
            ["--listen", "0.0.0.0:0"],
            "needs a loopback address; 0.0.0.0:0 is none",
        ),
        (
            ["--broker", "amqp://127.0.0.1:1"],
            "needs the embedded broker",
        ),
    ] {
        let data = home.data();
        let up = [
            "up",
            "--allow-any-command",
            "--data",
            data.to_str().unwrap(),
        ];
        let refused = run(&[&up[..], &flags].concat()).await.with(1);
        assert!(refused.err.contains(problem), "{refused:?}");
    }

    let (_, definitions) = GUIDE.split_once("```yaml\n").unwrap();
    home.write("commands.yaml", definitions.split_once("```").unwrap().0);
    home.write("a.txt", "one\n");
    let file = home.folder.path().join("root/commands.yaml");
    let flags = ["--allow-any-command", "--commands", file.to_str().unwrap()];
    let _up = home.up_with(&flags).await;
    let named = run_script(commands_after(GUIDE, "## Use them"), &home)
        .await
        .with(0)
        .out;
    assert!(
        named.contains("2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"),
        "{named}"
    );
    assert!(
        named.contains("\"item\":\"three of them\"") && named.contains("\"output\":\"3\\n\""),
        "{named}"
    );
    let own = run_script(
        commands_after(GUIDE, "batchwright up --allow-any-command\n```"),
        &home,
    )
    .await
    .with(0)
    .out;
    assert!(
        own.contains("Hello, Ada") && own.contains("Hello, Ben"),
        "{own}"
    );
    let done = submit("k").await.with(0);
    let outputs = done
        .out
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut texts: Vec<String> = outputs
        .filter_map(|line| Some(line["output"]["output"].as_str()?.to_owned()))
        .collect();
    texts.sort();
    assert_eq!(texts, ["<--x>", "<one>", "<t wo>"], "{done:?}");
}

#[tokio::test]
async fn commands_that_are_not_valid_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("commands.yaml");
    for (text, problem) in [
        (
            "a: [nosuchprogram, '{item}']",
            "the command 'a' is not valid: the program nosuchprogram is not in",
        ),
        ("a: {run: [cat, '{item}'], tiem: 3}", "unknown field `tiem`"),
        ("a: cat", "expected a list such as"),
    ] {
        std::fs::write(&file, text).unwrap();
        let data = folder.path().join("data");
        let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
        let refused = run(&[
            "up",
            "--commands",
            file,
            "--data",
            data,
            "--listen",
            "127.0.0.1:0",
        ])
        .await
        .with(1);
        assert!(
            refused.err.contains(problem) && refused.err.contains(file),
            "{refused:?}"
        );
    }
    let broker = ["run", "command-worker", "--broker", "amqp://127.0.0.1:1"];
    let refused = run(&broker).await.with(1);
    assert!(refused.err.contains("pass --commands FILE"), "{refused:?}");
    // Nobody else has a use for the keeper.
    run(&["keep-command"]).await.with(127);
}
