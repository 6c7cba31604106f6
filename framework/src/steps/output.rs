//! Turns what a worker produces into messages and reports. Pure, apart from the time stamp of a
//! failure.
//!
//! Subtasks are numbered from 1 in dispatch order. The reply of a task that dispatched N subtasks
//! is its part N+1, marked with `*`. A task that dispatched nothing keeps its id. So does a task
//! that fails, however much it has dispatched.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::headers::{
    INPUT_HEADER, JOB_HEADER, LABEL_HEADER, OUTCOME_HEADER, Outcome, RUN_HEADER, SPLIT_HEADER,
    TASK_HEADER, job_and_path,
};
use contract::{
    ContextData, FailedItem, FailedRun, ReportFailure, ReportStatus, SourceInfo, TaskData,
    TaskMessage, TaskStatus, TaskTimeLimit, Tracking, TrackingReport, subtask_id,
};
use smol_str::SmolStr;

use crate::broker::{HeaderValue, Headers, Outgoing};
use crate::clock::Clock;
use crate::config::Route;
use crate::process_name::ProcessName;
use crate::steps::routing::{Hop, TrackingPipes, next_hop};
use crate::steps::time_limit;

/// The longest reason in a report and in a header, in bytes. The result in the output pipe has the
/// whole reason.
pub(crate) const LONGEST_REASON: usize = 8 * 1024;

/// What a worker says about itself in messages and reports, and how its outputs travel.
#[derive(Debug, Clone)]
pub(crate) struct WorkerIdentity {
    pub name: SmolStr,
    pub version: SmolStr,
    /// The key of this service's notes in the context of a message.
    pub service_path: String,
    pub route: Route,
    /// Whether an output that does not end its task is reported with 0 %.
    pub zero_progress: bool,
    pub clock: Clock,
    pub process: ProcessName,
}

/// Which part of a task an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskPart {
    /// The whole task, which keeps its id.
    Whole,
    /// The subtask with this number.
    Subtask(u32),
    /// The reply after this many subtasks, which may be 0.
    Final(u32),
}

/// An output to make.
#[derive(Debug)]
pub(crate) struct OutputSpec<'a> {
    pub part: TaskPart,
    /// The pipe that the output is addressed to; `None` if there is only a report and no message.
    pub to: Option<&'a str>,
    pub status: TaskStatus,
    pub classifier: &'a str,
    pub api_version: i32,
    pub data: Vec<u8>,
    /// This service's note for a later task.
    pub note: Option<Vec<u8>>,
    /// For failures: the reason in plain text.
    pub failure: Option<&'a str>,
    /// For failures: which attempt has failed, if the task ran.
    pub run: Option<FailedRun>,
    /// What the task calls itself.
    pub label: Option<&'a str>,
    /// The time limit that the job sets for its tasks.
    pub time_limit: Option<TaskTimeLimit>,
    /// Whether tracking ends with this output, regardless of the task's `trackTo`.
    pub ends_tracking: bool,
}

/// The message and the report of one output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub message: Option<Outgoing>,
    pub report: Option<TrackingReport>,
}

/// An output whose message is not encoded.
#[derive(Debug)]
pub(crate) struct Made<'a> {
    pub message: Option<MadeMessage<'a>>,
    pub report: Option<TrackingReport>,
}

/// A message without its task data, and the pipe that it goes to.
#[derive(Debug)]
pub(crate) struct MadeMessage<'a> {
    pub pipe: &'a str,
    pub headers: Headers,
    pub message: TaskMessage,
}

impl Output {
    /// Says of a failure that its task has dispatched subtasks. The tracking worker reads it from
    /// the report, or from the message that is its own report.
    #[must_use]
    pub fn of_split(mut self) -> Self {
        match (&mut self.report, &mut self.message) {
            (Some(report), _) => {
                if let Some(failure) = &mut report.failure {
                    failure.item.get_or_insert_default().batch = true;
                }
            }
            (None, Some(message)) => message
                .headers
                .set(SPLIT_HEADER, HeaderValue::Text("true".into())),
            (None, None) => {}
        }
        self
    }
}

