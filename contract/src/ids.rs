//! Names that a user chooses: partitions and jobs. Parsed once, at the edge.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Characters with a meaning in job task ids, prerequisites and filters; no id contains one.
const RESERVED: &[char] = &['.', ',', ':', ';', '*', '?', '!', '|', '(', ')'];

/// Why a text is no id. `Display` gives the message of the REST API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("The partition ID has not been specified.")]
    PartitionMissing,
    #[error("The partition ID is longer than 40 characters.")]
    PartitionTooLong,
    #[error("The partition ID contains one or more invalid characters.")]
    PartitionReserved,
    #[error("The job identifier has not been specified.")]
    JobMissing,
    #[error("The job identifier is longer than 48 characters.")]
    JobTooLong,
    #[error("The job identifier contains one or more invalid characters.")]
    JobReserved,
}

/// A namespace of jobs: 1 to 40 characters, none of them reserved. It needs no creation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartitionId(String);

/// The name of a job within its partition: 1 to 48 characters, none of them reserved, case-sensitive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl PartitionId {
    /// The longest partition id, in characters.
    pub const MAX_CHARS: usize = 40;

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
    /// The longest job id, in characters.
    pub const MAX_CHARS: usize = 48;

    /// Unlike that of a partition id, the length is looked at last: CAF leaves it to its database.
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
    fn each_flaw_of_an_id_has_its_own_message() {
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
    fn of_two_flaws_the_one_that_caf_looks_for_first_is_told() {
        let flawed = format!("{}*", "x".repeat(49));
        assert_eq!(PartitionId::parse(&flawed), Err(IdError::PartitionTooLong));
        assert_eq!(JobId::parse(&flawed), Err(IdError::JobReserved));
    }
}
