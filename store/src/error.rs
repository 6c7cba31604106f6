//! Errors of the store, as its callers see them.

use std::fmt;
use std::sync::Arc;

use contract::rest::ErrorCode;

/// Why an operation of the store failed. Its `Debug` is the sentence for people, too, because that
/// is what a `main` prints that returns it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The database URL or the database itself cannot be used. A retry does not help.
    #[error("the database {location} cannot be used: {reason}")]
    Unusable {
        /// The URL of the database, without its password.
        location: String,
        /// What is wrong with it.
        reason: Cause,
    },
    /// The database does not respond, or asks for a retry (deadlock, serialisation failure, lost
    /// connection).
    #[error("the database is not available: {0}")]
    Unavailable(Cause),
    /// The database rejected a statement, or holds a value that cannot be read.
    #[error("the database refused: {0}")]
    Refused(Cause),
}

/// The result of an operation of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StoreError {
    /// Returns the error of a database that can never be used. `location` has no password.
    pub(crate) fn unusable(location: impl Into<String>, reason: impl Into<Cause>) -> Self {
        Self::Unusable {
            location: location.into(),
            reason: reason.into(),
        }
    }

    /// Returns the code under which the log and the API tell the error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Unavailable(_) | Self::Unusable { .. } => ErrorCode::DatabaseUnavailable,
            Self::Refused(_) => ErrorCode::InternalError,
        }
    }

    /// Returns what the database or its driver reported.
    pub fn cause(&self) -> &Cause {
        match self {
            Self::Unusable { reason, .. } => reason,
            Self::Unavailable(cause) | Self::Refused(cause) => cause,
        }
    }
}

/// The cause of an error: a text and, if the driver reported it, the driver's error with the code
/// of the database.
///
/// The text includes the driver's, so the driver's error is not the `source` of a [`StoreError`]: a
/// chain would repeat it.
#[derive(Clone)]
pub struct Cause {
    message: String,
    code: Option<String>,
    driver_error: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Cause {
    /// Returns the code that the database gave: the SQLSTATE of PostgreSQL (`42P01`) or the
    /// extended result code of SQLite (`2067`).
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Returns the error of the driver, unless the store itself found the fault.
    pub fn driver_error(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.driver_error.as_deref()
    }

    /// Replaces the text and keeps the rest.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }
}

impl From<String> for Cause {
    fn from(message: String) -> Self {
        Self {
            message,
            code: None,
            driver_error: None,
        }
    }
}

impl From<&str> for Cause {
    fn from(message: &str) -> Self {
        Self::from(message.to_owned())
    }
}

impl From<sqlx::Error> for Cause {
    fn from(error: sqlx::Error) -> Self {
        let of_database = error.as_database_error();
        Self {
            // Without the line in the source of PostgreSQL that the driver's text ends with.
            message: of_database.map_or_else(
                || error.to_string(),
                |error| format!("error returned from database: {}", error.message()),
            ),
            code: of_database.and_then(|error| error.code().map(Into::into)),
            driver_error: Some(Arc::new(error)),
        }
    }
}

impl From<rusqlite::Error> for Cause {
    fn from(error: rusqlite::Error) -> Self {
        let (message, code) = match &error {
            rusqlite::Error::SqliteFailure(code, message) => {
                let message = message.clone().unwrap_or_else(|| code.to_string());
                (message, Some(code.extended_code))
            }
            // Without the statement, which the driver's text ends with.
            rusqlite::Error::SqlInputError { error, msg, .. } => {
                (msg.clone(), Some(error.extended_code))
            }
            _ => (error.to_string(), None),
        };
        Self {
            message: match code {
                Some(_) => format!("error returned from database: {message}"),
                None => message,
            },
            code: code.map(|code| code.to_string()),
            driver_error: Some(Arc::new(error)),
        }
    }
}

impl From<sqlx::migrate::MigrateError> for Cause {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self {
            message: error.to_string(),
            code: None,
            driver_error: Some(Arc::new(error)),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver_error {
            Some(error) => write!(f, "{:?} ({error:?})", self.message),
            None => write!(f, "{:?}", self.message),
        }
    }
}

/// Two causes are equal when they read the same and have the same code.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        (&self.message, &self.code) == (&other.message, &other.code)
    }
}

impl Eq for Cause {}

/// Whether the database can be used, as far as is known without asking it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// It responds.
    Available,
    /// It does not respond, for this reason. The store keeps trying.
    Unavailable(String),
    /// It responds, but can never be used. The store has stopped trying.
    Unusable(StoreError),
}

impl Availability {
    /// Returns why the database cannot be used; `None` if it can.
    pub fn outage(&self) -> Option<String> {
        match self {
            Self::Available => None,
            Self::Unavailable(reason) => Some(format!("the database is not available: {reason}")),
            Self::Unusable(error) => Some(error.to_string()),
        }
    }
}
