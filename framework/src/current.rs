//! The message that the current code handles: its ids, which the log takes from here for each line,
//! and its span.
//!
//! The ids are formatted only when a line is written: a delivery that logs nothing costs no more
//! than setting a thread-local variable.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use contract::{JobTaskId, TaskMessage};

use crate::trace::{Attributes, Span, SpanKind, TraceContext};

tokio::task_local! {
    static CURRENT: Arc<CurrentMessage>;
}

/// A message that is being handled, and where it came from.
#[derive(Debug)]
pub(crate) struct CurrentMessage {
    pub pipe: Arc<str>,
    pub message: TaskMessage,
    /// The number of the attempt at the task, from 1.
    attempt: AtomicU32,
    /// The span of the delivery, whose context the outputs carry. It ends with this value.
    pub span: Span,
}

impl CurrentMessage {
    /// Returns a message that has a span of its own if it is `traced`. Otherwise its outputs carry
    /// the context that it came with.
    pub fn new(
        pipe: Arc<str>,
        message: TaskMessage,
        attempt: u32,
        parent: Option<TraceContext>,
        traced: bool,
    ) -> Arc<Self> {
        let mut current = Self {
            pipe,
            message,
            attempt: AtomicU32::new(attempt),
            span: Span::carry(None),
        };
        current.span = if traced {
            Span::begin(SpanKind::Message, parent, || describe(&current))
        } else {
            Span::carry(parent)
        };
        Arc::new(current)
    }

    /// Begins another attempt without another delivery.
    pub fn set_attempt(&self, attempt: u32) {
        self.attempt.store(attempt, Ordering::Relaxed);
    }

    /// Runs `work`. Each line that it logs carries the ids of this message.
    pub fn scope<F: Future>(self: Arc<Self>, work: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, work)
    }
}

fn describe(current: &CurrentMessage) -> (String, Attributes) {
    let attributes = ids_of(current).into_iter().map(|(name, id)| {
        let name = match name {
            "pipe" => "messaging.destination.name",
            "job" => "batchwright.job",
            "task" => "batchwright.task",
            "attempt" => "batchwright.attempt",
            _ => "batchwright.correlation_id",
        };
        let value = match id {
            Id::Text(text) => text,
            Id::Number(number) => number.to_string(),
        };
        (name, value)
    });
    (format!("process {}", current.pipe), attributes.collect())
}

/// Marks the span of the message that the current code handles as failed.
pub(crate) fn fail(reason: &str) {
    // Outside a delivery there is no span.
    let _ = CURRENT.try_with(|current| current.span.fail(reason));
}

impl Deref for CurrentMessage {
    type Target = TaskMessage;

    fn deref(&self) -> &TaskMessage {
        &self.message
    }
}

/// The value of an id in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Id {
    Text(String),
    Number(u32),
}

/// Returns the ids of the message that the current code handles, by their names in the log; none
/// outside a delivery.
pub(crate) fn ids() -> Vec<(&'static str, Id)> {
    CURRENT
        .try_with(|current| ids_of(current))
        .unwrap_or_default()
}

fn ids_of(current: &CurrentMessage) -> Vec<(&'static str, Id)> {
    let text = |text: &str| Id::Text(text.to_owned());
    let job = current.job_task_id().map(|id| {
        // The id of the whole job is the same in every line. The task id says which task it is.
        JobTaskId::parse(id).map_or_else(
            |_| text(id),
            |mut id| {
                id.steps.clear();
                Id::Text(id.to_string())
            },
        )
    });
    let ids = [
        ("job", job),
        ("task", Some(text(&current.task_id))),
        ("pipe", Some(text(&current.pipe))),
        (
            "attempt",
            Some(Id::Number(current.attempt.load(Ordering::Relaxed))),
        ),
        (
            "correlation_id",
            current.correlation_id.as_deref().map(text),
        ),
    ];
    ids.into_iter()
        .filter_map(|(name, id)| Some((name, id?)))
        .collect()
}
