//! The command `chaos` as a user runs it.

use std::process::Command;

use harness::{CommandOutput, run_command};
use serde_json::json;

use crate::LABORATORY;

async fn chaos(arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(LABORATORY);
    command
        .env_clear()
        .env("PATH", env!("PATH"))
        .arg("chaos")
        .args(arguments);
    run_command(command, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_system_loses_nothing_when_it_is_killed_and_its_job_is_paused_cancelled_and_fails()
{
    let output = chaos(&[
        "--embedded",
        "--items",
        "1500",
        "--work",
        "5",
        "--kills",
        "3",
        "--rounds",
        "2",
        "--keep-outputs",
        "--seed",
        "7",
    ])
    .await;
    let result = output.clone().expect_code(0).json();
    for (field, expected) in [
        ("seed", json!(7)),
        ("items", json!(1500)),
        ("completed_items", json!(1500)),
        ("items_lost", json!(0)),
        ("counted_twice", json!(0)),
        ("kills", json!(3)),
        ("skipped", json!(0)),
        ("outages", json!(0)),
        ("pauses", json!(1)),
        ("rounds", json!(2)),
        ("outputs", json!("service")),
        ("outputs_lost", json!(0)),
        ("outputs_twice", json!(0)),
        ("left_in_pipes", json!(0)),
        ("broker", json!("embedded")),
        ("store", json!("sqlite")),
    ] {
        assert_eq!(result[field], expected, "{field}: {output:?}");
    }
    assert!(
        output.stderr.lines().all(|line| line.chars().count() <= 80),
        "{}",
        output.stderr
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_whose_job_ends_before_its_faults_is_no_success() {
    let few = [
        "--embedded",
        "--items",
        "1",
        "--pauses",
        "0",
        "--rounds",
        "0",
        "--kills",
        "9",
    ];
    let output = chaos(&few).await.expect_code(1);
    let result = output.json();
    let [kills, skipped] = ["kills", "skipped"].map(|field| result[field].as_u64().unwrap());
    assert_eq!(
        (kills + skipped, result["items_lost"].as_u64()),
        (9, Some(0))
    );
    let said = format!("{skipped} faults did not happen");
    assert!(output.stderr.contains(&said), "{output:?}");
}

/// The item worker is told a database that refuses everything, so the job makes no progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_that_gives_up_says_so_and_counts_what_is_lost() {
    let slow = [
        "--embedded",
        "--items",
        "100000",
        "--work",
        "60000",
        "--kills",
        "0",
        "--pauses",
        "0",
        "--rounds",
        "0",
    ];
    let output = chaos(&[&slow[..], &["--patience", "2"]].concat())
        .await
        .expect_code(1);
    let result = output.json();
    assert_eq!(result["items_lost"], 100_000, "{output:?}");
    let trouble = result["trouble"].as_str().unwrap();
    assert!(trouble.starts_with("no progress for 2s"), "{output:?}");
    assert!(output.stderr.contains("--keep"), "{output:?}");
}
