//! The number of tracking shards, in memory.

use super::{Memory, MemoryTransaction, done};
use crate::db::DbFuture;
use crate::db::shards::{ShardReads, ShardSteps};

impl ShardReads for Memory {
    fn tracking_shards<'a>(&'a self, pipe: &'a str) -> DbFuture<'a, Option<i32>> {
        Box::pin(async move { Ok(self.read().await?.tracking_shards.get(pipe).copied()) })
    }
}

impl ShardSteps for MemoryTransaction {
    fn raise_tracking_shards<'a>(&'a mut self, pipe: &'a str, shards: i32) -> DbFuture<'a, bool> {
        let noted = self.state.tracking_shards.get(pipe).copied();
        let is_new = noted.is_none_or(|noted| noted < shards);
        if is_new {
            self.put(|s| &mut s.tracking_shards, pipe.to_owned(), Some(shards));
        }
        done(is_new)
    }
}
