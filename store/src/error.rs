//! What can go wrong with a database, as callers see it and as the operations inside need to tell it apart.

/// What an operation of the store answers when it could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The database URL or the database itself cannot be used; trying again does not help.
    #[error("the database {place} cannot be used: {reason}")]
    Unusable { place: String, reason: String },
    /// The database did not answer, or asked to try again (deadlock, serialisation, connection).
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database refused a statement for a reason of its own.
    #[error("the database refused: {0}")]
    Refused(String),
}

/// How the database is, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    Available,
    /// Why not; it is tried again.
    Unavailable(String),
    /// It was waited for, and turned out to be one that can never be used.
    Unusable(StoreError),
}
