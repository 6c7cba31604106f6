//! The pipes: what waits where, who takes it, and what went wrong beside it.

use askama::Template;
use contract::{Pipe, PipeHeader, PipeMessage, Pipes};

use crate::layout::{Layout, Live, Place};
use crate::text;
use crate::url;
use crate::workers::WorkerRow;

/// How often the pages of pipes are read again, in seconds.
const EVERY: u32 = 3;
/// The longest part of a message that a page shows, in characters.
const SHOWN: usize = 4000;

/// The list of pipes.
#[derive(Debug, Template)]
#[template(path = "pipes.html")]
pub struct PipesPage {
    layout: Layout,
    rows: Vec<PipeRow>,
    is_complete: bool,
    example: String,
}

/// A pipe, as a line of the list and as the facts of its own page.
#[derive(Debug)]
struct PipeRow {
    name: String,
    url: String,
    exists: bool,
    items: String,
    messages: String,
    consumers: String,
    delayed: String,
    came: String,
    left: String,
    quarantined: Beside,
    invalid: Beside,
    rejected: Beside,
    workers: String,
    remark: Option<&'static str>,
}

/// A number of messages beside a pipe, which should be 0.
#[derive(Debug)]
struct Beside {
    text: String,
    is_bad: bool,
}

impl PipesPage {
    /// The list of these pipes. `api` is the URL of the API for the example.
    pub fn new(pipes: &Pipes, api: &str) -> Self {
        Self {
            layout: layout("Pipes".to_owned()),
            rows: pipes.pipes.iter().map(PipeRow::of).collect(),
            is_complete: pipes.complete,
            example: crate::partitions::example(api),
        }
    }
}

impl PipeRow {
    fn of(pipe: &Pipe) -> Self {
        let known = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), count);
        let rate = |rate: Option<f64>| {
            rate.map_or_else(|| "–".to_owned(), |rate| format!("{}/s", text::rate(rate)))
        };
        let beside = |number: Option<u64>| Beside {
            text: known(number),
            is_bad: number.is_some_and(|number| number > 0),
        };
        Self {
            name: pipe.name.clone(),
            url: url::pipe(&pipe.name),
            exists: pipe.exists,
            items: count(pipe.items),
            messages: count(pipe.messages),
            consumers: known(pipe.consumers),
            delayed: known(pipe.delayed),
            came: rate(pipe.in_per_second),
            left: rate(pipe.out_per_second),
            quarantined: beside(pipe.quarantined),
            invalid: beside(pipe.invalid),
            rejected: beside(pipe.rejected),
            workers: pipe.workers.join(", "),
            remark: remark(pipe),
        }
    }
}

impl PipeRow {
    /// Returns the URL of the dead letters that came from the pipe, or were found in it.
    fn letters_url(&self) -> String {
        format!(
            "/dead-letters{}",
            url::query([("pipe", self.name.as_str())])
        )
    }
}

/// Returns what a person should know of a pipe beside its numbers.
fn remark(pipe: &Pipe) -> Option<&'static str> {
    if !pipe.exists {
        return Some("It comes into being when it is used first.");
    }
    let nobody = pipe.consumers == Some(0);
    (nobody && pipe.items > 0).then_some("Nobody takes messages from it.")
}

/// One pipe, with the workers that take messages from it and its first messages.
#[derive(Debug, Template)]
#[template(path = "pipe.html")]
pub struct PipePage {
    layout: Layout,
    row: PipeRow,
    workers: Vec<WorkerRow>,
    messages: Result<Vec<Message>, String>,
    more: Option<String>,
}

/// The parts of a message, one below the other.
#[derive(Debug)]
pub(crate) struct Message {
    pub task: String,
    pub classifier: String,
    job: Option<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub data: String,
    pub envelope: String,
}

impl PipePage {
    /// A pipe with the rows of its workers, and with its first messages or why they are not shown.
    /// `more` is the number of messages to ask for instead.
    pub fn new(
        pipe: &Pipe,
        workers: Vec<WorkerRow>,
        problem: Option<String>,
        more: Option<usize>,
    ) -> Self {
        let row = PipeRow::of(pipe);
        let peeked = pipe.peeked.as_deref().unwrap_or_default();
        let messages = peeked.iter().map(Message::of).collect();
        Self {
            layout: layout(pipe.name.clone()),
            more: more.map(|number| format!("{}?peek={number}", row.url)),
            row,
            workers,
            messages: problem.map_or(Ok(messages), Err),
        }
    }
}

impl PipePage {
    fn rows(&self) -> &[WorkerRow] {
        &self.workers
    }
}

impl Message {
    pub fn of(message: &PipeMessage) -> Self {
        let envelope = message.envelope.as_ref();
        let field = |name: &str| envelope.and_then(|fields| fields.get(name)?.as_str());
        let header = |(name, value): (&String, &PipeHeader)| {
            let value = match value {
                PipeHeader::Integer(number) => number.to_string(),
                PipeHeader::Text(text) => text.clone(),
            };
            (name.clone(), value)
        };
        let data = message.task_data.as_ref().map(|data| data.get());
        let pretty = envelope.map(serde_json::to_string_pretty);
        let tracked =
            envelope.and_then(|fields| fields.get("tracking")?.get("jobTaskId")?.as_str());
        Self {
            task: field("taskId").unwrap_or("not a task message").to_owned(),
            classifier: field("taskClassifier").unwrap_or_default().to_owned(),
            job: tracked.and_then(url::of_task),
            headers: message.headers.iter().map(header).collect(),
            data: cut(data.or(message.body.as_deref()).unwrap_or_default()),
            envelope: cut(&pretty.and_then(Result::ok).unwrap_or_default()),
        }
    }
}

/// Returns the beginning of a text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn count(number: u64) -> String {
    text::number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn layout(title: String) -> Layout {
    Layout {
        title,
        place: Place::Pipes,
        live: Live::Every(EVERY),
        ..Layout::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_with_items_that_nobody_takes_is_remarked() {
        let pipe = |exists, items, consumers| Pipe {
            exists,
            items,
            consumers,
            ..Pipe::default()
        };
        let nobody = "Nobody takes messages from it.";
        for (pipe, expected) in [
            (pipe(true, 3, Some(0)), Some(nobody)),
            (pipe(true, 0, Some(0)), None),
            (pipe(true, 3, Some(1)), None),
            (pipe(true, 3, None), None),
            (
                pipe(false, 0, None),
                Some("It comes into being when it is used first."),
            ),
        ] {
            assert_eq!(remark(&pipe), expected, "{pipe:?}");
        }
    }
}
