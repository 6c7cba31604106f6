//! `batchwright bench`: measures one job, many jobs, a cancelled job, reads while many jobs are
//! stored, or many watchers. Its subcommands measure one job beside what the broker alone can do.

mod runs;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use batchwright_cli::{INTERRUPTED, ServerArgs, Show, say};
use clap::Args;
use serde::Serialize;

use self::runs::Measurement;
use crate::bench::{
    CancelOptions, Course, JobOptions, Load, PacedOptions, ReadsOptions, Stopped, Tasks,
    WatchersOptions, positive_number, run_cancelled_job, run_many_jobs, run_one_job,
    run_paced_worker, run_reads, run_watchers,
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    measurement: Option<Measurement>,
    #[command(flatten)]
    load: Load,
    /// Folder of the embedded broker and database; by default a temporary one.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Run this number of jobs at the same time instead of one.
    #[arg(long)]
    jobs: Option<u64>,
    /// Send no output for an item, only its report.
    #[arg(long)]
    no_output: bool,
    /// Cancel the job after this number of seconds and measure how fast it stops; needs servers.
    #[arg(long, conflicts_with_all = ["jobs", "data"], value_name = "SECONDS")]
    cancel_after: Option<f64>,
    /// Number of worker processes of the cancelled job.
    #[arg(long, default_value_t = 4, requires = "cancel_after", value_parser = clap::value_parser!(u32).range(1..), value_name = "PROCESSES")]
    worker_processes: u32,
    /// Items per second of all worker processes of the cancelled job together; unlimited by
    /// default.
    #[arg(long, requires = "cancel_after", value_parser = positive_number, value_name = "ITEMS")]
    rate: Option<f64>,
    /// Number of waiting items of the cancelled job above which batches wait instead of being
    /// split.
    #[arg(
        long,
        default_value_t = 100_000,
        requires = "cancel_after",
        value_name = "MESSAGES"
    )]
    max_depth: u64,
    /// Measure reads of jobs: first without other jobs in the store, then with `--stored-jobs`
    /// others.
    #[arg(long, conflicts_with_all = ["jobs", "cancel_after"])]
    reads: bool,
    /// Number of other jobs in the store while reads are measured.
    #[arg(
        long,
        default_value_t = 200_000,
        requires = "reads",
        value_name = "JOBS"
    )]
    stored_jobs: u32,
    /// Number of requests of each kind of read.
    #[arg(long, default_value_t = 500, requires = "reads")]
    requests: u32,
    /// Measure this number of watchers of one job, while another job and then their own changes ten
    /// times a second.
    #[arg(long, conflicts_with_all = ["jobs", "cancel_after", "reads", "data"], value_parser = clap::value_parser!(u32).range(1..))]
    watchers: Option<u32>,
    /// Number of seconds for which each job changes while watchers are measured.
    #[arg(long, default_value_t = 10, requires = "watchers", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Print the results as one line of JSON and show no progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    servers: ServerArgs,
}

/// Runs the measurement that the flags select. The exit code is 1 if the counts are not exact, and
/// 130 if it was stopped.
pub async fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match Box::pin(measure(args)).await {
        Err(error) if error.is::<Stopped>() => Ok(ExitCode::from(INTERRUPTED)),
        ended => ended,
    }
}

async fn measure(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(measurement) = args.measurement {
        return Box::pin(runs::run(measurement)).await;
    }
    if args.reads {
        let options = ReadsOptions {
            stored_jobs: args.stored_jobs,
            requests: usize::try_from(args.requests)?,
            database: args.servers.database,
            data: args.data,
        };
        return print(&run_reads(&options).await?, true, args.json);
    }
    if let Some(watchers) = args.watchers {
        let options = WatchersOptions {
            watchers: usize::try_from(watchers)?,
            seconds: args.seconds,
            database: args.servers.database,
        };
        return print(&run_watchers(&options).await?, true, args.json);
    }
    if let Some(seconds) = args.cancel_after {
        let json = args.json;
        let result = run_cancelled_job(&args.cancel_options(seconds)?).await?;
        return print(&result, result.is_exact(), json);
    }
    let options = JobOptions {
        tls: args.servers.tls.load()?,
        load: args.load,
        tasks: Tasks::default(),
        with_output: !args.no_output,
        warm_up: 0,
        database: args.servers.database,
        broker: args.servers.broker,
        data: args.data,
        show: if args.json {
            Show::Nothing
        } else {
            Show::Progress
        },
        processes: Vec::new(),
        only: None,
        shards: Vec::new(),
    };
    if let Some(jobs) = args.jobs {
        let result = run_many_jobs(&options, jobs, Course::default()).await?;
        return print(&result, result.is_exact(options.with_output), args.json);
    }
    let result = run_one_job(&options).await?;
    print(&result, result.is_exact(options.with_output), args.json)
}

/// Runs a worker process of a cancelled job; `bench --cancel-after` starts it.
pub async fn bench_worker(options: PacedOptions) -> anyhow::Result<ExitCode> {
    run_paced_worker(&options).await?;
    Ok(ExitCode::SUCCESS)
}

impl BenchArgs {
    /// Returns whether the results are for a program.
    pub const fn prints_json(&self) -> bool {
        match &self.measurement {
            Some(measurement) => measurement.prints_json(),
            None => self.json,
        }
    }

    fn cancel_options(self, seconds: f64) -> anyhow::Result<CancelOptions> {
        let (Some(database), Some(broker)) = (self.servers.database, self.servers.broker) else {
            bail!(
                "--cancel-after starts worker processes, which need servers; pass --database postgres://… --broker amqp://…"
            );
        };
        let Ok(cancel_after) = Duration::try_from_secs_f64(seconds) else {
            bail!("--cancel-after {seconds} is not a number of seconds; expected e.g. 2.5")
        };
        Ok(CancelOptions {
            tls: self.servers.tls,
            load: self.load,
            database,
            broker,
            worker_processes: self.worker_processes,
            rate: self.rate,
            cancel_after,
            max_depth: self.max_depth,
        })
    }
}

fn print(result: &impl Serialize, exact: bool, on_one_line: bool) -> anyhow::Result<ExitCode> {
    let text = if on_one_line {
        serde_json::to_string(result)
    } else {
        serde_json::to_string_pretty(result)
    };
    say!("{}", text?);
    Ok(if exact {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
