//! Patterns of paths, matched name by name.
//!
//! The library can match whole paths, but needs exponential time for some patterns with several `*`
//! before a `/`. Within one name it is fast. So a path matches if its names match the patterns
//! between the slashes, where `**` stands for any number of names.

use glob::{MatchOptions, Pattern};

use crate::SplitError;
use crate::source::LONGEST_PATH;

/// A pattern of the path below a folder.
#[derive(Debug)]
pub struct PathPattern(Vec<NamePattern>);

#[derive(Debug)]
enum NamePattern {
    /// `**`: any number of names; as the last of a pattern, at least one.
    Names,
    Name(Pattern),
}

impl PathPattern {
    pub fn new(text: &str) -> Result<Self, SplitError> {
        if text.len() > LONGEST_PATH {
            let bytes = text.len();
            return Err(SplitError::Definition(format!(
                "the pattern has {bytes} bytes; the limit is {LONGEST_PATH}"
            )));
        }
        let parse = |text| {
            Pattern::new(text).map_err(|error| SplitError::Definition(format!("pattern: {error}")))
        };
        // The positions in errors are those of the whole pattern.
        parse(text)?;
        let mut names = Vec::new();
        for name in text.split('/') {
            match (name, names.last()) {
                ("**", Some(NamePattern::Names)) => {}
                ("**", _) => names.push(NamePattern::Names),
                _ => names.push(NamePattern::Name(parse(name)?)),
            }
        }
        Ok(Self(names))
    }

    /// Returns whether the path matches. `*` and `?` match a leading dot.
    pub fn matches(&self, path: &str) -> bool {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        let names: Vec<&str> = path.split('/').collect();
        // Whether the patterns up to the current one match the first n names.
        let mut reached = vec![false; names.len() + 1];
        reached[0] = true;
        for (at, pattern) in self.0.iter().enumerate() {
            match pattern {
                NamePattern::Names => {
                    let is_last = at + 1 == self.0.len();
                    let first = reached.iter().position(|reached| *reached);
                    let from = first.map_or(reached.len(), |first| first + usize::from(is_last));
                    for (n, reached) in reached.iter_mut().enumerate() {
                        *reached = n >= from;
                    }
                }
                NamePattern::Name(pattern) => {
                    for n in (1..reached.len()).rev() {
                        reached[n] = reached[n - 1] && pattern.matches_with(names[n - 1], options);
                    }
                    reached[0] = false;
                }
            }
        }
        reached[names.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_path_matches_as_the_library_says(
            names in proptest::collection::vec("[ab*?]{1,3}|\\*\\*|\\[ab\\]|\\.a", 1..5),
            path in proptest::collection::vec("[ab.]{1,3}", 1..5),
        ) {
            let (text, path) = (names.join("/"), path.join("/"));
            let options = MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
            if let Ok(whole) = Pattern::new(&text) {
                let own = PathPattern::new(&text).unwrap();
                prop_assert_eq!(own.matches(&path), whole.matches_with(&path, options), "{} {}", text, path);
            }
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_matched_at_once() {
        let began = std::time::Instant::now();
        let pattern = PathPattern::new(&format!("{}z/b", "*?".repeat(40))).unwrap();
        assert!(!pattern.matches(&format!("{}/b", "a".repeat(200))));
        assert!(began.elapsed() < std::time::Duration::from_secs(1));
    }
}
