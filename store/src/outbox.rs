//! The outbox: messages that were written in the transaction that causes them and wait for the broker.

use tokio::sync::watch;

use crate::backend::Signal;
use crate::{OutboxMessage, Store, StoreError};

impl Store {
    /// The oldest messages of the outbox.
    pub async fn outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, StoreError> {
        Ok(self.backend.outbox(limit).await?)
    }

    /// These messages are with the broker.
    pub async fn outbox_sent(&self, ids: &[i64]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut tx = self.backend.begin().await?;
        tx.outbox_sent(ids).await?;
        Ok(tx.commit().await?)
    }

    /// Wakes whenever the outbox has got messages, in this process or another. A new receiver counts as woken.
    pub fn outbox_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Outbox)
    }
}
