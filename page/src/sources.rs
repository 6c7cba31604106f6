//! The uploaded sources of a partition, and the question whether to delete one.

use askama::Template;
use contract::rest::{UploadedSource, UploadedSources};

use crate::layout::{Layout, Live};
use crate::{filters, url};

/// How often the list is read again, in seconds.
const EVERY: u32 = 5;

/// The sources of a partition.
#[derive(Debug, Template)]
#[template(path = "sources.html")]
pub struct SourcesPage<'a> {
    layout: Layout,
    partition: &'a str,
    found: &'a UploadedSources,
}

/// Asks whether to delete a source.
#[derive(Debug, Template)]
#[template(path = "source-confirm.html")]
pub struct SourceConfirmation<'a> {
    layout: Layout,
    partition: &'a str,
    source: &'a UploadedSource,
}

impl<'a> SourcesPage<'a> {
    /// The list of these sources. `is_deleted` if one was just deleted.
    pub fn new(partition: &'a str, found: &'a UploadedSources, is_deleted: bool) -> Self {
        Self {
            layout: Layout {
                done: is_deleted.then(|| "The source is deleted.".to_owned()),
                live: Live::Every(EVERY),
                ..Layout::of_jobs("Sources".to_owned(), partition)
            },
            partition,
            found,
        }
    }
}

impl<'a> SourceConfirmation<'a> {
    /// The question about this source.
    pub fn new(partition: &'a str, source: &'a UploadedSource) -> Self {
        Self {
            layout: Layout::of_jobs("Delete a source".to_owned(), partition),
            partition,
            source,
        }
    }
}
