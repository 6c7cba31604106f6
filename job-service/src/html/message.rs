//! The parts of a message, as a person reads them.

use std::collections::BTreeMap;

use contract::{PipeHeader, PipeMessage};

use crate::html::url;

/// The longest part of a message that a page shows, in characters.
const SHOWN: usize = 4000;

/// The parts of a message, one below the other.
#[derive(Debug)]
pub struct Message<'a> {
    pub task: &'a str,
    pub classifier: &'a str,
    /// The job and the URL of its task.
    pub job: Option<(String, String)>,
    pub headers: &'a BTreeMap<String, PipeHeader>,
    pub data: String,
    pub envelope: String,
}

impl<'a> Message<'a> {
    pub fn of(message: &'a PipeMessage) -> Self {
        let envelope = message.envelope.as_ref();
        let field = |name: &str| envelope.and_then(|fields| fields.get(name)?.as_str());
        let data = message.task_data.as_ref().map(|data| data.get());
        let pretty = envelope.map(serde_json::to_string_pretty);
        let tracked =
            envelope.and_then(|fields| fields.get("tracking")?.get("jobTaskId")?.as_str());
        Self {
            task: field("taskId").unwrap_or("not a task message"),
            classifier: field("taskClassifier").unwrap_or_default(),
            job: tracked.and_then(url::of_task),
            headers: &message.headers,
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
