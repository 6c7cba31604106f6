//! `batchwright failures`: lists the failures of a job, or groups them.
//!
//! What must stay true: what was listed is printed although a later page cannot be had.

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Args;
use contract::rest::{Failure, FailureGroup};

use super::connect::{Output, ServiceArgs};
use crate::print::{self, remark, say};
use crate::task_text;
use crate::text::{Column, MISSING, escaped};

/// The number of failures that one request asks for.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 4] = [
    Column::cut_to("TASK", 12),
    Column::cut_to("ITEM", 24),
    Column::cut_to("KIND", 10),
    Column::cut_to("MESSAGE", 20),
];

const WIDE_COLUMNS: [Column; 8] = [
    Column::text("TASK"),
    Column::text("ITEM"),
    Column::text("KIND"),
    Column::text("MESSAGE"),
    Column::text("WORKER"),
    Column::text("PROCESS"),
    Column::number("RAN"),
    Column::text("INPUT"),
];

const GROUP_COLUMNS: [Column; 4] = [
    Column::number("COUNT"),
    Column::cut_to("KIND", 10),
    Column::cut_to("EXAMPLE", 24),
    Column::cut_to("MESSAGE", 20),
];

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
        let mut rows = Vec::new();
        for failure in page.failures {
            listed += 1;
            match args.service.output {
                Output::Table | Output::Wide => rows.push(row(&failure, args.service.output)),
                Output::Ndjson => say!("{}", serde_json::to_string(&failure)?),
                Output::Name => say!("{}", id(&failure)),
                Output::Json => array.push(failure),
            }
        }
        print_rows(&rows, args.service.output)?;
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
    let groups = failures.groups.unwrap_or_default();
    match args.service.output {
        Output::Ndjson => {
            for group in &groups {
                say!("{}", serde_json::to_string(group)?);
            }
        }
        Output::Name => {
            for group in &groups {
                say!("{}", text(group.failure_id.as_deref()));
            }
        }
        Output::Table | Output::Wide | Output::Json => {
            let rows: Vec<_> = groups.iter().map(group_row).collect();
            let width = width(args.service.output);
            print::table(&GROUP_COLUMNS, &rows, width)?;
        }
    }
    if let Some(ungrouped) = failures.ungrouped.filter(|count| *count > 0) {
        remark!("batchwright: {ungrouped} more failures are in no group");
    }
    Ok(())
}

fn row(failure: &Failure, output: Output) -> Vec<String> {
    let mut row = vec![
        id(failure).to_owned(),
        text(failure.label.as_deref()).into_owned(),
        text(failure.failure_id.as_deref()).into_owned(),
        text(failure.failure_message.as_deref()).into_owned(),
    ];
    if output == Output::Wide {
        row.extend([
            text(failure.failure_source.as_deref()).into_owned(),
            task_text::process(failure),
            task_text::ran(failure),
            text(failure.input.as_deref()).into_owned(),
        ]);
    }
    row
}

fn group_row(group: &FailureGroup) -> Vec<String> {
    let example = &group.example;
    let example = example.label.as_deref().unwrap_or_else(|| id(example));
    vec![
        group.count.to_string(),
        text(group.failure_id.as_deref()).into_owned(),
        escaped(example).into_owned(),
        text(group.failure_message.as_deref()).into_owned(),
    ]
}

/// Prints a page of failures as a table.
fn print_rows(rows: &[Vec<String>], output: Output) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let columns = if output == Output::Wide {
        &WIDE_COLUMNS[..]
    } else {
        &COLUMNS
    };
    Ok(print::table(columns, rows, width(output))?)
}

/// Returns the width that a table may have.
fn width(output: Output) -> Option<usize> {
    print::width_of_output().filter(|_| output != Output::Wide)
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
