//! Runs a job again: a form for a new job from the request of one that exists.

use askama::Template;

use crate::layout::Layout;
use crate::url;

/// Asks for the id of the new job.
#[derive(Debug, Template)]
#[template(path = "again.html")]
pub struct AgainPage<'a> {
    layout: Layout,
    job: &'a str,
    back: String,
    id: &'a str,
    key: String,
    problem: Option<String>,
}

impl<'a> AgainPage<'a> {
    /// The form to run a job again. `id` is what was entered, `key` makes that two requests of the
    /// form create one job, and `problem` says what is wrong with what was entered.
    pub fn new(
        partition: &'a str,
        job: &'a str,
        id: &'a str,
        key: String,
        problem: Option<String>,
    ) -> Self {
        Self {
            layout: Layout::of_jobs(format!("Run {job} again"), partition),
            job,
            back: url::job(partition, job),
            id,
            key,
            problem,
        }
    }
}
