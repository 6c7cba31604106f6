//! The ids that users choose: partitions and jobs. They are parsed once, at the edge; inside, an id
//! is always valid.
//!
//! The rules and the messages of the errors are those of CAF's job service, except that `!` is
//! reserved, too: it separates the job from the incarnation in a [`JobTaskId`](crate::JobTaskId).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Characters that have a meaning in job task ids, prerequisites and filters. An id contains none
/// of them.
const RESERVED: &[char] = &['.', ',', ':', ';', '*', '?', '!', '|', '(', ')'];

/// Why a text is not a valid id. `Display` returns the message of the REST API, which is CAF's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The partition id is empty.
    #[error("The partition ID has not been specified.")]
    PartitionMissing,
    /// The partition id has more than [`PartitionId::MAX_CHARS`] characters.
    #[error("The partition ID is longer than 40 characters.")]
    PartitionTooLong,
    /// The partition id contains a reserved or a control character.
    #[error("The partition ID contains one or more invalid characters.")]
    PartitionReserved,
    /// The job id is empty.
    #[error("The job identifier has not been specified.")]
    JobMissing,
    /// The job id has more than [`JobId::MAX_CHARS`] characters.
    #[error("The job identifier is longer than 48 characters.")]
    JobTooLong,
    /// The job id contains a reserved or a control character.
    #[error("The job identifier contains one or more invalid characters.")]
    JobReserved,
}

/// The id of a partition, a namespace of jobs. Partitions are not created explicitly.
///
/// 1 to 40 characters; none of ``. , : ; * ? ! | ( )`` and no control character.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartitionId(String);

/// The id of a job within its partition. Case-sensitive.
///
/// 1 to 48 characters; none of ``. , : ; * ? ! | ( )`` and no control character.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl PartitionId {
    /// The maximum length in characters.
    pub const MAX_CHARS: usize = 40;

    /// Parses a partition id.
    ///
    /// # Errors
    /// The first of `PartitionMissing`, `PartitionTooLong` and `PartitionReserved` that applies.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match text {
            "" => Err(IdError::PartitionMissing),
            long if is_longer(long, Self::MAX_CHARS) => Err(IdError::PartitionTooLong),
            reserved if has_reserved(reserved) => Err(IdError::PartitionReserved),
            sound => Ok(Self(sound.to_owned())),
        }
    }
}

impl JobId {
    /// The maximum length in characters.
    pub const MAX_CHARS: usize = 48;

    /// Parses a job id.
    ///
    /// # Errors
    /// The first of `JobMissing`, `JobReserved` and `JobTooLong` that applies. Unlike for a
    /// partition id, the length is checked last, because in CAF the database checks it.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match text {
            "" => Err(IdError::JobMissing),
            reserved if has_reserved(reserved) => Err(IdError::JobReserved),
            long if is_longer(long, Self::MAX_CHARS) => Err(IdError::JobTooLong),
            sound => Ok(Self(sound.to_owned())),
        }
    }
}

fn is_longer(text: &str, chars: usize) -> bool {
    text.chars().count() > chars
}

fn has_reserved(text: &str) -> bool {
    text.contains(RESERVED) || text.contains(char::is_control)
}

macro_rules! text_id {
    ($name:ident) => {
        impl $name {
            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }
        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}
text_id!(PartitionId);
text_id!(JobId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flaw_of_an_id_has_its_own_error() {
        let long = "x".repeat(49);
        for (text, error) in [
            ("", IdError::JobMissing),
            (long.as_str(), IdError::JobTooLong),
            ("a.b", IdError::JobReserved),
            ("a!b", IdError::JobReserved),
            ("a\nb", IdError::JobReserved),
        ] {
            assert_eq!(JobId::parse(text), Err(error), "{text:?}");
        }
        assert!(JobId::parse(&"ü".repeat(48)).is_ok());
        assert_eq!(
            PartitionId::parse(&"p".repeat(41)),
            Err(IdError::PartitionTooLong)
        );
    }

    #[test]
    fn reports_the_flaw_that_caf_checks_first() {
        let flawed = format!("{}*", "x".repeat(49));
        assert_eq!(PartitionId::parse(&flawed), Err(IdError::PartitionTooLong));
        assert_eq!(JobId::parse(&flawed), Err(IdError::JobReserved));
    }
}
