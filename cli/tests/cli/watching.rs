//! Following a job that somebody stops following, and the pages and scripts that are made of the
//! command line.

use std::process::{Command, Stdio};

use harness::{in_time, wait_for};

use crate::binary::{Home, batchwright, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_watch_and_says_that_the_job_goes_on_and_how_to_cancel_it() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    let submit = [
        "submit",
        "never ends",
        "--url",
        &url,
        "--task-pipe",
        "nobody",
        "--batch-type",
        "range",
        "--definition",
        "1-5",
    ];
    run(&submit).await.with(0);
    let said = home.folder.path().join("said");
    let mut watch = batchwright(&["watch", "never ends", "--url", &url]);
    watch.stderr(std::fs::File::create(&said).unwrap());
    let mut watch = watch.stdout(Stdio::null()).spawn().unwrap();
    let said = || std::fs::read_to_string(&said).unwrap();
    wait_for("the first line", async || match said() {
        text if text.ends_with('\n') => Ok(()),
        text => Err(text),
    })
    .await;
    let interrupt = Command::new("kill")
        .args(["-INT", &watch.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let ended = tokio::task::spawn_blocking(move || watch.wait().unwrap());
    let ended = in_time("the command to end", ended).await.unwrap();
    assert_eq!(ended.code(), Some(130));
    let expected = format!(
        "never ends: Waiting, 0.00 %, 0 items\nbatchwright: the job goes on; to cancel it:\n  batchwright cancel 'never ends' --url {url}\n"
    );
    assert_eq!(said(), expected);
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test]
async fn completions_and_manual_pages_know_every_command_that_is_not_hidden() {
    let commands = [
        "up",
        "run",
        "submit",
        "list",
        "delete",
        "completions",
        "man",
        "dead",
    ];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).await.with(0).out;
        for command in commands {
            assert!(script.contains(command), "{command} in {shell}");
        }
        assert!(!script.contains("run-script"), "{shell}");
    }
    assert!(
        run(&["man"])
            .await
            .with(0)
            .out
            .contains("\nbatchwright\\-list(1)\n")
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/man1");
    run(&["man", "--out", out.to_str().unwrap()]).await.with(0);
    for command in commands.into_iter().chain(["dead list"]) {
        let page = format!("batchwright-{}.1", command.replace(' ', "-"));
        let page = std::fs::read_to_string(out.join(page)).unwrap();
        assert!(
            page.contains(&format!("\\fBbatchwright {command}\\fR")),
            "{page}"
        );
    }
    assert!(out.join("batchwright.1").exists() && !out.join("batchwright-run-script.1").exists());
    let refused = run(&["man", "--out", "/dev/null/man"]).await.with(1);
    assert!(
        refused
            .err
            .contains("cannot create the folder /dev/null/man"),
        "{refused:?}"
    );
}
