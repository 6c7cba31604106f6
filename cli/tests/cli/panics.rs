//! Panics in the loops of a running process, and what its supervisor and a person see of them.

use std::io::Write as _;
use std::process::Stdio;

use contract::JobStatus;
use harness::{in_time, wait_for};

use crate::binary::{Home, batchwright, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_that_panics_goes_on_and_a_process_that_cannot_go_on_ends_with_code_1() {
    let home = Home::new();
    let data = home.data();
    let mut command = batchwright(&["up", "--listen", &home.listen, "--panics-from-stdin"]);
    command.args(["--data", data.to_str().unwrap()]);
    let log = home.folder.path().join("log");
    let mut up = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut told = up.stdin.take().unwrap();
    let ended = tokio::task::spawn_blocking(move || up.wait().unwrap());
    // Planned before it begins, so it panics whenever the process gets there.
    told.write_all(b"job-service: relay\n").unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    wait_for("the relay to begin again", async || {
        let again = "a loop has panicked; it begins again name=\"job-service: relay\" panic=\"a planned panic\" delay=100ms";
        said().contains(again).then_some(()).ok_or_else(said)
    })
    .await;
    let url = home.url();
    let submit = ["submit", "j", "--url", &url, "--batch-type", "range"];
    let items = ["--definition", "1-30", "--item-pipe", "worker-example-in"];
    let watch = ["--watch", "-o", "json"];
    // The example worker does not know such items. They fail, so the start message has been sent.
    let job = run(&[&submit[..], &items, &watch].concat()).await.with(10);
    assert_eq!(job.json()["status"], JobStatus::Failed.name());
    told.write_all(b"worker-jobtracking\n").unwrap();
    let ended = in_time("the process to end", ended).await.unwrap();
    let said = said();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert_eq!(
        said.lines().last(),
        Some(
            "batchwright: the process cannot go on: worker-jobtracking has panicked: a planned panic"
        ),
        "{said}"
    );
}
