//! The command `workers`: lists the workers of all processes, as the job service knows them.

use std::process::ExitCode;

use clap::Args;
use contract::Worker;

use super::connect::ServiceArgs;
use super::paged::{Listed, print_all};
use crate::columns;
use crate::print::remark;
use crate::text::{Field, age, or_empty};

#[derive(Debug, Args)]
pub struct WorkersArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
}

impl Listed for Worker {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("WORKER") => it.name.clone();
        number("SLOTS") => slots(it);
        number("SEEN") => age(now - it.last_sign_time);
        text("INPUT").cut_to(10) => or_empty(it.input.as_deref());
        text("PROCESS").cut_to(12) => format!("{}:{}", it.host, it.process);
        text("LONGEST").cut_to(8) => {
            let longest = it.longest.as_ref();
            or_empty(
                longest.map(|longest| format!("{} {}", age(now - longest.since), longest.task)),
            )
        };
        text("OUTPUT").wide() => or_empty(it.output.as_deref());
        number("OPEN").wide() => or_empty(it.open_deliveries);
        number("UP").wide() => age(now - it.start_time);
        text("VERSION").wide() => it.version.clone();
    });

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub async fn workers(args: WorkersArgs) -> anyhow::Result<ExitCode> {
    let service = args.service;
    let listed = service.client()?.workers().await?;
    print_all(service.output, &listed.workers)?;
    if listed.more > 0 {
        remark!("batchwright: {} more workers are not listed", listed.more);
    }
    if listed.workers.len() < 2 && !service.output.is_json() {
        remark!(
            "batchwright: workers tell of themselves every 5 seconds; ask again if the job service has just started"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn slots(worker: &Worker) -> String {
    match (worker.slots_in_use, worker.slots) {
        (Some(used), Some(all)) if worker.unavailable.is_some() => format!("{used}/{all} waits"),
        (Some(used), Some(all)) => format!("{used}/{all}"),
        _ => String::new(),
    }
}
