//! The task message: the envelope that every worker reads and writes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{TaskData, lenient};

/// The envelope, version 3. Fields stand in the order in which they are written; every one is written, nulls included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMessage {
    /// 3. Never looked at on input.
    #[serde(default = "envelope_version")]
    pub version: i32,
    /// Names the task for logs and for people; the subtask suffix is appended to it.
    pub task_id: String,
    /// Names the type of the task data.
    #[serde(default)]
    pub task_classifier: Option<String>,
    /// The version of the type of the task data.
    #[serde(default)]
    pub task_api_version: i32,
    /// The payload, base64 on the wire; usually JSON.
    #[serde(default, with = "base64_bytes")]
    pub task_data: Option<Vec<u8>>,
    #[serde(default)]
    pub task_status: Option<TaskStatus>,
    /// State that a service keeps across other workers, by service.
    #[serde(default)]
    pub context: BTreeMap<String, ContextData>,
    /// The pipe of whom the message is for.
    #[serde(default)]
    pub to: Option<String>,
    #[serde(default)]
    pub tracking: Option<Tracking>,
    /// The worker that made the message.
    #[serde(default)]
    pub source_info: Option<SourceInfo>,
    /// Kept when a message is passed on; never set, never acted on.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Copied to everything that the task causes.
    #[serde(default)]
    pub correlation_id: Option<String>,
}

/// How a task is tracked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tracking {
    #[serde(default)]
    pub job_task_id: Option<String>,
    /// Milliseconds since 1970, UTC.
    #[serde(default)]
    pub last_status_check_time: Option<i64>,
    #[serde(default)]
    pub status_check_interval_millis: i64,
    /// `GET` answers the status of the job.
    #[serde(default)]
    pub status_check_url: Option<String>,
    /// The pipe of the tracking worker.
    #[serde(default)]
    pub tracking_pipe: Option<String>,
    /// The pipe at which tracking ends.
    #[serde(default)]
    pub track_to: Option<String>,
}

/// Who made a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskStatus {
    /// A request to do work.
    NewTask,
    /// The payload was not understood; the task data is the reason as plain text.
    InvalidTask,
    ResultSuccess,
    /// A negative result: the worker has answered, so the task is complete.
    ResultFailure,
    /// The task has failed; the task data is the reason as a JSON string.
    ResultException,
}

impl TaskStatus {
    /// All statuses in CAF's order; their ordinals are understood on input.
    pub const ALL: [Self; 5] = [
        Self::NewTask,
        Self::InvalidTask,
        Self::ResultSuccess,
        Self::ResultFailure,
        Self::ResultException,
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewTask => "NEW_TASK",
            Self::InvalidTask => "INVALID_TASK",
            Self::ResultSuccess => "RESULT_SUCCESS",
            Self::ResultFailure => "RESULT_FAILURE",
            Self::ResultException => "RESULT_EXCEPTION",
        }
    }

    /// Whether tracking counts a message with this status as a failure.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::InvalidTask | Self::ResultException)
    }
}

/// Why a body is no task message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the body is empty")]
    Empty,
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    #[error("the body is a JSON {0}, not an object")]
    NotAnObject(&'static str),
    #[error("the field {field} {flaw}")]
    Field { field: &'static str, flaw: String },
}

impl TaskMessage {
    /// A message with this payload, for this pipe, with a task id of its own.
    pub fn new<T: TaskData>(
        task_id: impl Into<String>,
        to: impl Into<String>,
        data: &T,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            version: envelope_version(),
            task_id: task_id.into(),
            task_classifier: Some(T::CLASSIFIER.to_owned()),
            task_api_version: T::API_VERSION,
            task_data: Some(serde_json::to_vec(data)?),
            task_status: Some(TaskStatus::NewTask),
            context: BTreeMap::new(),
            to: Some(to.into()),
            tracking: None,
            source_info: None,
            priority: None,
            correlation_id: None,
        })
    }

    /// Reads a body as leniently as CAF does: unknown fields, missing fields, numbers as text, statuses as ordinals,
    /// bytes after the closing brace, the payload as an object, the time of the *next* check (2016).
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut strict = serde_json::Deserializer::from_slice(body);
        match Self::deserialize(&mut strict) {
            // A check time may stand under its old name: then only the lenient way sees it.
            Ok(message)
                if message
                    .tracking
                    .as_ref()
                    .is_none_or(|t| t.last_status_check_time.is_some()) =>
            {
                Ok(message)
            }
            _ => lenient::decode(body),
        }
    }

    /// The body of the message: UTF-8 JSON.
    pub fn encode(&self) -> Vec<u8> {
        // The type has neither maps with keys that are no text nor a `Serialize` that fails.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The job task id, where the message is tracked.
    pub fn job_task_id(&self) -> Option<&str> {
        self.tracking.as_ref()?.job_task_id.as_deref()
    }
}

/// Whether two names are of one pipe. Case does not count, as in CAF.
pub fn same_pipe(a: &str, b: &str) -> bool {
    a == b || a.to_lowercase() == b.to_lowercase()
}

/// The same body with other tracking: fields that this version does not know stay as they are, byte for byte.
///
/// `body` must be a JSON object, as of a decoded message.
pub fn patch_tracking(body: &[u8], tracking: Option<&Tracking>) -> Result<Vec<u8>, DecodeError> {
    struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);
    impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct FieldsVisitor;
            impl<'de> Visitor<'de> for FieldsVisitor {
                type Value = Fields<'de>;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                    let mut fields = Vec::with_capacity(12);
                    while let Some(entry) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
                        fields.push(entry);
                    }
                    Ok(Fields(fields))
                }
            }
            deserializer.deserialize_map(FieldsVisitor)
        }
    }

    let not_json = |error: serde_json::Error| DecodeError::NotJson(error.to_string());
    let Fields(fields) =
        Fields::deserialize(&mut serde_json::Deserializer::from_slice(body)).map_err(not_json)?;
    let mut out = Vec::with_capacity(body.len() + 64);
    let mut serializer = serde_json::Serializer::new(&mut out);
    let mut map = serializer.serialize_map(None).map_err(not_json)?;
    let mut patched = false;
    for (name, value) in fields {
        if name != "tracking" {
            map.serialize_entry(&name, value).map_err(not_json)?;
        } else if !patched {
            map.serialize_entry("tracking", &tracking)
                .map_err(not_json)?;
            patched = true;
        }
    }
    if !patched {
        map.serialize_entry("tracking", &tracking)
            .map_err(not_json)?;
    }
    SerializeMap::end(map).map_err(not_json)?;
    Ok(out)
}

/// One service's entry in the context, base64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContextData(pub Vec<u8>);

impl Serialize for ContextData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64_bytes::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for ContextData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        base64_bytes::deserialize(deserializer).map(|bytes| Self(bytes.unwrap_or_default()))
    }
}

const fn envelope_version() -> i32 {
    3
}

pub(crate) mod base64_bytes {
    use std::borrow::Cow;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn encode(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }

    pub fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
        STANDARD.decode(text)
    }

    #[expect(
        clippy::ref_option,
        reason = "serde's `with` hands the field over like this"
    )]
    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
        text.map(|text| decode(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}
