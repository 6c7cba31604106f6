//! A run of jobs in a system of its own, and what is told of each run.

use std::time::Instant;

use batchwright::client::Client;
use framework::Outputs;
use serde::Serialize;

use super::ending::{clear, is_stopped, unless_stopped};
use super::item_outputs::Expected;
use super::parts::{self, PartProcess, PartResult};
use super::system::{ItemOutput, JobOptions, System, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter};

/// A system in which jobs `1`, `2`, … are measured.
pub struct Run<'a> {
    options: &'a JobOptions,
    pub system: System,
    pub client: Client,
    /// The partition of the jobs, which keeps jobs of earlier runs out of the counts. Outputs have
    /// it, too.
    pub name: String,
    parts: Vec<PartProcess>,
    outputs: Option<Outputs<ItemOutput>>,
}

/// What is told of each run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// Counted by the worker; larger than the number of items if some ran twice.
    pub executed_items: u64,
    /// The time from the first request to the end of the last job.
    pub seconds: f64,
    pub items_per_second: f64,
    /// Recorded by the tracking workers.
    pub reports: u64,
    /// Counted by the batch worker.
    pub split_nodes: u64,
    /// The number of distinct outputs in the output pipe.
    pub outputs: u64,
    /// From the first request to the end of the last job.
    pub cpu_us_per_item: CpuPerItem,
    /// The parts that ran in processes of their own.
    pub processes: Vec<PartResult>,
    pub peak_memory_bytes: u64,
    pub route: String,
    pub broker: String,
    pub store: String,
}

/// The begin of what is measured.
pub struct Begin {
    meter: Meter,
    time: Instant,
    counted: [u64; 3],
}

impl<'a> Run<'a> {
    /// Starts a system and measures in it. If the measurement is stopped, the jobs are cancelled
    /// and the pipes run empty.
    pub async fn measure<T>(
        options: &'a JobOptions,
        work: impl AsyncFnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let system = unless_stopped(options.start()).await?;
        let name = uuid::Uuid::new_v4().simple().to_string();
        let mut run = Self {
            options,
            client: Client::new(&system.running.api_url(), &name),
            system,
            name,
            parts: Vec::new(),
            outputs: None,
        };
        let measured = unless_stopped(async {
            run.parts = parts::start(options).await?;
            // Outputs go in bundles only to readers that are there.
            if options.with_output && options.load.bundle > 1 {
                run.outputs = Some(options.load.outputs(&run.system.running).await?);
            }
            work(&mut run).await
        });
        let measured = Box::pin(measured).await;
        if is_stopped(&measured) && options.leaves_messages() {
            // It holds some, which would come back when the pipes have run empty.
            if let Some(outputs) = run.outputs.take() {
                outputs.close().await;
            }
            let cancel = async { run.client.cancel_all(&[]).await.map(drop) };
            clear(&options.load, &run.system.running, cancel).await;
        }
        drop(run.parts);
        run.system.running.stop().await;
        measured
    }

    /// Begins to measure.
    pub fn begin(&self) -> Begin {
        let servers = &self.options.place.servers;
        Begin {
            counted: self.system.counted(),
            meter: Meter::begin(servers.broker.as_deref(), servers.database.as_deref()),
            time: Instant::now(),
        }
    }

    /// Returns what was measured since then, while so many jobs ran. Their outputs are not counted
    /// yet.
    pub async fn end(&mut self, begin: Begin, jobs: u64) -> anyhow::Result<RunResult> {
        let seconds = begin.time.elapsed().as_secs_f64();
        let (load, running) = (&self.options.load, &self.system.running);
        let items = jobs * load.items;
        let cpu_us_per_item = begin.meter.per_item(items);
        let counted = self.system.counted();
        let [executed, splits, reports] = std::array::from_fn(|of| counted[of] - begin.counted[of]);
        let (processes, elsewhere) = parts::stop(std::mem::take(&mut self.parts), items).await?;
        let store = running.store().map(|store| store.kind().to_owned());
        Ok(RunResult {
            executed_items: executed + elsewhere.executed,
            seconds,
            items_per_second: 0.0,
            reports: reports + elsewhere.reports,
            split_nodes: splits + elsewhere.splits,
            outputs: 0,
            cpu_us_per_item,
            processes,
            peak_memory_bytes: peak_memory_bytes(),
            route: load.route.name().to_owned(),
            broker: running.broker().kind().to_owned(),
            store: store.unwrap_or_default(),
        })
    }

    /// Returns the number of distinct outputs of so many jobs.
    pub async fn outputs(&mut self, jobs: u64) -> anyhow::Result<u64> {
        let load = &self.options.load;
        if !self.options.with_output {
            return Ok(0);
        }
        let outputs = match self.outputs.take() {
            Some(outputs) => outputs,
            None => load.outputs(&self.system.running).await?,
        };
        let expected = Expected {
            run: &self.name,
            jobs,
            items_per_job: load.items,
        };
        expected.count(outputs).await
    }
}

impl RunResult {
    /// Returns how many of so many things there were in a second.
    pub fn per_second(&self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        let count = count as f64;
        count / self.seconds
    }
}
