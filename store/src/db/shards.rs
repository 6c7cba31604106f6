//! The steps on the number of tracking shards, and the read of it.

use super::DbFuture;

/// Steps on the number of shards.
pub trait ShardSteps {
    /// Notes that jobs are spread over so many shards of a tracking pipe, unless they have been
    /// over as many. Returns whether that is new.
    fn raise_tracking_shards<'a>(&'a mut self, pipe: &'a str, shards: i32) -> DbFuture<'a, bool>;
}

/// Reads of the number of shards, outside transactions.
pub trait ShardReads {
    /// Returns over how many shards of a tracking pipe jobs have been spread at the most, if that
    /// is noted.
    fn tracking_shards<'a>(&'a self, pipe: &'a str) -> DbFuture<'a, Option<i32>>;
}
