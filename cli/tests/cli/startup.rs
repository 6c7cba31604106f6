//! The configuration of the binary: variables, files with secrets, and errors that stop the start.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use contract::rest::NewJob;
use harness::{HttpClient, free_port, in_time, wait_for};
use reqwest::{Method, Url};

use crate::binary::Home;

/// Returns a command that runs the binary with exactly these variables.
fn batchwright(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchwright"));
    command
        .env_clear()
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command
}

/// Runs the binary to its end. Returns its exit code and standard error.
async fn ended(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = batchwright(arguments, variables);
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    let Output { status, stderr, .. } = in_time("the command to end", run).await.unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command, log: &Path) -> Self {
        Self(
            command
                .stdout(Stdio::null())
                .stderr(File::create(log).unwrap())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn unknown_or_invalid_variable_stops_the_start_by_name() {
    for (arguments, name, value, text) in [
        (
            &["up"][..],
            "BATCHWRIGHT_LISTN",
            "x",
            "the variable BATCHWRIGHT_LISTN is not a setting of batchwright; did you mean BATCHWRIGHT_LISTEN?",
        ),
        (
            &["get", "j"],
            "BATCHWRIGHT_ULR",
            "x",
            "did you mean BATCHWRIGHT_URL?",
        ),
        (
            &["up"],
            "BATCHWRIGHT_LISTEN",
            "here",
            "The value comes from the variable BATCHWRIGHT_LISTEN.",
        ),
        (
            &["up"],
            "BATCHWRIGHT_LISTEN",
            "8080",
            "tip: set it to: Address that the REST API listens on; for a worker role, the address of its health and metrics (by default \
             127.0.0.1:8080)",
        ),
        (
            &["up"],
            "BATCHWRIGHT_LOG",
            "batchwright=loud",
            "\"batchwright=loud\" is not a filter of the log",
        ),
        (
            &["run", "job-service"],
            "CAF_STATUS_CHECK_INTERVAL_SECONDS",
            "5s",
            "The value comes from the variable CAF_STATUS_CHECK_INTERVAL_SECONDS.",
        ),
        (
            &["run", "job-service"],
            "JOB_SERVICE_DATABASE_PORT",
            "many",
            "the variable JOB_SERVICE_DATABASE_PORT is \"many\"",
        ),
        (
            &["up"],
            "CAF_RABBITMQ_PASSWORD_FILE",
            "/no/such/file",
            "the variable CAF_RABBITMQ_PASSWORD_FILE names \"/no/such/file\"",
        ),
        (
            &["up"],
            "BATCHWRIGHT_KEEP_FAILED",
            "lastUpdateTime+P1M",
            "'P1M' is not a time span",
        ),
        (
            &["up"],
            "BATCHWRIGHT_TRACKING_SHARDS",
            "65",
            "\"65\" is not a number from 1 to 64",
        ),
        (
            &["run", "tracking-worker"],
            "BATCHWRIGHT_SHARD",
            "0,64",
            "64 is not in 0..64",
        ),
    ] {
        let (code, stderr) = ended(arguments, &[(name, value)]).await;
        assert!(code == 2 && stderr.contains(text), "{code}: {stderr}");
    }
}

#[tokio::test]
async fn role_without_shards_refuses_to_read_one() {
    let broker = ["--broker", "amqp://localhost:1"];
    let arguments = [&["run", "batch-worker", "--shard", "1"], &broker[..]].concat();
    let (code, stderr) = ended(&arguments, &[]).await;
    let expected = "--shard is for the tracking worker; `run batch-worker` has no shards";
    assert!(code == 1 && stderr.contains(expected), "{code}: {stderr}");
}

#[tokio::test]
async fn invalid_job_type_stops_the_start_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("scan.yaml"),
        "configurationProperties: [{name: bucket}]\ntaskScript: |\n  {\n    a: .b.\n  }\n",
    )
    .unwrap();
    let data = folder.path().join("data");
    let arguments = [
        "up",
        "--data",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--job-types",
        folder.path().to_str().unwrap(),
    ];
    let (code, stderr) = ended(&arguments, &[]).await;
    assert!(
        code == 1 && stderr.contains("scan.yaml is not valid: the configuration property bucket has no value: the variable BUCKET"),
        "{stderr}"
    );
    let (code, stderr) = ended(&arguments, &[("BUCKET", "b")]).await;
    assert!(
        code == 1 && stderr.contains("scan.yaml is not valid: taskScript:3:1: expected "),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_that_takes_all_memory_or_the_stack_fails_its_request_alone() {
    let home = Home::new();
    let task = |data: &str| {
        format!(
            "jobParametersSchema: {{}}\ntaskScript: |\n  {{taskClassifier: \"W\", taskApiVersion: 1, taskPipe: \"in\", taskData: {{a: ({data})}}}}\n"
        )
    };
    home.write(
        "double.yaml",
        &task("reduce range(.parameters) as $i (\"x\"; . + .) | length"),
    );
    home.write("deep.yaml", &task("def f: 1 + f; f"));
    let types = home.folder.path().join("root");
    let up = home
        .up_with(&["--job-types", types.to_str().unwrap()])
        .await;
    let put = async |job: &str, job_type: &str, parameters: u32| {
        let job_type = Some(job_type.to_owned());
        let request = NewJob {
            job_type,
            parameters: Some(parameters.into()),
            ..NewJob::default()
        };
        home.client().put(job, &request).await
    };
    assert!(put("small", "double", 10).await.unwrap());
    for (job_type, parameters) in [("double", 40), ("deep", 0)] {
        let refused = put("large", job_type, parameters).await.unwrap_err();
        assert!(
            refused.to_string().contains("(HTTP 500, JOB_TYPE_FAILED)"),
            "{refused}"
        );
    }
    assert!(put("again", "double", 10).await.unwrap());
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test]
async fn settings_that_differ_from_the_defaults_are_one_line_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (log, secret) = (folder.path().join("log"), folder.path().join("secret"));
    std::fs::write(&secret, "top/secret\n").unwrap();
    let variables = [
        ("CAF_RABBITMQ_HOST", "127.0.0.1"),
        ("CAF_RABBITMQ_PORT", "1"),
        ("CAF_RABBITMQ_PASSWORD_FILE", secret.to_str().unwrap()),
        ("CAF_WORKER_THREADS", "3"),
        ("NO_COLOR", "1"),
    ];
    let _running = Running::start(
        batchwright(
            &["run", "batch-worker", "--listen", "127.0.0.1:0"],
            &variables,
        ),
        &log,
    );
    let logged = wait_for("the configuration in the log", async || {
        let logged = std::fs::read_to_string(&log).unwrap();
        if logged.contains("taking deliveries") {
            Ok(logged)
        } else {
            Err(logged)
        }
    })
    .await;
    let lines: Vec<&str> = logged
        .lines()
        .filter(|line| line.contains("starting run batch-worker"))
        .collect();
    assert!(
        lines.len() == 1
            && lines[0].ends_with(concat!(
                r#"settings="listen=127.0.0.1:0 (--listen), broker=amqp://guest:***@127.0.0.1:1/%2f (CAF_RABBITMQ_*), "#,
                r#"concurrency=3 (CAF_WORKER_THREADS)""#
            )),
        "{logged}"
    );
    assert!(
        !logged.contains("top/secret") && !logged.contains("top%2Fsecret"),
        "{logged}"
    );
}

#[tokio::test]
async fn cafs_variables_suffice_for_a_job_service() {
    let (postgres, rabbitmq) = tokio::try_join!(harness::postgres(), harness::rabbitmq()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [database, broker] = [&postgres.url, &rabbitmq.url].map(|url| Url::parse(url).unwrap());
    let part = |url: &Url, what: &str| match what {
        "HOST" => url.host_str().unwrap().to_owned(),
        "PORT" => url
            .port()
            .unwrap_or(if url.scheme() == "amqp" { 5672 } else { 5432 })
            .to_string(),
        "USERNAME" => url.username().to_owned(),
        "PASSWORD" => url.password().unwrap_or_default().to_owned(),
        _ => url.path().trim_start_matches('/').to_owned(),
    };
    let mut variables: Vec<(String, String)> = Vec::new();
    for what in ["HOST", "PORT", "USERNAME", "PASSWORD"] {
        variables.push((
            format!("JOB_SERVICE_DATABASE_{what}"),
            part(&database, what),
        ));
        variables.push((format!("CAF_RABBITMQ_{what}"), part(&broker, what)));
    }
    variables.push((
        "JOB_SERVICE_DATABASE_NAME".to_owned(),
        part(&database, "NAME"),
    ));
    variables.push((
        "JOB_SERVICE_DATABASE_APPNAME".to_owned(),
        "job service".to_owned(),
    ));
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let listen = format!("127.0.0.1:{}", free_port());
    let log = folder.path().join("log");
    let _running = Running::start(
        batchwright(&["run", "job-service", "--listen", &listen], &variables),
        &log,
    );
    let http = HttpClient::new(format!("http://{listen}"));
    wait_for("the service to be ready", async || {
        let asked = http.request(Method::GET, "/health-check?name=all&type=READY");
        match asked.send().await {
            Ok(answer) if answer.status() == 200 => Ok(()),
            other => Err(format!(
                "{other:?}: {}",
                std::fs::read_to_string(&log).unwrap()
            )),
        }
    })
    .await;
}

#[tokio::test]
async fn script_of_a_process_that_was_killed_ends_by_itself() {
    let mut command = batchwright(&["run-script"], &[]);
    // The process waits for its script.
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let file = format!("/proc/{}/limits", child.id());
    wait_for("the limits", async || {
        let limits = std::fs::read_to_string(&file).unwrap();
        let of = |name| limits.lines().find_map(|line| line.strip_prefix(name));
        let seconds = of("Max cpu time").unwrap_or_default();
        match seconds.split_whitespace().next() {
            Some("60") => Ok(()),
            _ => Err(limits),
        }
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}
