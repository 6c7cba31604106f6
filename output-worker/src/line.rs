//! Reads an output from the message that has it: the task, and the line of JSON that is kept. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::rest::{Failure, OutputStatus};
use contract::{JobId, JobTaskId, PartitionId, ReportFailure, TaskMessage, TaskStatus};
use serde::Serialize;
use serde_json::value::RawValue;

/// The output of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub partition: PartitionId,
    pub job: JobId,
    /// `None` for a first incarnation.
    pub incarnation: Option<i64>,
    /// The path of the task.
    pub task: Vec<u32>,
    pub status: OutputStatus,
    /// The line, with its line break.
    pub line: Vec<u8>,
}

/// Why a message is not an output that can be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoOutput {
    /// It belongs to no job.
    Untracked(String),
    /// It belongs to a job, whose task can never be done by it.
    OfNoUse(String),
}

/// A line as it is stored. The line that is read begins with its `offset`, which is not known
/// before it is stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    status: OutputStatus,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    negative: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// Reads the output in a message, whose item may have a label.
pub fn read(message: &TaskMessage, label: Option<&str>) -> Result<Output, NoOutput> {
    let Some(id) = message.job_task_id() else {
        let reason = "the message is not tracked, so it belongs to no job whose outputs are kept";
        return Err(NoOutput::Untracked(reason.to_owned()));
    };
    let untracked = |error: &dyn std::fmt::Display| NoOutput::Untracked(error.to_string());
    let id = JobTaskId::parse(id).map_err(|error| untracked(&error))?;
    let partition = PartitionId::parse(&id.partition).map_err(|error| untracked(&error))?;
    let job = JobId::parse(&id.job).map_err(|error| untracked(&error))?;
    let status = match message.task_status {
        Some(TaskStatus::ResultSuccess | TaskStatus::ResultFailure) => OutputStatus::Done,
        Some(TaskStatus::ResultException | TaskStatus::InvalidTask) => OutputStatus::Failed,
        other => {
            let name = other.map_or("no status", TaskStatus::name);
            let reason = format!(
                "the message is no result but a task ({name}), and no worker runs tasks from this pipe"
            );
            return Err(NoOutput::OfNoUse(reason));
        }
    };
    let task: Vec<u32> = id.steps.iter().map(|step| step.number).collect();
    let line = line(message, label, &task, status);
    let line = line.map_err(|error| NoOutput::OfNoUse(error.to_string()))?;
    Ok(Output {
        partition,
        job,
        incarnation: id.incarnation,
        task,
        status,
        line,
    })
}

fn line(
    message: &TaskMessage,
    label: Option<&str>,
    task: &[u32],
    status: OutputStatus,
) -> serde_json::Result<Vec<u8>> {
    let data = message.task_data.as_deref().unwrap_or_default();
    let is_failed = status == OutputStatus::Failed;
    let output = (!is_failed)
        .then(|| serde_json::from_slice::<&RawValue>(data).ok())
        .flatten();
    let steps: Vec<String> = task.iter().map(u32::to_string).collect();
    let path = match &steps[..] {
        [] => "0".to_owned(),
        steps => steps.join("."),
    };
    let mut line = serde_json::to_vec(&Line {
        task: &path,
        label,
        status,
        negative: message.task_status == Some(TaskStatus::ResultFailure),
        output,
        output_base64: (!is_failed && output.is_none()).then(|| STANDARD.encode(data)),
        failure: is_failed.then(|| Failure::of_task(path.as_str(), failure(message, data))),
    })?;
    // Outside of its strings, where JSON allows no line break, a JSON text may have some.
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    Ok(line)
}

fn failure(message: &TaskMessage, data: &[u8]) -> ReportFailure {
    // Our workers send the reason as a JSON string, or as plain text if the task was not
    // understood.
    let text = serde_json::from_slice::<String>(data)
        .unwrap_or_else(|_| String::from_utf8_lossy(data).into_owned());
    let source = message.source_info.as_ref();
    ReportFailure {
        failure_id: message.task_status.map(|status| status.name().to_owned()),
        failure_source: source.and_then(|source| source.name.as_ref().map(ToString::to_string)),
        failure_message: Some(text),
        ..ReportFailure::default()
    }
}

#[cfg(test)]
mod tests {
    use contract::{SourceInfo, Tracking};

    use super::*;

    fn message(status: Option<TaskStatus>, data: &str) -> TaskMessage {
        TaskMessage {
            task_status: status,
            task_data: Some(data.as_bytes().to_vec()),
            tracking: Some(Tracking {
                job_task_id: Some("p:j!7.3.17*".to_owned()),
                ..Tracking::default()
            }),
            source_info: Some(SourceInfo {
                name: Some("worker".into()),
                version: None,
            }),
            ..TaskMessage::new("t", "out", &contract::BatchTask::default()).unwrap()
        }
    }

    fn line_of(status: TaskStatus, data: &str, label: Option<&str>) -> String {
        let output = read(&message(Some(status), data), label).unwrap();
        assert_eq!(
            (output.incarnation, &output.task[..]),
            (Some(7), &[3, 17][..])
        );
        String::from_utf8(output.line).unwrap()
    }

    #[test]
    fn line_has_the_output_as_it_came_on_one_line() {
        use TaskStatus::{InvalidTask, ResultException, ResultFailure, ResultSuccess};
        for (status, data, label, expected) in [
            (
                ResultSuccess,
                "{\"n\": 1.10,\n \"s\": \"a\\nb\"}",
                None,
                r#"{"task":"3.17","status":"done","output":{"n": 1.10,  "s": "a\nb"}}"#,
            ),
            (
                ResultFailure,
                "[]",
                Some("order \"7\""),
                r#"{"task":"3.17","label":"order \"7\"","status":"done","negative":true,"output":[]}"#,
            ),
            (
                ResultSuccess,
                "no JSON",
                None,
                r#"{"task":"3.17","status":"done","outputBase64":"bm8gSlNPTg=="}"#,
            ),
            (
                ResultSuccess,
                "",
                None,
                r#"{"task":"3.17","status":"done","outputBase64":""}"#,
            ),
        ] {
            assert_eq!(line_of(status, data, label), format!("{expected}\n"));
        }
        for (status, data) in [
            (ResultException, "\"the page\\nis torn\""),
            (InvalidTask, "the page\nis torn"),
        ] {
            let line = line_of(status, data, None);
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(
                (&read["task"], &read["status"]),
                (&"3.17".into(), &"failed".into())
            );
            let failure = &read["failure"];
            assert_eq!(failure["failureMessage"], "the page\nis torn");
            assert_eq!(failure["failureId"], status.name());
            assert_eq!(failure["failureSource"], "worker");
            assert_eq!(line.matches('\n').count(), 1);
        }
    }

    #[test]
    fn what_is_no_result_of_a_job_is_refused_with_the_reason() {
        let untracked = TaskMessage {
            tracking: None,
            ..message(Some(TaskStatus::ResultSuccess), "1")
        };
        assert!(matches!(
            read(&untracked, None),
            Err(NoOutput::Untracked(_))
        ));
        for status in [None, Some(TaskStatus::NewTask)] {
            let refused = read(&message(status, "1"), None).unwrap_err();
            let NoOutput::OfNoUse(reason) = refused else {
                panic!("{refused:?}")
            };
            assert!(reason.contains("is no result but a task"), "{reason}");
        }
    }
}
