//! What all handles of a store in memory share, and how it is made to fail.

use std::fmt;

use crate::db::{Clock, DbError, Signals};

pub(super) struct Shared {
    pub clock: Clock,
    pub signals: Signals,
    pub fails: Box<dyn Fn(FaultPoint) -> bool + Send + Sync>,
}

/// A point at which the store in memory can be made to fail, like a database whose connection is
/// lost there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before a read outside a transaction.
    Read,
    /// Before a transaction begins.
    Begin,
    /// Before a commit: the transaction leaves nothing behind.
    Commit,
    /// After a commit: the transaction is in effect, but the caller gets an error.
    Committed,
}

impl Shared {
    pub fn pass(&self, point: FaultPoint) -> Result<(), DbError> {
        if (self.fails)(point) {
            Err(DbError::Unavailable(
                format!("a fault was planned here: {point:?}").into(),
            ))
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("clock", &self.clock)
            .field("signals", &self.signals)
            .finish_non_exhaustive()
    }
}
