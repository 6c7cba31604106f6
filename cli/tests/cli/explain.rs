//! What a batch would become, and what is wrong with it, before there is a job.

use harness::wait_for;
use serde_json::json;

use crate::binary::{Home, run};
use crate::readme::blocks;

const SPLIT_A_BATCH: &str = include_str!("../../../docs/split-a-batch.md");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_explained_and_one_that_cannot_be_split_creates_no_job() {
    let home = Home::new();
    for n in 0..30 {
        home.write(&format!("{n}.tif"), "x");
    }
    let up = home.up().await;
    let url = home.url();
    let batch = async |command: &[&str], plugin: &str, definition: &str| {
        let flags = [
            "--url",
            &url,
            "--batch-type",
            plugin,
            "--definition",
            definition,
        ];
        run(&[command, &flags].concat()).await
    };
    let explained = wait_for("a batch worker that answers", async || {
        let explained = batch(&["explain"], "range", "1-3000").await;
        match explained.code {
            0 => Ok(explained),
            _ => Err(explained.err),
        }
    })
    .await;
    assert_eq!(
        explained.out,
        "items     3,000 for the pipe worker-noop-in\n\
         splits    63 on 3 levels\n\
         messages  3,062, 51,845 bytes of task data\n\
         first     number 1\n          number 2\n          number 3\n\
         last      number 2998\n          number 2999\n          number 3000\n"
    );
    let folder = r#"{"folder": ".", "pattern": "1*.tif"}"#;
    let explained = batch(&["explain", "-o", "json"], "glob", folder)
        .await
        .with(0)
        .json();
    assert_eq!(
        json!([
            explained["items"],
            explained["exact"],
            explained["first"][0]["label"]
        ]),
        json!([11, true, "1.tif"])
    );
    let too_many = run(&["explain", "--url", &url, "--range", "1-1000000000000000"]).await;
    let too_many = too_many.with(1);
    assert!(
        too_many.out.starts_with("items     1,000,000,000,000,000 for the pipe worker-noop-in\n")
            && too_many.out.contains("refused   batch definition of range: the range has 1000000000000000 items; a job has at most"),
        "{}",
        too_many.out
    );
    records_anywhere_have_a_format(&home).await;
    let missing = r#"{"folder": "scams"}"#;
    for command in [&["explain"][..], &["submit", "j"]] {
        let refused = batch(command, "glob", missing).await.with(1);
        let reason = "Batch definition of glob: there is no file \"scams\".";
        assert!(refused.err.contains(reason), "{}", refused.err);
    }
    let unknown = home.client().get("j").await.unwrap_err().to_string();
    assert!(unknown.contains("404"), "{unknown}");
    let submitted = batch(&["submit", "j"], "glob", folder).await.with(0);
    assert_eq!(submitted.out, "j created\n");
    assert!(!submitted.err.contains("not checked"), "{}", submitted.err);
    many_items_are_uploaded(&home).await;
    assert_eq!(up.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_in_the_guide_are_what_the_program_prints() {
    let home = Home::new();
    let _up = home.up_with(&["--max-parts", "1000"]).await;
    let url = home.url();
    let explain =
        async |flags: &[&str]| run(&[&["explain", "--url", &url][..], flags].concat()).await;
    wait_for("a batch worker that answers", async || {
        let explained = explain(&["--range", "1-3"]).await;
        let is_answered = explained.code == 0;
        is_answered.then_some(()).ok_or(explained.err)
    })
    .await;
    let blocks = blocks(SPLIT_A_BATCH, "console");
    let examples = blocks
        .iter()
        .filter_map(|block| block.strip_prefix("$ batchwright explain "));
    let examples: Vec<_> = examples
        .filter_map(|example| example.split_once('\n'))
        .collect();
    assert_eq!(examples.len(), 2, "{examples:?}");
    for (flags, printed) in examples {
        let flags: Vec<&str> = flags.split(' ').collect();
        let explained = explain(&flags).await;
        assert_eq!(explained.out.trim_end(), printed, "{flags:?}");
    }
}

/// Explains the records of a file, and of a URL that the operator does not allow.
async fn records_anywhere_have_a_format(home: &Home) {
    let url = home.url();
    home.write("rows.tsv", "id\n1\n2\n");
    let explain = async |flags: &[&str]| {
        run(&[
            &["explain", "--url", &url, "-o", "name", "--records"][..],
            flags,
        ]
        .concat())
        .await
    };
    assert_eq!(explain(&["rows.tsv"]).await.with(0).out, "2\n");
    assert_eq!(
        explain(&["rows.tsv", "--format", "lines"])
            .await
            .with(0)
            .out,
        "3\n"
    );
    let far = "http://ada:s3cr3t@127.0.0.1:9/rows?key=s3cr3t";
    let unknown = explain(&[far]).await.with(1);
    assert!(
        unknown.err.contains("does not say what it contains"),
        "{}",
        unknown.err
    );
    let refused = explain(&[far, "--format", "csv"]).await.with(1);
    assert!(
        refused
            .err
            .contains("\"http://127.0.0.1:9/rows?…\" is not read: the operator allows no URLs"),
        "{}",
        refused.err
    );
    assert!(!(unknown.err + &refused.err).contains("s3cr3t"));
}

/// Submits more items than a definition may have, twice.
async fn many_items_are_uploaded(home: &Home) {
    let line = |n: u32| format!("{}\n", json!({"n": n, "text": "x".repeat(900_000)}));
    let items: String = (1..=6).map(line).collect();
    home.write("items.jsonl", &items);
    let file = home.folder.path().join("root/items.jsonl");
    let (url, file) = (home.url(), file.display().to_string());
    let flags = ["submit", "many", "--url", &url, "--items-from", &file];
    let pipes = ["--item-pipe", "worker-noop-in", "--target-pipe", "none"];
    let watched = run(&[&flags[..], &pipes, &["--wait"]].concat()).await;
    assert!(
        watched.err.contains("batchwright: uploaded 5.1 MiB in "),
        "{watched:?}"
    );
    let job = home.client().get("many").await.unwrap();
    assert_eq!(
        (job.status, job.completed_items),
        (contract::JobStatus::Completed, 6)
    );
    let again = run(&[&flags[..], &pipes].concat()).await.with(0);
    assert_eq!(again.out, "many already exists with the same definition\n");
    // What was uploaded in vain is gone.
    let sources =
        async |action: &[&str]| run(&[&["sources"][..], action, &["--url", &url]].concat()).await;
    let listed = sources(&["list"]).await.with(0);
    let row: Vec<&str> = listed
        .out
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .collect();
    let [id, "5.1", "MiB", "committed", _, "many"] = row[..] else {
        panic!("{}", listed.out)
    };
    assert_eq!(listed.out.lines().count(), 2, "{}", listed.out);
    assert!(
        listed
            .err
            .contains("the sources of the partition have 5.1 MiB of 10.0 GiB"),
        "{}",
        listed.err
    );
    let shown = sources(&["show", id]).await.with(0);
    assert!(shown.out.contains("\nJOBS     many\n"), "{}", shown.out);
    let kept = sources(&["delete", "--yes", id]).await.with(1);
    assert!(
        kept.err.contains("The job 'many' names the source"),
        "{}",
        kept.err
    );
}
