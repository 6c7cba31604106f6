//! Measurements of the whole system: jobs of no-ops, which tell what they saw and whether the counts were exact, and reads.
//!
//! One file a measurement; what they have in common is here. None of them judges a time.

mod cancelled_job;
mod many_jobs;
mod one_job;
mod reads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, RangeItem, TaskData};
use framework::{Context, Reply, Route, Settings, TaskError, Worker};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::watch::Show;
use crate::{Running, Stack, StackOptions};

pub use cancelled_job::{
    CancelOptions, CancelResult, PacedOptions, run as run_cancelled_job, run_paced_worker,
};
pub use many_jobs::{ManyJobsResult, run as run_many_jobs};
pub use one_job::{BenchResult, run as run_one_job};
pub use reads::{ReadTimes, ReadsOptions, ReadsResult, run as run_reads};

/// The item parameter that names the run.
const RUN: &str = "run";

/// The pipes of a measurement, by its name: it shares none with anybody else on the same broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipes {
    batch: String,
    tracking: String,
    input: String,
    output: String,
}

impl Pipes {
    pub fn of(name: &str) -> Self {
        let pipe = |what: &str| format!("{name}-{what}");
        Self {
            batch: pipe("batch-in"),
            tracking: pipe("jobtracking-in"),
            input: pipe("worker-in"),
            output: pipe("worker-out"),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Of each job.
    pub items: u64,
    pub pipes: Pipes,
    pub route: Route,
    /// Each item answers with a message; otherwise with a report alone.
    pub with_output: bool,
    pub database: Option<String>,
    pub broker: Option<String>,
    /// The folder of an embedded run; a temporary one when left out.
    pub data: Option<PathBuf>,
    pub concurrency: usize,
    pub prefetch: u32,
    pub show: Show,
}

/// Starts everything in this process, with a worker of no-ops and how often it has run. The folder is for the caller to keep.
async fn start(options: &BenchOptions) -> anyhow::Result<(Running, Arc<AtomicU64>, TempDir)> {
    ensure!(options.items > 0, "--items must be at least 1");
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let data = options
        .data
        .clone()
        .unwrap_or_else(|| temporary.path().to_owned());
    let stack_options = StackOptions {
        database: options.database.clone(),
        broker: options.broker.clone(),
        route: options.route,
        concurrency: options.concurrency,
        prefetch: options.prefetch,
        batch_pipe: options.pipes.batch.clone(),
        tracking_pipe: options.pipes.tracking.clone(),
        ..StackOptions::embedded(data)
    };
    let worker = NoOp {
        executed: Arc::default(),
        with_output: options.with_output,
    };
    let executed = Arc::clone(&worker.executed);
    let settings = Settings {
        input: options.pipes.input.clone(),
        output: Some(options.pipes.output.clone()),
        route: options.route,
        concurrency: options.concurrency,
        prefetch: options.prefetch,
        ..Settings::new("worker-bench")
    };
    let running = Stack::new(stack_options)
        .worker(settings, worker)
        .start()
        .await?;
    Ok((running, executed, temporary))
}

/// A job of this many no-ops; `outputs_of` names the run that its outputs are of, and without it there are none.
fn new_job(items: u64, pipes: &Pipes, outputs_of: Option<&str>) -> NewJob {
    let batch = BatchTask {
        batch_definition: Some(format!("1-{items}")),
        batch_type: Some("range".to_owned()),
        task_message_params: outputs_of
            .map(|run| BTreeMap::from([(RUN.to_owned(), run.to_owned())])),
        target_pipe: Some(pipes.input.clone()),
        ..BatchTask::default()
    };
    NewJob {
        task: Some(JobTask {
            task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
            task_api_version: Some(BatchTask::API_VERSION),
            task_data: serde_json::to_value(batch).ok(),
            task_pipe: Some(pipes.batch.clone()),
            target_pipe: outputs_of.map(|_| pipes.output.clone()),
            ..JobTask::default()
        }),
        ..NewJob::default()
    }
}

/// The most memory that this process ever had, as the operating system counts it; 0 where it does not tell.
fn peak_memory_bytes() -> u64 {
    memory_bytes("self", "VmHWM:")
}

/// A line of what the operating system tells of a process's memory.
fn memory_bytes(process: &str, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let value = status.lines().find_map(|text| text.strip_prefix(line));
    value
        .and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Does nothing, and counts how often.
struct NoOp {
    executed: Arc<AtomicU64>,
    with_output: bool,
}

#[derive(Serialize, Deserialize)]
struct Done {
    number: u64,
    #[serde(default)]
    params: BTreeMap<String, String>,
}

impl TaskData for Done {
    const CLASSIFIER: &'static str = "BenchResult";
    const API_VERSION: i32 = 1;
}

impl Worker for NoOp {
    type Input = RangeItem;
    type Output = Done;

    async fn run(&self, task: RangeItem, _: Context) -> Result<Reply<Done>, TaskError> {
        self.executed.fetch_add(1, Ordering::Relaxed);
        Ok(if self.with_output {
            Reply::send(Done {
                number: task.number,
                params: task.params,
            })
        } else {
            Reply::none()
        })
    }
}
