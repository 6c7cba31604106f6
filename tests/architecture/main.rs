//! The dependencies between crates and modules, and the conventions that no lint checks.
//!
//! Dependencies of crates are read from `cargo metadata`, everything else from the source files. A
//! failure lists each place as `file:line` with the rule it breaks. To change a rule, change its
//! table here and give the reason in `docs/adr/`.

#![expect(clippy::panic, reason = "this is how a test fails")]

mod code;
mod crates;
mod modules;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use self::code::{Source, sources};

/// A longer file hides more than one decision.
const LONGEST_FILE: usize = 700;
/// As many as rustfmt gives the code.
const COMMENT_COLUMNS: usize = 100;

#[test]
fn every_task_is_spawned_through_a_tracker() {
    let rule = "spawn tasks through a `TaskTracker` and stop them by a token; `tokio::spawn` forgets the task";
    let loose = |code: &str| {
        code.contains("tokio::spawn(")
            || code.contains("task::spawn(")
            || code.contains("tokio::spawn;")
    };
    report(
        &sources()
            .iter()
            .flat_map(|source| source.lines_where(loose, rule))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn the_environment_is_read_only_in_main() {
    let rule = "the environment is read once, in `main`: take the value as a parameter";
    let reads = |code: &str| {
        ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("]
            .iter()
            .any(|read| code.contains(read))
    };
    let mut broken = Vec::new();
    // The `main` of a worker's author calls `Runtime::from_env`, once. The library of proxies reads
    // their variables by itself, and one of them is read beside it.
    let others = ["framework/src/runtime.rs", "framework/src/http/connect.rs"];
    let begins =
        |source: &&Source| source.path.ends_with("/main.rs") || others.contains(&&*source.path);
    for source in sources().iter().filter(|source| !begins(source)) {
        broken.extend(source.lines_where(reads, rule));
    }
    report(&broken);
}

#[test]
fn no_source_file_is_too_long() {
    let long = |source: &Source| {
        let lines = source.code.lines().count();
        let rule = || {
            format!(
                "{lines} lines, more than {LONGEST_FILE}: move one of its decisions to a file of its own"
            )
        };
        (lines > LONGEST_FILE).then(|| Place {
            path: source.path.clone(),
            line: LONGEST_FILE + 1,
            rule: rule(),
        })
    };
    report(&sources().iter().filter_map(long).collect::<Vec<_>>());
}

#[test]
fn lines_of_comments_fit_the_width_of_the_code() {
    let mut broken = Vec::new();
    for path in files(&root(), &is_rust) {
        let text = std::fs::read_to_string(root().join(&path))
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        let mut in_example = false;
        for (index, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                in_example = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            in_example ^= comment.starts_with("```");
            // A table or a long word cannot be wrapped.
            let can_be_wrapped = comment.contains(' ') && !comment.starts_with('|');
            if can_be_wrapped && !in_example && line.chars().count() > COMMENT_COLUMNS {
                broken.push(Place {
                    path: path.clone(),
                    line: index + 1,
                    rule: format!("a line of a comment has at most {COMMENT_COLUMNS} columns"),
                });
            }
        }
    }
    report(&broken);
}

#[test]
fn published_migrations_never_change() {
    let file = "tests/migrations.sha256";
    let text = std::fs::read_to_string(root().join(file))
        .unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
    let mut listed: BTreeSet<&str> = text.lines().collect();
    let mut broken = Vec::new();
    for path in files(&root(), &|path| path.starts_with("migrations/")) {
        let content = std::fs::read(root().join(&path))
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        let mut line = String::new();
        for byte in Sha256::digest(&content) {
            let _ = write!(line, "{byte:02x}");
        }
        let _ = write!(line, "  {path}");
        if !listed.remove(line.as_str()) {
            let rule = format!(
                "a published migration never changes; write a new one and add it: sha256sum {path} >> {file}"
            );
            broken.push(Place {
                path,
                line: 1,
                rule,
            });
        }
    }
    broken.extend(listed.iter().map(|line| Place {
        path: file.to_owned(),
        line: 1,
        rule: format!("a published migration is gone or has changed: {line}"),
    }));
    report(&broken);
}

#[test]
fn the_guide_shows_the_first_worker_and_it_is_short() {
    let read = |path: &str| {
        std::fs::read_to_string(root().join(path))
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
    };
    let (guide, code) = (
        read("docs/first-worker.md"),
        read("docs/first-worker/src/main.rs"),
    );
    let worker = code
        .split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .trim_end();
    assert!(
        guide.contains(&format!("```rust\n{worker}\n```")),
        "docs/first-worker.md differs from docs/first-worker/src/main.rs"
    );
    let lines = worker
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    assert!(
        lines <= 60,
        "the first worker has {lines} lines; it should fit on a screen"
    );
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    // In two pieces, or this file would name them.
    let homes = [
        ["/ho", "me/"],
        ["/Use", "rs/"],
        ["/ro", "ot/"],
        ["/wo", "rk/"],
        ["/tmp/", "wt/"],
    ]
    .map(|pieces| pieces.concat());
    let mut broken = Vec::new();
    for path in files(&root(), &|_| true) {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (index, line) in text.lines().enumerate() {
            let begins = |at: usize| {
                !line[..at]
                    .ends_with(|before: char| before.is_alphanumeric() || "_-.}*".contains(before))
            };
            if homes
                .iter()
                .any(|home| line.match_indices(home.as_str()).any(|(at, _)| begins(at)))
            {
                broken.push(Place {
                    path: path.clone(),
                    line: index + 1,
                    rule: "a path of one machine means nothing on another".to_owned(),
                });
            }
        }
    }
    report(&broken);
}

/// A place where a rule is broken.
struct Place {
    path: String,
    line: usize,
    rule: String,
}

#[track_caller]
fn report(broken: &[Place]) {
    let mut text = String::new();
    for Place { path, line, rule } in broken {
        let _ = writeln!(text, "{path}:{line}: {rule}");
    }
    assert!(broken.is_empty(), "{} broken:\n{text}", broken.len());
}

fn is_rust(path: &str) -> bool {
    let extension = Path::new(path).extension();
    extension.is_some_and(|extension| extension == "rs")
}

/// Returns the files below `root` for which `matches` returns true, sorted, relative to `root`.
/// Build output and hidden files are left out.
fn files(root: &Path, matches: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()));
        for entry in entries.flatten() {
            let (path, name) = (
                entry.path(),
                entry.file_name().to_string_lossy().into_owned(),
            );
            let relative = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if name != "target" && (!name.starts_with('.') || name == ".ci") {
                    open.push(path);
                }
            } else if !name.starts_with('.') && matches(&relative) {
                found.push(relative);
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    // The crate `tests` is directly below the root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap_or_else(|error| panic!("no root: {error}"))
}
