//! The URL at which workers ask about their job, and the key of the job's life in it.
//!
//! What must stay true: a text that people may see has the URL without the key. Only what is sent
//! or stored, and a request, has it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// What stands for a key in a text.
const HIDDEN: &str = "***";
/// What may be in front of `k=` in the query of a URL, plain, in JSON and in HTML.
const IN_FRONT: [&[u8]; 7] = [
    b"?", b"&", br"\u003f", br"\u003F", br"\u0026", b"&amp;", b"&#38;",
];

/// The key of one life of a job, as it is in its status URL. It prints as `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct LifeKey(SmolStr);

impl LifeKey {
    /// Returns the text of the key, for the store and the status URL alone.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl From<&str> for LifeKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for LifeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// A status URL as a message carries it. It prints without the key; as a `str`, it is whole.
///
/// ```
/// use batchwright_contract::StatusUrl;
///
/// let url = StatusUrl::from("http://jobs/partitions/p/jobs/j/status?n=42&k=00f1");
/// assert_eq!(url.to_string(), "http://jobs/partitions/p/jobs/j/status?n=42&k=***");
/// assert!(url.ends_with("&k=00f1"));
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StatusUrl(SmolStr);

impl StatusUrl {
    /// Returns the incarnation that the URL names.
    pub fn incarnation(&self) -> Option<i64> {
        let (_, query) = self.split_once('?')?;
        let number = query.split('&').find_map(|it| it.strip_prefix("n="));
        number?.parse().ok()
    }

    /// Returns whether a program that shows messages has hidden the key.
    pub fn hides_key(&self) -> bool {
        self.ends_with(&hidden())
    }

    /// Returns the URL with this key in the place of the hidden one, or without any.
    #[must_use]
    pub fn with_key(&self, key: Option<&LifeKey>) -> Self {
        match self.strip_suffix(&hidden()) {
            Some(plain) => {
                let key = key.map(|key| format!("&k={}", key.secret()));
                Self(format!("{plain}{}", key.unwrap_or_default()).into())
            }
            None => self.clone(),
        }
    }
}

/// Returns how a URL ends whose key is hidden.
fn hidden() -> String {
    format!("&k={HIDDEN}")
}

impl Deref for StatusUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<SmolStr>> From<T> for StatusUrl {
    fn from(url: T) -> Self {
        Self(url.into())
    }
}

impl fmt::Display for StatusUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_key(self))
    }
}

impl fmt::Debug for StatusUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns a text, such as an answer that quotes a URL, in which no URL has a key.
#[must_use]
pub fn without_key(text: &str) -> String {
    String::from_utf8_lossy(&without_keys(text.as_bytes())).into_owned()
}

/// Returns bytes, such as a message that cannot be read, in which no URL has a key.
pub(crate) fn without_keys(bytes: &[u8]) -> Cow<'_, [u8]> {
    let (mut shown, mut copied) = (Vec::new(), 0);
    for at in 2..=bytes.len() {
        let is_key = bytes[..at]
            .strip_suffix(b"k=")
            .is_some_and(|before| IN_FRONT.iter().any(|it| before.ends_with(it)));
        if is_key {
            let key = bytes[at..]
                .iter()
                .take_while(|it| it.is_ascii_alphanumeric());
            let end = at + key.count();
            if end > at {
                shown.extend_from_slice(&bytes[copied..at]);
                shown.extend_from_slice(HIDDEN.as_bytes());
                copied = end;
            }
        }
    }
    if copied == 0 {
        return bytes.into();
    }
    shown.extend_from_slice(&bytes[copied..]);
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tracking;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn nothing_that_is_printed_has_the_key() {
        let url = format!("http://h/partitions/p/jobs/j/status?n=42&r=2&k={KEY}");
        let tracking = Tracking {
            status_check_url: Some(url.clone().into()),
            ..Tracking::default()
        };
        for text in [
            format!("{tracking:?}"),
            StatusUrl::from(url.as_str()).to_string(),
            format!("{:?}", LifeKey::from(KEY)),
        ] {
            assert!(!text.contains(KEY) && text.contains(HIDDEN), "{text}");
        }
        assert!(serde_json::to_string(&tracking).unwrap().contains(&url));
        for (bytes, shown) in [
            (
                "{\"u\": \"s?n=1&k=00f1\", cut",
                "{\"u\": \"s?n=1&k=***\", cut",
            ),
            (
                "s?k=0&after=1 s?n=1\\u0026k=0f",
                "s?k=***&after=1 s?n=1\\u0026k=***",
            ),
            ("s?n=1&amp;k=01", "s?n=1&amp;k=***"),
            ("s?n=1&k=***", "s?n=1&k=***"),
            ("s?n=1&key=7&ok=8 k=9", "s?n=1&key=7&ok=8 k=9"),
        ] {
            let hidden = without_keys(bytes.as_bytes());
            assert_eq!(String::from_utf8_lossy(&hidden), shown);
        }
    }

    #[test]
    fn hidden_key_is_restored_or_left_out_and_another_one_stays() {
        let url = |key: &str| StatusUrl::from(format!("http://h/status?n=42&r=2{key}"));
        let key = LifeKey::from(KEY);
        let whole = url(&format!("&k={KEY}"));
        let shown = StatusUrl::from(whole.to_string());
        assert_eq!(shown.incarnation(), Some(42));
        assert_eq!(shown.with_key(Some(&key)), whole);
        assert_eq!(shown.with_key(None), url(""));
        for other in [whole, url("")] {
            assert!(shown.hides_key() && !other.hides_key());
            assert_eq!(other.with_key(Some(&LifeKey::from("0"))), other);
        }
    }
}
