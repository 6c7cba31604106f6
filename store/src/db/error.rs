//! Errors of the databases, in the kinds that the operations of the store treat differently.

use crate::StoreError;
use crate::error::Cause;

/// Why a step of a transaction, or a read, failed.
#[derive(Debug, Clone)]
pub(crate) enum DbError {
    /// Deadlock or serialisation failure: the same transaction can pass when it is run again.
    Contention(Cause),
    /// Another transaction keeps something locked.
    Locked(Cause),
    /// The database does not respond, or cannot serve now.
    Unavailable(Cause),
    /// The database rejected the statement, or holds a value that cannot be read.
    Refused(Cause),
}

/// The result of a step of a transaction, or of a read.
pub(crate) type Result<T, E = DbError> = std::result::Result<T, E>;

impl DbError {
    /// Returns whether the statement named a table that does not exist.
    ///
    /// PostgreSQL has a SQLSTATE for it (its messages depend on `lc_messages`). SQLite has none: it
    /// reports its generic code 1, and only its text, which is never translated, distinguishes this
    /// error from others.
    pub fn is_missing_table(&self) -> bool {
        let Self::Refused(cause) = self else {
            return false;
        };
        match cause.code() {
            Some("42P01") => true,
            Some("1") => cause.to_string().contains("no such table: "),
            _ => false,
        }
    }
}

impl From<DbError> for Cause {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Contention(cause)
            | DbError::Locked(cause)
            | DbError::Unavailable(cause)
            | DbError::Refused(cause) => cause,
        }
    }
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Contention(cause) | DbError::Locked(cause) | DbError::Unavailable(cause) => {
                Self::Unavailable(cause)
            }
            DbError::Refused(cause) => Self::Refused(cause),
        }
    }
}

impl From<serde_json::Error> for DbError {
    fn from(error: serde_json::Error) -> Self {
        Self::Refused(format!("a stored JSON text cannot be read: {error}").into())
    }
}

impl From<std::io::Error> for DbError {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(format!("a definition cannot be packed or unpacked: {error}").into())
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        let kind: fn(Cause) -> Self = match &error {
            E::Database(refusal) => kind_of(refusal.code().as_deref().unwrap_or_default()),
            E::Io(_)
            | E::Tls(_)
            | E::Protocol(_)
            | E::PoolTimedOut
            | E::PoolClosed
            | E::WorkerCrashed => Self::Unavailable,
            _ => Self::Refused,
        };
        kind(error.into())
    }
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        let cause = Cause::from(error);
        kind_of(cause.code().unwrap_or_default())(cause)
    }
}

impl From<sqlx::migrate::MigrateError> for DbError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self::Refused(error.into())
    }
}

/// Returns the kind of an error by its code. PostgreSQL's codes have five characters; SQLite's are
/// numbers whose low byte is the primary code.
fn kind_of(code: &str) -> fn(Cause) -> DbError {
    if code.len() == 5 {
        return match code {
            "40001" | "40P01" => DbError::Contention,
            "55P03" => DbError::Locked,
            // A transaction that was idle for too long; a server that has become a standby.
            "25P03" | "25006" => DbError::Unavailable,
            // A database that starts, stops, is full, cannot be reached, or does not let this
            // process in now.
            _ if ["08", "28", "3D", "53", "55", "57", "58"].contains(&&code[..2]) => {
                DbError::Unavailable
            }
            _ => DbError::Refused,
        };
    }
    match code.parse::<u32>().map(|code| code & 0xff) {
        // Busy and locked.
        Ok(5 | 6) => DbError::Contention,
        // No memory, read-only, interrupted, input and output, disk full, cannot open.
        Ok(7 | 8 | 9 | 10 | 13 | 14) => DbError::Unavailable,
        _ => DbError::Refused,
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn codes_tell_contention_and_unavailability_from_refusal() {
        let kind = |kind: fn(Cause) -> DbError| discriminant(&kind("".into()));
        for (codes, expected) in [
            (
                &["40001", "40P01", "5", "517", "6"][..],
                kind(DbError::Contention),
            ),
            (&["55P03"], kind(DbError::Locked)),
            (
                &[
                    "08006", "53300", "57014", "57P01", "25P03", "10", "13", "14", "522",
                ],
                kind(DbError::Unavailable),
            ),
            // A server that has become a standby, a password that was changed, a database that is
            // being recreated.
            (
                &["25006", "28P01", "28000", "3D000", "7", "8", "1032", "9"],
                kind(DbError::Unavailable),
            ),
            (
                &["23505", "42P01", "22021", "1", "19", "2067", ""],
                kind(DbError::Refused),
            ),
        ] {
            for code in codes {
                assert_eq!(kind(kind_of(code)), expected, "{code}");
            }
        }
    }

    #[test]
    fn error_keeps_its_driver_error_and_reads_like_it() {
        let error = DbError::from(sqlx::Error::PoolTimedOut);
        let StoreError::Unavailable(cause) = StoreError::from(error.clone()) else {
            panic!("not unavailable: {error:?}");
        };
        let driver_error = cause.driver_error().unwrap().to_string();
        assert_eq!(cause.to_string(), driver_error);
        assert_eq!(cause.code(), None);
    }
}
