//! `batchwright up` and `batchwright run ROLE`: the commands that serve until they are stopped.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use batchwright::client::Client;
use batchwright::{
    Role, Running, Stack, StackOptions,
    advanced::{BatchOptions, BatchResults, OutputLimits, TRACKING_PIPE},
};
use blobs::{Blobs, BucketOptions, ExportStore, Location};
use clap::Args;
use contract::rest::{Expiry, ExpiryPolicy, Policer};
use contract::{OUTPUTS_PIPE, PAUSED_PIPE, TrackingShards};
use framework::broker::embedded::{EmbeddedOptions, UnreadBounds};
use framework::config::env::Variables;
use framework::tls::Tls;
use framework::trace::{self, Export, SampleRatio};
use job_service::{JobTypes, OutputOptions, PartitionPattern, ServiceOptions, StuckLimits};
use store::{KeptUntil, StoreOptions};

use super::api::ApiArgs;
use super::calls::CallArgs;
use super::commands::{self, CommandArgs};
use super::condition_args::ConditionArgs;
use super::connect::ServerArgs;
use super::letter_args::LetterArgs;
use super::planned_panics::PanicArgs;
use super::queue_args::QueueArgs;
use super::script;
use super::source_args::{SourceArgs, named_location};
use super::upload_args::UploadArgs;
use super::worker_args::WorkerArgs;
use crate::config::Configuration;
use crate::print;
use crate::showcase;

/// The default reserve of the disk, in megabytes.
const DISK_RESERVE: u64 = EmbeddedOptions::DEFAULT_RESERVE >> 20;
/// The default bound of results that nobody reads, in megabytes.
const MAX_UNREAD: u64 = UnreadBounds::DEFAULT.bytes >> 20;

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Folder of the embedded broker and database; used where `--broker` or `--database` is
    /// missing.
    #[arg(long, default_value = "batchwright-data", value_name = "FOLDER")]
    data: PathBuf,
    /// Megabytes (MiB) of results that stay in the embedded broker's pipes that nobody reads; the
    /// oldest ones beyond are dropped.
    #[arg(long, default_value_t = MAX_UNREAD, value_parser = clap::value_parser!(u64).range(1..1 << 40), value_name = "MEGABYTES")]
    max_unread: u64,
    /// How long such results stay, e.g. `P7D` or `PT12H`; older ones are dropped.
    #[arg(long, default_value = "P7D", value_parser = store::span, value_name = "DURATION")]
    max_unread_age: Duration,
    /// Fill the partition `demo` with jobs of every status, by the simulation worker, and go on
    /// doing so.
    #[arg(long)]
    demo: bool,
    /// Let jobs bring commands of their own, which run as you (`batchwright submit … -- COMMAND`).
    /// Refused unless the REST API listens on a loopback address and the broker is the embedded
    /// one.
    #[arg(long)]
    allow_any_command: bool,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Role to run: `job-service`, `batch-worker`, `tracking-worker`, `output-worker`,
    /// `command-worker`, `example-worker`, `simulation-worker` or `noop-worker`.
    role: Role,
    /// Input pipe of the role, if it is not the default one.
    #[arg(long, value_name = "PIPE")]
    input_pipe: Option<String>,
    /// Shard of the tracking pipe, from 0 to 63, that this tracking worker reads; repeat the flag,
    /// or separate numbers with commas. With shard 0 it reads the tracking pipe itself, too; by
    /// default, it reads all of them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..i64::from(TrackingShards::MOST)), value_name = "SHARD")]
    shard: Vec<u32>,
    #[command(flatten)]
    stack: StackArgs,
}

