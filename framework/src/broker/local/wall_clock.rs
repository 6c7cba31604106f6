//! The wall clock, by which delays are measured, because it goes on while no process runs. It may
//! be set back.
//!
//! What must stay true: a clock that is set back makes no delay longer than about twice its
//! length.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Clock;

/// Smaller steps back are ordinary corrections: delays become longer by as much.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The wall clock, and what it showed last.
#[derive(Debug)]
pub struct WallClock {
    clock: Clock,
    seen: i64,
    at: Instant,
    was_set_back: bool,
}

impl WallClock {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: clock.now_millis(),
            at: Instant::now(),
            was_set_back: false,
        }
    }

    /// Returns the milliseconds since 1970.
    pub fn now(&self) -> i64 {
        self.clock.now_millis()
    }

    /// Compares the clock with the time that has passed since the last look, and returns the
    /// milliseconds since 1970.
    pub fn look(&mut self) -> i64 {
        let (now, at) = (self.now(), Instant::now());
        let passed = at.duration_since(self.at);
        let expected = self.seen.saturating_add(millis(passed));
        self.was_set_back |= now.saturating_add(millis(TOLERANCE)) < expected;
        (self.seen, self.at) = (now, at);
        now
    }

    /// Returns whether it was set back since [`Self::take_set_back`] was called.
    pub fn was_set_back(&self) -> bool {
        self.was_set_back
    }

    /// Returns whether it was set back since the last call.
    pub fn take_set_back(&mut self) -> bool {
        std::mem::take(&mut self.was_set_back)
    }

    /// Shows another time from now on, as after a correction.
    #[cfg(test)]
    pub fn set(&mut self, clock: Clock) {
        self.clock = clock;
    }
}

/// When a delayed message becomes visible, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Since 1970.
    pub at: i64,
    /// Since the message was published.
    pub delay: i64,
}

impl Due {
    pub fn after(delay: Duration, now: i64) -> Self {
        // The clock has a resolution of milliseconds. Without one more, the message could be
        // delivered too early.
        let delay = millis(delay).saturating_add(1);
        Self {
            at: now.saturating_add(delay),
            delay,
        }
    }

    /// Returns this time, or an earlier one if it is further away than the delay.
    #[must_use]
    pub fn brought_back(self, now: i64) -> Self {
        Self {
            at: self.at.min(now.saturating_add(self.delay)),
            ..self
        }
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn set_back_clock_is_noticed_once_and_corrections_are_not() {
        let start = 1_000_000_000;
        let mut clock = WallClock::new(Clock::simulated(start));
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(clock.look(), start + 3_600_000);
        assert!(!clock.was_set_back());
        // Half a second back within an hour, then an hour forward.
        for (passed, shown) in [(3600, start + 7_199_500), (60, start + 10_860_000)] {
            tokio::time::advance(Duration::from_secs(passed)).await;
            clock.set(Clock::simulated(shown));
            assert_eq!(clock.look(), shown);
            assert!(!clock.was_set_back(), "{shown}");
        }
        // Less than has passed since the last look.
        tokio::time::advance(Duration::from_mins(1)).await;
        clock.set(Clock::simulated(start + 10_890_000));
        clock.look();
        assert!(clock.was_set_back() && clock.take_set_back());
        clock.look();
        assert!(!clock.was_set_back());
    }
}
