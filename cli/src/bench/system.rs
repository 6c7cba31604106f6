//! The code that the measurements share: the load, the system, its jobs and worker, and the memory of a process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use batchwright::{BatchOptions, Running, Stack, StackOptions, WorkerOptions};
use clap::Args;
use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, RangeItem, TaskData};
use framework::broker::embedded::{EmbeddedOptions, UnreadBounds};
use framework::config::Route;
use framework::tls::Tls;
use framework::{Context, Reply, Settings, TaskError, Worker};
use job_service::ServiceOptions;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::watch::Show;

/// The name of the worker that runs the items.
pub const WORKER: &str = "worker-bench";
/// The item parameter that names the job, so that outputs of an earlier run are not counted.
pub const RUN: &str = "run";

/// The items of each job, and how they travel and run.
#[derive(Debug, Clone, Args)]
pub struct Load {
    /// Number of items of each job.
    #[arg(long, default_value_t = 100_000)]
    pub items: u64,
    /// Prefix of the names of the pipes; concurrent measurements on one broker need different ones.
    #[arg(long, default_value = "bench")]
    pub name: String,
    /// How tracked outputs travel: `direct` to their target, or `reroute` through the tracking worker.
    #[arg(long, default_value = "direct")]
    pub route: Route,
    /// Number of items that a worker process runs at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), value_name = "ITEMS")]
    pub concurrency: u32,
    /// Maximum number of unacknowledged deliveries of a worker process; by default it follows the time that items take.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65535), value_name = "DELIVERIES")]
    pub prefetch: Option<u32>,
}

/// The pipes of a measurement. Nothing else on the broker uses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipes {
    pub batch: String,
    pub tracking: String,
    pub input: String,
    pub output: String,
}

/// The settings of a measurement that runs whole jobs in this process.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub load: Load,
    /// Whether each item sends an output in addition to its report.
    pub with_output: bool,
    pub database: Option<String>,
    pub broker: Option<String>,
    pub tls: Tls,
    /// The folder of the embedded broker and store; a temporary one if `None`.
    pub data: Option<PathBuf>,
    pub show: Show,
}

/// A started system with a worker that does nothing.
pub struct System {
    pub running: Running,
    /// How many items the worker has run.
    pub executed: Arc<AtomicU64>,
    /// Removes the embedded state when it is dropped.
    _folder: TempDir,
}

impl Load {
    /// Returns the pipes of this measurement.
    pub fn pipes(&self) -> Pipes {
        let pipe = |suffix: &str| format!("{}-{suffix}", self.name);
        Pipes {
            batch: pipe("batch-in"),
            tracking: pipe("jobtracking-in"),
            input: pipe("worker-in"),
            output: pipe("worker-out"),
        }
    }

    /// Returns an error if the jobs would have no items.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.items > 0, "--items must be at least 1");
        Ok(())
    }

    /// Returns the options of an embedded system with these pipes.
    pub fn stack(&self, data: impl Into<PathBuf>) -> StackOptions {
        let (pipes, embedded) = (self.pipes(), StackOptions::embedded(data));
        StackOptions {
            // All outputs are counted at the end.
            embedded: EmbeddedOptions {
                unread: UnreadBounds::NONE,
                ..embedded.embedded
            },
            workers: WorkerOptions {
                route: self.route,
                ..embedded.workers
            },
            batch: BatchOptions {
                input: pipes.batch,
                ..embedded.batch
            },
            service: ServiceOptions {
                tracking_pipe: pipes.tracking,
                ..embedded.service
            },
            ..embedded
        }
    }

    /// Returns a job of items that do nothing. With `outputs_of`, each item sends an output that names this run.
    pub fn new_job(&self, outputs_of: Option<&str>) -> NewJob {
        let pipes = self.pipes();
        let batch = BatchTask {
            batch_definition: Some(format!("1-{}", self.items)),
            batch_type: Some("range".to_owned()),
            task_message_params: outputs_of
                .map(|run| BTreeMap::from([(RUN.to_owned(), run.to_owned())])),
            target_pipe: Some(pipes.input),
            ..BatchTask::default()
        };
        NewJob {
            task: Some(JobTask {
                task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
                task_api_version: Some(BatchTask::API_VERSION),
                task_data: serde_json::to_value(batch).ok(),
                task_pipe: Some(pipes.batch),
                target_pipe: outputs_of.map(|_| pipes.output),
                ..JobTask::default()
            }),
            ..NewJob::default()
        }
    }
}

impl JobOptions {
    /// Starts the system and its worker in this process.
    pub async fn start(&self) -> anyhow::Result<System> {
        self.load.check()?;
        let folder = temporary_folder()?;
        let data = self
            .data
            .clone()
            .unwrap_or_else(|| folder.path().to_owned());
        let concurrency = usize::try_from(self.load.concurrency)?;
        let options = StackOptions {
            database: self.database.clone(),
            broker: self.broker.clone(),
            tls: self.tls.clone(),
            ..self.load.stack(data)
        };
        let pipes = self.load.pipes();
        let settings = Settings {
            input: pipes.input,
            output: Some(pipes.output),
            route: self.load.route,
            tls: self.tls.clone(),
            concurrency,
            prefetch: self.load.prefetch,
            ..Settings::new(WORKER)
        };
        let worker = NoOp {
            executed: Arc::default(),
            with_output: self.with_output,
        };
        let executed = Arc::clone(&worker.executed);
        let running = Stack::new(options).worker(settings, worker).start().await?;
        Ok(System {
            running,
            executed,
            _folder: folder,
        })
    }
}

/// Creates the folder of an embedded system.
pub fn temporary_folder() -> anyhow::Result<TempDir> {
    tempfile::tempdir().context("cannot create a temporary folder")
}

/// Returns the peak resident memory of this process in bytes; 0 if the operating system does not report it.
pub fn peak_memory_bytes() -> u64 {
    memory_bytes("self", "VmHWM:")
}

/// Returns a field of `/proc/PROCESS/status` in bytes; 0 if it is missing.
pub fn memory_bytes(process: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let value = status.lines().find_map(|text| text.strip_prefix(field));
    value
        .and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// A worker that counts its items and does nothing else.
struct NoOp {
    executed: Arc<AtomicU64>,
    with_output: bool,
}

/// The output of an item.
#[derive(Serialize, Deserialize)]
pub struct ItemOutput {
    pub number: u64,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
}

impl TaskData for ItemOutput {
    const CLASSIFIER: &'static str = "BenchResult";
    const API_VERSION: i32 = 1;
}

impl Worker for NoOp {
    type Input = RangeItem;
    type Output = ItemOutput;

    async fn run(&self, task: RangeItem, _: Context) -> Result<Reply<ItemOutput>, TaskError> {
        self.executed.fetch_add(1, Ordering::Relaxed);
        Ok(if self.with_output {
            Reply::send(ItemOutput {
                number: task.number,
                params: task.params,
            })
        } else {
            Reply::none()
        })
    }
}
