//! The batch task: one message that stands for many items. Names and fields of [`BatchTask`] are
//! those of CAF's batch worker; the item types belong to our own batch plugins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::cut;
use crate::{FailedItem, TaskData, without_secrets};

/// A request to the batch worker: split a batch into items. CAF's `BatchWorkerTask`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchTask {
    /// Describes the batch in a format that the batch plugin defines, e.g. `1-1000` for the plugin
    /// `range`.
    pub batch_definition: Option<String>,
    /// The name of the batch plugin.
    pub batch_type: Option<String>,
    /// Passed to the plugin: the kind of item messages to create.
    pub task_message_type: Option<String>,
    /// Passed to the plugin: parameters that are copied to every item.
    pub task_message_params: Option<BTreeMap<String, String>>,
    /// The pipe that receives the items.
    pub target_pipe: Option<String>,
}

impl BatchTask {
    /// The largest size of a batch definition, in bytes.
    pub const MAX_DEFINITION: usize = 4 * 1024 * 1024;
}

impl TaskData for BatchTask {
    const CLASSIFIER: &'static str = "BatchWorker";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        let definition = self.batch_definition.as_deref()?;
        let plugin = self.batch_type.as_deref().unwrap_or("batch");
        let shown = without_secrets(definition);
        let beginning = cut(&shown, FailedItem::LABEL_BYTES);
        Some(format!("{plugin} {beginning}"))
    }
}

/// The batch worker's result message, if it has an output pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResult {
    /// `partition:job` of a tracked batch; the target pipe of an untracked one.
    pub batch_task: String,
}

impl TaskData for BatchResult {
    const CLASSIFIER: &'static str = "BatchWorker";
    const API_VERSION: i32 = 1;
}

/// An item of the plugin `range`: one number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeItem {
    /// The number.
    pub number: u64,
    /// The parameters of the batch, the same for every item.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for RangeItem {
    const CLASSIFIER: &'static str = "RangeItem";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        Some(format!("number {}", self.number))
    }
}

/// An item of the plugin `lines`: whole lines of a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRange {
    /// The path of the file, relative to the root folder that the workers share.
    pub path: String,
    /// The position of the first line in the file, in bytes.
    pub offset: u64,
    /// The length of all lines with their line breaks, in bytes.
    pub length: u64,
    /// The number of lines.
    pub lines: u64,
    /// The size of the whole file when the batch was split, in bytes.
    pub size: u64,
    /// The modification time of the file when the batch was split, in nanoseconds since 1970.
    pub modified: i64,
    /// The parameters of the batch, the same for every item.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for LineRange {
    const CLASSIFIER: &'static str = "LineRange";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        let Self {
            path,
            offset,
            lines,
            ..
        } = self;
        let s = if *lines == 1 { "" } else { "s" };
        Some(format!("{lines} line{s} of {path} from byte {offset}"))
    }
}

/// An item of the plugin `list`: one value of the list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListItem {
    /// The value as JSON, byte for byte as it stood in the list.
    pub value: Box<serde_json::value::RawValue>,
    /// The parameters of the batch, the same for every item.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl ListItem {
    /// Reads the value as a type of Rust.
    ///
    /// ```
    /// use batchwright_contract::ListItem;
    ///
    /// let item: ListItem = serde_json::from_str(r#"{"value": ["Ada", 7]}"#).unwrap();
    /// let (name, number): (String, u32) = item.parse().unwrap();
    /// assert_eq!((name.as_str(), number), ("Ada", 7));
    /// assert!(item.parse::<String>().unwrap_err().to_string().contains("expected a string"));
    /// ```
    ///
    /// # Errors
    /// Returns an error if the value is of another type.
    pub fn parse<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.value.get())
    }
}

impl TaskData for ListItem {
    const CLASSIFIER: &'static str = "ListItem";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        Some(cut(self.value.get(), FailedItem::LABEL_BYTES).to_owned())
    }
}

/// An item of the plugin `glob`: one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileItem {
    /// The path of the file, relative to the root folder that the workers share.
    pub path: String,
    /// The size of the file when the batch was split, in bytes.
    pub size: u64,
    /// The modification time of the file when the batch was split, in nanoseconds since 1970.
    pub modified: i64,
    /// The parameters of the batch, the same for every item.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for FileItem {
    const CLASSIFIER: &'static str = "FileItem";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        Some(self.path.clone())
    }
}

/// An item of the plugin `records`: one record of a file, or several if the batch says so.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordItem {
    /// The path of the file, relative to the root folder of the batch worker.
    pub path: String,
    /// The number of the record in its file, from 1; of several ones, that of the first.
    pub number: u64,
    /// The record as JSON, if the batch makes an item of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<serde_json::value::RawValue>>,
    /// The records as JSON, if the batch has `recordsPerItem` above 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Box<serde_json::value::RawValue>>,
    /// The parameters of the batch, the same for every item.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for RecordItem {
    const CLASSIFIER: &'static str = "RecordItem";
    const API_VERSION: i32 = 1;

    fn label(&self) -> Option<String> {
        let Self { path, number, .. } = self;
        match self.records.len() as u64 {
            0 | 1 => Some(format!("record {number} of {path}")),
            more => Some(format!(
                "records {number} to {} of {path}",
                number + more - 1
            )),
        }
    }
}
