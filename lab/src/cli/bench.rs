//! `batchwright bench`: measures jobs, also beside what the broker alone can do, the API, many
//! watchers, and a cancelled job.

mod tables;

use std::process::ExitCode;

use batchwright_cli::{Field, INTERRUPTED, Show, say};
use clap::{Arg, Args, Subcommand};
use serde::Serialize;

use self::tables::{API, JOB, JOBS, LIMIT, PART, SHAPE, say_table};
use crate::bench::{
    ApiOptions, CancelOptions, CompareOptions, Course, JobOptions, LimitOptions, ManyJobsResult,
    PacedOptions, Part, Processes, ShapeResult, Stopped, WatchersOptions, run_api,
    run_cancelled_job, run_compare, run_limit, run_many_jobs, run_one_job, run_paced_worker,
    run_part, run_watchers,
};

/// What the help says about the columns of a job.
const COLUMNS: &str = "\
Columns:
  ITEMS/s      items in a second, from the request that creates the job to its end
  OUR µs       processor time of an item in this process, in microseconds
  BROKER µs    the same in RabbitMQ; `ours` if this process is the broker
  DATABASE µs  the same in PostgreSQL; `ours` if this process has the database
  PEAK         the most memory that this process had
  EXACT        whether each item and each output was counted; if not, the exit code is 1

`unknown` is a server on another machine or in a container, or one at whose processes this user may not look, as root may. `none` is a \
server that does not take part.

On servers, the queues of the pipes and the jobs stay. A measurement refuses pipes in which messages wait. One that you stop cancels its \
jobs and lets its pipes run empty.";

/// The prefetch of a chain and of the worker beside it.
const PREFETCH_OF_BOTH: &str = "Maximum number of unacknowledged deliveries of a worker process and of each stage of the chain; by \
default that of the worker follows the time that items take and their size, and a stage has 1000";
/// The broker of a chain.
const PLAIN_BROKER: &str = "URL of RabbitMQ, not encrypted: `amqp://user:password@host:5672/%2f`";

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Print each result as one line of JSON, and show no progress.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Measure what RabbitMQ alone can do with messages in a chain of queues; without `--broker`,
    /// what SQLite alone can do.
    #[command(mut_args(of_chain))]
    Limit(LimitOptions),
    /// Measure one job, or several at the same time: how fast the items are, and the processor time
    /// of an item in this process, the broker and the database.
    #[command(after_help = COLUMNS)]
    Run(RunArgs),
    /// Measure the limit and the system in turn, bundles included, and print their ratio: `direct`
    /// (1 hop), `direct-output` (2), `reroute-output` (4).
    #[command(mut_args(of_chain_and_worker))]
    Compare(CompareOptions),
    /// Measure requests to the REST API: jobs that many clients create at once, then reads without
    /// and with many other jobs.
    Api(ApiOptions),
    /// Measure many watchers of one job, while another job and then their own changes ten times a
    /// second.
    Watchers(WatchersOptions),
    /// Cancel a job and measure how fast it stops; its worker processes need servers.
    #[command(mut_args(on_servers))]
    Cancel(CancelOptions),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Run this number of jobs at the same time instead of one.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: Option<u64>,
    #[command(flatten)]
    course: Course,
    /// Send no output for an item, only its report.
    #[arg(long)]
    no_output: bool,
    /// Run a job of this number of items before the measured one, so that connections and buffers
    /// are there as in a service that has run for a while.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["jobs", "processes"], value_name = "ITEMS")]
    warm_up: u64,
    /// Parts that run in this number of processes of their own, e.g. `worker=2,tracking-worker=1`;
    /// also `batch-worker`. Needs servers.
    #[arg(long, value_delimiter = ',', value_name = "PART=PROCESSES", requires_all = ["broker", "database"])]
    processes: Vec<Processes>,
    /// Be one of these processes, until standard input is closed.
    #[arg(long, hide = true)]
    only: Option<Part>,
    /// The shards that its tracking worker reads.
    #[arg(long, hide = true)]
    shard: Vec<u32>,
    // The last: it ends with a heading of the help.
    #[command(flatten)]
    job: JobOptions,
}

/// Changes the help of an argument of a chain, whose connections are not encrypted.
fn of_chain(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "broker" => arg.help(PLAIN_BROKER),
        id if id.starts_with("tls-") => arg.hide(true),
        _ => arg,
    }
}

/// Changes the help of an argument of a chain and a worker beside it.
fn of_chain_and_worker(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "prefetch" => arg.help(PREFETCH_OF_BOTH),
        _ => of_chain(arg),
    }
}