impl WorkerIdentity {
    /// Makes the message and the report of one output of the task `input`.
    pub fn output(&self, input: &TaskMessage, mut spec: OutputSpec<'_>) -> Output {
        let data = std::mem::take(&mut spec.data);
        let Made { message, report } = self.make(input, &spec);
        let message = message.map(|made| Outgoing {
            headers: made.headers,
            ..Outgoing::new(
                made.pipe,
                TaskMessage {
                    task_data: Some(data),
                    ..made.message
                }
                .encode(),
            )
        });
        Output { message, report }
    }

    /// Makes the message of one output of the task `input` without its task data, and the report.
    pub fn make<'a>(&self, input: &'a TaskMessage, spec: &OutputSpec<'a>) -> Made<'a> {
        let tracked = input.tracking.as_ref().map(|tracking| TrackingPipes {
            end: if spec.ends_tracking {
                spec.to
            } else {
                tracking.track_to.as_deref()
            },
            ..tracking.into()
        });
        let hop = next_hop(self.route, spec.to, tracked, spec.failure.is_some());
        let id = input.job_task_id().map(|id| part_id(id, spec.part));
        let message = hop.pipe.map(|pipe| {
            let headers = self.headers(input, spec, hop, id.as_deref());
            let tracking = input.tracking.as_ref().filter(|_| hop.is_tracked);
            let message = TaskMessage {
                version: 3,
                task_id: part_id(&input.task_id, spec.part),
                task_classifier: Some(spec.classifier.into()),
                task_api_version: spec.api_version,
                context: self.context(input, spec),
                task_data: None,
                task_status: Some(spec.status),
                to: spec.to.map(Into::into),
                tracking: tracking.zip(tracked).map(|(tracking, tracked)| Tracking {
                    job_task_id: id.clone(),
                    last_status_check_time: tracking.last_status_check_time,
                    status_check_interval_millis: tracking.status_check_interval_millis,
                    status_check_url: tracking.status_check_url.clone(),
                    tracking_pipe: tracking.tracking_pipe.clone(),
                    track_to: tracked.end.map(Into::into),
                }),
                source_info: Some(SourceInfo {
                    name: Some(self.name.clone()),
                    version: Some(self.version.clone()),
                }),
                priority: None,
                correlation_id: input.correlation_id.clone(),
            };
            MadeMessage {
                pipe,
                headers,
                message,
            }
        });
        // A rerouted message is its own report.
        let is_direct = self.route == Route::Direct || hop.pipe.is_none();
        let zero = (self.zero_progress && is_direct).then_some(ReportStatus::Progress);
        let report = hop
            .report
            .or(zero)
            .zip(id)
            .map(|(status, id)| TrackingReport {
                failure: spec.failure.map(|reason| ReportFailure {
                    item: Some(failed_item(input, spec.label)),
                    run: spec.run.clone(),
                    ..self.failure(spec.status.name(), reason)
                }),
                ..TrackingReport::new(id, status)
            });
        Made { message, report }
    }

    /// Returns the headers of the message of an output with this job task id.
    fn headers(
        &self,
        input: &TaskMessage,
        spec: &OutputSpec<'_>,
        hop: Hop<'_>,
        id: Option<&str>,
    ) -> Headers {
        let mut headers = Headers::default();
        describe(&mut headers, id, spec.status, None);
        if let Some(label) = spec.label {
            set_label(&mut headers, label);
        }
        // A result that leaves the job is no task of it.
        let stays = spec.status == TaskStatus::NewTask || hop.is_tracked;
        if let Some(limit) = spec.time_limit.filter(|_| stays) {
            time_limit::set(&mut headers, limit);
        }
        // The tracking worker reads a failure that passes through it from the message.
        if spec.failure.is_some() && self.route == Route::Reroute {
            let run = spec.run.as_ref();
            let run = run.and_then(|run| serde_json::to_string(run).ok());
            for (name, text) in [
                (INPUT_HEADER, failed_item(input, None).input),
                (RUN_HEADER, run),
            ] {
                if let Some(text) = text {
                    headers.set(name, HeaderValue::Text(text.into()));
                }
            }
        }
        headers
    }

