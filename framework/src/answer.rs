//! What a worker's answer becomes on the wire: messages and reports. Pure.
//!
//! Subtasks are numbered from 1 in publish order. The final answer of a task that dispatched N subtasks is N+1 and
//! carries `*`; a task that dispatched nothing keeps its id, and so does one that fails, however much it has dispatched.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{
    ReportFailure, ReportStatus, SourceInfo, TaskData, TaskMessage, TaskStatus, Tracking,
    TrackingReport, subtask_id,
};

use crate::broker::Outgoing;
use crate::clock::now_millis;
use crate::routing::{Route, next_hop};

/// Who answers, and by which route its outputs travel.
#[derive(Debug, Clone)]
pub(crate) struct Author {
    pub name: String,
    pub version: String,
    /// The key of this service's notes in the context of a message.
    pub service_path: String,
    pub route: Route,
    /// Whether what is not the end of its task is reported with 0 %.
    pub zero_progress: bool,
}

/// The longest reason of a failure in a report, in bytes. The result in the output pipe has all of it.
const LONGEST_REASON: usize = 8 * 1024;

/// Which part of a task an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it: nothing was split off. It keeps its id.
    Whole,
    /// The subtask with this number.
    Subtask(u32),
    /// The final answer after this many subtasks, of which there may be none.
    Final(u32),
}

/// A message to make.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub part: Part,
    /// `None`: there is no message, only what it means for tracking.
    pub to: Option<&'a str>,
    pub status: TaskStatus,
    pub classifier: &'a str,
    pub api_version: i32,
    pub data: Vec<u8>,
    /// This service's note for a later visit.
    pub note: Option<Vec<u8>>,
    /// For failures: the reason in plain text.
    pub failure: Option<&'a str>,
    /// Tracking ends where this goes, wherever it was to end.
    pub ends_tracking: bool,
}

/// What an output causes.
#[derive(Debug, Default)]
pub(crate) struct Produced {
    pub message: Option<Outgoing>,
    pub report: Option<TrackingReport>,
}

impl Author {
    /// Makes the message and the report of one output of the task `input`.
    pub fn produce(&self, input: &TaskMessage, draft: Draft<'_>) -> Produced {
        let tracking = input.tracking.as_ref().map(|tracking| Tracking {
            job_task_id: tracking
                .job_task_id
                .as_deref()
                .map(|id| part_id(id, draft.part)),
            track_to: if draft.ends_tracking {
                draft.to.map(str::to_owned)
            } else {
                tracking.track_to.clone()
            },
            ..tracking.clone()
        });
        let hop = next_hop(
            self.route,
            draft.to,
            tracking.as_ref(),
            draft.failure.is_some(),
        );
        // A rerouted message is its own report.
        let straight = self.route == Route::Direct || hop.pipe.is_none();
        let zero = (self.zero_progress && straight).then_some(ReportStatus::Progress);
        let report = hop
            .report
            .or(zero)
            .zip(tracking.and_then(|tracking| tracking.job_task_id))
            .map(|(status, id)| TrackingReport {
                failure: draft
                    .failure
                    .map(|reason| self.failure(draft.status.name(), reason)),
                ..TrackingReport::new(id, status)
            });
        let message = hop.pipe.map(|pipe| {
            let message = TaskMessage {
                version: 3,
                task_id: part_id(&input.task_id, draft.part),
                task_classifier: Some(draft.classifier.to_owned()),
                task_api_version: draft.api_version,
                context: self.context(input, &draft),
                task_data: Some(draft.data),
                task_status: Some(draft.status),
                to: draft.to.map(str::to_owned),
                tracking: hop.tracking,
                source_info: Some(SourceInfo {
                    name: Some(self.name.clone()),
                    version: Some(self.version.clone()),
                }),
                priority: None,
                correlation_id: input.correlation_id.clone(),
            };
            Outgoing::new(pipe, message.encode())
        });
        Produced { message, report }
    }

