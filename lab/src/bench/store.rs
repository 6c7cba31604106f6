//! What the store takes: flushes of the reports of many tasks, as the tracking worker writes them,
//! without a broker beside it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batchwright::client::Client;
use batchwright::{Role, Stack, StackOptions};
use contract::rest::{JobTask, NewJob};
use contract::{JobTaskId, Step};
use serde::Serialize;
use store::{EventKind, Store, TrackingEvent};

use super::ending::unless_stopped;
use super::reads::percentiles;
use super::system::{peak_memory_bytes, temporary_folder};
use super::usage::{Meter, Share};

/// The tasks of a split, as many as the batch worker makes of a large range by default.
const PARTS: u32 = 1000;

/// The settings of the measurement.
#[derive(Debug, Clone)]
pub struct StoreBenchOptions {
    /// The number of tasks that each flush reports.
    pub tasks_per_flush: u32,
    /// How long flushes are made.
    pub time: Duration,
    pub database: Option<String>,
    /// The folder of the embedded store; a temporary one if `None`.
    pub data: Option<PathBuf>,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoreBenchResult {
    pub tasks_per_flush: u32,
    pub flushes: u64,
    pub tasks: u64,
    pub seconds: f64,
    pub flushes_per_second: f64,
    pub tasks_per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub our_cpu_us_per_task: f64,
    pub database_cpu_us_per_task: Share,
    /// Whether the job has counted each task.
    pub is_exact: bool,
    pub peak_memory_bytes: u64,
    pub store: String,
}

/// Makes flushes one after the other, each with the next tasks of one job.
pub async fn run(options: &StoreBenchOptions) -> anyhow::Result<StoreBenchResult> {
    let temporary = temporary_folder()?;
    let data = options.data.clone();
    let stack = StackOptions {
        database: options.database.clone(),
        roles: vec![Role::JobService],
        ..StackOptions::embedded(data.unwrap_or_else(|| temporary.path().to_owned()))
    };
    let running = Stack::new(stack).start().await?;
    let measured = async {
        let client = Client::new(&running.api_url(), "bench");
        let store = running.store().context("the system has no store")?;
        measure(options, &client, store).await
    };
    let measured = Box::pin(unless_stopped(measured)).await;
    running.stop().await;
    measured
}

async fn measure(
    options: &StoreBenchOptions,
    client: &Client,
    store: &Store,
) -> anyhow::Result<StoreBenchResult> {
    let job = uuid::Uuid::new_v4().simple().to_string();
    client.put(&job, &job_that_nobody_runs()).await?;
    let meter = Meter::begin(None, options.database.as_deref());
    let (mut times, mut tasks) = (Vec::new(), 0);
    let began = Instant::now();
    while began.elapsed() < options.time || times.is_empty() {
        let events = (0..options.tasks_per_flush).map(|n| done(&job, tasks + u64::from(n)));
        let events = events.collect::<anyhow::Result<Vec<_>>>()?;
        let flush = Instant::now();
        let recorded = store.record(&events).await?;
        times.push(flush.elapsed());
        ensure!(
            recorded.ignored == 0,
            "the store has ignored {} reports",
            recorded.ignored
        );
        tasks += u64::from(options.tasks_per_flush);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = meter.per_item(tasks);
    let flushes = times.len() as u64;
    let times = percentiles("flush", times);
    let ended = client.get(&job).await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let per_second = |count: u64| count as f64 / seconds;
    Ok(StoreBenchResult {
        tasks_per_flush: options.tasks_per_flush,
        flushes,
        tasks,
        seconds,
        flushes_per_second: per_second(flushes),
        tasks_per_second: per_second(tasks),
        p50_ms: times.p50_ms,
        p99_ms: times.p99_ms,
        our_cpu_us_per_task: cpu.ours,
        database_cpu_us_per_task: cpu.database,
        is_exact: u64::try_from(ended.completed_items) == Ok(tasks),
        peak_memory_bytes: peak_memory_bytes(),
        store: store.kind().to_owned(),
    })
}

/// Returns a job whose first task waits in a pipe without a consumer.
pub fn job_that_nobody_runs() -> NewJob {
    NewJob {
        task: Some(JobTask {
            task_classifier: Some("Nothing".to_owned()),
            task_api_version: Some(1),
            task_data: Some(serde_json::json!({})),
            task_pipe: Some("bench-nothing-in".to_owned()),
            ..JobTask::default()
        }),
        ..NewJob::default()
    }
}

/// Returns the report that a task is done. The tasks of a split follow one another.
fn done(job: &str, task: u64) -> anyhow::Result<TrackingEvent> {
    let step = |number: u64| -> anyhow::Result<Step> {
        let number = u32::try_from(number + 1)?;
        Ok(Step {
            number,
            last: false,
        })
    };
    let parts = u64::from(PARTS);
    Ok(TrackingEvent {
        task: JobTaskId {
            partition: "bench".to_owned(),
            job: job.to_owned(),
            incarnation: None,
            round: 1,
            steps: vec![step(task / parts)?, step(task % parts)?],
        },
        kind: EventKind::Complete,
    })
}
