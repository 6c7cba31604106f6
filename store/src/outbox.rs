//! The outbox: messages that a transaction writes together with the change that causes them, and
//! that a relay publishes.
//!
//! A relay *claims* messages that are due, and holds them until its lease ends. Two relays on one
//! store therefore do not publish the same message at the same time, and another relay claims the
//! messages of one that has died. Three kinds of messages cannot be claimed: those of a paused job,
//! those of a suspended partition, and those without a due time, whose job waits for prerequisites.
//!
//! A message that does not fit in its pipe is *held*: no relay claims it when it is due. Relays
//! claim the held messages of a pipe by their turns, as soon as there is room in the pipe.
//!
//! Beside messages, the outbox contains announcements: the names of jobs that have changed, for all
//! workers. They belong to no job, so that nothing holds them back, and are claimed by themselves,
//! so that they never wait behind messages.

use std::time::Duration;

use contract::PartitionId;
use tokio::sync::watch;

use crate::db::run_tx::{End, Tx};
use crate::db::{DbError, LONGEST_LEASE, Signal, millis, sql};
use crate::model::{Announcement, Backlog, HeldMessage, OutboxMessage, StuckJob};
use crate::{Result, Store};

/// The messages that a relay has claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// The messages to publish, oldest first.
    pub messages: Vec<OutboxMessage>,
    /// How long until another message can be claimed, as far as that is a question of time alone. A
    /// signal may come earlier.
    pub next_due: Option<Duration>,
}

/// The announcements that a relay has claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedAnnouncements {
    /// The jobs to announce, oldest first.
    pub announcements: Vec<Announcement>,
    /// How long until another announcement can be claimed. A signal may come earlier.
    pub next_due: Option<Duration>,
}

/// Writes an announcement of these jobs, given as `partition:job`, in the transaction that changes
/// them.
pub(crate) async fn announce(tx: &mut Tx<'_>, jobs: &[String]) -> Result<(), DbError> {
    if !jobs.is_empty() {
        sql::outbox::push_announcements(tx, jobs).await?;
        tx.notify(Signal::Announcements);
    }
    Ok(())
}

impl Store {
    /// Returns the messages that are due, oldest first, including those that a relay has claimed.
    /// Changes nothing.
    pub async fn outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>> {
        Ok(sql::outbox::due_messages(&mut self.database.reader().await?, limit).await?)
    }

    /// Returns what waits in the store: jobs by status, parked tasks and due messages. The parts
    /// are of different moments.
    pub async fn backlog(&self) -> Result<Backlog> {
        let db = &mut self.database.reader().await?;
        let (due_messages, oldest_due) = sql::outbox::due(db).await?;
        Ok(Backlog {
            jobs: sql::jobs::count_by_status(db).await?,
            parked_tasks: sql::parking::count_all(db).await?,
            due_messages,
            oldest_due,
        })
    }

    /// Returns jobs that have started and not ended, and that have not changed for this time, at
    /// most `limit`; none of which a message waits in the outbox, and no paused one. Looks at the
    /// jobs that have not ended.
    pub async fn stuck_jobs(&self, idle: Duration, limit: u32) -> Result<Vec<StuckJob>> {
        let idle = millis(idle);
        Ok(sql::jobs::stuck(&mut self.database.reader().await?, idle, limit).await?)
    }

    /// Claims the oldest messages that are due and that no relay holds, for the time of the lease,
    /// at most a minute: at most `limit`, and none after the message with which their bodies have
    /// at least this number of `bytes`.
    pub async fn claim_outbox(&self, limit: u32, bytes: u64, lease: Duration) -> Result<Claim> {
        self.bring_times_back().await?;
        self.run_tx("claim_outbox", |tx| {
            Box::pin(async move {
                let messages =
                    sql::outbox::claim(tx, limit, bytes, millis(lease.min(LONGEST_LEASE))).await?;
                let next_due = sql::outbox::next_claim(tx).await?;
                let has_some = !messages.is_empty();
                Ok(End::commit_if(has_some, Claim { messages, next_due }))
            })
        })
        .await
    }

