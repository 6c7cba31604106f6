//! The command line: `batchwright demo`, `up`, `run ROLE`, `submit`, `get`, `list`, `watch`, `cancel`, `bench`.

mod commands;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use batchwright::client::Client;
use batchwright::demo::{self, DemoOptions};
use batchwright::watch::{self, Show, exit_code};
use batchwright::{BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, Role, Stack, StackOptions};
use clap::{Args, Parser, Subcommand, ValueEnum};
use commands::bench::{BenchArgs, BenchWorkerArgs};
use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, OnFailure, TaskData};
use framework::Route;
use job_service::PartitionPattern;
use mimalloc::MiMalloc;
use tracing_subscriber::EnvFilter;

/// Messages are many small allocations, made on one thread and freed on another.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Splits huge batches into items, has workers do them, and knows exactly how far each job is.
#[derive(Debug, Parser)]
#[command(name = "batchwright", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What is logged to standard error, e.g. `info` or `framework=debug`.
    #[arg(long, global = true, env = "BATCHWRIGHT_LOG")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Counts the words of files through the whole system, with nothing to install.
    Demo(DemoArgs),
    /// Runs everything in one process until it is stopped.
    Up(UpArgs),
    /// Runs one role against servers: job-service, batch-worker, tracking-worker or example-worker.
    Run(RunArgs),
    /// Creates a job from a JSON file or from flags.
    Submit(SubmitArgs),
    /// Shows a job.
    Get(JobArgs),
    /// Lists the jobs of a partition, newest first.
    List(ListArgs),
    /// Follows a job to its end; the exit code tells how it ended (0 Completed, 10 Failed, 11 Cancelled).
    Watch(JobArgs),
    /// Cancels a job.
    Cancel(JobArgs),
    /// Measures jobs of no-ops through the whole system: one, many, or one that is cancelled.
    Bench(BenchArgs),
    #[command(hide = true)]
    BenchWorker(BenchWorkerArgs),
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Files and folders; the project's own files when left out.
    paths: Vec<PathBuf>,
    /// Lines of a file that become one item, at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    lines_per_item: u64,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// `postgres://user:password@host/database`, or `sqlite:FILE`.
    #[arg(long, env = "BATCHWRIGHT_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// `amqp://user:password@host:5672/%2f`.
    #[arg(long, env = "BATCHWRIGHT_BROKER", hide_env_values = true)]
    broker: Option<String>,
}

#[derive(Debug, Args)]
struct StackArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Where the job service listens.
    #[arg(long, env = "BATCHWRIGHT_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where workers find the job service, when that is elsewhere, e.g. behind a proxy.
    #[arg(long, env = "BATCHWRIGHT_PUBLIC_URL")]
    public_url: Option<String>,
    /// The folder below which `lines` and `glob` batches find their files.
    #[arg(long, env = "BATCHWRIGHT_ROOT", default_value = ".")]
    root: PathBuf,
    /// How tracked outputs travel: direct or reroute.
    #[arg(long, env = "BATCHWRIGHT_ROUTE", default_value = "direct")]
    route: Route,
    /// Seconds that a worker relies on a status it has read.
    #[arg(long, env = "BATCHWRIGHT_STATUS_INTERVAL", default_value_t = 5)]
    status_interval: u64,
    /// Parts of a split, at most.
    #[arg(long, env = "BATCHWRIGHT_MAX_PARTS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    max_parts: u32,
    /// Batches are not split while more messages than this wait in their target pipe.
    #[arg(long, env = "BATCHWRIGHT_MAX_DEPTH", default_value_t = 100_000)]
    max_depth: u64,
    /// Tasks of a worker that run at the same time; batch and tracking worker have their own measure.
    #[arg(long, env = "BATCHWRIGHT_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Deliveries that a worker has taken and not settled, at most.
    #[arg(long, env = "BATCHWRIGHT_PREFETCH", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=65535))]
    prefetch: u32,
    /// A regular expression: new jobs of partitions that it matches as a whole are kept until `POST …/partitions/{id}/dispatch`.
    #[arg(long, env = "CAF_JOB_SERVICE_SUSPENDED_PARTITIONS_REGEX")]
    suspended_partitions: Option<PartitionPattern>,
}

#[derive(Debug, Args)]
struct UpArgs {
    /// The folder of what is kept without servers.
    #[arg(long, env = "BATCHWRIGHT_DATA", default_value = "batchwright-data")]
    data: PathBuf,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Debug, Args)]
