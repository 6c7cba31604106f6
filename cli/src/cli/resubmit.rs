//! The command `resubmit`: creates a job like one that exists, through the REST API.

use std::process::ExitCode;

use clap::Args;
use contract::rest::Resubmit;

use super::connect::ServiceArgs;
use super::jobs;
use super::submit::{RequestArgs, print_created};

#[derive(Debug, Args)]
pub struct ResubmitArgs {
    /// Id of the job to run again.
    job: String,
    /// Id of the new job; by default the service makes one.
    #[arg(long, value_name = "ID", conflicts_with = "same_id")]
    id: Option<String>,
    /// Give the new job the id of the job, and put it in its place; the job must have ended.
    #[arg(long)]
    same_id: bool,
    /// Follow the new job until it finishes, as `batchwright watch` does.
    #[arg(long, short, visible_alias = "wait")]
    watch: bool,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn resubmit(args: ResubmitArgs) -> anyhow::Result<ExitCode> {
    let ResubmitArgs {
        job,
        id,
        same_id,
        watch,
        request,
        service,
    } = args;
    let new = Resubmit {
        job_id: id,
        same_id,
    };
    let client = service.client()?;
    let (submitted, created) = client.resubmit(&job, &new, request.key()).await?;
    if watch {
        return jobs::follow(&submitted.job_id, &service).await;
    }
    print_created(&submitted.job_id, created, &service)?;
    Ok(ExitCode::SUCCESS)
}
