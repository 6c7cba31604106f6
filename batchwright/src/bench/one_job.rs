//! One no-op job through the whole system, and what it took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use contract::{JobStatus, TaskMessage};
use framework::broker::Broker;
use serde::{Deserialize, Serialize};
use store::TaskTableSize;

use super::{BenchOptions, Done, RUN, new_job, peak_memory_bytes, start};
use crate::Running;
use crate::client::Client;
use crate::watch;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    pub items: u64,
    /// From the API.
    pub completed_items: i64,
    /// Counted by the worker: more than `items` when some ran twice.
    pub executed_items: u64,
    pub job_status: JobStatus,
    /// From the request that creates the job to the answer that it has ended.
    pub seconds: f64,
    pub items_per_second: f64,
    /// Counted in by the tracking worker.
    pub reports: u64,
    /// The most rows at any time.
    pub task_table_rows: u64,
    /// The most bytes at any time.
    pub task_table_bytes: u64,
    pub split_nodes: u64,
    /// Different results in the output pipe.
    pub outputs: u64,
    /// Changes of the percentage that were seen, and whether it ever fell.
    pub progress_steps: u64,
    pub progress_fell: bool,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

impl BenchResult {
    /// Whether exactly the items of the job were counted, and each result is there.
    pub fn is_exact(&self, with_output: bool) -> bool {
        self.job_status == JobStatus::Completed
            && i64::try_from(self.items) == Ok(self.completed_items)
            && self.executed_items >= self.items
            && !self.progress_fell
            && (!with_output || self.outputs == self.items)
    }
}

/// Runs one job of no-ops through the whole system.
pub async fn run(options: &BenchOptions) -> anyhow::Result<BenchResult> {
    let (running, executed, _temporary) = start(options).await?;
    let measured = measure(options, &running, &executed).await;
    running.stop().await;
    measured
}

async fn measure(
    options: &BenchOptions,
    running: &Running,
    executed: &AtomicU64,
) -> anyhow::Result<BenchResult> {
    let client = Client::new(&running.api_url(), "bench")?;
    let job = uuid::Uuid::new_v4().simple().to_string();
    let mut highest = TaskTableSize::default();
    let (mut percentage, mut progress_steps, mut progress_fell) = (0.0, 0, false);
    let began = Instant::now();
    client
        .put(
            &job,
            &new_job(
                options.items,
                &options.pipes,
                options.with_output.then_some(job.as_str()),
            ),
        )
        .await?;
    let ended = {
        let follow = watch::follow(&client, &job, options.show, |state| {
            progress_steps += u64::from(state.percentage_complete > percentage);
            progress_fell |=
                state.percentage_complete < percentage || state.percentage_complete > 100.0;
            percentage = state.percentage_complete;
        });
        tokio::pin!(follow);
        loop {
            tokio::select! {
                ended = &mut follow => break ended?,
                () = tokio::time::sleep(Duration::from_millis(100)) => highest = larger(highest, table_size(running).await?),
            }
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let outputs = if options.with_output {
        drain(
            &**running.broker(),
            &options.pipes.output,
            &job,
            options.items,
        )
        .await?
    } else {
        0
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let items_per_second = ended.completed_items as f64 / seconds;
    Ok(BenchResult {
        items: options.items,
        completed_items: ended.completed_items,
        executed_items: executed.load(Ordering::Relaxed),
        job_status: ended.status,
        seconds,
        items_per_second,
        reports: running.reports().load(Ordering::Relaxed),
        task_table_rows: highest.rows,
        task_table_bytes: highest.bytes,
        split_nodes: running.splits().load(Ordering::Relaxed),
        outputs,
        progress_steps,
        progress_fell,
        peak_memory_bytes: peak_memory_bytes(),
        route: options.route.name().to_owned(),
        broker: running.broker().kind().to_owned(),
        store: running
            .store()
            .map(|store| store.kind().to_owned())
            .unwrap_or_default(),
    })
}

/// Takes everything out of the output pipe; answers how many different results this job has there.
async fn drain(broker: &dyn Broker, pipe: &str, job: &str, items: u64) -> anyhow::Result<u64> {
    let mut consumer = broker.consume(pipe, 2000).await?;
    let mut seen = vec![false; usize::try_from(items)? + 1];
    let mut found = 0;
    let mut deliveries = Vec::new();
    while found < items {
        let taken = tokio::time::timeout(
            Duration::from_secs(20),
            consumer.next_many(&mut deliveries, 1000),
        )
        .await;
        if !matches!(taken, Ok(1..)) {
            break;
        }
        for delivery in deliveries.drain(..) {
            let message = TaskMessage::decode(&delivery.body)?;
            let result: Done =
                serde_json::from_slice(message.task_data.as_deref().unwrap_or_default())?;
            // Results of an earlier run that was interrupted may still be there.
            if result.params.get(RUN).is_some_and(|run| run == job) {
                match seen.get_mut(usize::try_from(result.number)?) {
                    Some(seen) => found += u64::from(!std::mem::replace(seen, true)),
                    None => bail!(
                        "a result for the number {}, which is no item",
                        result.number
                    ),
                }
            }
            delivery.ack();
        }
    }
    Ok(found)
}

async fn table_size(running: &Running) -> anyhow::Result<TaskTableSize> {
    let store = running.store().context("the benchmark runs with a store")?;
    Ok(store.task_table_size().await?)
}

fn larger(a: TaskTableSize, b: TaskTableSize) -> TaskTableSize {
    TaskTableSize {
        tables: a.tables.max(b.tables),
        rows: a.rows.max(b.rows),
        bytes: a.bytes.max(b.bytes),
    }
}
