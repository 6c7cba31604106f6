use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use framework::{TaskData, testing};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tempfile::TempDir;

use super::*;
use crate::splitter::Splitter;
use crate::{BatchPlugin, BatchWorker, Glob, Lines, List, Range, RecordFiles};

/// An item, whatever its plugin.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Item(Box<RawValue>);

impl TaskData for Item {
    const CLASSIFIER: &'static str = "Item";
    const API_VERSION: i32 = 1;
}

/// What an author writes who has never heard of explanations. Splits `a,b,c`; each `!` in a word is
/// a sub-batch with the rest.
struct Words;

impl BatchPlugin for Words {
    const NAME: &'static str = "words";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let words = batch.definition.split(',').filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        if words.len() > batch.max_parts {
            let size = words.len().div_ceil(batch.max_parts);
            let parts = words.chunks(size).map(|words| Part::Batch(words.join(",")));
            return Ok(parts.collect());
        }
        let part = |word: &&str| match word.strip_prefix('!') {
            Some(rest) => Ok(Part::Batch(rest.to_owned())),
            None => batch.item("Word", word),
        };
        words.iter().map(part).collect()
    }
}

/// Splits slowly: `n` becomes an item and `n-1`, each second.
struct Slow;

impl BatchPlugin for Slow {
    const NAME: &'static str = "slow";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left: u64 = batch.definition.parse()?;
        let mut parts = vec![batch.item("Left", &left)?];
        parts.extend(
            left.checked_sub(1)
                .map(|less| Part::Batch(less.to_string())),
        );
        Ok(parts)
    }
}

static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let root = tempfile::tempdir().unwrap();
    let at = |name: String| root.path().join(name);
    for folder in ["d/e", "many", "none"] {
        std::fs::create_dir_all(at(folder.to_owned())).unwrap();
    }
    for (name, text) in [("a", "one\ntwo\nthree\n"), ("b", "no end"), ("d/e/c", "")] {
        std::fs::write(at(name.to_owned()), text).unwrap();
    }
    std::fs::write(at("d/long".to_owned()), "line\n".repeat(300_000)).unwrap();
    std::fs::write(at("rows".to_owned()), "row\n".repeat(700)).unwrap();
    for n in 0..45 {
        std::fs::write(at(format!("many/{n}")), "x\n").unwrap();
    }
    root
});

fn worker(max_parts: usize) -> BatchWorker {
    let root = FILES.path();
    BatchWorker::new(max_parts)
        .with(Range)
        .with(List)
        .with(Lines::new(root))
        .with(Glob::new(root))
        .with(RecordFiles::new(root))
        .with(Words)
        .with(Slow)
}

fn task(batch_type: &str, definition: &str) -> BatchTask {
    BatchTask {
        batch_type: Some(batch_type.into()),
        batch_definition: Some(definition.into()),
        task_message_type: Some(Item::CLASSIFIER.into()),
        task_message_params: None,
        target_pipe: Some("items".into()),
    }
}

async fn explained(splitter: &Splitter, task: &BatchTask) -> Result<Explanation, SplitError> {
    let until = Instant::now() + Duration::from_hours(1);
    explain(
        splitter.known(task, None).unwrap(),
        task,
        (until, &splitter.readers),
    )
    .await
}

/// Runs the splits of a batch. Returns the numbers as an explanation has them, and the data of the
/// items.
async fn run(worker: &BatchWorker, batch: BatchTask) -> (Explanation, Vec<String>) {
    let mut run = Explanation {
        exact: true,
        batch_type: batch.batch_type.clone().unwrap(),
        target_pipe: batch.target_pipe.clone(),
        ..Explanation::default()
    };
    let (mut items, mut open) = (Vec::new(), vec![(batch, 1)]);
    while let Some((batch, level)) = open.pop() {
        let split = testing::run(worker, batch).await;
        split.result.as_ref().unwrap();
        run.splits += 1;
        run.levels = run.levels.max(level);
        run.messages += split.dispatched_count() as u64;
        for (pipe, Item(item)) in split.dispatched() {
            assert_eq!(pipe, "items");
            items.push(item.get().to_owned());
        }
        let batches = split.dispatched::<BatchTask>();
        for (_, batch) in batches.into_iter().rev() {
            run.bytes += serde_json::to_vec(&batch).unwrap().len() as u64;
            open.push((batch, level + 1));
        }
    }
    run.items = items.len() as u64;
    run.bytes += items.iter().map(String::len).sum::<usize>() as u64;
    (run, items)
}

