//! The process that runs the items: each writes its effect and then sends an output.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use contract::{RangeItem, TaskData};
use framework::broker::embedded::{EmbeddedOptions, UnreadBounds};
use framework::{
    Condition, ConditionCode, Context, Reply, RetryPolicy, Settings, TaskError, Worker,
};
use job_service::{ConditionOptions, ConditionPace, LetterOptions, OutputOptions, ServiceOptions};
use serde::{Deserialize, Serialize};

use super::effects::Effects;
use super::roles::{
    BATCH_PIPE, CHAOS_WORKER, INPUT_PIPE, ItemOptions, KEPT_PIPE, OUTPUT_PIPE, PAUSED_PIPE,
    TRACKING_PIPE, letter_pipe,
};
use batchwright::{Stack, StackOptions, advanced::BatchOptions};

/// How the process works.
#[derive(Debug, Clone, Args)]
pub struct ChaosWorkerOptions {
    /// URL of the broker; not of the process that is the whole embedded system.
    #[arg(
        long,
        env = "BATCHWRIGHT_BROKER",
        hide_env_values = true,
        required_unless_present = "data"
    )]
    broker: Option<String>,
    /// URL of the database of the effects.
    #[arg(long, env = "BATCHWRIGHT_DATABASE", hide_env_values = true)]
    database: String,
    /// Folder of the embedded system.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Prefix of the names of the pipes.
    #[arg(long)]
    pipes: String,
    /// Address of the health checks; of the embedded system, also of the API.
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    work: ItemOptions,
    /// Maximum number of parts of a split of the embedded system.
    #[arg(long, default_value_t = 1000)]
    max_parts: u32,
    /// Number of waiting items above which it makes no splits.
    #[arg(long, default_value_t = 100_000)]
    max_depth: u64,
}

/// Runs the process until it is asked to stop.
pub async fn run(options: ChaosWorkerOptions) -> anyhow::Result<()> {
    let pipe = |suffix| format!("{}-{suffix}", options.pipes);
    let is_embedded = options.broker.is_none();
    let mut settings = Settings {
        input: pipe(INPUT_PIPE),
        // Without a pipe of the worker's own, outputs go where their job wants them.
        output: (!options.work.keep_outputs).then(|| pipe(OUTPUT_PIPE)),
        paused: Some(pipe(PAUSED_PIPE)),
        listen: (!is_embedded).then_some(options.listen),
        concurrency: usize::try_from(options.work.concurrency)?,
        prefetch: options.work.prefetch,
        ..Settings::new(CHAOS_WORKER)
    };
    if options.work.given_up > 0 {
        settings.retry = RetryPolicy::constant(Duration::from_millis(100)).attempts(2);
    }
    let worker = Chaos {
        effects: Effects::open(&options.database, options.work.concurrency)?,
        work: Duration::from_millis(options.work.work),
        blocked: options.work.blocked,
        given_up: options.work.given_up,
    };
    let letters = (options.work.given_up > 0).then(letter_pipe);
    let embedded = StackOptions::embedded(options.data.unwrap_or_default());
    let stack = StackOptions {
        roles: if is_embedded {
            embedded.roles
        } else {
            Vec::new()
        },
        // Without a role that needs a store, none is opened.
        database: (!is_embedded).then_some(options.database),
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
            tracking_shards: options.work.tracking_shards,
            paused_pipe: pipe(PAUSED_PIPE),
            outputs: OutputOptions {
                pipe: pipe(KEPT_PIPE),
                ..embedded.service.outputs
            },
            letters: LetterOptions {
                pipes: letters.into_iter().collect(),
                ..embedded.service.letters
            },
            conditions: ConditionOptions {
                pace: ConditionPace {
                    test_interval: Duration::from_secs(1),
                    canary_limit: Duration::from_secs(10),
                    ..embedded.service.conditions.pace
                },
                ..embedded.service.conditions
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
    blocked: u32,
    given_up: u32,
}

impl Chaos {
    /// Makes an item wait that has not waited yet, if it is one of those that do.
    async fn wait(&self, item: u64, ctx: &Context) -> Result<(), TaskError> {
        if item % 100 >= u64::from(self.blocked) || ctx.blocks() > 0 {
            return Ok(());
        }
        self.effects.record_wait(item).await?;
        let every_second = RetryPolicy::constant(Duration::from_secs(1)).forever();
        let condition = Condition::new(ConditionCode::SYSTEM_NOT_AVAILABLE)
            .policy(every_second)
            .map_err(TaskError::failed)?;
        Err(TaskError::blocked(condition.because("the item waits once")))
    }

    /// Fails the attempt if the item is one of those that are given up, until the worker is mended.
    async fn try_item(&self, item: u64) -> Result<(), TaskError> {
        if 99 - item % 100 >= u64::from(self.given_up) || self.effects.are_mended().await? {
            return Ok(());
        }
        Err(TaskError::retry("the worker is not mended yet"))
    }
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

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<ChaosOutput>, TaskError> {
        self.wait(item.number, &ctx).await?;
        self.try_item(item.number).await?;
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        self.effects.record(item.number).await?;
        Ok(Reply::send(ChaosOutput {
            number: item.number,
        }))
    }
}
