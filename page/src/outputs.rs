//! The outputs that are kept of a job.

use askama::Template;
use contract::rest::{Job, KeptOutput, OutputStatus};

use crate::job::JobHead;
use crate::layout::Layout;
use crate::url;

/// The longest output that a page shows, in characters.
const SHOWN: usize = 2000;

/// A line of the outputs.
#[derive(Debug)]
pub struct OutputLine {
    offset: u64,
    task: String,
    label: String,
    status: &'static str,
    text: String,
    is_cut: bool,
}

impl OutputLine {
    /// The line of an output.
    pub fn of(output: KeptOutput) -> Self {
        let failed = output.status == OutputStatus::Failed;
        let text = match (output.output, output.output_base64, output.failure) {
            (_, _, Some(failure)) => failure.failure_message.unwrap_or_default(),
            (Some(json), ..) => json.to_string(),
            (None, Some(base64), None) => base64,
            (None, None, None) => String::new(),
        };
        let cut = text.char_indices().nth(SHOWN).map(|(at, _)| at);
        Self {
            offset: output.offset,
            task: output.task,
            label: output.label.unwrap_or_default(),
            status: match (failed, output.negative) {
                (true, _) => "failed",
                (false, true) => "negative",
                (false, false) => "done",
            },
            is_cut: cut.is_some(),
            text: text[..cut.unwrap_or(text.len())].to_owned(),
        }
    }
}

/// The outputs that were read for a page.
#[derive(Debug, Default)]
pub struct OutputLines {
    /// The lines.
    pub lines: Vec<OutputLine>,
    /// Whether others follow.
    pub more: bool,
    /// Whether there are fewer on the page than it could have, because they are large.
    pub are_large: bool,
}

/// The outputs that are kept of a job.
#[derive(Debug, Template)]
#[template(path = "outputs.html")]
pub struct OutputsPage {
    layout: Layout,
    head: JobHead,
    lines: Vec<OutputLine>,
    are_large: bool,
    problem: Option<String>,
    next: Option<String>,
    download: String,
}

impl OutputsPage {
    /// A page of the outputs, or why there are none. `download` is the URL of all of them.
    pub fn new(
        partition: &str,
        job: &Job,
        lines: Result<OutputLines, String>,
        download: String,
    ) -> Self {
        let head = JobHead::new(partition, job, "outputs");
        let (read, problem) = match lines {
            Ok(read) => (read, None),
            Err(problem) => (OutputLines::default(), Some(problem)),
        };
        let OutputLines {
            lines,
            more,
            are_large,
        } = read;
        let after = lines.last().filter(|_| more).map(|line| line.offset + 1);
        Self {
            layout: head.layout(None),
            next: after.map(|offset| {
                let offset = offset.to_string();
                let query = url::query([("offset", offset.as_str())]);
                format!("{}/outputs{query}", head.url())
            }),
            lines,
            are_large,
            problem,
            download,
            head,
        }
    }
}
