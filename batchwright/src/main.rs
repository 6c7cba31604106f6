//! The command line: `batchwright demo`, `up`, `run ROLE`, `submit`, `get`, `list`, `count`, `watch`, `cancel`, `pause`,
//! `resume`, `bench`.

mod commands;
mod configuration;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use batchwright::client::{Client, ClientError};
use batchwright::demo::{self, DemoOptions};
use batchwright::watch::{self, Show, exit_code};
use batchwright::{BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE};
use clap::{Args, Parser, Subcommand, ValueEnum};
use commands::bench::{BenchArgs, BenchWorkerArgs};
use commands::serve::{RunArgs, UpArgs};
use configuration::Configuration;
use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, OnFailure, TaskData};
use framework::Variables;
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
    /// Lists the jobs of a partition, newest first unless sorted otherwise.
    List(ListArgs),
    /// Counts jobs of a partition.
    Count(CountArgs),
    /// Follows a job to its end; the exit code tells how it ended (0 Completed, 10 Failed, 11 Cancelled).
    Watch(JobArgs),
    /// Cancels a job.
    Cancel(JobArgs),
    /// Pauses a job: tasks that run go on to their end, and no other begins.
    Pause(JobArgs),
    /// Has a paused job go on.
    Resume(JobArgs),
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
pub struct ServerArgs {
    /// `postgres://user:password@host/database`, or `sqlite:FILE`.
    #[arg(long, env = "BATCHWRIGHT_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    /// `amqp://user:password@host:5672/%2f`.
    #[arg(long, env = "BATCHWRIGHT_BROKER", hide_env_values = true)]
    pub broker: Option<String>,
}

#[derive(Debug, Args)]
struct ServiceArgs {
    /// Where the job service is.
    #[arg(
        long,
        env = "BATCHWRIGHT_URL",
        default_value = "http://127.0.0.1:8080/job-service/v1"
    )]
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

/// Which jobs are meant.
#[derive(Debug, Args)]
struct WhichArgs {
    /// Jobs whose id begins with this.
    #[arg(long)]
    starts_with: Option<String>,
    /// `NotCompleted`, `Completed`, `Inactive` or `NotFinished`.
    #[arg(long)]
    status_type: Option<String>,
    /// A condition, e.g. `status==Failed;labels.team==search` or `name=='*test*'`.
    #[arg(long)]
    filter: Option<String>,
    /// Jobs with one of these labels, separated by commas.
    #[arg(long)]
    label_exist: Option<String>,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// What to sort by, and how, e.g. `name:asc`, `lastUpdateTime:desc` or `labels.team:asc`.
    #[arg(long)]
    sort: Option<String>,
    #[arg(long, default_value_t = 25)]
    limit: u32,
    #[arg(long, default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct CountArgs {
    #[command(flatten)]
    which: WhichArgs,
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

fn main() -> ExitCode {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = Variables::new(environment);
    let (cli, configuration) = match configuration::read::<Cli>(std::env::args_os(), &variables) {
        Ok(read) => read,
        Err(refusal) => return refusal.tell(),
    };
    set_up_log(&cli);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("batchwright: no threads can be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(execute(cli.command, &variables, &configuration));
    // The script of a job type may never end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome.unwrap_or_else(|error| {
        eprintln!("batchwright: {error:#}");
        ExitCode::FAILURE
    })
}

async fn execute(
    command: Command,
    variables: &Variables,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo(args).await,
        Command::Up(args) => commands::serve::up(args, variables, configuration).await,
        Command::Run(args) => commands::serve::run(args, variables, configuration).await,
        Command::Submit(args) => submit(args).await,
        Command::Get(args) => get(args).await,
        Command::List(args) => list(args).await,
        Command::Count(args) => count(args).await,
        Command::Watch(args) => follow(&args.job, &args.service).await,
        Command::Cancel(args) => change(&args, async |client| client.cancel(&args.job).await).await,
        Command::Pause(args) => change(&args, async |client| client.pause(&args.job).await).await,
        Command::Resume(args) => change(&args, async |client| client.resume(&args.job).await).await,
        Command::Bench(args) => commands::bench::bench(args).await,
        Command::BenchWorker(args) => commands::bench::bench_worker(args).await,
    }
}

fn set_up_log(cli: &Cli) {
    // What says nothing to whoever runs this.
    const QUIET: &str = "sqlx::postgres::notice=warn,lapin=off";
    let level = match cli.command {
        Command::Up(_) | Command::Run(_) => "info",
        _ => "error",
    };
    let filter = EnvFilter::builder()
        .parse_lossy(format!("{QUIET},{}", cli.log.as_deref().unwrap_or(level)));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

async fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let own_files = || vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")];
    let paths = if args.paths.is_empty() {
        own_files()
    } else {
        args.paths
    };
    let agree = demo::run(DemoOptions {
        paths,
        lines_per_item: args.lines_per_item,
    })
    .await?;
    Ok(if agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn submit(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.service.url, &args.service.partition)?;
    let created = client.put(&args.job, &new_job(&args)?).await?;
    if args.watch {
        return follow(&args.job, &args.service).await;
    }
    if args.service.output == Output::Json {
        println!(
            "{}",
            serde_json::json!({ "id": args.job, "created": created })
        );
    } else {
        println!(
            "{} {}",
            args.job,
            if created {
                "created"
            } else {
                "was there already"
            }
        );
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
            std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?
        };
        return serde_json::from_str(&text)
            .with_context(|| format!("{} is no job", file.display()));
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
        let (key, value) = label
            .split_once('=')
            .with_context(|| format!("{label:?} is no label; write KEY=VALUE"))?;
        labels.insert(key.to_owned(), Some(value.to_owned()));
    }
    Ok(NewJob {
        name: args.name.clone(),
        labels: (!labels.is_empty()).then_some(labels),
        on_failure: if args.continue_on_failure {
            OnFailure::Continue
        } else {
            OnFailure::Stop
        },
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
    let job = Client::new(&args.service.url, &args.service.partition)?
        .get(&args.job)
        .await?;
    show(&job, args.service.output)?;
    Ok(exit_code(job.status).into())
}

impl WhichArgs {
    fn query(self) -> Vec<(&'static str, String)> {
        let given = [
            ("jobIdStartsWith", self.starts_with),
            ("statusType", self.status_type),
            ("filter", self.filter),
            ("labelExist", self.label_exist),
        ];
        given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

async fn count(args: CountArgs) -> anyhow::Result<ExitCode> {
    let CountArgs { which, service } = args;
    println!(
        "{}",
        Client::new(&service.url, &service.partition)?
            .count(&which.query())
            .await?
    );
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let ListArgs {
        which,
        sort,
        limit,
        offset,
        service,
    } = args;
    let mut query = which.query();
    query.extend([("limit", limit.to_string()), ("offset", offset.to_string())]);
    query.extend(sort.map(|sort| ("sort", sort)));
    let jobs = Client::new(&service.url, &service.partition)?
        .list(&query)
        .await?;
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

/// Changes a job and shows it.
async fn change(
    args: &JobArgs,
    change: impl AsyncFnOnce(&Client) -> Result<(), ClientError>,
) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.service.url, &args.service.partition)?;
    change(&client).await?;
    show(&client.get(&args.job).await?, args.service.output)?;
    Ok(ExitCode::SUCCESS)
}

fn show(job: &Job, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string(job)?);
        return Ok(());
    }
    println!("{}", watch::line(job));
    for note in &job.notes {
        println!("  {note}");
    }
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
