//! Many small jobs at the same time, and what they leave behind in the database.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batchwright::client::Client;
use contract::rest::Job;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use store::{CatalogueSize, Store};

use super::ending::{clear, is_stopped, unless_stopped};
use super::item_outputs::Expected;
use super::parts::{self, PartProcess, PartResult};
use super::patience::Patience;
use super::system::{JobOptions, System, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter};

/// The number of concurrent requests that create jobs.
const CLIENTS: usize = 16;
/// The time between two requests for the number of unfinished jobs, or for the number of task tables.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two looks at the items of unfinished jobs while no job finishes.
const ITEMS_INTERVAL: Duration = Duration::from_secs(10);
/// The number of jobs on a page of a list.
const PAGE: usize = 1000;
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
    /// The number of distinct outputs in the output pipe.
    pub outputs: u64,
    /// The number of tracking pipes among which the jobs were spread.
    pub tracking_shards: u32,
    /// From the first request to the end of the last job.
    pub cpu_us_per_item: CpuPerItem,
    /// The parts that ran in processes of their own.
    pub processes: Vec<PartResult>,
    /// The time from the end of the last job until their task tables were dropped, or until the measurement stopped waiting.
    pub swept_after_seconds: f64,
    /// The number of task tables that were not dropped, beside those that were there before.
    pub leftover_tables: u64,
    pub catalogue_before: CatalogueSize,
    pub catalogue_after: CatalogueSize,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

impl ManyJobsResult {
    /// Returns whether every job completed with all its items, every output was sent, and no task table is left.
    pub const fn is_exact(&self, with_output: bool) -> bool {
        self.completed_jobs == self.jobs
            && self.executed_items >= self.jobs * self.items_per_job
            && (!with_output || self.outputs == self.jobs * self.items_per_job)
            && self.leftover_tables == 0
    }
}

/// Runs `jobs` jobs at the same time.
pub async fn run(options: &JobOptions, jobs: u64) -> anyhow::Result<ManyJobsResult> {
    ensure!(jobs > 0, "--jobs must be at least 1");
    let system = unless_stopped(options.start()).await?;
    // A new partition keeps jobs of earlier runs out of the counts.
    let partition = uuid::Uuid::new_v4().simple().to_string();
    let client = Client::new(&system.running.api_url(), &partition);
    let mut parts = Vec::new();
    let measured = unless_stopped(async {
        parts = parts::start(options).await?;
        measure(options, &system, (&client, &partition), jobs, &mut parts).await
    });
    let measured = Box::pin(measured).await;
    if is_stopped(&measured) && options.leaves_messages() {
        let cancel = async { client.cancel_all(&[]).await.map(drop) };
        clear(&options.load, &system.running, cancel).await;
    }
    drop(parts);
    system.running.stop().await;
    measured
}

async fn measure(
    options: &JobOptions,
    system: &System,
    (client, partition): (&Client, &str),
    jobs: u64,
    parts: &mut Vec<PartProcess>,
) -> anyhow::Result<ManyJobsResult> {
    let (load, running) = (&options.load, &system.running);
    let store = running.store().context("the system has no store")?.clone();
    let catalogue_before = store.catalogue_size().await?;
    let tables_before = store.task_table_size().await?.tables;
    // Outputs go in bundles only to readers that are there.
    let reads_early = options.with_output && load.bundle > 1;
    let early = if reads_early {
        Some(load.outputs(running).await?)
    } else {
        None
    };
    let meter = Meter::begin(options.broker.as_deref(), options.database.as_deref());
    let began = Instant::now();
    create(client, options, partition, jobs).await?;
    finish(client, options, system).await?;
    let seconds = began.elapsed().as_secs_f64();
    let items = jobs * load.items;
    let cpu_us_per_item = meter.per_item(items);
    let (processes, elsewhere) = parts::stop(std::mem::take(parts), items).await?;
    let completed_jobs = client
        .count(&[("statusType", "Completed".to_owned())])
        .await?;
    let (swept_after_seconds, leftover_tables) = sweep(&store, tables_before).await?;
    let outputs = if options.with_output {
        let outputs = match early {
            Some(outputs) => outputs,
            None => load.outputs(running).await?,
        };
        let expected = Expected {
            run: partition,
            jobs,
            items_per_job: load.items,
        };
        expected.count(outputs).await?
    } else {
        0
    };
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
        outputs,
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

/// Creates the jobs `1`, `2`, …, whose outputs name this run.
async fn create(client: &Client, options: &JobOptions, run: &str, jobs: u64) -> anyhow::Result<()> {
    let new_job = options.new_job(run);
    let put = |number: u64| {
        let new_job = &new_job;
        async move { client.put(&number.to_string(), new_job).await }
    };
    stream::iter(1..=jobs)
        .map(put)
        .buffer_unordered(CLIENTS)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

/// Waits until all jobs are finished.
async fn finish(client: &Client, options: &JobOptions, system: &System) -> anyhow::Result<()> {
    let mut patience = Patience::new(options.tasks.work.longest());
    let (mut items, mut looked, mut last) = (0, Instant::now(), u64::MAX);
    loop {
        let unfinished = client.count(&[not_finished()]).await?;
        if unfinished == 0 {
            return Ok(());
        }
        if unfinished != last {
            (last, looked) = (unfinished, Instant::now());
        } else if looked.elapsed() > ITEMS_INTERVAL {
            (items, looked) = (items_of_unfinished(client).await?, Instant::now());
        }
        if patience.ends((unfinished, items, system.counted())) {
            let what = format!("{unfinished} unfinished jobs");
            let (broker, pipes) = (&**system.running.broker(), options.load.all_pipes());
            return Err(patience.error(&what, broker, &pipes).await);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns how many items of the unfinished jobs are known and how many are done, together.
async fn items_of_unfinished(client: &Client) -> anyhow::Result<i64> {
    let (mut items, mut offset) = (0, 0);
    loop {
        let page = [
            not_finished(),
            ("limit", PAGE.to_string()),
            ("offset", offset.to_string()),
        ];
        let jobs = client.list(&page).await?;
        let of_job = |job: &Job| job.items.total.unwrap_or(0) + job.completed_items;
        items += jobs.iter().map(of_job).sum::<i64>();
        if jobs.len() < PAGE {
            return Ok(items);
        }
        offset += PAGE;
    }
}

fn not_finished() -> (&'static str, String) {
    ("statusType", "NotFinished".to_owned())
}

/// Waits until no more task tables are there than before. Returns the duration in seconds, and the number of tables that are left.
async fn sweep(store: &Store, before: u64) -> anyhow::Result<(f64, u64)> {
    let began = Instant::now();
    loop {
        let left = store.task_table_size().await?.tables.saturating_sub(before);
        if left == 0 || began.elapsed() > SWEEP_LIMIT {
            return Ok((began.elapsed().as_secs_f64(), left));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
