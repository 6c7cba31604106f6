//! The first page: the partitions that have jobs.

use askama::Template;

use crate::layout::{Layout, Live, Place};
use crate::url;

/// The partitions.
#[derive(Debug, Template)]
#[template(path = "partitions.html")]
pub struct PartitionsPage<'a> {
    layout: Layout,
    names: &'a [String],
    more: bool,
    api: &'a str,
}

impl<'a> PartitionsPage<'a> {
    /// The list of these partitions. `more` says that others follow; `api` is the URL of the API
    /// for the example.
    pub fn new(names: &'a [String], more: bool, api: &'a str) -> Self {
        Self {
            layout: Layout {
                live: Live::Every(10),
                ..Layout::new("Partitions".to_owned(), Place::Jobs)
            },
            names,
            more,
            api,
        }
    }
}
