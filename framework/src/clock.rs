//! The time of day, for the stamps that cross a wire. Timeouts, delays and caches use tokio's clock
//! instead.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A clock for the time of day. A runtime takes its clock from [`Settings`](crate::Settings), so
/// that tests can choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Source {
    #[default]
    System,
    Simulated {
        origin_millis: i64,
        origin: Instant,
    },
}

impl Clock {
    /// Returns the clock of the operating system.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Returns a clock that shows `millis` (since 1970, UTC) now and advances with tokio's clock.
    /// Under tokio's paused clock it stands still while any task is running.
    pub fn simulated(millis: i64) -> Self {
        Self(Source::Simulated {
            origin_millis: millis,
            origin: Instant::now(),
        })
    }

    /// Returns the seconds since 1970, UTC.
    pub fn now_seconds(&self) -> i64 {
        self.now_millis() / 1000
    }

    /// Returns the milliseconds since 1970, UTC.
    pub fn now_millis(&self) -> i64 {
        match self.0 {
            Source::System => system_millis(),
            Source::Simulated {
                origin_millis,
                origin,
            } => {
                let since = i64::try_from(origin.elapsed().as_millis()).unwrap_or(i64::MAX);
                origin_millis.saturating_add(since)
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
fn system_millis() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
