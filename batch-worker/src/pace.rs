//! Decides whether a batch is split into sub-batches now or later.
//!
//! Sub-batches queue in the batch worker's own input. Were every batch split as soon as it arrives, the tree of a large
//! batch would be written out level by level, and fill the disk before its first item. So while the input is deep, only
//! batches that become items are split. The others come back later; those far down their tree first.
//!
//! What must stay true:
//! - A split into items never waits for the depth of the input.
//! - Some split of each process always goes on: where no batch becomes items, sub-batches are made, but slowly.
//! - Waiting costs little: the more batches wait, the later each comes back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a process has split no batch into items before it makes sub-batches despite a deep input.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time that one such sub-batch stands for: a process makes a thousand in a second.
const PER_PART: Duration = Duration::from_millis(1);
/// The time between two batches that come back: five hundred do in a second.
const BETWEEN_RETURNS: Duration = Duration::from_millis(2);
/// How long batches wait. Each delay is a pipe of its own, so they are few.
const DELAYS: [Duration; 4] = [
    Duration::from_millis(400),
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_mins(1),
];

/// The splits of one process.
#[derive(Debug)]
pub struct Pace {
    /// The depth of the input from which on no batch is split into sub-batches.
    max_depth: u64,
    recent: Mutex<Option<Recent>>,
}

#[derive(Debug, Clone, Copy)]
struct Recent {
    /// The last split into items, or the start.
    items: Instant,
    /// When sub-batches may be made despite a deep input.
    next_slow: Instant,
    /// When the last of the waiting batches comes back.
    last_return: Instant,
}

impl Pace {
    pub const fn new(max_depth: u64) -> Self {
        Self {
            max_depth,
            recent: Mutex::new(None),
        }
    }

    /// Notes a split into items only.
    pub fn items(&self) {
        self.with_recent(|recent, now| recent.items = now);
    }

    /// Decides about a split into this many parts, sub-batches among them, while `depth` messages wait in the input.
    /// `level` is the number of splits above it. Returns how long the batch waits, if it does.
    pub fn sub_batches(&self, parts: usize, level: u32, depth: u64) -> Result<(), Duration> {
        // The deeper in its tree, the fuller may the input be: half of the limit, three quarters, and so on.
        let reserved = self
            .max_depth
            .checked_shr(level.saturating_add(1))
            .unwrap_or(0);
        if depth <= self.max_depth - reserved {
            return Ok(());
        }
        self.with_recent(|recent, now| {
            if now >= recent.items + PATIENCE && now >= recent.next_slow {
                let parts = u32::try_from(parts).unwrap_or(u32::MAX);
                recent.next_slow = now + PER_PART.saturating_mul(parts);
                return Ok(());
            }
            let last = recent.last_return.max(now + DELAYS[0]);
            let wait = last - now;
            recent.last_return = (last + BETWEEN_RETURNS).min(now + DELAYS[DELAYS.len() - 1]);
            let fitting = DELAYS.iter().rev().find(|delay| **delay <= wait);
            Err(*fitting.unwrap_or(&DELAYS[0]))
        })
    }

    fn with_recent<T>(&self, act: impl FnOnce(&mut Recent, Instant) -> T) -> T {
        let now = Instant::now();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = recent.get_or_insert(Recent {
            items: now,
            next_slow: now,
            last_return: now,
        });
        act(recent, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn batches_wait_while_the_input_is_deep_those_at_the_top_first() {
        let pace = Pace::new(1000);
        for (level, depth, goes_on) in [
            (0, 500, true),
            (0, 501, false),
            (1, 501, true),
            (1, 751, false),
            (2, 875, true),
            (2, 876, false),
            (70, 1000, true),
            (70, 1001, false),
        ] {
            assert_eq!(
                pace.sub_batches(10, level, depth).is_ok(),
                goes_on,
                "{level} {depth}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_makes_no_items_makes_a_thousand_sub_batches_a_second() {
        let pace = Pace::new(1000);
        let mut made = 0;
        for _ in 0..10_000 {
            made += 100 * u32::from(pace.sub_batches(100, 3, 1_000_000).is_ok());
            tokio::time::advance(SECOND / 1000).await;
        }
        assert!((8500..=9100).contains(&made), "{made}");
    }

    #[tokio::test(start_paused = true)]
    async fn while_items_are_made_batches_wait() {
        let pace = Pace::new(1000);
        for _ in 0..100 {
            pace.items();
            assert!(pace.sub_batches(10, 0, 1001).is_err());
            tokio::time::advance(SECOND / 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_waiting_batches_come_back_slowly() {
        let pace = Pace::new(0);
        pace.items();
        let delays: Vec<Duration> = (0..100_000)
            .map(|_| pace.sub_batches(10, 0, 100_000).unwrap_err())
            .collect();
        assert_eq!(delays[0], DELAYS[0]);
        let count = |delay| delays.iter().filter(|other| **other == delay).count();
        assert!(count(DELAYS[0]) <= 1000 && count(DELAYS[3]) >= 70_000);
        tokio::time::advance(120 * SECOND).await;
        pace.items();
        assert_eq!(pace.sub_batches(10, 0, 100_000), Err(DELAYS[0]));
    }
}
