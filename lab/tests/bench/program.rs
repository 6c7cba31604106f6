//! Runs the program.

use std::process::{Child, Command};

use harness::{CommandOutput, run_command, wait_for};
use serde_json::Value;

/// Returns a command that runs the program with these arguments, which spaces separate, and no
/// variables.
pub fn laboratory(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchwright-lab"));
    command
        .env_clear()
        .env("PATH", env!("PATH"))
        .args(arguments.split_whitespace());
    command
}

/// Runs a measurement to its end.
pub async fn bench(arguments: &str) -> CommandOutput {
    run_command(laboratory(&format!("bench {arguments}")), "").await
}

/// Runs a measurement that prints a JSON object.
pub async fn json_of(arguments: &str) -> Value {
    let output = bench(&format!("{arguments} --json")).await;
    output.expect_code(0).json()
}

/// Runs a measurement that prints a JSON object in each line.
pub async fn json_lines(arguments: &str) -> Vec<Value> {
    let output = bench(&format!("{arguments} --json")).await.expect_code(0);
    let lines = output.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Asks a process to stop, as a supervisor does, and returns its exit code.
pub async fn stop(mut process: Child) -> Option<i32> {
    Command::new("kill")
        .args(["-TERM", &process.id().to_string()])
        .status()
        .unwrap();
    wait_for("the process to end", async || {
        match process.try_wait().unwrap() {
            Some(status) => Ok(status.code()),
            None => Err("it runs".to_owned()),
        }
    })
    .await
}
