//! The kept outputs of a job, as lines of a file or of standard output.

use serde_json::{Value, json};

use crate::binary::{Home, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_of_a_job_are_written_to_a_file_and_read_again() {
    let home = Home::new();
    home.write("a.txt", "one two\nthree\nfour\n");
    let archive = home.folder.path().join("archive");
    let store = format!("archive={}", archive.display());
    let up = home.up_with(&["--export-store", &store]).await;
    let url = home.url();
    let command = async |arguments: &[&str]| run(&[arguments, &["--url", &url]].concat()).await;
    let submit = async |job: &str, more: &[&str]| {
        let definition = r#"{"files":["a.txt"],"linesPerItem":1}"#;
        let batch = ["--batch-type", "lines", "--definition", definition];
        command(&[&["submit", job], &batch[..], more].concat()).await
    };
    let file = home.folder.path().join("results.ndjson");
    let file_name = file.to_str().unwrap();
    let done = submit("j", &["--outputs", file_name]).await.with(0);
    assert!(
        done.out.starts_with("j: Completed, 100.00 %, 3 items\n"),
        "{done:?}"
    );
    let written = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = written
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let offsets: Vec<&Value> = lines.iter().map(|line| &line["offset"]).collect();
    assert_eq!(offsets, [&json!(0), &json!(1), &json!(2)]);
    assert!(
        lines.iter().all(|line| line["output"]["lines"] == json!(1)),
        "{written}"
    );

    assert_eq!(command(&["outputs", "j"]).await.with(0).out, written);
    let last = command(&["outputs", "j", "--offset", "2"])
        .await
        .with(0)
        .out;
    assert_eq!(last.trim_end(), written.lines().nth(2).unwrap());
    let first = command(&["outputs", "j", "--limit", "1"]).await.with(0).out;
    assert_eq!(first.trim_end(), written.lines().next().unwrap());
    assert_eq!(
        command(&["outputs", "j", "--status", "failed"])
            .await
            .with(0)
            .out,
        ""
    );
    let printed = submit("k", &["--outputs", "-"]).await.with(0).out;
    assert_eq!(printed.lines().count(), 3, "{printed}");
    assert_eq!(
        submit("l", &["--outputs", "keep"]).await.with(0).out,
        "l created\n"
    );

    let followed = command(&["outputs", "j", "--follow"]).await.with(0).out;
    assert_eq!(followed, written);
    for _ in 0..2 {
        let exported = command(&["outputs", "j", "--export", "archive/a/b"])
            .await
            .with(0);
        let expected = format!(
            "3 outputs ({} bytes) in 1 part, listed in archive/a/b/manifest.json\n",
            written.len()
        );
        assert_eq!(exported.out, expected);
        assert!(
            exported.err.contains("part-00001.ndjson: 3 outputs"),
            "{exported:?}"
        );
    }
    let part = archive.join("a/b/part-00001.ndjson");
    assert_eq!(std::fs::read_to_string(part).unwrap(), written);
    let unknown = command(&["outputs", "j", "--export", "attic/a"])
        .await
        .with(1);
    assert!(unknown.err.contains("There are: archive."), "{unknown:?}");
    command(&["outputs", "j", "--export", "archive"])
        .await
        .with(2);

    // The exit code is that of the job, not that of the copy.
    let failed = [
        "submit",
        "f",
        "--batch-type",
        "lines",
        "--definition",
        r#"{"files":["nothing"]}"#,
        "--delay",
        "1",
    ];
    command(&[&failed[..], &["--outputs", "-"]].concat())
        .await
        .with(10);
    let refused = submit("m", &["--outputs", "/nowhere/results"])
        .await
        .with(1);
    assert!(
        refused.err.contains("cannot write /nowhere/results"),
        "{refused:?}"
    );
    command(&["get", "m"]).await.with(1);
    submit("m", &["--outputs", "keep", "--target-pipe", "x"])
        .await
        .with(2);
    submit("m", &["--watch"]).await.with(0);
    let not_kept = command(&["outputs", "m"]).await.with(1);
    assert!(
        not_kept.err.contains("(HTTP 409, OUTPUTS_NOT_KEPT)"),
        "{not_kept:?}"
    );
    assert_eq!(up.stop().await, Some(0));
}
