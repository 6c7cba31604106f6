//! `batchwright get JOB --task PATH`: shows one task of a job and its failed attempts.

use std::process::ExitCode;

use contract::rest::Task;

use super::connect::{Output, ServiceArgs};
use crate::print::{self, say};
use crate::task_text;

pub async fn get(job: &str, task: &str, service: &ServiceArgs) -> anyhow::Result<ExitCode> {
    let task: Task = service.client()?.task(job, task).await?;
    match service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&task)?),
        Output::Name => say!("{}", task.id),
        Output::Table | Output::Wide => {
            let now = print::now();
            for line in task_text::details(job, &task, now) {
                say!("{line}");
            }
            if !task.failed_attempts.is_empty() {
                let attempts = task.failed_attempts.iter();
                if service.output == Output::Wide {
                    let rows: Vec<_> = attempts.map(task_text::wide_row).collect();
                    print::table(&task_text::WIDE_COLUMNS, &rows, None)?;
                } else {
                    let rows: Vec<_> = attempts.map(|it| task_text::row(it, now)).collect();
                    print::table(&task_text::COLUMNS, &rows, print::width_of_output())?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
