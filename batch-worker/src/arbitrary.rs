//! Properties of every plugin: an arbitrary definition, of a user or of a sub-batch, is split or
//! refused within limits of memory and time.
//!
//! The allocator of this test binary aborts the process beyond [`MEMORY`]. `PROPTEST_CASES` sets
//! half the number of cases.

use std::alloc::System;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cap::Cap;
use contract::LineRange;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::plugin::AnyPlugin;
use crate::source::Root;
use crate::{Batch, Glob, Lines, List, Part, Range, RecordFiles, SplitError};

/// The most memory that all tests of this binary may have at any time.
const MEMORY: usize = 512 * 1024 * 1024;
/// The longest time of one split, on a machine that does other things, too.
const TIME: Duration = Duration::from_secs(10);
/// The largest number of splits of one batch that are followed.
const SPLITS: usize = 12;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY);

/// A runtime that nobody waits for: a split that never ends must not keep its test from failing.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Files and folders, odd ones included.
static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir_all(at("d/e")).unwrap();
    std::fs::write(at("a"), "one\ntwo\n".repeat(500)).unwrap();
    std::fs::write(at("d/one-line"), "x".repeat(3 * 1024 * 1024)).unwrap();
    std::fs::write(at("d/empty"), "").unwrap();
    for n in 0..30 {
        std::fs::write(at(&format!("d/e/{n}")), "\n").unwrap();
    }
    std::os::unix::fs::symlink("/etc", at("out")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    root
});

static PLUGINS: LazyLock<[Box<dyn AnyPlugin>; 5]> = LazyLock::new(|| {
    [
        Box::new(Range),
        Box::new(List),
        Box::new(Lines::new(FILES.path())),
        Box::new(Glob::new(FILES.path())),
        Box::new(RecordFiles::new(FILES.path())),
    ]
});

const PATHS: &[&str] = &[
    "a",
    "./a",
    "a/",
    "d",
    "d/one-line",
    "d/empty",
    "d/e",
    "d/e/1",
    "d/e/2",
    ".",
    "",
    "..",
    "out/passwd",
    "loop",
    "nowhere",
    "a\0",
    "/etc/passwd",
];

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..10_u64,
        3990..4010_u64,
        Just(3 * 1024 * 1024),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        Just(1 << 63),
        any::<u64>(),
    ]
}

