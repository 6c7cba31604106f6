//! `batchwright chaos`: makes the parts of a system fail in the middle of a job, and compares the
//! counts.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use batchwright_cli::{INTERRUPTED, remark, say};
use clap::Args;
use framework::runtime::stop_signal;

use crate::chaos::{
    self, ChaosWorkerOptions, Faults, Given, Ground, ItemOptions, Options, Servers, SystemOptions,
};

#[derive(Debug, Args)]
pub struct ChaosArgs {
    /// Number of items of the job.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    items: u64,
    /// Number of processes that run items.
    #[arg(long, default_value_t = 2, conflicts_with = "embedded", value_parser = clap::value_parser!(u32).range(1..=100), value_name = "PROCESSES")]
    workers: u32,
    #[command(flatten)]
    work: ItemOptions,
    /// Number that determines the order of the faults; random by default.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..1 << 53))]
    seed: Option<u64>,
    /// Seconds after which the command gives up; no fault begins after two thirds of them.
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "SECONDS")]
    duration: u64,
    /// Seconds without any progress after which the command gives up.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "SECONDS")]
    patience: u64,
    /// Leave logs and data where they are.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    faults: Faults,
    #[command(flatten)]
    ground: GroundArgs,
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
    let (faults, given) = (args.faults, &args.ground);
    for (server, restarts, command) in [
        ("broker", faults.broker_restarts, &given.restart_broker),
        (
            "database",
            faults.database_restarts,
            &given.restart_database,
        ),
    ] {
        ensure!(
            restarts == 0 || given.broker.is_none() || command.is_some(),
            "{restarts} restarts of a given {server} need the command that restarts it; pass --restart-{server} COMMAND"
        );
    }
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
        work: args.work,
        // A given broker may still have the queues of an earlier run.
        pipes: if is_given {
            faults::unique("chaos")
        } else {
            "chaos".to_owned()
        },
        heartbeat: 5,
        patience: Duration::from_secs(args.patience),
        max_depth: (args.items / 20).max(50),
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
    Ok(
        match (interrupted, outcome.is_exact() && outcome.skipped == 0) {
            (true, _) => ExitCode::from(INTERRUPTED),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::FAILURE,
        },
    )
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        chaos: ChaosArgs,
    }

    #[test]
    fn servers_restart_by_default_where_that_is_possible() {
        let given = "--broker amqp://b --database postgres://d";
        for (arguments, expected) in [
            (String::new(), (1, 1, 2)),
            ("--embedded".to_owned(), (0, 0, 0)),
            (given.to_owned(), (0, 0, 2)),
            (format!("{given} --restart-broker b"), (1, 0, 2)),
            (format!("{given} --restart-database d"), (0, 1, 2)),
        ] {
            let words = format!("chaos {arguments}");
            let faults = Command::parse_from(words.split_whitespace()).chaos.faults;
            let Faults {
                broker_restarts,
                database_restarts,
                network_faults,
                ..
            } = faults;
            let restarts = (broker_restarts, database_restarts, network_faults);
            assert_eq!(restarts, expected, "{arguments}");
        }
    }
}
