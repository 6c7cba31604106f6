//! Validates the first task of a job. Pure.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use contract::rest::{ErrorCode, JobTask, NewJob, TaskDataEncoding};
use contract::{MAX_PIPE_BYTES, ReservedPipes, same_pipe};
use serde_json::Value;

use crate::http::{ApiError, ApiResult};
use crate::jobs::new_job::batch_definition;

/// The valid first task of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstTask {
    /// The type of the task data.
    pub classifier: String,
    /// The version of that type, at least 1.
    pub api_version: i32,
    /// The decoded task data.
    pub data: Vec<u8>,
    /// The pipe of the worker that runs the task.
    pub pipe: String,
    /// The pipe where tracking ends, if any.
    pub target_pipe: Option<String>,
}

/// A task whose required fields are present. The task data is not checked yet.
pub struct RequiredFields<'a> {
    task: &'a JobTask,
    classifier: &'a str,
    api_version: i32,
    pipe: &'a str,
}

/// Checks the required fields of the task in CAF's order.
pub fn required_fields(job: &NewJob) -> ApiResult<RequiredFields<'_>> {
    let task = job.task.as_ref().ok_or_else(|| {
        ApiError::bad_request(ErrorCode::InvalidTask, "The task has not been specified.")
    })?;
    let classifier = non_empty(task.task_classifier.as_deref()).ok_or_else(|| {
        ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The task classifier has not been specified.",
        )
    })?;
    let api_version = task.task_api_version.unwrap_or(0);
    if api_version == 0 {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The task api version has not been specified.",
        ));
    }
    if api_version < 0 {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            format!("The task api version must be 1 or more, but is {api_version}."),
        ));
    }
    if task.target_pipe.as_deref() == Some("") {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The target queue name has not been specified.",
        ));
    }
    let pipe = non_empty(task.task_pipe.as_deref()).ok_or_else(|| {
        ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The task queue name has not been specified.",
        )
    })?;
    Ok(RequiredFields {
        task,
        classifier,
        api_version,
        pipe,
    })
}

fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Returns the bytes of the task data. `object_json` is the text of the task data if it is an
/// object.
pub fn task_data(fields: &RequiredFields<'_>, object_json: Option<Vec<u8>>) -> ApiResult<Vec<u8>> {
    let missing = || {
        ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The task data has not been specified.",
        )
    };
    match fields.task.task_data.as_ref().ok_or_else(missing)? {
        Value::Null => Err(missing()),
        Value::String(text) if text.is_empty() => Err(missing()),
        Value::String(text) => match fields.task.task_data_encoding {
            Some(TaskDataEncoding::Base64) => decode_base64(text),
            None | Some(TaskDataEncoding::Utf8) => Ok(text.clone().into_bytes()),
        },
        Value::Object(_) if fields.task.task_data_encoding.is_some() => Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            "An encoding type has been found in the task along with taskDataObject. Remove taskDataEncoding and try again",
        )),
        object @ Value::Object(_) => {
            let data = object_json.unwrap_or_else(|| object.to_string().into_bytes());
            batch_definition::as_string(fields.classifier, data)
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            "The taskData is null or empty, please ensure taskData is populated and of a suitable datatype",
        )),
    }
}

/// Decodes base64 as leniently as CAF: accepts the standard and the URL-safe alphabet, missing
/// padding and line breaks.
fn decode_base64(text: &str) -> ApiResult<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let standard = |c: char| match c {
        '-' => '+',
        '_' => '/',
        other => other,
    };
    let plain: String = text
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .map(standard)
        .collect();
    LENIENT.decode(plain).map_err(|error| {
        ApiError::bad_request(
            ErrorCode::InvalidTask,
            format!("The taskData is not base64: {error}"),
        )
    })
}

/// Checks the pipes and returns the complete task.
pub fn check_pipes(
    fields: &RequiredFields<'_>,
    data: Vec<u8>,
    reserved: &ReservedPipes,
) -> ApiResult<FirstTask> {
    let RequiredFields {
        task,
        classifier,
        api_version,
        pipe,
    } = *fields;
    let target_pipe = task.target_pipe.as_deref();
    for (field, name) in [("taskPipe", Some(pipe)), ("targetPipe", target_pipe)] {
        let name = name.unwrap_or_default();
        if name.len() > MAX_PIPE_BYTES {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidTask,
                format!("The {field} is longer than {MAX_PIPE_BYTES} bytes."),
            ));
        }
        if name.contains(char::is_control) {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidTask,
                format!("The {field} contains a control character."),
            ));
        }
        reserved.check(name, None).map_err(|refusal| {
            ApiError::bad_request(
                ErrorCode::ReservedPipe,
                format!("The {field} is reserved: {refusal}."),
            )
        })?;
    }
    // CAF sends such a task without tracking, so its job never completes.
    if target_pipe.is_some_and(|target| same_pipe(pipe, target)) {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidTask,
            format!(
                "The taskPipe and the targetPipe are both '{pipe}': tracking would end before the first task begins, and the job would never \
             complete. Name another targetPipe, or none."
            ),
        ));
    }
    Ok(FirstTask {
        classifier: classifier.to_owned(),
        api_version,
        data,
        pipe: pipe.to_owned(),
        target_pipe: target_pipe.map(str::to_owned),
    })
}
