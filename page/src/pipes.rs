//! The pipes: what waits where, who takes it, and what went wrong beside it.

use askama::Template;
use contract::{Pipe, PipeHeader, PipeMessage, Pipes, Worker};

use crate::layout::{Layout, Live, Place};
use crate::message::Message;
use crate::{filters, url};

/// How often the pages of pipes are read again, in seconds.
const EVERY: u32 = 3;

/// The list of pipes.
#[derive(Debug, Template)]
#[template(path = "pipes.html")]
pub struct PipesPage<'a> {
    layout: Layout,
    found: &'a Pipes,
    api: &'a str,
}

/// One pipe, with the workers that take messages from it and its first messages.
#[derive(Debug, Template)]
#[template(path = "pipe.html")]
pub struct PipePage<'a> {
    layout: Layout,
    pipe: &'a Pipe,
    workers: Vec<&'a Worker>,
    /// Why the first messages are not shown.
    problem: Option<String>,
    /// The number of messages to ask for instead.
    more: Option<usize>,
}

impl<'a> PipesPage<'a> {
    /// The list of these pipes. `api` is the URL of the API for the example.
    pub fn new(found: &'a Pipes, api: &'a str) -> Self {
        let layout = layout("Pipes".to_owned());
        Self { layout, found, api }
    }
}

impl<'a> PipePage<'a> {
    /// A pipe with its workers, and with its first messages or why they are not shown. `more` is
    /// the number of messages to ask for instead.
    pub fn new(
        pipe: &'a Pipe,
        workers: Vec<&'a Worker>,
        problem: Option<String>,
        more: Option<usize>,
    ) -> Self {
        Self {
            layout: layout(pipe.name.clone()),
            pipe,
            workers,
            problem,
            more,
        }
    }

    fn peeked(&self) -> &[PipeMessage] {
        self.pipe.peeked.as_deref().unwrap_or_default()
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

fn layout(title: String) -> Layout {
    Layout {
        live: Live::Every(EVERY),
        ..Layout::new(title, Place::Pipes)
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
