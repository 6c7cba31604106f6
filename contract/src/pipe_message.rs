//! A message of a pipe as a person reads and writes it, and the bodies of the requests that take
//! and put messages.
//!
//! The envelope is readable JSON, and the task data is decoded where it can be. What was taken can
//! be put again: task data keeps its bytes, and the envelope keeps fields that this version does
//! not know. The key of the job is hidden, and whoever puts the message again restores it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::rest::TaskDataEncoding;
use crate::status_url::without_keys;
use crate::task_message::base64_bytes;
use crate::{DecodeError, JobTaskId, LifeKey, StatusUrl, TaskMessage};

/// The largest number of messages of one request that takes or puts messages.
pub const MAX_PIPE_MESSAGES: usize = 100;

/// A message of a pipe.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PipeMessage {
    /// The headers: texts and whole numbers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, PipeHeader>,
    /// The task message without its task data. Absent if the body is not a task message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<Object>))]
    pub envelope: Option<Map<String, Value>>,
    /// The task data: any JSON; with an encoding, a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<Value>))]
    pub task_data: Option<Box<RawValue>>,
    /// The encoding of task data that is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_data_encoding: Option<TaskDataEncoding>,
    /// The body in base64, if it is not a task message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// The value of a header of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PipeHeader {
    /// A whole number.
    Integer(i64),
    /// A text.
    Text(String),
}

