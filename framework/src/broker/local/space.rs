//! Decides which messages may be stored while the disk is short of space. Pure.
//!
//! A broker that fills its disk cannot even forget messages, because a deletion must be written,
//! too. So a reserve of free space stays untouched by publishing. What does not fit waits
//! unconfirmed in the [writer](super::writer), and is stored when consumers have made room.
//!
//! What must stay true:
//! - Nothing is stored that leaves less than half of the reserve free.
//! - The upper half is for messages in pipes that consumers keep empty. A worker cannot acknowledge
//!   before its outputs and reports are confirmed, so without these, a full disk could not heal by
//!   itself. Such a pipe takes as many messages as its consumers settle, and [`AHEAD`] more.
//! - If the disk refuses a commit although space seems free (a quota, a limit of the size of
//!   files), ever fewer messages are tried together, and one at least.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How many messages a pipe with consumers takes from the reserve before one of its messages is
/// settled.
const AHEAD: i64 = 1000;
/// The pause after a refused commit before messages are stored again.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// A commit of this size shows that the disk takes messages again.
const LARGE_COMMIT: u64 = 16 << 20;
/// How often the free space is looked at while messages wait for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What the disk has room for.
#[derive(Debug)]
pub struct Space {
    reserve: u64,
    /// The number of free bytes, less what was admitted since they were counted.
    free: u64,
    /// Why messages wait, while they do.
    shortage: Option<String>,
    /// How many messages each pipe has taken from the reserve, less the settled ones.
    taken: HashMap<usize, i64>,
    refused: Option<Refusal>,
}

/// A commit was refused lately.
#[derive(Debug)]
struct Refusal {
    reason: String,
    until: Instant,
    /// How many bytes may be tried in the next commit.
    trial: u64,
    /// How many of them are tried.
    tried: u64,
}

impl Space {
    pub fn new(reserve: u64, free: u64) -> Self {
        Self {
            reserve,
            free,
            shortage: None,
            taken: HashMap::new(),
            refused: None,
        }
    }

    /// Returns whether a message of this size may be stored in the pipe with this index. Counts it
    /// if it may.
    pub fn admit(&mut self, pipe: usize, is_consumed: bool, bytes: u64, now: Instant) -> bool {
        if let Some(refusal) = &self.refused
            && (now < refusal.until || refusal.tried > 0 && refusal.tried + bytes > refusal.trial)
        {
            return false;
        }
        let left = self.free.saturating_sub(bytes);
        let limit = match self.shortage {
            Some(_) => self.end_of_alarm(),
            None => self.reserve,
        };
        if left < limit {
            let taken = self.taken.entry(pipe).or_default();
            if !is_consumed || *taken >= AHEAD || left < self.reserve / 2 {
                self.run_short();
                return false;
            }
            *taken += 1;
        }
        self.free = left;
        if let Some(refusal) = &mut self.refused {
            refusal.tried += bytes;
        }
        true
    }

    /// A message of this pipe was settled.
    pub fn settled(&mut self, pipe: usize) {
        if let Some(taken) = self.taken.get_mut(&pipe) {
            *taken = (*taken - 1).max(0);
        }
    }

    /// The free space was counted after a commit. `pending` bytes are admitted, but not stored yet.
    pub fn counted(&mut self, free: u64, pending: u64) {
        self.free = free.saturating_sub(pending);
        if self.free < self.reserve {
            self.run_short();
        } else if self.free >= self.end_of_alarm() && self.refused.is_none() {
            self.shortage = None;
            self.taken.clear();
        }
    }

    /// The disk has refused a commit with messages of this size.
    pub fn refused(&mut self, bytes: u64, reason: String, now: Instant) {
        self.shortage.get_or_insert_with(|| reason.clone());
        self.refused = Some(Refusal {
            reason,
            until: now + AFTER_REFUSAL,
            trial: bytes / 2,
            tried: 0,
        });
    }

