//! Moves the parked tasks of resumed jobs to the outbox, one batch per transaction.
//!
//! The store keeps the list of resumed jobs, so after a crash or a stop another instance continues.

use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::wakeup::{backoff, wait};

/// The maximum number of tasks that one transaction moves. They belong to one job.
const BATCH: u32 = 500;

/// Runs until `shutdown` is cancelled. A step is one short transaction, and it is never
/// interrupted.
pub async fn run(store: &Store, shutdown: &CancellationToken) {
    let mut signal = store.unpark_signal();
    let mut failures = 0;
    let mut due = None;
    while wait(&mut signal, due, shutdown).await {
        due = match store.unpark_tasks(BATCH).await {
            Ok(is_more) => {
                failures = 0;
                is_more.then(Instant::now)
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                tracing::warn!(%error, code = error.code().as_str(), ?pause, "cannot move the tasks of resumed jobs to the outbox; trying again");
                Some(Instant::now() + pause)
            }
        };
    }
}
