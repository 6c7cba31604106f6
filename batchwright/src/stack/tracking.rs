//! The tracking worker: a loop of its own for each tracking pipe that a process reads, so that the
//! reports of several shards are written at the same time.
//!
//! What must stay true: a process that is not told which shards to read leaves no tracking pipe
//! unread. Besides the tracking pipe itself it reads all shards over which jobs have ever been
//! spread, and each further one as soon as a job service uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use contract::{TrackingShards, reports_pipe, rounds_pipe, shard_pipe};
use framework::broker::Broker;
use framework::health::Health;
use framework::supervision::supervise;
use framework::{Runtime, Settings};
use store::Store;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracking_worker::TrackingWorker;

use super::options::{StackOptions, TRACKING_WORKER};
use super::roles::{Group, RunningRole, worker_role};

/// The time after which the number of shards is read again while the store is unavailable.
const PAUSE: Duration = Duration::from_secs(5);

/// The largest number of messages with gathered reports that are read at a time: some tens of
/// thousands of reports, in few bytes.
const GATHERED_BATCH: usize = 64;

/// Starts the tracking worker in a group. Returns its number of recorded reports.
pub fn tracking_worker(
    options: &StackOptions,
    store: Store,
    broker: &Arc<dyn Broker>,
    group: &Group,
) -> Arc<AtomicU64> {
    let worker = TrackingWorker::new(store.clone()).health(options.health.clone());
    let reports = worker.reports();
    let settings = Settings {
        input: options.service.tracking_pipe.clone(),
        // The worker handles all waiting deliveries at once, and a single writer per job is
        // fastest.
        concurrency: 1,
        prefetch: Some(4000),
        // Reports of a paused job are recorded, and its diverted messages are forwarded.
        paused: None,
        ..options.settings(TRACKING_WORKER)
    };
    let readers = Readers {
        worker,
        settings,
        broker: Arc::clone(broker),
    };
    let mut shards = options.tracked_shards.clone();
    shards.sort_unstable();
    shards.dedup();
    if shards.is_empty() {
        readers.read_unsharded(group);
        let used = options.service.tracking_shards;
        let all = AllShards::new(readers, store, used, options.health.clone());
        let role = all.read(group.within(), group.token());
        group.run(format!("{TRACKING_WORKER}-shards"), role);
        return reports;
    }
    // Jobs without a shard are written by one process, too.
    if shards[0] == 0 {
        readers.read_unsharded(group);
    }
    for (at, shard) in shards.into_iter().enumerate() {
        readers.read_shard(shard, at == 0 && shard != 0, group);
    }
    reports
}

/// Starts what reads tracking pipes.
struct Readers {
    worker: TrackingWorker,
    /// Those of the tracking pipe itself.
    settings: Settings,
    broker: Arc<dyn Broker>,
}

impl Readers {
    /// Reads the tracking pipe itself, and serves the health checks of the process.
    fn read_unsharded(&self, group: &Group) {
        self.read(self.settings.clone(), group);
    }

    /// Reads a shard.
    fn read_shard(&self, shard: u32, serves_health: bool, group: &Group) {
        let input = shard_pipe(&self.settings.input, shard);
        // The name would be too long, and jobs use the tracking pipe.
        if input == self.settings.input {
            return;
        }
        let settings = Settings {
            input,
            name: format!("{TRACKING_WORKER}-{shard}"),
            listen: self.settings.listen.filter(|_| serves_health),
            ..self.settings.clone()
        };
        self.read(settings, group);
    }

    /// Reads a pipe of first rounds and, beside it, that of later rounds and that of the gathered
    /// reports of all rounds.
    fn read(&self, first: Settings, group: &Group) {
        let beside = |input: String, what: &str| Settings {
            input,
            name: format!("{}-{what}", first.name),
            // The first one serves the health checks of all.
            listen: None,
            ..first.clone()
        };
        let later = beside(rounds_pipe(&first.input), "rounds");
        let gathered = reports_pipe(&first.input).map(|pipe| Settings {
            prefetch: Some(4 * u32::try_from(GATHERED_BATCH).unwrap_or(u32::MAX)),
            ..beside(pipe, "reports")
        });
        for settings in [first, later] {
            self.run(settings, self.worker.clone(), group);
        }
        if let Some(gathered) = gathered {
            let worker = self.worker.clone().max_batch(GATHERED_BATCH);
            self.run(gathered, worker, group);
        }
    }

    fn run(&self, settings: Settings, worker: TrackingWorker, group: &Group) {
        let name = settings.name.clone();
        let runtime = Runtime::new(settings, Arc::clone(&self.broker)).handler(worker);
        group.run(name, worker_role(runtime, group.token()));
    }
}

/// Reads all shards, which become more.
struct AllShards {
    readers: Readers,
    store: Store,
    /// Those of a job service in this process.
    used: TrackingShards,
    /// How many are read.
    read: AtomicU32,
    health: Health,
}

impl AllShards {
    /// The name of the loop that starts those of the shards.
    const NAME: &str = "worker-jobtracking: shards";

    const fn new(readers: Readers, store: Store, used: TrackingShards, health: Health) -> Self {
        Self {
            readers,
            store,
            used,
            read: AtomicU32::new(0),
            health,
        }
    }

    /// Returns a role that reads them, in a group of its own.
    fn read(self, group: Group, stop: CancellationToken) -> RunningRole {
        Box::pin(async move {
            let follow = || self.follow(&group);
            let following = supervise(&self.health, Self::NAME, &stop, follow);
            stop.run_until_cancelled(following).await;
            group.stop().await;
            Ok(())
        })
    }

    /// Starts to read the shards that are not read, again and again.
    async fn follow(&self, group: &Group) {
        let mut more = self.store.tracking_shards_signal();
        let mut is_told = false;
        loop {
            more.mark_unchanged();
            match self
                .store
                .tracking_shards(&self.readers.settings.input)
                .await
            {
                Ok(noted) => {
                    is_told = false;
                    self.read_up_to(noted.max(self.used), group);
                    // The store lives as long as this does.
                    let _ = more.changed().await;
                }
                Err(error) => {
                    if !is_told {
                        warn!(%error, code = error.code().as_str(), "cannot read how many tracking shards there are; trying again");
                    }
                    is_told = true;
                    let _ = timeout(PAUSE, more.changed()).await;
                }
            }
        }
    }

    fn read_up_to(&self, shards: TrackingShards, group: &Group) {
        if shards == TrackingShards::ONE {
            return;
        }
        let number = shards.number();
        let read = self.read.swap(number, Ordering::Relaxed);
        for shard in read..number {
            self.readers.read_shard(shard, false, group);
        }
        if read < number {
            info!(shards = number, "reading the shards of the tracking pipe");
        }
    }
}
