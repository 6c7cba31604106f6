//! The environment as it was when the program began. Programs read it once, in `main`, and pass it on as this.
//!
//! A setting has a name of our own (`BATCHWRIGHT_…`); where CAF has a variable for the same thing, that is understood, too. Ours
//! comes first. A secret may stand in a file: `NAME_FILE` names it, and `NAME` comes first.
//!
//! What must stay true: an empty variable counts as one that is not set, and no text of an error shows a secret.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::settings::SettingsError;

/// The variables of a process.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

/// A value, and the variable that it comes from.
#[derive(Clone, PartialEq, Eq)]
pub struct Found {
    pub value: String,
    pub from: String,
}

/// What is made of the value of a variable of CAF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caf {
    Same,
    /// `-in` is appended.
    In,
    /// It is added to the tasks that run at the same time.
    PlusConcurrency,
    /// It counts what follows the first attempt.
    PlusOne,
    /// In small letters.
    Lowercase,
    /// Without the slash at its beginning.
    NoSlash,
    /// A number; one that is not above 0 counts as not set.
    AboveZero,
    /// It says the contrary; what is not `true` is false.
    Not,
    /// It is a part of a URL.
    Part,
}

/// The variables that a URL is composed of, and what holds where one is not set.
#[derive(Debug, Clone, Copy)]
pub struct UrlParts<'a> {
    /// All variables begin with it; `HOST`, `PORT`, `USERNAME` and `PASSWORD` follow.
    pub prefix: &'a str,
    /// What else may follow, and is in the path.
    pub also: &'a [&'a str],
    pub scheme: &'a str,
    pub host: &'a str,
    pub port: u16,
    pub username: &'a str,
    pub password: &'a str,
    /// What follows the port, encoded as it is to stand there.
    pub path: &'a str,
}

impl Variables {
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Whether it is there and empty.
    pub fn is_blank(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(String::is_empty)
    }

    /// The first of these variables that is set.
    pub fn first(&self, names: &[&str]) -> Option<Found> {
        names.iter().find_map(|name| {
            Some(Found {
                value: self.get(name)?.to_owned(),
                from: (*name).to_owned(),
            })
        })
    }

    /// A variable, or what stands in the file that `<name>_FILE` names, without the line break at its end.
    pub fn secret(&self, name: &str) -> Result<Option<Found>, SettingsError> {
        if let Some(found) = self.first(&[name]) {
            return Ok(Some(found));
        }
        let from = format!("{name}_FILE");
        let Some(file) = self.get(&from) else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            SettingsError::of(
                &from,
                format!("names {file:?}, which cannot be read: {error}"),
            )
        })?;
        Ok(Some(Found {
            value: text.trim_end_matches(['\r', '\n']).to_owned(),
            from,
        }))
    }

    /// What the first of these variables of CAF's that is set means; `concurrency` is the number of tasks at the same time.
    pub fn caf(
        &self,
        names: &[(&str, Caf)],
        concurrency: u32,
    ) -> Result<Option<Found>, SettingsError> {
        let Some((found, made)) = names
            .iter()
            .find_map(|(name, made)| Some((self.first(&[name])?, *made)))
        else {
            return Ok(None);
        };
        let number = || {
            found.value.parse::<u32>().map_err(|error| {
                SettingsError::of(&found.from, format!("is {:?}: {error}", found.value))
            })
        };
        if made == Caf::AboveZero && found.value.parse::<i64>().is_ok_and(|number| number <= 0) {
            return Ok(None);
        }
        let value = match made {
            Caf::Same | Caf::Part | Caf::AboveZero => found.value.clone(),
            Caf::In => format!("{}-in", found.value),
            Caf::PlusOne => number()?.saturating_add(1).to_string(),
            Caf::PlusConcurrency => number()?
                .saturating_add(concurrency)
                .clamp(1, 65535)
                .to_string(),
            Caf::Lowercase => found.value.to_lowercase(),
            Caf::Not => (!found.value.eq_ignore_ascii_case("true")).to_string(),
            Caf::NoSlash => found.value.trim_start_matches('/').to_owned(),
        };
        Ok(Some(Found {
            value,
            from: found.from,
        }))
    }

    /// A URL from its parts; `None` when no variable of them is set.
    pub fn url(&self, parts: UrlParts<'_>) -> Result<Option<Found>, SettingsError> {
        let name = |part: &str| format!("{}{part}", parts.prefix);
        let password = self.secret(&name("PASSWORD"))?;
        let [host, port, username] = ["HOST", "PORT", "USERNAME"].map(|part| self.get(&name(part)));
        let others = parts
            .also
            .iter()
            .any(|part| self.get(&name(part)).is_some());
        if password.is_none() && host.is_none() && port.is_none() && username.is_none() && !others {
            return Ok(None);
        }
        let port = match port {
            None => parts.port,
            Some(text) => text.parse().map_err(|error| {
                SettingsError::of(&name("PORT"), format!("is {text:?}: {error}"))
            })?,
        };
        let host = host.unwrap_or(parts.host);
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let username = encoded(username.unwrap_or(parts.username));
        let password = encoded(
            password
                .as_ref()
                .map_or(parts.password, |found| &found.value),
        );
        let colon = if password.is_empty() { "" } else { ":" };
        let value = format!(
            "{}://{username}{colon}{password}@{host}:{port}{}",
            parts.scheme, parts.path
        );
        Ok(Some(Found {
            value,
            from: format!("{}*", parts.prefix),
        }))
    }

    /// The URL of the broker by CAF's variables.
    pub fn caf_broker(&self, host: &str) -> Result<Option<Found>, SettingsError> {
        let protocol = self.get("CAF_RABBITMQ_PROTOCOL");
        let scheme = match protocol {
            None | Some("amqp") => "amqp",
            Some("amqps") => "amqps",
            Some(other) => {
                return Err(SettingsError::of(
                    "CAF_RABBITMQ_PROTOCOL",
                    format!("is {other:?}; write amqp or amqps"),
                ));
            }
        };
        let port = if scheme == "amqps" { 5671 } else { 5672 };
        self.url(UrlParts {
            prefix: "CAF_RABBITMQ_",
            also: &[],
            scheme,
            host,
            port,
            username: "guest",
            password: "guest",
            path: "/%2f",
        })
    }

    /// Stops at a variable that begins like ours and is none, naming the one that was probably meant.
    pub fn refuse_unknown(&self, known: &[String], whose: &str) -> Result<(), SettingsError> {
        let Some(name) = self
            .0
            .keys()
            .find(|name| name.starts_with(crate::settings::PREFIX) && !known.contains(name))
        else {
            return Ok(());
        };
        let nearest = known
            .iter()
            .min_by_key(|other| strsim::damerau_levenshtein(name, other));
        let hint = nearest
            .map(|nearest| format!("; did you mean {nearest}?"))
            .unwrap_or_default();
        Err(SettingsError::of(
            name,
            format!("is no setting of {whose}{hint}"),
        ))
    }
}

