//! The subcommands of `bench`: one job, what the broker alone can do, both in turn, the store, and
//! the API.

use std::path::PathBuf;
use std::process::ExitCode;

use std::time::Duration;

use anyhow::ensure;
use batchwright_cli::{ServerArgs, Show, say};
use clap::{Arg, Args, Subcommand};
use framework::config::Route;
use serde::Serialize;

use super::tables::{API, JOB, JOBS, LIMIT, PART, SHAPE, STORE, say_table};
use crate::bench::{
    ApiOptions, Bodies, CompareOptions, Course, JobOptions, LimitOptions, Load, ManyJobsResult,
    Part, Processes, ReadsOptions, Shape, ShapeResult, StoreBenchOptions, Tasks, run_api,
    run_compare, run_limit, run_many_jobs, run_one_job, run_part, run_store,
};

/// How many deliveries a stage of the chain holds; more was measured to be no faster.
const PREFETCH: u16 = 1000;

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

#[derive(Debug, Subcommand)]
pub enum Measurement {
    /// Measure what RabbitMQ alone can do with messages in a chain of queues; without `--broker`,
    /// what SQLite alone can do.
    #[command(mut_args(of_chain))]
    Limit(LimitArgs),
    /// Measure one job, or several at the same time: how fast the items are, and the processor time
    /// of an item in this process, the broker and the database.
    #[command(after_help = COLUMNS)]
    Run(RunArgs),
    /// Measure the limit and the system in turn, bundles included, and print their ratio: `direct`
    /// (1 hop), `direct-output` (2), `reroute-output` (4).
    #[command(mut_args(of_chain_and_worker))]
    Compare(CompareArgs),
    /// Measure what the store alone can do with the reports of tasks, written in flushes as the
    /// tracking worker writes them.
    Store(StoreArgs),
    /// Measure requests to the REST API: jobs that many clients create at once, then reads without
    /// and with many other jobs.
    Api(ApiArgs),
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Number of items.
    #[arg(long, default_value_t = 100_000)]
    items: u64,
    /// Prefix of the names of the queues, which are deleted at the end.
    #[arg(long, default_value = "bench")]
    name: String,
    /// How often each message is published on its way; several numbers are measured one after the
    /// other.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=16))]
    hops: Vec<u32>,
    /// Number of items in a message, as far as a bundle of the system has room for so many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), value_name = "ITEMS")]
    items_per_message: u64,
    /// Bytes of each item in a message; by default a message has as many as one of `bench run`.
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<usize>,
    /// Maximum number of unacknowledged deliveries of each stage of the chain.
    #[arg(long, default_value_t = PREFETCH, value_parser = clap::value_parser!(u16).range(1..), value_name = "DELIVERIES")]
    prefetch: u16,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
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
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    job: JobArgs,
    /// How often the limit and the system are measured for each shape.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The shapes; by default all, but `reroute-output` only with `--broker`.
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<Shape>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Number of tasks that a flush reports; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000", value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "TASKS")]
    tasks_per_flush: Vec<u32>,
    /// Number of seconds for which flushes are made.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    output: StoreOutputArgs,
}

#[derive(Debug, Args)]
pub struct ApiArgs {
    /// Number of jobs that are created.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Number of clients that create them at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Number of other jobs in the store while reads are measured the second time.
    #[arg(long, default_value_t = 200_000, value_name = "JOBS")]
    stored_jobs: u32,
    /// Number of requests of each kind of read.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    #[command(flatten)]
    output: StoreOutputArgs,
}

/// Where the store is, and how results are printed, of what needs no broker.
#[derive(Debug, Args)]
struct StoreOutputArgs {
    /// Folder of the embedded database; by default a temporary one.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Print each result as one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// URL of the database: `postgres://user:password@host/database` or `sqlite:FILE`;
    /// `?sslmode=verify-full` encrypts.
    #[arg(
        long,
        env = "BATCHWRIGHT_DATABASE",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Servers"
    )]
    database: Option<String>,
}

