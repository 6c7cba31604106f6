//! The commands that read, follow and control existing jobs through the REST API: `get`, `list`, `count`, `watch`, `cancel`, `pause`,
//! `resume`.

use std::process::ExitCode;

use batchwright::client::{Client, ClientError};
use clap::Args;
use contract::rest::Job;

use super::connect::{Output, ServiceArgs};
use crate::watch::{self, Show, exit_code};

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
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub struct CountArgs {
    #[command(flatten)]
    selector: SelectorArgs,
    #[command(flatten)]
    service: ServiceArgs,
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
        println!("{}", serde_json::to_string(&jobs)?);
    } else {
        for job in &jobs {
            println!("{}", watch::line(job));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn count(args: CountArgs) -> anyhow::Result<ExitCode> {
    let CountArgs { selector, service } = args;
    println!("{}", service.client()?.count(&selector.query()).await?);
    Ok(ExitCode::SUCCESS)
}

/// Follows a job until it finishes, then prints it. The exit code depends on its final status.
pub async fn watch(job: &str, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
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
