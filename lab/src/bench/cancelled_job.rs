//! A job that is cancelled while it runs, with its workers in processes of their own. Measures how
//! soon the workers stop, when the pipes are empty, the highest number of waiting items, and the
//! memory of each process until the cancellation.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use batchwright::client::Client;
use batchwright::{Running, Stack, StackOptions, advanced::BatchOptions};
use clap::Args;
use contract::rest::Job;
use contract::{JobStatus, bundle_pipe};
use framework::broker::Broker;
use serde::Serialize;

use super::ending::{clear, is_stopped, unless_stopped, until_empty};
use super::paced_worker::{PacedOptions, Starts, WorkerProcess, now, positive_number};
use super::system::{Load, memory_bytes, peak_memory_bytes};
use batchwright_cli::ServerArgs;

/// The time between two samples of the job, the pipes and the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
const DRAIN_LIMIT: Duration = Duration::from_mins(10);

/// The settings of the measurement.
#[derive(Debug, Args)]
pub struct CancelOptions {
    #[command(flatten)]
    load: Load,
    /// Number of seconds after which the job is cancelled.
    #[arg(long, default_value = "10", value_parser = seconds, value_name = "SECONDS")]
    after: Duration,
    /// Number of worker processes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..), value_name = "PROCESSES")]
    worker_processes: u32,
    /// Items per second of all worker processes together; unlimited by default.
    #[arg(long, value_parser = positive_number, value_name = "ITEMS")]
    rate: Option<f64>,
    /// Number of waiting items above which batches wait instead of being split.
    #[arg(long, default_value_t = 100_000, value_name = "MESSAGES")]
    max_depth: u64,
    #[command(flatten)]
    servers: ServerArgs,
}

/// The results. An item counts at the time when a worker starts it. The *answer* is the response to
/// the cancel request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CancelResult {
    pub items: u64,
    pub job_status: JobStatus,
    pub completed_items: i64,
    /// The duration of the cancel request.
    pub answer_ms: f64,
    pub started_before_answer: u64,
    pub started_after_answer: u64,
    /// The time from the answer to the start of the last item; 0 if none started after it.
    pub last_start_after_answer_ms: i64,
    /// The time from the answer until all pipes of the measurement were empty.
    pub drained_after_seconds: f64,
    pub max_depth: u64,
    /// The highest number of items that waited; each bundle counts as if it were full, as it does
    /// for `max_depth`.
    pub highest_depth: u64,
    /// The peak memory of this process (job service, batch worker and tracking worker).
    pub peak_memory_bytes: u64,
    /// The peak memory of each worker process.
    pub worker_peak_memory_bytes: Vec<u64>,
    /// For this process and each worker process, the memory after each third of the time until the
    /// cancellation.
    pub memory_bytes_by_third: Vec<[u64; 3]>,
    pub worker_processes: u32,
    pub route: String,
}

impl CancelResult {
    /// Returns whether the job was cancelled and its messages are gone.
    pub fn is_exact(&self) -> bool {
        self.job_status == JobStatus::Cancelled
            && self.drained_after_seconds < DRAIN_LIMIT.as_secs_f64()
    }
}

/// Runs a job, cancels it, and waits until the pipes are empty.
pub async fn run(options: &CancelOptions) -> anyhow::Result<CancelResult> {
    let embedded = options.load.stack("");
    let stack = StackOptions {
        database: options.servers.database.clone(),
        broker: options.servers.broker.clone(),
        tls: options.servers.tls.load()?,
        batch: BatchOptions {
            max_depth: options.max_depth,
            ..embedded.batch
        },
        ..embedded
    };
    let running = unless_stopped(async {
        Box::pin(options.load.refuse_leftovers(stack.clone())).await?;
        Ok(Box::pin(Stack::new(stack).start()).await?)
    })
    .await?;
    let client = Client::new(&running.api_url(), "bench");
    let job = uuid::Uuid::new_v4().simple().to_string();
    let mut workers = Vec::new();
    let measured = unless_stopped(async {
        workers = start_workers(options)?;
        measure(options, &running, (&client, &job), &mut workers).await
    });
    let measured = Box::pin(measured).await;
    if is_stopped(&measured) {
        clear(&options.load, &running, client.cancel(&job)).await;
    }
    drop(workers);
    running.stop().await;
    measured
}

