//! The commands that read, follow and control existing jobs through the REST API: `get`, `list`,
//! `count`, `watch`, `cancel`, `delete`, `pause`, `resume`.
//!
//! What must stay true: no command changes many jobs unless it was given their ids, a condition, or
//! `--all`.

use std::process::ExitCode;

use anyhow::ensure;
use batchwright::client::{Client, ClientError};
use clap::{ArgGroup, Args};
use contract::JobShare;
use contract::rest::Job;

use super::connect::{Output, ServiceArgs};
use super::outputs::Destination;
use super::paged::{Listed, each, print_all, print_one};
use super::task;
use crate::board;
use crate::job_text;
use crate::print::{self, INTERRUPTED, remark, say};
use crate::text::{Field, MISSING, escaped, numbered};
use crate::watch::{self, Show, exit_code};

/// The exit code for an invalid command line.
pub(super) const USAGE: u8 = 2;

#[derive(Debug, Args)]
pub struct JobArgs {
    /// Id of the job.
    pub job: String,
    #[command(flatten)]
    pub service: ServiceArgs,
}

#[derive(Debug, Args)]
pub struct AdjustArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// The weight of the job beside the other jobs of its partition, from 1 to 1000; that of a job
    /// which says nothing is 100.
    #[arg(long, value_name = "WEIGHT")]
    pub share: JobShare,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Show this task of the job and its failed attempts: the path to it, e.g. `3.17`; `0` for the
    /// job's first task.
    #[arg(long, value_name = "PATH")]
    task: Option<String>,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Ids of the jobs.
    #[arg(required = true)]
    job: Vec<String>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// Selects jobs of a partition. A job must match every given flag.
#[derive(Debug, Args)]
pub(super) struct SelectorArgs {
    /// Only jobs whose id starts with this text.
    #[arg(long, value_name = "PREFIX")]
    starts_with: Option<String>,
    /// Only jobs with this status type: `NotCompleted`, `Completed`, `Inactive` or `NotFinished`.
    #[arg(long, value_name = "TYPE")]
    status_type: Option<String>,
    /// Only jobs that match this RSQL filter, e.g. `status==Failed;labels.team==search` or
    /// `name=='*test*'`.
    #[arg(long)]
    filter: Option<String>,
    /// Only jobs with at least one of these labels, separated by commas.
    #[arg(long, value_name = "LABELS")]
    label_exist: Option<String>,
}

/// Names jobs, or selects them by conditions.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["job", "all", "starts_with", "status_type", "filter", "label_exist"]).required(true).multiple(true))]
pub struct TargetArgs {
    /// Ids of the jobs. Without them, the command changes the jobs that match the conditions.
    #[arg(conflicts_with_all = ["all", "starts_with", "status_type", "filter", "label_exist"])]
    pub(super) job: Vec<String>,
    #[command(flatten)]
    pub(super) selector: SelectorArgs,
    /// Every job of the partition; required if there is neither an id nor a condition.
    #[arg(long, conflicts_with_all = ["starts_with", "status_type", "filter", "label_exist"])]
    all: bool,
    #[command(flatten)]
    pub service: ServiceArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Do not ask for a confirmation, as the command does on a terminal.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    selector: SelectorArgs,
    /// Sort field and direction, e.g. `name:asc`, `lastUpdateTime:desc` or `labels.team:asc`.
    #[arg(long, value_name = "FIELD:DIRECTION")]
    sort: Option<String>,
    /// Maximum number of jobs to list.
    #[arg(long, default_value_t = 25)]
    limit: u32,
    /// Number of matching jobs to skip.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    pub service: ServiceArgs,
}

#[derive(Debug, Args)]
pub struct CountArgs {
    #[command(flatten)]
    selector: SelectorArgs,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn get(args: GetArgs) -> anyhow::Result<ExitCode> {
    let GetArgs { job: args, task } = args;
    if let Some(task) = task {
        return task::get(&args.job, &task, &args.service).await;
    }
    let job = args.service.client()?.get(&args.job).await?;
    match args.service.output {
        Output::Table | Output::Wide => {
            print::lines(&job_text::details(&job, print::now()))?;
            print_failures(&job)?;
        }
        output => print(&job, output)?,
    }
    Ok(exit_code(&job).into())
}

impl Listed for Job {
    const COLUMNS: &[Field<Self>] = job_text::COLUMNS;

