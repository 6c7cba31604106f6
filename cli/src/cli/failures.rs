//! `batchwright failures`: lists the failures of a job, or groups them.
//!
//! What must stay true: what was listed is printed although a later page cannot be had.

use std::process::ExitCode;

use clap::Args;
use contract::rest::{Failure, FailureGroup};

use super::connect::{Output, ServiceArgs};
use super::paged::{Listed, print_all, print_pages};
use crate::columns;
use crate::print::{remark, say};
use crate::task_text;
use crate::text::{Field, MISSING, or_empty};

impl Listed for Failure {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("TASK").cut_to(12) => it.name();
        text("ITEM").cut_to(24) => or_empty(it.label.as_deref());
        text("KIND").cut_to(10) => or_empty(it.failure_id.as_deref());
        text("MESSAGE").cut_to(20) => or_empty(it.failure_message.as_deref());
        text("WORKER").wide() => or_empty(it.failure_source.as_deref());
        text("PROCESS").wide() => task_text::process(it);
        number("RAN").wide() => task_text::ran(it);
        text("INPUT").wide() => or_empty(it.input.as_deref());
    });

    /// Returns the id of the failed task; `0` for the job's own.
    fn name(&self) -> String {
        match self.task_id.as_str() {
            "" => "0".to_owned(),
            id => id.to_owned(),
        }
    }
}

impl Listed for FailureGroup {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        number("COUNT") => it.count.to_string();
        text("KIND").cut_to(10) => it.name();
        text("EXAMPLE").cut_to(24) => {
            let label = it.example.label.clone();
            label.unwrap_or_else(|| it.example.name())
        };
        text("MESSAGE").cut_to(20) => or_empty(it.failure_message.as_deref());
    });

    fn name(&self) -> String {
        let kind = self.failure_id.as_deref();
        kind.unwrap_or(MISSING).to_owned()
    }
}

#[derive(Debug, Args)]
pub struct FailuresArgs {
    /// Id of the job.
    job: String,
    /// Group the failures by kind and message, the largest group first.
    #[arg(long, conflicts_with = "limit")]
    group: bool,
    /// Maximum number of failures to list; without it, all that are kept.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn failures(args: FailuresArgs) -> anyhow::Result<ExitCode> {
    if args.group {
        groups(&args).await?;
    } else {
        list(&args).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: &FailuresArgs) -> anyhow::Result<()> {
    let (client, output) = (args.service.client()?, args.service.output);
    let mut missing = 0;
    print_pages(output, args.limit, async |after, limit| {
        let page = client.failures(&args.job, after.as_deref(), limit).await?;
        missing = match page.next {
            None => page.failed_tasks - page.kept,
            Some(_) => 0,
        };
        Ok((page.failures, page.next))
    })
    .await?;
    if missing > 0 {
        remark!(
            "batchwright: {missing} more failures are counted and not kept (--max-failures of the tracking worker)"
        );
    }
    Ok(())
}

async fn groups(args: &FailuresArgs) -> anyhow::Result<()> {
    let failures = args.service.client()?.failure_groups(&args.job).await?;
    if args.service.output == Output::Json {
        say!("{}", serde_json::to_string(&failures)?);
        return Ok(());
    }
    print_all(args.service.output, &failures.groups.unwrap_or_default())?;
    if let Some(ungrouped) = failures.ungrouped.filter(|count| *count > 0) {
        remark!("batchwright: {ungrouped} more failures are in no group");
    }
    Ok(())
}