    /// The announcement that the task has this many subtasks: progress 0 of its final answer.
    pub fn size(input: &TaskMessage, subtasks: u32) -> Option<TrackingReport> {
        let id = input.job_task_id()?;
        Some(TrackingReport::new(
            part_id(id, Part::Final(subtasks)),
            contract::ReportStatus::Progress,
        ))
    }

    pub fn failure(&self, kind: &str, reason: &str) -> ReportFailure {
        // A page of HTML or a dump makes no failure clearer, and hundreds of them no message that anybody takes.
        let end = reason.floor_char_boundary(LONGEST_REASON);
        let reason = if end < reason.len() {
            format!("{} …", &reason[..end])
        } else {
            reason.to_owned()
        };
        ReportFailure {
            failure_id: Some(kind.to_owned()),
            failure_time: Some(now_millis()),
            failure_source: Some(self.name.clone()),
            failure_message: Some(reason),
        }
    }

    fn context(
        &self,
        input: &TaskMessage,
        draft: &Draft<'_>,
    ) -> BTreeMap<String, contract::ContextData> {
        let mut context = match draft.part {
            Part::Whole | Part::Final(_) => input.context.clone(),
            Part::Subtask(_) => BTreeMap::new(),
        };
        if let Some(note) = &draft.note {
            context.insert(
                self.service_path.clone(),
                contract::ContextData(note.clone()),
            );
        }
        context
    }
}

/// The pipe for reports about this task, where it is tracked.
pub(crate) fn tracking_pipe(input: &TaskMessage) -> Option<Arc<str>> {
    input
        .tracking
        .as_ref()?
        .tracking_pipe
        .as_deref()
        .filter(|pipe| !pipe.is_empty())
        .map(Into::into)
}

/// A message of this type with ready-made data.
pub(crate) fn new_message<T: TaskData>(task_id: String, to: &str, data: Vec<u8>) -> TaskMessage {
    TaskMessage {
        version: 3,
        task_id,
        task_classifier: Some(T::CLASSIFIER.to_owned()),
        task_api_version: T::API_VERSION,
        task_data: Some(data),
        task_status: Some(TaskStatus::NewTask),
        context: BTreeMap::new(),
        to: Some(to.to_owned()),
        tracking: None,
        source_info: None,
        priority: None,
        correlation_id: None,
    }
}

