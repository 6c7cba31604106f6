//! The subcommands of `bench`: one job, what the broker alone can do, both in turn, the store, and
//! the API.

use std::path::PathBuf;
use std::process::ExitCode;

use std::time::Duration;

use anyhow::ensure;
use batchwright_cli::{Column, ServerArgs, Show, say, table, width_of_output};
use clap::{Arg, Args, Subcommand, ValueEnum as _};
use framework::config::Route;
use serde::Serialize;

use crate::bench::{
    ApiOptions, ApiResult, Bodies, CompareOptions, Course, CpuPerItem, JobOptions, LimitOptions,
    LimitResult, Load, ManyJobsResult, OneJobResult, Part, PartResult, Processes, ReadsOptions,
    Shape, ShapeResult, StoreBenchOptions, StoreBenchResult, Tasks, memory_text, run_api,
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
    let mut rows = Vec::new();
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
            rows.push(limit_row(&result));
        }
    }
    say_table(&LIMIT, &rows)?;
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
        say_table(&JOB, &[job_row(&result, exact)])?;
        let parts: Vec<_> = result.processes.iter().map(part_row).collect();
        say_table(&PART, &parts)?;
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
        say_table(&JOBS, &[jobs_row(&result, exact)])?;
        if course.failing_every.is_some() {
            let ManyJobsResult {
                failing_jobs,
                wrong_jobs,
                largest_outbox,
                status_checks,
                ..
            } = result;
            say!(
                "{failing_jobs} jobs were to fail; {wrong_jobs} jobs are wrong. Largest outbox: {largest_outbox}. Status checks: {status_checks}."
            );
        }
        let parts: Vec<_> = result.processes.iter().map(part_row).collect();
        say_table(&PART, &parts)?;
    }
    Ok(exit_code(exact))
}

async fn store(args: StoreArgs) -> anyhow::Result<ExitCode> {
    let (mut rows, mut exact) = (Vec::new(), true);
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
            rows.push(store_row(&result));
        }
    }
    say_table(&STORE, &rows)?;
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
        let rows: Vec<_> = results.iter().map(api_row).collect();
        say_table(&API, &rows)?;
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
        let rows: Vec<_> = results.iter().map(shape_row).collect();
        say_table(&SHAPE, &rows)?;
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

/// Writes a table, unless it has no rows.
fn say_table(columns: &[Column], rows: &[Vec<String>]) -> anyhow::Result<()> {
    if !rows.is_empty() {
        for line in table(columns, rows, width_of_output()) {
            say!("{line}");
        }
    }
    Ok(())
}

/// The columns of the processor time: microseconds for an item.
const CPU: [Column; 3] = [
    Column::number("OUR µs"),
    Column::number("BROKER µs"),
    Column::number("DATABASE µs"),
];
const LIMIT: [Column; 6] = [
    Column::number("HOPS"),
    Column::number("ITEMS/MESSAGE"),
    Column::number("ITEMS/s"),
    CPU[0],
    CPU[1],
    Column::number("PEAK"),
];
const JOB: [Column; 8] = [
    Column::text("BROKER"),
    Column::number("ITEMS"),
    Column::number("ITEMS/s"),
    CPU[0],
    CPU[1],
    CPU[2],
    Column::number("PEAK"),
    Column::text("EXACT"),
];
const JOBS: [Column; 9] = [
    JOB[0],
    Column::number("JOBS"),
    Column::number("SHARDS"),
    JOB[1],
    JOB[2],
    CPU[0],
    CPU[1],
    CPU[2],
    JOB[7],
];
const PART: [Column; 4] = [
    Column::text("PART"),
    Column::number("PROCESSES"),
    Column::number("µs"),
    Column::number("PEAK"),
];
const STORE: [Column; 9] = [
    Column::text("STORE"),
    Column::number("TASKS/FLUSH"),
    Column::number("FLUSHES/s"),
    Column::number("TASKS/s"),
    Column::number("P50 ms"),
    Column::number("P99 ms"),
    CPU[0],
    CPU[2],
    Column::text("EXACT"),
];
const API: [Column; 6] = [
    Column::text("REQUEST"),
    Column::number("OTHER JOBS"),
    Column::number("CLIENTS"),
    Column::number("PER s"),
    Column::number("P50 ms"),
    Column::number("P99 ms"),
];
const SHAPE: [Column; 9] = [
    Column::text("SHAPE"),
    Column::number("LIMIT/s"),
    Column::number("SYSTEM/s"),
    Column::number("RATIO"),
    Column::text("(MIN-MAX)"),
    CPU[0],
    CPU[1],
    CPU[2],
    Column::text("EXACT"),
];