    /// Returns the report that the task has this many subtasks, which is progress 0 of its last
    /// part; `None` if the task is not tracked.
    pub fn size_report(input: &TaskMessage, subtasks: u32) -> Option<TrackingReport> {
        let id = input.job_task_id()?;
        Some(TrackingReport::new(
            part_id(id, TaskPart::Final(subtasks)),
            ReportStatus::Progress,
        ))
    }

    /// Makes the failure of a report: the kind of failure and its reason, cut to
    /// [`LONGEST_REASON`].
    pub fn failure(&self, kind: &str, reason: &str) -> ReportFailure {
        // A page of HTML or a dump makes no failure clearer, and hundreds of them make a message
        // too large to publish.
        let end = reason.floor_char_boundary(LONGEST_REASON);
        let reason = if end < reason.len() {
            format!("{} …", &reason[..end])
        } else {
            reason.to_owned()
        };
        ReportFailure {
            failure_id: Some(kind.to_owned()),
            failure_time: Some(self.clock.now_millis()),
            failure_source: Some(self.name.to_string()),
            failure_message: Some(reason),
            item: None,
            run: None,
        }
    }

    fn context(&self, input: &TaskMessage, spec: &OutputSpec<'_>) -> BTreeMap<String, ContextData> {
        let mut context = match spec.part {
            TaskPart::Whole | TaskPart::Final(_) => input.context.clone(),
            TaskPart::Subtask(_) => BTreeMap::new(),
        };
        if let Some(note) = &spec.note {
            context.insert(self.service_path.clone(), ContextData(note.clone()));
        }
        context
    }
}

/// Adds the headers that tell the reader of a result its job and its task, wherever its tracking
/// ends. Of a request, only a label is told.
pub(crate) fn describe(
    headers: &mut Headers,
    job_task_id: Option<&str>,
    status: TaskStatus,
    label: Option<&str>,
) {
    let Some(outcome) = Outcome::of(status) else {
        return;
    };
    let Some((job, path)) = job_task_id.and_then(job_and_path) else {
        return;
    };
    headers.set(JOB_HEADER, HeaderValue::Text(job.into()));
    headers.set(TASK_HEADER, HeaderValue::Text(path.into()));
    let outcome = SmolStr::new_static(outcome.name());
    headers.set(OUTCOME_HEADER, HeaderValue::Text(outcome));
    if let Some(label) = label {
        set_label(headers, label);
    }
}

/// Says in the headers of a message what its item is called.
pub(crate) fn set_label(headers: &mut Headers, label: &str) {
    headers.set(LABEL_HEADER, HeaderValue::Text(cut_label(label).into()));
}

/// Returns as much of a label as a message carries.
pub(crate) fn cut_label(label: &str) -> &str {
    &label[..label.floor_char_boundary(FailedItem::LABEL_BYTES)]
}

/// Returns the label that a message came with.
pub(crate) fn label_in(headers: &Headers) -> Option<&str> {
    match headers.get(LABEL_HEADER) {
        Some(HeaderValue::Text(label)) => Some(label),
        _ => None,
    }
}

/// Describes a task that fails: what it calls itself, and its data.
pub(crate) fn failed_item(input: &TaskMessage, label: Option<&str>) -> FailedItem {
    FailedItem::new(label, input.task_data.as_deref().unwrap_or_default())
        .of_type(input.task_classifier.as_deref())
}

/// Returns the pipe for reports about this task, or `None` if the task is not tracked.
pub(crate) fn tracking_pipe(input: &TaskMessage) -> Option<Arc<str>> {
    input
        .tracking
        .as_ref()?
        .tracking_pipe
        .as_deref()
        .filter(|pipe| !pipe.is_empty())
        .map(Into::into)
}

