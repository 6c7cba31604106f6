//! The command `pipes`: lists the pipes that the job service knows, or shows one.

use std::process::ExitCode;

use clap::Args;
use contract::Pipe;

use super::connect::{Output, ServiceArgs};
use crate::print::{self, remark, say};
use crate::text::{Column, MISSING, escaped};

#[derive(Debug, Args)]
pub struct PipesArgs {
    /// Name of a pipe; without it, all known pipes are listed.
    pipe: Option<String>,
    /// Also show this many of the first messages, which stay in the pipe; only with the embedded
    /// broker.
    #[arg(long, value_name = "MESSAGES", requires = "pipe", value_parser = clap::value_parser!(u32).range(1..=100))]
    peek: Option<u32>,
    /// Also list the pipes that are known and do not exist, because nobody has put anything into
    /// them.
    #[arg(long, conflicts_with = "pipe")]
    all: bool,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// `ITEMS` are the items that wait for a pipe, in its messages or not; `ASIDE` are the messages in
/// the quarantine, the invalid pipe and the reject pipe.
pub const COLUMNS: [Column; 9] = [
    Column::cut_to("PIPE", 16),
    Column::number("ITEMS"),
    Column::number("MESSAGES"),
    Column::number("CONSUMERS"),
    Column::number("DELAYED"),
    Column::number("IN/S"),
    Column::number("OUT/S"),
    Column::number("ASIDE"),
    Column::cut_to("WORKERS", 7),
];
const WIDE_COLUMNS: [Column; 11] = [
    Column::text("PIPE"),
    Column::number("ITEMS"),
    Column::number("MESSAGES"),
    Column::number("CONSUMERS"),
    Column::number("DELAYED"),
    Column::number("IN/S"),
    Column::number("OUT/S"),
    Column::number("QUARANTINED"),
    Column::number("INVALID"),
    Column::number("REJECTED"),
    Column::text("WORKERS"),
];

pub async fn pipes(args: PipesArgs) -> anyhow::Result<ExitCode> {
    let PipesArgs {
        pipe,
        peek,
        all,
        service,
    } = args;
    if let Some(pipe) = pipe {
        return show(&pipe, peek, &service).await;
    }
    let mut listed = service.client()?.pipes().await?;
    if !all {
        listed.pipes.retain(|pipe| pipe.exists || pipe.items > 0);
    }
    match service.output {
        Output::Json => say!("{}", serde_json::to_string(&listed.pipes)?),
        Output::Ndjson => {
            for pipe in &listed.pipes {
                say!("{}", serde_json::to_string(pipe)?);
            }
        }
        Output::Name => {
            for pipe in &listed.pipes {
                say!("{}", escaped(&pipe.name));
            }
        }
        Output::Table => {
            let rows: Vec<_> = listed.pipes.iter().map(row).collect();
            print::table(&COLUMNS, &rows, print::width_of_output())?;
        }
        Output::Wide => {
            let rows: Vec<_> = listed.pipes.iter().map(wide_row).collect();
            print::table(&WIDE_COLUMNS, &rows, None)?;
        }
    }
    if !listed.complete && !service.output.is_json() {
        remark!(
            "batchwright: there may be more: listed are at most 500, and of RabbitMQ those of the service, its workers and unfinished jobs"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows one pipe, with its first messages on request.
async fn show(name: &str, peek: Option<u32>, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
    let pipe = service.client()?.pipe(name, peek).await?;
    match service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&pipe)?),
        Output::Name => say!("{}", escaped(&pipe.name)),
        Output::Table | Output::Wide => {
            for (column, cell) in WIDE_COLUMNS.iter().zip(wide_row(&pipe)) {
                say!("{:11}  {cell}", column.title());
            }
            for message in pipe.peeked.iter().flatten() {
                say!("{}", serde_json::to_string(message)?);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn row(pipe: &Pipe) -> Vec<String> {
    let mut row = wide_row(pipe);
    let aside = [pipe.quarantined, pipe.invalid, pipe.rejected];
    let known: Vec<u64> = aside.into_iter().flatten().collect();
    let sum = (!known.is_empty()).then(|| known.iter().sum());
    row.splice(7..10, [number(sum)]);
    row
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| MISSING.to_owned(), |it| it.to_string())
}

fn wide_row(pipe: &Pipe) -> Vec<String> {
    let rate = |rate: Option<f64>| rate.map_or_else(|| MISSING.to_owned(), |it| format!("{it:.1}"));
    let workers = if pipe.workers.is_empty() {
        MISSING.to_owned()
    } else {
        escaped(&pipe.workers.join(", ")).into_owned()
    };
    vec![
        escaped(&pipe.name).into_owned(),
        pipe.items.to_string(),
        number(pipe.exists.then_some(pipe.messages)),
        number(pipe.consumers),
        number(pipe.delayed),
        rate(pipe.in_per_second),
        rate(pipe.out_per_second),
        number(pipe.quarantined),
        number(pipe.invalid),
        number(pipe.rejected),
        workers,
    ]
}
