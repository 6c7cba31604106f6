//! Decides whether a batch is split into sub-batches now or later.
//!
//! Sub-batches queue in the batch worker's own input. Were every batch split as soon as it arrives,
//! the tree of a large batch would be written out level by level, and fill the disk before its
//! first item. So while the input is deep, only batches that become items are split. The others
//! come back later. Of one job, those far down its tree go first, so that what waits grows with the
//! height of a tree and not with its size.
//!
//! What must stay true:
//! - A split into items never waits for the depth of the input.
//! - Some split of each process always goes on: where no batch becomes items, sub-batches are made,
//!   but slowly.
//! - No job waits for another's sub-batches, only for room in the input. The more jobs wait, the
//!   more room there is: while there are as many messages of theirs, a sub-batch for each of them
//!   makes little difference.
//! - Waiting costs little: the more batches wait, the later each comes back.

use std::collections::HashMap;
use std::time::Duration;

use contract::JobTaskId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a process has split no batch into items before it makes sub-batches despite a deep
/// input.
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
/// The largest number of jobs whose waiting batches are remembered.
const JOBS: usize = 10_000;

/// The splits of one process.
#[derive(Debug)]
pub struct Pace {
    /// The depth of the input from which on no batch is split into sub-batches, if no job waits.
    max_depth: u64,
    recent: Mutex<Option<Recent>>,
}

/// A batch that becomes sub-batches.
#[derive(Debug, Clone, Copy)]
pub struct Splittable<'a> {
    /// The number of parts.
    pub parts: usize,
    /// The id of its job.
    pub job: &'a str,
    /// The number of splits above it.
    pub level: usize,
}

#[derive(Debug)]
struct Recent {
    /// The last split into items, or the start.
    items: Instant,
    /// When sub-batches may be made despite a deep input.
    next_slow: Instant,
    /// When the last of the waiting batches comes back.
    last_return: Instant,
    /// When the last waiting batch of each level of a job comes back.
    returns: HashMap<String, Vec<Instant>>,
    /// When jobs without waiting batches were last forgotten.
    pruned: Instant,
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

    /// Returns how long a batch waits that cannot be split at all now.
    pub fn wait(&self) -> Duration {
        self.with_recent(Recent::wait)
    }

    /// Decides about a split while `depth` messages wait in the input. Returns how long the batch
    /// waits, if it does.
    pub fn sub_batches(&self, batch: Splittable<'_>, depth: u64) -> Result<(), Duration> {
        let Splittable { parts, job, level } = batch;
        // The deeper in its tree, the fuller may the input be: half of the limit, three quarters,
        // and so on.
        let shift = u32::try_from(level).unwrap_or(u32::MAX).saturating_add(1);
        self.with_recent(|recent, now| {
            let limit = self.max_depth.saturating_add(recent.waiting_jobs(now));
            let reserved = limit.checked_shr(shift).unwrap_or(0);
            let has_room = depth <= limit - reserved;
            if !recent.is_deeper_waiting(job, level, now) {
                if has_room {
                    return Ok(());
                }
                if now >= recent.items + PATIENCE && now >= recent.next_slow {
                    let parts = u32::try_from(parts).unwrap_or(u32::MAX);
                    recent.next_slow = now + PER_PART.saturating_mul(parts);
                    return Ok(());
                }
            }
            let wait = recent.wait(now);
            recent.remember(job, level, now + wait, now);
            Err(wait)
        })
    }

    fn with_recent<T>(&self, act: impl FnOnce(&mut Recent, Instant) -> T) -> T {
        let now = Instant::now();
        let mut recent = self.recent.lock();
        let recent = recent.get_or_insert(Recent {
            items: now,
            next_slow: now,
            last_return: now,
            returns: HashMap::new(),
            pruned: now,
        });
        act(recent, now)
    }
}

impl Recent {
    fn wait(&mut self, now: Instant) -> Duration {
        let last = self.last_return.max(now + DELAYS[0]);
        let wait = last - now;
        self.last_return = (last + BETWEEN_RETURNS).min(now + DELAYS[DELAYS.len() - 1]);
        let fitting = DELAYS.iter().rev().find(|delay| **delay <= wait);
        *fitting.unwrap_or(&DELAYS[0])
    }

