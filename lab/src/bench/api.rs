//! Requests to the REST API: jobs that many clients create at once, and reads beside many stored
//! jobs.

use std::time::{Duration, Instant};

use batchwright::client::Client;
use batchwright::{Role, Stack, StackOptions};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use super::ending::unless_stopped;
use super::reads::{ReadTimes, ReadsOptions, percentiles, run as run_reads};
use super::store::job_that_nobody_runs;
use super::system::temporary_folder;

/// The settings of the measurement.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// The number of jobs that are created.
    pub jobs: u64,
    /// How many clients create them at the same time.
    pub clients: usize,
    pub reads: ReadsOptions,
}

/// The times of requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ApiResult {
    /// What is created or read.
    pub what: String,
    /// The number of other jobs in the store.
    pub stored_jobs: u32,
    /// How many requests are under way at the same time.
    pub clients: usize,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub store: String,
}

/// Measures creations, then reads. Nothing else should use the store at the same time.
pub async fn run(options: &ApiOptions) -> anyhow::Result<Vec<ApiResult>> {
    let mut results = vec![creations(options).await?];
    let reads = run_reads(&options.reads).await?;
    let beside = [
        (0, reads.beside_none),
        (reads.stored_jobs, reads.beside_all),
    ];
    for (stored_jobs, times) in beside {
        results.extend(times.into_iter().map(
            |ReadTimes {
                 what,
                 per_second,
                 p50_ms,
                 p99_ms,
             }| ApiResult {
                what,
                stored_jobs,
                clients: 1,
                per_second,
                p50_ms,
                p99_ms,
                store: reads.store.clone(),
            },
        ));
    }
    Ok(results)
}

async fn creations(options: &ApiOptions) -> anyhow::Result<ApiResult> {
    let temporary = temporary_folder()?;
    let data = options.reads.data.clone();
    let stack = StackOptions {
        database: options.reads.database.clone(),
        roles: vec![Role::JobService],
        ..StackOptions::embedded(data.unwrap_or_else(|| temporary.path().to_owned()))
    };
    let running = Stack::new(stack).start().await?;
    let measured = async {
        // A new partition keeps jobs of earlier runs out of the way.
        let partition = uuid::Uuid::new_v4().simple().to_string();
        let client = &Client::new(&running.api_url(), &partition);
        let (job, began) = (&job_that_nobody_runs(), Instant::now());
        let create = |number: u64| async move {
            let began = Instant::now();
            client.put(&number.to_string(), job).await?;
            anyhow::Ok(began.elapsed())
        };
        let created = stream::iter(1..=options.jobs).map(create);
        let times: Vec<Duration> = created
            .buffer_unordered(options.clients)
            .try_collect()
            .await?;
        let seconds = began.elapsed().as_secs_f64();
        let times = percentiles("create a job", times);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        let per_second = options.jobs as f64 / seconds;
        Ok(ApiResult {
            what: times.what,
            stored_jobs: 0,
            clients: options.clients,
            per_second,
            p50_ms: times.p50_ms,
            p99_ms: times.p99_ms,
            store: running
                .store()
                .map(|store| store.kind().to_owned())
                .unwrap_or_default(),
        })
    };
    let measured = Box::pin(unless_stopped(measured)).await;
    running.stop().await;
    measured
}
