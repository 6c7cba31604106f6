//! `batchwright bench`: one job, many jobs, a job that is cancelled, or reads beside many jobs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use batchwright::bench::{self, BenchOptions, CancelOptions, PacedOptions, Pipes, ReadsOptions};
use batchwright::watch::Show;
use clap::Args;
use framework::Route;
use serde::Serialize;

use crate::ServerArgs;

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The items of a job.
    #[arg(long, default_value_t = 100_000)]
    items: u64,
    /// Many jobs beside each other, instead of one.
    #[arg(long)]
    jobs: Option<u64>,
    /// What the names of its pipes begin with; measurements that share a broker need different ones.
    #[arg(long, default_value = "bench")]
    name: String,
    #[arg(long, default_value = "direct")]
    route: Route,
    /// Items answer with a report alone.
    #[arg(long)]
    no_output: bool,
    #[command(flatten)]
    servers: ServerArgs,
    /// The folder of an embedded run; a temporary one when left out.
    #[arg(long)]
    data: Option<PathBuf>,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=65535))]
    prefetch: u32,
    /// Cancels the job after so many seconds, and sees how it ends. Needs servers.
    #[arg(long, conflicts_with_all = ["jobs", "data"])]
    cancel_after: Option<f64>,
    /// The processes that run the items of a job that is cancelled.
    #[arg(long, default_value_t = 4, requires = "cancel_after", value_parser = clap::value_parser!(u32).range(1..))]
    worker_processes: u32,
    /// Items a second that these processes do together; as fast as they can when left out.
    #[arg(long, requires = "cancel_after", value_parser = a_rate)]
    rate: Option<f64>,
    /// Batches are not split while more messages than this wait in the pipe of a job that is cancelled.
    #[arg(long, default_value_t = 100_000, requires = "cancel_after")]
    max_depth: u64,
    /// Reads jobs, beside none and beside `--stored-jobs` others, instead of running any.
    #[arg(long, conflicts_with_all = ["jobs", "cancel_after"])]
    reads: bool,
    /// The jobs that are there besides those that are read.
    #[arg(long, default_value_t = 200_000, requires = "reads")]
    stored_jobs: u32,
    /// Reads of each kind.
    #[arg(long, default_value_t = 500, requires = "reads")]
    requests: u32,
    /// One JSON object on one line, and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

/// The arguments of a process that [`BenchArgs::cancel_after`] starts.
#[derive(Debug, Args)]
pub struct BenchWorkerArgs {
    #[arg(long, env = "BATCHWRIGHT_BROKER", hide_env_values = true)]
    broker: String,
    #[arg(long)]
    input: String,
    #[arg(long)]
    route: Route,
    #[arg(long)]
    concurrency: usize,
    #[arg(long)]
    prefetch: u32,
    #[arg(long, value_parser = a_rate)]
    rate: Option<f64>,
}

pub async fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if args.reads {
        let requests = usize::try_from(args.requests)?;
        let options = ReadsOptions {
            stored_jobs: args.stored_jobs,
            requests,
            database: args.servers.database,
            data: args.data,
        };
        return show(&bench::run_reads(&options).await?, true, args.json);
    }
    if let Some(seconds) = args.cancel_after {
        let result = bench::run_cancelled_job(&cancel_options(&args, seconds)?).await?;
        return show(&result, result.is_exact(), args.json);
    }
    let options = BenchOptions {
        items: args.items,
        pipes: Pipes::of(&args.name),
        route: args.route,
        with_output: !args.no_output,
        database: args.servers.database,
        broker: args.servers.broker,
        data: args.data,
        concurrency: usize::try_from(args.concurrency)?,
        prefetch: args.prefetch,
        show: if args.json {
            Show::Nothing
        } else {
            Show::Progress
        },
    };
    if let Some(jobs) = args.jobs {
        let result = bench::run_many_jobs(&options, jobs).await?;
        return show(&result, result.is_exact(), args.json);
    }
    let result = bench::run_one_job(&options).await?;
    show(&result, result.is_exact(options.with_output), args.json)
}

fn cancel_options(args: &BenchArgs, seconds: f64) -> anyhow::Result<CancelOptions> {
    let (Some(database), Some(broker)) = (&args.servers.database, &args.servers.broker) else {
        bail!(
            "a job that is cancelled has workers in other processes, so it needs servers: --database postgres://… --broker amqp://…"
        );
    };
    let Ok(cancel_after) = Duration::try_from_secs_f64(seconds) else {
        bail!("--cancel-after {seconds} is no number of seconds")
    };
    Ok(CancelOptions {
        items: args.items,
        pipes: Pipes::of(&args.name),
        route: args.route,
        database: database.clone(),
        broker: broker.clone(),
        concurrency: usize::try_from(args.concurrency)?,
        prefetch: args.prefetch,
        worker_processes: args.worker_processes,
        rate: args.rate,
        cancel_after,
        max_depth: args.max_depth,
    })
}

pub async fn bench_worker(args: BenchWorkerArgs) -> anyhow::Result<ExitCode> {
    let BenchWorkerArgs {
        broker,
        input,
        route,
        concurrency,
        prefetch,
        rate,
    } = args;
    bench::run_paced_worker(&PacedOptions {
        broker,
        input,
        route,
        concurrency,
        prefetch,
        rate,
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn a_rate(text: &str) -> Result<f64, String> {
    let rate = text
        .parse::<f64>()
        .ok()
        .filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("{text:?} is no number above 0"))
}

fn show(result: &impl Serialize, exact: bool, on_one_line: bool) -> anyhow::Result<ExitCode> {
    println!(
        "{}",
        if on_one_line {
            serde_json::to_string(result)
        } else {
            serde_json::to_string_pretty(result)
        }?
    );
    Ok(if exact {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
