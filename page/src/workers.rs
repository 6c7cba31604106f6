//! The workers of all processes, as they tell of themselves.

use askama::Template;
use contract::{Worker, Workers};

use crate::layout::{Layout, Live, Place};
use crate::{filters, url};

/// How often the page is read again, in seconds.
const EVERY: u32 = 3;

/// The list of workers.
#[derive(Debug, Template)]
#[template(path = "workers.html")]
pub struct WorkersPage<'a> {
    layout: Layout,
    workers: Vec<&'a Worker>,
    more: u64,
}

impl<'a> WorkersPage<'a> {
    /// The list of these workers.
    pub fn new(found: &'a Workers) -> Self {
        Self {
            layout: Layout {
                live: Live::Every(EVERY),
                ..Layout::new("Workers".to_owned(), Place::Workers)
            },
            workers: found.workers.iter().collect(),
            more: found.more,
        }
    }

    /// Returns whether there are workers beside those of job services for their own work.
    fn has_others(&self) -> bool {
        let is_other =
            |it: &&Worker| it.name != "job-service" && !it.name.starts_with("job-service-");
        self.workers.iter().any(is_other)
    }
}

/// Returns how many slots are in use, and which part of them that is, in percent.
pub fn slots(worker: &Worker) -> Option<(String, String)> {
    let (all, used) = (worker.slots?, worker.slots_in_use?);
    let share = 100.0 * f64::from(used) / f64::from(all.max(1));
    Some((
        format!("{used} of {all}"),
        format!("{:.1}", share.min(100.0)),
    ))
}
