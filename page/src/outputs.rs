//! The outputs that are kept of a job.

use askama::Template;
use contract::rest::{Job, KeptOutput, OutputStatus};

use crate::job::{Action, JobHead};
use crate::layout::Layout;
use crate::{filters, url};

/// The longest output that a page shows, in characters.
const SHOWN: usize = 2000;

/// The outputs that were read for a page.
#[derive(Debug, Default)]
pub struct OutputLines {
    /// The outputs.
    pub lines: Vec<KeptOutput>,
    /// Whether others follow.
    pub more: bool,
    /// Whether there are fewer on the page than it could have, because they are large.
    pub are_large: bool,
}

/// The outputs that are kept of a job.
#[derive(Debug, Template)]
#[template(path = "outputs.html")]
pub struct OutputsPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    read: OutputLines,
    /// Why there are none.
    problem: Option<String>,
    /// The URL of all of them.
    download: String,
}

impl<'a> OutputsPage<'a> {
    /// A page of the outputs, or why there are none. `download` is the URL of all of them.
    pub fn new(
        partition: &'a str,
        job: &'a Job,
        read: Result<OutputLines, String>,
        download: String,
    ) -> Self {
        let head = JobHead::new(partition, job, "outputs");
        let (read, problem) = match read {
            Ok(read) => (read, None),
            Err(problem) => (OutputLines::default(), Some(problem)),
        };
        Self {
            layout: head.layout(None),
            head,
            read,
            problem,
            download,
        }
    }

    /// Returns the number of the line with which the next page begins.
    fn next(&self) -> Option<u64> {
        let last = self.read.lines.last().filter(|_| self.read.more);
        last.map(|line| line.offset + 1)
    }
}

/// Returns the beginning of an output, and whether there is more of it.
fn shown(output: &KeptOutput) -> (String, bool) {
    let text = match (&output.failure, &output.output, &output.output_base64) {
        (Some(failure), ..) => failure.failure_message.clone().unwrap_or_default(),
        (None, Some(json), _) => json.to_string(),
        (None, None, base64) => base64.clone().unwrap_or_default(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => (text[..at].to_owned(), true),
        None => (text, false),
    }
}

fn status(output: &KeptOutput) -> &'static str {
    match (output.status, output.negative) {
        (OutputStatus::Failed, _) => "failed",
        (_, true) => "negative",
        (_, false) => "done",
    }
}
