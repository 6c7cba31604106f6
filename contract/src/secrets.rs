//! Texts for people without the secrets of the URLs in them: name and password, and what follows
//! `?` or `#`.
//!
//! What must stay true: too much is hidden rather than too little. What shows a definition, or an
//! error that quotes it, goes through here.

use std::borrow::Cow;

const SCHEME_END: &str = "://";

/// Returns a URL with its host and path alone. A text without a scheme stays as it is.
///
/// ```
/// use batchwright_contract::shown_url;
///
/// assert_eq!(shown_url("https://ada:pw@a.example/b.csv?key=1"), "https://a.example/b.csv?…");
/// ```
#[must_use]
pub fn shown_url(url: &str) -> String {
    match url.split_once(SCHEME_END) {
        Some((scheme, rest)) => format!("{scheme}{SCHEME_END}{}", host_and_path(rest)),
        None => url.to_owned(),
    }
}

/// Returns a text, such as an error or a definition in JSON, in which each URL has its host and
/// path alone. A URL within quotation marks ends with them, and another one at white space.
#[must_use]
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    let plain = plain_slashes(text);
    if !plain.contains(SCHEME_END) {
        return text.into();
    }
    let (mut shown, mut rest, mut is_quoted) = (String::new(), &*plain, false);
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, url) = rest.split_at(at + SCHEME_END.len());
        shown.push_str(before);
        is_quoted ^= quotation_marks(before) % 2 == 1;
        let is_code = before[..at]
            .trim_end_matches(|it: char| it.is_ascii_alphanumeric() || "+-.".contains(it))
            .ends_with('`');
        let end = if is_quoted {
            end_of_quoted(url)
        } else if is_code {
            url.rfind("`, expected ").or_else(|| url.rfind('`'))
        } else {
            let end = url.find(char::is_whitespace).unwrap_or(url.len());
            // The sentence goes on behind it.
            Some(url[..end].trim_end_matches([';', ',', ':', '.', ')']).len())
        };
        let (url, behind) = url.split_at(end.unwrap_or(url.len()));
        let is_cut = is_quoted && end.is_none();
        if is_cut && !url.contains(['/', '?', '#', '@']) {
            // It may be the beginning of a name and a password.
            shown.push('…');
        } else {
            shown.push_str(&host_and_path(url));
        }
        rest = behind;
    }
    shown.push_str(rest);
    shown.into()
}

/// Returns a text in which no slash is escaped, as some programs write them in JSON.
fn plain_slashes(text: &str) -> Cow<'_, str> {
    let text: Cow<'_, str> = if text.contains(r"\u002") {
        text.replace(r"\u002f", "/").replace(r"\u002F", "/").into()
    } else {
        text.into()
    };
    if !text.contains(r"\/") {
        return text;
    }
    let mut plain = String::with_capacity(text.len());
    for part in text.split_inclusive('/') {
        match part.strip_suffix('/') {
            Some(before) => plain.extend([before.trim_end_matches('\\'), "/"]),
            None => plain.push_str(part),
        }
    }
    plain.into()
}

/// Returns what is shown of a URL behind its scheme.
fn host_and_path(rest: &str) -> String {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let place = match authority.rfind('@') {
        Some(at) => &rest[at + 1..],
        // What looks like a port may be a password with a `/` in it, which should have been
        // encoded.
        None if !has_port(authority) => return "…".to_owned(),
        None => rest,
    };
    match place.find(['?', '#']) {
        Some(end) => format!("{}…", &place[..=end]),
        None => place.to_owned(),
    }
}

/// Returns whether what follows the host is a port, or nothing.
fn has_port(authority: &str) -> bool {
    let behind_address = authority.rsplit(']').next().unwrap_or_default();
    let port = behind_address.split_once(':').map(|(_, port)| port);
    port.is_none_or(|port| port.bytes().all(|it| it.is_ascii_digit()))
}

/// Counts the quotation marks that begin or end something, and are not part of it.
fn quotation_marks(text: &str) -> usize {
    let mut is_escaped = false;
    let counts = text.bytes().filter(|byte| {
        let counts = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        counts
    });
    counts.count()
}

fn end_of_quoted(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{BatchTask, FailedItem, TaskData as _};

    #[test]
    fn host_and_path_are_all_that_is_shown_of_a_url() {
        for (text, expected) in [
            ("https://a.example/b.csv", "https://a.example/b.csv"),
            (
                "https://u:p@a.example:8080/b?key=1",
                "https://a.example:8080/b?…",
            ),
            ("https://u@[::1]:80/b#part", "https://[::1]:80/b#…"),
            ("https://[::1]:80/b@c", "https://[::1]:80/b@c"),
            ("https://u:p/w@a.example/b", "https://…"),
            ("https://u:p", "https://…"),
            ("no url?key=1", "no url?key=1"),
        ] {
            assert_eq!(shown_url(text), expected);
            assert_eq!(without_secrets(text), expected);
        }
        for (text, expected) in [
            (
                r#"invalid type: string "https://a/b?k=\"s", expected a sequence at line 1"#,
                r#"invalid type: string "https://a/b?…", expected a sequence at line 1"#,
            ),
            (
                "unknown variant `https://u@a/b?k s`, expected `csv`",
                "unknown variant `https://a/b?…`, expected `csv`",
            ),
            (
                "may not call http://a:80; allowed are http://b:1, http://c:2 (--x)",
                "may not call http://a:80; allowed are http://b:1, http://c:2 (--x)",
            ),
            ("http://a/b?k=1: it redirects", "http://a/b?…: it redirects"),
            (r#"{"files": ["https://u"#, r#"{"files": ["https://…"#),
            (
                "see https://u@a/b?k s and https://c?d e",
                "see https://a/b?… s and https://c?… e",
            ),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
    }

    proptest! {
        #[test]
        fn no_secret_of_a_url_is_in_what_is_shown_of_its_batch(
            user in "[^/?#]{0,3}", password in "[^/?#]{0,3}", path in "[a-z/]{0,9}", query in ".{0,5}", slash in "/|\\\\/|\\\\u002f",
        ) {
            let secret = "s3cr3t";
            let url = format!("https://{user}:{secret}{password}@a.example/{path}?{query}{secret}{query}");
            prop_assert!(!shown_url(&url).contains(secret));
            let definition = json!({"files": ["a", url, url], "pattern": url, "n": 1}).to_string();
            let bare: String = url.chars().filter(|it| !it.is_whitespace()).collect();
            for definition in [definition.replace('/', &slash), definition[..definition.len() - 1].replace('/', &slash), bare] {
                let task = BatchTask { batch_definition: Some(definition), ..BatchTask::default() };
                let label = task.label().unwrap();
                prop_assert!(!label.contains(secret), "{}", label);
                let data = serde_json::to_string(&task).unwrap();
                for data in [data.replace('/', &slash), data.chars().take(90).collect()] {
                    let item = FailedItem::new(Some(&data), data.as_bytes());
                    let item = item.of_type(Some(BatchTask::CLASSIFIER));
                    prop_assert!(!format!("{item:?}").contains(secret), "{:?}", item);
                }
            }
        }
    }
}
