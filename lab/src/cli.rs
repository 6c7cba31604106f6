//! The command line. Each file contains one command: the flags and the implementation.

mod bench;
mod chaos;

use std::process::ExitCode;

use batchwright_cli::LogArgs;
use clap::{Parser, Subcommand};

use self::bench::BenchArgs;
use self::chaos::ChaosArgs;
use crate::bench::PacedOptions;
use crate::chaos::ChaosWorkerOptions;

/// The laboratory of Batchwright.
#[derive(Debug, Parser)]
#[command(name = "batchwright-lab", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "the program has one value of it")]
pub enum Command {
    /// Measure jobs that do nothing, the store, the API and the broker alone. The exit code is 0
    /// only if every count is exact.
    Bench(BenchArgs),
    /// Kill processes, restart servers and cut connections in the middle of a job, and show as JSON
    /// that no item is lost.
    Chaos(ChaosArgs),
    #[command(hide = true)]
    BenchWorker(PacedOptions),
    #[command(hide = true)]
    ChaosWorker(ChaosWorkerOptions),
}

impl Command {
    /// Runs the command and returns the exit code of the program.
    pub async fn execute(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Bench(args) => bench::bench(args).await,
            Self::BenchWorker(args) => bench::bench_worker(args).await,
            Self::Chaos(args) => chaos::chaos(args).await,
            Self::ChaosWorker(args) => chaos::chaos_worker(args).await,
        }
    }

    /// Returns whether the command was asked to print JSON.
    pub const fn prints_json(&self) -> bool {
        match self {
            Self::Bench(args) => args.json,
            Self::Chaos(_) | Self::BenchWorker(_) | Self::ChaosWorker(_) => false,
        }
    }

    /// Returns what is logged unless a person says something else.
    pub const fn log_filter(&self) -> &'static str {
        match self {
            Self::ChaosWorker(_) => "info",
            // It waits as long as a system does for its servers.
            Self::Bench(_) | Self::BenchWorker(_) => "warn,sqlx=error",
            Self::Chaos(_) => "error",
        }
    }
}