/// Why a message cannot be put into a pipe.
#[derive(Debug, thiserror::Error)]
pub enum PipeMessageError {
    /// There is no envelope.
    #[error("there is no 'envelope'; a message that is put must be a task message")]
    NoEnvelope,
    /// The task data does not fit its encoding.
    #[error("'taskData' is not a string in {0}, as 'taskDataEncoding' says")]
    TaskData(&'static str),
    /// The envelope is not that of a task message.
    #[error("the envelope is not that of a task message: {0}")]
    Envelope(#[from] DecodeError),
}

impl PipeMessage {
    /// Returns a message of a pipe in readable form.
    pub fn of_body(headers: BTreeMap<String, PipeHeader>, body: &[u8]) -> Self {
        let envelope = serde_json::from_slice::<Map<String, Value>>(body);
        let (Ok(message), Ok(mut envelope)) = (TaskMessage::decode(body), envelope) else {
            return Self {
                headers,
                body: Some(base64_bytes::shown(&without_keys(body)).to_string()),
                ..Self::default()
            };
        };
        envelope.remove("taskData");
        if let Some(url) = status_url(&mut envelope) {
            *url = StatusUrl::from(text(url)).to_string().into();
        }
        let (task_data, task_data_encoding) = message.task_data.map(readable).unwrap_or_default();
        Self {
            headers,
            envelope: Some(envelope),
            task_data,
            task_data_encoding,
            body: None,
        }
    }

    /// Returns the task and the status URL of a message whose key is hidden.
    pub fn hidden_key(&self) -> Option<(JobTaskId, StatusUrl)> {
        let tracking = self.envelope.as_ref()?.get("tracking")?;
        let field = |name| tracking.get(name).map(text);
        let url = StatusUrl::from(field("statusCheckUrl")?);
        let task = JobTaskId::parse(field("jobTaskId")?).ok()?;
        url.hides_key().then_some((task, url))
    }

    /// Restores the key that was hidden. Without one, the status URL has none either.
    pub fn restore_key(&mut self, key: Option<&LifeKey>) {
        if let Some(url) = self.envelope.as_mut().and_then(status_url) {
            *url = (&*StatusUrl::from(text(url)).with_key(key)).into();
        }
    }

    /// Returns the task message, and its body. A message that is addressed to no pipe gets the
    /// address `pipe`.
    ///
    /// # Errors
    /// Returns an error if this is no task message.
    pub fn into_task_message(self, pipe: &str) -> Result<(TaskMessage, Vec<u8>), PipeMessageError> {
        let mut envelope = self.envelope.ok_or(PipeMessageError::NoEnvelope)?;
        let data = self
            .task_data
            .map(|data| bytes(&data, self.task_data_encoding));
        let data = data
            .transpose()?
            .map(|data| base64_bytes::shown(&data).to_string());
        envelope.insert("taskData".to_owned(), data.map_or(Value::Null, Value::from));
        if envelope.get("to").is_none_or(Value::is_null) {
            envelope.insert("to".to_owned(), pipe.into());
        }
        // Cannot fail: all keys are text.
        let body = serde_json::to_vec(&envelope).unwrap_or_default();
        Ok((TaskMessage::decode(&body)?, body))
    }
}

/// Returns the status URL in an envelope.
fn status_url(envelope: &mut Map<String, Value>) -> Option<&mut Value> {
    let url = envelope.get_mut("tracking")?.get_mut("statusCheckUrl")?;
    url.is_string().then_some(url)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

type Readable = (Option<Box<RawValue>>, Option<TaskDataEncoding>);

/// Returns task data as JSON if it is JSON on one line, else as text, else in base64.
fn readable(data: Vec<u8>) -> Readable {
    let is_same = |json: &&RawValue| json.get().len() == data.len() && !data.contains(&b'\n');
    if let Some(json) = serde_json::from_slice(&data).ok().filter(is_same) {
        return (Some(json.to_owned()), None);
    }
    let (text, encoding) = match String::from_utf8(data) {
        Ok(text) => (text, TaskDataEncoding::Utf8),
        Err(error) => (
            base64_bytes::shown(error.as_bytes()).to_string(),
            TaskDataEncoding::Base64,
        ),
    };
    (serde_json::value::to_raw_value(&text).ok(), Some(encoding))
}

fn bytes(data: &RawValue, encoding: Option<TaskDataEncoding>) -> Result<Vec<u8>, PipeMessageError> {
    let text = |name| {
        serde_json::from_str::<String>(data.get()).map_err(|_| PipeMessageError::TaskData(name))
    };
    match encoding {
        None => Ok(data.get().as_bytes().to_vec()),
        Some(TaskDataEncoding::Utf8) => Ok(text("UTF-8")?.into_bytes()),
        Some(TaskDataEncoding::Base64) => {
            base64_bytes::decode(&text("base64")?).map_err(|_| PipeMessageError::TaskData("base64"))
        }
    }
}

/// A request to take messages from a pipe, and to acknowledge those that the last request took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TakeRequest {
    /// The largest number of messages to take, at most 100. 0 only acknowledges.
    #[cfg_attr(feature = "utoipa", schema(maximum = 100))]
    pub limit: u32,
    /// How long to wait for a message if there is none, in seconds, at most 20.
    #[cfg_attr(feature = "utoipa", schema(maximum = 20))]
    pub wait: u32,
    /// The receipt of the messages that this request acknowledges. Absent in the first request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
    /// Whether the messages of the receipt go back to the pipe instead: their client cannot use
    /// them.
    pub give_back: bool,
    /// Whether to take messages even from a pipe of the system itself. What is taken from it is
    /// lost to the system.
    pub force: bool,
}

impl Default for TakeRequest {
    fn default() -> Self {
        Self {
            limit: 100,
            wait: 0,
            receipt: None,
            give_back: false,
            force: false,
        }
    }
}

/// Messages that were taken from a pipe and are not acknowledged yet.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TakenMessages {
    /// What the next request names to acknowledge these messages. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
    /// The messages, oldest first. Those that are not acknowledged within 30 seconds go back to the
    /// pipe.
    pub messages: Vec<PipeMessage>,
}

/// A request to put messages into a pipe.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutRequest {
    /// The messages, at most 100. Each must be a task message.
    #[cfg_attr(feature = "utoipa", schema(max_items = 100))]
    pub messages: Vec<PipeMessage>,
}

