//! The sources as code alone: without comments and the contents of strings.

use crate::{Place, files, is_rust, root};

/// A source file of the product, below the `src` of a crate. The tests' own crates are left out.
pub struct Source {
    /// Relative to the root, with `/`.
    pub path: String,
    /// The code without comments and the contents of strings, with the same lines.
    pub code: String,
}

impl Source {
    pub fn lines_where(&self, is_wrong: impl Fn(&str) -> bool, rule: &str) -> Vec<Place> {
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

pub fn sources() -> Vec<Source> {
    let is_source =
        |path: &str| is_rust(path) && path.contains("/src/") && !path.starts_with("tests/");
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

pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
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

/// Returns a Rust source in which comments and the contents of string and character literals are
/// blank.
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
