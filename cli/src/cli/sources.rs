//! `batchwright sources`: lists, shows and deletes what was uploaded for batches.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Subcommand};
use contract::rest::UploadedSource;

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use super::paged::{Listed, each, page_query, print_one, print_pages};
use crate::columns;
use crate::print::{self, remark, say};
use crate::task_text::due;
use crate::text::{Field, age, binary_size, date, escaped, or_empty};

impl Listed for UploadedSource {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("ID") => it.id.clone();
        number("SIZE").narrow() => binary_size(it.bytes);
        number("BYTES").wide() => it.bytes.to_string();
        text("STATE") => {
            let state = if it.committed {
                "committed"
            } else {
                "uploading"
            };
            state.to_owned()
        };
        number("AGE").narrow() => age(now - it.create_time);
        text("CREATED").wide() => date(it.create_time);
        text("EXPIRES").wide() => or_empty(it.expiry_time.map(|time| due(time, now)));
        text("SHA-256").wide() => or_empty(it.sha256.as_deref());
        text("JOBS").cut_to(8) => it.jobs.join(" ");
    });

    fn name(&self) -> String {
        self.id.clone()
    }
}

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

pub async fn sources(args: SourcesArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::List(args) => list(args).await,
        Action::Show(args) => show(args).await,
        Action::Delete(args) => delete(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let mut room = (0, 0);
    print_pages(output, None, async |after, limit| {
        let page = client.sources(&page_query(&[], after, limit)).await?;
        room = (page.bytes, page.max_bytes);
        Ok((page.sources, page.next))
    })
    .await?;
    if matches!(output, Output::Table | Output::Wide) {
        let (used, most) = (binary_size(room.0), binary_size(room.1));
        remark!("batchwright: the sources of the partition have {used} of {most}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: IdArgs) -> anyhow::Result<ExitCode> {
    let source = args.service.client()?.source(&args.id).await?;
    print_one(args.service.output, &source, &[])?;
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
    let deleted = each(&args.id, output, async |id| {
        client.delete_source(id).await?;
        match output {
            Output::Json | Output::Ndjson => say!("{}", serde_json::json!({ "id": id })),
            Output::Name => say!("{}", escaped(id)),
            Output::Table | Output::Wide => say!("{} deleted", escaped(id)),
        }
        Ok(())
    });
    Ok(exit_code_of(deleted.await? == args.id.len()))
}
