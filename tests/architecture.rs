//! The dependencies between crates and modules, and the conventions that no lint checks.
//!
//! Dependencies of crates are read from `cargo metadata`, everything else from the source files. A failure lists each
//! place as `file:line` with the rule it breaks. To change a rule, change its table here and give the reason in
//! `docs/adr/`.

#![expect(clippy::panic, reason = "this is how a test fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use sha2::{Digest as _, Sha256};

/// The crates of the project that each crate may depend on. The tests of every crate may use the harness, too.
///
/// The roles (batch, tracking and example worker, job service) do not know each other; only `batchwright` composes
/// them.
const ARROWS: &[(&str, &[&str])] = &[
    ("contract", &[]),
    ("faults", &[]),
    ("harness", &["faults"]),
    ("framework", &["contract"]),
    ("store", &["contract"]),
    ("instructions", &["contract", "framework", "store"]),
    ("batch-worker", &["contract", "framework"]),
    ("example-worker", &["contract", "framework"]),
    ("tracking-worker", &["contract", "framework", "store"]),
    ("blobs", &[]),
    ("page", &["contract"]),
    (
        "output-worker",
        &["blobs", "contract", "framework", "store"],
    ),
    (
        "job-service",
        &["blobs", "contract", "framework", "page", "store"],
    ),
    (
        "batchwright",
        &[
            "contract",
            "framework",
            "store",
            "blobs",
            "batch-worker",
            "example-worker",
            "tracking-worker",
            "output-worker",
            "job-service",
            // `batchwright chaos` starts servers and processes, and makes them fail.
            "faults",
        ],
    ),
    (
        "tests",
        &[
            "contract",
            "framework",
            "store",
            "blobs",
            "batch-worker",
            "example-worker",
            "tracking-worker",
            "output-worker",
            "job-service",
            "batchwright",
            "harness",
        ],
    ),
];

/// Libraries that only a few files may name, so that a change of broker, database or web framework stays in them.
const SECRETS: &[(&str, &[&str])] = &[
    (
        "lapin",
        &["framework/src/broker/amqp.rs", "framework/src/broker/amqp/"],
    ),
    (
        "sqlx",
        &[
            "store/",
            "framework/src/broker/embedded",
            // The table of a worker's own, as an author would write it; no data of the system.
            "batchwright/src/chaos/effects.rs",
        ],
    ),
    ("opentelemetry", &["framework/src/trace/otlp.rs"]),
    (
        "axum",
        &[
            "job-service/",
            "framework/src/telemetry.rs",
            "framework/src/telemetry/",
        ],
    ),
];

/// A longer file hides more than one decision.
const LONGEST_FILE: usize = 700;

#[test]
fn crates_depend_only_on_the_crates_in_the_table() {
    let mut broken = Vec::new();
    let metadata = metadata();
    let parts: Vec<&str> = metadata
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    for package in &metadata.packages {
        let Some((_, allowed)) = ARROWS
            .iter()
            .find(|(part, _)| *part == package.name.as_str())
        else {
            broken.push(Place::of(
                &metadata,
                package,
                "[package]",
                "a new crate needs an entry in ARROWS",
            ));
            continue;
        };
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| parts.contains(&dependency.name.as_str()))
        {
            // A crate is its own dependency to enable a feature that only its tests need.
            let for_tests = dependency.kind == DependencyKind::Development
                && (dependency.name == "harness" || dependency.name == package.name.as_str());
            if !for_tests && !allowed.contains(&dependency.name.as_str()) {
                let rule = format!(
                    "{} must not depend on {}, only on {allowed:?}",
                    package.name, dependency.name
                );
                broken.push(Place::of(&metadata, package, &dependency.name, &rule));
            }
        }
    }
    report(&broken);
}

#[test]
fn hidden_libraries_are_dependencies_of_their_crates_only() {
    let mut broken = Vec::new();
    let metadata = metadata();
    for package in &metadata.packages {
        for (library, keepers) in SECRETS {
            let shipped = |kind| matches!(kind, DependencyKind::Normal | DependencyKind::Build);
            let depends = package
                .dependencies
                .iter()
                .any(|dependency| dependency.name == *library && shipped(dependency.kind));
            let keeps = keepers
                .iter()
                .any(|keeper| keeper.starts_with(&format!("{}/", package.name)));
            if depends && !keeps {
                let rule = format!("only {keepers:?} may know {library}");
                broken.push(Place::of(&metadata, package, library, &rule));
            }
        }
    }
    report(&broken);
}

