//! Jobs without an id, and jobs that run again as new ones.

use serde_json::json;

use crate::binary::{Home, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_submitted_without_an_id_and_run_again() {
    let home = Home::new();
    home.write("a.txt", "one\ntwo\nthree\n");
    let up = home.up().await;
    let url = home.url();
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    let definition = r#"{"files":["a.txt"],"linesPerItem":1}"#;
    let lines = ["--batch-type", "lines", "--definition", definition];
    let submit = async |more: &[&str]| command(&[&["submit"], &lines[..], more].concat()).await;

    // The id is made by the service, once for each key.
    let keyed = ["--idempotency-key", "nightly"];
    let first = submit(&[&keyed[..], &["-o", "json"]].concat())
        .await
        .with(0);
    let id = first.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(first.json(), json!({"id": id, "created": true}));
    let again = submit(&keyed).await.with(0);
    assert_eq!(
        again.out,
        format!("{id} already exists with the same definition\n")
    );
    let other = submit(&[&keyed[..], &["--name", "other"]].concat()).await;
    assert!(other.with(1).err.contains("IDEMPOTENCY_KEY_TAKEN"));
    let named = submit(&["j", "--idempotency-key", "k"]).await.with(2);
    assert!(named.err.contains("cannot be used with"), "{named:?}");
    command(&["watch", &id]).await.with(0);

    let resubmit = async |more: &[&str]| command(&[&["resubmit", &id], more].concat()).await;
    let watched = resubmit(&["--id", "second", "--wait"]).await.with(0);
    assert!(
        watched
            .out
            .starts_with("second: Completed, 100.00 %, 3 items\n"),
        "{watched:?}"
    );
    assert_eq!(
        resubmit(&["--id", "second"]).await.with(0).out,
        "second already exists with the same definition\n"
    );
    assert_eq!(
        resubmit(&["--same-id", "--wait", "-o", "json"])
            .await
            .with(0)
            .json()["id"],
        id
    );
    let made = resubmit(&["-o", "name"]).await.with(0).out;
    assert!(!made.contains(&id), "{made}");
    assert_eq!(command(&["count"]).await.with(0).out, "3\n");
    let both = resubmit(&["--id", "x", "--same-id"]).await.with(2);
    assert!(both.err.contains("cannot be used with"), "{both:?}");
    let unknown = command(&["resubmit", "unknown"]).await.with(1);
    assert!(unknown.err.contains("JOB_NOT_FOUND"), "{unknown:?}");
    assert_eq!(up.stop().await, Some(0));
}