    /// Holds claimed messages until there is room in their pipes: pairs of an id and a turn. Wakes
    /// the relays, so that all of them look at these pipes.
    pub async fn hold_outbox(&self, turns: &[(i64, i64)]) -> Result<()> {
        if turns.is_empty() {
            return Ok(());
        }
        self.run_tx("hold_outbox", |tx| {
            Box::pin(async move {
                sql::outbox::hold(tx, turns).await?;
                tx.notify(Signal::Outbox);
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Returns the pipes for which messages are held.
    pub async fn held_pipes(&self) -> Result<Vec<String>> {
        Ok(sql::outbox::held_pipes(&mut self.database.reader().await?).await?)
    }

    /// Returns how many messages are held for each pipe, of at most `limit` pipes.
    pub async fn count_held(&self, limit: u32) -> Result<Vec<(String, u64)>> {
        Ok(sql::outbox::count_held(&mut self.database.reader().await?, limit).await?)
    }

    /// Claims messages that are held for a pipe, for the time of the lease, at most a minute: at
    /// most `limit`, as many of each partition, by their turns. Begins with the partition that
    /// follows `after`. Takes few after the message with which their bodies have this number of
    /// `bytes`. Returns none if no more are held, or another relay takes them at the moment.
    pub async fn claim_held(
        &self,
        pipe: &str,
        after: &str,
        limit: u64,
        bytes: u64,
        lease: Duration,
    ) -> Result<Vec<HeldMessage>> {
        self.run_tx("claim_held", |tx| {
            Box::pin(async move {
                let mut partitions = sql::outbox::held_partitions(tx, pipe, after).await?;
                if partitions.is_empty() {
                    partitions = sql::outbox::held_partitions(tx, pipe, "").await?;
                }
                let (mut claimed, lease) = (Vec::new(), millis(lease.min(LONGEST_LEASE)));
                let (mut left, mut bytes, mut others) = (limit, bytes, partitions.len() as u64);
                for partition in &partitions {
                    if left == 0 || bytes == 0 {
                        break;
                    }
                    let (part, of) = (left.div_ceil(others), (pipe, partition.as_str()));
                    let most = bytes.div_ceil(others);
                    let some = sql::outbox::claim_held(tx, of, part, most, lease).await?;
                    let length = |held: &HeldMessage| held.message.body.len() as u64;
                    let taken: u64 = some.iter().map(length).sum();
                    left = left.saturating_sub(some.len() as u64);
                    (bytes, others) = (bytes.saturating_sub(taken), others - 1);
                    claimed.extend(some);
                }
                Ok(End::commit_if(!claimed.is_empty(), claimed))
            })
        })
        .await
    }

    /// Claims the oldest announcements that no relay holds, for the time of the lease, at most a
    /// minute: at most `limit`.
    pub async fn claim_announcements(
        &self,
        limit: u32,
        lease: Duration,
    ) -> Result<ClaimedAnnouncements> {
        self.bring_times_back().await?;
        self.run_tx("claim_announcements", |tx| {
            Box::pin(async move {
                let lease = millis(lease.min(LONGEST_LEASE));
                let announcements = sql::outbox::claim_announcements(tx, limit, lease).await?;
                let next_due = sql::outbox::next_announcement(tx).await?;
                let has_some = !announcements.is_empty();
                let claim = ClaimedAnnouncements {
                    announcements,
                    next_due,
                };
                Ok(End::commit_if(has_some, claim))
            })
        })
        .await
    }

    /// Removes messages and announcements that the broker has confirmed.
    pub async fn outbox_sent(&self, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.run_tx("outbox_sent", |tx| {
            Box::pin(async move {
                sql::outbox::delete_sent(tx, ids).await?;
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Replaces the leases of these claimed messages and announcements: each now ends after this
    /// time, at most a minute. A lease of zero gives them back and wakes the relays.
    pub async fn lease_outbox(&self, leases: &[(i64, Duration)]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let leases: Vec<(i64, u64)> = leases
            .iter()
            .map(|(id, lease)| (*id, millis(*lease.min(&LONGEST_LEASE))))
            .collect();
        let leases = leases.as_slice();
        self.run_tx("lease_outbox", |tx| {
            Box::pin(async move {
                sql::outbox::lease(tx, leases).await?;
                if leases.iter().any(|(_, lease)| *lease == 0) {
                    tx.notify(Signal::Outbox);
                    tx.notify(Signal::Announcements);
                }
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Lifts the suspension of the jobs of this partition that were created suspended, and returns
    /// their number. A job that also waits for prerequisites, or for its delay, continues to wait
    /// for these.
    pub async fn dispatch_partition(&self, partition: &PartitionId) -> Result<u64> {
        self.run_tx("dispatch_partition", |tx| {
            Box::pin(async move {
                let jobs = sql::outbox::dispatch_partition(tx, partition.as_str()).await?;
                tx.notify(Signal::Outbox);
                tx.notify_any_job();
                Ok(End::Commit(jobs))
            })
        })
        .await
    }

    /// Returns a receiver that changes whenever messages can be claimed that could not be before,
    /// in this process or another. A new receiver counts as changed.
    pub fn outbox_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Outbox)
    }

    /// Returns a receiver that changes whenever announcements can be claimed that could not be
    /// before, in this process or another. A new receiver counts as changed.
    pub fn announcement_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Announcements)
    }
}