    fn name(&self) -> String {
        self.id.clone()
    }
}

pub async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let ListArgs {
        selector,
        sort,
        limit,
        offset,
        service,
    } = args;
    let mut query = selector.query();
    query.extend([("limit", limit.to_string()), ("offset", offset.to_string())]);
    query.extend(sort.map(|sort| ("sort", sort)));
    query.push(("brief", true.to_string()));
    print_all(service.output, &service.client()?.list(&query).await?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn count(args: CountArgs) -> anyhow::Result<ExitCode> {
    let CountArgs { selector, service } = args;
    say!("{}", service.client()?.count(&selector.query()).await?);
    Ok(ExitCode::SUCCESS)
}

pub async fn cancel(args: TargetArgs) -> anyhow::Result<ExitCode> {
    let TargetArgs {
        job,
        selector,
        service,
        ..
    } = args;
    let client = service.client()?;
    if !job.is_empty() {
        let cancelled = each(&job, service.output, async |job| {
            client.cancel(job).await?;
            print(&client.get(job).await?, service.output)
        });
        return Ok(exit_code_of(cancelled.await? == job.len()));
    }
    let Some(query) = selector.conditions() else {
        return Ok(ExitCode::from(USAGE));
    };
    let cancelled = client.cancel_all(&query).await?;
    if service.output.is_json() {
        say!("{}", serde_json::json!({ "jobsCanceled": cancelled }));
    } else {
        say!("{} cancelled", jobs(cancelled));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let TargetArgs {
        job,
        selector,
        service,
        ..
    } = args.target;
    let (client, output) = (service.client()?, service.output);
    let (deleted, is_all) = if job.is_empty() {
        let Some(query) = selector.conditions() else {
            return Ok(ExitCode::from(USAGE));
        };
        if print::asks() && !args.yes {
            confirm(client.count(&query).await?)?;
        }
        (client.delete_all(&query).await?, true)
    } else {
        if print::asks() && !args.yes {
            confirm(u64::try_from(job.len())?)?;
        }
        let deleted = each(&job, output, async |job| Ok(client.delete(job).await?)).await?;
        (u64::try_from(deleted)?, deleted == job.len())
    };
    if output.is_json() {
        say!("{}", serde_json::json!({ "jobsDeleted": deleted }));
    } else if is_all || deleted > 0 {
        say!("{} deleted", jobs(deleted));
    }
    Ok(exit_code_of(is_all))
}

/// Asks the person at the terminal whether to delete jobs. Returns an error unless the answer is
/// yes.
fn confirm(number: u64) -> anyhow::Result<()> {
    let question = format!(
        "Delete {}, with all that is known of them? [y/N] ",
        jobs(number)
    );
    ensure!(
        print::is_confirmed(&question),
        "not confirmed; nothing is deleted"
    );
    Ok(())
}

pub(super) fn jobs(number: u64) -> String {
    numbered(number, "job")
}

pub(super) fn exit_code_of(is_success: bool) -> ExitCode {
    if is_success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Follows jobs that exist, as [`follow`] does. A wrong URL or id is an error at once.
pub async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    for job in &args.job {
        let job = client.get(job).await?;
        // Those of a job that has ended are printed with it.
        if !job.status.is_finished() {
            for note in &job.notes {
                remark!("batchwright: {}: {}", escaped(&job.id), escaped(note));
            }
        }
    }
    if let [job] = &args.job[..] {
        return follow(job, &args.service).await;
    }
    let followed = tokio::select! {
        followed = board::follow_all(&client, &args.job) => followed,
        Ok(()) = tokio::signal::ctrl_c() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let mut ended = Vec::with_capacity(followed.len());
    for job in followed {
        match job {
            Ok(job) => ended.push(job),
            Err(error) => print::failure(&error.into(), output.is_json()),
        }
    }
    if output == Output::Json {
        say!("{}", serde_json::to_string(&ended)?);
    } else {
        for job in &ended {
            print(job, output)?;
        }
    }
    if ended.len() < args.job.len() {
        return Ok(ExitCode::FAILURE);
    }
    // Of several, a failure says the most.
    let codes = ended.iter().map(exit_code);
    let code = codes.filter(|code| *code > 0).min();
    Ok(code.unwrap_or_default().into())
}

/// Follows a job until it finishes, then prints it. The exit code depends on its final status, or
/// says that the person at the terminal does not want to follow it any longer.
pub async fn follow(job: &str, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
    let Some(job) = end_of(job, service).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    print(&job, service.output)?;
    Ok(exit_code(&job).into())
}

/// Follows a job, as [`follow`] does, and writes its kept outputs.
pub async fn follow_to_outputs(
    job: &str,
    service: &ServiceArgs,
    destination: Destination,
) -> anyhow::Result<ExitCode> {
    let Some(ended) = end_of(job, service).await? else {
        let outputs = service.command("outputs", job);
        remark!("its outputs are kept; to read them:\n  {outputs}");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let prints_job = destination.write(&service.client()?, job).await?;
    if prints_job {
        print(&ended, service.output)?;
    }
    Ok(exit_code(&ended).into())
}

/// Returns the final state of a job; `None` if the person at the terminal does not want to wait for
/// it.
async fn end_of(job: &str, service: &ServiceArgs) -> anyhow::Result<Option<Job>> {
    let client = service.client()?;
    tokio::select! {
        followed = watch::follow(&client, job, Show::Progress, |_| {}) => Ok(Some(followed?)),
        Ok(()) = tokio::signal::ctrl_c() => {
            let cancel = service.command("cancel", job);
            remark!("batchwright: the job goes on; to cancel it:\n  {cancel}");
            Ok(None)
        }
    }
}

/// Applies `change` to a job, then prints the job.
pub async fn change(
    args: &JobArgs,
    change: impl AsyncFnOnce(&Client) -> Result<(), ClientError>,
) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    change(&client).await?;
    print(&client.get(&args.job).await?, args.service.output)?;
    Ok(ExitCode::SUCCESS)
}

impl SelectorArgs {
    /// Returns the query of a command that changes every matching job. Prints an error and returns
    /// `None` if a condition is empty, because the job service would ignore it and change every
    /// job.
    pub(super) fn conditions(self) -> Option<Vec<(&'static str, String)>> {
        let query = self.query();
        let is_empty = |value: &str| value.chars().all(|c| c == ',' || c.is_whitespace());
        if let Some((name, _)) = query.iter().find(|(_, value)| is_empty(value)) {
            remark!(
                "batchwright: the condition {name} is empty and would match every job; give it a value, or use --all instead"
            );
            return None;
        }
        Some(query)
    }

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

/// Prints one job: for a person, its line, its notes and its failures.
pub(super) fn print(job: &Job, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json | Output::Ndjson | Output::Name => print_one(output, job, &[])?,
        Output::Table | Output::Wide => {
            say!("{}", job_text::line(job));
            for note in &job.notes {
                say!("  {}", escaped(note));
            }
            print_failures(job)?;
        }
    }
    Ok(())
}

fn print_failures(job: &Job) -> anyhow::Result<()> {
    for failure in &job.failures {
        let text = |field: &Option<String>| {
            field
                .as_deref()
                .map_or_else(|| MISSING.to_owned(), |text| escaped(text).into_owned())
        };
        let label = failure.label.as_ref();
        let label = label.map(|label| format!(" ({})", escaped(label)));
        let label = label.unwrap_or_default();
        say!(
            "  task {:?}{label} {} in {}: {}",
            failure.task_id,
            text(&failure.failure_id),
            text(&failure.failure_source),
            text(&failure.failure_message)
        );
    }
    Ok(())
}
