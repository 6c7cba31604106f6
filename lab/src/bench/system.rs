//! The code that the measurements share: the load, the system, its jobs and worker, and the memory
//! of a process.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use batchwright::{
    Role, Running, Stack, StackOptions,
    advanced::{BatchOptions, WorkerOptions},
};
use clap::{Args, ValueEnum};
use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, RangeItem, TaskData, TrackingShards};
use framework::broker::embedded::{EmbeddedOptions, UnreadBounds};
use framework::config::DEFAULT_BUNDLE;
use framework::config::Route;
use framework::{Context, OrFail, Reply, Settings, TaskError, Worker};
use job_service::ServiceOptions;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use batchwright_cli::{ServerArgs, Show};

/// The name of the worker that runs the items.
pub const WORKER: &str = "worker-bench";
/// The item parameter that names the job, so that outputs of an earlier run are not counted.
pub const RUN: &str = "run";
/// The item parameter of a job whose first item fails.
const FAILS: &str = "fails";
/// The item parameter that makes items larger.
const PAYLOAD: &str = "payload";

/// The items of each job, and how they travel and run.
#[derive(Debug, Clone, Args)]
pub struct Load {
    /// Number of items of each job.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub items: u64,
    /// Prefix of the names of the pipes; concurrent measurements on one broker need different ones.
    #[arg(long, default_value = "bench")]
    pub name: String,
    /// How tracked outputs travel: `direct` to their target, or `reroute` through the tracking
    /// worker.
    #[arg(long, default_value = "direct")]
    pub route: Route,
    /// Number of items that a worker process runs at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), value_name = "ITEMS")]
    pub concurrency: u32,
    /// Maximum number of unacknowledged deliveries of a worker process; by default it follows the
    /// time that items take and their size.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65535), value_name = "DELIVERIES")]
    pub prefetch: Option<u32>,
    /// Largest number of items in one message; with 1, each is a message of its own.
    #[arg(long, default_value_t = DEFAULT_BUNDLE, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "ITEMS")]
    pub bundle: u32,
    /// Number of shards of the tracking pipe, from 1 to 64, among which the jobs are spread.
    #[arg(long, default_value_t, value_name = "SHARDS")]
    pub tracking_shards: TrackingShards,
}

/// What the items are and do.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Tasks {
    /// Bytes of a text that each item carries, and its output.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub payload: usize,
    /// Time that an item takes: `5ms`, at random `1ms..20ms`, or `cpu:2ms` of a processor; nothing
    /// by default.
    #[arg(long, default_value = "0ms", value_name = "TIME")]
    pub work: Work,
    /// Maximum number of parts of one split.
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..=1_000_000), value_name = "PARTS")]
    pub max_parts: Option<u32>,
}

/// How long an item takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    least: Duration,
    most: Duration,
    /// Whether it needs a processor all the while.
    computes: bool,
}

/// The pipes of a measurement. Nothing else on the broker uses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipes {
    pub batch: String,
    pub tracking: String,
    pub input: String,
    pub output: String,
}

/// A part of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Runs the items.
    Worker,
    BatchWorker,
    TrackingWorker,
}

/// A part, and how many processes of it there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    pub part: Part,
    pub number: u32,
}

impl FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(part, number)| {
            let number = number
                .parse()
                .ok()
                .filter(|number| (1..=64).contains(number))?;
            let part = Part::from_str(part, false).ok()?;
            Some(Self { part, number })
        });
        parsed.ok_or_else(|| {
            format!("{text:?} is not a part and a number from 1 to 64; expected e.g. worker=2, batch-worker=1 or tracking-worker=2")
        })
    }
}

/// Where a measurement runs.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// Folder of the embedded broker and database; by default a temporary one.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub servers: ServerArgs,
}

