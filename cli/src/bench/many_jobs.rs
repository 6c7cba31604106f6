//! Many small jobs at the same time, and what they leave behind in the database.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use batchwright::client::Client;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use store::{CatalogueSize, Store};

use super::parts::{self, PartProcess, PartResult};
use super::system::{JobOptions, System, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter};

/// The number of concurrent requests that create jobs.
const CLIENTS: usize = 16;
/// The time between two requests for the number of unfinished jobs, or for the number of task tables.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which unfinished jobs that make no progress are an error.
const STALL_LIMIT: Duration = Duration::from_mins(2);
/// How long the sweeper may take to drop the task tables.
const SWEEP_LIMIT: Duration = Duration::from_mins(5);

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManyJobsResult {
    pub jobs: u64,
    pub items_per_job: u64,
    pub completed_jobs: u64,
    /// Counted by the worker; larger than the number of items if some ran twice.
    pub executed_items: u64,
    /// The time from the first request to the end of the last job.
    pub seconds: f64,
    pub jobs_per_second: f64,
    pub items_per_second: f64,
    /// Recorded by the tracking workers.
    pub reports: u64,
    /// The number of tracking pipes among which the jobs were spread.
    pub tracking_shards: u32,
    /// From the first request to the end of the last job.
    pub cpu_us_per_item: CpuPerItem,
    /// The parts that ran in processes of their own.
    pub processes: Vec<PartResult>,
    /// The time from the end of the last job until all task tables were dropped, or until the measurement stopped waiting.
    pub swept_after_seconds: f64,
    /// The number of task tables that were not dropped.
    pub leftover_tables: u64,
    pub catalogue_before: CatalogueSize,
    pub catalogue_after: CatalogueSize,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

impl ManyJobsResult {
    /// Returns whether every job completed with all its items and no task table is left.
    pub const fn is_exact(&self) -> bool {
        self.completed_jobs == self.jobs
            && self.executed_items >= self.jobs * self.items_per_job
            && self.leftover_tables == 0
    }
}

/// Runs `jobs` jobs at the same time.
pub async fn run(options: &JobOptions, jobs: u64) -> anyhow::Result<ManyJobsResult> {
    ensure!(jobs > 0, "--jobs must be at least 1");
    let system = options.start().await?;
    let parts = parts::start(options).await;
    let measured = match parts {
        Ok(parts) => measure(options, &system, jobs, parts).await,
        Err(error) => Err(error),
    };
    system.running.stop().await;
    measured
}

async fn measure(
    options: &JobOptions,
    system: &System,
    jobs: u64,
    parts: Vec<PartProcess>,
) -> anyhow::Result<ManyJobsResult> {
    let (load, running) = (&options.load, &system.running);
    // A new partition keeps jobs of earlier runs out of the counts.
    let partition = uuid::Uuid::new_v4().simple().to_string();
    let client = Client::new(&running.api_url(), &partition);
    let store = running.store().context("the system has no store")?.clone();
    let catalogue_before = store.catalogue_size().await?;
    let meter = Meter::begin(options.broker.as_deref(), options.database.as_deref());
    let began = Instant::now();
    create(&client, options, jobs).await?;
    finish(&client).await?;
    let seconds = began.elapsed().as_secs_f64();
    let items = jobs * load.items;
    let cpu_us_per_item = meter.per_item(items);
    let (processes, elsewhere) = parts::stop(parts, items).await?;
    let completed_jobs = client
        .count(&[("statusType", "Completed".to_owned())])
        .await?;
    let (swept_after_seconds, leftover_tables) = sweep(&store).await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let per_second = |count: u64| count as f64 / seconds;
    Ok(ManyJobsResult {
        jobs,
        items_per_job: load.items,
        completed_jobs,
        executed_items: system.executed.load(Ordering::Relaxed) + elsewhere.executed,
        seconds,
        jobs_per_second: per_second(completed_jobs),
        items_per_second: per_second(completed_jobs * load.items),
        reports: running.reports().load(Ordering::Relaxed) + elsewhere.reports,
        tracking_shards: load.tracking_shards.number(),
        cpu_us_per_item,
        processes,
        swept_after_seconds,
        leftover_tables,
        catalogue_before,
        catalogue_after: store.catalogue_size().await?,
        peak_memory_bytes: peak_memory_bytes(),
        route: load.route.name().to_owned(),
        broker: running.broker().kind().to_owned(),
        store: store.kind().to_owned(),
    })
}

async fn create(client: &Client, options: &JobOptions, jobs: u64) -> anyhow::Result<()> {
    let put = |number: u64| async move {
        let job = number.to_string();
        client.put(&job, &options.new_job(&job)).await
    };
    stream::iter(1..=jobs)
        .map(put)
        .buffer_unordered(CLIENTS)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

/// Waits until all jobs are finished.
async fn finish(client: &Client) -> anyhow::Result<()> {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    loop {
        let unfinished = client
            .count(&[("statusType", "NotFinished".to_owned())])
            .await?;
        match unfinished {
            0 => return Ok(()),
            left if left == last && since.elapsed() > STALL_LIMIT => {
                bail!("{left} jobs are unfinished, and none finished in the last {STALL_LIMIT:.0?}")
            }
            left if left != last => (last, since) = (left, Instant::now()),
            _ => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until all task tables are dropped. Returns the duration in seconds, and the number of tables that are left.
async fn sweep(store: &Store) -> anyhow::Result<(f64, u64)> {
    let began = Instant::now();
    loop {
        let tables = store.task_table_size().await?.tables;
        if tables == 0 || began.elapsed() > SWEEP_LIMIT {
            return Ok((began.elapsed().as_secs_f64(), tables));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
