//! The sweeper: deletes expired jobs and old events, and drops the task tables of finished and
//! deleted jobs, when they are due.

use std::time::Duration;

use contract::metrics::LETTERS_EXPIRED;
use metrics::counter;
use store::{Store, Swept};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::wakeup::{backoff, wait};

/// The minimum delay after a step that did nothing.
const IDLE_DELAY: Duration = Duration::from_secs(1);

/// How long after a step new events lead to the next one: they are bounded in number, and signal
/// nothing else.
const AFTER_EVENTS: Duration = Duration::from_mins(1);

/// Runs until `shutdown` is cancelled. A step is a few short transactions, and it is never
/// interrupted.
pub async fn run(store: &Store, shutdown: &CancellationToken) {
    let (mut signal, mut events) = (store.sweep_signal(), store.event_signal());
    let mut failures = 0;
    let mut due = None;
    loop {
        events.mark_unchanged();
        let looked = Instant::now();
        let many_events = async {
            // The store lives as long as this service.
            let _ = events.changed().await;
            sleep_until(looked + AFTER_EVENTS).await;
        };
        tokio::select! {
            goes_on = wait(&mut signal, due, shutdown) => if !goes_on {
                return;
            },
            () = many_events => {}
        }
        due = match store.sweep().await {
            Ok(Swept {
                jobs,
                tables,
                letters,
                memos,
                next,
            }) => {
                failures = 0;
                if jobs > 0 {
                    // Not announced: workers already discard the messages of finished jobs.
                    tracing::info!(jobs, "deleted expired jobs");
                }
                if tables > 0 {
                    tracing::debug!(tables, "dropped task tables");
                }
                if letters > 0 {
                    tracing::info!(letters, "deleted dead letters that were too old");
                    counter!(LETTERS_EXPIRED).increment(letters);
                }
                if memos > 0 {
                    tracing::debug!(memos, "deleted memos");
                }
                // If this step did nothing although something is due, an immediate retry would
                // spin.
                let min_delay = if jobs + tables + letters + memos == 0 {
                    IDLE_DELAY
                } else {
                    Duration::ZERO
                };
                next.and_then(|millis| {
                    Instant::now().checked_add(Duration::from_millis(millis).max(min_delay))
                })
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, code = error.code().as_str(), "cannot sweep the store; trying again");
                }
                Some(Instant::now() + pause)
            }
        };
    }
}