/// What has been put into a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct PutMessages {
    /// The number of messages that the broker has stored: all of the request.
    pub confirmed: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Tracking;

    fn message(data: Option<Vec<u8>>) -> TaskMessage {
        let body = br#"{"taskId": "t", "taskClassifier": "C", "taskApiVersion": 1, "to": "in"}"#;
        TaskMessage {
            task_data: data,
            ..TaskMessage::decode(body).unwrap()
        }
    }

    fn line(body: &[u8]) -> String {
        let headers = BTreeMap::from([("h".to_owned(), PipeHeader::Integer(1))]);
        serde_json::to_string(&PipeMessage::of_body(headers, body)).unwrap()
    }

    fn put(line: &str) -> Result<(TaskMessage, Vec<u8>), String> {
        let message: PipeMessage = serde_json::from_str(line).map_err(|error| error.to_string())?;
        message
            .into_task_message("in")
            .map_err(|error| error.to_string())
    }

    #[test]
    fn envelope_and_json_are_readable_and_other_bodies_are_base64() {
        let body = br#"{"taskId": "t", "taskData": "eyJuIjogMS4wMH0=", "to": "in", "new": [1]}"#;
        assert_eq!(
            line(body),
            r#"{"headers":{"h":1},"envelope":{"new":[1],"taskId":"t","to":"in"},"taskData":{"n": 1.00}}"#
        );
        assert_eq!(line(b"hello"), r#"{"headers":{"h":1},"body":"aGVsbG8="}"#);
        assert!(
            line(&message(Some(b"a\nb".to_vec())).encode())
                .ends_with(r#""taskData":"a\nb","taskDataEncoding":"utf8"}"#)
        );
    }

    #[test]
    fn key_of_a_job_is_hidden_and_can_be_restored() {
        let url = "http://h/partitions/p/jobs/j/status?n=7&k=00f1";
        let sent = TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some("p:j.1".to_owned()),
                status_check_url: Some(url.into()),
                ..Tracking::default()
            }),
            ..message(None)
        };
        let bundle = [&sent.encode()[..], b"\n[]\n"].concat();
        for body in [
            bundle,
            br#"{"statusCheckUrl": "http://h/status?n=7&k=00f1"#.to_vec(),
        ] {
            let shown = PipeMessage::of_body(BTreeMap::new(), &body).body.unwrap();
            let shown = String::from_utf8(base64_bytes::decode(&shown).unwrap()).unwrap();
            assert!(
                shown.contains("?n=7&k=***") && !shown.contains("00f1"),
                "{shown}"
            );
        }
        let line = line(&sent.encode());
        assert!(
            line.contains("?n=7&k=***") && !line.contains("00f1"),
            "{line}"
        );
        let shown: PipeMessage = serde_json::from_str(&line).unwrap();
        let (task, hidden) = shown.hidden_key().unwrap();
        assert_eq!((&*task.job, hidden.incarnation()), ("j", Some(7)));
        for (key, expected) in [
            (Some(LifeKey::from("00f1")), url),
            (None, &url[..url.len() - 7]),
        ] {
            let mut again = shown.clone();
            again.restore_key(key.as_ref());
            assert!(again.hidden_key().is_none());
            let (message, _) = again.into_task_message("in").unwrap();
            let tracking = message.tracking.unwrap();
            assert_eq!(tracking.status_check_url.as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_is_no_task_message_is_refused_with_the_reason() {
        for (line, reason) in [
            (r#"{"body": "aGVsbG8="}"#, "there is no 'envelope'"),
            (r#"{"envelope": {}}"#, "the field taskId is missing"),
            (
                r#"{"envelope": {"taskId": "t"}, "taskData": 1, "taskDataEncoding": "utf8"}"#,
                "not a string in UTF-8",
            ),
            (
                r#"{"envelope": {"taskId": "t"}, "taskData": "?", "taskDataEncoding": "base64"}"#,
                "not a string in base64",
            ),
            (
                r#"{"envelope": {"taskId": "t"}, "data": 1}"#,
                "unknown field `data`",
            ),
            (r#"{"headers": {"h": 1.5}}"#, "did not match any variant"),
        ] {
            let refused = put(line).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        assert_eq!(
            put(r#"{"envelope": {"taskId": "t"}}"#)
                .unwrap()
                .0
                .to
                .as_deref(),
            Some("in")
        );
    }

    proptest! {
        #[test]
        fn what_was_taken_can_be_put_again(
            data in prop::option::of(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40), "\\PC{0,20}".prop_map(String::into_bytes),
                Just(b" {\"a\": 1e400} ".to_vec()), Just(b"{\"a\":1e400}".to_vec()), Just(b"[\n1]".to_vec()),
            ]),
        ) {
            let sent = message(data);
            let line = line(&sent.encode());
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert_eq!(put(&line).unwrap().0, sent);
        }

        #[test]
        fn any_body_becomes_one_line(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(line(&body).lines().count(), 1);
        }
    }
}
