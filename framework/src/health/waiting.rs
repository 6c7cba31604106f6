//! Work that waits because it cannot be done at the moment, for example because a disk is full.
//!
//! What must stay true: the work waits as long as one piece of it does, whatever happens to the
//! others; of why it waits, the newest reason is told.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::Health;

/// Work that may have to wait: a degradation at once, and an outage if it lasts. Clones are the
/// same work.
#[derive(Clone)]
pub struct Waiting {
    health: Health,
    name: &'static str,
    source: &'static str,
    waits: Arc<Mutex<Waits>>,
}

#[derive(Default)]
struct Waits {
    last_number: u64,
    /// The pieces of work that wait.
    pieces: BTreeMap<u64, Wait>,
}

/// A piece of work waits.
struct Wait {
    since: Instant,
    told: Instant,
    reason: String,
}

/// A piece of work, for example a batch. When it is dropped, it does not wait any more.
#[must_use = "it waits only until this is dropped"]
pub struct PieceOfWork {
    of: Waiting,
    number: u64,
}

impl Waiting {
    /// How long work waits before that is an outage.
    const OUTAGE_AFTER: Duration = Duration::from_secs(10);

    /// Returns work that does not wait. Name and source are those of the degradation
    /// ([`Health::degrade`]).
    pub fn new(health: Health, name: &'static str, source: &'static str) -> Self {
        Self {
            health,
            name,
            source,
            waits: Arc::default(),
        }
    }

    /// Begins a piece of the work, which does not wait yet.
    pub fn begin(&self) -> PieceOfWork {
        let mut waits = self.lock();
        waits.last_number += 1;
        PieceOfWork {
            of: self.clone(),
            number: waits.last_number,
        }
    }

    /// Returns why the work waits, if it has done so for long.
    pub fn outage(&self) -> Option<String> {
        let waits = self.lock();
        let long = waits.pieces.values();
        let long = long.filter(|wait| wait.since.elapsed() >= Self::OUTAGE_AFTER);
        long.max_by_key(|wait| wait.told)
            .map(|wait| wait.reason.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock()
    }
}

impl PieceOfWork {
    /// Records that the piece waits, and why.
    pub fn waits(&self, reason: impl Into<String>) {
        let Waiting {
            health,
            name,
            source,
            ..
        } = &self.of;
        let (mut waits, now, reason) = (self.of.lock(), Instant::now(), reason.into());
        health.degrade(name, source, &reason);
        let since = waits.pieces.get(&self.number).map(|wait| wait.since);
        let wait = Wait {
            since: since.unwrap_or(now),
            told: now,
            reason,
        };
        waits.pieces.insert(self.number, wait);
    }
}

impl Drop for PieceOfWork {
    fn drop(&mut self) {
        let Waiting {
            health,
            name,
            source,
            ..
        } = &self.of;
        let mut waits = self.of.lock();
        if waits.pieces.remove(&self.number).is_none() {
            return;
        }
        match waits.pieces.values().max_by_key(|wait| wait.told) {
            Some(other) => health.degrade(name, source, &other.reason),
            None => health.recover(name, source),
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl fmt::Debug for PieceOfWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PieceOfWork")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(health: &Health) -> Vec<String> {
        let degradations = health.degradations().into_iter();
        degradations.map(|trouble| trouble.reason).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_waits_is_a_degradation_at_once_and_an_outage_after_ten_seconds() {
        let health = Health::default();
        let waiting = Waiting::new(health.clone(), "outputs", "output worker");
        let batch = waiting.begin();
        assert_eq!(reasons(&health), [""; 0]);
        batch.waits("the disk is full");
        assert_eq!(reasons(&health), ["the disk is full"]);
        assert_eq!(waiting.outage(), None);
        tokio::time::advance(Duration::from_secs(6)).await;
        batch.waits("the disk is away");
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(waiting.outage().as_deref(), Some("the disk is away"));
        drop(batch);
        assert_eq!(waiting.outage(), None);
        assert_eq!(reasons(&health), [""; 0]);
        // What waits again has not waited for long.
        let next = waiting.begin();
        next.waits("the disk is full");
        assert_eq!(waiting.outage(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn batch_that_goes_on_does_not_end_the_waiting_of_another() {
        let health = Health::default();
        let waiting = Waiting::new(health.clone(), "ledger", "tracking worker");
        let (first, second) = (waiting.begin(), waiting.begin());
        first.waits("the database is away");
        tokio::time::advance(Duration::from_secs(8)).await;
        second.waits("the database is full");
        assert_eq!(reasons(&health), ["the database is full"]);
        tokio::time::advance(Duration::from_secs(2)).await;
        // One that never waited ends, and one that did.
        drop(waiting.begin());
        drop(second);
        assert_eq!(reasons(&health), ["the database is away"]);
        assert_eq!(waiting.outage().as_deref(), Some("the database is away"));
        drop(first);
        assert_eq!(reasons(&health), [""; 0]);
        assert_eq!(waiting.outage(), None);
    }
}
