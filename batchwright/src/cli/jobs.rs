//! The commands that read, follow and control existing jobs through the REST API: `get`, `list`, `count`, `watch`, `cancel`,
//! `delete`, `pause`, `resume`.
//!
//! What must stay true: no command changes many jobs unless it was given a condition, or `--all`.

use std::process::ExitCode;

use batchwright::client::{Client, ClientError};
use clap::{ArgGroup, Args};
use contract::rest::Job;

use super::connect::{Output, ServiceArgs};
use crate::print::{remark, say};
use crate::watch::{self, Show, exit_code};

/// The exit code for an invalid command line.
const USAGE: u8 = 2;

#[derive(Debug, Args)]
pub struct JobArgs {
    /// Id of the job.
    pub job: String,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// Selects jobs of a partition. A job must match every given flag.
#[derive(Debug, Args)]
struct SelectorArgs {
    /// Only jobs whose id starts with this text.
    #[arg(long, value_name = "PREFIX")]
    starts_with: Option<String>,
    /// Only jobs with this status type: `NotCompleted`, `Completed`, `Inactive` or `NotFinished`.
    #[arg(long, value_name = "TYPE")]
    status_type: Option<String>,
    /// Only jobs that match this RSQL filter, e.g. `status==Failed;labels.team==search` or `name=='*test*'`.
    #[arg(long)]
    filter: Option<String>,
    /// Only jobs with at least one of these labels, separated by commas.
    #[arg(long, value_name = "LABELS")]
    label_exist: Option<String>,
}

/// Names one job, or selects many by conditions.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["job", "all", "starts_with", "status_type", "filter", "label_exist"]).required(true).multiple(true))]
pub struct TargetArgs {
    /// Id of the job. Without it, the command changes the jobs that match the conditions.
    #[arg(conflicts_with_all = ["all", "starts_with", "status_type", "filter", "label_exist"])]
    job: Option<String>,
    #[command(flatten)]
    selector: SelectorArgs,
    /// Every job of the partition; required if there is neither an id nor a condition.
    #[arg(long, conflicts_with_all = ["starts_with", "status_type", "filter", "label_exist"])]
    all: bool,
    #[command(flatten)]
    pub service: ServiceArgs,
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

pub async fn get(args: JobArgs) -> anyhow::Result<ExitCode> {
    let job = args.service.client()?.get(&args.job).await?;
    print(&job, args.service.output)?;
    Ok(exit_code(job.status).into())
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
    let jobs = service.client()?.list(&query).await?;
    if service.output == Output::Json {
        say!("{}", serde_json::to_string(&jobs)?);
    } else {
        for job in &jobs {
            say!("{}", watch::line(job));
        }
    }
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
    if let Some(job) = job {
        let args = JobArgs { job, service };
        return change(&args, async |client| client.cancel(&args.job).await).await;
    }
    let Some(query) = selector.conditions() else {
        return Ok(ExitCode::from(USAGE));
    };
    let cancelled = service.client()?.cancel_all(&query).await?;
    match service.output {
        Output::Json => say!("{}", serde_json::json!({ "jobsCanceled": cancelled })),
        Output::Text => say!("{cancelled} jobs cancelled"),
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn delete(args: TargetArgs) -> anyhow::Result<ExitCode> {
    let TargetArgs {
        job,
        selector,
        service,
        ..
    } = args;
    let client = service.client()?;
    let deleted = if let Some(job) = job {
        client.delete(&job).await?;
        1
    } else {
        let Some(query) = selector.conditions() else {
            return Ok(ExitCode::from(USAGE));
        };
        client.delete_all(&query).await?
    };
    match service.output {
        Output::Json => say!("{}", serde_json::json!({ "jobsDeleted": deleted })),
        Output::Text if deleted == 1 => say!("1 job deleted"),
        Output::Text => say!("{deleted} jobs deleted"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows a job that exists, as [`follow`] does. A wrong URL or id is an error at once.
pub async fn watch(args: JobArgs) -> anyhow::Result<ExitCode> {
    args.service.client()?.get(&args.job).await?;
    follow(&args.job, &args.service).await
}

/// Follows a job until it finishes, then prints it. The exit code depends on its final status.
pub async fn follow(job: &str, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
    let job = watch::follow(&service.client()?, job, Show::Progress, |_| {}).await?;
    print(&job, service.output)?;
    Ok(exit_code(job.status).into())
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
    /// Returns the query of a command that changes every matching job. Prints an error and returns `None` if a condition is
    /// empty, because the job service would ignore it and change every job.
    fn conditions(self) -> Option<Vec<(&'static str, String)>> {
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

fn print(job: &Job, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        say!("{}", serde_json::to_string(job)?);
        return Ok(());
    }
    say!("{}", watch::line(job));
    for note in &job.notes {
        say!("  {note}");
    }
    for failure in &job.failures {
        let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "-".to_owned());
        say!(
            "  task {:?} {} in {}: {}",
            failure.task_id,
            text(&failure.failure_id),
            text(&failure.failure_source),
            text(&failure.failure_message)
        );
    }
    Ok(())
}
