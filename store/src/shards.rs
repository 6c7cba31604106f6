//! Over how many shards of a tracking pipe jobs have been spread, at the most.
//!
//! Messages carry the name of their shard for as long as their job may go on, whatever the setting
//! is by then. So the number that was used is kept, and tracking workers read so many.
//!
//! What must stay true: the number never falls, and a job service notes it before it spreads the
//! first job over so many.

use contract::TrackingShards;
use tokio::sync::watch;

use crate::db::run_tx::End;
use crate::db::{Signal, sql};
use crate::{Result, Store};

impl Store {
    /// Notes that jobs will be spread over so many shards of this tracking pipe.
    pub async fn note_tracking_shards(&self, pipe: &str, shards: TrackingShards) -> Result<()> {
        let number = i32::try_from(shards.number()).unwrap_or(i32::MAX);
        self.run_tx("note_tracking_shards", |tx| {
            Box::pin(async move {
                if !sql::shards::raise(tx, pipe, number).await? {
                    return Ok(End::Rollback(()));
                }
                tx.notify(Signal::TrackingShards);
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Returns over how many shards of this tracking pipe jobs have been spread at the most.
    pub async fn tracking_shards(&self, pipe: &str) -> Result<TrackingShards> {
        let noted = sql::shards::find(&mut self.database.reader().await?, pipe).await?;
        let noted = noted.and_then(|number| u32::try_from(number).ok());
        // A later version may allow more.
        let noted = noted.and_then(|number| TrackingShards::new(number.min(TrackingShards::MOST)));
        Ok(noted.unwrap_or_default())
    }

    /// Returns a receiver that changes whenever jobs are spread over more shards than before. A new
    /// receiver counts as changed.
    pub fn tracking_shards_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::TrackingShards)
    }
}
