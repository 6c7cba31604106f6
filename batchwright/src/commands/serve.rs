//! `batchwright up` and `batchwright run ROLE`: what runs until it is stopped.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use batchwright::{BatchResults, Role, Stack, StackOptions, TRACKING_PIPE};
use clap::Args;
use contract::PAUSED_PIPE;
use contract::rest::{Expiry, ExpiryPolicy, Policer};
use framework::broker::amqp::QueueType;
use framework::{Route, Variables};
use job_service::{JobTypes, PartitionPattern};
use store::KeptUntil;

use crate::ServerArgs;
use crate::configuration::Configuration;

#[derive(Debug, Args)]
pub struct StackArgs {
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
    /// How queues are made: quorum or classic. All who share a broker must agree.
    #[arg(long, env = "BATCHWRIGHT_QUEUE_TYPE", default_value = "quorum")]
    queue_type: QueueType,
    /// The pipe of the tracking worker.
    #[arg(long, env = "BATCHWRIGHT_TRACKING_PIPE", default_value = TRACKING_PIPE)]
    tracking_pipe: String,
    /// The pipe to which workers hand over the tasks of paused jobs.
    #[arg(long, env = "BATCHWRIGHT_PAUSED_PIPE", default_value = PAUSED_PIPE)]
    paused_pipe: String,
    /// What the batch worker sends to its output pipe: none, only-of-empty-batches or all.
    #[arg(long, env = "BATCHWRIGHT_BATCH_RESULTS", default_value = "none")]
    batch_results: BatchResults,
    /// The output pipe of the batch worker, for results and failures.
    #[arg(long, env = "BATCHWRIGHT_BATCH_OUTPUT")]
    batch_output: Option<String>,
    #[command(flatten)]
    jobs: JobsArgs,
}

/// What only the job service and the store need.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// The folder of the job type definitions.
    #[arg(long, env = "BATCHWRIGHT_JOB_TYPES")]
    job_types: Option<PathBuf>,
    /// Jobs in a list that names no limit.
    #[arg(long, env = "BATCHWRIGHT_PAGE_SIZE", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    /// Jobs that are cancelled in one transaction, when many are.
    #[arg(long, env = "BATCHWRIGHT_CANCEL_BATCH", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    cancel_batch: u32,
    /// Jobs that are deleted in one transaction, when many are.
    #[arg(long, env = "BATCHWRIGHT_DELETE_BATCH", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    delete_batch: u32,
    /// A regular expression: new jobs of partitions that it matches as a whole are kept until `POST …/partitions/{id}/dispatch`.
    #[arg(long, env = "BATCHWRIGHT_SUSPENDED_PARTITIONS")]
    suspended_partitions: Option<PartitionPattern>,
    /// How long completed jobs are kept that do not say it: none, lastUpdateTime+P30D, createTime+PT9H.
    #[arg(long, env = "BATCHWRIGHT_KEEP_COMPLETED", default_value = "none", value_parser = a_time_of_expiry)]
    keep_completed: String,
    /// How long failed jobs are kept that do not say it.
    #[arg(long, env = "BATCHWRIGHT_KEEP_FAILED", default_value = "none", value_parser = a_time_of_expiry)]
    keep_failed: String,
    /// How long cancelled jobs are kept that do not say it.
    #[arg(long, env = "BATCHWRIGHT_KEEP_CANCELLED", default_value = "none", value_parser = a_time_of_expiry)]
    keep_cancelled: String,
    /// How long the tasks of a failed job are kept, as a span: P1D, PT12H.
    #[arg(long, env = "BATCHWRIGHT_KEEP_FAILED_TASKS", default_value = "P1D", value_parser = store::span)]
    keep_failed_tasks: Duration,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The folder of what is kept without servers.
    #[arg(long, env = "BATCHWRIGHT_DATA", default_value = "batchwright-data")]
    data: PathBuf,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    role: Role,
    /// The pipe that the role takes its tasks from, where that is not its usual one.
    #[arg(long, env = "BATCHWRIGHT_INPUT_PIPE")]
    input_pipe: Option<String>,
    #[command(flatten)]
    stack: StackArgs,
}

impl StackArgs {
    fn options(
        self,
        data: PathBuf,
        roles: Vec<Role>,
        variables: &Variables,
    ) -> anyhow::Result<StackOptions> {
        let lookup = |name: &str| variables.get(name).map(str::to_owned);
        let job_types = self
            .jobs
            .job_types
            .as_deref()
            .map(|folder| JobTypes::load(folder, lookup))
            .transpose()?
            .unwrap_or_default();
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
            queue_type: self.queue_type,
            tracking_pipe: self.tracking_pipe,
            paused_pipe: self.paused_pipe,
            batch_results: self.batch_results,
            batch_output: self.batch_output,
            job_types,
            page_size: self.jobs.page_size,
            batches: (self.jobs.cancel_batch, self.jobs.delete_batch),
            suspended_partitions: self.jobs.suspended_partitions,
            expiry: Expiry {
                completed: policy(self.jobs.keep_completed),
                failed: policy(self.jobs.keep_failed),
                cancelled: policy(self.jobs.keep_cancelled),
            },
            failed_tasks_kept: self.jobs.keep_failed_tasks,
            ..StackOptions::embedded(data)
        })
    }
}

pub async fn up(
    args: UpArgs,
    variables: &Variables,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let roles = vec![
        Role::JobService,
        Role::BatchWorker,
        Role::TrackingWorker,
        Role::ExampleWorker,
    ];
    configuration.log();
    let running = Stack::new(args.stack.options(args.data, roles, variables)?)
        .start()
        .await?;
    println!("API         {}", running.api_url());
    println!("Swagger UI  {}/job-service-ui/", running.url());
    println!(
        "health      {}/health-check?name=all&type=READY",
        running.url()
    );
    std::io::stdout().flush()?;
    running.until_asked_to_stop().await?;
    Ok(ExitCode::SUCCESS)
}

pub async fn run(
    args: RunArgs,
    variables: &Variables,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let RunArgs {
        role,
        input_pipe,
        stack,
    } = args;
    if stack.servers.broker.is_none() {
        bail!("a role by itself needs a broker that it shares with the others: --broker amqp://…");
    }
    if matches!(role, Role::JobService | Role::TrackingWorker) && stack.servers.database.is_none() {
        bail!("this role needs a database that it shares with the others: --database postgres://…");
    }
    configuration.log();
    let mut options = stack.options(PathBuf::new(), vec![role], variables)?;
    if let Some(pipe) = input_pipe {
        match role {
            Role::BatchWorker => options.batch_pipe = pipe,
            Role::TrackingWorker => options.tracking_pipe = pipe,
            Role::ExampleWorker => options.example_pipe = pipe,
            // It takes requests.
            Role::JobService => {}
        }
    }
    let running = Stack::new(options).start().await?;
    println!("listening at {}", running.url());
    std::io::stdout().flush()?;
    running.until_asked_to_stop().await?;
    Ok(ExitCode::SUCCESS)
}

fn a_time_of_expiry(text: &str) -> Result<String, String> {
    text.parse::<KeptUntil>().map(|_| text.to_owned())
}

fn policy(expiry_time: String) -> Option<ExpiryPolicy> {
    (expiry_time != "none").then(|| ExpiryPolicy {
        expiry_time,
        policer: Some(Policer::System),
        ..ExpiryPolicy::default()
    })
}
