//! The sweeper: drops the task tables of jobs that are over, and forgets past lives.
//!
//! A few tables per transaction: every dropped table costs locks, and a database has only so many of them.

use tokio::sync::watch;

use crate::backend::Signal;
use crate::error::Fault;
use crate::{Attempts, Store, StoreError};

/// How many tables one transaction drops.
const TABLES: u32 = 8;

impl Store {
    /// Wakes whenever the sweeper has got something to do. A new receiver counts as woken.
    pub fn sweep_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Sweep)
    }

    /// Drops tables of finished and deleted jobs, a few per transaction, and forgets past lives that are old enough.
    /// Answers how many tables went and when, in milliseconds from now, there is more to do.
    pub async fn sweep(&self) -> Result<(u64, Option<u64>), StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.sweep_once().await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn sweep_once(&self) -> Result<(u64, Option<u64>), Fault> {
        let lives_kept = u64::try_from(self.options.past_lives_kept.as_millis()).unwrap_or(u64::MAX);
        let mut tx = self.backend.begin().await?;
        let mut dropped = 0;
        for incarnation in tx.due_tables(TABLES).await? {
            dropped += u64::from(tx.drop_table(incarnation).await?);
        }
        tx.forget_lives(lives_kept).await?;
        let next = tx.next_due(lives_kept).await?;
        tx.commit().await?;
        Ok((dropped, next))
    }
}
