//! The task message: the envelope that every worker reads and writes. The format is version 3 of
//! CAF's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use smol_str::SmolStr;

use crate::{StatusUrl, TaskData};

/// What an envelope takes besides its task data, in bytes: a body that is written grows seldom.
const ENVELOPE_BYTES: usize = 768;

/// The envelope of a task. Fields are declared in the order in which they are written. All are
/// written, even if null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMessage {
    /// The version of the envelope: 3. Ignored on input.
    #[serde(default = "envelope_version")]
    pub version: i32,
    /// Names the task in logs. The ids of subtasks append a suffix to it; see
    /// [`subtask_id`](crate::subtask_id).
    pub task_id: String,
    /// The type of the task data; see [`TaskData::CLASSIFIER`].
    #[serde(default)]
    pub task_classifier: Option<SmolStr>,
    /// The version of that type; see [`TaskData::API_VERSION`].
    #[serde(default)]
    pub task_api_version: i32,
    /// The payload, usually JSON. Base64 on the wire.
    #[serde(default, with = "base64_bytes")]
    pub task_data: Option<Vec<u8>>,
    /// The kind of the message: a request or one of the kinds of results.
    #[serde(default)]
    pub task_status: Option<TaskStatus>,
    /// State that a service passes along through other workers, by service path.
    #[serde(default)]
    pub context: BTreeMap<String, ContextData>,
    /// The pipe of the worker that must handle the message. A worker that receives a message for
    /// another pipe diverts it.
    #[serde(default)]
    pub to: Option<SmolStr>,
    /// How the task is tracked; null if it is not.
    #[serde(default)]
    pub tracking: Option<Tracking>,
    /// The worker that sent the message.
    #[serde(default)]
    pub source_info: Option<SourceInfo>,
    /// CAF's priority. Workers copy it when they forward a message, and otherwise ignore it.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Copied to all outputs and reports of the task.
    #[serde(default)]
    pub correlation_id: Option<SmolStr>,
}

/// How a task is tracked. Set by the job service, and preserved by workers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tracking {
    /// The task, in the format of a [`JobTaskId`](crate::JobTaskId).
    #[serde(default)]
    pub job_task_id: Option<String>,
    /// When the status of the job was last checked, in milliseconds since 1970, UTC.
    #[serde(default)]
    pub last_status_check_time: Option<i64>,
    /// How long the result of a status check is valid, in milliseconds.
    #[serde(default)]
    pub status_check_interval_millis: i64,
    /// The URL of the status check: `GET` returns the status of the job.
    #[serde(default)]
    pub status_check_url: Option<StatusUrl>,
    /// The pipe of the tracking worker.
    #[serde(default)]
    pub tracking_pipe: Option<SmolStr>,
    /// The pipe at which tracking ends: the task is complete when a message for this pipe is sent.
    #[serde(default)]
    pub track_to: Option<SmolStr>,
}

/// The worker that sent a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// The name of the worker.
    #[serde(default)]
    pub name: Option<SmolStr>,
    /// The version of the worker.
    #[serde(default)]
    pub version: Option<SmolStr>,
}

/// The kind of a message: a request or one of the kinds of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskStatus {
    /// A request.
    NewTask,
    /// The worker could not decode the payload. The task data is the reason as plain text.
    InvalidTask,
    /// A positive result.
    ResultSuccess,
    /// A negative result. The worker has handled the task, so tracking counts it as complete.
    ResultFailure,
    /// The task has failed. The task data is the reason as a JSON string.
    ResultException,
}

impl TaskStatus {
    /// All statuses in CAF's order. On input, a status may also be given as its index here.
    pub const ALL: [Self; 5] = [
        Self::NewTask,
        Self::InvalidTask,
        Self::ResultSuccess,
        Self::ResultFailure,
        Self::ResultException,
    ];

    /// Returns the name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewTask => "NEW_TASK",
            Self::InvalidTask => "INVALID_TASK",
            Self::ResultSuccess => "RESULT_SUCCESS",
            Self::ResultFailure => "RESULT_FAILURE",
            Self::ResultException => "RESULT_EXCEPTION",
        }
    }

    /// Returns whether tracking counts a message with this status as a failure.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::InvalidTask | Self::ResultException)
    }
}