#[derive(Debug, Args)]
struct JobArgs {
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    tasks: Tasks,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Folder of the embedded broker and database; by default a temporary one.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Print each result as one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    servers: ServerArgs,
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

impl Measurement {
    /// Returns whether the results are for a program.
    pub const fn prints_json(&self) -> bool {
        match self {
            Self::Limit(args) => args.output.json,
            Self::Run(args) => args.output.json,
            Self::Compare(args) => args.output.json,
            Self::Store(args) => args.output.json,
            Self::Api(args) => args.output.json,
        }
    }
}

/// Runs a subcommand. The exit code is 1 if the counts are not exact.
pub async fn run(measurement: Measurement) -> anyhow::Result<ExitCode> {
    match measurement {
        Measurement::Limit(args) => limit(args).await,
        Measurement::Run(args) => one_job(args).await,
        Measurement::Compare(args) => compare(args).await,
        Measurement::Store(args) => Box::pin(store(args)).await,
        Measurement::Api(args) => Box::pin(api(args)).await,
    }
}

async fn limit(args: LimitArgs) -> anyhow::Result<ExitCode> {
    let mut results = Vec::new();
    for hops in args.hops {
        let options = LimitOptions {
            name: args.name.clone(),
            items: args.items,
            hops,
            bodies: match args.body_bytes {
                Some(bytes) => Bodies::of_bytes(bytes, args.items_per_message),
                None => Bodies::of_system(0, hops > 1, args.items_per_message),
            },
            prefetch: args.prefetch,
            broker: args.output.servers.broker.clone(),
            data: args.output.data.clone(),
        };
        let result = run_limit(&options).await?;
        if args.output.json {
            say_json(&result)?;
        } else {
            results.push(result);
        }
    }
    say_table(LIMIT, &results)?;
    Ok(ExitCode::SUCCESS)
}

async fn one_job(args: RunArgs) -> anyhow::Result<ExitCode> {
    let json = args.output.json;
    let show = if json { Show::Nothing } else { Show::Progress };
    let options = JobOptions {
        warm_up: args.warm_up,
        processes: args.processes,
        only: args.only,
        shards: args.shard,
        ..job_options(args.job, args.output, !args.no_output, show)?
    };
    if options.only.is_some() {
        run_part(&options).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(jobs) = args.jobs {
        return many_jobs(&options, jobs, args.course, json).await;
    }
    let result = run_one_job(&options).await?;
    let exact = result.is_exact(options.with_output);
    if json {
        say_json(&result)?;
    } else {
        say_table(JOB, &[(result.clone(), exact)])?;
        say_table(PART, &result.processes)?;
    }
    Ok(exit_code(exact))
}

async fn many_jobs(
    options: &JobOptions,
    jobs: u64,
    course: Course,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let result = run_many_jobs(options, jobs, course).await?;
    let exact = result.is_exact(options.with_output);
    if json {
        say_json(&result)?;
    } else {
        say_table(JOBS, &[(result.clone(), exact)])?;
        if course.failing_every.is_some() {
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
        say_table(PART, &result.processes)?;
    }
    Ok(exit_code(exact))
}

async fn store(args: StoreArgs) -> anyhow::Result<ExitCode> {
    let (mut results, mut exact) = (Vec::new(), true);
    for tasks_per_flush in args.tasks_per_flush {
        let options = StoreBenchOptions {
            tasks_per_flush,
            time: Duration::from_secs(args.seconds.into()),
            database: args.output.database.clone(),
            data: args.output.data.clone(),
        };
        let result = run_store(&options).await?;
        exact &= result.is_exact;
        if args.output.json {
            say_json(&result)?;
        } else {
            results.push(result);
        }
    }
    say_table(STORE, &results)?;
    Ok(exit_code(exact))
}

async fn api(args: ApiArgs) -> anyhow::Result<ExitCode> {
    let options = ApiOptions {
        jobs: args.jobs,
        clients: usize::try_from(args.clients)?,
        reads: ReadsOptions {
            stored_jobs: args.stored_jobs,
            requests: usize::try_from(args.requests)?,
            database: args.output.database,
            data: args.output.data,
        },
    };
    let results = run_api(&options).await?;
    if args.output.json {
        results.iter().try_for_each(say_json)?;
    } else {
        say_table(API, &results)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn compare(args: CompareArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        args.job.load.route == Route::Direct,
        "the shapes say how items travel; pass --shapes reroute-output instead of --route reroute"
    );
    let json = args.output.json;
    let shapes = match args.shapes {
        all if all.is_empty() && args.output.servers.broker.is_some() => Shape::ALL.to_vec(),
        all if all.is_empty() => Shape::ALL[..2].to_vec(),
        some => some,
    };
    let prefetch = args.job.load.prefetch.map(u16::try_from).transpose()?;
    let options = CompareOptions {
        shapes,
        rounds: args.rounds,
        prefetch: prefetch.unwrap_or(PREFETCH),
        job: job_options(args.job, args.output, true, Show::Nothing)?,
    };
    let each = |result: &ShapeResult| if json { say_json(result) } else { Ok(()) };
    let results = run_compare(&options, each).await?;
    if !json {
        say_table(SHAPE, &results)?;
    }
    Ok(exit_code(results.iter().all(|it| it.is_exact)))
}

fn job_options(
    job: JobArgs,
    output: OutputArgs,
    with_output: bool,
    show: Show,
) -> anyhow::Result<JobOptions> {
    Ok(JobOptions {
        tls: output.servers.tls.load()?,
        load: job.load,
        tasks: job.tasks,
        with_output,
        warm_up: 0,
        database: output.servers.database,
        broker: output.servers.broker,
        data: output.data,
        show,
        processes: Vec::new(),
        only: None,
        shards: Vec::new(),
    })
}

fn exit_code(exact: bool) -> ExitCode {
    if exact {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn say_json(result: &impl Serialize) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string(result)?);
    Ok(())
}
