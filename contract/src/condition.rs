//! What a task waits for: a condition outside of it that must pass first, such as a database that
//! is away.
//!
//! A worker states the condition; the job service keeps the task, tests the condition, and sends
//! the task again once it has passed. Tasks whose conditions have the same [key](Condition::key)
//! wait together, and one test serves them all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{PartitionId, Preset, RetryPolicy};

/// A condition that keeps a task from running, how it is tested, and for how long.
///
/// A condition is bounded: at most [`Condition::MAX_BYTES`] of JSON and
/// [`Condition::MAX_PARAMETERS`] parameters.
///
/// ```
/// use batchwright_contract::{Condition, ConditionCode, Tester};
///
/// let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
///     .parameter("database", "orders")?
///     .tested_by(Tester::Tcp { host: "db.example.com".to_owned(), port: 5432 })?
///     .because("connection refused");
/// assert_eq!(condition.key().as_str().len(), 32);
/// # Ok::<(), batchwright_contract::InvalidCondition>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    code: ConditionCode,
    /// Sorted, because they are part of the key.
    parameters: BTreeMap<String, String>,
    tester: Tester,
    policy: RetryPolicy,
    reason: String,
}

/// The kind of a condition: `A` to `Z`, digits and `_`, at most 64 characters, a letter first.
/// Aloe's codes are constants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ConditionCode(Cow<'static, str>);

/// What decides whether a condition has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Tester {
    /// A `GET` of this URL returns a status from 200 to 299.
    Http {
        /// The URL, `http` or `https`, without a user and a password.
        url: String,
    },
    /// This port accepts a connection.
    Tcp {
        /// The name or the address of the host.
        host: String,
        /// The port.
        port: u16,
    },
    /// This database answers.
    PostgreSql {
        /// The operator's name for it, never an address.
        database: String,
    },
    /// A partition has fewer jobs or fewer tasks under way than this.
    Quota {
        /// The partition.
        #[cfg_attr(feature = "utoipa", schema(value_type = String))]
        partition: PartitionId,
        /// At most so many jobs with work under way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        jobs: Option<u32>,
        /// At most so many tasks that run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks: Option<u32>,
    },
    /// One of the tasks that wait runs again. Also read for kinds of later versions.
    #[serde(other)]
    Canary,
}

/// What conditions have in common that are tested and released together: the beginning of a digest
/// of code, tester and parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ConditionKey(String);

/// Why something is no condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCondition(String);

impl Condition {
    /// The most bytes of a condition as JSON.
    pub const MAX_BYTES: usize = 4096;
    /// The most parameters.
    pub const MAX_PARAMETERS: usize = 16;
    /// The most bytes of a reason. A longer one is cut.
    pub const MAX_REASON: usize = 500;
    /// The most bytes of the name of a parameter, and of an operator's name for a database.
    pub const MAX_NAME: usize = 64;
    /// What the reason leaves of [`Self::MAX_BYTES`]: quotes and backslashes take two bytes each.
    const MAX_WITHOUT_REASON: usize = Self::MAX_BYTES - 2 * Self::MAX_REASON;

    /// Returns a condition without parameters that is tested by a canary, by the policy of its
    /// code.
    pub fn new(code: ConditionCode) -> Self {
        Self {
            policy: code.policy(),
            code,
            parameters: BTreeMap::new(),
            tester: Tester::Canary,
            reason: String::new(),
        }
    }

    /// Returns the common condition: tasks wait for it if their own condition would be one more
    /// than the job service keeps. It is tested by a canary once a minute and never given up,
    /// because it says nothing of what its tasks need.
    pub fn common() -> Self {
        Self {
            policy: RetryPolicy::constant(Duration::from_mins(1)).forever(),
            ..Self::new(ConditionCode::TOO_MANY_CONDITIONS)
        }
        .because("there are as many conditions as there may be; tasks that wait for further ones wait together")
    }

