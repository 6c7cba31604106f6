//! How a database is made to fail, for simulations.

use std::fmt;
use std::sync::Arc;

use super::{DbError, Result};

/// A point at which a simulated database can be made to fail, like one whose connection is lost
/// there.
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

/// Whether a database fails at a point; `None` if it never does so on purpose.
#[derive(Clone, Default)]
pub struct Faults(pub Option<Arc<dyn Fn(FaultPoint) -> bool + Send + Sync>>);

impl Faults {
    /// Returns an error if the database is to fail here.
    pub fn pass(&self, point: FaultPoint) -> Result<()> {
        match &self.0 {
            Some(fails) if fails(point) => Err(DbError::Unavailable(
                format!("a fault was planned here: {point:?}").into(),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faults").finish_non_exhaustive()
    }
}
