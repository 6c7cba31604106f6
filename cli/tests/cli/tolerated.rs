//! What the commands tell of tolerated failures.

use serde_json::json;

use crate::binary::run;

/// The worker that counts words understands no numbers, so that every item fails.
pub async fn tells_tolerated_failures(url: &str) {
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", url]].concat()).await;
    let submit = async |job: &str, flags: &[&str]| {
        let batch = [
            "submit",
            job,
            "--wait",
            "--batch-type",
            "range",
            "--definition",
            "1-4",
            "--item-pipe",
            "worker-example-in",
        ];
        command(&[&batch[..], flags].concat()).await
    };
    let tolerated = submit("tolerated", &["--tolerate", "100%"]).await.with(12);
    let end = "tolerated: Completed, 100.00 %, 0 items, 4 failed";
    assert!(tolerated.out.contains(end), "{tolerated:?}");
    command(&["watch", "tolerated"]).await.with(12);
    let shown = command(&["get", "tolerated"]).await.with(12).out;
    assert!(shown.contains("100% failed items, then stop"), "{shown}");
    let job = command(&["get", "tolerated", "-o", "json"]).await.with(12);
    assert_eq!(
        job.json()["onFailure"],
        json!({"continue": {"tolerate": "100%", "above": "stop"}})
    );
    let flags = ["--tolerate", "3", "--above", "continue"];
    let failed = submit("too-many", &flags).await.with(10);
    assert!(
        failed.out.contains("Failed, 100.00 %, 0 items, 4 failed"),
        "{failed:?}"
    );

    for (flags, text) in [
        (&["--tolerate", "101%"][..], "a percentage of them"),
        (&["--tolerate=-1"], "\"-1\" is not a number of items"),
        (&["--above", "stop"], "--tolerate"),
        (
            &["--tolerate", "1", "--continue-on-failure"],
            "cannot be used with",
        ),
    ] {
        let refused = submit("refused", flags).await.with(2);
        assert!(refused.err.contains(text), "{refused:?}");
    }
}
