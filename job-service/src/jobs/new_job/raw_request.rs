//! Parses the body of a create request, without checking what the fields mean.

use std::collections::{BTreeMap, HashMap};

use contract::rest::{ErrorCode, NewJob};
use serde_json::value::RawValue;

use crate::http::{ApiError, ApiResult, Unknown};
use crate::options::Limits;

/// A parsed but unchecked request.
#[derive(Debug)]
pub struct RawRequest {
    pub(super) job: NewJob,
    /// The task data as the client wrote it, without insignificant whitespace. Set if the task data
    /// is an object.
    pub(super) task_data_json: Option<Vec<u8>>,
    parameters: Box<RawValue>,
    /// The paths of the fields that a job does not have, such as `task.priority`.
    unknown_fields: Unknown,
}

impl RawRequest {
    /// Parses a request body.
    ///
    /// # Errors
    ///
    /// Returns 400 if the body is empty, is not JSON or does not have the shape of a [`NewJob`].
    pub fn parse(body: &[u8]) -> ApiResult<Self> {
        type Fields<'a> = HashMap<String, &'a RawValue>;
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidJson,
                "The body has not been specified. Send the job as a JSON object.",
            ));
        }
        let not_json = |error: serde_json::Error| match error.classify() {
            serde_json::error::Category::Data => ApiError::bad_request(
                ErrorCode::InvalidJson,
                format!("The body is not a job: {error}"),
            ),
            _ => ApiError::bad_request(
                ErrorCode::InvalidJson,
                format!("The body is not valid JSON: {error}"),
            ),
        };
        // Parse the objects as maps first: serde's derived types would accept an array instead of
        // an object.
        let fields: Fields<'_> = serde_json::from_slice(body).map_err(not_json)?;
        let task: Option<Fields<'_>> = match fields.get("task") {
            Some(task) => serde_json::from_str(task.get()).map_err(|error| {
                ApiError::bad_request(
                    ErrorCode::InvalidTask,
                    format!("The task is not an object: {error}"),
                )
            })?,
            None => None,
        };
        let mut unknown_fields = Unknown::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        let job: NewJob = serde_ignored::deserialize(&mut json, |path| {
            // The path shows optional values, which have no name.
            unknown_fields.add("field", &path.to_string().replace(".?", ""));
        })
        .map_err(not_json)?;
        let task_data_json = task
            .as_ref()
            .and_then(|task| task.get("taskData"))
            .map(|data| data.get())
            .filter(|text| text.starts_with('{'))
            .map(strip_whitespace);
        let parameters = fields.get("parameters").map_or_else(
            || RawValue::NULL.to_owned(),
            |parameters| (*parameters).to_owned(),
        );
        Ok(Self {
            job,
            task_data_json,
            parameters,
            unknown_fields,
        })
    }

    /// Takes the paths of the fields that a job does not have.
    pub fn take_unknown_fields(&mut self) -> Unknown {
        std::mem::take(&mut self.unknown_fields)
    }

    /// Checks how much the job asks to be kept.
    ///
    /// # Errors
    ///
    /// Returns 400 if there are more labels than allowed, or if a text is longer.
    pub fn check_limits(&self, limits: &Limits) -> ApiResult<()> {
        let (number, most) = (
            self.job.labels.as_ref().map_or(0, BTreeMap::len),
            limits.labels,
        );
        if number > most {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidLabel,
                format!(
                    "The job has {number} labels; at most {most} are allowed. The setting is --max-labels (BATCHWRIGHT_MAX_LABELS)."
                ),
            ));
        }
        for (field, text) in [
            ("description", &self.job.description),
            ("externalData", &self.job.external_data),
        ] {
            let (bytes, most) = (text.as_deref().map_or(0, str::len), limits.text);
            if bytes > most {
                return Err(ApiError::bad_request(
                    ErrorCode::InvalidRequest,
                    format!(
                        "The field '{field}' has {bytes} bytes; at most {most} are allowed. The setting is --max-text (BATCHWRIGHT_MAX_TEXT)."
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns the id of the job type that must build the task, and its parameters. `None` if the
    /// request has a task itself.
    ///
    /// # Errors
    ///
    /// Returns 400 if the request has both a type and a task.
    pub fn job_type(&self) -> ApiResult<Option<(&str, &RawValue)>> {
        match (&self.job.job_type, &self.job.task) {
            (Some(_), Some(_)) => Err(ApiError::bad_request(
                ErrorCode::InvalidTask,
                "Specifying both typeId and task properties is not allowed.",
            )),
            (Some(id), None) => Ok(Some((id, &self.parameters))),
            (None, _) => Ok(None),
        }
    }
}

/// Removes the whitespace between the tokens of a JSON text. Everything else stays byte for byte.
fn strip_whitespace(json: &str) -> Vec<u8> {
    let (mut in_string, mut escaped) = (false, false);
    json.bytes()
        .filter(|&byte| {
            if in_string {
                in_string = escaped || byte != b'"';
                escaped = byte == b'\\' && !escaped;
                return true;
            }
            in_string = byte == b'"';
            !byte.is_ascii_whitespace()
        })
        .collect()
}
