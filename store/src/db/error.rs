//! Errors of the databases, as the operations of the store tell them apart.

use crate::StoreError;

/// Why a step of a transaction, or a read, failed.
#[derive(Debug, Clone)]
pub(crate) enum DbError {
    /// Deadlock or serialisation failure: the same transaction passes when it is run again.
    Contention(String),
    /// The database does not respond, or cannot serve now.
    Unavailable(String),
    /// The database rejected the statement.
    Refused(String),
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Contention(reason) | DbError::Unavailable(reason) => Self::Unavailable(reason),
            DbError::Refused(reason) => Self::Refused(reason),
        }
    }
}

impl From<serde_json::Error> for DbError {
    fn from(error: serde_json::Error) -> Self {
        Self::Refused(format!("a stored JSON text cannot be read: {error}"))
    }
}