struct RunArgs {
    role: Role,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Debug, Args)]
struct ServiceArgs {
    /// Where the job service is.
    #[arg(long, env = "BATCHWRIGHT_URL", default_value = "http://127.0.0.1:8080/job-service/v1")]
    url: String,
    /// The partition of the job.
    #[arg(long, short, env = "BATCHWRIGHT_PARTITION", default_value = "default")]
    partition: String,
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Debug, Args)]
struct JobArgs {
    job: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Jobs whose id begins with this.
    #[arg(long)]
    starts_with: Option<String>,
    /// `NotCompleted`, `Completed`, `Inactive` or `NotFinished`.
    #[arg(long)]
    status_type: Option<String>,
    #[arg(long, default_value_t = 25)]
    limit: u32,
    #[arg(long, default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct SubmitArgs {
    /// The id of the job.
    job: String,
    /// The whole request as JSON; `-` reads standard input.
    #[arg(long, short, conflicts_with_all = ["batch_type", "definition"])]
    file: Option<PathBuf>,
    /// The batch plugin: range, list, lines or glob.
    #[arg(long, requires = "definition")]
    batch_type: Option<String>,
    /// What to split, as the plugin understands it, e.g. 1-1000.
    #[arg(long, requires = "batch_type")]
    definition: Option<String>,
    /// The pipe of the batch worker.
    #[arg(long, default_value = BATCH_PIPE)]
    task_pipe: String,
    /// The pipe that receives the items.
    #[arg(long, default_value = EXAMPLE_PIPE)]
    item_pipe: String,
    /// The pipe at which an item is done; `none` for workers without output.
    #[arg(long, default_value = EXAMPLE_OUT_PIPE)]
    target_pipe: String,
    /// The type of the items, where the plugin's own does not fit.
    #[arg(long)]
    item_type: Option<String>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// KEY=VALUE; may be given again.
    #[arg(long = "label")]
    labels: Vec<String>,
    /// Goes on when a task fails.
    #[arg(long)]
    continue_on_failure: bool,
    /// Follows the job to its end.
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    set_up_log(&cli);
    let outcome = match cli.command {
        Command::Demo(args) => demo(args).await,
        Command::Up(args) => up(args).await,
        Command::Run(args) => run(args).await,
        Command::Submit(args) => submit(args).await,
        Command::Get(args) => get(args).await,
        Command::List(args) => list(args).await,
        Command::Watch(args) => follow(&args.job, &args.service).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Bench(args) => commands::bench::bench(args).await,
        Command::BenchWorker(args) => commands::bench::bench_worker(args).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("batchwright: {error:#}");
        ExitCode::FAILURE
    })
}

