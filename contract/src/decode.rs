//! Decodes task messages: with the strict types first and, if they reject the body, as leniently as
//! CAF's Java workers, which use Jackson.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::task_message::{ContextData, base64_bytes};
use crate::{DecodeError, SourceInfo, TaskMessage, TaskStatus, Tracking};

impl TaskMessage {
    /// Decodes a body as leniently as CAF does. Accepts unknown and missing fields, numbers as
    /// text, statuses as ordinals, bytes after the closing brace, a payload as an object, and
    /// `statusCheckTime`, the time of the *next* status check, which CAF sent in 2016. Only
    /// `taskId` is required.
    ///
    /// # Errors
    /// Returns an error if the body is not a JSON object, or if a field is missing or has an
    /// invalid value.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        // The bytes are checked to be text once. From bytes, the parser would check each name and
        // value by itself.
        let strict = std::str::from_utf8(body).ok().and_then(|text| {
            let mut strict = serde_json::Deserializer::from_str(text);
            Self::deserialize(&mut strict).ok()
        });
        match strict {
            // The time of the check may have its old name, which only the lenient decoder knows.
            Some(message)
                if message
                    .tracking
                    .as_ref()
                    .is_none_or(|t| t.last_status_check_time.is_some()) =>
            {
                Ok(message)
            }
            _ => decode_leniently(body),
        }
    }
}

fn decode_leniently(body: &[u8]) -> Result<TaskMessage, DecodeError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(DecodeError::Empty);
    }
    // `serde_json::from_slice` would reject bytes after the closing brace.
    let value = Value::deserialize(&mut serde_json::Deserializer::from_slice(body))
        .map_err(|error| DecodeError::NotJson(error.to_string()))?;
    let Value::Object(mut fields) = value else {
        return Err(DecodeError::NotAnObject(kind(&value)));
    };
    let fields = &mut fields;
    Ok(TaskMessage {
        version: if fields.contains_key("version") {
            narrow("version", integer("version", fields)?)?
        } else {
            3
        },
        task_id: text("taskId", fields)?.ok_or_else(|| invalid("taskId", "is missing"))?,
        task_classifier: text("taskClassifier", fields)?,
        task_api_version: narrow("taskApiVersion", integer("taskApiVersion", fields)?)?,
        task_data: bytes("taskData", fields.remove("taskData"))?,
        task_status: task_status(fields.remove("taskStatus"))?,
        context: context(fields.remove("context"))?,
        to: text("to", fields)?,
        tracking: object("tracking", fields)?.map(tracking).transpose()?,
        source_info: object("sourceInfo", fields)?.map(source_info).transpose()?,
        priority: optional_integer("priority", fields)?
            .map(|n| narrow("priority", n))
            .transpose()?,
        correlation_id: text("correlationId", fields)?,
    })
}

fn tracking(mut fields: Map<String, Value>) -> Result<Tracking, DecodeError> {
    let fields = &mut fields;
    let interval = integer("statusCheckIntervalMillis", fields)?;
    let last = time("lastStatusCheckTime", fields)?;
    // CAF of 2016 sends the time of the next check, which is the last check plus the interval.
    let next = time("statusCheckTime", fields)?;
    Ok(Tracking {
        job_task_id: text("jobTaskId", fields)?,
        last_status_check_time: last.or(next.map(|next| next.saturating_sub(interval))),
        status_check_interval_millis: interval,
        status_check_url: text("statusCheckUrl", fields)?,
        tracking_pipe: text("trackingPipe", fields)?,
        track_to: text("trackTo", fields)?,
    })
}

fn source_info(mut fields: Map<String, Value>) -> Result<SourceInfo, DecodeError> {
    Ok(SourceInfo {
        name: text("name", &mut fields)?,
        version: text("version", &mut fields)?,
    })
}

fn task_status(value: Option<Value>) -> Result<Option<TaskStatus>, DecodeError> {
    let found = match &value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(name)) => TaskStatus::ALL
            .into_iter()
            .find(|status| status.name() == name),
        Some(Value::Number(ordinal)) => ordinal
            .as_u64()
            .and_then(|n| TaskStatus::ALL.get(usize::try_from(n).ok()?).copied()),
        Some(_) => None,
    };
    let shown = value.unwrap_or_default();
    found.map(Some).ok_or_else(|| {
        invalid(
            "taskStatus",
            format!("is {shown}, which is not a task status"),
        )
    })
}

