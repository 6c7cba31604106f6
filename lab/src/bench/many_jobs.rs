//! Many small jobs at the same time, some of which may fail, and what they leave behind in the
//! database.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use batchwright::client::Client;
use clap::Args;
use contract::metrics::HTTP_REQUESTS;
use contract::rest::Job;
use contract::{JobStatus, PartitionId};
use framework::meters;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use store::{CatalogueSize, JobPlace, JobQuery, Sort, SortBy, Store};

use super::patience::Patience;
use super::run::{Run, RunResult};
use super::system::{JobOptions, System};

/// The number of concurrent requests that create jobs.
const CLIENTS: usize = 16;
/// The time between two requests for the number of unfinished jobs, or for the number of task
/// tables.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two looks at the items of unfinished jobs while no job finishes.
const ITEMS_INTERVAL: Duration = Duration::from_secs(10);
/// The number of jobs on a page of a list.
const PAGE: usize = 1000;
/// How long the sweeper may take to drop the task tables.
const SWEEP_LIMIT: Duration = Duration::from_mins(5);

/// The time between two looks at the outbox.
const OUTBOX_INTERVAL: Duration = Duration::from_secs(1);

/// How fast the jobs come, and which of them fail.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Course {
    /// Make the first item of every so many jobs fail, and its job with it, while the other items
    /// of the job wait.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), requires_all = ["jobs", "no_output"], value_name = "JOBS")]
    pub failing_every: Option<u64>,
    /// Create at most this number of jobs a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), requires = "jobs", value_name = "JOBS")]
    pub rate: Option<u32>,
}

impl Course {
    /// Returns whether the job with this number, from 1, fails.
    fn fails(self, number: u64) -> bool {
        self.failing_every
            .is_some_and(|every| number.is_multiple_of(every))
    }

    /// Returns how many of the first `jobs` fail.
    fn failing(self, jobs: u64) -> u64 {
        self.failing_every.map_or(0, |every| jobs / every)
    }
}

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManyJobsResult {
    pub jobs: u64,
    pub items_per_job: u64,
    pub completed_jobs: u64,
    /// The number of jobs that are to fail.
    pub failing_jobs: u64,
    /// The number of jobs that did not end as they should, or did not count each of their items.
    pub wrong_jobs: u64,
    /// The most messages and announcements that were seen in the outbox, once a second; 0 if no job
    /// is to fail.
    pub largest_outbox: u64,
    /// How often workers asked this process for the status of a job.
    pub status_checks: u64,
    pub jobs_per_second: f64,
    /// The number of tracking pipes among which the jobs were spread.
    pub tracking_shards: u32,
    /// The time from the end of the last job until their task tables were dropped, or until the
    /// measurement stopped waiting.
    pub swept_after_seconds: f64,
    /// The number of task tables that were not dropped, beside those that were there before.
    pub leftover_tables: u64,
    pub catalogue_before: CatalogueSize,
    pub catalogue_after: CatalogueSize,
    #[serde(flatten)]
    pub run: RunResult,
}

impl ManyJobsResult {
    /// Returns whether every job completed with all its items, or failed if it was to fail, every
    /// output was sent, and no task table of a completed job is left.
    pub const fn is_exact(&self, with_output: bool) -> bool {
        let completing = self.jobs - self.failing_jobs;
        self.completed_jobs == completing
            && self.wrong_jobs == 0
            && self.run.executed_items >= completing * self.items_per_job
            && (!with_output || self.run.outputs == self.jobs * self.items_per_job)
            && self.leftover_tables == 0
    }
}