fn set_up_log(cli: &Cli) {
    let default = match cli.command {
        Command::Up(_) | Command::Run(_) => "info,sqlx::postgres::notice=warn,lapin=off",
        _ => "error,lapin=off",
    };
    let filter = EnvFilter::builder().parse_lossy(cli.log.as_deref().unwrap_or(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
}

async fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let own_files = || vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")];
    let paths = if args.paths.is_empty() { own_files() } else { args.paths };
    let agree = demo::run(DemoOptions { paths, lines_per_item: args.lines_per_item }).await?;
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl StackArgs {
    fn options(self, data: PathBuf, roles: Vec<Role>) -> anyhow::Result<StackOptions> {
        Ok(StackOptions {
            database: self.servers.database,
            broker: self.servers.broker,
            wait_for_database: true,
            listen: self.listen,
            public_url: self.public_url,
            roles,
            route: self.route,
            status_interval: Duration::from_secs(self.status_interval),
            max_parts: usize::try_from(self.max_parts)?,
            max_depth: self.max_depth,
            root: self.root,
            concurrency: usize::try_from(self.concurrency)?,
            prefetch: self.prefetch,
            suspended_partitions: self.suspended_partitions,
            ..StackOptions::embedded(data)
        })
    }
}

async fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let roles = vec![Role::JobService, Role::BatchWorker, Role::TrackingWorker, Role::ExampleWorker];
    let running = Stack::new(args.stack.options(args.data, roles)?).start().await?;
    println!("API         {}", running.api_url());
    println!("Swagger UI  {}/job-service-ui/", running.url());
    println!("health      {}/health-check?name=all&type=READY", running.url());
    std::io::stdout().flush()?;
    running.until_asked_to_stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let RunArgs { role, stack } = args;
    if stack.servers.broker.is_none() {
        bail!("a role by itself needs a broker that it shares with the others: --broker amqp://…");
    }
    if matches!(role, Role::JobService | Role::TrackingWorker) && stack.servers.database.is_none() {
        bail!("this role needs a database that it shares with the others: --database postgres://…");
    }
    let running = Stack::new(stack.options(PathBuf::new(), vec![role])?).start().await?;
    println!("listening at {}", running.url());
    std::io::stdout().flush()?;
    running.until_asked_to_stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn submit(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.service.url, &args.service.partition)?;
    let created = client.put(&args.job, &new_job(&args)?).await?;
    if args.watch {
        return follow(&args.job, &args.service).await;
    }
    if args.service.output == Output::Json {
        println!("{}", serde_json::json!({ "id": args.job, "created": created }));
    } else {
        println!("{} {}", args.job, if created { "created" } else { "was there already" });
    }
    Ok(ExitCode::SUCCESS)
}

fn new_job(args: &SubmitArgs) -> anyhow::Result<NewJob> {
    if let Some(file) = &args.file {
        let text = if file.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        } else {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
        };
        return serde_json::from_str(&text).with_context(|| format!("{} is no job", file.display()));
    }
    let (Some(batch_type), Some(definition)) = (&args.batch_type, &args.definition) else {
        bail!("say what the job is: --file JOB.json, or --batch-type with --definition");
    };
    let batch = BatchTask {
        batch_type: Some(batch_type.clone()),
        batch_definition: Some(definition.clone()),
        task_message_type: args.item_type.clone(),
        target_pipe: Some(args.item_pipe.clone()),
        ..BatchTask::default()
    };
    let mut labels = BTreeMap::new();
    for label in &args.labels {
        let (key, value) = label.split_once('=').with_context(|| format!("{label:?} is no label; write KEY=VALUE"))?;
        labels.insert(key.to_owned(), Some(value.to_owned()));
    }
    Ok(NewJob {
        name: args.name.clone(),
        labels: (!labels.is_empty()).then_some(labels),
        on_failure: if args.continue_on_failure { OnFailure::Continue } else { OnFailure::Stop },
        task: Some(JobTask {
            task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
            task_api_version: Some(BatchTask::API_VERSION),
            task_data: Some(serde_json::to_value(batch)?),
            task_pipe: Some(args.task_pipe.clone()),
            target_pipe: (args.target_pipe != "none").then(|| args.target_pipe.clone()),
            ..JobTask::default()
        }),
        ..NewJob::default()
    })
}

async fn get(args: JobArgs) -> anyhow::Result<ExitCode> {
    let job = Client::new(&args.service.url, &args.service.partition)?.get(&args.job).await?;
    show(&job, args.service.output)?;
    Ok(exit_code(job.status).into())
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let ListArgs { starts_with, status_type, limit, offset, service } = args;
    let mut query = vec![("limit", limit.to_string()), ("offset", offset.to_string())];
    query.extend(starts_with.map(|prefix| ("jobIdStartsWith", prefix)));
    query.extend(status_type.map(|status| ("statusType", status)));
    let jobs = Client::new(&service.url, &service.partition)?.list(&query).await?;
    if service.output == Output::Json {
        println!("{}", serde_json::to_string(&jobs)?);
    } else {
        for job in &jobs {
            println!("{}", watch::line(job));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow(job: &str, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&service.url, &service.partition)?;
    let job = watch::follow(&client, job, Show::Progress, |_| {}).await?;
    show(&job, service.output)?;
    Ok(exit_code(job.status).into())
}

async fn cancel(args: JobArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.service.url, &args.service.partition)?;
    client.cancel(&args.job).await?;
    show(&client.get(&args.job).await?, args.service.output)?;
    Ok(ExitCode::SUCCESS)
}

fn show(job: &Job, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string(job)?);
        return Ok(());
    }
    println!("{}", watch::line(job));
    for failure in &job.failures {
        let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "-".to_owned());
        println!(
            "  task {:?} {} in {}: {}",
            failure.task_id,
            text(&failure.failure_id),
            text(&failure.failure_source),
            text(&failure.failure_message)
        );
    }
    Ok(())
}
