//! The time of a store.

use tokio::time::Instant;

/// The clock of a store, in milliseconds since 1970.
#[derive(Debug)]
pub enum Clock {
    /// The clock of this machine.
    System,
    /// Tokio's clock, which stands still while it is paused.
    Tokio { origin: i64, start: Instant },
}

impl Clock {
    pub fn tokio() -> Self {
        Self::Tokio {
            origin: system_now(),
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> i64 {
        match self {
            Self::System => system_now(),
            Self::Tokio { origin, start } => {
                origin + i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX / 2)
            }
        }
    }
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
