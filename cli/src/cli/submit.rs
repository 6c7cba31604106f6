//! `batchwright submit`: creates a job from a file, or a batch job from flags.

mod source;
mod upload;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use batchwright::client::{Client, ClientError};
use clap::{Args, ValueEnum};
use contract::rest::{Above, Expiry, FailureLimit, NewJob, Outputs, Tolerance};
use contract::{JobShare, OnFailure, RetryPolicy, TaskTimeLimit};
use serde_json::{Value, json};

use self::source::{SourceArgs, pairs};
use super::connect::{Output, ServiceArgs};
use super::jobs;
use super::outputs::Destination;
use super::serve::{expiry_policy, expiry_time};
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
    #[arg(long, short, group = "source")]
    file: Option<PathBuf>,
    /// Job type that makes the task of its parameters (`--param`).
    #[arg(long = "type", group = "source", value_name = "TYPE")]
    job_type: Option<String>,
    /// Parameter that every item carries (`taskMessageParams`), or one of the job type, as JSON or
    /// text; repeat the flag for more of them.
    #[arg(long = "param", conflicts_with = "file", value_name = "KEY=VALUE")]
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
    /// Complete the job although up to this many of its items fail: a number, or a percentage such
    /// as `2%`.
    #[arg(
        long,
        conflicts_with = "continue_on_failure",
        value_name = "NUMBER|PERCENT%"
    )]
    tolerate: Option<FailureLimit>,
    /// What happens when more items have failed than `--tolerate` allows: `stop` fails the job at
    /// once, `continue` at its end.
    #[arg(long, requires = "tolerate", value_name = "stop|continue")]
    above: Option<AboveTolerance>,
    /// Start the job so many seconds later; after `--after`, so many seconds after the last of
    /// these jobs.
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..), value_name = "SECONDS")]
    delay: Option<i32>,
    /// Start the job when this one is Completed; repeat the flag for more of them.
    #[arg(long, value_name = "JOB")]
    after: Vec<String>,
    /// How long the job is kept after its end, however it ends, e.g. `lastUpdateTime+P30D`.
    #[arg(long, value_parser = expiry_time, value_name = "EXPIRY")]
    expiry: Option<String>,
    /// Seconds that one attempt at each task may take, splits of batches excepted; one that takes
    /// longer has failed, and the task runs again.
    #[arg(long, value_name = "SECONDS")]
    task_time_limit: Option<TaskTimeLimit>,
    /// When failed tasks of the job run again: a preset such as `jobweaver`, or a policy such as
    /// `constant,delay=30s,attempts=5`; without it, as their workers are set.
    #[arg(long, value_name = "POLICY")]
    retry: Option<RetryPolicy>,
    /// The weight of the job beside the other jobs of its partition, from 1 to 1000: one of 300
    /// gets three items through a pipe that they share for each item of one of 100, the usual one.
    #[arg(long, value_name = "WEIGHT")]
    share: Option<JobShare>,
    /// Follow the job until it finishes, as `batchwright watch` does.
    #[arg(long, short, visible_alias = "wait")]
    watch: bool,
    /// Keep the outputs of the job: `keep` for `batchwright outputs`; or wait for the end of the
    /// job and write them to this file, as lines of JSON, `-` for standard output.
    #[arg(long, conflicts_with = "target_pipe", value_name = "keep|FILE")]
    outputs: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn submit(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    // What cannot be written is known before there is a job.
    let destination = args.outputs.as_deref().map(Destination::of).transpose()?;
    let client = args.service.client()?;
    let (mut new_job, upload) = args.request(Some(&client)).await?;
    if destination.is_some() {
        new_job.outputs = Some(Outputs::Keep);
    }
    let created = args.create(&client, &new_job).await;
    // An upload of a request that was refused, or that a job knows by an earlier upload of the same
    // bytes, is of no use. One that a job names stays.
    if let Some(upload) = upload
        && !matches!(created, Ok((_, true)))
    {
        let _ = client.delete_source(&upload).await;
    }
    let (job, created) = created?;
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

/// Prints the notes in the answer of the service, a line each, on standard error.
fn tell(notes: &[String]) {
    for note in notes {
        remark!("batchwright: {}", escaped(note));
    }
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

impl RequestArgs {
    /// Returns the key of the request, if it has one.
    pub fn key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

impl SubmitArgs {
    /// Creates the job. Returns its id, and whether it is new.
    async fn create(
        &self,
        client: &Client,
        new_job: &NewJob,
    ) -> Result<(String, bool), ClientError> {
        if let Some(job) = &self.job {
            let (created, notes) = client.put_noting(job, new_job).await?;
            tell(&notes);
            return Ok((job.clone(), created));
        }
        let (submitted, created) = client.post_job(new_job, self.request.key()).await?;
        tell(&submitted.notes);
        Ok((submitted.job_id, created))
    }

    /// Returns the job that the file or the flags describe. Items that are too many for it are
    /// uploaded, if there is a client for that; then returns also the source.
    pub(super) async fn request(
        &self,
        client: Option<&Client>,
    ) -> anyhow::Result<(NewJob, Option<String>)> {
        let (mut new_job, upload) = match &self.file {
            Some(file) => (read(file)?, None),
            None => self.new_job(client).await?,
        };
        self.schedule(&mut new_job);
        if let Some(tolerance) = self.tolerance() {
            new_job.on_failure = OnFailure::Tolerate(tolerance);
        }
        if self.task_time_limit.is_some() {
            new_job.task_time_limit = self.task_time_limit;
        }
        if self.retry.is_some() {
            new_job.retry.clone_from(&self.retry);
        }
        if self.share.is_some() {
            new_job.share = self.share;
        }
        Ok((new_job, upload))
    }

    /// Returns how many failed items the flags tolerate.
    fn tolerance(&self) -> Option<Tolerance> {
        let above = match self.above {
            Some(AboveTolerance::Stop) => Above::Stop,
            Some(AboveTolerance::Continue) => Above::Continue,
            None => Above::default(),
        };
        self.tolerate.map(|limit| Tolerance { limit, above })
    }

    /// Says when the job starts, and how long it is kept.
    fn schedule(&self, job: &mut NewJob) {
        if self.delay.is_some() {
            job.delay = self.delay;
        }
        if !self.after.is_empty() {
            job.prerequisite_job_ids = Some(self.after.iter().cloned().map(Some).collect());
        }
        if let Some(expiry) = &self.expiry {
            let policy = || expiry_policy(expiry.clone());
            job.expiry = Some(Expiry {
                completed: policy(),
                failed: policy(),
                cancelled: policy(),
            });
        }
    }

    /// Returns the job that the flags describe, and the source to which its items were uploaded.
    async fn new_job(&self, client: Option<&Client>) -> anyhow::Result<(NewJob, Option<String>)> {
        let labels = pairs(&self.labels, "label")?;
        let labels: BTreeMap<_, _> = labels.into_iter().map(|(k, v)| (k, Some(v))).collect();
        let job = NewJob {
            name: self.name.clone(),
            labels: (!labels.is_empty()).then_some(labels),
            on_failure: if self.continue_on_failure {
                OnFailure::Continue
            } else {
                OnFailure::Stop
            },
            ..NewJob::default()
        };
        if let Some(job_type) = &self.job_type {
            let parameters = pairs(&self.params, "parameter")?;
            let json = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
            let parameters = parameters
                .into_iter()
                .map(|(name, text)| (name, json(text)));
            let job = NewJob {
                job_type: Some(job_type.clone()),
                parameters: Some(parameters.collect::<serde_json::Map<_, _>>().into()),
                ..job
            };
            return Ok((job, None));
        }
        let mut batch = self.source.batch(client).await?;
        let upload = batch.upload.take();
        let task = self
            .source
            .task(batch, &self.params, self.outputs.is_some())?;
        let task = Some(task);
        Ok((NewJob { task, ..job }, upload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_whose_key_is_there_twice_is_refused_by_name() {
        let flags = |flags: &[&str]| flags.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let read = pairs(&flags(&["x=1", "y=a=b", "z="]), "parameter").unwrap();
        assert_eq!(read["y"], "a=b");
        assert_eq!((read.len(), &*read["z"]), (3, ""));
        for (wrong, text) in [
            (&["x=1", "y=2", "x=1"][..], "parameter \"x\" is given twice"),
            (&["x"], "expected KEY=VALUE"),
        ] {
            let refused = pairs(&flags(wrong), "parameter").unwrap_err().to_string();
            assert!(refused.contains(text), "{refused}");
        }
    }
}
