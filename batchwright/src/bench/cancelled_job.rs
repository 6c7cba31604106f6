//! A job that is cancelled in the middle, with workers in processes of their own: how soon they stop, how the pipes drain, how
//! deep the pipe of the items and how large every process became before.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use contract::{JobStatus, RangeItem};
use framework::broker::Broker;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::{
    Context, NoOutput, Reply, Route, Runtime, Settings, TaskError, Worker, stop_signal,
};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::{Pipes, memory_bytes, new_job, peak_memory_bytes};
use crate::client::Client;
use crate::{Running, Stack, StackOptions};

/// Between two looks at the job, the pipes and the memory.
const LOOK: Duration = Duration::from_millis(200);
/// Pipes count as drained when they were empty for so long: longer than a batch waits for room.
const QUIET: Duration = Duration::from_secs(2);
const DRAINED_WITHIN: Duration = Duration::from_mins(10);

/// What to do.
#[derive(Debug, Clone)]
pub struct CancelOptions {
    pub items: u64,
    pub pipes: Pipes,
    pub route: Route,
    pub database: String,
    pub broker: String,
    pub concurrency: usize,
    pub prefetch: u32,
    /// How many processes run the items.
    pub worker_processes: u32,
    /// Items a second that all of them do together; as fast as they can when left out.
    pub rate: Option<f64>,
    /// How long after its creation the job is cancelled.
    pub cancel_after: Duration,
    pub max_depth: u64,
}

/// What was seen. Times of items are those at which a worker began them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CancelResult {
    pub items: u64,
    pub job_status: JobStatus,
    pub completed_items: i64,
    /// How long the request to cancel took.
    pub answer_ms: f64,
    pub started_before_answer: u64,
    pub started_after_answer: u64,
    /// How long after the answer the last item began; 0 when none did.
    pub last_start_after_answer_ms: i64,
    /// From the answer until nothing waited in the pipes of the batch worker, the items and the reports.
    pub drained_after_seconds: f64,
    pub max_depth: u64,
    /// The most messages that ever waited in the pipe of the items.
    pub highest_depth: u64,
    /// The most memory of this process (job service, batch and tracking worker) and of each worker process, and what they had at
    /// each third of the time until the job was cancelled.
    pub peak_memory_bytes: u64,
    pub worker_peak_memory_bytes: Vec<u64>,
    pub memory_bytes_by_third: Vec<[u64; 3]>,
    pub worker_processes: u32,
    pub route: String,
}

impl CancelResult {
    /// Whether the job was cancelled and everything of it is gone.
    pub fn is_exact(&self) -> bool {
        self.job_status == JobStatus::Cancelled
            && self.drained_after_seconds < DRAINED_WITHIN.as_secs_f64()
    }
}

/// Runs a job, cancels it, and waits until the pipes are empty.
pub async fn run(options: &CancelOptions) -> anyhow::Result<CancelResult> {
    ensure!(options.items > 0, "--items must be at least 1");
    ensure!(
        options.worker_processes > 0,
        "--worker-processes must be at least 1"
    );
    let stack_options = StackOptions {
        database: Some(options.database.clone()),
        broker: Some(options.broker.clone()),
        route: options.route,
        max_depth: options.max_depth,
        batch_pipe: options.pipes.batch.clone(),
        tracking_pipe: options.pipes.tracking.clone(),
        ..StackOptions::embedded("")
    };
    let running = Stack::new(stack_options).start().await?;
    let measured = async {
        let workers = (0..options.worker_processes)
            .map(|_| start_worker(options))
            .collect::<anyhow::Result<Vec<_>>>()?;
        measure(options, &running, workers).await
    };
    let measured = measured.await;
    running.stop().await;
    measured
}

async fn measure(
    options: &CancelOptions,
    running: &Running,
    workers: Vec<Child>,
) -> anyhow::Result<CancelResult> {
    let client = Client::new(&running.api_url(), "bench")?;
    let job = uuid::Uuid::new_v4().simple().to_string();
    let processes: Vec<String> = std::iter::once("self".to_owned())
        .chain(
            workers
                .iter()
                .filter_map(|worker| Some(worker.id()?.to_string())),
        )
        .collect();
    let broker = &**running.broker();

    client
        .put(&job, &new_job(options.items, &options.pipes, None))
        .await?;
    let created = Instant::now();
    let (mut highest_depth, mut memory) = (0, Vec::new());
    while created.elapsed() < options.cancel_after {
        highest_depth = highest_depth.max(broker.depth(&options.pipes.input).await?);
        memory.push(
            processes
                .iter()
                .map(|process| memory_bytes(process, "VmRSS:"))
                .collect::<Vec<_>>(),
        );
        let state = client.get(&job).await?;
        if state.status.is_finished() {
            bail!(
                "the job was {} before it could be cancelled; take more items, or cancel earlier",
                state.status
            );
        }
        tokio::time::sleep(LOOK).await;
    }

    let asked = Instant::now();
    client.cancel(&job).await?;
    let (answer_ms, answered) = (asked.elapsed().as_secs_f64() * 1000.0, now());
    let drained_after_seconds = drained(broker, &options.pipes).await?;
    let ended = client.get(&job).await?;
    let mut starts = Starts::default();
    let mut worker_peak_memory_bytes = Vec::new();
    for worker in workers {
        let said = stop_worker(worker).await?;
        worker_peak_memory_bytes.push(said.peak_memory_bytes);
        for (time, count) in said.starts {
            *starts.entry(time).or_default() += count;
        }
    }
    let thirds = [
        memory.len() / 3,
        memory.len() * 2 / 3,
        memory.len().saturating_sub(1),
    ];
    Ok(CancelResult {
        items: options.items,
        job_status: ended.status,
        completed_items: ended.completed_items,
        answer_ms,
        started_before_answer: starts.range(..=answered).map(|(_, count)| count).sum(),
        started_after_answer: starts.range(answered + 1..).map(|(_, count)| count).sum(),
        last_start_after_answer_ms: starts
            .last_key_value()
            .map_or(0, |(time, _)| (time - answered).max(0)),
        drained_after_seconds,
        max_depth: options.max_depth,
        highest_depth,
        peak_memory_bytes: peak_memory_bytes(),
        worker_peak_memory_bytes,
        memory_bytes_by_third: (0..processes.len())
            .map(|process| {
                thirds.map(|at| {
                    memory
                        .get(at)
                        .map_or(0, |sample: &Vec<u64>| sample[process])
                })
            })
            .collect(),
        worker_processes: options.worker_processes,
        route: options.route.name().to_owned(),
    })
}

