//! Batch definitions that a client writes as JSON, and not as JSON in a string. Pure.
//!
//! What must stay true: a worker gets CAF's form, in which the definition is a string. Everything
//! else stays byte for byte.

use contract::rest::ErrorCode;
use contract::{BatchTask, TaskData, UPLOAD_SCHEME};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::{ApiError, ApiResult};

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow, rename = "batchDefinition")]
    definition: Option<&'a RawValue>,
}

/// Returns the data of a task whose definition, if it is a batch and has an object or an array
/// there, is a string.
pub fn as_string(classifier: &str, data: Vec<u8>) -> ApiResult<Vec<u8>> {
    if classifier != BatchTask::CLASSIFIER {
        return Ok(data);
    }
    // What is not a batch is the worker's to refuse.
    let Ok(Batch {
        definition: Some(definition),
    }) = serde_json::from_slice(&data)
    else {
        return Ok(data);
    };
    let definition = definition.get();
    if !definition.starts_with(['{', '[']) {
        return Ok(data);
    }
    let (size, most) = (definition.len(), BatchTask::MAX_DEFINITION);
    if size > most {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            format!(
                "The batchDefinition has {size} bytes as JSON; at most {most} are possible. Name a file or a folder in it (plugins lines and \
                 glob), or make several jobs of it."
            ),
        ));
    }
    let text = serde_json::to_vec(definition).map_err(|error| ApiError::Bug(error.to_string()))?;
    let begin = definition.as_ptr().addr() - data.as_ptr().addr();
    Ok([&data[..begin], &text, &data[begin + size..]].concat())
}

/// Returns the pipe to which a task sends its items, if it is a batch.
pub fn items_pipe_of(classifier: &str, data: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Target {
        target_pipe: Option<String>,
    }
    let data = (classifier == BatchTask::CLASSIFIER).then_some(data)?;
    let batch: Target = serde_json::from_slice(data).ok()?;
    batch.target_pipe.filter(|pipe| !pipe.is_empty())
}

/// Returns the ids of the uploads that a task names, if it is a batch of files: in `files`, or in
/// the part that a split has pinned.
pub fn uploads_of(classifier: &str, data: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Files {
        #[serde(default)]
        files: Vec<String>,
        part: Option<Part>,
    }
    #[derive(Deserialize)]
    struct Part {
        path: String,
    }
    if classifier != BatchTask::CLASSIFIER {
        return Vec::new();
    }
    let batch = serde_json::from_slice::<BatchTask>(data).unwrap_or_default();
    let definition = batch.batch_definition.unwrap_or_default();
    let Ok(Files { files, part }) = serde_json::from_str(&definition) else {
        return Vec::new();
    };
    let names = files.into_iter().chain(part.map(|part| part.path));
    let mut ids: Vec<String> = names
        .filter_map(|name| Some(name.strip_prefix(UPLOAD_SCHEME)?.to_owned()))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(classifier: &str, data: &str) -> String {
        let data = as_string(classifier, data.as_bytes().to_vec()).unwrap();
        String::from_utf8(data).unwrap()
    }

    #[test]
    fn definition_that_is_json_becomes_a_string_and_all_else_stays_as_it_is() {
        for (data, expected) in [
            (
                r#"{"x":1.0,"batchDefinition":{"a":["\n",1e3]},"batchType":"glob"}"#,
                r#"{"x":1.0,"batchDefinition":"{\"a\":[\"\\n\",1e3]}","batchType":"glob"}"#,
            ),
            (
                r#"{"batchDefinition":[1.0,"a"]}"#,
                r#"{"batchDefinition":"[1.0,\"a\"]"}"#,
            ),
            (
                r#"{"batchDefinition":"[1]"}"#,
                r#"{"batchDefinition":"[1]"}"#,
            ),
            (r#"{"batchDefinition":7}"#, r#"{"batchDefinition":7}"#),
            (
                r#"{"batchDefinition":null,"a":[]}"#,
                r#"{"batchDefinition":null,"a":[]}"#,
            ),
            ("no JSON", "no JSON"),
        ] {
            assert_eq!(made("BatchWorker", data), expected);
            assert_eq!(made("Other", data), data);
        }
    }

    #[test]
    fn definition_that_is_too_large_is_refused_with_the_limit() {
        let data = format!(
            r#"{{"batchDefinition":["{}"]}}"#,
            "x".repeat(BatchTask::MAX_DEFINITION)
        );
        let refusal = as_string("BatchWorker", data.into_bytes()).unwrap_err();
        assert!(
            refusal
                .to_string()
                .contains("has 4194308 bytes as JSON; at most 4194304"),
            "{refusal}"
        );
    }
}