/// Runs `jobs` jobs at the same time.
pub async fn run(
    options: &JobOptions,
    jobs: u64,
    course: Course,
) -> anyhow::Result<ManyJobsResult> {
    Run::measure(options, async |run| {
        let (load, client) = (&options.load, run.client.clone());
        let store = run.system.running.store();
        let store = store.context("the system has no store")?.clone();
        let catalogue_before = store.catalogue_size().await?;
        let tables_before = store.task_table_size().await?.tables;
        let begin = run.begin();
        let work = async {
            create(&client, options, &run.name, (jobs, course)).await?;
            finish(&client, options, &run.system).await
        };
        let largest_outbox = if course.failing_every.is_some() {
            watch_outbox(&store, work).await?
        } else {
            work.await?;
            0
        };
        let measured = run.end(begin, jobs).await?;
        let completed = ("statusType", "Completed".to_owned());
        let completed_jobs = client.count(&[completed]).await?;
        let failing_jobs = course.failing(jobs);
        let wrong_jobs = count_wrong(&store, &run.name, load.items, course).await?;
        // Those of failed jobs are kept for a while.
        let kept = tables_before + failing_jobs;
        let (swept_after_seconds, leftover_tables) = sweep(&store, kept).await?;
        Ok(ManyJobsResult {
            jobs,
            items_per_job: load.items,
            completed_jobs,
            failing_jobs,
            wrong_jobs,
            largest_outbox,
            status_checks: status_checks(&meters::scrape().await),
            jobs_per_second: measured.per_second(completed_jobs),
            tracking_shards: load.tracking_shards.number(),
            swept_after_seconds,
            leftover_tables,
            catalogue_before,
            catalogue_after: store.catalogue_size().await?,
            run: RunResult {
                items_per_second: measured.per_second(completed_jobs * load.items),
                outputs: run.outputs(jobs).await?,
                ..measured
            },
        })
    })
    .await
}

/// Creates the jobs `1`, `2`, …, whose outputs name this run.
async fn create(
    client: &Client,
    options: &JobOptions,
    run: &str,
    (jobs, course): (u64, Course),
) -> anyhow::Result<()> {
    let (completing, failing) = (options.new_job(run), options.new_failing_job(run));
    let began = tokio::time::Instant::now();
    let put = |number: u64| {
        let new_job = if course.fails(number) {
            &failing
        } else {
            &completing
        };
        async move {
            if let Some(rate) = course.rate {
                #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
                let due = Duration::from_secs_f64(number as f64 / f64::from(rate));
                tokio::time::sleep_until(began + due).await;
            }
            client.put(&number.to_string(), new_job).await
        }
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

/// Returns the most messages and announcements that are seen in the outbox until the work ends.
async fn watch_outbox(
    store: &Store,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<u64> {
    let mut work = std::pin::pin!(work);
    let mut largest = 0;
    loop {
        tokio::select! {
            worked = &mut work => return worked.map(|()| largest),
            () = tokio::time::sleep(OUTBOX_INTERVAL) => {
                largest = largest.max(store.backlog().await?.due_messages);
            }
        }
    }
}

/// Returns the number of jobs that did not end as they should, or did not count each of their
/// items.
async fn count_wrong(
    store: &Store,
    partition: &str,
    items: u64,
    course: Course,
) -> anyhow::Result<u64> {
    let partition = PartitionId::parse(partition)?;
    let is_right = |job: &Job| {
        let number = job.id.parse().unwrap_or_default();
        if course.fails(number) {
            job.status == JobStatus::Failed && job.failed_tasks == 1
        } else {
            let counted = (u64::try_from(job.completed_items), job.failed_tasks);
            job.status == JobStatus::Completed && counted == (Ok(items), 0)
        }
    };
    let mut query = JobQuery {
        sort: Sort {
            by: SortBy::CreateTime,
            ascending: true,
        },
        limit: u32::try_from(PAGE)?,
        ..JobQuery::default()
    };
    let mut wrong = 0;
    loop {
        let jobs = store.jobs(&partition, &query).await?;
        let Some(last) = jobs.last() else {
            return Ok(wrong);
        };
        query.after = Some(JobPlace::of(last));
        wrong += jobs.iter().filter(|job| !is_right(job)).count() as u64;
    }
}

/// Returns how often the status of a job was asked for, by the metrics of this process.
fn status_checks(metrics: &str) -> u64 {
    let of_status = |line: &&str| line.starts_with(HTTP_REQUESTS) && line.contains("/status\"");
    let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    metrics.lines().filter(of_status).filter_map(count).sum()
}

/// Waits until no more task tables are there than before. Returns the duration in seconds, and the
/// number of tables that are left.
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
