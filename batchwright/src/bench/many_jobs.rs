//! Many small jobs through the whole system, and what they leave behind in the database.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use store::{CatalogueSize, Store};

use super::{BenchOptions, new_job, peak_memory_bytes, start};
use crate::client::Client;

/// Requests that are under way at the same time.
const CLIENTS: usize = 16;
/// Between two looks at how many jobs are not finished.
const LOOK: Duration = Duration::from_millis(50);
/// For the sweeper to clear away what the jobs leave behind.
const SWEPT_WITHIN: Duration = Duration::from_mins(5);

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManyJobsResult {
    pub jobs: u64,
    pub items_per_job: u64,
    pub completed_jobs: u64,
    /// Counted by the worker: more than there are when some ran twice.
    pub executed_items: u64,
    /// From the first request to the end of the last job.
    pub seconds: f64,
    pub jobs_per_second: f64,
    pub items_per_second: f64,
    /// From the end of the last job until every task table was gone, and those that were not.
    pub swept_after_seconds: f64,
    pub leftover_tables: u64,
    pub catalogue_before: CatalogueSize,
    pub catalogue_after: CatalogueSize,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

impl ManyJobsResult {
    /// Whether every job has completed, with all of its items, and nothing of their tasks is left.
    pub const fn is_exact(&self) -> bool {
        self.completed_jobs == self.jobs
            && self.executed_items >= self.jobs * self.items_per_job
            && self.leftover_tables == 0
    }
}

/// Runs `jobs` jobs of no-ops beside each other.
pub async fn run(options: &BenchOptions, jobs: u64) -> anyhow::Result<ManyJobsResult> {
    ensure!(jobs > 0, "--jobs must be at least 1");
    let (running, executed, _temporary) = start(options).await?;
    // A partition of its own: nothing of an earlier run is counted.
    let partition = uuid::Uuid::new_v4().simple().to_string();
    let client = Client::new(&running.api_url(), &partition)?;
    let store = running
        .store()
        .context("the benchmark runs with a store")?
        .clone();
    let measured = async {
        let catalogue_before = store.catalogue_size().await?;
        let began = Instant::now();
        create(&client, options, jobs).await?;
        finish(&client).await?;
        let seconds = began.elapsed().as_secs_f64();
        let completed_jobs = client
            .count(&[("statusType", "Completed".to_owned())])
            .await?;
        let (swept_after_seconds, leftover_tables) = swept(&store).await?;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let per_second = |count: u64| count as f64 / seconds;
        Ok(ManyJobsResult {
            jobs,
            items_per_job: options.items,
            completed_jobs,
            executed_items: executed.load(Ordering::Relaxed),
            seconds,
            jobs_per_second: per_second(completed_jobs),
            items_per_second: per_second(completed_jobs * options.items),
            swept_after_seconds,
            leftover_tables,
            catalogue_before,
            catalogue_after: store.catalogue_size().await?,
            peak_memory_bytes: peak_memory_bytes(),
            route: options.route.name().to_owned(),
            broker: running.broker().kind().to_owned(),
            store: store.kind().to_owned(),
        })
    };
    let measured = measured.await;
    running.stop().await;
    measured
}

async fn create(client: &Client, options: &BenchOptions, jobs: u64) -> anyhow::Result<()> {
    let outputs_of = |job: &str| options.with_output.then(|| job.to_owned());
    let put = |number: u64| async move {
        let job = number.to_string();
        client
            .put(
                &job,
                &new_job(options.items, &options.pipes, outputs_of(&job).as_deref()),
            )
            .await
    };
    stream::iter(1..=jobs)
        .map(put)
        .buffer_unordered(CLIENTS)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

/// Waits until no job is under way.
async fn finish(client: &Client) -> anyhow::Result<()> {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    loop {
        match client
            .count(&[("statusType", "NotFinished".to_owned())])
            .await?
        {
            0 => return Ok(()),
            left if left == last && since.elapsed() > Duration::from_mins(2) => {
                bail!("{left} jobs have not moved for two minutes")
            }
            left if left != last => (last, since) = (left, Instant::now()),
            _ => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How long it took until there were no task tables, and how many there are.
async fn swept(store: &Store) -> anyhow::Result<(f64, u64)> {
    let began = Instant::now();
    loop {
        let tables = store.task_table_size().await?.tables;
        if tables == 0 || began.elapsed() > SWEPT_WITHIN {
            return Ok((began.elapsed().as_secs_f64(), tables));
        }
        tokio::time::sleep(LOOK).await;
    }
}
