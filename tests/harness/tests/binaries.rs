//! The binaries of the harness. They are built for every test run because this test exists.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use harness::{CommandOutput, run_command};
use serde_json::json;

/// Writes a shell script that stands for a test binary, and returns cargo's message about it.
fn test_binary(folder: &Path, name: &str, script: &str) -> String {
    let executable = folder.join(name);
    std::fs::write(&executable, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&executable, Permissions::from_mode(0o755)).unwrap();
    json!({
        "reason": "compiler-artifact",
        "manifest_path": folder.join("Cargo.toml"),
        "target": {"name": name, "kind": ["test"]},
        "profile": {"test": true},
        "executable": executable,
    })
    .to_string()
}

/// Runs `run-tests` without starting servers.
async fn run_tests(folder: &Path, messages: &[String], commands: &[&str]) -> CommandOutput {
    let file = folder.join("messages");
    std::fs::write(&file, messages.join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_run-tests"));
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("DATABASE_URL", "postgres://nobody@nowhere/none")
        .env("AMQP_URL", "amqp://nowhere")
        .arg(file)
        .arg(folder.join("output"))
        .args(commands);
    run_command(command, "").await
}

const PASSES: &str = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'\n";

#[tokio::test]
async fn run_tests_counts_binaries_and_commands_and_keeps_their_output() {
    let folder = tempfile::tempdir().unwrap();
    let messages = [
        test_binary(folder.path(), "one", &format!("echo $AMQP_URL\n{PASSES}")),
        test_binary(folder.path(), "broken", "echo half a line; kill -9 $$\n"),
    ];
    let command = format!("doc tests=sh {}", folder.path().join("one").display());
    let seen = run_tests(folder.path(), &messages, &[&command]).await;
    assert_eq!(seen.code, Some(1), "{seen:?}");
    let counts = std::fs::read_to_string(folder.path().join("output/counts")).unwrap();
    let [passed, failed]: [u64; 2] = counts
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(passed, 4);
    assert!(
        failed > 1,
        "the broken one, and layers without a test: {failed}"
    );
    assert!(
        seen.stdout
            .contains("no result: it was ended by signal 9\nhalf a line"),
        "{}",
        seen.stdout
    );
    assert!(
        seen.stdout
            .contains("failed: no test of the layer chaos ran"),
        "{}",
        seen.stdout
    );
    let package = folder
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace('.', "-");
    let log = folder.path().join(format!("output/{package}-one.log"));
    assert!(
        std::fs::read_to_string(log)
            .unwrap()
            .starts_with("amqp://nowhere\n")
    );
}

#[tokio::test]
async fn run_tests_refuses_a_build_without_tests() {
    let folder = tempfile::tempdir().unwrap();
    let seen = run_tests(folder.path(), &["{}".to_owned()], &[])
        .await
        .expect_code(1);
    assert_eq!(seen.stderr, "run-tests: cargo has built no test binary\n");
}

#[tokio::test]
async fn servers_sets_the_variables_and_passes_the_exit_code_on() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_servers"));
    command
        .env_clear()
        .env("DATABASE_URL", "postgres://nowhere")
        .env("AMQP_URL", "amqp://nowhere")
        .args(["/bin/sh", "-c", "echo $DATABASE_URL $AMQP_URL; exit 7"]);
    let seen = run_command(command, "").await.expect_code(7);
    assert_eq!(seen.stdout, "postgres://nowhere amqp://nowhere\n");
}
