//! The outbox: messages that were written in the transaction that causes them and wait for the broker.
//!
//! A relay *claims* messages that are due, and has them until its lease ends: two relays on one store do not send the same, and
//! what one had that has died is claimed by another. Not handed out are the messages of a paused job, those of a suspended
//! partition, and those without a due time, whose job waits for prerequisites.

use std::time::Duration;

use contract::PartitionId;
use tokio::sync::watch;

use crate::db::DbError;
use crate::db::{Signal, Transaction};
use crate::{Attempts, OutboxMessage, Store, StoreError};

/// What a relay is to send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    pub messages: Vec<OutboxMessage>,
    /// How long until there is something to claim again without a signal, by what is known now; `None` where that is not a matter
    /// of time.
    pub next_due: Option<Duration>,
}

impl Store {
    /// The messages that are due, oldest first, whether a relay has them or not. Changes nothing.
    pub async fn outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, StoreError> {
        Ok(self.backend.outbox(limit).await?)
    }

    /// Takes the oldest messages that are due and that no other relay has. They are this relay's for the time of the lease.
    pub async fn claim_outbox(&self, limit: u32, lease: Duration) -> Result<Claim, StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.claim_once(limit, millis(lease)).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn claim_once(&self, limit: u32, lease: u64) -> Result<Claim, DbError> {
        let mut tx = self.backend.begin().await?;
        let messages = tx.claim_outbox(limit, lease).await?;
        let next_due = tx.outbox_due().await?.map(Duration::from_millis);
        if messages.is_empty() {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
        Ok(Claim { messages, next_due })
    }

    /// These messages are with the broker.
    pub async fn outbox_sent(&self, ids: &[i64]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut attempts = Attempts::default();
        loop {
            match self.sent_once(ids).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn sent_once(&self, ids: &[i64]) -> Result<(), DbError> {
        let mut tx = self.backend.begin().await?;
        tx.outbox_sent(ids).await?;
        tx.commit().await
    }

    /// Keeps each of these claimed messages for so long from now, and no longer. With no time at all they are given back, and
    /// whoever waits is woken.
    pub async fn lease_outbox(&self, leases: &[(i64, Duration)]) -> Result<(), StoreError> {
        if leases.is_empty() {
            return Ok(());
        }
        let leases: Vec<(i64, u64)> = leases
            .iter()
            .map(|(id, lease)| (*id, millis(*lease)))
            .collect();
        let mut attempts = Attempts::default();
        loop {
            match self.lease_once(&leases).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn lease_once(&self, leases: &[(i64, u64)]) -> Result<(), DbError> {
        let mut tx = self.backend.begin().await?;
        tx.lease_outbox(leases).await?;
        if leases.iter().any(|(_, lease)| *lease == 0) {
            tx.notify(Signal::Outbox);
        }
        tx.commit().await
    }

    /// Lets the jobs of this partition start that were suspended when they were created; answers how many. Those that wait for
    /// something else go on waiting for it.
    pub async fn dispatch_partition(&self, partition: &PartitionId) -> Result<u64, StoreError> {
        let mut attempts = Attempts::default();
        loop {
            match self.dispatch_once(partition).await {
                Err(fault) if attempts.again(&fault).await => {}
                other => return Ok(other?),
            }
        }
    }

    async fn dispatch_once(&self, partition: &PartitionId) -> Result<u64, DbError> {
        let mut tx = self.backend.begin().await?;
        let jobs = tx.dispatch_partition(partition.as_str()).await?;
        tx.notify(Signal::Outbox);
        tx.notify(Signal::Jobs);
        tx.commit().await?;
        Ok(jobs)
    }

    /// Wakes whenever the outbox has got messages or one may leave it that could not, in this process or another. A new receiver
    /// counts as woken.
    pub fn outbox_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Outbox)
    }
}

/// The messages of a job that is paused wait, those of a job that is no longer paused do not.
pub(crate) async fn pause_messages(
    tx: &mut dyn Transaction,
    incarnation: i64,
    paused: bool,
) -> Result<(), DbError> {
    tx.pause_outbox_of(incarnation, paused).await?;
    if !paused {
        tx.notify(Signal::Outbox);
    }
    Ok(())
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