    /// The disk has taken a commit with messages of this size.
    pub fn stored(&mut self, bytes: u64) {
        if let Some(refusal) = &mut self.refused
            && bytes > 0
        {
            refusal.trial = refusal.trial.max(bytes).saturating_mul(2);
            refusal.tried = 0;
            if refusal.trial >= LARGE_COMMIT {
                self.refused = None;
            }
        }
    }

    /// Returns why messages wait, if they do.
    pub fn shortage(&self) -> Option<&str> {
        self.shortage.as_deref()
    }

    /// Returns why the disk refuses commits, if it does.
    pub fn refusal(&self) -> Option<&str> {
        self.refused.as_ref().map(|refusal| refusal.reason.as_str())
    }

    /// Returns whether the disk has refused a commit a moment ago.
    pub fn is_refusing(&self, now: Instant) -> bool {
        self.refused
            .as_ref()
            .is_some_and(|refusal| now < refusal.until)
    }

    /// Returns until when no message is stored after a refused commit.
    pub fn refuses_until(&self) -> Option<Instant> {
        self.refused.as_ref().map(|refusal| refusal.until)
    }

    /// Returns when to look at the free space again.
    pub fn look_at(&self, now: Instant) -> Option<Instant> {
        self.shortage.as_ref()?;
        let until = self.refused.as_ref().map(|refusal| refusal.until);
        Some(
            until
                .filter(|until| *until > now)
                .unwrap_or(now + LOOK_INTERVAL),
        )
    }

    /// No message waits any more.
    pub fn nothing_waits(&mut self, now: Instant) {
        self.refused.take_if(|refusal| now >= refusal.until);
    }

    /// Some space above the reserve must be free before the alarm ends, so that it does not flap.
    fn end_of_alarm(&self) -> u64 {
        self.reserve.saturating_add(self.reserve / 8)
    }

    fn run_short(&mut self) {
        let reserve = self.reserve;
        self.shortage.get_or_insert_with(|| {
            format!(
                "the disk is short of space: less than {reserve} bytes would stay free; free some, or cancel or delete jobs"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_with_consumers_takes_from_the_reserve_what_they_settle_and_some_more() {
        let now = Instant::now();
        let mut space = Space::new(1000, 999);
        assert!(!space.admit(1, false, 1, now));
        assert!((0..AHEAD).all(|_| space.admit(1, true, 0, now)));
        assert!(!space.admit(1, true, 0, now));
        space.settled(1);
        assert!(space.admit(1, true, 0, now));
        assert!(space.admit(2, true, 499, now));
        assert!(!space.admit(2, true, 1, now), "half of the reserve stays");
    }

    #[test]
    fn alarm_ends_only_when_more_than_the_reserve_is_free() {
        let mut space = Space::new(1000, 999);
        for (free, is_short) in [(999, true), (1124, true), (1125, false), (1000, false)] {
            space.counted(free, 0);
            assert_eq!(space.shortage().is_some(), is_short, "{free}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_commits_become_smaller_down_to_one_message() {
        let mut space = Space::new(0, u64::MAX);
        let mut admitted = Vec::new();
        for _ in 0..5 {
            space.refused(
                admitted.last().copied().unwrap_or(8000),
                "full".into(),
                Instant::now(),
            );
            assert!(!space.admit(1, false, 1000, Instant::now()));
            tokio::time::advance(AFTER_REFUSAL).await;
            let bytes = (0..10)
                .filter(|_| space.admit(1, false, 1000, Instant::now()))
                .count();
            admitted.push(bytes as u64 * 1000);
        }
        assert_eq!(admitted, [4000, 2000, 1000, 1000, 1000]);
        space.stored(LARGE_COMMIT);
        assert_eq!(
            (0..10)
                .filter(|_| space.admit(1, false, 1000, Instant::now()))
                .count(),
            10
        );
    }
}
