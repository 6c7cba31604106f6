//! The tasks of the command worker and their results, as they are on the wire.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use contract::{FileItem, LineRange, ListItem, RangeItem, RecordItem};
use framework::TaskData;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run::Outcome;
use crate::text::{beginning, last_lines};

/// The most bytes of an item that a result and a label repeat.
const ITEM_BYTES: usize = 1000;

/// A task of the command worker: an item, and the command that it is for.
///
/// An item of any of our batch plugins is one, too. Its command is a parameter of the batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandTask {
    /// The name of the command; by default, the parameter `command` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The item: a text, or any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Value>,
    /// The value of an item of the plugin `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// The record of an item of the plugin `records`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Value>,
    /// The records of such an item, if it has several: lines of JSON.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Value>,
    /// The number of an item of the plugin `range`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The path of a file, below the root folder: of an item of the plugins `glob` and `lines`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The size of that file when the batch was split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The time of its last change then, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<i64>,
    /// The position of the lines in the file, of an item of the plugin `lines`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The length of these lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The number of these lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// The parameters of the batch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

/// What a command has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandResult {
    /// The name of the command.
    pub command: String,
    /// The beginning of the item.
    pub item: String,
    /// The exit code.
    pub exit_code: i32,
    /// What it wrote to standard output, if that is text in UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What it wrote to standard output, if that is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_base64: Option<String>,
    /// The end of what it wrote to standard error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_text: String,
    /// How long it ran.
    pub duration_ms: u64,
}

impl TaskData for CommandTask {
    const CLASSIFIER: &'static str = "Command";
    const API_VERSION: i32 = 1;

    fn reads(classifier: &str) -> bool {
        [
            Self::CLASSIFIER,
            RangeItem::CLASSIFIER,
            ListItem::CLASSIFIER,
            FileItem::CLASSIFIER,
            LineRange::CLASSIFIER,
            RecordItem::CLASSIFIER,
        ]
        .contains(&classifier)
    }

    fn label(&self) -> Option<String> {
        let item = match (&self.path, self.offset) {
            (Some(path), _) if self.record.is_some() || !self.records.is_empty() => {
                format!("record {} of {path}", self.number?)
            }
            (Some(path), Some(offset)) => format!("{path} from byte {offset}"),
            (Some(path), None) => path.clone(),
            (None, _) => self.value_text()?,
        };
        Some(beginning(&item, ITEM_BYTES).to_owned())
    }
}

impl TaskData for CommandResult {
    const CLASSIFIER: &'static str = "CommandResult";
    const API_VERSION: i32 = 1;
}

impl CommandTask {
    /// Returns the item as a text, unless it is a file.
    pub(crate) fn value_text(&self) -> Option<String> {
        let number = || Some(self.number?.to_string());
        let several = || {
            let lines: Vec<String> = self.records.iter().map(Value::to_string).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        };
        let value = self.item.as_ref().or(self.value.as_ref());
        match value.or(self.record.as_ref()) {
            None if self.path.is_some() => several(),
            Some(Value::String(text)) => Some(text.clone()),
            Some(json) => Some(json.to_string()),
            None => number(),
        }
    }
}

impl CommandResult {
    pub(crate) fn new(
        command: String,
        item: &str,
        exit_code: i32,
        outcome: Outcome,
        duration_ms: u64,
    ) -> Self {
        let error_text = if outcome.error_text.is_empty() {
            String::new()
        } else {
            String::from_utf8_lossy(&outcome.error_text).into_owned()
        };
        let (output, output_base64) = match String::from_utf8(outcome.output) {
            Ok(text) => (Some(text), None),
            Err(bytes) => (None, Some(BASE64_STANDARD.encode(bytes.as_bytes()))),
        };
        Self {
            command,
            item: beginning(item, ITEM_BYTES).to_owned(),
            exit_code,
            output,
            output_base64,
            error_text,
            duration_ms,
        }
    }
}

impl Outcome {
    /// Returns the last lines of the error text, or else of the output.
    pub(crate) fn last_words(&self) -> String {
        let said = last_lines(&self.error_text);
        if said.is_empty() {
            last_lines(&self.output)
        } else {
            said
        }
    }
}