fn definition() -> impl Strategy<Value = (&'static str, String)> {
    let word = "!{0,2}[a\"]{1,3}";
    let file = proptest::sample::select(&["a", "b", "d/e/c", "d/long"][..]);
    let files = proptest::collection::hash_set(file, 0..4);
    let records = proptest::sample::select(&["a", "b", "rows", "none"][..]);
    let records = proptest::collection::hash_set(records, 1..4);
    let folder = proptest::sample::select(&[".", "d", "many", "none"][..]);
    let pattern = proptest::sample::select(&["**", "*", "**/c", "many/1*", "nothing"][..]);
    prop_oneof![
        (0_u64..120_000, 0_u64..2500)
            .prop_map(|(first, more)| { ("range", format!("{first}-{}", first + more)) }),
        proptest::collection::vec(any::<u16>(), 0..400)
            .prop_map(|values| ("list", serde_json::to_string(&values).unwrap())),
        proptest::collection::vec(word, 0..60).prop_map(|words| ("words", words.join(","))),
        (files, 1_u64..40_000).prop_map(|(files, lines)| {
            let definition = serde_json::json!({"files": files, "linesPerItem": lines});
            ("lines", definition.to_string())
        }),
        (records, 1_u64..4).prop_map(|(files, per_item)| {
            let definition =
                serde_json::json!({"files": files, "format": "lines", "recordsPerItem": per_item});
            ("records", definition.to_string())
        }),
        (folder, pattern.clone()).prop_map(|(folder, pattern)| {
            let definition = serde_json::json!({"folder": folder, "pattern": pattern});
            ("glob", definition.to_string())
        }),
        (any::<bool>(), pattern).prop_map(|(is_there, pattern)| {
            let folder = if is_there { "d" } else { "none" };
            let definition =
                serde_json::json!({"folder": folder, "pattern": pattern, "format": "lines", "recordsPerItem": 100});
            ("records", definition.to_string())
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn an_explanation_says_what_a_run_then_makes(
        (batch_type, definition) in definition(),
        max_parts in 10_usize..40,
        params in proptest::option::of("[a\"]{0,9}"),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let worker = worker(max_parts);
        let params = params.map(|value| BTreeMap::from([("p".to_owned(), value)]));
        let batch = BatchTask { task_message_params: params, ..task(batch_type, &definition) };
        let explained = runtime.block_on(explained(&worker.splitter, &batch));
        let Ok(explained) = explained else {
            let split = runtime.block_on(testing::run(&worker, batch));
            prop_assert!(split.result.is_err());
            return Ok(());
        };
        let (run, items) = runtime.block_on(run(&worker, batch));
        let data = |items: &[ExplainedItem]| -> Vec<String> {
            items.iter().map(|item| item.data.clone()).collect()
        };
        let (first, others) = items.split_at(items.len().min(SHOWN));
        prop_assert_eq!(data(&explained.first), first);
        // Walked from the front, a sub-batch comes where its parent has it.
        let last = &others[others.len().saturating_sub(SHOWN)..];
        prop_assert_eq!(data(&explained.last), last);
        prop_assert_eq!(Explanation { first: Vec::new(), last: Vec::new(), ..explained }, run);
    }
}

#[tokio::test]
async fn a_range_of_a_quadrillion_numbers_is_explained_without_being_split() {
    let worker = worker(1000).max_items(u64::MAX);
    let began = std::time::Instant::now();
    let task = task("range", "1-1000000000000000");
    let explained = explained(&worker.splitter, &task).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    // Splits of 1000 parts each: 1 + 1000 + 1000^2 + 1000^3 + 1000^4.
    let splits = 1_001_001_001_001;
    assert_eq!((explained.exact, explained.levels), (true, 5));
    assert_eq!(
        (explained.items, explained.splits),
        (1_000_000_000_000_000, splits)
    );
    assert_eq!(explained.messages, explained.items + splits - 1);
    let labels = |items: &[ExplainedItem]| -> Vec<String> {
        items.iter().map(|item| item.label.clone()).collect()
    };
    assert_eq!(
        labels(&explained.first),
        ["number 1", "number 2", "number 3"]
    );
    assert_eq!(
        labels(&explained.last),
        [
            "number 999999999999998",
            "number 999999999999999",
            "number 1000000000000000"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_explained_as_far_as_was_looked() {
    let (worker, task) = (worker(10), task("slow", "1000"));
    let known = worker.splitter.known(&task, None).unwrap();
    let began = Instant::now();
    let until = began + Duration::from_millis(4500);
    let explained = explain(known, &task, (until, &worker.splitter.readers))
        .await
        .unwrap();
    assert_eq!(began.elapsed(), Duration::from_millis(4500));
    assert_eq!(
        (explained.exact, explained.items, explained.splits),
        (false, 4, 4)
    );
    assert_eq!(explained.first.len(), 3);
    assert_eq!(explained.last, []);
    // Half of the first split, and half of the rest with each further one.
    assert_eq!(
        (explained.looked_at, explained.estimated_items),
        (Some(0.9375), Some(4))
    );
}

#[tokio::test]
async fn splits_that_are_done_at_once_end_in_time_too() {
    let (worker, task) = (worker(10), task("words", "a"));
    let known = worker.splitter.known(&task, None).unwrap();
    let explained = explain(known, &task, (Instant::now(), &worker.splitter.readers))
        .await
        .unwrap();
    assert_eq!((explained.exact, explained.splits), (false, 0));
    assert_eq!(
        (explained.looked_at, &*explained.notes),
        (Some(0.0), &[NO_ITEM.to_owned()][..])
    );
}

#[tokio::test]
async fn a_sub_batch_that_would_fail_is_told_with_what_comes_before_it() {
    let worker = BatchWorker::new(10).with(Failing);
    let task = task("failing", "ok");
    let explained = explained(&worker.splitter, &task).await.unwrap();
    let problem = "batch definition of failing: \"bad\" is bad";
    assert_eq!(explained.problem.as_deref(), Some(problem));
    assert_eq!(
        (explained.exact, explained.items, explained.splits),
        (false, 1, 1)
    );
}

/// Makes a sub-batch that it refuses.
struct Failing;

impl BatchPlugin for Failing {
    const NAME: &'static str = "failing";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        match batch.definition {
            "bad" => Err(SplitError::Definition("\"bad\" is bad".to_owned())),
            _ => Ok(vec![
                batch.item("Good", "1")?,
                Part::Batch("bad".to_owned()),
            ]),
        }
    }
}
