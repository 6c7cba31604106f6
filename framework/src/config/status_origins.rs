//! The origins that status checks may ask.

use std::fmt;
use std::str::FromStr;

use crate::http::confined::Origin;

/// The origins (`http://host:port`) that status checks may ask. The default is every origin.
///
/// The URL of a status check comes from a message. Without a list, a client that can publish
/// messages can make a worker send requests to any host, though only to the path of a job's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusOrigins(Option<Vec<String>>);

impl StatusOrigins {
    /// Returns whether an origin in its normal form is allowed.
    pub(crate) fn allow(&self, origin: &str) -> bool {
        self.0
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|known| known == origin))
    }
}

impl FromStr for StatusOrigins {
    type Err = String;

    /// Parses origins separated by commas; `none` is every origin.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "none" {
            return Ok(Self::default());
        }
        let origins: Result<Vec<String>, String> = text
            .split(',')
            .map(|text| Ok(text.parse::<Origin>()?.to_string()))
            .collect();
        Ok(Self(Some(origins?)))
    }
}

impl fmt::Display for StatusOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(origins) => f.write_str(&origins.join(", ")),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_normalized_and_others_refused() {
        let parsed: StatusOrigins = "HTTP://Jobs:80/ , https://b:8443".parse().unwrap();
        assert_eq!(parsed.to_string(), "http://jobs, https://b:8443");
        assert_eq!("none".parse(), Ok(StatusOrigins::default()));
        for text in [
            "",
            "jobs:8080",
            "jobs",
            "http://a,",
            "ftp://a",
            "http://a/path",
            "http://a?q",
            "http://user@a",
        ] {
            let error = text.parse::<StatusOrigins>().unwrap_err();
            assert!(
                error.contains("is not an origin; expected one like"),
                "{text}: {error}"
            );
        }
    }
}
