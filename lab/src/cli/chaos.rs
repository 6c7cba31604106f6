//! `batchwright chaos`: makes the parts of a system fail in the middle of a job, and compares the
//! counts.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use batchwright_cli::{INTERRUPTED, remark, say};
use clap::Args;
use contract::TrackingShards;
use framework::runtime::stop_signal;

use crate::chaos::{
    self, ChaosWorkerOptions, Faults, Given, Ground, Options, Servers, SystemOptions,
};

#[derive(Debug, Args)]
pub struct ChaosArgs {
    /// Number of items of the job.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    items: u64,
    /// Milliseconds that each item takes in addition.
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    work: u64,
    /// Number of processes that run items.
    #[arg(long, default_value_t = 2, conflicts_with = "embedded", value_parser = clap::value_parser!(u32).range(1..=100), value_name = "PROCESSES")]
    workers: u32,
    /// Number of items that such a process runs at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "ITEMS")]
    concurrency: u32,
    /// Number that determines the order of the faults; random by default.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..1 << 53))]
    seed: Option<u64>,
    /// Seconds after which the command gives up; no fault begins after two thirds of them.
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "SECONDS")]
    duration: u64,
    /// Seconds without any progress after which the command gives up.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "SECONDS")]
    patience: u64,
    /// Percentage of the items that wait for a condition, which a canary tests, before they are
    /// done.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100), value_name = "PERCENT")]
    blocked: u32,
    /// Percentage of the items that are given up; their dead letters are replayed after half of the
    /// faults and at the end.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=50), value_name = "PERCENT")]
    given_up: u32,
    /// Number of shards of the tracking pipe, from 1 to 64; the job uses one of them.
    #[arg(long, default_value_t, value_name = "SHARDS")]
    tracking_shards: TrackingShards,
    /// Let the service keep the outputs of the items, and compare them too.
    #[arg(long)]
    keep_outputs: bool,
    /// Leave logs and data where they are.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    faults: FaultArgs,
    #[command(flatten)]
    ground: GroundArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Faults")]
struct FaultArgs {
    /// Number of processes that are killed (SIGKILL), every role in turn.
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Number of restarts of the broker [default: 1; of a given broker 0].
    #[arg(long, conflicts_with = "embedded", value_name = "RESTARTS")]
    broker_restarts: Option<u32>,
    /// Number of restarts of the database, every other one after a SIGKILL [default: 1; of a given
    /// database 0].
    #[arg(long, conflicts_with = "embedded", value_name = "RESTARTS")]
    database_restarts: Option<u32>,
    /// Number of times that connections are cut or carry nothing [default: 2].
    #[arg(long, conflicts_with = "embedded", value_name = "FAULTS")]
    network_faults: Option<u32>,
    /// Number of times that the job is paused and resumed.
    #[arg(long, default_value_t = 1)]
    pauses: u32,
    /// Number of times that the job is cancelled or fails, in turn, and is retried.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Servers (by default, a RabbitMQ and a PostgreSQL of its own)")]
struct GroundArgs {
    /// Run everything in one process with the embedded broker and database.
    #[arg(long)]
    embedded: bool,
    /// URL of a PostgreSQL on which databases may be created; the command creates one and drops it.
    #[arg(
        long,
        requires = "broker",
        conflicts_with = "embedded",
        value_name = "URL"
    )]
    database: Option<String>,
    /// URL of a RabbitMQ that nothing else uses; queues named `chaos-…` stay in it.
    #[arg(
        long,
        requires = "database",
        conflicts_with = "embedded",
        value_name = "URL"
    )]
    broker: Option<String>,
    /// Shell command that restarts the given broker.
    #[arg(long, requires = "broker", value_name = "COMMAND")]
    restart_broker: Option<String>,
    /// Shell command that restarts the given database.
    #[arg(long, requires = "database", value_name = "COMMAND")]
    restart_database: Option<String>,
}

/// Runs the job and its faults. The exit code is 0 only if no item is lost and none is counted
/// twice.
pub async fn chaos(args: ChaosArgs) -> anyhow::Result<ExitCode> {
    let faults = args.faults()?;
    let is_given = args.ground.broker.is_some();
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let laboratory = std::env::current_exe().context("cannot find the path of this program")?;
    let product = laboratory.with_file_name("batchwright");
    ensure!(
        args.ground.embedded || product.exists(),
        "the roles need the program {}, and it is not there; in a checkout: cargo build --release -p batchwright-cli",
        product.display()
    );
    let system = SystemOptions {
        product,
        laboratory,
        items: args.items,
        workers: args.workers,
        concurrency: args.concurrency,
        prefetch: None,
        work: Duration::from_millis(args.work),
        // A given broker may still have the queues of an earlier run.
        pipes: if is_given {
            faults::unique("chaos")
        } else {
            "chaos".to_owned()
        },
        heartbeat: 5,
        patience: Duration::from_secs(args.patience),
        max_depth: (args.items / 20).max(50),
        blocked: args.blocked,
        given_up: args.given_up,
        tracking_shards: args.tracking_shards,
        keep_outputs: args.keep_outputs,
        keep: args.keep,
    };
    let options = Options {
        system,
        faults,
        seed,
        limit: Duration::from_secs(args.duration),
    };
    remark!("{} items, seed {seed}", args.items);
    let ground = tokio::select! {
        ground = args.ground.prepare() => ground?,
        () = stop_signal() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let mut interrupted = false;
    let stop = async {
        stop_signal().await;
        interrupted = true;
    };
    let outcome = chaos::run(ground, options, &|line| remark!("{line}"), stop).await?;
    for folder in &outcome.kept {
        remark!("kept: {}", folder.display());
    }
    say!("{}", serde_json::to_string(&outcome)?);
    Ok(match (interrupted, outcome.is_exact()) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

impl ChaosArgs {
    /// Returns how many faults of each kind the command makes.
    fn faults(&self) -> anyhow::Result<Faults> {
        let (given, faults) = (&self.ground, &self.faults);
        let restarts = |asked: Option<u32>, command: &Option<String>, server| {
            let default =
                u32::from(!given.embedded && (given.broker.is_none() || command.is_some()));
            match asked.unwrap_or(default) {
                asked @ 1.. if given.broker.is_some() && command.is_none() => bail!(
                    "{asked} restarts of a given {server} need the command that restarts it; pass --restart-{server} COMMAND"
                ),
                asked => Ok(asked),
            }
        };
        Ok(Faults {
            kills: faults.kills,
            broker_restarts: restarts(faults.broker_restarts, &given.restart_broker, "broker")?,
            database_restarts: restarts(
                faults.database_restarts,
                &given.restart_database,
                "database",
            )?,
            network_faults: faults
                .network_faults
                .unwrap_or(if given.embedded { 0 } else { 2 }),
            pauses: faults.pauses,
            rounds: faults.rounds,
        })
    }
}

impl GroundArgs {
    async fn prepare(self) -> anyhow::Result<Ground> {
        Ok(match (self.embedded, self.broker, self.database) {
            (true, ..) => Ground::Embedded,
            (false, Some(broker), Some(database)) => Ground::Given(Given {
                broker,
                database,
                restart_broker: self.restart_broker,
                restart_database: self.restart_database,
            }),
            _ => {
                remark!("starting a RabbitMQ and a PostgreSQL");
                Ground::Own(Servers::start().await?)
            }
        })
    }
}

/// Runs a process that `chaos` has started, until it is asked to stop.
pub async fn chaos_worker(options: ChaosWorkerOptions) -> anyhow::Result<ExitCode> {
    chaos::run_worker(options).await?;
    Ok(ExitCode::SUCCESS)
}
