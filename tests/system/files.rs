//! Batches of files: the plugins `lines` and `glob`, and the example worker.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use batchwright::Stack;
use contract::{FileItem, JobStatus};
use example_worker::{WordCount, WordCounter, count_words};
use framework::{Context, NoOutput, Reply, TaskError, Worker};
use serde_json::json;

use crate::fixture::Fixture;

stories![
    an_empty_batch_counts_no_items,
    files_outside_of_the_root_and_of_the_system_itself_are_not_read,
    word_counts_match_a_single_pass_over_the_files,
];

/// Returns numbered lines of growing length, with words of several scripts.
fn text(lines: usize) -> String {
    let words = ["one", "Two", "drei,", "ένα", "два", "12", "—"];
    let mut text = String::new();
    for line in 0..lines {
        write!(text, "line {line}:").unwrap();
        for word in 0..line % 11 {
            write!(text, " {}", words[(line + word) % words.len()]).unwrap();
        }
        text.push('\n');
    }
    text
}

async fn files_outside_of_the_root_and_of_the_system_itself_are_not_read(fixture: Fixture) {
    let mut options = fixture.options();
    let folder = options.data.parent().unwrap().to_owned();
    options.root.clone_from(&folder);
    std::fs::create_dir_all(&options.data).unwrap();
    std::fs::write(options.data.join("own.txt"), "secret\n").unwrap();
    std::fs::write(folder.join("a.txt"), "one\n").unwrap();
    std::os::unix::fs::symlink("/etc", folder.join("out")).unwrap();
    let system = fixture
        .start(Stack::new(options).worker(fixture.settings("items"), Silent))
        .await;
    for (job, batch_type, definition, reason) in [
        (
            "data",
            "lines",
            json!({"files": ["data/own.txt"]}),
            "\"data/own.txt\" is part of the system's own data, which no job reads",
        ),
        (
            "link",
            "lines",
            json!({"files": ["out/passwd"]}),
            "\"out/passwd\" leads out of the root folder by a symbolic link; name a file below the root folder",
        ),
        (
            "folder",
            "glob",
            json!({"folder": "out"}),
            "\"out\" leads out of the root folder by a symbolic link; name a file below the root folder",
        ),
    ] {
        let job_of = fixture.batch(batch_type, &definition.to_string());
        // A batch worker that does not answer questions yet says it later.
        let message = if let Err(refused) = system.client.put(job, &job_of).await {
            refused.to_string()
        } else {
            let state = system.ended(job).await;
            state.failures[0].failure_message.clone().unwrap()
        };
        let expected = format!("atch definition of {batch_type}: {reason}");
        assert!(message.contains(&expected), "{job}: {message}");
    }
    let everything = fixture.batch("glob", r#"{"folder":".","pattern":"**/*.txt"}"#);
    system.client.put("all", &everything).await.unwrap();
    system.completed("all", 1).await;
    system.stop().await;
}

async fn an_empty_batch_counts_no_items(fixture: Fixture) {
    let root = fixture.files();
    std::fs::create_dir_all(root.join("tree/empty/deeper")).unwrap();
    std::fs::create_dir_all(root.join("tree/full")).unwrap();
    for name in ["a.txt", "b.txt", "c.md"] {
        std::fs::write(root.join("tree/full").join(name), "x").unwrap();
    }
    let system = fixture
        .start(fixture.stack().worker(fixture.settings("items"), Silent))
        .await;
    for (job, batch_type, definition, items) in [
        ("list", "list", "[]", 0),
        (
            "glob",
            "glob",
            r#"{"folder":"tree","pattern":"**/*.txt"}"#,
            2,
        ),
        ("lines", "lines", r#"{"files":[]}"#, 0),
    ] {
        system
            .client
            .put(job, &fixture.batch(batch_type, definition))
            .await
            .unwrap();
        let state = system.ended(job).await;
        assert_eq!(
            (state.status, state.completed_items, state.failed_tasks),
            (JobStatus::Completed, items, 0),
            "{state:?}"
        );
    }
    system.stop().await;
}

/// Completes each file without an output.
struct Silent;

impl Worker for Silent {
    type Input = FileItem;
    type Output = NoOutput;

    async fn run(&self, _: FileItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

async fn word_counts_match_a_single_pass_over_the_files(fixture: Fixture) {
    let root = fixture.files();
    let texts = [
        text(700),
        "no line break at the end".to_owned(),
        String::new(),
        "\n".repeat(40),
        text(313),
    ];
    let mut names = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let name = format!("sub {number}/ä.txt");
        std::fs::create_dir_all(root.join(&name).parent().unwrap()).unwrap();
        std::fs::write(root.join(&name), text).unwrap();
        names.push(name);
    }
    let system = fixture
        .start(
            fixture
                .stack()
                .worker(fixture.settings("items"), WordCounter { root }),
        )
        .await;
    let definition = json!({"files": names, "linesPerItem": 7});
    system
        .client
        .put("j", &fixture.batch("lines", &definition.to_string()))
        .await
        .unwrap();
    let state = system.ended("j").await;
    assert_eq!(
        (state.status, state.failed_tasks),
        (JobStatus::Completed, 0),
        "{state:?}"
    );

    let counts: Vec<WordCount> = system
        .take_different(
            &fixture.pipe("output"),
            usize::try_from(state.completed_items).unwrap(),
        )
        .await;
    let mut words = BTreeMap::new();
    for (word, times) in counts.iter().flat_map(|count| &count.words) {
        *words.entry(word.clone()).or_insert(0) += times;
    }
    let mut expected = BTreeMap::new();
    texts
        .iter()
        .flat_map(|text| text.lines())
        .for_each(|line| count_words(line, &mut expected));
    assert_eq!(words, expected);
    let lines: usize = texts.iter().map(|text| text.lines().count()).sum();
    assert_eq!(
        counts.iter().map(|count| count.lines).sum::<u64>(),
        lines as u64
    );
    assert!(counts.iter().all(|count| count.lines <= 7));
    system.stop().await;
}