    /// Adds a parameter, or replaces its value. Parameters are part of the key: what differs from
    /// task to task belongs into the reason.
    ///
    /// # Errors
    /// If the name is empty or too long, if name or value have control characters, or if the
    /// condition becomes too large.
    pub fn parameter(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, InvalidCondition> {
        let (name, value) = (name.into(), value.into());
        check_name("the name of a parameter", &name)?;
        if value.contains(char::is_control) {
            let problem = format!("the parameter {name} of the condition has control characters");
            return Err(InvalidCondition(problem));
        }
        self.parameters.insert(name, value);
        self.checked()
    }

    /// Says what tests the condition.
    ///
    /// # Errors
    /// If the tester can test nothing, for example because its URL is none, or if the condition
    /// becomes too large.
    pub fn tested_by(mut self, tester: Tester) -> Result<Self, InvalidCondition> {
        tester.check()?;
        self.tester = tester;
        self.checked()
    }

    /// Says when the condition is tested, and when its tasks fail: each delay is the time before a
    /// test, and the limits are those of the tests. The attempt that found the condition counts as
    /// the first.
    ///
    /// # Errors
    /// If the policy allows no test, or if the condition becomes too large.
    pub fn policy(mut self, policy: RetryPolicy) -> Result<Self, InvalidCondition> {
        self.policy = policy;
        self.checked()
    }

    /// Says why the task cannot run now, for people. A long reason is cut; control characters
    /// become spaces.
    #[must_use]
    pub fn because(mut self, reason: impl fmt::Display) -> Self {
        self.reason = reason.to_string().replace(char::is_control, " ");
        let end = self.reason.floor_char_boundary(Self::MAX_REASON);
        self.reason.truncate(end);
        self
    }

    /// Returns the code.
    pub const fn code(&self) -> &ConditionCode {
        &self.code
    }

    /// Returns the parameters, sorted by name.
    pub const fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }

    /// Returns what tests the condition.
    pub const fn tester(&self) -> &Tester {
        &self.tester
    }

    /// Returns when the condition is tested.
    pub const fn test_policy(&self) -> &RetryPolicy {
        &self.policy
    }

    /// Returns why the task could not run.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the delay before the next test of a condition that has lasted for this long and was
    /// tested so often; `None` if it has expired.
    pub fn delay_before_test(&self, tests: u32, lasted: Duration) -> Option<Duration> {
        self.policy.delay_after(tests.saturating_add(1), lasted)
    }

    /// Returns the key. The policy and the reason are not part of it.
    pub fn key(&self) -> ConditionKey {
        let parts = (&self.code, &self.tester, &self.parameters);
        let text = serde_json::to_vec(&parts).unwrap_or_default();
        let digest = Sha256::digest(text);
        let digits = digest[..16].iter().map(|byte| format!("{byte:02x}"));
        ConditionKey(digits.collect())
    }

    /// Returns the condition as JSON, on one line: the value of a header.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the JSON of a condition.
    ///
    /// # Errors
    /// If the text is too long or is no condition.
    pub fn from_json(text: &str) -> Result<Self, InvalidCondition> {
        if text.len() > Self::MAX_BYTES {
            let problem = format!("the condition has more than {} bytes", Self::MAX_BYTES);
            return Err(InvalidCondition(problem));
        }
        serde_json::from_str(text).map_err(|error| InvalidCondition(error.to_string()))
    }

