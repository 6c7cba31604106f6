//! A pattern that selects partitions: a regular expression that must match the whole partition id.

use std::fmt;
use std::str::FromStr;

use contract::PartitionId;
use regex::Regex;

/// A regular expression that must match the whole partition id: `tenant-.*` matches `tenant-a` but
/// not `my-tenant-a`.
#[derive(Debug, Clone)]
pub struct PartitionPattern(Regex);

/// The syntax error in a pattern.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(regex::Error);

impl PartitionPattern {
    /// Returns whether the pattern matches the whole partition id.
    pub fn matches(&self, partition: &PartitionId) -> bool {
        self.0.is_match(partition.as_str())
    }
}

impl FromStr for PartitionPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        // Compile the pattern alone first, so that `a)|(b` cannot close the group around it.
        Regex::new(text)
            .and_then(|_| Regex::new(&format!("^(?:{text})$")))
            .map(Self)
            .map_err(PatternError)
    }
}

impl fmt::Display for PartitionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_only_whole_ids() {
        for (pattern, partition, matches) in [
            ("acme", "acme", true),
            ("acme", "acme-2", false),
            ("a|acme", "acme", true),
            ("a|acme", "acmes", false),
            ("tenant-.*", "tenant-", true),
            ("", "acme", false),
        ] {
            let pattern: PartitionPattern = pattern.parse().unwrap();
            assert_eq!(
                pattern.matches(&PartitionId::parse(partition).unwrap()),
                matches,
                "{pattern} {partition}"
            );
        }
        assert!("a)|(b".parse::<PartitionPattern>().is_err());
        assert!(
            "(".parse::<PartitionPattern>()
                .unwrap_err()
                .to_string()
                .contains("unclosed")
        );
    }
}
