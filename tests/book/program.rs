//! What the pages say of messages and of the log, compared with the source of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::markdown::Page;
use crate::{Broken, all_pages, root};

/// The folders with programs that no operator runs, or that write no log.
const SILENT: [&str; 4] = ["docs", "lab", "target", "tests"];

#[test]
fn page_about_messages_shows_one_and_names_every_header() {
    let page = Page::read(&root(), Path::new("docs/reference/wire.md"));
    let of_contract = fs::read_to_string(root().join("contract/fixtures/item.json"));
    let of_contract: Value = serde_json::from_str(&of_contract.unwrap()).unwrap();
    let shown = page.examples.iter().find(|it| it.language == "json");
    let shown: Value = serde_json::from_str(&shown.unwrap().code).unwrap();
    assert_eq!(shown, of_contract);

    let mut wrong = Broken::default();
    let text = page.text.to_lowercase();
    for (file, source) in sources(&["contract/src".into(), "framework/src".into()]) {
        for name in source.lines().filter_map(|line| {
            let (_, rest) = line.split_once(": &str = \"x-batchwright-")?;
            rest.split_once("\";").map(|(name, _)| name)
        }) {
            if !text.contains(&format!("x-batchwright-{name}`")) {
                let problem = format!("{} does not name x-batchwright-{name}", page.path.display());
                wrong.add(&file, 1, &problem);
            }
        }
    }
    wrong.report();
}

#[test]
fn every_rust_example_is_part_of_a_program_that_is_compiled() {
    let compiled = [
        "docs/first-plugin/src/main.rs",
        "docs/first-worker/src/main.rs",
        "tests/system/examples.rs",
    ];
    let compiled =
        compiled.map(|path| without_margins(&fs::read_to_string(root().join(path)).unwrap()));
    let mut wrong = Broken::default();
    for page in all_pages() {
        for example in page.examples.iter().filter(|it| it.language == "rust") {
            let code = without_margins(&example.code);
            if !compiled.iter().any(|program| program.contains(&code)) {
                let text = "the example is not in tests/system/examples.rs, as rustfmt writes it";
                wrong.add(&page.path, example.line, text);
            }
        }
    }
    wrong.report();
}

/// Returns the text with each line at the margin.
fn without_margins(code: &str) -> String {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    format!("{}\n", lines.join("\n"))
}

#[test]
fn every_operation_that_a_page_names_is_one_of_the_api() {
    let reference = Page::read(&root(), Path::new("docs/reference/api.md"));
    let operations = |line: &str| {
        let (operation, _) = line.strip_prefix("| `")?.split_once('`')?;
        let (method, path) = operation.split_once(" /")?;
        Some((method.to_owned(), path.replace("job-service/v1/", "")))
    };
    let operations: Vec<_> = reference.text.lines().filter_map(operations).collect();
    assert!(operations.len() > 30, "{operations:?}");
    let (mut checked, mut wrong) = (0, Broken::default());
    for page in all_pages() {
        let words = page.text.replace('`', " ");
        let words: Vec<&str> = words.split_whitespace().collect();
        for named in words.windows(2) {
            let [method, path] = named else { continue };
            let Some(path) = path
                .strip_prefix("…/")
                .or(path.strip_prefix("/job-service/v1/"))
            else {
                continue;
            };
            let path = path.split('?').next().unwrap_or_default();
            let path = path.trim_end_matches(|letter| ".,:;)".contains(letter));
            if !["GET", "PUT", "POST", "DELETE"].contains(method) {
                continue;
            }
            checked += 1;
            let is_operation = operations
                .iter()
                .any(|(of, whole)| of == method && ends_with(whole, path));
            if !is_operation {
                let problem = format!("{method} …/{path} is not in {}", reference.path.display());
                wrong.add(&page.path, 1, &problem);
            }
        }
    }
    wrong.report();
    assert!(checked > 40, "only {checked} were found");
}

