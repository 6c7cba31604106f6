//! Memos: the results of parts of a task, which a task that runs again passes over.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest key of a memo, in bytes.
pub const MAX_MEMO_KEY_BYTES: usize = 100;

/// The largest result of a memo, in bytes of JSON.
pub const MAX_MEMO_BYTES: usize = 16 * 1024;

/// The name of a memo in its task: letters, digits, `-`, `_`, `:` and `.`, the last one not in
/// front.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoKey(String);

/// A text that is no key of a memo.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no key: a key has 1 to {MAX_MEMO_KEY_BYTES} ASCII letters, digits, '-', '_', ':' and '.', and does not begin with '.'"
)]
pub struct InvalidMemoKey(String);

/// What is known of a part of a task: the body of the answers to `GET` and `PUT
/// …/memos/{taskId}/{key}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct Memo {
    /// Whether the part is done
    pub done: bool,
    /// Its result, as JSON in a text; null if the part is not done
    #[serde(default)]
    pub result: Option<String>,
}

/// The result of a part of a task: the body of `PUT …/memos/{taskId}/{key}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct NewMemo {
    /// The result, as JSON in a text of at most 16,384 bytes, which is returned as it is
    pub result: String,
}

impl MemoKey {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MemoKey {
    type Err = InvalidMemoKey;

    fn from_str(text: &str) -> Result<Self, InvalidMemoKey> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:.".contains(&byte);
        let is_key = (1..=MAX_MEMO_KEY_BYTES).contains(&text.len())
            && !text.starts_with('.')
            && text.bytes().all(is_allowed);
        if is_key {
            Ok(Self(text.to_owned()))
        } else {
            let shown = text.chars().take(MAX_MEMO_KEY_BYTES).collect();
            Err(InvalidMemoKey(shown))
        }
    }
}

impl fmt::Display for MemoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_a_short_text_that_is_one_segment_of_a_url() {
        let longest = "x".repeat(MAX_MEMO_KEY_BYTES);
        for key in ["charge", "a", "Send-mail_2:b.c", &longest] {
            assert_eq!(key.parse::<MemoKey>().unwrap().as_str(), key);
        }
        let too_long = format!("{longest}x");
        for text in [
            "", ".", "..", ".a", "a/b", "a b", "ä", "a%2Fb", "a\0", "a?", &too_long,
        ] {
            assert!(text.parse::<MemoKey>().is_err(), "{text}");
        }
        let shown = "x".repeat(1000).parse::<MemoKey>().unwrap_err().to_string();
        assert!(shown.len() < 300, "{shown}");
    }
}
