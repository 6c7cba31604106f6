//! What the store takes: flushes of the reports of many tasks, as the tracking worker writes them,
//! without a broker beside it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use contract::{JobTaskId, Step};
use job_service::Limits;
use serde::Serialize;
use store::{EventKind, TrackingEvent};

use super::api::percentiles;
use super::service_alone::{ServiceAlone, StorePlace, job_that_nobody_runs};
use super::system::peak_memory_bytes;
use super::usage::{Meter, Share};

/// The tasks of a split, as many as the batch worker makes of a large range by default.
const PARTS: u32 = 1000;

/// The settings of the measurement.
#[derive(Debug, Args)]
pub struct StoreBenchOptions {
    /// Number of tasks that a flush reports; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000", value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "TASKS")]
    pub tasks_per_flush: Vec<u32>,
    /// Number of seconds for which flushes are made.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    place: StorePlace,
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

/// Makes flushes one after the other, each with the next so many tasks of one job.
pub async fn run(
    options: &StoreBenchOptions,
    tasks_per_flush: u32,
) -> anyhow::Result<StoreBenchResult> {
    let place = &options.place;
    let measure = async |at: &ServiceAlone| measure(options, tasks_per_flush, at).await;
    place.measure(Limits::default(), measure).await
}

async fn measure(
    options: &StoreBenchOptions,
    tasks_per_flush: u32,
    at: &ServiceAlone,
) -> anyhow::Result<StoreBenchResult> {
    let ServiceAlone {
        client,
        store,
        partition,
    } = at;
    let job = "1";
    client.put(job, &job_that_nobody_runs()).await?;
    let meter = Meter::begin(None, options.place.database.as_deref());
    let time = Duration::from_secs(options.seconds.into());
    let (mut times, mut tasks) = (Vec::new(), 0);
    let began = Instant::now();
    while began.elapsed() < time || times.is_empty() {
        let events = (0..tasks_per_flush).map(|n| done(partition, job, tasks + u64::from(n)));
        let events = events.collect::<anyhow::Result<Vec<_>>>()?;
        let flush = Instant::now();
        let recorded = store.record(&events).await?;
        times.push(flush.elapsed());
        ensure!(
            recorded.ignored == 0,
            "the store has ignored {} reports",
            recorded.ignored
        );
        tasks += u64::from(tasks_per_flush);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = meter.per_item(tasks);
    let flushes = times.len() as u64;
    let times = percentiles("flush", times);
    let ended = client.get(job).await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let per_second = |count: u64| count as f64 / seconds;
    Ok(StoreBenchResult {
        tasks_per_flush,
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

/// Returns the report that a task is done. The tasks of a split follow one another.
fn done(partition: &str, job: &str, task: u64) -> anyhow::Result<TrackingEvent> {
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
            partition: partition.to_owned(),
            job: job.to_owned(),
            incarnation: None,
            round: 1,
            steps: vec![step(task / parts)?, step(task % parts)?],
        },
        kind: EventKind::Complete,
    })
}
