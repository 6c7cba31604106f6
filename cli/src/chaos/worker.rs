//! The process that runs the items: each writes its effect and then sends an output.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use contract::{RangeItem, TaskData};
use framework::broker::embedded::{EmbeddedOptions, UnreadBounds};
use framework::{Context, Reply, Settings, TaskError, Worker};
use job_service::{OutputOptions, ServiceOptions};
use serde::{Deserialize, Serialize};

use super::effects::Effects;
use super::roles::{
    BATCH_PIPE, CHAOS_WORKER, INPUT_PIPE, KEPT_PIPE, OUTPUT_PIPE, PAUSED_PIPE, TRACKING_PIPE,
};
use batchwright::{BatchOptions, Stack, StackOptions};

/// How the process works.
#[derive(Debug, Clone)]
pub struct ChaosWorkerOptions {
    /// The URL of the broker; `None` if this process is the whole embedded system.
    pub broker: Option<String>,
    /// The folder of the embedded system.
    pub data: PathBuf,
    /// The URL of the database of the effects.
    pub effects: String,
    /// The prefix of the names of the pipes.
    pub pipes: String,
    /// The address of the health checks; of the embedded system, also of the API.
    pub listen: SocketAddr,
    /// The number of items that run at the same time.
    pub concurrency: u32,
    /// The number of unsettled deliveries.
    pub prefetch: Option<u32>,
    /// How long an item takes.
    pub work: Duration,
    /// Whether the service keeps the outputs.
    pub keep_outputs: bool,
    /// The number of parts of a split, and the number of waiting items above which there are no splits, of the embedded system.
    pub max_parts: u32,
    /// See `max_parts`.
    pub max_depth: u64,
}

/// Runs the process until it is asked to stop.
pub async fn run(options: ChaosWorkerOptions) -> anyhow::Result<()> {
    let pipe = |suffix| format!("{}-{suffix}", options.pipes);
    let is_embedded = options.broker.is_none();
    let settings = Settings {
        input: pipe(INPUT_PIPE),
        // Without a pipe of the worker's own, outputs go where their job wants them.
        output: (!options.keep_outputs).then(|| pipe(OUTPUT_PIPE)),
        paused: Some(pipe(PAUSED_PIPE)),
        listen: (!is_embedded).then_some(options.listen),
        concurrency: usize::try_from(options.concurrency)?,
        prefetch: options.prefetch,
        ..Settings::new(CHAOS_WORKER)
    };
    let worker = Chaos {
        effects: Effects::open(&options.effects, options.concurrency)?,
        work: options.work,
    };
    let embedded = StackOptions::embedded(&options.data);
    let stack = StackOptions {
        roles: if is_embedded {
            embedded.roles
        } else {
            Vec::new()
        },
        // Without a role that needs a store, none is opened.
        database: (!is_embedded).then(|| options.effects.clone()),
        broker: options.broker,
        // All outputs are counted at the end.
        embedded: EmbeddedOptions {
            unread: UnreadBounds::NONE,
            ..embedded.embedded
        },
        listen: options.listen,
        batch: BatchOptions {
            input: pipe(BATCH_PIPE),
            max_parts: usize::try_from(options.max_parts)?,
            max_depth: options.max_depth,
            ..embedded.batch
        },
        service: ServiceOptions {
            tracking_pipe: pipe(TRACKING_PIPE),
            paused_pipe: pipe(PAUSED_PIPE),
            outputs: OutputOptions {
                pipe: pipe(KEPT_PIPE),
                ..embedded.service.outputs
            },
            ..embedded.service
        },
        ..embedded
    };
    let running = Stack::new(stack).worker(settings, worker).start().await?;
    Ok(running.until_asked_to_stop().await?)
}

/// A worker that records the effect of an item.
struct Chaos {
    effects: Effects,
    work: Duration,
}

/// The output of an item.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChaosOutput {
    /// The item.
    pub number: u64,
}

impl TaskData for ChaosOutput {
    const CLASSIFIER: &'static str = "ChaosOutput";
    const API_VERSION: i32 = 1;
}

impl Worker for Chaos {
    type Input = RangeItem;
    type Output = ChaosOutput;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<ChaosOutput>, TaskError> {
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        self.effects.record(item.number).await?;
        Ok(Reply::send(ChaosOutput {
            number: item.number,
        }))
    }
}