fn part_id(id: &str, part: Part) -> String {
    match part {
        Part::Whole => id.to_owned(),
        Part::Subtask(number) => subtask_id(id, number, false),
        Part::Final(subtasks) => subtask_id(id, subtasks + 1, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(route: Route) -> Author {
        Author {
            name: "worker".into(),
            version: "1".into(),
            service_path: "batchwright/worker".into(),
            route,
            zero_progress: false,
        }
    }

    fn input() -> TaskMessage {
        let mut message = new_message::<contract::BatchTask>("T".into(), "in", Vec::new());
        message.context.insert(
            "other/service".into(),
            contract::ContextData(b"kept".to_vec()),
        );
        message.correlation_id = Some("c".into());
        message.tracking = Some(Tracking {
            job_task_id: Some("p:j.2*".into()),
            tracking_pipe: Some("tracking".into()),
            track_to: Some("out".into()),
            ..Tracking::default()
        });
        message
    }

    fn draft(part: Part, to: Option<&str>) -> Draft<'_> {
        Draft {
            part,
            to,
            status: TaskStatus::ResultSuccess,
            classifier: "C",
            api_version: 1,
            data: b"{}".to_vec(),
            note: None,
            failure: None,
            ends_tracking: false,
        }
    }

    #[test]
    fn ids_number_the_parts_of_a_task() {
        for (part, task_id, job_task_id) in [
            (Part::Whole, "T", "p:j.2*"),
            (Part::Final(0), "T.1*", "p:j.2*.1*"),
            (Part::Subtask(1), "T.1", "p:j.2*.1"),
            (Part::Final(3), "T.4*", "p:j.2*.4*"),
        ] {
            let produced = author(Route::Reroute).produce(&input(), draft(part, Some("next")));
            let message = TaskMessage::decode(&produced.message.unwrap().body).unwrap();
            assert_eq!(
                (message.task_id.as_str(), message.job_task_id()),
                (task_id, Some(job_task_id))
            );
            assert_eq!(message.correlation_id.as_deref(), Some("c"));
        }
    }

    #[test]
    fn an_output_that_reaches_the_end_of_tracking_is_reported_and_no_longer_tracked() {
        let produced = author(Route::Direct).produce(&input(), draft(Part::Whole, Some("out")));
        assert_eq!(
            produced.report,
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(
            TaskMessage::decode(&produced.message.unwrap().body)
                .unwrap()
                .tracking,
            None
        );
    }

    #[test]
    fn a_final_answer_keeps_the_notes_of_all_services_and_a_subtask_takes_none_along() {
        let note = |part| Draft {
            note: Some(b"mine".to_vec()),
            ..draft(part, Some("next"))
        };
        let services = |part| {
            let message = author(Route::Direct)
                .produce(&input(), note(part))
                .message
                .unwrap();
            TaskMessage::decode(&message.body)
                .unwrap()
                .context
                .into_keys()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            services(Part::Whole),
            ["batchwright/worker", "other/service"]
        );
        assert_eq!(services(Part::Subtask(1)), ["batchwright/worker"]);
    }

    #[test]
    fn an_output_that_says_so_ends_tracking_where_it_goes() {
        let ends = |to| Draft {
            ends_tracking: true,
            ..draft(Part::Whole, Some(to))
        };
        let produced = author(Route::Direct).produce(&input(), ends("elsewhere"));
        assert_eq!(
            produced.report,
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(
            TaskMessage::decode(&produced.message.unwrap().body)
                .unwrap()
                .tracking,
            None
        );
        // On the other route whoever passes it on sees it by its tracking.
        let produced = author(Route::Reroute).produce(&input(), ends("elsewhere"));
        let tracking = TaskMessage::decode(&produced.message.unwrap().body)
            .unwrap()
            .tracking
            .unwrap();
        assert_eq!(
            (produced.report, tracking.track_to.as_deref()),
            (None, Some("elsewhere"))
        );
    }

    #[test]
    fn what_is_not_the_end_of_a_task_is_reported_with_zero_percent_where_that_is_asked_for() {
        let report = |route, part, to| {
            Author {
                zero_progress: true,
                ..author(route)
            }
            .produce(&input(), draft(part, to))
            .report
        };
        let zero = |id: &str| Some(TrackingReport::new(id, ReportStatus::Progress));
        assert_eq!(
            report(Route::Direct, Part::Subtask(1), Some("next")),
            zero("p:j.2*.1")
        );
        assert_eq!(
            report(Route::Direct, Part::Final(1), None),
            zero("p:j.2*.2*")
        );
        assert_eq!(
            report(Route::Direct, Part::Whole, Some("out")),
            Some(TrackingReport::new("p:j.2*", ReportStatus::Complete))
        );
        assert_eq!(report(Route::Reroute, Part::Subtask(1), Some("next")), None);
    }

    #[test]
    fn a_long_reason_is_cut_in_the_report() {
        let failure = author(Route::Direct).failure("RESULT_EXCEPTION", &"ü".repeat(10_000));
        assert_eq!(
            failure.failure_message.unwrap().len(),
            8 * 1024 + " …".len()
        );
    }

    #[test]
    fn an_answer_without_a_message_ends_tracking_when_it_says_so() {
        let none = Draft {
            ends_tracking: true,
            ..draft(Part::Final(2), None)
        };
        let produced = author(Route::Direct).produce(&input(), none);
        assert_eq!(
            produced.report,
            Some(TrackingReport::new("p:j.2*.3*", ReportStatus::Complete))
        );
        assert!(produced.message.is_none());
    }
}
