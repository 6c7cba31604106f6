//! The command `pipes`: lists the pipes that the job service knows, or shows one.

use std::process::ExitCode;

use clap::Args;
use contract::Pipe;

use super::connect::{Output, ServiceArgs};
use super::paged::{Listed, print_all, print_one};
use crate::columns;
use crate::print::{remark, say};
use crate::text::{Field, duration, or_empty};

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

/// `ITEMS` are the items that wait for a pipe, in its messages or not, and `WORK` is how long its
/// workers take for them; `ASIDE` are the messages in
/// the quarantine, the invalid pipe and the reject pipe.
impl Listed for Pipe {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("PIPE").cut_to(16) => it.name.clone();
        number("ITEMS") => it.items.to_string();
        number("WORK") => or_empty(it.work_millis().map(duration));
        number("MESSAGES") => or_empty(it.exists.then_some(it.messages));
        number("CONSUMERS") => or_empty(it.consumers);
        number("IN/S") => rate(it.in_per_second);
        number("OUT/S") => rate(it.out_per_second);
        number("ASIDE").narrow() => {
            let aside = [it.quarantined, it.invalid, it.rejected];
            let known: Vec<u64> = aside.into_iter().flatten().collect();
            or_empty((!known.is_empty()).then(|| known.iter().sum::<u64>()))
        };
        number("DELAYED").wide() => or_empty(it.delayed);
        number("HELD").wide() => it.held.to_string();
        number("QUARANTINED").wide() => or_empty(it.quarantined);
        number("INVALID").wide() => or_empty(it.invalid);
        number("REJECTED").wide() => or_empty(it.rejected);
        text("WORKERS").cut_to(7) => it.workers.join(", ");
    });

    fn name(&self) -> String {
        self.name.clone()
    }
}

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
    print_all(service.output, &listed.pipes)?;
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
    print_one(service.output, &pipe, &[])?;
    if matches!(service.output, Output::Table | Output::Wide) {
        for message in pipe.peeked.iter().flatten() {
            say!("{}", serde_json::to_string(message)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rate(rate: Option<f64>) -> String {
    or_empty(rate.map(|rate| format!("{rate:.1}")))
}