/// Why a body is not a valid task message; see [`TaskMessage::decode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is empty or contains only white space.
    #[error("the body is empty")]
    Empty,
    /// The body is not JSON, for this reason.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// The body is JSON of this type instead of an object.
    #[error("the body is a JSON {0}, not an object")]
    NotAnObject(&'static str),
    /// A field is missing or has a wrong value.
    #[error("the field {field} {problem}")]
    Field {
        /// The name of the field on the wire.
        field: &'static str,
        /// What is wrong with it, e.g. `is missing`.
        problem: String,
    },
}

impl TaskMessage {
    /// Returns an untracked request with this payload, for the pipe `to`.
    ///
    /// # Errors
    /// The error of serialising the payload.
    pub fn new<T: TaskData>(
        task_id: impl Into<String>,
        to: impl Into<SmolStr>,
        data: &T,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            version: envelope_version(),
            task_id: task_id.into(),
            task_classifier: Some(SmolStr::new_static(T::CLASSIFIER)),
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

    /// Returns the body of the message: JSON in UTF-8.
    pub fn encode(&self) -> Vec<u8> {
        let data = self.task_data.as_ref().map_or(0, Vec::len);
        let mut body = Vec::with_capacity(ENVELOPE_BYTES + data.div_ceil(3) * 4);
        // Cannot fail: all map keys are text, and no `Serialize` of a field fails.
        let _ = serde_json::to_writer(&mut body, self);
        body
    }

    /// Returns the job task id, if the message is tracked.
    pub fn job_task_id(&self) -> Option<&str> {
        self.tracking.as_ref()?.job_task_id.as_deref()
    }
}

/// Returns whether two names denote the same pipe. As in CAF, case is ignored.
pub fn same_pipe(a: &str, b: &str) -> bool {
    a == b || a.to_lowercase() == b.to_lowercase()
}

/// Returns `body` with its field `tracking` replaced. All other fields, including unknown ones,
/// keep their values byte for byte.
///
/// # Errors
/// [`DecodeError::NotJson`] if `body` is not a JSON object; the body of a decoded message always
/// is.
pub fn patch_tracking(body: &[u8], tracking: Option<&Tracking>) -> Result<Vec<u8>, DecodeError> {
    // Without the attribute, the name would be copied.
    #[derive(Deserialize)]
    struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
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
                    while let Some((Name(name), value)) = map.next_entry()? {
                        fields.push((name, value));
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

/// The state of one service in the context. Base64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContextData(pub Vec<u8>);

impl Serialize for ContextData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&base64_bytes::shown(&self.0))
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
    use base64::display::Base64Display;
    use base64::engine::general_purpose::{GeneralPurpose, STANDARD};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::value::RawValue;

    /// Returns what writes the text of these bytes, without a copy of the text.
    pub fn shown(bytes: &[u8]) -> Base64Display<'_, 'static, GeneralPurpose> {
        Base64Display::new(bytes, &STANDARD)
    }

    pub fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
        STANDARD.decode(text)
    }

    #[expect(
        clippy::ref_option,
        reason = "serde's `with` passes a reference to the field"
    )]
    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes
            .as_deref()
            .map(json)
            .transpose()?
            .serialize(serializer)
    }

    /// Returns the text of these bytes as JSON. It has nothing to escape: one quick search is
    /// enough, and it is copied as a whole.
    fn json<E: serde::ser::Error>(bytes: &[u8]) -> Result<Box<RawValue>, E> {
        let length = base64::encoded_len(bytes.len(), true).unwrap_or_default();
        let mut text = String::with_capacity(length + 2);
        text.push('"');
        STANDARD.encode_string(bytes, &mut text);
        text.push('"');
        RawValue::from_string(text).map_err(E::custom)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        // Without the attribute, the text would be copied.
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        let text = Option::<Text<'de>>::deserialize(deserializer)?;
        text.map(|Text(text)| decode(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}
