//! One job from its creation to its end: times, table sizes, and whether every item and output was
//! counted.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batchwright::Running;
use batchwright::client::Client;
use contract::JobStatus;
use contract::rest::{Items, Job};
use serde::Serialize;
use store::TaskTableSize;

use super::ending::{clear, is_stopped, unless_stopped};
use super::item_outputs::Expected;
use super::parts::{self, PartProcess, PartResult};
use super::patience::Patience;
use super::system::{JobOptions, System, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter};

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
    /// Returns whether all items of the job, and no others, were counted, and every output was
    /// sent.
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
    let system = unless_stopped(options.start()).await?;
    let client = Client::new(&system.running.api_url(), "bench");
    let job = uuid::Uuid::new_v4().simple().to_string();
    let mut parts = Vec::new();
    let measured = unless_stopped(async {
        parts = parts::start(options).await?;
        measure(options, &system, (&client, &job), &mut parts).await
    });
    let measured = Box::pin(measured).await;
    if is_stopped(&measured) && options.leaves_messages() {
        let cancel = async {
            // Only one of them runs.
            let warm_up = client.cancel(&warm_up_of(&job)).await;
            client.cancel(&job).await.or(warm_up)
        };
        clear(&options.load, &system.running, cancel).await;
    }
    drop(parts);
    system.running.stop().await;
    measured
}

async fn measure(
    options: &JobOptions,
    system: &System,
    (client, job): (&Client, &str),
    parts: &mut Vec<PartProcess>,
) -> anyhow::Result<OneJobResult> {
    let (load, running) = (&options.load, &system.running);
    // Outputs go in bundles only to readers that are there.
    let reads_early = options.with_output && load.bundle > 1;
    let early = if reads_early {
        Some(load.outputs(running).await?)
    } else {
        None
    };
    if options.warm_up > 0 {
        let (warm_up, name) = (options.of_warm_up(), warm_up_of(job));
        let (ended, _) = run_to_its_end(&warm_up, system, (client, &name)).await?;
        ensure!(
            ended.status == JobStatus::Completed,
            "the job before the measured one is {}",
            ended.status
        );
    }
    let before = system.counted();
    let meter = Meter::begin(options.broker.as_deref(), options.database.as_deref());
    let began = Instant::now();
    let (ended, seen) = run_to_its_end(options, system, (client, job)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_us_per_item = meter.per_item(load.items);
    let counted = system.counted();
    let [executed, splits, reports] = std::array::from_fn(|of| counted[of] - before[of]);
    let (processes, elsewhere) = parts::stop(std::mem::take(parts), load.items).await?;
    let outputs = if options.with_output {
        let outputs = match early {
            Some(outputs) => outputs,
            None => load.outputs(running).await?,
        };
        let expected = Expected {
            run: job,
            jobs: 1,
            items_per_job: load.items,
        };
        expected.count(outputs).await?
    } else {
        0
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let items_per_second = ended.completed_items as f64 / seconds;
    Ok(OneJobResult {
        items: load.items,
        completed_items: ended.completed_items,
        executed_items: executed + elsewhere.executed,
        job_status: ended.status,
        total_items: ended.items.total,
        progress: ended.progress,
        told_items_per_second: ended.items_per_second,
        seconds,
        items_per_second,
        reports: reports + elsewhere.reports,
        task_table_rows: seen.table.rows,
        task_table_bytes: seen.table.bytes,
        split_nodes: splits + elsewhere.splits,
        outputs,
        progress_steps: seen.progress.steps,
        progress_fell: seen.progress.fell,
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

/// Returns the name of the job before this one.
fn warm_up_of(job: &str) -> String {
    format!("warm-up-{job}")
}

/// Creates a job and follows it. Returns how it ended.
async fn run_to_its_end(
    options: &JobOptions,
    system: &System,
    (client, job): (&Client, &str),
) -> anyhow::Result<(Job, Seen)> {
    let running = &system.running;
    let (mut progress, mut table) = (Progress::default(), TaskTableSize::default());
    let mut patience = Patience::new(options.tasks.work.longest());
    let states = Cell::new(0_u64);
    client.put(job, &options.new_job(job)).await?;
    let ended = {
        let follow = batchwright_cli::follow(client, job, options.show, |state| {
            states.set(states.get() + u64::from(progress.see(state)));
        });
        tokio::pin!(follow);
        loop {
            tokio::select! {
                ended = &mut follow => break ended?,
                () = tokio::time::sleep(SAMPLE_INTERVAL) => {
                    table = max(table, table_size(running).await?);
                    if patience.ends((states.get(), system.counted())) {
                        let (broker, pipes) = (&**running.broker(), options.load.all_pipes());
                        return Err(patience.error("the job", broker, &pipes).await);
                    }
                }
            }
        }
    };
    Ok((ended, Seen { progress, table }))
}

/// What was seen of a job while it ran.
struct Seen {
    progress: Progress,
    /// The highest sampled numbers.
    table: TaskTableSize,
}

/// How the job changed.
#[derive(Default)]
struct Progress {
    percentage: f64,
    steps: u64,
    fell: bool,
    items: Items,
}

impl Progress {
    /// Notes a state. Returns whether more items are known or done than before.
    fn see(&mut self, job: &Job) -> bool {
        self.steps += u64::from(job.percentage_complete > self.percentage);
        self.fell |= job.percentage_complete < self.percentage || job.percentage_complete > 100.0;
        self.percentage = job.percentage_complete;
        let is_further = self.items != job.items;
        self.items.clone_from(&job.items);
        is_further
    }
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
