//! Reads tracking events from messages: from reports, and from diverted messages, whose tasks end
//! with them.

use contract::headers::{
    GATHERED_HEADER, INPUT_HEADER, JOB_HEADER, LABEL_HEADER, REPORT_DETAILS_HEADER, RUN_HEADER,
    SPLIT_HEADER,
};
use contract::{
    FailedItem, FailedRun, GatheredReports, JobTaskId, JobTrackingEvent, ReportDetails,
    ReportFailure, ReportStatus, TaskData, TaskMessage, TrackingReport, TrackingReportTask,
};
use framework::broker::{HeaderValue, Headers, PublishError};
use framework::clock::Clock;
use framework::handler::Received;
use smol_str::{SmolStr, ToSmolStr as _};
use store::{EventKind, TrackingEvent};
use tracing::warn;

/// The longest message of a failure that is kept, in bytes. A job keeps a hundred, and a list shows
/// those of many jobs.
const LONGEST_MESSAGE: usize = 64 * 1024;
/// The longest kind and the longest source of a failure that are kept, in bytes.
const LONGEST_NAME: usize = 255;
/// The header with the reason why a CAF worker has given up on a message.
const REJECTED_HEADER: &str = "x-caf-worker-rejected";
/// The header with the number of retries of a CAF worker.
const RETRY_HEADER: &str = "x-caf-worker-retry";

/// What one message reports.
pub struct Reported {
    /// The index of the message in its batch.
    pub index: usize,
    pub events: Vec<TrackingEvent>,
    /// Why a part of the message could not be understood.
    pub problem: Option<String>,
    /// Whether its sender is a worker of ours. CAF's workers and their clients expect that reports
    /// count in the order in which they come.
    pub may_wait: bool,
}

impl Reported {
    /// Returns why the task of a diverted message fails that cannot be forwarded: because of that,
    /// and because it has failed before.
    pub fn reason_with(&self, error: &PublishError) -> String {
        match self.events.first().map(|event| &event.kind) {
            Some(EventKind::Failed(ReportFailure {
                failure_message: Some(message),
                ..
            })) => format!("{error}; it reports: {message}"),
            _ => error.to_string(),
        }
    }
}

/// Reads the events of a message.
pub fn read(index: usize, received: &Received) -> Reported {
    if received.is_diverted() {
        let event = rejected_event(received).or_else(|| {
            let status = received.diverted_status()?;
            diverted_event(received.message(), received.headers(), status)
        });
        return Reported {
            index,
            events: event.into_iter().collect(),
            problem: None,
            may_wait: received.headers().get(JOB_HEADER).is_some(),
        };
    }
    let (mut events, mut problem) = (Vec::new(), None);
    match reports(received.message(), received.headers()) {
        Err(reason) => problem = Some(reason),
        Ok(Reports { complete, others }) => {
            events.reserve(complete.len() + others.len());
            events.extend(complete.into_iter().map(complete_event));
            for report in others {
                match event(report) {
                    Ok(event) => events.push(event),
                    Err(reason) => problem = Some(reason),
                }
            }
        }
    }
    Reported {
        index,
        events,
        problem,
        may_wait: received.headers().get(GATHERED_HEADER).is_some(),
    }
}

/// The reports in one message.
#[derive(Debug, Default)]
struct Reports {
    /// The tasks that are complete, of gathered reports.
    complete: Vec<JobTaskId>,
    others: Vec<TrackingReport>,
}

/// Reads the reports in a message that is addressed to the tracking worker.
fn reports(message: &TaskMessage, headers: &Headers) -> Result<Reports, String> {
    let data = message
        .task_data
        .as_deref()
        .ok_or("the message has no task data")?;
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    let mut reports = match classifier {
        TrackingReportTask::CLASSIFIER => Reports {
            others: parse::<TrackingReportTask>(data)?.tracking_reports,
            ..Reports::default()
        },
        GatheredReports::CLASSIFIER => {
            let gathered: GatheredReports = parse(data)?;
            Reports {
                complete: gathered
                    .complete_tasks()
                    .map_err(|error| error.to_string())?,
                others: gathered.others,
            }
        }
        JobTrackingEvent::CLASSIFIER => {
            let event: JobTrackingEvent = parse(data)?;
            let report = TrackingReport {
                estimated_percentage_completed: event.estimated_percentage_completed,
                ..TrackingReport::new(event.job_task_id, ReportStatus::Progress)
            };
            Reports {
                others: vec![report],
                ..Reports::default()
            }
        }
        _ => {
            return Err(format!(
                "Task of type {classifier} found on queue for {}",
                TrackingReportTask::CLASSIFIER
            ));
        }
    };
    if let Some(HeaderValue::Text(details)) = headers.get(REPORT_DETAILS_HEADER) {
        ReportDetails::add_to(details, &mut reports.others);
    }
    Ok(reports)
}

