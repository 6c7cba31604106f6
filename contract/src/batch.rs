//! The batch task: one message that stands for many items.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::TaskData;

/// What the batch worker is asked to split.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchTask {
    /// What to split; only the batch plugin understands it.
    pub batch_definition: Option<String>,
    /// The name of the batch plugin.
    pub batch_type: Option<String>,
    /// Handed to the plugin: which kind of item message to make.
    pub task_message_type: Option<String>,
    /// Handed to the plugin: what every item message carries.
    pub task_message_params: Option<BTreeMap<String, String>>,
    /// The pipe that receives the items.
    pub target_pipe: Option<String>,
}

impl TaskData for BatchTask {
    const CLASSIFIER: &'static str = "BatchWorker";
    const API_VERSION: i32 = 1;
}

/// The answer of the batch worker where one is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResult {
    /// `partition:job`, or the target pipe of an untracked batch.
    pub batch_task: String,
}

impl TaskData for BatchResult {
    const CLASSIFIER: &'static str = "BatchWorker";
    const API_VERSION: i32 = 1;
}

/// An item of the `range` plugin: one number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeItem {
    pub number: u64,
    /// What every item of the batch carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for RangeItem {
    const CLASSIFIER: &'static str = "RangeItem";
    const API_VERSION: i32 = 1;
}

/// An item of the `lines` plugin: whole lines of a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRange {
    /// The file, relative to the root folder that the workers share.
    pub path: String,
    /// Where the first line begins, in bytes.
    pub offset: u64,
    /// To the end of the last line, its line break included, in bytes.
    pub length: u64,
    /// How many lines.
    pub lines: u64,
    /// The size of the whole file when the batch was made, in bytes.
    pub size: u64,
    /// The time of the last change of the file when the batch was made, nanoseconds since 1970.
    pub modified: i64,
    /// What every item of the batch carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for LineRange {
    const CLASSIFIER: &'static str = "LineRange";
    const API_VERSION: i32 = 1;
}

/// An item of the `list` plugin: one value of the list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListItem {
    /// The value as it was written.
    pub value: Box<serde_json::value::RawValue>,
    /// What every item of the batch carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for ListItem {
    const CLASSIFIER: &'static str = "ListItem";
    const API_VERSION: i32 = 1;
}

/// An item of the `glob` plugin: one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileItem {
    /// The file, relative to the root folder that the workers share.
    pub path: String,
    /// The size of the file when the batch was made, in bytes.
    pub size: u64,
    /// The time of the last change of the file when the batch was made, nanoseconds since 1970.
    pub modified: i64,
    /// What every item of the batch carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl TaskData for FileItem {
    const CLASSIFIER: &'static str = "FileItem";
    const API_VERSION: i32 = 1;
}