/// The settings of a measurement that runs whole jobs in this process.
#[derive(Debug, Clone, Args)]
pub struct JobOptions {
    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub tasks: Tasks,
    #[command(flatten)]
    pub place: Place,
    /// Whether each item sends an output in addition to its report.
    #[arg(skip = true)]
    pub with_output: bool,
    /// The items of a job before the measured one, so that connections and buffers are there as in
    /// a process that has run for a while; 0 for no such job.
    #[arg(skip)]
    pub warm_up: u64,
    #[arg(skip = Show::Nothing)]
    pub show: Show,
    /// The parts that run in processes of their own.
    #[arg(skip)]
    pub processes: Vec<Processes>,
    /// This process is one of a part, and runs nothing else.
    #[arg(skip)]
    pub only: Option<Part>,
    /// The shards that its tracking worker reads; if there are none here, all.
    #[arg(skip)]
    pub shards: Vec<u32>,
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
                bundle: self.bundle,
                ..embedded.workers
            },
            batch: BatchOptions {
                input: pipes.batch,
                ..embedded.batch
            },
            service: ServiceOptions {
                tracking_pipe: pipes.tracking,
                tracking_shards: self.tracking_shards,
                ..embedded.service
            },
            ..embedded
        }
    }

    /// Returns a job of items that do nothing. With `outputs_of`, each item sends an output that
    /// names this run.
    pub fn new_job(&self, outputs_of: Option<&str>) -> NewJob {
        self.job_of(outputs_of, 0)
    }

    fn job_of(&self, outputs_of: Option<&str>, payload: usize) -> NewJob {
        let pipes = self.pipes();
        let params = item_params(outputs_of, payload);
        let batch = BatchTask {
            batch_definition: Some(format!("1-{}", self.items)),
            batch_type: Some("range".to_owned()),
            task_message_params: (!params.is_empty()).then_some(params),
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
    /// Returns a job of these items. `run` names it in its outputs, if it has any.
    pub fn new_job(&self, run: &str) -> NewJob {
        let outputs_of = self.with_output.then_some(run);
        self.load.job_of(outputs_of, self.tasks.payload)
    }

    /// Returns the same job, but its first item fails.
    pub fn new_failing_job(&self, run: &str) -> NewJob {
        let mut job = self.new_job(run);
        let data = job.task.as_mut().and_then(|task| task.task_data.as_mut());
        if let Some(data) = data {
            data["taskMessageParams"][FAILS] = "yes".into();
        }
        job
    }

    /// Returns the options of the job before the measured one.
    pub fn of_warm_up(&self) -> Self {
        Self {
            load: Load {
                items: self.warm_up,
                ..self.load.clone()
            },
            ..self.clone()
        }
    }

    /// Returns whether messages that are not worked off stay after the end of the process.
    pub const fn leaves_messages(&self) -> bool {
        self.place.servers.broker.is_some() || self.place.data.is_some()
    }

    /// Returns whether a part runs in this process.
    fn runs_part(&self, part: Part) -> bool {
        match self.only {
            Some(only) => only == part,
            None => self.processes.iter().all(|other| other.part != part),
        }
    }

    fn runs(&self, role: Role) -> bool {
        let part = Part::value_variants()
            .iter()
            .find(|part| part.role() == Some(role));
        part.map_or(self.only.is_none(), |part| self.runs_part(*part))
    }

    /// Starts the system and its worker, as far as they run in this process. Returns an error if
    /// messages already wait in its pipes.
    pub async fn start(&self) -> anyhow::Result<System> {
        let folder = temporary_folder()?;
        let Place { data, servers } = &self.place;
        let data = data.clone().unwrap_or_else(|| folder.path().to_owned());
        let tls = servers.tls.load()?;
        let concurrency = usize::try_from(self.load.concurrency)?;
        let mut options = StackOptions {
            database: servers.database.clone(),
            broker: servers.broker.clone(),
            tls: tls.clone(),
            tracked_shards: self.shards.clone(),
            ..self.load.stack(data)
        };
        options.roles.retain(|role| self.runs(*role));
        if let Some(parts) = self.tasks.max_parts {
            options.batch.max_parts = usize::try_from(parts)?;
        }
        if self.only.is_none() && self.leaves_messages() {
            Box::pin(self.load.refuse_leftovers(options.clone())).await?;
        }
        let pipes = self.load.pipes();
        let settings = Settings {
            input: pipes.input,
            output: Some(pipes.output),
            route: self.load.route,
            tls,
            concurrency,
            prefetch: self.load.prefetch,
            bundle: self.load.bundle,
            ..Settings::new(WORKER)
        };
        let worker = NoOp {
            executed: Arc::default(),
            with_output: self.with_output,
            work: self.tasks.work,
        };
        let executed = Arc::clone(&worker.executed);
        let mut stack = Stack::new(options);
        if self.runs_part(Part::Worker) {
            stack = stack.worker(settings, worker);
        }
        let running = Box::pin(stack.start()).await?;
        Ok(System {
            running,
            executed,
            _folder: folder,
        })
    }
}

impl System {
    /// Returns how many items and splits this process has done, and how many reports it has
    /// recorded.
    pub fn counted(&self) -> [u64; 3] {
        let counts = [
            &*self.executed,
            self.running.splits(),
            self.running.reports(),
        ];
        counts.map(|count| count.load(Ordering::Relaxed))
    }
}

/// Creates the folder of an embedded system.
pub fn temporary_folder() -> anyhow::Result<TempDir> {
    tempfile::tempdir().context("cannot create a temporary folder")
}

/// Returns the peak resident memory of this process in bytes; 0 if the operating system does not
/// report it.
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

impl Work {
    /// Takes the time of the item with this number, the same each time.
    async fn of(self, number: u64) -> Result<(), TaskError> {
        let time = self.time(number);
        if time.is_zero() {
            return Ok(());
        }
        if !self.computes {
            tokio::time::sleep(time).await;
            return Ok(());
        }
        let computed = tokio::task::spawn_blocking(move || compute(time)).await;
        computed.map_err(|error| TaskError::retry(error.to_string()))
    }

    /// Returns the longest time of an item.
    pub const fn longest(self) -> Duration {
        self.most
    }

    fn time(self, number: u64) -> Duration {
        let span = self.most.saturating_sub(self.least);
        // A multiplicative hash: neighbours get unlike times.
        let share = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        self.least + span.mul_f64(f64::from(share) / f64::from(u32::MAX))
    }
}

/// Keeps a processor busy until this thread has had it for this time.
fn compute(time: Duration) {
    let end = thread_time() + time;
    while thread_time() < end {
        std::hint::spin_loop();
    }
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time; expected e.g. 5ms, 1ms..20ms or cpu:2ms");
        let (computes, times) = match text.strip_prefix("cpu:") {
            Some(times) => (true, times),
            None => (false, text),
        };
        let millis = |text: &str| {
            let millis: f64 = text.strip_suffix("ms")?.parse().ok()?;
            Duration::try_from_secs_f64(millis / 1000.0).ok()
        };
        let (least, most) = times.split_once("..").unwrap_or((times, times));
        let (least, most) = millis(least).zip(millis(most)).ok_or_else(wrong)?;
        if least > most {
            return Err(wrong());
        }
        Ok(Self {
            least,
            most,
            computes,
        })
    }
}

