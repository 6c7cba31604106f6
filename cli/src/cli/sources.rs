//! `batchwright sources`: lists, shows and deletes what was uploaded for batches.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Subcommand};
use contract::rest::UploadedSource;

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use crate::print::{self, remark, say};
use crate::task_text::due;
use crate::text::{Column, MISSING, age, binary_size, date, escaped};

/// The number of sources that one request asks for.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 5] = [
    Column::text("ID"),
    Column::number("SIZE"),
    Column::text("STATE"),
    Column::number("AGE"),
    Column::cut_to("JOBS", 8),
];
const WIDE_COLUMNS: [Column; 7] = [
    Column::text("ID"),
    Column::number("BYTES"),
    Column::text("STATE"),
    Column::text("CREATED"),
    Column::text("EXPIRES"),
    Column::text("SHA-256"),
    Column::text("JOBS"),
];

#[derive(Debug, Args)]
pub struct SourcesArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the sources of the partition, the oldest first, and how much room they take.
    List(ListArgs),
    /// Show a source, and the jobs that name it.
    Show(IdArgs),
    /// Delete sources that no job names; asks for a confirmation on a terminal.
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct IdArgs {
    /// Id of the source.
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Ids of the sources.
    #[arg(required = true)]
    id: Vec<String>,
    /// Do not ask for a confirmation, as the command does on a terminal.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

impl SourcesArgs {
    /// Returns which job service the command calls, and how it prints.
    pub const fn service(&self) -> &ServiceArgs {
        match &self.action {
            Action::List(args) => &args.service,
            Action::Show(args) => &args.service,
            Action::Delete(args) => &args.service,
        }
    }
}

pub async fn sources(args: SourcesArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::List(args) => list(args).await,
        Action::Show(args) => show(args).await,
        Action::Delete(args) => delete(args).await,
    }
}

/// Prints the sources while the pages arrive; as one JSON array, when all have.
async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let (mut after, mut array) = (None, Vec::new());
    loop {
        let mut query = vec![("limit", PAGE.to_string())];
        query.extend(after.map(|after| ("after", after)));
        let page = client.sources(&query).await?;
        let mut rows = Vec::new();
        for source in page.sources {
            match output {
                Output::Table | Output::Wide => rows.push(row(&source, output)),
                Output::Ndjson => say!("{}", serde_json::to_string(&source)?),
                Output::Name => say!("{}", source.id),
                Output::Json => array.push(source),
            }
        }
        match output {
            Output::Table if !rows.is_empty() => {
                print::table(&COLUMNS, &rows, print::width_of_output())?;
            }
            Output::Wide if !rows.is_empty() => print::table(&WIDE_COLUMNS, &rows, None)?,
            _ => {}
        }
        after = page.next;
        if after.is_none() {
            if matches!(output, Output::Table | Output::Wide) {
                let (used, most) = (binary_size(page.bytes), binary_size(page.max_bytes));
                remark!("batchwright: the sources of the partition have {used} of {most}");
            }
            break;
        }
    }
    if output == Output::Json {
        say!("{}", serde_json::to_string(&array)?);
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: IdArgs) -> anyhow::Result<ExitCode> {
    let source = args.service.client()?.source(&args.id).await?;
    match args.service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&source)?),
        Output::Name => say!("{}", source.id),
        Output::Table | Output::Wide => {
            for (column, cell) in WIDE_COLUMNS.iter().zip(row(&source, Output::Wide)) {
                say!("{:7}  {cell}", column.title());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let question = match &args.id[..] {
        [_] => "Delete the source for good? [y/N] ".to_owned(),
        ids => format!("Delete {} sources for good? [y/N] ", ids.len()),
    };
    ensure!(
        args.yes || print::is_confirmed(&question),
        "not confirmed; nothing is deleted"
    );
    let mut is_all = true;
    for id in &args.id {
        match client.delete_source(id).await {
            Ok(()) if output.is_json() => say!("{}", serde_json::json!({ "id": id })),
            Ok(()) if output == Output::Name => say!("{}", escaped(id)),
            Ok(()) => say!("{} deleted", escaped(id)),
            Err(error) => {
                is_all = false;
                print::failure(&error.into(), output.is_json());
            }
        }
    }
    Ok(exit_code_of(is_all))
}

fn row(source: &UploadedSource, output: Output) -> Vec<String> {
    let state = if source.committed {
        "committed"
    } else {
        "uploading"
    };
    let jobs = match &source.jobs[..] {
        [] => MISSING.to_owned(),
        jobs => escaped(&jobs.join(" ")).into_owned(),
    };
    if output != Output::Wide {
        return vec![
            source.id.clone(),
            binary_size(source.bytes),
            state.to_owned(),
            age(print::now() - source.create_time),
            jobs,
        ];
    }
    let missing = || MISSING.to_owned();
    vec![
        source.id.clone(),
        source.bytes.to_string(),
        state.to_owned(),
        date(source.create_time),
        source
            .expiry_time
            .map_or_else(missing, |time| due(time, print::now())),
        source.sha256.clone().unwrap_or_else(missing),
        jobs,
    ]
}