/// Parses task data. It is checked to be text once: from bytes, the parser would check each of many
/// reports by itself.
fn parse<T: TaskData>(data: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

const fn complete_event(task: JobTaskId) -> TrackingEvent {
    let kind = EventKind::Complete;
    TrackingEvent { task, kind }
}

fn event(report: TrackingReport) -> Result<TrackingEvent, String> {
    let task = JobTaskId::parse(&report.job_task_id).map_err(|error| error.to_string())?;
    let kind = match report.status {
        ReportStatus::Complete => EventKind::Complete,
        ReportStatus::Failed => failed(report.failure.unwrap_or_default()),
        ReportStatus::Retry => EventKind::Retry {
            attempts: report.retries,
            failure: report.failure.map(bounded),
        },
        // CAF's workers send no retries with progress.
        ReportStatus::Progress
            if report.estimated_percentage_completed <= 0
                && let Some(attempts) = report.retries =>
        {
            EventKind::Started { attempts }
        }
        ReportStatus::Progress => match (report.announced, report.digest) {
            (stated, digest) if (stated.is_some() || digest.is_some()) && is_final(&task) => {
                EventKind::Announced { stated, digest }
            }
            _ => EventKind::Progress(
                u8::try_from(report.estimated_percentage_completed.clamp(0, 100)).unwrap_or(0),
            ),
        },
    };
    Ok(TrackingEvent { task, kind })
}

/// Returns whether this is the final subtask of its split.
fn is_final(task: &JobTaskId) -> bool {
    task.steps.last().is_some_and(|step| step.last)
}

/// Reads the event of a diverted message from its envelope and its headers. Returns `None` if the
/// job task id is malformed; the message is forwarded all the same.
fn diverted_event(
    message: &TaskMessage,
    headers: &Headers,
    status: ReportStatus,
) -> Option<TrackingEvent> {
    let id = message.job_task_id()?;
    let task = JobTaskId::parse(id)
        .inspect_err(|error| warn!(%error, "a diverted message cannot be tracked"))
        .ok()?;
    let kind = match status {
        ReportStatus::Failed => failed(ReportFailure {
            failure_id: message.task_status.map(|status| status.name().to_owned()),
            // The envelope has no time, and the message has just arrived.
            failure_time: Some(Clock::system().now_millis()),
            failure_source: Some(source_of(message)),
            // As it is: a CAF worker that reports a failure itself also keeps the quotes of a JSON
            // string.
            failure_message: message
                .task_data
                .as_deref()
                .map(|data| String::from_utf8_lossy(data).into_owned()),
            item: failed_item(headers, message.task_classifier.as_deref()),
            run: failed_run(headers),
        }),
        _ => EventKind::Complete,
    };
    Some(TrackingEvent { task, kind })
}

/// Reads which item has failed from the headers of its failure, which has the classifier of the
/// task.
fn failed_item(headers: &Headers, classifier: Option<&str>) -> Option<FailedItem> {
    let text = |name| text(headers, name).map(String::from);
    let item = FailedItem {
        label: text(LABEL_HEADER),
        input: text(INPUT_HEADER),
        batch: false,
    };
    let item = item.of_type(classifier);
    let batch = item.batch || text(SPLIT_HEADER).is_some();
    let item = FailedItem { batch, ..item };
    (item != FailedItem::default()).then(|| item.bounded())
}

/// Reads from the headers of a failure which attempt has failed. What cannot be parsed says
/// nothing.
fn failed_run(headers: &Headers) -> Option<FailedRun> {
    let run: FailedRun = serde_json::from_str(&text(headers, RUN_HEADER)?).ok()?;
    Some(run.bounded())
}

fn text(headers: &Headers, name: &str) -> Option<SmolStr> {
    match headers.get(name)? {
        HeaderValue::Text(text) => Some(text.clone()),
        HeaderValue::Integer(number) => Some(number.to_smolstr()),
    }
}

/// Reads the event of a message that a CAF worker has given up: it has no task status, and headers
/// with the reason.
fn rejected_event(received: &Received) -> Option<TrackingEvent> {
    let text = |name| text(received.headers(), name);
    let message = received.message();
    let reason = text(REJECTED_HEADER).filter(|_| message.task_status.is_none())?;
    let retries = text(RETRY_HEADER).unwrap_or_else(|| "0".into());
    let task = JobTaskId::parse(message.job_task_id()?).ok()?;
    let failure = ReportFailure {
        failure_id: Some(REJECTED_HEADER.to_owned()),
        failure_time: Some(Clock::system().now_millis()),
        failure_source: Some(source_of(message)),
        failure_message: Some(format!(
            "{reason}. Execution of this job task was retried {retries} times."
        )),
        // The message is the task itself.
        item: message
            .task_data
            .as_deref()
            .map(|data| FailedItem::new(None, data).of_type(message.task_classifier.as_deref())),
        run: None,
    };
    Some(TrackingEvent {
        task,
        kind: failed(failure),
    })
}

fn failed(failure: ReportFailure) -> EventKind {
    EventKind::Failed(bounded(failure))
}

/// Cuts the texts of a failure, which workers may make of any length.
fn bounded(failure: ReportFailure) -> ReportFailure {
    let cut = |text: Option<String>, longest| {
        text.map(|text| match text.floor_char_boundary(longest) {
            end if end < text.len() => format!("{} …", &text[..end]),
            _ => text,
        })
    };
    ReportFailure {
        failure_id: cut(failure.failure_id, LONGEST_NAME),
        failure_source: cut(failure.failure_source, LONGEST_NAME),
        failure_message: cut(failure.failure_message, LONGEST_MESSAGE),
        ..failure
    }
}

fn source_of(message: &TaskMessage) -> String {
    let name = match &message.source_info {
        None => "Unknown - no source info",
        Some(source) => source
            .name
            .as_deref()
            .unwrap_or("Unknown - worker name not set"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use contract::Tracking;

    use super::*;

    #[test]
    fn failure_of_a_diverted_message_has_its_task_data_as_text_with_its_quotes() {
        for text in [r#""class X boom""#, "Task failed validation"] {
            let mut message = TaskMessage::new("t", "in", &contract::BatchTask::default()).unwrap();
            message.task_data = Some(text.as_bytes().to_vec());
            message.tracking = Some(contract::Tracking {
                job_task_id: Some("p:j.1".to_owned()),
                ..contract::Tracking::default()
            });
            let event =
                diverted_event(&message, &Headers::default(), ReportStatus::Failed).unwrap();
            let EventKind::Failed(failure) = event.kind else {
                panic!("{event:?}")
            };
            assert_eq!(failure.failure_message.as_deref(), Some(text));
        }
    }

    #[test]
    fn failure_of_a_diverted_message_tells_which_attempt_failed_if_its_header_does() {
        let tracking = Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            ..Tracking::default()
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", "in", &contract::BatchTask::default()).unwrap()
        };
        let run = FailedRun {
            attempt: Some(3),
            host: Some("host-1".to_owned()),
            ..FailedRun::default()
        };
        for (text, expected) in [
            (serde_json::to_string(&run).unwrap(), Some(run)),
            ("[]x".to_owned(), None),
        ] {
            let mut headers = Headers::default();
            headers.set(RUN_HEADER, HeaderValue::Text(text.into()));
            let event = diverted_event(&message, &headers, ReportStatus::Failed).unwrap();
            let EventKind::Failed(failure) = event.kind else {
                panic!("{event:?}")
            };
            assert_eq!(failure.run, expected);
        }
    }

    #[test]
    fn long_failure_is_cut_whichever_way_it_came() {
        let long = "ü".repeat(100_000);
        let mut message = TaskMessage::new("t", "in", &contract::BatchTask::default()).unwrap();
        message.task_data = Some(long.clone().into_bytes());
        message.tracking = Some(Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            ..Tracking::default()
        });
        let reported = TrackingReport {
            failure: Some(ReportFailure {
                failure_id: Some(long.clone()),
                failure_source: Some(long.clone()),
                failure_message: Some(long),
                ..ReportFailure::default()
            }),
            ..TrackingReport::new("p:j.1", ReportStatus::Failed)
        };
        for event in [
            diverted_event(&message, &Headers::default(), ReportStatus::Failed).unwrap(),
            event(reported).unwrap(),
        ] {
            let EventKind::Failed(failure) = event.kind else {
                panic!("{event:?}")
            };
            let message = failure.failure_message.unwrap();
            assert_eq!(message.len(), LONGEST_MESSAGE + " …".len());
            for name in [failure.failure_id, failure.failure_source] {
                assert!(name.is_none_or(|name| name.len() <= LONGEST_NAME + " …".len()));
            }
        }
    }

    #[test]
    fn message_without_reports_is_refused_with_its_classifier() {
        let message = TaskMessage::new("t", "in", &contract::BatchTask::default()).unwrap();
        assert_eq!(
            reports(&message, &Headers::default()).unwrap_err(),
            "Task of type BatchWorker found on queue for TrackingReportTask"
        );
    }
}
