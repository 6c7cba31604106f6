//! What the pages say of messages and of the log, compared with the source of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::markdown::Page;
use crate::{Broken, root};

/// Where the warnings and errors of the processes that an operator runs are written.
const LOGGING: [&str; 9] = [
    "batch-worker/src",
    "batchwright/src",
    "blobs/src",
    "cli/src",
    "framework/src",
    "job-service/src",
    "output-worker/src",
    "store/src",
    "tracking-worker/src",
];

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
    for (file, source) in sources(&["contract/src", "framework/src"]) {
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
fn page_about_the_log_has_every_warning_and_error() {
    let page = Page::read(&root(), Path::new("docs/reference/log.md"));
    let (mut texts, mut wrong) = (BTreeSet::new(), Broken::default());
    for (file, source) in sources(&LOGGING) {
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

/// Returns the files with code that is no test, below these folders.
fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let name = entry.file_name().into_string().unwrap();
            if ["tests", "tests.rs", "chaos", "bench"].contains(&name.as_str()) {
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
