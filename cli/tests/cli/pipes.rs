//! The messages of pipes as lines: over AMQP, and through the job service of an embedded system.

use std::process::Stdio;

use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker, Outgoing};
use harness::{in_time, unique};
use serde_json::{Value, json};

use crate::binary::{Home, batchwright, run, run_with_input};

/// Puts messages into an empty pipe and takes them, in the ways that both transports have in
/// common.
async fn put_and_take(pipe: &str, server: &[&str]) {
    let put = async |more: &[&str], input: &str| {
        run_with_input(&[&["put", pipe], more, server].concat(), input).await
    };
    let take = async |more: &[&str]| {
        let taken = run(&[&["take", pipe], more, server].concat()).await.with(0);
        let lines = taken
            .out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let data = "{\"n\":1.50}\n\n{\"n\":2}\n{\"n\":3}\n";
    let sent = put(&["--classifier", "Number"], data).await;
    assert_eq!(sent.with(0).out, "3 messages confirmed\n");
    let first = take(&["--count", "1", "--wait", "30"]).await;
    assert_eq!(first.len(), 1);
    let envelope = &first[0]["envelope"];
    assert_eq!(
        (&envelope["taskClassifier"], &envelope["to"]),
        (&json!("Number"), &json!(pipe))
    );

    // Lines that nobody could be given are taken again.
    let mut unread = batchwright(&[&["take", pipe], server].concat());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    unread.stdout(writer).stderr(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || unread.status().unwrap());
    assert_eq!(
        in_time("the command to end", ended).await.unwrap().code(),
        Some(141)
    );

    let wrong = format!("{}\n{{\"envelope\": {{}}}}\n", first[0]);
    let refused = put(&[], &wrong).await.with(1);
    assert!(
        refused
            .err
            .contains("0 messages confirmed before this: line 2: "),
        "{refused:?}"
    );
    assert_eq!(
        put(&[], &format!("{}\n", first[0])).await.with(0).out,
        "1 message confirmed\n"
    );
    // Through files, too. Nothing is taken that cannot be written.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taken.ndjson");
    let file = file.to_str().unwrap();
    let folder = folder.path().to_str().unwrap();
    let refused = run(&[&["take", pipe, "--file", folder], server].concat()).await;
    assert!(refused.with(1).err.contains("is not a file"));
    let taken = run(&[&["take", pipe, "--count", "2", "--file", file], server].concat()).await;
    let expected = format!("2 messages written to {file}\n");
    assert_eq!(taken.with(0).out, expected);
    assert_eq!(
        put(&["--file", file], "").await.with(0).out,
        "2 messages confirmed\n"
    );
    let mut rest = take(&["--wait", "1"]).await;
    rest.sort_by_key(|message| message["taskData"]["n"].to_string());
    let numbers: Vec<&Value> = rest
        .iter()
        .map(|message| &message["taskData"]["n"])
        .collect();
    assert_eq!(numbers, [&json!(1.5), &json!(2), &json!(3)]);
    assert_eq!(rest[0], first[0]);
    assert_eq!(take(&[]).await, [Value::Null; 0]);
    let reserved = run(&[&["take", "worker-jobtracking-in"], server].concat())
        .await
        .with(1);
    assert!(
        reserved.err.contains("is lost to the system"),
        "{reserved:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_put_and_taken_through_an_embedded_system() {
    let home = Home::new();
    let up = home.up().await;
    let url = home.url();
    put_and_take("mine", &["--url", &url]).await;
    assert_eq!(up.stop().await, Some(0));
    let up = home.up_with(&["--pipe-access", "off"]).await;
    let refused = run(&["take", "mine", "--url", &url]).await.with(1);
    assert!(
        refused.err.contains("(HTTP 403, PIPES_NOT_SERVED)"),
        "{refused:?}"
    );
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_put_and_taken_over_amqp_and_a_mistyped_name_makes_no_queue() {
    let url = harness::rabbitmq().await.unwrap().url;
    let (broker, pipe) = (
        Amqp::connect(AmqpOptions::new(&url)).unwrap(),
        unique("taken"),
    );
    let server = ["--broker", &url];
    for command in ["take", "put"] {
        let refused = run(&[&[command, &pipe], &server[..]].concat())
            .await
            .with(1);
        assert_eq!(
            refused.err,
            format!("batchwright: there is no pipe '{pipe}'\n")
        );
    }
    assert!(!broker.exists(&pipe).await.unwrap());
    broker
        .publish(Outgoing::new(&*pipe, "no task"))
        .await
        .unwrap();
    let other = run(&[
        &["take", &pipe, "--count", "1", "--wait", "30"],
        &server[..],
    ]
    .concat())
    .await
    .with(0);
    assert_eq!(other.out, "{\"body\":\"bm8gdGFzaw==\"}\n");
    put_and_take(&pipe, &server).await;
    broker.close().await;
}
