//! Decodes the task data of a message.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contract::{TaskData, TaskMessage};

/// Returns the label of a task. One whose code panics has none: its task must not suffer for it.
pub(crate) fn label<T: TaskData>(task: &T) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| task.label()))
        .ok()
        .flatten()
}

/// Decodes the task data of a message as the type `T`. Returns why the message does not contain it.
pub(crate) fn decode<T: TaskData>(message: &TaskMessage) -> Result<T, String> {
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    if !T::reads(classifier) {
        return Err(format!(
            "Task of type {classifier} found on queue for {}",
            T::CLASSIFIER
        ));
    }
    let version = message.task_api_version;
    if version > T::API_VERSION {
        let own = T::API_VERSION;
        return Err(format!(
            "the task has version {version} of {classifier}; this worker understands up to {own}"
        ));
    }
    let data = message
        .task_data
        .as_deref()
        .ok_or_else(|| "the message has no task data".to_owned())?;
    serde_json::from_slice(data).map_err(|error| format!("Invalid input message: {error}"))
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Broken;

    impl TaskData for Broken {
        const CLASSIFIER: &'static str = "Broken";
        const API_VERSION: i32 = 1;

        fn label(&self) -> Option<String> {
            panic!("no label")
        }
    }

    #[test]
    fn label_that_panics_is_none() {
        assert_eq!(label(&Broken), None);
    }
}