/// The flags of `up` and `run`. Each group becomes one part of the [`StackOptions`].
#[derive(Debug, Args)]
struct StackArgs {
    /// Address that the REST API listens on; for a worker role, the address of its health and
    /// metrics.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// URL at which workers reach the REST API if it is not the listen address, e.g. behind a
    /// proxy.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    queues: QueueArgs,
    /// Collector that receives traces by OTLP over HTTP, e.g. `http://localhost:4318`; without one,
    /// no spans are exported.
    #[arg(long, hide_env_values = true, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Share of the traces beginning in this process that is exported, from 0 to 1; a `traceparent`
    /// from outside decides for itself.
    #[arg(long, default_value_t, value_name = "RATIO")]
    otlp_ratio: SampleRatio,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    commands: CommandArgs,
    #[command(flatten)]
    calls: CallArgs,
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    outputs: OutputArgs,
    #[command(flatten)]
    letters: LetterArgs,
    #[command(flatten)]
    uploads: UploadArgs,
    #[command(flatten)]
    conditions: ConditionArgs,
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    panics: PanicArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Batch worker")]
struct BatchArgs {
    /// Folder below which `lines`, `glob` and `records` batches find their files.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    root: PathBuf,
    /// Maximum number of parts of one split, from 10 to 1000000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000), value_name = "PARTS")]
    max_parts: u32,
    /// How much work waits in a target pipe at the most: what its workers take in this time, from 1
    /// to 3600 seconds. A new job waits about that long behind others.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600), value_name = "SECONDS")]
    target_wait: u64,
    /// Number of items that wait in a target pipe at the most, however fast its workers are.
    #[arg(long, default_value_t = 100_000, value_name = "ITEMS")]
    max_depth: u64,
    /// Number of items above which a job fails.
    #[arg(long, default_value_t = 10_000_000_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "ITEMS")]
    max_items: u64,
    /// Results that the batch worker sends to its output pipe: `none`, `only-of-empty-batches` or
    /// `all`.
    #[arg(long, default_value = "none", value_name = "RESULTS")]
    batch_results: BatchResults,
    /// Output pipe of the batch worker, for results and failures.
    #[arg(long, value_name = "PIPE")]
    batch_output: Option<String>,
}

/// The settings of the job service and the store, and the pipes that the job service and the
/// workers share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job service")]
struct JobsArgs {
    /// Input pipe of the tracking worker.
    #[arg(long, default_value = TRACKING_PIPE, value_name = "PIPE")]
    tracking_pipe: String,
    /// Number of shards of the tracking pipe, from 1 to 64, among which the job service spreads new
    /// jobs; with 1, all jobs use the pipe itself.
    #[arg(long, default_value_t, value_name = "SHARDS")]
    tracking_shards: TrackingShards,
    /// Pipe to which workers send the tasks of paused jobs.
    #[arg(long, default_value = PAUSED_PIPE, value_name = "PIPE")]
    paused_pipe: String,
    /// Seconds for which a worker trusts a job status; a cancelled job may keep running that long.
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    status_interval: u64,
    /// Seconds after which the log and the job say that nothing has been reported of it.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    stuck_job: u64,
    /// Number of tasks of one pipe that may wait for one condition. At this number, workers keep
    /// further ones and take nothing.
    #[arg(long, default_value_t = ServiceOptions::DEFAULT_BLOCKED, value_parser = clap::value_parser!(u64).range(1..), value_name = "TASKS")]
    max_blocked: u64,
    /// Number of conditions that tasks may wait for. At this number, tasks that wait for further
    /// ones wait together, and one of them tests for all.
    #[arg(long, default_value_t = StoreOptions::DEFAULT_CONDITIONS, value_parser = clap::value_parser!(u64).range(1..=100_000), value_name = "CONDITIONS")]
    max_conditions: u64,
    /// Folder of the job type definitions.
    #[arg(long, value_name = "FOLDER")]
    job_types: Option<PathBuf>,
    /// Number of jobs that a list returns if the request names no limit.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..), value_name = "JOBS")]
    page_size: u32,
    /// Number of jobs per transaction when one request cancels many jobs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "JOBS")]
    cancel_batch: u32,
    /// Number of jobs per transaction when one request deletes many jobs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "JOBS")]
    delete_batch: u32,
    /// Partitions whose new jobs wait for `POST …/partitions/{id}/dispatch`; the expression must
    /// match the whole id.
    #[arg(long, value_name = "REGEX")]
    suspended_partitions: Option<PartitionPattern>,
    /// Default expiry of completed jobs, e.g. `lastUpdateTime+P30D` or `createTime+PT9H`; `none`
    /// keeps them.
    #[arg(long, default_value = "none", value_parser = expiry_time, value_name = "EXPIRY")]
    keep_completed: String,
    /// Default expiry of failed jobs, in the format of `--keep-completed`.
    #[arg(long, default_value = "none", value_parser = expiry_time, value_name = "EXPIRY")]
    keep_failed: String,
    /// Default expiry of cancelled jobs, in the format of `--keep-completed`.
    #[arg(long, default_value = "none", value_parser = expiry_time, value_name = "EXPIRY")]
    keep_cancelled: String,
    /// How long the task records of a failed or cancelled job are kept, so that it can be retried,
    /// e.g. `P1D` or `PT12H`.
    #[arg(long, default_value = "P1D", value_parser = store::span, value_name = "DURATION")]
    keep_failed_tasks: Duration,
    /// How long the `Idempotency-Key` of a request is remembered, e.g. `P1D` or `PT12H`.
    #[arg(long, default_value = "P1D", value_parser = store::span, value_name = "DURATION")]
    keep_idempotency_keys: Duration,
    /// How long the events of all jobs are kept, for clients that come back to an event stream,
    /// e.g. `P1D` or `PT12H`.
    #[arg(long, default_value = "P1D", value_parser = store::span, value_name = "DURATION")]
    keep_events: Duration,
    /// Number of these events, from 1000; beyond it, the oldest are deleted first.
    #[arg(long, default_value_t = StoreOptions::DEFAULT_EVENTS, value_parser = clap::value_parser!(u64).range(1000..), value_name = "EVENTS")]
    max_events: u64,
    /// Number of failures of a job that are kept, and of failed attempts, from 100 to 1000000;
    /// further ones are only counted.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000), value_name = "FAILURES")]
    max_failures: u32,
    /// Number of failed and cancelled jobs whose task records are kept; beyond it, the oldest are
    /// deleted first.
    #[arg(long, default_value_t = StoreOptions::DEFAULT_TABLES, value_parser = clap::value_parser!(u32), value_name = "JOBS")]
    max_failed_tables: u32,
}

/// The settings of the outputs that are kept, which the output worker and the job service share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kept outputs")]
struct OutputArgs {
    /// Pipe to which workers send the results of jobs with `"outputs": "keep"`.
    #[arg(long, default_value = OUTPUTS_PIPE, value_name = "PIPE")]
    outputs_pipe: String,
    /// Folder of the outputs, which output worker and job service share, or `s3://BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; `up` uses `outputs` in `--data` by default.
    #[arg(long, value_name = "FOLDER")]
    outputs_folder: Option<Location>,
    /// Place to which clients may export outputs, and the name by which they call it: a folder,
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; repeat the flag, or
    /// separate places with commas.
    #[arg(long, value_delimiter = ',', value_parser = named_location, value_name = "NAME=PLACE")]
    export_store: Vec<(String, Location)>,
    /// URL of the store where `s3://…` is not Amazon's, e.g. `https://minio.example.com`; by
    /// default `AWS_ENDPOINT_URL`.
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
    /// Region of `s3://…`; by default `AWS_REGION`, else `us-east-1`.
    #[arg(long, value_name = "REGION")]
    s3_region: Option<String>,
    /// URL of the store where `gs://…` is not Google's, e.g. that of an emulator; by default
    /// `GOOGLE_BASE_URL`.
    #[arg(long, value_name = "URL")]
    gs_endpoint: Option<String>,
    /// URL of the account of `az://…` where it is not `https://ACCOUNT.blob.core.windows.net`; by
    /// default `AZURE_STORAGE_ENDPOINT`.
    #[arg(long, value_name = "URL")]
    az_endpoint: Option<String>,
    /// Megabytes (MiB) of disk that the embedded broker leaves free, and half of which kept outputs
    /// leave free; with less, messages and outputs wait until some are deleted.
    #[arg(long, default_value_t = DISK_RESERVE, value_parser = clap::value_parser!(u64).range(..1 << 40), value_name = "MEGABYTES")]
    disk_reserve: u64,
    /// Number of outputs that are kept of a job; further ones are counted.
    #[arg(long, default_value_t = OutputLimits::DEFAULT_PER_JOB, value_name = "OUTPUTS")]
    outputs_per_job: u64,
    /// MiB of outputs that are kept of a job; further ones are counted.
    #[arg(long, default_value_t = OutputLimits::DEFAULT_BYTES_PER_JOB >> 20, value_parser = clap::value_parser!(u64).range(..1 << 40), value_name = "MEGABYTES")]
    outputs_size_per_job: u64,
    /// MiB of outputs that are kept of all jobs; further ones are counted.
    #[arg(long, default_value_t = OutputLimits::DEFAULT_BYTES >> 20, value_parser = clap::value_parser!(u64).range(..1 << 40), value_name = "MEGABYTES")]
    outputs_size: u64,
    /// How long outputs are kept after the end of their job, e.g. `P30D`; they are deleted with the
    /// job in any case.
    #[arg(long, default_value = "P30D", value_parser = store::span, value_name = "DURATION")]
    keep_outputs: Duration,
}

/// Runs all roles in this process.
pub async fn up(
    args: UpArgs,
    variables: &Variables,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    configuration.log("up");
    args.stack.export_spans("batchwright")?;
    let (panics, shows) = (args.stack.panics, args.demo);
    let options = args.options(variables)?;
    let (has_page, data) = (options.service.page, options.data_folder());
    let running = Stack::new(options).start().await?;
    let (api, url) = (running.api_url(), running.url());
    let data = data.map(|folder| std::fs::canonicalize(&folder).unwrap_or(folder));
    let addresses = [
        Some(format!("API         {api}")),
        has_page.then(|| format!("web page    {url}/")),
        data.map(|folder| format!("data        {}", folder.display())),
        shows.then(|| format!("demo        {url}/partitions/{}/jobs", showcase::PARTITION)),
        Some(format!("Swagger UI  {url}/job-service-ui/")),
        Some(format!(
            "health      {url}/health-check?name=all&type=READY"
        )),
    ];
    tell(addresses.into_iter().flatten());
    if !shows {
        return serve(running, panics).await;
    }
    let client = Client::new(&api, showcase::PARTITION);
    let health = running.health().clone();
    tokio::select! {
        ended = serve(running, panics) => ended,
        never = showcase::run(&client, &health, print::now) => match never {},
    }
}

/// Runs one role in this process.
pub async fn run(
    args: RunArgs,
    variables: &Variables,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let servers = &args.stack.servers;
    if servers.broker.is_none() {
        bail!("`run` needs a broker that all roles share; pass --broker amqp://…");
    }
    if args.role.needs_store() && servers.database.is_none() {
        bail!("this role needs a database that the roles share; pass --database postgres://…");
    }
    if args.role == Role::OutputWorker && args.stack.outputs.outputs_folder.is_none() {
        bail!(
            "the output worker needs a folder that it shares with the job service; pass --outputs-folder FOLDER"
        );
    }
    if args.role != Role::TrackingWorker && !args.shard.is_empty() {
        bail!(
            "--shard is for the tracking worker; `run {}` has no shards",
            args.role.name()
        );
    }
    if args.role == Role::CommandWorker && args.stack.commands.commands.is_none() {
        bail!("the command worker needs commands; define some in a file and pass --commands FILE");
    }
    configuration.log(&format!("run {}", args.role.name()));
    args.stack
        .export_spans(&format!("batchwright {}", args.role.name()))?;
    let panics = args.stack.panics;
    let running = Stack::new(args.options(variables)?).start().await?;
    tell([format!("listening at {}", running.url())]);
    serve(running, panics).await
}

/// Serves until the process is asked to stop, or cannot go on.
async fn serve(running: Running, panics: PanicArgs) -> anyhow::Result<ExitCode> {
    let health = running.health().clone();
    let ended = tokio::select! {
        ended = running.until_asked_to_stop() => ended,
        never = panics.plan(&health) => match never {},
    };
    trace::flush().await;
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Tells on standard output where the system is. It serves whether anybody reads that or not.
fn tell(lines: impl IntoIterator<Item = String>) {
    for line in lines {
        if let Err(error) = print::line(format_args!("{line}")) {
            return tracing::warn!(%error, "the addresses of the system are not told");
        }
    }
}

impl UpArgs {
    /// Returns the options of a stack with all roles.
    pub fn options(self, variables: &Variables) -> anyhow::Result<StackOptions> {
        let folder = self.data.join("outputs");
        let mut stack = self.stack;
        stack
            .outputs
            .outputs_folder
            .get_or_insert(Location::Folder(folder));
        let reserve = stack.outputs.disk_reserve << 20;
        let mut runs = stack.commands.options(variables)?;
        if self.allow_any_command {
            let broker = stack.servers.broker.as_deref();
            runs = commands::allow_any(runs, stack.listen, broker, variables)?;
        }
        Ok(StackOptions {
            roles: Role::ALL.to_vec(),
            commands: Some(runs),
            embedded: EmbeddedOptions {
                reserve,
                unread: UnreadBounds {
                    bytes: self.max_unread << 20,
                    age: self.max_unread_age,
                },
                ..EmbeddedOptions::default()
            },
            ..stack.options(self.data, variables, true)?
        })
    }
}

impl RunArgs {
    /// Returns the options of a stack with this role only.
    pub fn options(self, variables: &Variables) -> anyhow::Result<StackOptions> {
        let runs = match self.role {
            Role::CommandWorker => Some(self.stack.commands.options(variables)?),
            _ => None,
        };
        let mut options = StackOptions {
            roles: vec![self.role],
            commands: runs,
            tracked_shards: self.shard,
            ..self.stack.options(PathBuf::new(), variables, false)?
        };
        if let Some(pipe) = self.input_pipe {
            match self.role {
                Role::BatchWorker => options.batch.input = pipe,
                Role::TrackingWorker => options.service.tracking_pipe = pipe,
                Role::OutputWorker => options.service.outputs.pipe = pipe,
                Role::ExampleWorker => options.example_pipe = pipe,
                Role::SimulationWorker => options.simulation_pipe = pipe,
                Role::NoopWorker => options.noop_pipe = pipe,
                Role::CommandWorker => options.command_pipe = pipe,
                // It has no input pipe.
                Role::JobService => {}
            }
        }
        Ok(options)
    }
}

impl StackArgs {
    /// Begins to export spans, if there is a collector.
    fn export_spans(&self, service: &str) -> anyhow::Result<()> {
        if let Some(endpoint) = &self.otlp_endpoint {
            let export = Export {
                endpoint,
                service,
                ratio: self.otlp_ratio,
                tls: &self.servers.tls.load()?,
            };
            trace::set_up(&export)
                .map_err(|error| anyhow!("--otlp-endpoint is refused: {error}"))?;
        }
        Ok(())
    }

    fn options(
        self,
        data: PathBuf,
        variables: &Variables,
        is_up: bool,
    ) -> anyhow::Result<StackOptions> {
        let (mut service, store) = self.jobs.options(variables)?;
        service.status_origins = self.workers.status_origins.clone();
        let own = || StackOptions::letter_pipes(&service.paused_pipe);
        service.letters = self.letters.options(is_up, own);
        service.stuck.task = self.workers.stuck_task();
        service.stuck.condition = self.conditions.old_condition();
        service.conditions = self.conditions.options()?;
        let (outputs, tls) = (self.outputs.limits(), self.servers.tls.load()?);
        let buckets = self.outputs.buckets(variables, &tls);
        service.outputs = self.outputs.options(&buckets)?;
        let (readers, source_limits) = self.sources.readers()?;
        let sources = self.sources.sources(&buckets, &tls)?;
        service.uploads = self.uploads.options();
        Ok(StackOptions {
            tls,
            database: self.servers.database,
            broker: self.servers.broker,
            queue_type: self.queues.queue_type,
            max_priority: self.queues.max_priority,
            wait_for_database: true,
            listen: self.listen,
            public_url: self.public_url,
            root: self.batch.root,
            sources,
            simulation_calls: self.calls.calls(),
            workers: self.workers.options()?,
            batch: BatchOptions {
                output: self.batch.batch_output,
                results: self.batch.batch_results,
                max_parts: usize::try_from(self.batch.max_parts)?,
                target_wait: Duration::from_secs(self.batch.target_wait),
                max_depth: self.batch.max_depth,
                max_items: self.batch.max_items,
                readers,
                source_limits,
                ..BatchOptions::default()
            },
            service: self.api.apply_to(service)?,
            outputs,
            store: StoreOptions {
                max_items: self.batch.max_items,
                letters: self.letters.limits(),
                ..store
            },
            ..StackOptions::embedded(data)
        })
    }
}

impl OutputArgs {
    const fn limits(&self) -> OutputLimits {
        OutputLimits {
            per_job: self.outputs_per_job,
            bytes_per_job: self.outputs_size_per_job << 20,
            bytes: self.outputs_size << 20,
        }
    }

    /// Returns how buckets are reached, also those that batches read.
    fn buckets(&self, variables: &Variables, tls: &Tls) -> BucketOptions {
        let variable = |name: &str| Some((name.to_owned(), variables.get(name)?.to_owned()));
        BucketOptions {
            s3_endpoint: self.s3_endpoint.clone(),
            s3_region: self.s3_region.clone(),
            gs_endpoint: self.gs_endpoint.clone(),
            az_endpoint: self.az_endpoint.clone(),
            authorities: tls.authorities_pem().to_vec(),
            variables: BucketOptions::VARIABLES
                .iter()
                .filter_map(|name| variable(name))
                .collect(),
        }
    }

    fn options(self, buckets: &BucketOptions) -> anyhow::Result<OutputOptions> {
        let reserve = self.disk_reserve << 20;
        let mut export_stores = BTreeMap::new();
        for (name, location) in self.export_store {
            let store = ExportStore::at(&location, reserve, buckets)?;
            if export_stores.insert(name.clone(), store).is_some() {
                bail!("--export-store names {name:?} twice");
            }
        }
        let blobs = self
            .outputs_folder
            .map(|location| Blobs::at(&location, buckets));
        Ok(OutputOptions {
            pipe: self.outputs_pipe,
            // The broker may use the upper half of the reserve for pipes that are being emptied, as
            // this one is: what an output takes, its message gives back.
            blobs: blobs.transpose()?.map(|blobs| blobs.leaving(reserve / 2)),
            export_stores,
            keep: Some(self.keep_outputs),
        })
    }
}

impl JobsArgs {
    fn options(self, variables: &Variables) -> anyhow::Result<(ServiceOptions, StoreOptions)> {
        let lookup = |name: &str| variables.get(name).map(str::to_owned);
        let job_types = self
            .job_types
            .as_deref()
            .map(|folder| JobTypes::load(folder, lookup))
            .transpose()?
            .map(|types| types.in_processes(script::process()))
            .unwrap_or_default();
        let service = ServiceOptions {
            tracking_pipe: self.tracking_pipe,
            tracking_shards: self.tracking_shards,
            paused_pipe: self.paused_pipe,
            status_check_interval: Duration::from_secs(self.status_interval),
            page_size: self.page_size,
            cancel_batch: self.cancel_batch,
            delete_batch: self.delete_batch,
            suspended_partitions: self.suspended_partitions,
            stuck: StuckLimits {
                job: Duration::from_secs(self.stuck_job),
                ..StuckLimits::default()
            },
            most_blocked: self.max_blocked,
            job_types,
            expiry: Expiry {
                completed: expiry_policy(self.keep_completed),
                failed: expiry_policy(self.keep_failed),
                cancelled: expiry_policy(self.keep_cancelled),
            },
            ..ServiceOptions::default()
        };
        let store = StoreOptions {
            failed_tables_kept: self.keep_failed_tasks,
            request_keys_kept: self.keep_idempotency_keys,
            events_kept: self.keep_events,
            most_events: self.max_events,
            max_failures: self.max_failures,
            max_conditions: self.max_conditions,
            most_failed_tables: self.max_failed_tables,
            ..StoreOptions::default()
        };
        Ok((service, store))
    }
}

/// Checks an expiry.
pub(super) fn expiry_time(text: &str) -> Result<String, String> {
    text.parse::<KeptUntil>().map(|_| text.to_owned())
}

/// Returns the policy for jobs of one status.
pub(super) fn expiry_policy(expiry_time: String) -> Option<ExpiryPolicy> {
    (expiry_time != "none").then(|| ExpiryPolicy {
        expiry_time,
        policer: Some(Policer::System),
        ..ExpiryPolicy::default()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, Program};

    #[test]
    fn limit_of_items_holds_for_the_batch_worker_and_for_what_the_store_counts() {
        let cli = Cli::try_parse_from(["batchwright", "up", "--max-items", "7"]).unwrap();
        let Program::Command(Command::Up(args)) = cli.program else {
            panic!("{cli:?}")
        };
        let variables = Variables::new(std::iter::empty());
        let options = args.options(&variables).unwrap();
        assert_eq!((options.batch.max_items, options.store.max_items), (7, 7));
    }
}
