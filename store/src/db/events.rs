//! Reads of what has happened to jobs: a row for each row of history, and one for each job that is
//! deleted.
//!
//! Only the triggers of a database write these rows, so that no version of the service can forget
//! to; the store in memory does as they do.
//!
//! What must stay true: an event gets its id while its transaction is open, so that an event with a
//! later id may be seen earlier. [`EventMarks`] says which ids may still appear.

use std::collections::BTreeSet;

use super::DbFuture;
use crate::model::JobEvent;

/// What is known of the ids of events at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventMarks {
    /// The last id that was given to an event. It was read before `writers`.
    pub last: i64,
    /// The open transactions that may have been given ids, by names that no two transactions share.
    pub writers: BTreeSet<String>,
}

/// Some events, as one moment sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// In the order of their ids.
    pub events: Vec<JobEvent>,
    /// The last event that the sweeper has deleted.
    pub swept: i64,
}

/// Which events to read.
#[derive(Debug, Clone, Copy)]
pub struct EventRange<'a> {
    /// `None` for those of every partition.
    pub partition: Option<&'a str>,
    pub after: i64,
    pub up_to: i64,
    pub limit: u32,
}

/// Reads of events, outside transactions.
pub trait EventReads {
    fn event_marks(&self) -> DbFuture<'_, EventMarks>;

    fn events<'a>(&'a self, range: EventRange<'a>) -> DbFuture<'a, EventPage>;

    /// Returns the first event that happened at this time or later.
    fn first_event_since(&self, time: i64) -> DbFuture<'_, Option<i64>>;
}
