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