    /// Returns whether a batch of the job comes back that is deeper in the tree.
    fn is_deeper_waiting(&self, job: &str, level: usize, now: Instant) -> bool {
        self.returns
            .get(job)
            .and_then(|returns| returns.get(level + 1..))
            .is_some_and(|deeper| deeper.iter().any(|at| *at > now))
    }

    /// Returns how many jobs have waiting batches, as far as this process remembers.
    fn waiting_jobs(&mut self, now: Instant) -> u64 {
        if now >= self.pruned + DELAYS[0] {
            self.pruned = now;
            self.returns
                .retain(|_, returns| returns.iter().any(|at| *at > now));
        }
        self.returns.len() as u64
    }

    fn remember(&mut self, job: &str, level: usize, at: Instant, now: Instant) {
        if level > JobTaskId::MAX_DEPTH {
            return;
        }
        if !self.returns.contains_key(job) && self.returns.len() == JOBS {
            // The batches of this job only wait for room.
            return;
        }
        let returns = self.returns.entry(job.to_owned()).or_default();
        returns.resize(returns.len().max(level + 1), now);
        returns[level] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(job: &str, level: usize) -> Splittable<'_> {
        Splittable {
            parts: 100,
            job,
            level,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn batches_wait_while_the_input_is_deep_those_at_the_top_first() {
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
            let pace = Pace::new(1000);
            let decided = pace.sub_batches(of(&format!("{level}"), level), depth);
            assert_eq!(decided.is_ok(), goes_on, "{level} {depth}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_jobs_wait_the_more_room_there_is() {
        let pace = Pace::new(1000);
        for job in 0..2000 {
            assert!(pace.sub_batches(of(&format!("p:{job}"), 0), 3000).is_err());
        }
        assert!(pace.sub_batches(of("p:another", 0), 1500).is_ok());
        assert!(pace.sub_batches(of("p:another", 0), 1501).is_err());
        // They have come back.
        tokio::time::advance(120 * SECOND).await;
        pace.items();
        assert!(pace.sub_batches(of("p:another", 0), 501).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn batches_of_a_job_wait_for_those_deeper_in_its_tree() {
        let pace = Pace::new(1000);
        let wait = pace.sub_batches(of("p:j", 2), 2000).unwrap_err();
        for level in [0, 1] {
            assert!(pace.sub_batches(of("p:j", level), 0).is_err(), "{level}");
            assert!(pace.sub_batches(of("p:other", level), 0).is_ok(), "{level}");
        }
        assert!(pace.sub_batches(of("p:j", 2), 0).is_ok());
        // It has come back, and the others do not wait for it any more.
        tokio::time::advance(wait).await;
        assert!(pace.sub_batches(of("p:j", 1), 0).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_makes_no_items_makes_a_thousand_sub_batches_a_second() {
        let pace = Pace::new(1000);
        let mut made = 0;
        for _ in 0..10_000 {
            made += 100 * u32::from(pace.sub_batches(of("p:j", 3), 1_000_000).is_ok());
            tokio::time::advance(SECOND / 1000).await;
        }
        assert!((8500..=9100).contains(&made), "{made}");
    }

    #[tokio::test(start_paused = true)]
    async fn while_items_are_made_batches_wait() {
        let pace = Pace::new(1000);
        for _ in 0..100 {
            pace.items();
            assert!(pace.sub_batches(of("p:j", 0), 1001).is_err());
            tokio::time::advance(SECOND / 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_waiting_batches_come_back_slowly() {
        let pace = Pace::new(0);
        pace.items();
        let delays: Vec<Duration> = (0..100_000)
            .map(|n| {
                pace.sub_batches(of(&format!("p:{n}"), 0), 100_000)
                    .unwrap_err()
            })
            .collect();
        assert_eq!(delays[0], DELAYS[0]);
        let count = |delay| delays.iter().filter(|other| **other == delay).count();
        assert!(count(DELAYS[0]) <= 1000 && count(DELAYS[3]) >= 70_000);
        tokio::time::advance(120 * SECOND).await;
        assert_eq!(pace.wait(), DELAYS[0]);
    }
}
