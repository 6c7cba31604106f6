//! The unstower: has the tasks of resumed jobs go from the store to the outbox, a batch per transaction.
//!
//! What is left to do stands in the store, so whoever starts goes on where another was stopped.

use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::wakeup::{backoff, wait};

/// Tasks of one job that move in one transaction.
const RUN: u32 = 500;

/// Runs until `shutdown`. Never stops within a step: each is short, and a transaction.
pub async fn run(store: &Store, shutdown: &CancellationToken) {
    let mut signal = store.unpark_signal();
    let mut failures = 0;
    let mut due = None;
    while wait(&mut signal, due, shutdown).await {
        due = match store.unpark_tasks(RUN).await {
            Ok(is_more) => {
                failures = 0;
                is_more.then(Instant::now)
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                tracing::warn!(%error, ?pause, "the tasks of resumed jobs wait");
                Some(Instant::now() + pause)
            }
        };
    }
}