    fn checked(self) -> Result<Self, InvalidCondition> {
        if self.parameters.len() > Self::MAX_PARAMETERS {
            let problem = format!(
                "the condition has more than {} parameters",
                Self::MAX_PARAMETERS
            );
            return Err(InvalidCondition(problem));
        }
        if self.delay_before_test(0, Duration::ZERO).is_none() {
            let problem = format!(
                "the policy {} of the condition allows no test; state one with at least two attempts, such as aloe-constant",
                self.policy
            );
            return Err(InvalidCondition(problem));
        }
        // The job service parses the text of the policy again.
        if let Err(problem) = self.policy.to_string().parse::<RetryPolicy>() {
            let problem = format!("the policy of the condition is not possible: {problem}");
            return Err(InvalidCondition(problem));
        }
        let bytes = self.to_json().len() - json_len(&self.reason);
        if bytes > Self::MAX_WITHOUT_REASON {
            let problem = format!(
                "the condition has {bytes} bytes without its reason; at most {} are possible",
                Self::MAX_WITHOUT_REASON
            );
            return Err(InvalidCondition(problem));
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Unchecked {
            code: ConditionCode,
            #[serde(default)]
            parameters: BTreeMap<String, String>,
            tester: Tester,
            policy: Option<RetryPolicy>,
            #[serde(default)]
            reason: String,
        }
        let unchecked = Unchecked::deserialize(deserializer)?;
        let mut condition = Self::new(unchecked.code).because(unchecked.reason);
        let read = || {
            for (name, value) in unchecked.parameters {
                condition = condition.parameter(name, value)?;
            }
            if let Some(policy) = unchecked.policy {
                condition = condition.policy(policy)?;
            }
            condition.tested_by(unchecked.tester)
        };
        read().map_err(serde::de::Error::custom)
    }
}

impl ConditionCode {
    /// A system that the task needs is not available.
    pub const SYSTEM_NOT_AVAILABLE: Self = Self(Cow::Borrowed("SYSTEM_NOT_AVAILABLE"));
    /// A program that the task needs is not available.
    pub const APPLICATION_NOT_AVAILABLE: Self = Self(Cow::Borrowed("APPLICATION_NOT_AVAILABLE"));
    /// A service cannot be reached.
    pub const SERVICE_CONNECTION_FAILURE: Self = Self(Cow::Borrowed("SERVICE_CONNECTION_FAILURE"));
    /// Data could not be sent or received.
    pub const TRANSMISSION_FAILURE: Self = Self(Cow::Borrowed("TRANSMISSION_FAILURE"));
    /// A database is not available.
    pub const DATABASE_NOT_AVAILABLE: Self = Self(Cow::Borrowed("DATABASE_NOT_AVAILABLE"));
    /// A quota is used up.
    pub const QUOTA_EXCEEDED: Self = Self(Cow::Borrowed("QUOTA_EXCEEDED"));
    /// What the task needs is suspended.
    pub const JOB_SUSPENDED: Self = Self(Cow::Borrowed("JOB_SUSPENDED"));
    /// A host cannot be reached by SSH.
    pub const SSH_CONNECTION_FAILURE: Self = Self(Cow::Borrowed("SSH_CONNECTION_FAILURE"));
    /// A host does not answer by SSH in time.
    pub const SSH_CONNECTION_TIMEOUT: Self = Self(Cow::Borrowed("SSH_CONNECTION_TIMEOUT"));
    /// A host refuses a user by SSH.
    pub const SSH_AUTHENTICATION_FAILED: Self = Self(Cow::Borrowed("SSH_AUTHENTICATION_FAILED"));
    /// A host refuses a user by SSH at the first use.
    pub const FIRST_SSH_AUTHENTICATION_FAILED: Self =
        Self(Cow::Borrowed("FIRST_SSH_AUTHENTICATION_FAILED"));

    /// A task waits for a condition that would be one more than the job service keeps.
    pub const TOO_MANY_CONDITIONS: Self = Self(Cow::Borrowed("TOO_MANY_CONDITIONS"));

    /// The most characters.
    pub const MAX_CHARS: usize = 64;

    /// Returns the code as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the policy of the conditions of this code that state none: the
    /// [preset](crate::PRESETS) of its name, else `aloe-stepwise`.
    pub fn policy(&self) -> RetryPolicy {
        let name = self.0.to_ascii_lowercase().replace('_', "-");
        let preset = Preset::named(&name).or_else(|| Preset::named("aloe-stepwise"));
        preset.map(Preset::policy).unwrap_or_default()
    }
}

impl FromStr for ConditionCode {
    type Err = InvalidCondition;

    fn from_str(text: &str) -> Result<Self, InvalidCondition> {
        let allowed = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_uppercase);
        if begins && text.len() <= Self::MAX_CHARS && text.bytes().all(allowed) {
            return Ok(Self(Cow::Owned(text.to_owned())));
        }
        Err(InvalidCondition(format!(
            "{} is not the code of a condition; expected A to Z, digits and _, a letter first, at most {} characters",
            shown(text),
            Self::MAX_CHARS
        )))
    }
}

