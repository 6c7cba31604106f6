//! One job from its creation to its end: times, table sizes, and whether every item and output was
//! counted.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use batchwright::Running;
use contract::JobStatus;
use contract::rest::{Items, Job};
use serde::Serialize;
use store::TaskTableSize;

use super::patience::Patience;
use super::run::{Run, RunResult};
use super::system::JobOptions;

/// The time between two samples of the task table.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OneJobResult {
    pub items: u64,
    /// Counted by the job service.
    pub completed_items: i64,
    pub job_status: JobStatus,
    /// The number of all items, as the job service tells it.
    pub total_items: Option<i64>,
    /// The progress over the items, in percent, as the job service tells it.
    pub progress: Option<f64>,
    /// The items per second that the job service tells: from the first report that it has counted.
    pub told_items_per_second: Option<f64>,
    /// The highest sampled number of rows in the task table.
    pub task_table_rows: u64,
    /// The highest sampled size of the task table.
    pub task_table_bytes: u64,
    /// How often the client saw the percentage rise.
    pub progress_steps: u64,
    /// Whether the client saw the percentage fall or exceed 100.
    pub progress_fell: bool,
    #[serde(flatten)]
    pub run: RunResult,
}

impl OneJobResult {
    /// Returns whether all items of the job, and no others, were counted, and every output was
    /// sent.
    pub fn is_exact(&self, with_output: bool) -> bool {
        self.job_status == JobStatus::Completed
            && i64::try_from(self.items) == Ok(self.completed_items)
            && self.total_items == Some(self.completed_items)
            && self.progress == Some(100.0)
            && self.run.executed_items >= self.items
            && !self.progress_fell
            && (!with_output || self.run.outputs == self.items)
    }
}

/// Runs one job.
pub async fn run(options: &JobOptions) -> anyhow::Result<OneJobResult> {
    Run::measure(options, async |run| {
        if options.warm_up > 0 {
            let (ended, _) = run_to_its_end(&options.of_warm_up(), run, "warm-up", "").await?;
            ensure!(
                ended.status == JobStatus::Completed,
                "the job before the measured one is {}",
                ended.status
            );
        }
        let begin = run.begin();
        let (ended, seen) = run_to_its_end(options, run, "1", &run.name).await?;
        let measured = run.end(begin, 1).await?;
        let completed = u64::try_from(ended.completed_items)?;
        Ok(OneJobResult {
            items: options.load.items,
            completed_items: ended.completed_items,
            job_status: ended.status,
            total_items: ended.items.total,
            progress: ended.progress,
            told_items_per_second: ended.items_per_second,
            task_table_rows: seen.table.rows,
            task_table_bytes: seen.table.bytes,
            progress_steps: seen.progress.steps,
            progress_fell: seen.progress.fell,
            run: RunResult {
                items_per_second: measured.per_second(completed),
                outputs: run.outputs(1).await?,
                ..measured
            },
        })
    })
    .await
}

/// Creates a job, whose outputs have a name, and follows it. Returns how it ended.
async fn run_to_its_end(
    options: &JobOptions,
    run: &Run<'_>,
    job: &str,
    name: &str,
) -> anyhow::Result<(Job, Seen)> {
    let (client, running) = (&run.client, &run.system.running);
    let (mut progress, mut table) = (Progress::default(), TaskTableSize::default());
    let mut patience = Patience::new(options.tasks.work.longest());
    let states = Cell::new(0_u64);
    client.put(job, &options.new_job(name)).await?;
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
                    if patience.ends((states.get(), run.system.counted())) {
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
