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
            print::lines(&task_text::details(job, &task, print::now()))?;
            if !task.failed_attempts.is_empty() {
                let is_wide = service.output == Output::Wide;
                print::table(task_text::COLUMNS, &task.failed_attempts, is_wide)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
