//! The environment as it was when the program began. A program reads it once, in `main`, and passes
//! it on as [`Variables`].
//!
//! What must stay true: an empty variable counts as not set, and no error text contains a secret.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{PREFIX, SettingsError};

/// The variables of a process.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

/// A value, and the variable that it comes from.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvValue {
    /// The value, which may be a secret. `Debug` does not show it.
    pub value: String,
    /// The name of the variable, for error messages.
    pub from: String,
}

/// A URL that is composed of variables, with defaults for those that are not set.
#[derive(Debug, Clone, Copy)]
pub struct UrlParts<'a> {
    /// The prefix of all variables. `HOST`, `PORT`, `USERNAME` and `PASSWORD` follow it.
    pub prefix: &'a str,
    /// Further parts that follow the prefix. They are in [`Self::path`] already; if one is set,
    /// there is a URL.
    pub also: &'a [&'a str],
    /// The scheme of the URL.
    pub scheme: &'a str,
    /// The default host.
    pub host: &'a str,
    /// The default port.
    pub port: u16,
    /// The default user name.
    pub username: &'a str,
    /// The default password.
    pub password: &'a str,
    /// What follows the port, already encoded.
    pub path: &'a str,
}

impl Variables {
    /// Takes variables as pairs of name and value.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().collect())
    }

    /// Returns the value of a variable, or `None` if it is not set or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns whether a variable is set to the empty string.
    pub fn is_blank(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(String::is_empty)
    }

    /// Returns the first of these variables that is set.
    pub fn first(&self, names: &[&str]) -> Option<EnvValue> {
        names.iter().find_map(|name| {
            Some(EnvValue {
                value: self.get(name)?.to_owned(),
                from: (*name).to_owned(),
            })
        })
    }

    /// Returns a variable; if it is not set, the content of the file that `<name>_FILE` names,
    /// without the line break at its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn secret(&self, name: &str) -> Result<Option<EnvValue>, SettingsError> {
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
        Ok(Some(EnvValue {
            value: text.trim_end_matches(['\r', '\n']).to_owned(),
            from,
        }))
    }

    /// Composes a URL of its parts. Returns `None` if no variable of them is set.
    ///
    /// # Errors
    ///
    /// Returns an error if the port is not a port number, or the password's file cannot be read.
    pub fn url(&self, parts: UrlParts<'_>) -> Result<Option<EnvValue>, SettingsError> {
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
        let username = url_encoded(username.unwrap_or(parts.username));
        let password = url_encoded(
            password
                .as_ref()
                .map_or(parts.password, |found| &found.value),
        );
        let colon = if password.is_empty() { "" } else { ":" };
        let value = format!(
            "{}://{username}{colon}{password}@{host}:{port}{}",
            parts.scheme, parts.path
        );
        Ok(Some(EnvValue {
            value,
            from: format!("{}*", parts.prefix),
        }))
    }

    /// Checks that every variable with our prefix is known. `whose` is who has the settings, for
    /// the error text.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first unknown variable and the known one with the most
    /// similar name.
    pub fn refuse_unknown(&self, known: &[String], whose: &str) -> Result<(), SettingsError> {
        let Some(name) = self
            .0
            .keys()
            .find(|name| name.starts_with(PREFIX) && !known.contains(name))
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
            format!("is not a setting of {whose}{hint}"),
        ))
    }
}

/// Returns a value without the passwords of the URLs in it.
pub fn masked(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    // A password may contain any character that is not escaped. Hiding too much is better than
    // hiding too little.
    match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:***@{host}")
        }
        _ => value.to_owned(),
    }
}

/// Returns settings as one text for the log.
pub fn listed(settings: &[String]) -> String {
    if settings.is_empty() {
        "none".to_owned()
    } else {
        settings.join(", ")
    }
}

/// Encodes text as a part of a URL.
pub fn url_encoded(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values, because some are passwords.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvValue")
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

    #[test]
    fn secret_may_be_in_a_file_and_the_variable_comes_first() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "se cret").unwrap();
        let path = file.path().to_str().unwrap();
        let secret = |all: &[(&str, &str)]| variables(all).secret("A").unwrap().unwrap().value;
        assert_eq!(secret(&[("A_FILE", path)]), "se cret");
        assert_eq!(secret(&[("A", "first"), ("A_FILE", path)]), "first");
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
    fn passwords_of_urls_are_masked() {
        for (value, shown) in [
            (
                "amqp://ann:sec@r/et@mq:5672/%2f",
                "amqp://ann:***@mq:5672/%2f",
            ),
            ("http://a:b@one, http://c:d@two", "http://a:***@two"),
            ("amqp://mq:5672/%2f", "amqp://mq:5672/%2f"),
            ("worker-in", "worker-in"),
        ] {
            assert_eq!(masked(value), shown);
        }
    }

    #[test]
    fn unknown_variable_is_refused_with_the_nearest_name() {
        let known = [
            "BATCHWRIGHT_PREFETCH".to_owned(),
            "BATCHWRIGHT_BROKER".to_owned(),
        ];
        let refusal = variables(&[("BATCHWRIGHT_PREFECHT", "1"), ("HOME", "/")])
            .refuse_unknown(&known, "a worker")
            .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the variable BATCHWRIGHT_PREFECHT is not a setting of a worker; did you mean BATCHWRIGHT_PREFETCH?"
        );
        assert!(
            variables(&[("BATCHWRIGHT_BROKER", "x")])
                .refuse_unknown(&known, "a worker")
                .is_ok()
        );
    }
}
