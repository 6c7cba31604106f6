//! Reads of one job and of pages of jobs over HTTP, first in an otherwise empty store, then with
//! many other jobs in it. The requests return the same jobs both times, so they should take equally
//! long.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batchwright::client::Client;
use batchwright::{Role, Stack, StackOptions};
use contract::PartitionId;
use contract::rest::{JobTask, NewJob};
use serde::Serialize;

use super::ending::unless_stopped;
use super::system::temporary_folder;

/// The number of jobs that the requests return: two pages.
const OWN_JOBS: u32 = 50;
const PAGE: usize = 25;
/// The number of requests that are made before the measurement, to fill caches and pools.
const WARM_UP: usize = 20;

/// The settings of the measurement.
#[derive(Debug, Clone)]
pub struct ReadsOptions {
    /// The number of other jobs.
    pub stored_jobs: u32,
    /// The number of requests of each kind; they are made one after the other.
    pub requests: usize,
    pub database: Option<String>,
    /// The folder of the embedded store; a temporary one if `None`.
    pub data: Option<PathBuf>,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadsResult {
    pub stored_jobs: u32,
    pub requests: usize,
    /// The time that it took to add the other jobs.
    pub fill_seconds: f64,
    pub beside_none: Vec<ReadTimes>,
    pub beside_all: Vec<ReadTimes>,
    pub store: String,
}

/// The times of requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadTimes {
    /// The kind: one job, or a page with its filter and sort order.
    pub what: String,
    /// One after the other.
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// The filters and sort orders of the pages. Each matches at least [`PAGE`] of the own jobs.
const PAGES: [&str; 5] = [
    "",
    "labels.team==team-3;status!=Failed createTime:desc",
    "labels.mine==yes;percentageComplete<50 labels.mine:asc",
    "labels.mine==yes name:asc",
    "status==Waiting jobId:asc",
];

/// Measures reads. Nothing else should use the store at the same time.
pub async fn run(options: &ReadsOptions) -> anyhow::Result<ReadsResult> {
    ensure!(options.requests > 0, "--requests must be at least 1");
    let temporary = temporary_folder()?;
    let data = options
        .data
        .clone()
        .unwrap_or_else(|| temporary.path().to_owned());
    let stack_options = StackOptions {
        database: options.database.clone(),
        roles: vec![Role::JobService],
        ..StackOptions::embedded(data)
    };
    let running = Stack::new(stack_options).start().await?;
    let partition = uuid::Uuid::new_v4().simple().to_string();
    let client = Client::new(&running.api_url(), &partition);
    let store = running.store().context("the system has no store")?.clone();
    let measured = async {
        create_own_jobs(&client).await?;
        let beside_none = read(&client, options.requests).await?;
        let began = Instant::now();
        if options.stored_jobs > 0 {
            store
                .add_sample_jobs(&PartitionId::parse(&partition)?, options.stored_jobs)
                .await?;
        }
        let fill_seconds = began.elapsed().as_secs_f64();
        let beside_all = read(&client, options.requests).await?;
        let (stored_jobs, requests) = (options.stored_jobs, options.requests);
        Ok(ReadsResult {
            stored_jobs,
            requests,
            fill_seconds,
            beside_none,
            beside_all,
            store: store.kind().to_owned(),
        })
    };
    let measured = Box::pin(unless_stopped(measured)).await;
    running.stop().await;
    measured
}

async fn create_own_jobs(client: &Client) -> anyhow::Result<()> {
    for number in 0..OWN_JOBS {
        let labels = [
            ("team", "team-3".to_owned()),
            ("mine", "yes".to_owned()),
            ("number", number.to_string()),
        ];
        let job = NewJob {
            name: Some(format!("Job {number}")),
            labels: Some(
                labels
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), Some(value)))
                    .collect(),
            ),
            task: Some(JobTask {
                task_classifier: Some("Nothing".to_owned()),
                task_api_version: Some(1),
                task_data: Some(serde_json::json!({})),
                task_pipe: Some("bench-reads-in".to_owned()),
                ..JobTask::default()
            }),
            ..NewJob::default()
        };
        client.put(&format!("own-{number}"), &job).await?;
    }
    Ok(())
}

async fn read(client: &Client, requests: usize) -> anyhow::Result<Vec<ReadTimes>> {
    let mut all = vec![one_job(client, requests).await?];
    for what in PAGES {
        all.push(page(client, what, requests).await?);
    }
    Ok(all)
}

async fn one_job(client: &Client, requests: usize) -> anyhow::Result<ReadTimes> {
    let mut times = Vec::with_capacity(requests);
    for number in 0..requests + WARM_UP {
        let began = Instant::now();
        client
            .get(&format!("own-{}", number % OWN_JOBS as usize))
            .await?;
        times.push(began.elapsed());
    }
    Ok(percentiles("one job", times.split_off(WARM_UP)))
}

async fn page(client: &Client, what: &str, requests: usize) -> anyhow::Result<ReadTimes> {
    let mut query = vec![("limit", PAGE.to_string())];
    if let Some((filter, sort)) = what.split_once(' ') {
        query.extend([("filter", filter.to_owned()), ("sort", sort.to_owned())]);
    }
    let mut times = Vec::with_capacity(requests);
    for _ in 0..requests + WARM_UP {
        let began = Instant::now();
        let jobs = client.list(&query).await?;
        times.push(began.elapsed());
        ensure!(
            jobs.len() == PAGE,
            "expected a page of {PAGE} jobs for {what:?}, got {}",
            jobs.len()
        );
        ensure!(
            jobs.iter().all(|job| job.labels.len() >= 2),
            "expected jobs with labels for {what:?}"
        );
    }
    Ok(percentiles(
        &format!(
            "page of {PAGE}: {}",
            if what.is_empty() {
                "newest first"
            } else {
                what
            }
        ),
        times.split_off(WARM_UP),
    ))
}

/// Returns the times of at least one request.
pub fn percentiles(what: &str, mut times: Vec<Duration>) -> ReadTimes {
    times.sort_unstable();
    let total: Duration = times.iter().sum();
    let at = |hundredths: usize| {
        times[(times.len() * hundredths / 100).min(times.len() - 1)].as_secs_f64() * 1000.0
    };
    ReadTimes {
        what: what.to_owned(),
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        per_second: times.len() as f64 / total.as_secs_f64(),
        p50_ms: at(50),
        p99_ms: at(99),
    }
}
