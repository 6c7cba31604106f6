//! Outputs that nobody reads any more, or that have a full disk behind them.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use contract::JobStatus;
use harness::{in_time, wait_for};

use crate::binary::{Home, Up, batchwright, run};

/// A file that refuses everything that is written to it, as a full disk does.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The writing end of a pipe whose reader has gone.
fn abandoned() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

async fn code_of(mut command: Command) -> i32 {
    let end = tokio::task::spawn_blocking(move || command.status().unwrap());
    let status = in_time("the command to end", end).await.unwrap();
    status.code().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_whose_log_cannot_be_written_completes_jobs() {
    for outputs in [|| full().into(), abandoned] {
        let home = Home::new();
        let data = home.data();
        let mut command = batchwright(&["up", "--listen", &home.listen, "--log", "debug"]);
        command.arg("--data").arg(&data);
        let mut up: Child = command.stdout(outputs()).stderr(outputs()).spawn().unwrap();
        wait_for("the system to be up", async || {
            assert_eq!(up.try_wait().unwrap(), None, "the process ended");
            let listed = home.client().list(&[]).await;
            listed.map_err(|error| error.to_string())
        })
        .await;
        let up = Up(up);
        let submit = [
            "submit",
            "j",
            "--url",
            &home.url(),
            "--batch-type",
            "range",
            "--definition",
            "1-300",
            "--item-pipe",
            "worker-example-in",
            "--watch",
            "-o",
            "json",
        ];
        // The example worker does not know such items, so each of them writes to the log and fails
        // the job.
        let job = run(&submit).await.with(10).json();
        assert_eq!(job["status"], JobStatus::Failed.name());
        assert_eq!(up.stop().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_output_is_closed_ends_without_a_panic() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    let count = |stdout: Stdio, stderr: Stdio| {
        let mut command = batchwright(&["count", "--url", &url]);
        command.stdout(stdout).stderr(stderr);
        command
    };
    assert_eq!(code_of(count(abandoned(), abandoned())).await, 141);
    assert_eq!(code_of(count(full().into(), full().into())).await, 1);
    let errors = home.folder.path().join("errors");
    let kept = || Stdio::from(File::create(&errors).unwrap());
    let said = || std::fs::read_to_string(&errors).unwrap();
    assert_eq!(code_of(count(abandoned(), kept())).await, 141);
    assert_eq!(said(), "");
    assert_eq!(code_of(count(full().into(), kept())).await, 1);
    let reason = "batchwright: cannot write to standard output: No space left on device";
    assert!(said().starts_with(reason), "{}", said());
    for arguments in [&["--help"][..], &["--version"], &["get"]] {
        let mut command = batchwright(arguments);
        command.stdout(abandoned()).stderr(abandoned());
        let code = code_of(command).await;
        assert!(code == 0 || code == 2, "{arguments:?}: {code}");
    }
    assert_eq!(up.stop().await, Some(0));
}
