//! The pages around an action that is asked about first, or that concerns several jobs.

use askama::Template;

use crate::job::Action;
use crate::layout::Layout;
use crate::{filters, text, url};

/// Asks whether to do something with one job.
#[derive(Debug, Template)]
#[template(path = "confirm.html")]
pub struct ActionConfirmation {
    layout: Layout,
    action: Action,
    question: String,
    post: String,
    hidden: Vec<(&'static str, String)>,
    back: String,
    list: Vec<String>,
    note: String,
    is_possible: bool,
}

impl ActionConfirmation {
    /// Asks about one job.
    pub fn of_job(partition: &str, job: &str, action: Action) -> Self {
        let url = url::job(partition, job);
        Self {
            layout: Layout::of_jobs(action.title().to_owned(), partition),
            action,
            question: format!("{} the job {job}?", action.title()),
            post: format!("{url}/{}", action.name()),
            hidden: Vec::new(),
            back: url,
            list: Vec::new(),
            note: String::new(),
            is_possible: true,
        }
    }

    /// Asks about the jobs that are selected.
    pub fn of_selection(partition: &str, action: Action, jobs: Vec<String>, back: String) -> Self {
        let count = jobs.len();
        let hidden = jobs.iter().map(|job| ("job", job.clone()));
        Self {
            hidden: std::iter::once(("of", "selected".to_owned()))
                .chain(hidden)
                .collect(),
            question: match count {
                0 => "No job is selected".to_owned(),
                1 => format!("{} 1 job?", action.title()),
                _ => format!("{} {count} jobs?", action.title()),
            },
            is_possible: count > 0,
            note: match count {
                0 => "Go back, and select jobs in the list or choose all that match.".to_owned(),
                _ => String::new(),
            },
            list: jobs,
            ..Self::of_many(partition, action, back)
        }
    }

    /// Asks about all jobs that match: `possible` of them are in a status that allows the action.
    /// `query` are the parameters that select them.
    pub fn of_all(
        partition: &str,
        action: Action,
        (matching, possible): (u64, u64),
        query: Vec<(&'static str, String)>,
        back: String,
    ) -> Self {
        let list = query.iter().filter(|(_, value)| !value.is_empty());
        Self {
            list: list
                .map(|(name, value)| format!("{name} = {value}"))
                .collect(),
            hidden: std::iter::once(("of", "all".to_owned()))
                .chain(query)
                .collect(),
            question: if possible == 0 {
                format!("No job can be {}", action.done())
            } else {
                format!("{} {}?", action.title(), text::counted(possible, "job"))
            },
            is_possible: possible > 0,
            note: format!(
                "{} match; {} of them can be {}. Jobs that match by the time you confirm are included.",
                text::number(matching),
                text::number(possible),
                action.done()
            ),
            ..Self::of_many(partition, action, back)
        }
    }

    fn of_many(partition: &str, action: Action, back: String) -> Self {
        Self {
            layout: Layout::of_jobs(action.title().to_owned(), partition),
            action,
            question: String::new(),
            post: url::bulk(partition),
            hidden: Vec::new(),
            back,
            list: Vec::new(),
            note: String::new(),
            is_possible: true,
        }
    }
}

/// Says what has become of an action on several jobs of which some were refused.
#[derive(Debug, Template)]
#[template(path = "outcome.html")]
pub struct BulkOutcome<'a> {
    layout: Layout,
    sentence: String,
    refused: Vec<(String, String)>,
    more: usize,
    action: Action,
    partition: &'a str,
    /// How many jobs are left that match, and the fields of the form that goes on with them.
    again: Option<(u64, Vec<(&'static str, String)>)>,
}

impl<'a> BulkOutcome<'a> {
    /// `done` jobs, and those that were refused with the reasons; `more` further ones were refused,
    /// too. `again` is how many jobs are left that match, and the fields of the form that goes on
    /// with them.
    pub fn new(
        partition: &'a str,
        action: Action,
        done: u64,
        (refused, more): (Vec<(String, String)>, usize),
        again: Option<(u64, Vec<(&'static str, String)>)>,
    ) -> Self {
        Self {
            layout: Layout::of_jobs(action.title().to_owned(), partition),
            sentence: many(action, done),
            refused,
            more,
            action,
            partition,
            again,
        }
    }
}

/// Returns what was done with so many jobs: `3 jobs were paused.`
pub fn many(action: Action, count: u64) -> String {
    let were = if count > 1 { "were" } else { "was" };
    match count {
        0 => format!("No job was {}.", action.done()),
        _ => format!("{} {were} {}.", text::counted(count, "job"), action.done()),
    }
}