fn cpu_cells(cpu: &CpuPerItem) -> [String; 3] {
    [
        format!("{:.1}", cpu.ours),
        cpu.broker.text(),
        cpu.database.text(),
    ]
}

fn limit_row(result: &LimitResult) -> Vec<String> {
    let [ours, broker, _] = cpu_cells(&result.cpu_us_per_item);
    vec![
        result.hops.to_string(),
        result.bodies.items_per_message.to_string(),
        format!("{:.0}", result.items_per_second),
        ours,
        broker,
        memory_text(result.peak_memory_bytes),
    ]
}

fn job_row(result: &OneJobResult, exact: bool) -> Vec<String> {
    let [ours, broker, database] = cpu_cells(&result.cpu_us_per_item);
    vec![
        result.broker.clone(),
        result.items.to_string(),
        format!("{:.0}", result.items_per_second),
        ours,
        broker,
        database,
        memory_text(result.peak_memory_bytes),
        yes_or_no(exact),
    ]
}

fn jobs_row(result: &ManyJobsResult, exact: bool) -> Vec<String> {
    let [ours, broker, database] = cpu_cells(&result.cpu_us_per_item);
    vec![
        result.broker.clone(),
        result.jobs.to_string(),
        result.tracking_shards.to_string(),
        (result.jobs * result.items_per_job).to_string(),
        format!("{:.0}", result.items_per_second),
        ours,
        broker,
        database,
        yes_or_no(exact),
    ]
}

fn part_row(result: &PartResult) -> Vec<String> {
    let name = result.part.to_possible_value();
    vec![
        name.map(|name| name.get_name().to_owned())
            .unwrap_or_default(),
        result.processes.to_string(),
        format!("{:.1}", result.cpu_us_per_item),
        memory_text(result.peak_memory_bytes),
    ]
}

fn store_row(result: &StoreBenchResult) -> Vec<String> {
    vec![
        result.store.clone(),
        result.tasks_per_flush.to_string(),
        format!("{:.0}", result.flushes_per_second),
        format!("{:.0}", result.tasks_per_second),
        format!("{:.2}", result.p50_ms),
        format!("{:.2}", result.p99_ms),
        format!("{:.1}", result.our_cpu_us_per_task),
        result.database_cpu_us_per_task.text(),
        yes_or_no(result.is_exact),
    ]
}

fn api_row(result: &ApiResult) -> Vec<String> {
    vec![
        result.what.clone(),
        result.stored_jobs.to_string(),
        result.clients.to_string(),
        format!("{:.0}", result.per_second),
        format!("{:.2}", result.p50_ms),
        format!("{:.2}", result.p99_ms),
    ]
}

fn shape_row(result: &ShapeResult) -> Vec<String> {
    let [ours, broker, database] = cpu_cells(&result.cpu_us_per_item);
    vec![
        result.shape.to_owned(),
        format!("{:.0}", result.limit),
        format!("{:.0}", result.system),
        format!("{:.2}", result.ratio.median),
        format!("{:.2}-{:.2}", result.ratio.min, result.ratio.max),
        ours,
        broker,
        database,
        yes_or_no(result.is_exact),
    ]
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
