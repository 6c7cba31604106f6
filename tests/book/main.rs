//! The documentation: every page is in the table of contents, every link leads somewhere, every
//! example is one of its language.
//!
//! The pages are read on a code-hosting site and as a book (`mdbook build docs`). Other tests run
//! the commands of pages, compile their Rust and compare their tables with the program. A failure
//! lists each place as `file:line`.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "this is how a test fails"
)]

mod markdown;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use pulldown_cmark::HeadingLevel;

use self::markdown::Page;

/// The pages that are not part of the book.
const BESIDE: [&str; 4] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
];

/// The table of contents.
const CONTENTS: &str = "docs/SUMMARY.md";

/// The pages of the first hour, whose commands fit a terminal of 80 columns.
const FIRST_HOUR: [&str; 4] = [
    "README.md",
    "docs/first-job.md",
    "docs/first-worker.md",
    "docs/split-a-batch.md",
];

/// The longest line of a page. Tables and links cannot be broken.
const WIDEST: usize = 150;

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let contents = Page::read(&root(), Path::new(CONTENTS));
    let mut wrong = Broken::default();
    let mut listed = BTreeSet::new();
    for (line, target) in &contents.links {
        if !listed.insert(resolved(&contents.path, target)) {
            wrong.add(&contents.path, *line, &format!("{target} is listed twice"));
        }
    }
    for page in book() {
        if page.path != contents.path && !listed.contains(&page.path) {
            wrong.add(&page.path, 1, &format!("the page is not in {CONTENTS}"));
        }
    }
    wrong.report();
}

#[test]
fn every_link_leads_to_a_page_a_section_or_a_file() {
    let pages: BTreeMap<PathBuf, Page> =
        all_pages().map(|page| (page.path.clone(), page)).collect();
    let mut wrong = Broken::default();
    for page in pages.values() {
        for (line, target) in &page.links {
            if target.contains("://") {
                continue;
            }
            let (file, section) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => page.path.clone(),
                file => resolved(&page.path, file),
            };
            if !root().join(&file).exists() {
                wrong.add(&page.path, *line, &format!("{target} does not exist"));
            } else if page.path.starts_with("docs") && !file.starts_with("docs") {
                let text =
                    format!("{target} is not part of the book, where the link would lead nowhere");
                wrong.add(&page.path, *line, &text);
            } else if !section.is_empty()
                && pages
                    .get(&file)
                    .is_none_or(|it| !it.anchors.contains(section))
            {
                wrong.add(
                    &page.path,
                    *line,
                    &format!("{target}: there is no such section"),
                );
            }
        }
    }
    wrong.report();
}

#[test]
fn every_page_has_one_title_something_to_read_and_lines_of_a_readable_length() {
    let mut wrong = Broken::default();
    for page in all_pages().filter(|it| it.path != Path::new(CONTENTS)) {
        let titles = page
            .headings
            .iter()
            .filter(|(level, _)| *level == HeadingLevel::H1);
        if titles.count() != 1 || !page.text.starts_with("# ") {
            wrong.add(&page.path, 1, "a page begins with its title, the only one");
        }
        if page.text.split_whitespace().count() < 60 {
            wrong.add(
                &page.path,
                1,
                "the page is empty; leave it out until there is something to say",
            );
        }
        for (index, line) in page.text.lines().enumerate() {
            if line.chars().count() > WIDEST
                && !line.starts_with('|')
                && line.trim_start().contains(' ')
            {
                wrong.add(
                    &page.path,
                    index + 1,
                    &format!("the line has more than {WIDEST} characters"),
                );
            }
        }
    }
    wrong.report();
}

#[test]
fn commands_of_the_first_hour_fit_a_terminal() {
    let mut wrong = Broken::default();
    for page in FIRST_HOUR.map(|path| Page::read(&root(), Path::new(path))) {
        for example in page.examples.iter().filter(|it| it.language == "sh") {
            for line in example.code.lines().filter(|it| it.chars().count() > 80) {
                let problem = format!("the command has more than 80 columns: {line}");
                wrong.add(&page.path, example.line, &problem);
            }
        }
    }
    wrong.report();
}

#[test]
fn every_example_names_its_language_and_json_is_json() {
    let mut wrong = Broken::default();
    for page in all_pages() {
        for example in &page.examples {
            let problem = match example.language.as_str() {
                "" => Some("an example names its language; output is `text`".to_owned()),
                "json" => serde_json::from_str::<serde_json::Value>(&example.code)
                    .err()
                    .map(|error| format!("{error}; what is cut is `text`")),
                _ => None,
            };
            if let Some(problem) = problem {
                wrong.add(&page.path, example.line, &problem);
            }
        }
    }
    wrong.report();
}

