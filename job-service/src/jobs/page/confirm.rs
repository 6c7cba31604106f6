//! The question before an action is done.

use askama::Template;

use crate::html::job_action::Action;
use crate::html::{Layout, text, url};

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
