//! The uploaded sources of a partition, and the question whether to delete one.

use askama::Template;
use contract::rest::{UploadedSource, UploadedSources};

use crate::layout::{Layout, Live, Place};
use crate::text::{self, Time};
use crate::url;

/// How often the list is read again, in seconds.
const EVERY: u32 = 5;

/// The sources of a partition.
#[derive(Debug, Template)]
#[template(path = "sources.html")]
pub struct SourcesPage {
    layout: Layout,
    partition: String,
    /// How many bytes all of them have, and may have.
    used: String,
    most: String,
    rows: Vec<SourceRow>,
    next: Option<String>,
}

/// Asks whether to delete a source.
#[derive(Debug, Template)]
#[template(path = "source-confirm.html")]
pub struct SourceConfirmation {
    layout: Layout,
    id: String,
    size: String,
    post: String,
    back: String,
}

#[derive(Debug)]
struct SourceRow {
    id: String,
    size: String,
    is_committed: bool,
    created: Time,
    expires: Option<Time>,
    /// The jobs that name it, and their URLs.
    jobs: Vec<(String, String)>,
    /// Where to ask whether to delete it, if that is possible.
    confirm: Option<String>,
}

impl SourcesPage {
    /// The list of these sources. `is_deleted` if one was just deleted.
    pub fn new(partition: &str, sources: UploadedSources, is_deleted: bool) -> Self {
        let path = url::sources(partition);
        let next = sources.next.as_deref();
        let row = |source: UploadedSource| SourceRow {
            size: bytes(source.bytes),
            is_committed: source.committed,
            created: Time(source.create_time),
            expires: source.expiry_time.map(Time),
            confirm: source
                .jobs
                .is_empty()
                .then(|| format!("{path}/{}/confirm", url::encode(&source.id))),
            jobs: source
                .jobs
                .into_iter()
                .map(|job| (url::job(partition, &job), job))
                .collect(),
            id: source.id,
        };
        Self {
            next: next.map(|after| format!("{path}{}", url::query([("after", after)]))),
            layout: Layout {
                done: is_deleted.then(|| "The source is deleted.".to_owned()),
                live: Live::Every(EVERY),
                ..layout("Sources", partition)
            },
            partition: partition.to_owned(),
            used: bytes(sources.bytes),
            most: bytes(sources.max_bytes),
            rows: sources.sources.into_iter().map(row).collect(),
        }
    }
}

impl SourceConfirmation {
    /// The question about this source.
    pub fn new(partition: &str, source: &UploadedSource) -> Self {
        let back = url::sources(partition);
        Self {
            layout: layout("Delete a source", partition),
            id: source.id.clone(),
            size: bytes(source.bytes),
            post: format!("{back}/{}/delete", url::encode(&source.id)),
            back,
        }
    }
}

fn bytes(bytes: u64) -> String {
    text::bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn layout(title: &str, partition: &str) -> Layout {
    Layout {
        title: title.to_owned(),
        place: Place::Jobs,
        partition: Some(partition.to_owned()),
        ..Layout::default()
    }
}
