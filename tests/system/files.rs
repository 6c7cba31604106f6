//! Text files through the plugin `lines` and the example worker.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use batchwright::Stack;
use contract::{FileItem, JobStatus, LineRange};
use example_worker::{WordCount, WordCounter, count_words};
use framework::{Context, NoOutput, Reply, Settings, TaskError, Worker};
use harness::wait_for;
use serde_json::json;

use crate::place::Place;
use crate::workers::Gate;

stories![
    what_is_split_into_nothing_counts_as_no_item,
    the_words_of_files_are_counted_as_a_single_pass_counts_them,
    a_file_that_changes_in_between_fails_the_job_by_its_name,
    a_file_that_changes_between_the_splits_of_its_batch_fails_the_job_by_its_name,
];

/// Numbered lines of words of several scripts, of growing lengths.
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

async fn what_is_split_into_nothing_counts_as_no_item(place: Place) {
    let root = place.files();
    std::fs::create_dir_all(root.join("tree/empty/deeper")).unwrap();
    std::fs::create_dir_all(root.join("tree/full")).unwrap();
    for name in ["a.txt", "b.txt", "c.md"] {
        std::fs::write(root.join("tree/full").join(name), "x").unwrap();
    }
    let system = place
        .start(place.stack().worker(place.settings("items"), Silent))
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
            .put(job, &place.batch(batch_type, definition))
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

/// Looks at files, and says nothing.
struct Silent;

impl Worker for Silent {
    type Input = FileItem;
    type Output = NoOutput;

    async fn run(&self, _: FileItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

async fn the_words_of_files_are_counted_as_a_single_pass_counts_them(place: Place) {
    let root = place.files();
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
    let system = place
        .start(
            place
                .stack()
                .worker(place.settings("items"), WordCounter { root }),
        )
        .await;
    let definition = json!({"files": names, "linesPerItem": 7});
    system
        .client
        .put("j", &place.batch("lines", &definition.to_string()))
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
            &place.pipe("output"),
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

/// The example worker, held back.
struct Held {
    gate: Gate,
    counter: WordCounter,
}

impl Worker for Held {
    type Input = LineRange;
    type Output = WordCount;

    async fn run(&self, task: LineRange, ctx: Context) -> Result<Reply<WordCount>, TaskError> {
        self.gate.pass(&ctx).await?;
        self.counter.run(task, ctx).await
    }
}

async fn a_file_that_changes_in_between_fails_the_job_by_its_name(place: Place) {
    let (root, gate) = (place.files(), Gate::closed());
    std::fs::write(root.join("orders.txt"), text(100)).unwrap();
    let worker = Held {
        gate: gate.clone(),
        counter: WordCounter { root: root.clone() },
    };
    let system = place
        .start(place.stack().worker(place.settings("items"), worker))
        .await;
    let definition = r#"{"files":["orders.txt"],"linesPerItem":20}"#;
    system
        .client
        .put("j", &place.batch("lines", definition))
        .await
        .unwrap();
    gate.admit(1);
    wait_for("the first lines", async || {
        match system.job("j").await.completed_items {
            1 => Ok(()),
            items => Err(format!("{items} items")),
        }
    })
    .await;
    // Of the same size as before.
    std::fs::write(root.join("orders.txt"), text(100).replace("line", "LINE")).unwrap();
    gate.open();
    let state = system.ended("j").await;
    assert_eq!(state.status, JobStatus::Failed);
    assert_eq!(
        state.failures[0].failure_message.as_deref(),
        Some("orders.txt has changed since the batch was made")
    );
    assert_eq!(state.failures[0].failure_source.as_deref(), Some("items"));
    system.stop().await;
}

/// Answers nothing, and looks at no file.
struct Blind(Gate);

impl Worker for Blind {
    type Input = LineRange;
    type Output = NoOutput;

    async fn run(&self, _: LineRange, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.0.pass(&ctx).await?;
        Ok(Reply::none())
    }
}

async fn a_file_that_changes_between_the_splits_of_its_batch_fails_the_job_by_its_name(
    place: Place,
) {
    let (root, gate) = (place.files(), Gate::closed());
    std::fs::write(root.join("orders.txt"), text(100)).unwrap();
    // Ten sub-batches of ten lines each; most of them wait until the items of others are done.
    let stack = Stack::new(place.options_with_depth(5));
    let settings = Settings {
        prefetch: 1,
        concurrency: 1,
        ..place.settings("items")
    };
    let system = place
        .start(stack.worker(settings, Blind(gate.clone())))
        .await;
    system
        .client
        .put(
            "j",
            &place.batch("lines", r#"{"files":["orders.txt"],"linesPerItem":1}"#),
        )
        .await
        .unwrap();
    wait_for("the first sub-batch to be split", async || {
        match system.running.broker().depth(&place.pipe("items")).await {
            Ok(6..) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    std::fs::write(
        root.join("orders.txt"),
        text(100).replace("line", "other line"),
    )
    .unwrap();
    gate.open();
    let state = system.ended("j").await;
    assert_eq!(state.status, JobStatus::Failed, "{state:?}");
    let message = state.failures[0].failure_message.as_deref().unwrap();
    assert!(
        message.contains("the file \"orders.txt\" has changed since the batch was made"),
        "{message}"
    );
    assert_eq!(
        state.failures[0].failure_source.as_deref(),
        Some("worker-batch")
    );

    // And the next one is split and done.
    system
        .client
        .put(
            "good",
            &place.batch("lines", r#"{"files":["orders.txt"],"linesPerItem":25}"#),
        )
        .await
        .unwrap();
    system.completed("good", 4).await;
    system.stop().await;
}
