//! One job from its creation to its end: times, table sizes, and whether every item and output was counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use batchwright::Running;
use batchwright::client::Client;
use contract::JobStatus;
use contract::rest::Job;
use framework::{Outputs, Runtime, Settings};
use serde::Serialize;
use store::TaskTableSize;

use super::parts::{self, PartProcess, PartResult};
use super::system::{ItemOutput, JobOptions, RUN, System, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter};
use crate::watch;

/// The time between two samples of the task table.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OneJobResult {
    pub items: u64,
    /// Counted by the job service.
    pub completed_items: i64,
    /// Counted by the worker; larger than `items` if some ran twice.
    pub executed_items: u64,
    pub job_status: JobStatus,
    /// The number of all items, as the job service tells it.
    pub total_items: Option<i64>,
    /// The progress over the items, in percent, as the job service tells it.
    pub progress: Option<f64>,
    /// The items per second that the job service tells: from the first report that it has counted.
    pub told_items_per_second: Option<f64>,
    /// The time from the request that creates the job until the client sees that it is finished.
    pub seconds: f64,
    pub items_per_second: f64,
    /// Recorded by the tracking worker.
    pub reports: u64,
    /// The highest sampled number of rows in the task table.
    pub task_table_rows: u64,
    /// The highest sampled size of the task table.
    pub task_table_bytes: u64,
    pub split_nodes: u64,
    /// The number of distinct outputs in the output pipe.
    pub outputs: u64,
    /// How often the client saw the percentage rise.
    pub progress_steps: u64,
    /// Whether the client saw the percentage fall or exceed 100.
    pub progress_fell: bool,
    /// From the request that creates the job to its end.
    pub cpu_us_per_item: CpuPerItem,
    /// The parts that ran in processes of their own.
    pub processes: Vec<PartResult>,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

impl OneJobResult {
    /// Returns whether all items of the job, and no others, were counted, and every output was sent.
    pub fn is_exact(&self, with_output: bool) -> bool {
        self.job_status == JobStatus::Completed
            && i64::try_from(self.items) == Ok(self.completed_items)
            && self.total_items == Some(self.completed_items)
            && self.progress == Some(100.0)
            && self.executed_items >= self.items
            && !self.progress_fell
            && (!with_output || self.outputs == self.items)
    }
}

/// Runs one job.
pub async fn run(options: &JobOptions) -> anyhow::Result<OneJobResult> {
    let system = options.start().await?;
    let parts = parts::start(options).await;
    let measured = match parts {
        Ok(parts) => measure(options, &system, parts).await,
        Err(error) => Err(error),
    };
    system.running.stop().await;
    measured
}

async fn measure(
    options: &JobOptions,
    system: &System,
    parts: Vec<PartProcess>,
) -> anyhow::Result<OneJobResult> {
    let (load, running) = (&options.load, &system.running);
    let client = Client::new(&running.api_url(), "bench");
    let job = uuid::Uuid::new_v4().simple().to_string();
    let mut progress = Progress::default();
    let mut highest = TaskTableSize::default();
    // Outputs go in bundles only to readers that are there.
    let reads_early = options.with_output && load.bundle > 1;
    let early = if reads_early {
        Some(options.outputs(running).await?)
    } else {
        None
    };
    let meter = Meter::begin(options.broker.as_deref(), options.database.as_deref());
    let began = Instant::now();
    client.put(&job, &options.new_job(&job)).await?;
    let ended = {
        let follow = watch::follow(&client, &job, options.show, |state| progress.see(state));
        tokio::pin!(follow);
        loop {
            tokio::select! {
                ended = &mut follow => break ended?,
                () = tokio::time::sleep(SAMPLE_INTERVAL) => highest = max(highest, table_size(running).await?),
            }
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let cpu_us_per_item = meter.per_item(load.items);
    let (processes, elsewhere) = parts::stop(parts, load.items).await?;
    let outputs = if options.with_output {
        let outputs = match early {
            Some(outputs) => outputs,
            None => options.outputs(running).await?,
        };
        count_outputs(outputs, &job, load.items).await?
    } else {
        0
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let items_per_second = ended.completed_items as f64 / seconds;
    Ok(OneJobResult {
        items: load.items,
        completed_items: ended.completed_items,
        executed_items: system.executed.load(Ordering::Relaxed) + elsewhere.executed,
        job_status: ended.status,
        total_items: ended.items.total,
        progress: ended.progress,
        told_items_per_second: ended.items_per_second,
        seconds,
        items_per_second,
        reports: running.reports().load(Ordering::Relaxed) + elsewhere.reports,
        task_table_rows: highest.rows,
        task_table_bytes: highest.bytes,
        split_nodes: running.splits().load(Ordering::Relaxed) + elsewhere.splits,
        outputs,
        progress_steps: progress.steps,
        progress_fell: progress.fell,
        cpu_us_per_item,
        processes,
        peak_memory_bytes: peak_memory_bytes(),
        route: load.route.name().to_owned(),
        broker: running.broker().kind().to_owned(),
        store: running
            .store()
            .map(|store| store.kind().to_owned())
            .unwrap_or_default(),
    })
}

/// How the percentage of the job changed.
#[derive(Default)]
struct Progress {
    percentage: f64,
    steps: u64,
    fell: bool,
}

impl Progress {
    fn see(&mut self, job: &Job) {
        self.steps += u64::from(job.percentage_complete > self.percentage);
        self.fell |= job.percentage_complete < self.percentage || job.percentage_complete > 100.0;
        self.percentage = job.percentage_complete;
    }
}

impl JobOptions {
    /// Begins to read the outputs of the items.
    async fn outputs(&self, running: &Running) -> anyhow::Result<Outputs<ItemOutput>> {
        let settings = Settings {
            input: self.load.pipes().output,
            prefetch: Some(2000),
            bundle: self.load.bundle,
            ..Settings::new("bench-outputs")
        };
        let runtime = Runtime::new(settings, Arc::clone(running.broker()));
        Ok(runtime.outputs().await?)
    }
}

/// Empties the output pipe and returns the number of distinct outputs of this job.
async fn count_outputs(
    mut outputs: Outputs<ItemOutput>,
    job: &str,
    items: u64,
) -> anyhow::Result<u64> {
    let mut seen = vec![false; usize::try_from(items)? + 1];
    let mut found = 0;
    while found < items {
        let next = tokio::time::timeout(Duration::from_secs(20), outputs.next()).await;
        let Ok(Some(output)) = next.unwrap_or(Ok(None)) else {
            break;
        };
        let Ok(output) = output.take() else {
            continue;
        };
        // The pipe may still hold outputs of an earlier run that was interrupted.
        if output.params.get(RUN).is_some_and(|run| run == job) {
            match seen.get_mut(usize::try_from(output.number)?) {
                Some(seen) => found += u64::from(!std::mem::replace(seen, true)),
                None => bail!(
                    "the output of number {} is not of any item of the job",
                    output.number
                ),
            }
        }
    }
    outputs.close().await;
    Ok(found)
}

async fn table_size(running: &Running) -> anyhow::Result<TaskTableSize> {
    let store = running.store().context("the system has no store")?;
    Ok(store.task_table_size().await?)
}

fn max(a: TaskTableSize, b: TaskTableSize) -> TaskTableSize {
    TaskTableSize {
        tables: a.tables.max(b.tables),
        rows: a.rows.max(b.rows),
        bytes: a.bytes.max(b.bytes),
    }
}
