//! Lets the embedded broker delete what ended jobs have left in pipes that nobody consumes: the
//! broker knows the pipes, and the store knows the jobs.

use std::sync::Arc;
use std::time::Duration;

use contract::{JobId, JobStatus, PartitionId};
use framework::broker::Broker as _;
use framework::broker::embedded::{Embedded, Fate, MessageJob};
use framework::health::Health;
use framework::supervision::supervise;
use futures_util::FutureExt as _;
use store::{Store, StoreError};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::roles::RunningRole;

/// The time in which further announcements are served by the same sweep.
const GATHERED: Duration = Duration::from_millis(200);
/// How long after an announcement there is another sweep, for messages that were on their way.
const STRAGGLERS: Duration = Duration::from_secs(15);
/// The time between two sweeps without announcements. Expired jobs are deleted without one.
const INTERVAL: Duration = Duration::from_mins(10);
/// The pause after a sweep, as a multiple of its duration.
const PAUSE: u32 = 20;

/// Returns a role that sweeps at the start, after cancellations and deletions, and now and then.
pub fn sweep(
    broker: Arc<Embedded>,
    store: Store,
    health: Health,
    stop: CancellationToken,
) -> RunningRole {
    Box::pin(async move {
        let sweep = || sweep_repeatedly(&broker, &store);
        stop.run_until_cancelled(supervise(&health, "sweep of pipes", &stop, sweep))
            .await;
        Ok(())
    })
}

/// Runs until the broker is closed.
async fn sweep_repeatedly(broker: &Embedded, store: &Store) {
    let Ok(mut announcements) = broker.announcements().await else {
        return;
    };
    let mut patience = INTERVAL;
    loop {
        patience = match timeout(patience, announcements.next()).await {
            Ok(None) => return,
            Ok(Some(_)) => STRAGGLERS,
            Err(_) => INTERVAL,
        };
        sleep(GATHERED).await;
        while let Some(Some(_)) = announcements.next().now_or_never() {}
        let begun = Instant::now();
        match broker.sweep(|job| fate(store, job).boxed()).await {
            Ok(0) => {}
            Ok(messages) => info!(
                messages,
                "deleted messages of ended jobs from pipes without consumers"
            ),
            Err(_) => return,
        }
        sleep(begun.elapsed() * PAUSE).await;
    }
}

/// Returns what has become of a job. A job that cannot be read keeps its messages.
async fn fate(store: &Store, job: MessageJob) -> Fate {
    let (Ok(partition), Ok(id)) = (PartitionId::parse(&job.partition), JobId::parse(&job.job))
    else {
        return Fate::Needed;
    };
    let status = async |round| {
        store
            .job_status(&partition, &id, job.incarnation, round)
            .await
    };
    let fate = async {
        Ok(match status(Some(job.round)).await? {
            None if status(None).await?.is_none() => Fate::Deleted,
            None | Some(JobStatus::Cancelled) => Fate::Cancelled,
            Some(_) => Fate::Needed,
        })
    };
    let fate: Result<Fate, StoreError> = fate.await;
    match fate {
        Ok(fate) => fate,
        Err(error) => {
            warn!(%error, code = error.code().as_str(), "cannot read a job; its messages stay");
            Fate::Needed
        }
    }
}
