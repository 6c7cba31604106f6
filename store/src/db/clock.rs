//! The time of a store.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Smaller steps back are ordinary corrections.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The clock of a store, in milliseconds since 1970.
#[derive(Debug)]
pub enum Clock {
    /// The clock of this machine, which may be set back, and what it showed last.
    System(Mutex<Seen>),
    /// Tokio's clock, which stands still while it is paused.
    #[cfg(any(test, feature = "internals"))]
    Tokio { origin: i64, start: Instant },
}

/// What a clock showed at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    shown: i64,
    at: Instant,
    was_set_back: bool,
}

impl Clock {
    pub fn system() -> Self {
        Self::System(Mutex::new(Seen::now()))
    }

    #[cfg(any(test, feature = "internals"))]
    pub fn tokio() -> Self {
        Self::Tokio {
            origin: system_now(),
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> i64 {
        match self {
            Self::System(_) => system_now(),
            #[cfg(any(test, feature = "internals"))]
            Self::Tokio { origin, start } => origin.saturating_add(millis(start.elapsed())),
        }
    }

    /// Returns whether the clock was set back since the store was opened or [`Self::accept`] was
    /// called.
    pub fn was_set_back(&self) -> bool {
        match self {
            Self::System(seen) => {
                let mut seen = seen.lock();
                let now = Seen::now();
                let was_set_back = seen.was_set_back || seen.is_after(now);
                *seen = Seen {
                    was_set_back,
                    ..now
                };
                was_set_back
            }
            #[cfg(any(test, feature = "internals"))]
            Self::Tokio { .. } => false,
        }
    }

    /// Accepts the time that the clock shows: what it concerns is brought back.
    pub fn accept(&self) {
        match self {
            Self::System(seen) => {
                let mut seen = seen.lock();
                seen.was_set_back = false;
            }
            #[cfg(any(test, feature = "internals"))]
            Self::Tokio { .. } => {}
        }
    }
}

#[cfg(test)]
impl Clock {
    /// Lets the next look find that the clock was set back by a day.
    pub fn pretend_set_back(&self) {
        if let Self::System(seen) = self {
            let mut seen = seen.lock();
            seen.shown = system_now() + 86_400_000;
        }
    }
}

impl Seen {
    fn now() -> Self {
        Self {
            shown: system_now(),
            at: Instant::now(),
            was_set_back: false,
        }
    }

    /// Returns whether the clock was set back between this and a later look.
    fn is_after(self, later: Self) -> bool {
        let passed = millis(later.at.duration_since(self.at));
        let expected = self.shown.saturating_add(passed);
        later.shown.saturating_add(millis(TOLERANCE)) < expected
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
fn system_now() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn set_back_clock_is_told_from_a_corrected_one() {
        let seen = Seen::now();
        let later = |seconds, shown| Seen {
            shown: seen.shown + shown,
            at: seen.at + Duration::from_secs(seconds),
            ..seen
        };
        for (seconds, shown, is_after) in [
            (60, 60_000, false),
            (60, 59_500, false),
            (60, 3_600_000, false),
            (60, 30_000, true),
            (0, -86_400_000, true),
        ] {
            assert_eq!(seen.is_after(later(seconds, shown)), is_after, "{shown}");
        }
        let clock = Clock::System(Mutex::new(later(0, 86_400_000)));
        assert!(clock.was_set_back() && clock.was_set_back());
        clock.accept();
        assert!(!clock.was_set_back());
    }
}