/// Waits until nothing is left; answers how long that took.
async fn drained(broker: &dyn Broker, pipes: &Pipes) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut empty_since: Option<Duration> = None;
    while began.elapsed() < DRAINED_WITHIN {
        let mut waiting = 0;
        for pipe in [&pipes.batch, &pipes.input, &pipes.tracking] {
            waiting += broker.depth(pipe).await?;
        }
        let since = if waiting > 0 {
            None
        } else {
            Some(empty_since.unwrap_or_else(|| began.elapsed()))
        };
        match since {
            Some(since) if began.elapsed() >= since + QUIET => return Ok(since.as_secs_f64()),
            since => empty_since = since,
        }
        tokio::time::sleep(LOOK / 4).await;
    }
    Ok(DRAINED_WITHIN.as_secs_f64())
}

// ---- the worker processes

/// How many items began at which time, in milliseconds since 1970.
type Starts = BTreeMap<i64, u64>;

/// What a worker process says when it has stopped.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    starts: Vec<(i64, u64)>,
    peak_memory_bytes: u64,
}

/// How the process of a worker is set up.
#[derive(Debug, Clone)]
pub struct PacedOptions {
    pub broker: String,
    pub input: String,
    pub route: Route,
    pub concurrency: usize,
    pub prefetch: u32,
    /// Items a second; as fast as it can when left out.
    pub rate: Option<f64>,
}

/// Runs a worker of no-ops until the process is asked to stop; then prints when it began how many, as one JSON object.
pub async fn run_paced_worker(options: &PacedOptions) -> anyhow::Result<()> {
    let broker: Arc<dyn Broker> = Arc::new(Amqp::connect(AmqpOptions::new(&options.broker))?);
    let settings = Settings {
        input: options.input.clone(),
        route: options.route,
        concurrency: options.concurrency,
        prefetch: options.prefetch,
        ..Settings::new("worker-bench")
    };
    let starts = Arc::<Mutex<Starts>>::default();
    let pace = options.rate.map(|rate| {
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::sync::Mutex::new(pace)
    });
    let worker = Paced {
        starts: Arc::clone(&starts),
        pace,
    };
    let stop = CancellationToken::new();
    let runtime = Runtime::new(settings, Arc::clone(&broker))
        .worker(worker)
        .run_until(stop.clone());
    let asked = async {
        stop_signal().await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(runtime, asked);
    ended?;
    broker.close().await;
    let starts = std::mem::take(&mut *starts.lock().unwrap_or_else(PoisonError::into_inner));
    println!(
        "{}",
        serde_json::to_string(&Said {
            starts: starts.into_iter().collect(),
            peak_memory_bytes: peak_memory_bytes()
        })?
    );
    Ok(())
}

fn start_worker(options: &CancelOptions) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args([
        "bench-worker",
        "--input",
        &options.pipes.input,
        "--route",
        options.route.name(),
    ]);
    command.args([
        "--concurrency",
        &options.concurrency.to_string(),
        "--prefetch",
        &options.prefetch.to_string(),
    ]);
    if let Some(rate) = options.rate {
        command.args([
            "--rate",
            &(rate / f64::from(options.worker_processes)).to_string(),
        ]);
    }
    // Not among the arguments: it may hold a password.
    command.env("BATCHWRIGHT_BROKER", &options.broker);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a worker process")
}

async fn stop_worker(worker: Child) -> anyhow::Result<Said> {
    let process = worker
        .id()
        .context("a worker process has ended before its time")?;
    let asked = Command::new("kill")
        .arg(process.to_string())
        .status()
        .await
        .context("cannot run kill")?;
    ensure!(
        asked.success(),
        "a worker process could not be asked to stop"
    );
    let output = worker.wait_with_output().await?;
    ensure!(
        output.status.success(),
        "a worker process has ended with {}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Does nothing, at a pace, and notes when.
struct Paced {
    starts: Arc<Mutex<Starts>>,
    pace: Option<tokio::sync::Mutex<tokio::time::Interval>>,
}

impl Worker for Paced {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        *self
            .starts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(now())
            .or_default() += 1;
        if let Some(pace) = &self.pace {
            pace.lock().await.tick().await;
        }
        Ok(Reply::none())
    }
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