async fn measure(
    options: &CancelOptions,
    running: &Running,
    (client, job): (&Client, &str),
    workers: &mut Vec<WorkerProcess>,
) -> anyhow::Result<CancelResult> {
    let broker = &**running.broker();
    client.put(job, &options.load.new_job(None)).await?;
    let sampled = sample(options, broker, (client, job), workers).await?;
    let asked = Instant::now();
    client.cancel(job).await?;
    let (answer_ms, answered) = (asked.elapsed().as_secs_f64() * 1000.0, now());
    let drained = until_empty(broker, &options.load.all_pipes(), DRAIN_LIMIT).await?;
    let Job {
        status,
        completed_items,
        ..
    } = client.get(job).await?;

    let mut starts = Starts::default();
    let mut worker_peak_memory_bytes = Vec::new();
    for worker in std::mem::take(workers) {
        let summary = worker.stop().await?;
        worker_peak_memory_bytes.push(summary.peak_memory_bytes);
        for (time, count) in summary.starts {
            *starts.entry(time).or_default() += count;
        }
    }
    Ok(CancelResult {
        items: options.load.items,
        job_status: status,
        completed_items,
        answer_ms,
        started_before_answer: starts.range(..=answered).map(|(_, count)| count).sum(),
        started_after_answer: starts.range(answered + 1..).map(|(_, count)| count).sum(),
        last_start_after_answer_ms: starts
            .last_key_value()
            .map_or(0, |(time, _)| (time - answered).max(0)),
        drained_after_seconds: drained.unwrap_or(DRAIN_LIMIT.as_secs_f64()),
        max_depth: options.max_depth,
        highest_depth: sampled.highest_depth,
        peak_memory_bytes: peak_memory_bytes(),
        worker_peak_memory_bytes,
        memory_bytes_by_third: sampled.memory_by_third(),
        worker_processes: options.worker_processes,
        route: options.load.route.name().to_owned(),
    })
}

fn start_workers(options: &CancelOptions) -> anyhow::Result<Vec<WorkerProcess>> {
    let broker = options.servers.broker.as_ref();
    let broker = broker.context("workers of other processes need a broker")?;
    let worker = PacedOptions {
        broker: broker.clone(),
        tls: options.servers.tls.clone(),
        input: options.load.pipes().input,
        route: options.load.route,
        concurrency: options.load.concurrency,
        prefetch: options.load.prefetch,
        rate: options
            .rate
            .map(|rate| rate / f64::from(options.worker_processes)),
    };
    (0..options.worker_processes)
        .map(|_| WorkerProcess::start(&worker))
        .collect()
}

/// What was sampled until the cancellation.
#[derive(Default)]
struct Samples {
    highest_depth: u64,
    /// One row per sample, one column per process.
    memory: Vec<Vec<u64>>,
}

/// Samples the depth of the pipes of the items and the memory of all processes until it is time to
/// cancel the job.
async fn sample(
    options: &CancelOptions,
    broker: &dyn Broker,
    (client, job): (&Client, &str),
    workers: &[WorkerProcess],
) -> anyhow::Result<Samples> {
    let processes: Vec<String> = std::iter::once("self".to_owned())
        .chain(
            workers
                .iter()
                .filter_map(|worker| Some(worker.id()?.to_string())),
        )
        .collect();
    let input = options.load.pipes().input;
    let bundles = bundle_pipe(&input).unwrap_or_default();
    let full = u64::from(options.load.bundle);
    let created = Instant::now();
    let mut samples = Samples::default();
    while created.elapsed() < options.after {
        let waiting = broker.depth(&input).await? + full * broker.depth(&bundles).await?;
        samples.highest_depth = samples.highest_depth.max(waiting);
        let memory = processes
            .iter()
            .map(|process| memory_bytes(process, "VmRSS:"));
        samples.memory.push(memory.collect());
        let state = client.get(job).await?;
        if state.status.is_finished() {
            bail!(
                "the job was {} before it could be cancelled; raise --items or lower --after",
                state.status
            );
        }
        tokio::time::sleep(SAMPLE_INTERVAL).await;
    }
    Ok(samples)
}

impl Samples {
    fn memory_by_third(&self) -> Vec<[u64; 3]> {
        let count = self.memory.len();
        let thirds = [count / 3, count * 2 / 3, count.saturating_sub(1)];
        let processes = self.memory.first().map_or(0, Vec::len);
        (0..processes)
            .map(|process| thirds.map(|at| self.memory[at][process]))
            .collect()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(positive_number(text)?).map_err(|error| error.to_string())
}
