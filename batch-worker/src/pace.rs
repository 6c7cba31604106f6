//! Decides whether a batch becomes sub-batches now or later, beside whether they fit.
//!
//! Sub-batches queue in the batch worker's own input, where there is room for half a second of
//! work. Those that do not get on from there wait in delay pipes. Were batches at the top of a tree
//! split meanwhile, the tree of a large batch would be written out level by level, and fill the
//! disk before its first item. So of one job, the batches far down its tree go first, unless the
//! workers of its items are about to have nothing to do. What waits grows with the height of a tree
//! and not with its size.
//!
//! What must stay true:
//! - A split into items never waits for another level.
//! - Some split of each process always goes on: where no batch becomes items, sub-batches are made,
//!   but slowly.

use std::collections::HashMap;
use std::time::Duration;

use contract::JobTaskId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a process has split no batch into items before it makes sub-batches although they do
/// not fit.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time that one such sub-batch stands for: a process makes a thousand in a second.
const PER_PART: Duration = Duration::from_millis(1);
/// The longest time for which the batches above wait for one that comes back.
const SOON: Duration = Duration::from_millis(500);
/// The largest number of jobs whose waiting batches are remembered.
const JOBS: usize = 10_000;

/// The splits of one process.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Option<Recent>>);

#[derive(Debug)]
struct Recent {
    /// The last split into items, or the start.
    items: Instant,
    /// When sub-batches may be made that do not fit.
    next_slow: Instant,
    /// When the last waiting batch of each level of a job comes back.
    returns: HashMap<String, Vec<Instant>>,
}

impl Pace {
    /// Notes a split into items only.
    pub fn items(&self) {
        self.with_recent(|recent, now| recent.items = now);
    }

    /// Returns whether a batch of the job comes back soon that is deeper in its tree.
    pub fn is_deeper_waiting(&self, job: &str, level: usize) -> bool {
        self.with_recent(|recent, now| {
            let returns = recent.returns.get(job);
            returns
                .and_then(|returns| returns.get(level + 1..))
                .is_some_and(|deeper| deeper.iter().any(|at| *at > now))
        })
    }

    /// Returns whether this many sub-batches may be made although they do not fit.
    pub fn goes_slowly(&self, parts: usize) -> bool {
        self.with_recent(|recent, now| {
            let goes = now >= recent.items + PATIENCE && now >= recent.next_slow;
            if goes {
                let parts = u32::try_from(parts).unwrap_or(u32::MAX);
                recent.next_slow = now + PER_PART.saturating_mul(parts);
            }
            goes
        })
    }

    /// Notes that a batch on this level of the tree of its job comes back after this time.
    pub fn waits(&self, job: &str, level: usize, wait: Duration) {
        if level > JobTaskId::MAX_DEPTH || wait > SOON {
            return;
        }
        self.with_recent(|Recent { returns, .. }, now| {
            if !returns.contains_key(job) {
                if returns.len() >= JOBS {
                    returns.retain(|_, returns| returns.iter().any(|at| *at > now));
                }
                if returns.len() >= JOBS {
                    // The batches of this job only wait for room.
                    return;
                }
                returns.insert(job.to_owned(), Vec::new());
            }
            if let Some(returns) = returns.get_mut(job) {
                returns.resize(returns.len().max(level + 1), now);
                returns[level] = returns[level].max(now + wait);
            }
        });
    }

    fn with_recent<T>(&self, act: impl FnOnce(&mut Recent, Instant) -> T) -> T {
        let now = Instant::now();
        let mut recent = self.0.lock();
        let recent = recent.get_or_insert(Recent {
            items: now,
            next_slow: now,
            returns: HashMap::new(),
        });
        act(recent, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn batches_of_a_job_wait_for_those_deeper_in_its_tree() {
        let pace = Pace::default();
        pace.waits("p:j", 2, SOON);
        pace.waits("p:j", 3, 2 * SOON);
        for level in [0, 1] {
            assert!(pace.is_deeper_waiting("p:j", level), "{level}");
            assert!(!pace.is_deeper_waiting("p:other", level), "{level}");
        }
        assert!(!pace.is_deeper_waiting("p:j", 2));
        // It has come back, and the others do not wait for it any more.
        tokio::time::advance(SOON).await;
        assert!(!pace.is_deeper_waiting("p:j", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_makes_no_items_makes_a_thousand_sub_batches_a_second() {
        let pace = Pace::default();
        let mut made = 0;
        for _ in 0..10_000 {
            made += 100 * u32::from(pace.goes_slowly(100));
            tokio::time::advance(SECOND / 1000).await;
        }
        assert!((8500..=9100).contains(&made), "{made}");
    }

    #[tokio::test(start_paused = true)]
    async fn while_items_are_made_sub_batches_must_fit() {
        let pace = Pace::default();
        for _ in 0..100 {
            pace.items();
            assert!(!pace.goes_slowly(1));
            tokio::time::advance(SECOND / 2).await;
        }
    }
}
