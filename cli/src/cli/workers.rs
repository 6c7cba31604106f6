//! The command `workers`: lists the workers of all processes, as the job service knows them.

use std::process::ExitCode;

use chrono::Utc;
use clap::Args;
use contract::Worker;

use super::connect::{Output, ServiceArgs};
use crate::print::{self, remark, say};
use crate::text::{Column, MISSING, age, escaped};

#[derive(Debug, Args)]
pub struct WorkersArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub const COLUMNS: [Column; 6] = [
    Column::text("WORKER"),
    Column::number("SLOTS"),
    Column::number("SEEN"),
    Column::cut_to("INPUT", 10),
    Column::cut_to("PROCESS", 12),
    Column::cut_to("LONGEST", 8),
];
const WIDE_COLUMNS: [Column; 10] = [
    Column::text("WORKER"),
    Column::number("SLOTS"),
    Column::number("SEEN"),
    Column::text("INPUT"),
    Column::text("PROCESS"),
    Column::text("LONGEST"),
    Column::text("OUTPUT"),
    Column::number("OPEN"),
    Column::number("UP"),
    Column::text("VERSION"),
];

pub async fn workers(args: WorkersArgs) -> anyhow::Result<ExitCode> {
    let service = args.service;
    let listed = service.client()?.workers().await?;
    let now = Utc::now().timestamp_millis();
    let rows = |is_wide| -> Vec<Vec<String>> {
        let workers = listed.workers.iter();
        workers.map(|worker| row(worker, now, is_wide)).collect()
    };
    match service.output {
        Output::Json => say!("{}", serde_json::to_string(&listed.workers)?),
        Output::Ndjson => {
            for worker in &listed.workers {
                say!("{}", serde_json::to_string(worker)?);
            }
        }
        Output::Name => {
            for worker in &listed.workers {
                say!("{}", escaped(&worker.name));
            }
        }
        Output::Table => print::table(&COLUMNS, &rows(false), print::width_of_output())?,
        Output::Wide => print::table(&WIDE_COLUMNS, &rows(true), None)?,
    }
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

pub fn row(worker: &Worker, now: i64, is_wide: bool) -> Vec<String> {
    let slots = match (worker.slots_in_use, worker.slots) {
        (Some(used), Some(all)) if worker.unavailable.is_some() => format!("{used}/{all} waits"),
        (Some(used), Some(all)) => format!("{used}/{all}"),
        _ => MISSING.to_owned(),
    };
    let text = |text: Option<&str>| text.map_or(MISSING.into(), |text| escaped(text).into_owned());
    let longest = worker.longest.as_ref().map_or_else(
        || MISSING.to_owned(),
        |longest| format!("{} {}", age(now - longest.since), escaped(&longest.task)),
    );
    let mut row = vec![
        escaped(&worker.name).into_owned(),
        slots,
        age(now - worker.last_sign_time),
        text(worker.input.as_deref()),
        format!("{}:{}", escaped(&worker.host), worker.process),
        longest,
    ];
    if is_wide {
        row.extend([
            text(worker.output.as_deref()),
            worker
                .open_deliveries
                .map_or_else(|| MISSING.to_owned(), |open| open.to_string()),
            age(now - worker.start_time),
            escaped(&worker.version).into_owned(),
        ]);
    }
    row
}
