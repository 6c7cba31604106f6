//! When a background task runs next: on a signal of the store, at a due time, or after a back-off.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Waits for a signal or for the `due` time. Returns false if the task must stop.
pub async fn wait(
    signal: &mut watch::Receiver<u64>,
    due: Option<Instant>,
    shutdown: &CancellationToken,
) -> bool {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => false,
        changed = signal.changed() => changed.is_ok(),
        () = at(due) => true,
    }
}

/// Waits until this time, for ever if there is none.
pub async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Returns the delay before the next attempt after `failures` + 1 consecutive failures: 100 ms,
/// doubled each time, at most 30 s.
pub fn backoff(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(30);
    FIRST
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(LONGEST)
}
