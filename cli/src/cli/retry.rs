//! The command `retry`: begins the next round of jobs that have ended before everything was done,
//! through the REST API.

use std::process::ExitCode;

use clap::Args;

use super::connect::{Output, ServiceArgs};
use super::jobs::{TargetArgs, USAGE, exit_code_of, jobs, print};
use super::paged::each;
use crate::print::{remark, say};
use crate::text::escaped;
use batchwright::client::Client;

#[derive(Debug, Args)]
pub struct RetryArgs {
    /// Also take up again the jobs that ended with it because they waited for it.
    #[arg(long)]
    dependents: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

pub async fn retry(args: RetryArgs) -> anyhow::Result<ExitCode> {
    let RetryArgs { target, dependents } = args;
    let TargetArgs {
        job,
        selector,
        service,
        ..
    } = target;
    let client = service.client()?;
    if !job.is_empty() {
        let retried = each(&job, service.output, async |job| {
            retry_one(&client, job, dependents, &service).await
        });
        return Ok(exit_code_of(retried.await? == job.len()));
    }
    let Some(query) = selector.conditions() else {
        return Ok(ExitCode::from(USAGE));
    };
    let retried = client.retry_all(&query, dependents).await?;
    if service.output.is_json() {
        say!("{}", serde_json::to_string(&retried)?);
    } else {
        say!("{} retried", jobs(retried.jobs_retried));
        for refused in &retried.refusals {
            remark!(
                "batchwright: {}: {}",
                escaped(&refused.job_id),
                escaped(&refused.message)
            );
        }
        let unnamed = retried.jobs_refused - retried.refusals.len() as u64;
        if unnamed > 0 {
            remark!("batchwright: {} more cannot be retried", jobs(unnamed));
        }
    }
    Ok(exit_code_of(retried.jobs_refused == 0))
}

/// Takes one job up again and prints it: for a person also the jobs that had ended with it.
async fn retry_one(
    client: &Client,
    job: &str,
    dependents: bool,
    service: &ServiceArgs,
) -> anyhow::Result<()> {
    let retried = client.retry(job, dependents).await?;
    match service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&retried)?),
        output => {
            print(&client.get(job).await?, output)?;
            if output != Output::Name {
                for (list, what) in [
                    (&retried.dependents, "wait for it again"),
                    (&retried.fallen, "ended with it and stay so"),
                ] {
                    if !list.is_empty() {
                        say!("  {what}: {}", escaped(&list.join(", ")));
                    }
                }
            }
        }
    }
    Ok(())
}
