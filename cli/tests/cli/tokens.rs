//! Tokens: the first one, those of others, and what a job does where callers need one.

use crate::binary::{Ended, Home, batchwright, ended};

/// Runs a command with a token in a variable.
async fn run_as(token: &str, home: &Home, arguments: &[&str]) -> Ended {
    let url = home.url();
    let mut command = batchwright(&[arguments, &["--url", &url]].concat());
    command.env("BATCHWRIGHT_TOKEN", token);
    ended(command, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_of_a_token_is_done_by_workers_that_have_none() {
    let home = Home::new();
    std::fs::create_dir_all(home.data()).unwrap();
    let database = format!("sqlite:{}", home.data().join("jobs.db").display());
    let first = [
        "tokens",
        "create",
        "root",
        "--role",
        "admin,operator",
        "--in",
        "*",
        "--database",
        &database,
    ];
    let first = ended(batchwright(&first), "").await.with(0);
    let root = first.out.trim();
    assert!(
        root.starts_with("bw_") && first.err.contains(&root[..15]),
        "{first:?}"
    );

    let up = home.up_with(&["--auth", "tokens"]).await;
    let refused = run_as("nonsense", &home, &["list"]).await.with(1);
    assert!(
        refused.err.contains("The token is not valid."),
        "{refused:?}"
    );
    let anna = [
        "tokens",
        "create",
        "anna",
        "--role",
        "submit",
        "--in",
        "reports-*",
        "--expires",
        "90d",
    ];
    let anna = run_as(root, &home, &anna).await.with(0);
    let anna = anna.out.trim();
    let submit = [
        "submit",
        "j",
        "-p",
        "reports-eu",
        "--batch-type",
        "range",
        "--definition",
        "1-50",
        "--watch",
    ];
    let submitted = run_as(anna, &home, &submit).await.with(0);
    assert!(submitted.out.contains("Completed"), "{submitted:?}");
    let shown = run_as(anna, &home, &["get", "j", "-p", "reports-eu", "-o", "json"]).await;
    assert_eq!(shown.with(0).json()["owner"], "anna");
    let refused = run_as(anna, &home, &["list", "-p", "orders"]).await.with(1);
    assert!(
        refused
            .err
            .contains("no partition 'orders' that you may see"),
        "{refused:?}"
    );
    let refused = run_as(anna, &home, &["pipes"]).await.with(1);
    assert!(refused.err.contains("the role 'operator'"), "{refused:?}");

    let listed = run_as(root, &home, &["tokens", "list"]).await.with(0);
    let of_anna = listed
        .out
        .lines()
        .find(|line| line.contains("anna"))
        .unwrap();
    assert!(
        of_anna.contains("submit") && of_anna.contains("reports-*"),
        "{of_anna}"
    );
    let revoke = ["tokens", "revoke", &anna[..15]];
    run_as(root, &home, &revoke).await.with(0);
    run_as(anna, &home, &["get", "j", "-p", "reports-eu"])
        .await
        .with(1);
    run_as(root, &home, &revoke).await.with(1);
    assert_eq!(up.stop().await, Some(0));
}