/// Returns whether a path ends like this; what is in braces stands for anything.
fn ends_with(whole: &str, end: &str) -> bool {
    let (whole, end): (Vec<_>, Vec<_>) = (whole.rsplit('/').collect(), end.rsplit('/').collect());
    let is_same = |(a, b): (&&str, &&str)| a == b || a.starts_with('{') && a.ends_with('}');
    end.len() <= whole.len() && whole.iter().zip(&end).all(is_same)
}

#[test]
fn page_about_the_log_has_every_warning_and_error() {
    let page = Page::read(&root(), Path::new("docs/reference/log.md"));
    let (mut texts, mut wrong) = (BTreeSet::new(), Broken::default());
    for (file, source) in sources(&programs()) {
        let calls = source
            .match_indices("warn!(")
            .chain(source.match_indices("error!("));
        for (at, _) in calls {
            let text = longest_text(&source[at..]);
            // What comes before the first value, and before a remark.
            let text = text.split(['{', ';', '(']).next().unwrap_or_default();
            let text = text.trim().trim_end_matches(':');
            if text.is_empty() {
                continue;
            }
            if !page.text.contains(text) {
                let line = source[..at].lines().count();
                let problem = format!("{} does not have {text:?}", page.path.display());
                wrong.add(&file, line, &problem);
            }
            texts.insert(text.to_owned());
        }
    }
    wrong.report();
    assert!(texts.len() > 60, "only {} were found", texts.len());
}

#[test]
fn every_text_of_an_error_that_the_page_about_trouble_explains_is_in_the_program() {
    let page = Page::read(&root(), Path::new("docs/troubleshoot.md"));
    // A long text goes on in the next line of the source.
    let source: String = sources(&programs())
        .into_iter()
        .map(|(_, code)| code)
        .collect();
    let source = source.replace("\\\n", " ");
    let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut wrong = Broken::default();
    let mut checked = 0;
    for (index, line) in page.text.lines().enumerate() {
        // The tables of texts, not those of what one sees in a job.
        let Some(cell) = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split(" | ").next())
        else {
            continue;
        };
        // What is between two texts or behind them; a code is on the page about errors.
        let pieces = cell.split(['…', '`', '?', '(', ')', '{', '}']);
        for piece in pieces.map(|it| it.trim_matches([' ', ';', ',', ':'])) {
            if piece.len() < 12 || !piece.contains(' ') || piece.starts_with("HTTP") {
                continue;
            }
            checked += 1;
            if !source.contains(piece) {
                wrong.add(
                    &page.path,
                    index + 1,
                    &format!("the program never says {piece:?}"),
                );
            }
        }
    }
    wrong.report();
    assert!(checked > 20, "only {checked} were found");
}

/// Returns the folders with the code of all packages whose log an operator reads.
fn programs() -> Vec<PathBuf> {
    let folders = fs::read_dir(root())
        .unwrap()
        .map(|it| it.unwrap().file_name());
    folders
        .filter(|name| !SILENT.contains(&name.to_str().unwrap()))
        .map(|name| Path::new(&name).join("src"))
        .filter(|folder| root().join(folder).is_dir())
        .collect()
}

/// Returns the files with code that is no test, below these folders.
fn sources(folders: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = folders.to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let name = entry.file_name().into_string().unwrap();
            if ["tests", "tests.rs"].contains(&name.as_str()) {
                continue;
            }
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.push((path, fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    found
}

/// Returns the longest string in the call of a macro with which this text begins.
fn longest_text(call: &str) -> String {
    let (mut longest, mut text, mut depth) = (String::new(), None::<String>, 0);
    let mut letters = call.chars().peekable();
    while let Some(letter) = letters.next() {
        match (&mut text, letter) {
            (Some(_), '"') => {
                let text = text.take().unwrap_or_default();
                if text.len() > longest.len() {
                    longest = text;
                }
            }
            (Some(text), '\\') => match letters.next() {
                // The text goes on in the next line.
                Some('\n') => while letters.next_if(|it| it.is_whitespace()).is_some() {},
                escaped => text.extend(escaped),
            },
            (Some(text), _) => text.push(letter),
            (None, '"') => text = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => (),
        }
    }
    longest
}
