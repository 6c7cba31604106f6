//! Announces jobs to all workers: those that were cancelled, paused, resumed, deleted or retried,
//! and those that have failed while tasks of them may run.
//!
//! The transaction that changes a job writes its announcement to the outbox. The commit wakes this
//! loop, which claims all announcements and publishes one message for all of them.
//!
//! What must stay true:
//! - An announcement leaves the outbox only after the confirm of its message. A crash in between
//!   repeats it, which costs each worker one status check.
//! - An announcement waits for no message of a pipe: this loop has claims and confirms of its own,
//!   beside those of the [`relay`](crate::outbox::relay).
//! - However many jobs change, there are about twenty messages a second. While no job changes, this
//!   loop sends no query.

use std::collections::BTreeSet;
use std::time::Duration;

use framework::announcement::announce;
use framework::broker::Broker;
use store::{ClaimedAnnouncements, Store, StoreError};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::wakeup::{backoff, wait};

/// The maximum number of jobs that one message announces.
const MOST: u32 = 1000;
/// The pause after a message, in which further announcements gather.
const GATHERED: Duration = Duration::from_millis(50);
/// How long a claim lasts. The announcements of a service that has crashed wait this long.
const LEASE: Duration = Duration::from_secs(15);
/// How long the broker may take to confirm a message. Shorter than the claim.
const CONFIRM_LIMIT: Duration = Duration::from_secs(10);
/// How long announcements wait that the broker has not taken.
const PUT_OFF: Duration = Duration::from_secs(1);

/// Runs until `shutdown` is cancelled. Announcements that are not confirmed then stay in the
/// outbox.
pub async fn run(store: &Store, broker: &dyn Broker, shutdown: &CancellationToken) {
    let mut signal = store.announcement_signal();
    let (mut failures, mut due) = (0, None);
    while wait(&mut signal, due, shutdown).await {
        due = match announce_some(store, broker, shutdown).await {
            Ok(next) => {
                failures = 0;
                next
            }
            Err(error) => {
                let pause = backoff(failures);
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, code = error.code().as_str(), "cannot read the announcements in the outbox; they wait until the store is available");
                }
                Some(Instant::now() + pause)
            }
        };
    }
}

/// Announces the jobs that wait for it. Returns when to look again; `None` waits for a signal.
async fn announce_some(
    store: &Store,
    broker: &dyn Broker,
    shutdown: &CancellationToken,
) -> Result<Option<Instant>, StoreError> {
    let ClaimedAnnouncements {
        announcements,
        next_due,
    } = store.claim_announcements(MOST, LEASE).await?;
    if announcements.is_empty() {
        return Ok(next_due.map(|due| Instant::now() + due.max(GATHERED)));
    }
    let (ids, jobs): (Vec<i64>, BTreeSet<String>) = announcements
        .into_iter()
        .map(|announcement| (announcement.id, announcement.job))
        .unzip();
    let confirmed = announce(broker, jobs.into_iter().collect());
    let confirmed = timeout(CONFIRM_LIMIT, confirmed);
    let put_off = match shutdown.run_until_cancelled(confirmed).await {
        Some(Ok(Ok(()))) => None,
        Some(Ok(Err(error))) => {
            tracing::warn!(jobs = ids.len(), %error, "the broker has not taken an announcement; it is sent again");
            Some(PUT_OFF)
        }
        Some(Err(_)) => {
            tracing::warn!(
                jobs = ids.len(),
                "the broker does not confirm an announcement; it is sent again"
            );
            Some(PUT_OFF)
        }
        // Another service announces them.
        None => Some(Duration::ZERO),
    };
    match put_off {
        None => store.outbox_sent(&ids).await?,
        Some(pause) => {
            let leases: Vec<_> = ids.into_iter().map(|id| (id, pause)).collect();
            store.lease_outbox(&leases).await?;
        }
    }
    shutdown.run_until_cancelled(sleep(GATHERED)).await;
    // There may be more.
    Ok(Some(Instant::now()))
}
