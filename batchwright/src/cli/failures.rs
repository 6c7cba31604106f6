//! `batchwright failures`: lists the failures of a job, or groups them.

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Args;
use contract::rest::{Failure, FailureGroup};

use super::connect::{Output, ServiceArgs};
use crate::print::{remark, say};
use crate::text::{MISSING, escaped};

/// The number of failures that one request asks for.
const PAGE: u32 = 1000;

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

/// Prints the failures while the pages arrive; as one JSON array, when all have.
async fn list(args: &FailuresArgs) -> anyhow::Result<()> {
    let client = args.service.client()?;
    let (mut after, mut listed, mut is_all) = (None, 0, false);
    let mut array = Vec::new();
    while !is_all && args.limit.is_none_or(|limit| listed < limit) {
        let limit = args.limit.map_or(PAGE, |limit| PAGE.min(limit - listed));
        let page = client.failures(&args.job, after.as_deref(), limit).await?;
        (after, is_all) = (page.next.clone(), page.next.is_none());
        for failure in page.failures {
            listed += 1;
            match args.service.output {
                Output::Table | Output::Wide => print(&failure)?,
                Output::Ndjson => say!("{}", serde_json::to_string(&failure)?),
                Output::Name => say!("{}", id(&failure)),
                Output::Json => array.push(failure),
            }
        }
        let missing = page.failed_tasks - page.kept;
        if is_all && missing > 0 {
            remark!(
                "batchwright: {missing} more failures are counted and not kept (--max-failures of the tracking worker)"
            );
        }
    }
    if args.service.output == Output::Json {
        say!("{}", serde_json::to_string(&array)?);
    }
    Ok(())
}

async fn groups(args: &FailuresArgs) -> anyhow::Result<()> {
    let failures = args.service.client()?.failure_groups(&args.job).await?;
    if args.service.output == Output::Json {
        say!("{}", serde_json::to_string(&failures)?);
        return Ok(());
    }
    for group in failures.groups.iter().flatten() {
        let FailureGroup {
            failure_id,
            failure_message,
            count,
            example,
            ..
        } = group;
        let (kind, message) = (
            text(failure_id.as_deref()),
            text(failure_message.as_deref()),
        );
        match args.service.output {
            Output::Ndjson => say!("{}", serde_json::to_string(group)?),
            Output::Name => say!("{kind}"),
            _ => {
                say!("{count} x {kind}: {message}");
                say!("    e.g. {}", task(example));
            }
        }
    }
    if let Some(ungrouped) = failures.ungrouped.filter(|count| *count > 0) {
        remark!("batchwright: {ungrouped} more failures are in no group");
    }
    Ok(())
}

/// Prints a failure on one line, and the input on the next.
fn print(failure: &Failure) -> anyhow::Result<()> {
    say!(
        "task {} {} in {}: {}",
        task(failure),
        text(failure.failure_id.as_deref()),
        text(failure.failure_source.as_deref()),
        text(failure.failure_message.as_deref())
    );
    if let Some(input) = &failure.input {
        say!("    input: {}", text(Some(input)));
    }
    Ok(())
}

/// Returns the id of the failed task, and which item it is.
fn task(failure: &Failure) -> String {
    let id = id(failure);
    match &failure.label {
        Some(label) => format!("{id} ({})", text(Some(label))),
        None => id.to_owned(),
    }
}

/// Returns the id of the failed task; `0` for the job's own.
fn id(failure: &Failure) -> &str {
    if failure.task_id.is_empty() {
        "0"
    } else {
        &failure.task_id
    }
}

fn text(text: Option<&str>) -> Cow<'_, str> {
    text.map_or(Cow::Borrowed(MISSING), escaped)
}