impl fmt::Display for ConditionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ConditionCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Tester {
    /// Returns the name of the kind, as in the JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Tcp { .. } => "tcp",
            Self::PostgreSql { .. } => "postgresql",
            Self::Quota { .. } => "quota",
            Self::Canary => "canary",
        }
    }

    fn check(&self) -> Result<(), InvalidCondition> {
        let problem = match self {
            Self::Http { url } => is_no_url(url).then(|| {
                format!("{} is not a URL to test; expected http or https, a host, no user and no password", shown(url))
            }),
            Self::Tcp { host, port } => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
                let is_host = !host.is_empty() && host.len() <= 255 && host.chars().all(allowed);
                (!is_host || *port == 0).then(|| {
                    format!("{}, port {port}, cannot be tested; expected the name or the address of a host and a port from 1", shown(host))
                })
            }
            Self::PostgreSql { database } => {
                return check_name("the operator's name for a database", database);
            }
            Self::Quota { jobs, tasks, .. } => {
                let limits = [jobs, tasks].into_iter().flatten();
                let is_limited = limits.clone().count() > 0 && limits.clone().all(|limit| *limit > 0);
                (!is_limited).then(|| {
                    "a quota needs a number of jobs or of tasks, at least 1".to_owned()
                })
            }
            Self::Canary => None,
        };
        problem.map_or(Ok(()), |problem| Err(InvalidCondition(problem)))
    }
}

impl fmt::Display for Tester {
    /// Says what is tested, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url } => write!(f, "HTTP {url}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "TCP [{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "TCP {host}:{port}"),
            Self::PostgreSql { database } => write!(f, "PostgreSQL {database}"),
            Self::Quota {
                partition,
                jobs,
                tasks,
            } => {
                write!(f, "quota of {}:", partition.as_str())?;
                let limits = [(jobs, "jobs"), (tasks, "tasks")];
                let limits = limits
                    .iter()
                    .filter_map(|(limit, what)| Some((limit.as_ref()?, what)));
                for (n, (limit, what)) in limits.enumerate() {
                    let separator = if n == 0 { "" } else { "," };
                    write!(f, "{separator} {limit} {what}")?;
                }
                Ok(())
            }
            Self::Canary => f.write_str("canary"),
        }
    }
}

impl ConditionKey {
    /// The number of characters.
    const CHARS: usize = 32;

    /// Returns the key as text: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConditionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ConditionKey {
    type Err = InvalidCondition;

    fn from_str(text: &str) -> Result<Self, InvalidCondition> {
        let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == Self::CHARS && text.bytes().all(is_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidCondition(format!(
            "{} is not the key of a condition; expected {} hexadecimal digits",
            shown(text),
            Self::CHARS
        )))
    }
}

impl<'de> Deserialize<'de> for ConditionKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn check_name(what: &str, name: &str) -> Result<(), InvalidCondition> {
    if !name.is_empty() && name.len() <= Condition::MAX_NAME && !name.contains(char::is_control) {
        return Ok(());
    }
    Err(InvalidCondition(format!(
        "{} cannot be {what}; expected 1 to {} bytes without control characters",
        shown(name),
        Condition::MAX_NAME
    )))
}

/// Returns whether a text is certainly no URL to test. Who tests it reads it in full.
fn is_no_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return true;
    };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    authority.is_empty()
        || authority.contains('@')
        || text.contains(|c: char| c.is_control() || c.is_whitespace())
}

/// Returns how long a text is as JSON, without its quotes.
fn json_len(text: &str) -> usize {
    serde_json::to_string(text).map_or(0, |json| json.len() - 2)
}

/// Quotes the start of a text that may be of any length.
fn shown(text: &str) -> String {
    format!("{:?}", &text[..text.floor_char_boundary(60)])
}

#[cfg(test)]
mod tests;