/// Text as a part of a URL.
pub fn encoded(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the values: there are passwords among them.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn variables(all: &[(&str, &str)]) -> Variables {
        Variables::new(
            all.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    fn broker(all: &[(&str, &str)]) -> Result<Option<String>, String> {
        let found = variables(all)
            .caf_broker("rabbitmq")
            .map_err(|error| error.to_string())?;
        Ok(found.map(|found| found.value))
    }

    #[test]
    fn the_url_of_the_broker_is_composed_and_every_part_encoded() {
        assert_eq!(
            broker(&[("CAF_RABBITMQ_HOST", ""), ("CAF_OTHER", "x")]),
            Ok(None)
        );
        assert_eq!(
            broker(&[("CAF_RABBITMQ_HOST", "mq")]),
            Ok(Some("amqp://guest:guest@mq:5672/%2f".to_owned()))
        );
        assert_eq!(
            broker(&[("CAF_RABBITMQ_USERNAME", "ann")]),
            Ok(Some("amqp://ann:guest@rabbitmq:5672/%2f".to_owned()))
        );
        let odd = [
            ("CAF_RABBITMQ_PROTOCOL", "amqps"),
            ("CAF_RABBITMQ_HOST", "::1"),
            ("CAF_RABBITMQ_USERNAME", "a@b"),
            ("CAF_RABBITMQ_PASSWORD", "p:/?#%ü"),
        ];
        assert_eq!(
            broker(&odd),
            Ok(Some(
                "amqps://a%40b:p%3A%2F%3F%23%25%C3%BC@[::1]:5671/%2f".to_owned()
            ))
        );
        for (name, value) in [
            ("CAF_RABBITMQ_PORT", "http"),
            ("CAF_RABBITMQ_PROTOCOL", "http"),
        ] {
            assert!(
                broker(&[(name, value)])
                    .unwrap_err()
                    .starts_with(&format!("the variable {name} is \"http\""))
            );
        }
    }

    #[test]
    fn a_secret_may_stand_in_a_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "se cret").unwrap();
        let path = file.path().to_str().unwrap();
        let url = broker(&[
            ("CAF_RABBITMQ_PASSWORD_FILE", path),
            ("CAF_RABBITMQ_HOST", "mq"),
        ]);
        assert_eq!(
            url,
            Ok(Some("amqp://guest:se%20cret@mq:5672/%2f".to_owned()))
        );
        let both = variables(&[("A", "first"), ("A_FILE", path)]);
        assert_eq!(both.secret("A").unwrap().unwrap().value, "first");
        let missing = variables(&[("A_FILE", "/no/such/file")])
            .secret("A")
            .unwrap_err()
            .to_string();
        assert!(
            missing
                .starts_with("the variable A_FILE names \"/no/such/file\", which cannot be read"),
            "{missing}"
        );
    }

    #[test]
    fn what_is_unknown_is_told_with_the_nearest_name() {
        let known = [
            "BATCHWRIGHT_PREFETCH".to_owned(),
            "BATCHWRIGHT_BROKER".to_owned(),
        ];
        let refusal = variables(&[("BATCHWRIGHT_PREFECHT", "1"), ("HOME", "/")])
            .refuse_unknown(&known, "a worker")
            .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the variable BATCHWRIGHT_PREFECHT is no setting of a worker; did you mean BATCHWRIGHT_PREFETCH?"
        );
        assert!(
            variables(&[("BATCHWRIGHT_BROKER", "x")])
                .refuse_unknown(&known, "a worker")
                .is_ok()
        );
    }
}
