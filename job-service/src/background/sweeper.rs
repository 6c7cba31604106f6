//! The sweeper: has the store clear away what finished and deleted jobs leave behind, when there is something and when
//! its time has come.

use std::time::Duration;

use store::{Store, Swept};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::wakeup::{backoff, wait};

/// The shortest time between two steps of which the first has done nothing.
const IDLE: Duration = Duration::from_secs(1);

/// Runs until `shutdown`. Never stops within a step: each is short, and a transaction.
pub async fn run(store: &Store, shutdown: &CancellationToken) {
    let mut signal = store.sweep_signal();
    let mut failures = 0;
    let mut due = None;
    while wait(&mut signal, due, shutdown).await {
        due = match store.sweep().await {
            Ok(Swept { jobs, tables, next }) => {
                failures = 0;
                if jobs > 0 {
                    // No worker is told: what is left of a job that has ended is discarded as it is.
                    tracing::info!(jobs, "jobs whose time was over were deleted");
                }
                if tables > 0 {
                    tracing::debug!(tables, "task tables were dropped");
                }
                // What is due now and was not done now is not done by asking at once.
                let least = if jobs + tables == 0 {
                    IDLE
                } else {
                    Duration::ZERO
                };
                next.and_then(|millis| {
                    Instant::now().checked_add(Duration::from_millis(millis).max(least))
                })
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, "the store cannot be swept; it is tried again until it can");
                }
                Some(Instant::now() + pause)
            }
        };
    }
}