fn context(value: Option<Value>) -> Result<BTreeMap<String, ContextData>, DecodeError> {
    match value {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(entries)) => entries
            .into_iter()
            .map(|(service, data)| {
                Ok((
                    service,
                    ContextData(bytes("context", Some(data))?.unwrap_or_default()),
                ))
            })
            .collect(),
        Some(other) => Err(invalid(
            "context",
            format!("is a JSON {}, not an object", kind(&other)),
        )),
    }
}

/// Decodes base64 text or an array of bytes (-128 to 255). An object decodes to its own JSON (CAF
/// 5.1 to 6).
fn bytes(field: &'static str, value: Option<Value>) -> Result<Option<Vec<u8>>, DecodeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => base64_bytes::decode(&text)
            .map(Some)
            .map_err(|error| invalid(field, format!("is not base64: {error}"))),
        Some(Value::Array(numbers)) => {
            let byte = |n: &Value| {
                n.as_i64().and_then(|n| {
                    u8::try_from(n)
                        .ok()
                        .or_else(|| i8::try_from(n).ok().map(i8::cast_unsigned))
                })
            };
            let read: Option<Vec<u8>> = numbers.iter().map(byte).collect();
            read.map(Some)
                .ok_or_else(|| invalid(field, "is an array with an element that is not a byte"))
        }
        Some(object @ Value::Object(_)) => Ok(Some(object.to_string().into_bytes())),
        Some(other) => Err(invalid(
            field,
            format!("is a JSON {}, not base64", kind(&other)),
        )),
    }
}

fn object(
    field: &'static str,
    fields: &mut Map<String, Value>,
) -> Result<Option<Map<String, Value>>, DecodeError> {
    match fields.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(other) => Err(invalid(
            field,
            format!("is a JSON {}, not an object", kind(&other)),
        )),
    }
}

fn text<T: From<String>>(
    field: &'static str,
    fields: &mut Map<String, Value>,
) -> Result<Option<T>, DecodeError> {
    match fields.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.into())),
        Some(scalar @ (Value::Number(_) | Value::Bool(_))) => Ok(Some(scalar.to_string().into())),
        Some(other) => Err(invalid(
            field,
            format!("is a JSON {}, not text", kind(&other)),
        )),
    }
}

fn integer(field: &'static str, fields: &mut Map<String, Value>) -> Result<i64, DecodeError> {
    Ok(optional_integer(field, fields)?.unwrap_or(0))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "truncates a fraction, as Jackson does"
)]
fn optional_integer(
    field: &'static str,
    fields: &mut Map<String, Value>,
) -> Result<Option<i64>, DecodeError> {
    let read = match fields.remove(field) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(n)) => n
            .as_i64()
            .or_else(|| n.as_f64().map(|n| n as i64))
            .ok_or(n.to_string()),
        Some(Value::String(text)) => text.trim().parse().map_err(|_| text),
        Some(other) => Err(other.to_string()),
    };
    read.map(Some)
        .map_err(|shown| invalid(field, format!("is {shown}, not a whole number")))
}

/// Reads a time: milliseconds since 1970 as a number or as text, or ISO 8601.
fn time(field: &'static str, fields: &mut Map<String, Value>) -> Result<Option<i64>, DecodeError> {
    if let Some(Value::String(text)) = fields.get(field)
        && let Ok(time) = chrono::DateTime::parse_from_rfc3339(text)
            .or_else(|_| chrono::DateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S%.f%z"))
    {
        return Ok(Some(time.timestamp_millis()));
    }
    optional_integer(field, fields)
}

fn narrow(field: &'static str, n: i64) -> Result<i32, DecodeError> {
    i32::try_from(n).map_err(|_| invalid(field, format!("is {n}, which is too large")))
}

fn invalid(field: &'static str, problem: impl Into<String>) -> DecodeError {
    DecodeError::Field {
        field,
        problem: problem.into(),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
