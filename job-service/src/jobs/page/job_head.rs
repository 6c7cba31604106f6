//! The head of every page of a job.

use std::sync::Arc;

use contract::rest::Job;
use contract::{JobId, PartitionId};
use store::ListedJob;

use crate::html::job_action::Action;
use crate::html::{Layout, Live, url};
use crate::http::ApiResult;
use crate::jobs::routes::get_job::find_job;
use crate::state::AppState;

/// The least seconds between two reads of a page that costs more than an overview. A job at work
/// changes every second.
const SLOW: u32 = 5;

/// The head of every page of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobHead<'a> {
    pub partition: &'a str,
    pub job: &'a Job,
    /// Which of the pages this is: the end of its path, empty for the overview.
    pub page: &'static str,
}

impl<'a> JobHead<'a> {
    /// The head of a page of a job.
    pub const fn new(partition: &'a str, job: &'a Job, page: &'static str) -> Self {
        Self {
            partition,
            job,
            page,
        }
    }

    pub fn url(&self) -> String {
        url::job(self.partition, &self.job.id)
    }

    /// Returns the URL of a task of the job; the id of its own may be empty.
    pub fn task(&self, id: &str) -> String {
        url::task(self.partition, &self.job.id, task_name(id))
    }

    /// Returns the URL of the dead letters of the job.
    pub fn letters_url(&self) -> String {
        let query = [("partition", self.partition), ("job", &self.job.id)];
        format!("/dead-letters{}", url::query(query))
    }

    pub fn is_possible(&self, action: Action) -> bool {
        action.is_possible(self.job.status, self.job.failed_tasks)
    }

    pub fn layout(&self, done: Option<String>) -> Layout {
        Layout {
            live: Live::Events(format!("{}/live", self.url())),
            pace: match self.page {
                "failures" | "outputs" | "definition" => SLOW,
                _ => 1,
            },
            done,
            ..Layout::of_jobs(
                format!("{} ({})", self.job.id, self.partition),
                self.partition,
            )
        }
    }
}

/// Returns the id of a task; the job's own is empty in failures.
pub fn task_name(id: &str) -> &str {
    if id.is_empty() { "0" } else { id }
}

/// Returns a job as its pages show it.
pub async fn shown(state: &Arc<AppState>, partition: &PartitionId, job: &JobId) -> ApiResult<Job> {
    let ListedJob {
        mut job,
        long_texts,
    } = find_job(state, partition, job).await?;
    job.cut = long_texts
        .iter()
        .map(|text| text.name().to_owned())
        .collect();
    Ok(job)
}