/// A worker that counts its items, and does nothing else unless they take time.
struct NoOp {
    executed: Arc<AtomicU64>,
    with_output: bool,
    work: Work,
}

/// Returns the parameters of an item that sends an output of this run, if it sends one, and that
/// carries so many bytes.
pub fn item_params(outputs_of: Option<&str>, payload: usize) -> BTreeMap<String, String> {
    let run = outputs_of.map(|run| (RUN.to_owned(), run.to_owned()));
    let payload = (payload > 0).then(|| (PAYLOAD.to_owned(), "x".repeat(payload)));
    run.into_iter().chain(payload).collect()
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
        self.work.of(task.number).await?;
        if task.number == 1 && task.params.contains_key(FAILS) {
            Err::<(), _>(io::Error::other("the job is to fail")).or_fail()?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_work_takes_its_time_of_the_processor() {
        let (began, time) = (thread_time(), Duration::from_millis(3));
        compute(time);
        assert!(thread_time() >= began + time);
    }

    #[test]
    fn time_of_an_item_is_fixed_random_within_bounds_or_computed() {
        let ms = Duration::from_millis;
        let parse = |text: &str| text.parse::<Work>();
        assert_eq!(parse("5ms").unwrap().time(3), ms(5));
        let random = parse("1ms..20ms").unwrap();
        let times: Vec<_> = (0..1000).map(|number| random.time(number)).collect();
        assert!(times.iter().all(|time| (ms(1)..=ms(20)).contains(time)));
        let long = times.iter().filter(|time| **time > ms(10)).count();
        assert!((400..650).contains(&long), "{long}");
        assert!(parse("cpu:2ms").unwrap().computes);
        for wrong in ["5", "ms", "3ms..2ms", "cpu:", "-1ms", "5 s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