#[test]
fn hidden_libraries_are_named_in_their_files_only() {
    let mut broken = Vec::new();
    for source in sources() {
        for (library, keepers) in SECRETS {
            if !keepers.iter().any(|keeper| source.path.starts_with(keeper)) {
                let rule = format!("only {keepers:?} may name {library}");
                broken.extend(
                    source.lines_where(|code| words(code).any(|word| word == *library), &rule),
                );
            }
        }
    }
    report(&broken);
}

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
    // The `main` of a worker's author calls `Runtime::from_env`, once.
    let begins = |source: &&Source| {
        source.path.ends_with("/main.rs") || source.path == "framework/src/runtime.rs"
    };
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
fn modules_of_a_crate_form_no_circle() {
    let arrows = arrows();
    let reaches = |package: &str, from: &str, goal: &str| {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(module) = open.pop() {
            let next = arrows
                .iter()
                .filter(|arrow| arrow.package == package && arrow.from == module);
            open.extend(
                next.map(|arrow| arrow.to.as_str())
                    .filter(|to| seen.insert(to)),
            );
        }
        seen.contains(goal)
    };
    let mut broken = Vec::new();
    for Arrow {
        package,
        from,
        to,
        path,
        line,
    } in &arrows
    {
        if reaches(package, to, from) {
            broken.push(Place {
                path: path.clone(),
                line: *line,
                rule: format!("{from} uses {to}, which uses {from}: move what both need"),
            });
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

#[test]
fn comments_and_strings_are_not_code() {
    let source = r##"
let a = "lapin \" lapin"; // lapin
/* lapin /* lapin */ lapin */ let b = 'l';
let c = r#"lapin " lapin"#; let d: &'static str = b"lapin";
let quote = '"'; use lapin; let e = '\''; lapin::x();
"##;
    let lines: Vec<usize> = code_of(source)
        .lines()
        .enumerate()
        .filter(|(_, code)| words(code).any(|word| word == "lapin"))
        .map(|(at, _)| at)
        .collect();
    assert_eq!(lines, [4], "{}", code_of(source));
    assert_eq!(code_of(source).lines().count(), source.lines().count());
}

/// A module that names another module of its crate.
struct Arrow {
    package: String,
    from: String,
    to: String,
    path: String,
    line: usize,
}

/// Returns the arrows between the top-level modules of each crate. Tests may use whatever they need.
fn arrows() -> Vec<Arrow> {
    let sources = sources();
    let modules: BTreeSet<(&str, &str)> = sources.iter().filter_map(module).collect();
    let mut arrows = Vec::new();
    for source in &sources {
        let Some((package, from)) = module(source) else {
            continue;
        };
        let code = match source.code.rfind("#[cfg(test)]") {
            Some(at) if source.code[at..].contains("mod tests {") => &source.code[..at],
            _ => &source.code,
        };
        for (at, path) in code.match_indices("crate::") {
            for to in first_names(&code[at + path.len()..]) {
                if to != from && modules.contains(&(package, to)) {
                    arrows.push(Arrow {
                        package: package.to_owned(),
                        from: from.to_owned(),
                        to: to.to_owned(),
                        path: source.path.clone(),
                        line: code[..at].lines().count(),
                    });
                }
            }
        }
    }
    arrows
}

/// Returns the crate and the top-level module of a source; `None` for roots and for modules of tests.
fn module(source: &Source) -> Option<(&str, &str)> {
    let (package, file) = source.path.split_once("/src/")?;
    let module = file.split('/').next()?.trim_end_matches(".rs");
    let is_root = ["lib", "main", "bin"].contains(&module);
    let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
    (!is_root && !is_test).then_some((package, module))
}

/// Returns the first names of the paths behind `crate::`: one name, or those of a list in braces.
fn first_names(code: &str) -> Vec<&str> {
    if !code.starts_with('{') {
        return words(code).take(1).collect();
    }
    let (mut depth, mut begins, mut names) = (0, false, Vec::new());
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match c {
            '}' if depth == 0 => break,
            '{' | ',' => begins = depth == 1,
            c if begins && !c.is_whitespace() => {
                names.extend(words(&code[at..]).next());
                begins = false;
            }
            _ => {}
        }
    }
    names
}

#[test]
fn paths_in_braces_are_read_one_by_one() {
    assert_eq!(first_names("one::two;"), ["one"]);
    assert_eq!(
        first_names("{one::{a, b},\n    two, three::c};\nuse four;"),
        ["one", "two", "three"]
    );
}

/// A place where a rule is broken.
struct Place {
    path: String,
    line: usize,
    rule: String,
}

impl Place {
    /// Returns the first line of a package's manifest that begins with `what`.
    fn of(metadata: &Metadata, package: &Package, what: &str, rule: &str) -> Self {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap_or_default();
        let line = manifest
            .lines()
            .position(|line| line.starts_with(what))
            .unwrap_or_default()
            + 1;
        let path = package
            .manifest_path
            .strip_prefix(&metadata.workspace_root)
            .unwrap_or(&package.manifest_path);
        Self {
            path: path.to_string(),
            line,
            rule: rule.to_owned(),
        }
    }
}

#[track_caller]
fn report(broken: &[Place]) {
    let mut text = String::new();
    for Place { path, line, rule } in broken {
        let _ = writeln!(text, "{path}:{line}: {rule}");
    }
    assert!(broken.is_empty(), "{} broken:\n{text}", broken.len());
}

/// A source file of the product, below the `src` of a crate. The tests' own crates are left out.
struct Source {
    /// Relative to the root, with `/`.
    path: String,
    /// The code without comments and the contents of strings, with the same lines.
    code: String,
}

impl Source {
    fn lines_where(&self, is_wrong: impl Fn(&str) -> bool, rule: &str) -> Vec<Place> {
        let lines = self
            .code
            .lines()
            .enumerate()
            .filter(|(_, code)| is_wrong(code));
        lines
            .map(|(index, _)| Place {
                path: self.path.clone(),
                line: index + 1,
                rule: rule.to_owned(),
            })
            .collect()
    }
}

fn sources() -> Vec<Source> {
    let is_source = |path: &str| {
        Path::new(path)
            .extension()
            .is_some_and(|extension| extension == "rs")
            && path.contains("/src/")
            && !path.starts_with("tests/")
    };
    let paths = files(&root(), &is_source);
    assert!(
        paths.len() >= 10,
        "the sources are not where this test looks for them: {paths:?}"
    );
    let read = |path: String| {
        let text = std::fs::read_to_string(root().join(&path))
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        Source {
            code: code_of(&text),
            path,
        }
    };
    paths.into_iter().map(read).collect()
}

/// Returns the files below `root` for which `matches` returns true, sorted, relative to `root`. Build output and hidden
/// files are left out.
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

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command
        .exec()
        .unwrap_or_else(|error| panic!("cargo metadata: {error}"))
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Returns a Rust source in which comments and the contents of string and character literals are blank.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let blank = literal_or_comment(rest, code.chars().next_back());
        if blank == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(
                rest[..blank]
                    .chars()
                    .map(|c| if c == '\n' { '\n' } else { ' ' }),
            );
            rest = &rest[blank..];
        }
    }
    code
}

/// Returns the length of the comment or literal at the beginning of `text`; 0 if there is neither.
fn literal_or_comment(text: &str, before: Option<char>) -> usize {
    let until = |end: &str, from: usize| {
        text[from..]
            .find(end)
            .map_or(text.len(), |at| from + at + end.len())
    };
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with("//") {
        text.find('\n').unwrap_or(text.len())
    } else if text.starts_with("/*") {
        nested_comment(text)
    } else if text.starts_with('"') {
        quoted(text, '"')
    } else if text.starts_with("'\\") {
        quoted(text, '\'')
    } else if text.starts_with('\'') {
        // A character literal has its closing quote right after it, a lifetime does not.
        let mut characters = text.char_indices().skip(2);
        if characters.next().is_some_and(|(_, c)| c == '\'') {
            until("'", 1)
        } else {
            0
        }
    } else if let (false, Some(raw)) = (
        in_word,
        text.strip_prefix("br").or_else(|| text.strip_prefix('r')),
    ) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            until(
                &format!("\"{}", "#".repeat(hashes)),
                text.len() - raw.len() + hashes + 1,
            )
        } else {
            0
        }
    } else {
        0
    }
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn nested_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}
