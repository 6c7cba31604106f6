//! What a later round of a job knows of a split: the digest of what it was made from, and which of
//! its subtasks are done. An addition to CAF's formats.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The SHA-256 of everything that decides which subtasks a split has, in which order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceDigest(pub [u8; 32]);

/// What is known of a split when it is made again: the body of `GET …/splits/{taskId}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct SplitState {
    /// Whether anything was reported of the split
    pub known: bool,
    /// Whether the split is done, all of its subtasks included
    pub completed: bool,
    /// The digest of what the split was made from: SHA-256 as 64 hexadecimal digits. `null` if its
    /// worker stated none; then nothing of it can be passed over
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<String>))]
    pub digest: Option<SourceDigest>,
    /// The first round in which the digest was stated
    pub round: Option<u32>,
    /// Whether different digests were stated in one round, so that nobody knows which subtasks the
    /// numbers name
    pub contradictory: bool,
    /// The subtasks that are done, in order, from behind `after` to `upTo`
    pub done: Vec<SubtaskRange>,
    /// The last subtask that the answer tells about; `null` if there are no further ones
    pub up_to: Option<u32>,
}

/// Subtasks with successive numbers, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct SubtaskRange {
    /// The first number
    pub first: u32,
    /// The last number
    pub last: u32,
}

impl fmt::Display for SourceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SourceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not the hexadecimal form of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 hexadecimal digits")]
pub struct SourceDigestError;

impl FromStr for SourceDigest {
    type Err = SourceDigestError;

    fn from_str(text: &str) -> Result<Self, SourceDigestError> {
        let digit = |digit: u8| {
            let value = char::from(digit).to_digit(16);
            value.and_then(|value| u8::try_from(value).ok())
        };
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(SourceDigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let halves = digit(pair[0]).zip(digit(pair[1]));
            let (high, low) = halves.ok_or(SourceDigestError)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for SourceDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SourceDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a digest of any later form as none.
pub(crate) fn digest_if_known<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SourceDigest>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(value.as_str().and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_digest_is_read_as_it_was_written(bytes in any::<[u8; 32]>()) {
            let json = serde_json::to_string(&SourceDigest(bytes)).unwrap();
            prop_assert_eq!(json.len(), 66);
            prop_assert_eq!(serde_json::from_str::<SourceDigest>(&json).unwrap(), SourceDigest(bytes));
        }

        #[test]
        fn no_text_panics(text in prop_oneof![".{0,70}", "[0-9a-fü]{60,66}"]) {
            if let Ok(digest) = text.parse::<SourceDigest>() {
                prop_assert_eq!(digest.to_string(), text.to_lowercase());
            }
        }
    }
}