#[test]
fn only_the_page_about_caf_speaks_of_it() {
    let mut wrong = Broken::default();
    let others = book().filter(|page| {
        !page.path.starts_with("docs/adr") && page.path != Path::new("docs/from-caf.md")
    });
    for page in others {
        for (index, line) in page.text.lines().enumerate() {
            let line = line.replace("CAF-Correlation-Id", "");
            if line.contains("CAF") && !line.contains("from-caf.md") {
                let text = "this belongs into docs/from-caf.md; other readers do not know CAF";
                wrong.add(&page.path, index + 1, text);
            }
        }
    }
    wrong.report();
}

#[test]
fn every_decision_is_listed() {
    let index = Page::read(&root(), Path::new("docs/adr/README.md"));
    let mut wrong = Broken::default();
    for page in book().filter(|it| it.path.starts_with("docs/adr") && it.path != index.path) {
        let file = page
            .path
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        let number: usize = file
            .get(..4)
            .and_then(|it| it.parse().ok())
            .unwrap_or_default();
        let title = &page.headings[0].1;
        match title.strip_prefix(&format!("{number}. ")) {
            Some(title) if index.text.contains(&format!("{number}. [{title}]({file})")) => (),
            Some(_) => wrong.add(&index.path, 1, &format!("{title} ({file}) is not listed")),
            None => wrong.add(
                &page.path,
                1,
                "the title begins with the number of the file",
            ),
        }
    }
    wrong.report();
}

#[test]
fn book_is_built_where_mdbook_is_installed() {
    let folder = std::env::temp_dir().join(format!("batchwright-book-{}", std::process::id()));
    let built = Command::new("mdbook")
        .arg("build")
        .arg(root().join("docs"))
        .arg("--dest-dir")
        .arg(&folder)
        .output();
    let Ok(built) = built else {
        harness::left_out("the book is not built, only checked (cargo install mdbook)");
        return;
    };
    let has_pages = book()
        .filter(|page| page.path != Path::new(CONTENTS))
        .all(|page| {
            let page = page
                .path
                .strip_prefix("docs")
                .map(|it| it.with_extension("html"));
            let page = page.unwrap_or_default();
            let shown = match page.file_stem() {
                Some(stem) if stem == "README" => page.with_file_name("index.html"),
                _ => page,
            };
            folder.join(shown).is_file()
        });
    let broken = broken_links(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    assert!(built.status.success() && has_pages, "{built:?}");
    assert!(
        broken.is_empty(),
        "links of the book that lead nowhere: {broken:#?}"
    );
}

/// Returns the links of the pages in the folder of a book that lead to no file of it.
fn broken_links(book: &Path) -> Vec<String> {
    let mut broken = Vec::new();
    for page in files(book) {
        // The print view has the links of all pages, as if they were in its folder.
        let is_page = page.extension() == Some(OsStr::new("html"));
        if !is_page || page.ends_with("print.html") || page.ends_with("404.html") {
            continue;
        }
        let html = std::fs::read_to_string(&page).unwrap();
        for target in html.split(" href=\"").skip(1) {
            let target = target.split(['"', '#']).next().unwrap_or_default();
            let is_of_book = !target.is_empty() && !target.contains(':');
            if is_of_book && !page.with_file_name(target).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    broken
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type() {
            Ok(of) if of.is_dir() => found.extend(files(&entry.path())),
            _ => found.push(entry.path()),
        }
    }
    found
}

/// Returns the pages of the book and those beside it.
fn all_pages() -> impl Iterator<Item = Page> {
    let beside = BESIDE.map(|path| Page::read(&root(), Path::new(path)));
    book().chain(beside)
}

/// Returns the pages of the book, the table of contents included.
fn book() -> impl Iterator<Item = Page> {
    let mut paths = BTreeSet::new();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root().join(&folder))
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            if root().join(&path).is_dir() {
                // What a reader's own build of the first worker makes.
                if path.file_name() != Some(OsStr::new("target")) {
                    folders.push(path);
                }
            } else if path.extension() == Some(OsStr::new("md")) {
                paths.insert(path);
            }
        }
    }
    paths.into_iter().map(|path| Page::read(&root(), &path))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default()
}

/// Returns the path from the root that a link of a page names.
fn resolved(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => (),
            part => path.push(part),
        }
    }
    path
}

/// The places that are wrong.
#[derive(Default)]
struct Broken(String);

impl Broken {
    fn add(&mut self, path: &Path, line: usize, problem: &str) {
        let _ = writeln!(self.0, "{}:{line}: {problem}", path.display());
    }

    #[track_caller]
    fn report(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}
