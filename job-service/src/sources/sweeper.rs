//! Deletes uploads that nobody needs any more: those of deleted jobs, and those that no job has
//! named for long.
//!
//! What must stay true: blobs go before the rows that name them, so that a crash in between forgets
//! none.

use std::time::Duration;

use blobs::Blobs;
use store::Store;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::options::ServiceOptions;
use crate::sources::uploads::Place;
use crate::wakeup::{backoff, wait};

/// The time between two sweeps without a signal.
const INTERVAL: Duration = Duration::from_mins(10);
/// The time in which further signals are served by the same sweep.
const GATHERED: Duration = Duration::from_secs(1);

/// Runs until `shutdown` is cancelled.
pub async fn run(store: &Store, options: &ServiceOptions, shutdown: &CancellationToken) {
    let Some(blobs) = &options.outputs.blobs else {
        return shutdown.cancelled().await;
    };
    let mut signal = store.sweep_signal();
    let (mut failures, mut due) = (0, None);
    while wait(&mut signal, due, shutdown).await {
        let pause = match sweep(store, blobs, options.uploads.keep).await {
            Ok(()) => {
                failures = 0;
                INTERVAL
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(error, "cannot delete uploaded sources; trying again");
                }
                failures += 1;
                backoff(failures)
            }
        };
        due = Instant::now().checked_add(pause);
        shutdown.run_until_cancelled(sleep(GATHERED)).await;
    }
}

/// Deletes what nobody needs. If one upload cannot be deleted, the others are, and the error is
/// returned afterwards.
pub async fn sweep(store: &Store, blobs: &Blobs, keep: Duration) -> Result<(), String> {
    let text = |error: store::StoreError| error.to_string();
    let mut place = None;
    loop {
        let doomed = store.doomed_uploads(keep).await.map_err(text)?;
        if doomed.is_empty() {
            return Ok(());
        }
        let place = match &place {
            Some(place) => place,
            None => place.insert(Place::of(store, blobs).await.map_err(text)?),
        };
        let (mut deleted, mut failed) = (0, Ok(()));
        for number in doomed {
            let gone = async {
                let gone = place.delete(number).await;
                gone.map_err(|error| error.to_string())?;
                store.forget_upload(number).await.map_err(text)
            };
            match gone.await {
                Ok(()) => deleted += 1,
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if deleted > 0 {
            tracing::info!(deleted, "deleted uploaded sources");
        }
        failed?;
    }
}