/// Makes the arguments required that name servers.
fn on_servers(arg: Arg) -> Arg {
    let is_server = ["broker", "database"].contains(&arg.get_id().as_str());
    arg.required(is_server)
}

/// Runs the measurement. The exit code is 1 if the counts are not exact, and 130 if it was stopped.
pub async fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match Box::pin(measure(args)).await {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) if error.is::<Stopped>() => Ok(ExitCode::from(INTERRUPTED)),
        Err(error) => Err(error),
    }
}

/// Runs the measurement and prints its results. Returns whether the counts are exact.
async fn measure(BenchArgs { json, measurement }: BenchArgs) -> anyhow::Result<bool> {
    match measurement {
        Measurement::Limit(options) => {
            let mut results = Results::new(json, LIMIT);
            for chain in options.chains() {
                results.add(run_limit(&chain).await?)?;
            }
            results.end()?;
        }
        Measurement::Run(args) => return run(args, json).await,
        Measurement::Compare(options) => {
            let (mut results, mut exact) = (Results::new(json, SHAPE), true);
            let each = |result: ShapeResult| {
                exact &= result.is_exact;
                results.add(result)
            };
            run_compare(&options, each).await?;
            results.end()?;
            return Ok(exact);
        }
        Measurement::Api(options) => {
            let mut results = Results::new(json, API);
            let measured = run_api(&options).await?;
            measured.into_iter().try_for_each(|it| results.add(it))?;
            results.end()?;
        }
        Measurement::Watchers(options) => say_one(&run_watchers(&options).await?, json)?,
        Measurement::Cancel(options) => {
            let result = run_cancelled_job(&options).await?;
            say_one(&result, json)?;
            return Ok(result.is_exact());
        }
    }
    Ok(true)
}

async fn run(args: RunArgs, json: bool) -> anyhow::Result<bool> {
    let options = JobOptions {
        with_output: !args.no_output,
        warm_up: args.warm_up,
        show: if json { Show::Nothing } else { Show::Progress },
        processes: args.processes,
        only: args.only,
        shards: args.shard,
        ..args.job
    };
    if options.only.is_some() {
        run_part(&options).await?;
        return Ok(true);
    }
    let Some(jobs) = args.jobs else {
        let result = run_one_job(&options).await?;
        let exact = result.is_exact(options.with_output);
        if json {
            say_one(&result, json)?;
        } else {
            say_table(JOB, &[(result.clone(), exact)])?;
            say_table(PART, &result.run.processes)?;
        }
        return Ok(exact);
    };
    let result = run_many_jobs(&options, jobs, args.course).await?;
    let exact = result.is_exact(options.with_output);
    if json {
        say_one(&result, json)?;
        return Ok(exact);
    }
    say_table(JOBS, &[(result.clone(), exact)])?;
    if args.course.failing_every.is_some() {
        let ManyJobsResult {
            failing_jobs,
            wrong_jobs,
            largest_outbox,
            status_checks,
            ..
        } = &result;
        say!(
            "{failing_jobs} jobs were to fail; {wrong_jobs} jobs are wrong. Largest outbox: {largest_outbox}. Status checks: {status_checks}."
        );
    }
    say_table(PART, &result.run.processes)?;
    Ok(exact)
}

/// Runs a worker process of a cancelled job; `bench cancel` starts it.
pub async fn bench_worker(options: PacedOptions) -> anyhow::Result<ExitCode> {
    run_paced_worker(&options).await?;
    Ok(ExitCode::SUCCESS)
}

/// Results of one kind: as lines of JSON when they come, or as a table at the end.
struct Results<T: 'static> {
    json: bool,
    columns: &'static [Field<T>],
    all: Vec<T>,
}

impl<T: Serialize> Results<T> {
    const fn new(json: bool, columns: &'static [Field<T>]) -> Self {
        Self {
            json,
            columns,
            all: Vec::new(),
        }
    }

    fn add(&mut self, result: T) -> anyhow::Result<()> {
        if self.json {
            return say_one(&result, true);
        }
        self.all.push(result);
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        say_table(self.columns, &self.all)
    }
}

/// Prints a result as JSON.
fn say_one(result: &impl Serialize, on_one_line: bool) -> anyhow::Result<()> {
    let text = if on_one_line {
        serde_json::to_string(result)
    } else {
        serde_json::to_string_pretty(result)
    };
    say!("{}", text?);
    Ok(())
}
