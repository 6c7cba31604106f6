//! Requests to the REST API: jobs that many clients create at once; then reads of one job and of
//! pages of jobs, first in an otherwise empty store, then with many other jobs in it. The reads
//! return the same jobs both times, so they should take equally long.

use std::time::{Duration, Instant};

use anyhow::ensure;
use batchwright::client::Client;
use clap::Args;
use contract::PartitionId;
use contract::rest::NewJob;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use job_service::Limits;
use serde::Serialize;

use super::service_alone::{ServiceAlone, StorePlace, job_that_nobody_runs};

/// The number of jobs that the reads return: two pages.
const OWN_JOBS: u32 = 50;
const PAGE: usize = 25;
/// The number of requests that are made before the measurement, to fill caches and pools.
const WARM_UP: usize = 20;

/// The settings of the measurement.
#[derive(Debug, Args)]
pub struct ApiOptions {
    /// Number of jobs that are created.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Number of clients that create them at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Number of other jobs in the store while reads are measured the second time.
    #[arg(long, default_value_t = 200_000, value_name = "JOBS")]
    stored_jobs: u32,
    /// Number of requests of each kind of read.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    #[command(flatten)]
    place: StorePlace,
}

/// The times of requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ApiResult {
    #[serde(flatten)]
    pub times: ReadTimes,
    /// The number of other jobs in the store.
    pub stored_jobs: u32,
    /// How many requests are under way at the same time.
    pub clients: u32,
    pub store: String,
}

/// How long requests took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadTimes {
    /// What is created or read: one job, or a page with its filter and sort order.
    pub what: String,
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

/// Measures creations, then reads. Nothing else should use the store at the same time.
pub async fn run(options: &ApiOptions) -> anyhow::Result<Vec<ApiResult>> {
    let place = &options.place;
    let created = place.measure(Limits::default(), async |at| create(options, at).await);
    let mut results = vec![created.await?];
    let read = place.measure(Limits::default(), async |at| read_twice(options, at).await);
    results.extend(read.await?);
    Ok(results)
}

async fn create(options: &ApiOptions, at: &ServiceAlone) -> anyhow::Result<ApiResult> {
    let (job, began) = (&job_that_nobody_runs(), Instant::now());
    let create = |number: u64| async move {
        let began = Instant::now();
        at.client.put(&number.to_string(), job).await?;
        anyhow::Ok(began.elapsed())
    };
    let created = stream::iter(1..=options.jobs).map(create);
    let created = created.buffer_unordered(usize::try_from(options.clients)?);
    let times: Vec<Duration> = created.try_collect().await?;
    let seconds = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let per_second = options.jobs as f64 / seconds;
    Ok(ApiResult {
        times: ReadTimes {
            per_second,
            ..percentiles("create a job", times)
        },
        stored_jobs: 0,
        clients: options.clients,
        store: at.store.kind().to_owned(),
    })
}

async fn read_twice(options: &ApiOptions, at: &ServiceAlone) -> anyhow::Result<Vec<ApiResult>> {
    create_own_jobs(&at.client).await?;
    let mut results = Vec::new();
    for stored_jobs in [0, options.stored_jobs] {
        if stored_jobs > 0 {
            let partition = PartitionId::parse(&at.partition)?;
            at.store.add_sample_jobs(&partition, stored_jobs).await?;
        }
        let times = read(&at.client, usize::try_from(options.requests)?).await?;
        results.extend(times.into_iter().map(|times| ApiResult {
            times,
            stored_jobs,
            clients: 1,
            store: at.store.kind().to_owned(),
        }));
    }
    Ok(results)
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
            ..job_that_nobody_runs()
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