/// Makes an untracked message from serialized task data of type `T`.
pub(crate) fn new_message<T: TaskData>(task_id: String, to: &str, data: Vec<u8>) -> TaskMessage {
    TaskMessage {
        version: 3,
        task_id,
        task_classifier: Some(SmolStr::new_static(T::CLASSIFIER)),
        task_api_version: T::API_VERSION,
        task_data: Some(data),
        task_status: Some(TaskStatus::NewTask),
        context: BTreeMap::new(),
        to: Some(to.into()),
        tracking: None,
        source_info: None,
        priority: None,
        correlation_id: None,
    }
}

fn part_id(id: &str, part: TaskPart) -> String {
    match part {
        TaskPart::Whole => id.to_owned(),
        TaskPart::Subtask(number) => subtask_id(id, number, false),
        TaskPart::Final(subtasks) => subtask_id(id, subtasks + 1, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(route: Route) -> WorkerIdentity {
        WorkerIdentity {
            name: "worker".into(),
            version: "1".into(),
            service_path: "batchwright/worker".into(),
            route,
            zero_progress: false,
            clock: Clock::system(),
            process: ProcessName::default(),
        }
    }

    fn input() -> TaskMessage {
        let mut message = new_message::<contract::BatchTask>("T".into(), "in", Vec::new());
        message
            .context
            .insert("other/service".into(), ContextData(b"kept".to_vec()));
        message.correlation_id = Some("c".into());
        message.tracking = Some(Tracking {
            job_task_id: Some("p:j.2*".into()),
            tracking_pipe: Some("tracking".into()),
            track_to: Some("out".into()),
            ..Tracking::default()
        });
        message
    }

    fn spec(part: TaskPart, to: Option<&str>) -> OutputSpec<'_> {
        OutputSpec {
            part,
            to,
            status: TaskStatus::ResultSuccess,
            classifier: "C",
            api_version: 1,
            data: b"{}".to_vec(),
            note: None,
            failure: None,
            run: None,
            label: None,
            time_limit: None,
            ends_tracking: false,
        }
    }

    #[test]
    fn ids_number_the_parts_of_a_task() {
        for (part, task_id, job_task_id) in [
            (TaskPart::Whole, "T", "p:j.2*"),
            (TaskPart::Final(0), "T.1*", "p:j.2*.1*"),
            (TaskPart::Subtask(1), "T.1", "p:j.2*.1"),
            (TaskPart::Final(3), "T.4*", "p:j.2*.4*"),
        ] {
            let output = identity(Route::Reroute).output(&input(), spec(part, Some("next")));
            let message = TaskMessage::decode(&output.message.unwrap().body).unwrap();
            assert_eq!(
                (message.task_id.as_str(), message.job_task_id()),
                (task_id, Some(job_task_id))
            );
            assert_eq!(message.correlation_id.as_deref(), Some("c"));
        }
    }

    #[test]
    fn result_tells_its_job_its_task_and_its_outcome_and_a_subtask_only_its_label() {
        let headers = |route, part, status| {
            let spec = OutputSpec {
                status,
                label: Some("the third"),
                ..spec(part, Some("out"))
            };
            let headers = identity(route).output(&input(), spec).message.unwrap();
            let texts = headers.headers.iter().map(|(name, value)| match value {
                HeaderValue::Text(text) => format!("{name}={text}"),
                HeaderValue::Integer(number) => format!("{name}={number}"),
            });
            texts.collect::<Vec<_>>()
        };
        for route in [Route::Direct, Route::Reroute] {
            assert_eq!(
                headers(route, TaskPart::Final(3), TaskStatus::ResultFailure),
                [
                    "x-batchwright-job=p:j",
                    "x-batchwright-task=2.4",
                    "x-batchwright-outcome=negative",
                    "x-batchwright-label=the third"
                ]
            );
            let subtask = headers(route, TaskPart::Subtask(1), TaskStatus::NewTask);
            assert_eq!(subtask, ["x-batchwright-label=the third"]);
        }
    }

    #[test]
    fn output_to_the_track_to_pipe_is_reported_and_no_longer_tracked() {
        let output = identity(Route::Direct).output(&input(), spec(TaskPart::Whole, Some("out")));
        assert_eq!(
            output.report,
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(
            TaskMessage::decode(&output.message.unwrap().body)
                .unwrap()
                .tracking,
            None
        );
    }

    #[test]
    fn reply_keeps_the_notes_of_all_services_and_a_subtask_has_none_of_them() {
        let note = |part| OutputSpec {
            note: Some(b"mine".to_vec()),
            ..spec(part, Some("next"))
        };
        let services = |part| {
            let message = identity(Route::Direct)
                .output(&input(), note(part))
                .message
                .unwrap();
            TaskMessage::decode(&message.body)
                .unwrap()
                .context
                .into_keys()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            services(TaskPart::Whole),
            ["batchwright/worker", "other/service"]
        );
        assert_eq!(services(TaskPart::Subtask(1)), ["batchwright/worker"]);
    }

    #[test]
    fn output_can_end_tracking_at_its_own_pipe() {
        let ends = |to| OutputSpec {
            ends_tracking: true,
            ..spec(TaskPart::Whole, Some(to))
        };
        let output = identity(Route::Direct).output(&input(), ends("elsewhere"));
        assert_eq!(
            output.report,
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(
            TaskMessage::decode(&output.message.unwrap().body)
                .unwrap()
                .tracking,
            None
        );
        // On the other route the tracking worker recognizes the end by `trackTo`.
        let output = identity(Route::Reroute).output(&input(), ends("elsewhere"));
        let tracking = TaskMessage::decode(&output.message.unwrap().body)
            .unwrap()
            .tracking
            .unwrap();
        assert_eq!(
            (output.report, tracking.track_to.as_deref()),
            (None, Some("elsewhere"))
        );
    }

    #[test]
    fn zero_progress_reports_each_direct_output_that_does_not_end_its_task() {
        let report = |route, part, to| {
            WorkerIdentity {
                zero_progress: true,
                ..identity(route)
            }
            .output(&input(), spec(part, to))
            .report
        };
        let zero = |id: &str| Some(TrackingReport::new(id, ReportStatus::Progress));
        assert_eq!(
            report(Route::Direct, TaskPart::Subtask(1), Some("next")),
            zero("p:j.2*.1")
        );
        assert_eq!(
            report(Route::Direct, TaskPart::Final(1), None),
            zero("p:j.2*.2*")
        );
        assert_eq!(
            report(Route::Direct, TaskPart::Whole, Some("out")),
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(
            report(Route::Reroute, TaskPart::Subtask(1), Some("next")),
            None
        );
    }

    #[test]
    fn long_failure_reason_is_cut_in_the_report() {
        let failure = identity(Route::Direct).failure("RESULT_EXCEPTION", &"ü".repeat(10_000));
        assert_eq!(
            failure.failure_message.unwrap().len(),
            8 * 1024 + " …".len()
        );
    }

    #[test]
    fn reply_without_a_message_can_end_tracking() {
        let none = OutputSpec {
            ends_tracking: true,
            ..spec(TaskPart::Final(2), None)
        };
        let output = identity(Route::Direct).output(&input(), none);
        assert_eq!(
            output.report,
            Some(TrackingReport::new("p:j.2*.3*", ReportStatus::Complete))
        );
        assert!(output.message.is_none());
    }

    #[test]
    fn failure_tells_that_its_task_is_no_item() {
        let failure = |classifier: &str, route| {
            let mut input = input();
            input.task_classifier = Some(classifier.into());
            let spec = OutputSpec {
                status: TaskStatus::ResultException,
                failure: Some("broken"),
                ..spec(TaskPart::Whole, Some("out"))
            };
            identity(route).output(&input, spec)
        };
        let is_batch = |output: &Output| {
            let failure = output.report.as_ref().unwrap().failure.as_ref();
            failure.unwrap().item.as_ref().unwrap().batch
        };
        assert!(is_batch(&failure("BatchWorker", Route::Direct)));
        assert!(!is_batch(&failure("Page", Route::Direct)));
        assert!(is_batch(&failure("Page", Route::Direct).of_split()));
        let rerouted = failure("Page", Route::Reroute).of_split();
        let header = rerouted.message.as_ref().unwrap().headers.get(SPLIT_HEADER);
        assert_eq!(header, Some(&HeaderValue::Text("true".into())));
    }
}
