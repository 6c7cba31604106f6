//! Runs a job again: a form for a new job from the request of one that exists.

use askama::Template;

use crate::layout::{Layout, Place};
use crate::url;

/// Asks for the id of the new job.
#[derive(Debug, Template)]
#[template(path = "again.html")]
pub struct AgainPage {
    layout: Layout,
    job: String,
    back: String,
    id: String,
    key: String,
    problem: Option<String>,
}

impl AgainPage {
    /// The form to run a job again. `id` is what was entered, `key` makes that two requests of the
    /// form create one job, and `problem` says what is wrong with what was entered.
    pub fn new(
        partition: &str,
        job: &str,
        id: String,
        key: String,
        problem: Option<String>,
    ) -> Self {
        Self {
            layout: Layout {
                title: format!("Run {job} again"),
                place: Place::Jobs,
                partition: Some(partition.to_owned()),
                ..Layout::default()
            },
            job: job.to_owned(),
            back: url::job(partition, job),
            id,
            key,
            problem,
        }
    }
}
