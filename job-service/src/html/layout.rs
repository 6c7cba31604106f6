//! What surrounds every page: the head, the navigation and the switches.

use crate::html::url;

/// What surrounds a page.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The title of the page, without the name of the program.
    pub title: String,
    /// Where the page is in the navigation.
    pub place: Place,
    /// The partition that the page is about.
    pub partition: Option<String>,
    /// How the page stays up to date; a page that does not is read once.
    pub live: Live,
    /// The least seconds between two reads of the page while it stays up to date.
    pub pace: u32,
    /// What was just done, in a sentence.
    pub done: Option<String>,
}

/// An entry of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The lists of jobs, and the jobs.
    Jobs,
    /// A new job.
    Submit,
    /// The pipes.
    Pipes,
    /// The conditions that tasks wait for.
    Conditions,
    /// The dead letters.
    Letters,
    /// The workers.
    Workers,
    /// What is not in the navigation.
    Nowhere,
}

/// How a page stays up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// Not at all.
    No,
    /// The page is read again when this event stream has an event.
    Events(String),
    /// The same, and while the page shows numbers that change without an event (`data-runs`), also
    /// after so many seconds.
    EventsAndEvery(String, u32),
    /// The page is read again after so many seconds.
    Every(u32),
}

impl Layout {
    /// What surrounds a page that is read once.
    pub const fn new(title: String, place: Place) -> Self {
        Self {
            title,
            place,
            partition: None,
            live: Live::No,
            pace: 1,
            done: None,
        }
    }

    /// What surrounds a page about jobs of a partition that is read once.
    pub fn of_jobs(title: String, partition: &str) -> Self {
        Self {
            partition: Some(partition.to_owned()),
            ..Self::new(title, Place::Jobs)
        }
    }

    /// Returns the URL of the list of jobs.
    pub fn jobs_url(&self) -> String {
        self.partition
            .as_deref()
            .map_or_else(|| "/".to_owned(), url::jobs)
    }

    /// Returns the URL of the form for a new job; it belongs to a partition.
    pub fn submit_url(&self) -> Option<String> {
        self.partition.as_deref().map(url::submit)
    }

    /// Returns the event stream that says when to read the page again; an empty text if there is
    /// none.
    pub fn events(&self) -> &str {
        match &self.live {
            Live::Events(url) | Live::EventsAndEvery(url, _) => url,
            Live::No | Live::Every(_) => "",
        }
    }

    /// Returns after how many seconds to read the page again; 0 for never.
    pub const fn every(&self) -> u32 {
        match self.live {
            Live::Every(seconds) | Live::EventsAndEvery(_, seconds) => seconds,
            Live::No | Live::Events(_) => 0,
        }
    }

    /// Returns whether the page stays up to date.
    pub fn is_live(&self) -> bool {
        self.live != Live::No
    }
}
