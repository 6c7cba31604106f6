//! `batchwright submit`: creates a job from a file, or a batch job from flags.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use batchwright::{BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE};
use clap::{Args, ValueEnum};
use contract::rest::{Above, FailureLimit, JobTask, NewJob, Outputs, Tolerance};
use contract::{BatchTask, OnFailure, TaskData};
use serde_json::json;

use super::connect::{Output, ServiceArgs};
use super::jobs;
use super::outputs::Destination;
use crate::print::{remark, say};
use crate::text::escaped;

/// What happens to a job of which more items have failed than it tolerates.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum AboveTolerance {
    Stop,
    Continue,
}

/// What a command says of its request itself.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// Key of this request: a repeated request with the same key creates no second job.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Id of the new job; without it the service makes one.
    #[arg(conflicts_with = "idempotency_key")]
    job: Option<String>,
    /// JSON file with the body of the request; `-` reads standard input.
    #[arg(long, short, conflicts_with_all = ["batch_type", "definition"])]
    file: Option<PathBuf>,
    /// Batch plugin that splits the definition: `range`, `list`, `lines` or `glob`.
    #[arg(long, requires = "definition", value_name = "PLUGIN")]
    batch_type: Option<String>,
    /// Batch definition in the plugin's format, e.g. `1-1000` for `range`.
    #[arg(long, requires = "batch_type")]
    definition: Option<String>,
    /// Pipe of the batch worker.
    #[arg(long, default_value = BATCH_PIPE, value_name = "PIPE")]
    task_pipe: String,
    /// Pipe of the worker that processes the items.
    #[arg(long, default_value = EXAMPLE_PIPE, value_name = "PIPE")]
    item_pipe: String,
    /// Pipe where an item counts as done; `none` if the worker sends no output.
    #[arg(long, default_value = EXAMPLE_OUT_PIPE, value_name = "PIPE")]
    target_pipe: String,
    /// Type of the items (`taskMessageType`); by default the plugin's own.
    #[arg(long, value_name = "TYPE")]
    item_type: Option<String>,
    /// Parameter that every item carries (`taskMessageParams`); repeat the flag for more of them.
    #[arg(long = "param", requires = "batch_type", value_name = "KEY=VALUE")]
    params: Vec<String>,
    /// Display name of the job.
    #[arg(long)]
    name: Option<String>,
    /// Label of the job; repeat the flag for more labels.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Continue with the other tasks after a task has failed.
    #[arg(long)]
    continue_on_failure: bool,
    /// Complete the job although up to this many of its items fail: a number, or a percentage such as `2%`.
    #[arg(
        long,
        conflicts_with = "continue_on_failure",
        value_name = "NUMBER|PERCENT%"
    )]
    tolerate: Option<FailureLimit>,
    /// What happens when more items have failed than `--tolerate` allows: `stop` fails the job at once, `continue` at its end.
    #[arg(long, requires = "tolerate", value_name = "stop|continue")]
    above: Option<AboveTolerance>,
    /// Follow the job until it finishes, as `batchwright watch` does.
    #[arg(long, short, visible_alias = "wait")]
    watch: bool,
    /// Keep the outputs of the job: `keep` for `batchwright outputs`; or wait for the end of the job and write them to this file, as
    /// lines of JSON, `-` for standard output.
    #[arg(long, conflicts_with = "target_pipe", value_name = "keep|FILE")]
    outputs: Option<PathBuf>,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn submit(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    let mut new_job = match &args.file {
        Some(file) => read(file)?,
        None => args.new_job()?,
    };
    if let Some(tolerance) = args.tolerance() {
        new_job.on_failure = OnFailure::Tolerate(tolerance);
    }
    // What cannot be written is known before there is a job.
    let destination = args.outputs.as_deref().map(Destination::of).transpose()?;
    if destination.is_some() {
        new_job.outputs = Some(Outputs::Keep);
    }
    let client = args.service.client()?;
    let (job, created) = if let Some(job) = args.job {
        let created = client.put(&job, &new_job).await?;
        (job, created)
    } else {
        let (submitted, created) = client.post_job(&new_job, args.request.key()).await?;
        (submitted.job_id, created)
    };
    if let Some(destination) = destination
        && !matches!(destination, Destination::Service)
    {
        return jobs::follow_to_outputs(&job, &args.service, destination).await;
    }
    if args.watch {
        return jobs::follow(&job, &args.service).await;
    }
    print_created(&job, created, &args.service)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the id of a job that this request or an earlier one created.
pub(super) fn print_created(job: &str, created: bool, service: &ServiceArgs) -> anyhow::Result<()> {
    let id = escaped(job);
    match service.output {
        Output::Json | Output::Ndjson => say!("{}", json!({ "id": job, "created": created })),
        Output::Name => say!("{id}"),
        Output::Table | Output::Wide if created => say!("{id} created"),
        Output::Table | Output::Wide => say!("{id} already exists with the same definition"),
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<NewJob> {
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    };
    let mut json = serde_json::Deserializer::from_str(&text);
    let job = serde_ignored::deserialize(&mut json, |path| {
        let field = path.to_string().replace(".?", "");
        remark!("batchwright: the field '{field}' is unknown and was ignored");
    });
    job.and_then(|job| json.end().map(|()| job))
        .with_context(|| format!("{} is not a valid job", file.display()))
}

/// Returns the keys and values of flags. Each is one of these, for people.
fn pairs(flags: &[String], what: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |flag: &String| {
        let (key, value) = flag
            .split_once('=')
            .with_context(|| format!("{flag:?} is not a {what}; expected KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    flags.iter().map(pair).collect()
}

impl RequestArgs {
    /// Returns the key of the request, if it has one.
    pub fn key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

impl SubmitArgs {
    /// Returns how many failed items the flags tolerate.
    fn tolerance(&self) -> Option<Tolerance> {
        let above = match self.above {
            Some(AboveTolerance::Stop) => Above::Stop,
            Some(AboveTolerance::Continue) => Above::Continue,
            None => Above::default(),
        };
        self.tolerate.map(|limit| Tolerance { limit, above })
    }

    /// Returns the batch job that the flags describe.
    fn new_job(&self) -> anyhow::Result<NewJob> {
        let (Some(batch_type), Some(definition)) = (&self.batch_type, &self.definition) else {
            bail!("no job given; pass --file JOB.json, or --batch-type with --definition");
        };
        let batch = BatchTask {
            batch_type: Some(batch_type.clone()),
            batch_definition: Some(definition.clone()),
            task_message_type: self.item_type.clone(),
            target_pipe: Some(self.item_pipe.clone()),
            task_message_params: (!self.params.is_empty())
                .then(|| pairs(&self.params, "parameter"))
                .transpose()?,
        };
        let labels = pairs(&self.labels, "label")?;
        let labels: BTreeMap<_, _> = labels.into_iter().map(|(k, v)| (k, Some(v))).collect();
        Ok(NewJob {
            name: self.name.clone(),
            labels: (!labels.is_empty()).then_some(labels),
            on_failure: if self.continue_on_failure {
                OnFailure::Continue
            } else {
                OnFailure::Stop
            },
            task: Some(JobTask {
                task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
                task_api_version: Some(BatchTask::API_VERSION),
                task_data: Some(serde_json::to_value(batch)?),
                task_pipe: Some(self.task_pipe.clone()),
                target_pipe: (self.outputs.is_none() && self.target_pipe != "none")
                    .then(|| self.target_pipe.clone()),
                ..JobTask::default()
            }),
            ..NewJob::default()
        })
    }
}