/// A path, most often one that exists, with its stamp or with another.
fn pinned() -> impl Strategy<Value = (String, u64, i64)> {
    let path = prop_oneof![
        8 => proptest::sample::select(PATHS).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    let other = proptest::option::weighted(0.2, (number(), any::<i64>()));
    (path, other).prop_map(|(path, other)| {
        let now = Root::new(FILES.path()).stamp(&path);
        let (size, modified) = match (now, other) {
            (Ok(now), None) => (now.size, now.modified),
            (_, other) => other.unwrap_or((1, 1)),
        };
        (path, size, modified)
    })
}

fn lines() -> impl Strategy<Value = Value> {
    let segment = (pinned(), number(), number()).prop_map(|((path, size, modified), from, to)| {
        json!({"path": path, "size": size, "modified": modified, "from": from, "to": to})
    });
    let files = proptest::collection::vec(proptest::sample::select(PATHS), 0..3);
    (files, proptest::collection::vec(segment, 0..30), number()).prop_map(
        |(files, segments, lines)| match files.as_slice() {
            [] => json!({"segments": segments, "linesPerItem": lines}),
            _ if segments.len() < 20 => json!({"files": files, "linesPerItem": lines}),
            _ => json!({"files": files, "segments": segments, "linesPerItem": lines}),
        },
    )
}

fn glob() -> impl Strategy<Value = Value> {
    let entry = (pinned(), any::<bool>()).prop_map(|((path, size, modified), is_file)| {
        if is_file {
            json!({"path": path, "size": size, "modified": modified})
        } else {
            json!({"path": path, "modified": modified})
        }
    });
    let pattern = prop_oneof!["[*?/a]{0,40}", "(\\*\\*/)?[*a]{0,5}", any::<String>()];
    let place = prop_oneof![
        proptest::sample::select(PATHS).prop_map(|folder| json!({"folder": folder})),
        (
            proptest::sample::select(PATHS),
            proptest::collection::vec(entry, 0..30)
        )
            .prop_map(|(base, entries)| json!({"base": base, "entries": entries})),
    ];
    (place, pattern).prop_map(|(mut definition, pattern)| {
        definition["pattern"] = Value::String(pattern);
        definition
    })
}

fn records() -> impl Strategy<Value = Value> {
    const FORMATS: &[&str] = &["lines", "csv", "tsv", "jsonl", "json"];
    let part = (
        pinned(),
        number(),
        number(),
        0..9_u64,
        proptest::option::of(number()),
    );
    let part = part.prop_map(|((path, size, modified), from, to, first, records)| {
        let mut part = json!({"path": path, "size": size, "modified": modified, "from": from, "to": to, "first": first});
        if let Some(records) = records {
            part["records"] = records.into();
        }
        part
    });
    let format = proptest::sample::select(FORMATS);
    let files = proptest::collection::vec(proptest::sample::select(PATHS), 1..3);
    let place = prop_oneof![
        files.prop_map(|files| json!({ "files": files })),
        part.prop_map(|part| json!({ "part": part })),
    ];
    (place, format, number(), any::<bool>()).prop_map(|(mut definition, format, count, header)| {
        definition["format"] = format.into();
        definition["recordsPerItem"] = (count % 9).into();
        definition["header"] = header.into();
        definition
    })
}

fn list() -> impl Strategy<Value = Value> {
    let values = proptest::collection::vec(any::<String>().prop_map(Value::String), 0..40);
    values.prop_map(Value::Array)
}

fn range() -> impl Strategy<Value = String> {
    (number(), number()).prop_map(|(first, last)| format!("{first}-{last}"))
}

/// A plugin's definition as text, and sometimes a text that only begins like one.
fn definition() -> impl Strategy<Value = (usize, String)> {
    let text = prop_oneof![
        range().prop_map(|text| (0, text)),
        list().prop_map(|value| (1, value.to_string())),
        lines().prop_map(|value| (2, value.to_string())),
        glob().prop_map(|value| (3, value.to_string())),
        records().prop_map(|value| (4, value.to_string())),
    ];
    let cut = proptest::option::weighted(0.05, any::<(proptest::sample::Index, String)>());
    (text, cut).prop_map(|((plugin, text), cut)| match cut {
        Some((at, end)) => {
            let at = text.floor_char_boundary(at.index(text.len() + 1));
            (plugin, format!("{}{end}", &text[..at]))
        }
        None => (plugin, text),
    })
}

/// Splits a batch and some of its sub-batches. Returns how often, and the longest time of one
/// split.
fn follow(
    plugin: &'static dyn AnyPlugin,
    definition: String,
    max_parts: usize,
) -> Result<(usize, Duration), TestCaseError> {
    let (mut open, mut splits, mut longest) = (vec![definition], 0, Duration::ZERO);
    let mut lines: BTreeMap<(String, u64), u64> = BTreeMap::new();
    while let Some(definition) = open.pop() {
        if splits == SPLITS {
            break;
        }
        splits += 1;
        let began = Instant::now();
        let text = definition.clone();
        // A task of its own, because a plugin that loops without a pause would never let the time
        // run out.
        let splitting = RUNTIME.spawn(async move {
            let batch = Batch::of(&text, max_parts);
            plugin.split(batch).await
        });
        let split = RUNTIME.block_on(async { tokio::time::timeout(TIME, splitting).await });
        longest = longest.max(began.elapsed());
        let Ok(split) = split else {
            return Err(TestCaseError::fail(format!(
                "{definition} takes longer than {TIME:?}"
            )));
        };
        let split = split.map_err(|panic| {
            TestCaseError::fail(format!("{definition} makes the plugin panic: {panic}"))
        });
        let parts = match split? {
            Ok(parts) => parts,
            Err(SplitError::Definition(reason) | SplitError::Missing(reason)) => {
                prop_assert!(!reason.is_empty());
                continue;
            }
            Err(SplitError::Temporary(error)) => {
                return Err(TestCaseError::fail(format!(
                    "{definition} is retried: {error}"
                )));
            }
        };
        prop_assert!(
            parts.len() <= max_parts,
            "{} parts of {definition}",
            parts.len()
        );
        for part in parts {
            match part {
                Part::Batch(part) => {
                    prop_assert_ne!(&part, &definition);
                    open.push(part);
                }
                Part::Item(item) => {
                    if let Ok(item) = serde_json::from_slice::<LineRange>(&item.data) {
                        let file = Path::new(&item.path).components().as_path().to_owned();
                        let size = std::fs::metadata(FILES.path().join(&file)).unwrap().len();
                        prop_assert!(
                            item.offset
                                .checked_add(item.length)
                                .is_some_and(|end| end <= size)
                        );
                        let named = format!("{}", file.display());
                        prop_assert_eq!(lines.insert((named, item.offset), item.length), None);
                    }
                }
            }
        }
    }
    Ok((splits, longest))
}

#[test]
fn arbitrary_definitions_need_little_memory_and_time() {
    let config = ProptestConfig {
        // Twice its number, for five plugins.
        cases: ProptestConfig::default().cases * 2,
        max_shrink_time: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = (
        definition(),
        proptest::sample::select(&[10_usize, 11, 1000][..]),
    );
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let totals = RefCell::new((0, 0, Duration::ZERO));
    let result = runner.run(&strategy, |((plugin, definition), max_parts)| {
        let (count, time) = follow(&*PLUGINS[plugin], definition, max_parts)?;
        let mut totals = totals.borrow_mut();
        *totals = (totals.0 + 1, totals.1 + count, totals.2.max(time));
        Ok(())
    });
    let (runs, splits, longest) = totals.into_inner();
    println!(
        "{runs} cases, {splits} splits, the longest {longest:?}, at most {} KiB",
        ALLOCATOR.max_allocated() / 1024
    );
    if let Err(error) = result {
        panic!("{error}");
    }
}
