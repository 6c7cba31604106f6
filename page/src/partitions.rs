//! The first page: the partitions that have jobs.

use askama::Template;

use crate::layout::{Layout, Live, Place};
use crate::url;

/// The partitions.
#[derive(Debug, Template)]
#[template(path = "partitions.html")]
pub struct PartitionsPage {
    layout: Layout,
    rows: Vec<PartitionRow>,
    next: Option<String>,
    example: String,
}

/// A partition in the list.
#[derive(Debug, Clone)]
pub struct PartitionRow {
    name: String,
    url: String,
}

impl PartitionsPage {
    /// The list of these partitions. `more` says that others follow; `api` is the URL of the API
    /// for the example.
    pub fn new(names: Vec<String>, more: bool, api: &str) -> Self {
        let next = names.last().filter(|_| more);
        let next = next.map(|last| format!("/{}", url::query([("after", last.as_str())])));
        let row = |name: String| PartitionRow {
            url: url::jobs(&name),
            name,
        };
        Self {
            layout: Layout {
                title: "Partitions".to_owned(),
                place: Place::Jobs,
                live: Live::Every(10),
                ..Layout::default()
            },
            rows: names.into_iter().map(row).collect(),
            next,
            example: example(api),
        }
    }
}

/// Returns the command that creates a first job.
pub fn example(api: &str) -> String {
    format!("batchwright submit first --batch-type range --definition 1-1000 --watch --url {api}")
}
