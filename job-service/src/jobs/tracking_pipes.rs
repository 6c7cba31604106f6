//! The tracking pipes of the jobs that a service starts: which shard a job gets, and which pipes
//! there are.
//!
//! What must stay true: no message names a shard that the store does not know of, because tracking
//! workers ask the store which to read.

use std::collections::BTreeSet;

use contract::rounds_pipe;
use store::{Incarnation, StoreError};

use crate::options::ServiceOptions;
use crate::state::AppState;

impl ServiceOptions {
    /// Returns the tracking pipe of a job that is created.
    pub(crate) fn tracking_pipe_of(&self, job: &Incarnation) -> String {
        self.tracking_shards.pipe(&self.tracking_pipe, job.number)
    }

    /// Returns the tracking pipe of messages of an incarnation that are sent again, in this round.
    /// `earlier` is the pipe that they had.
    pub(crate) fn tracking_pipe_again(
        &self,
        earlier: &str,
        incarnation: i64,
        round: u32,
    ) -> String {
        let shards = self.tracking_shards;
        let pipe = shards.pipe_again(&self.tracking_pipe, earlier, incarnation);
        if round > 1 { rounds_pipe(&pipe) } else { pipe }
    }
}

impl AppState {
    /// Lets the store know over how many shards this service spreads jobs. Everything that sends
    /// messages of jobs calls this first.
    pub async fn note_tracking_shards(&self) -> Result<(), StoreError> {
        // Every tracking worker reads the tracking pipe itself.
        if self.options.tracking_shards.number() == 1 {
            return Ok(());
        }
        let (pipe, shards) = (&self.options.tracking_pipe, self.options.tracking_shards);
        let note = || self.store.note_tracking_shards(pipe, shards);
        self.jobs.noted_shards.get_or_try_init(note).await.copied()
    }

    /// Returns the tracking pipe and all shards of it over which jobs are or have been spread.
    pub async fn tracking_pipes(&self) -> Result<BTreeSet<String>, StoreError> {
        let pipe = &self.options.tracking_pipe;
        let noted = self.store.tracking_shards(pipe).await?;
        let shards = noted.max(self.options.tracking_shards);
        Ok(shards
            .pipes(pipe)
            .into_iter()
            .chain([pipe.clone()])
            .collect())
    }
}
