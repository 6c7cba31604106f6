//! Feeds the ledger with what workers report, so that the progress of every job is known.
//!
//! [`TrackingWorker`] is a [`BatchHandler`] that takes up to a thousand messages at a time, of two kinds:
//! - *tracking reports* of workers whose outputs travel directly to their pipes;
//! - *diverted messages*, which are addressed to other pipes and pass through here to be recorded (the route `reroute`).
//!
//! What must stay true:
//! - It forwards diverted messages, waits for the confirms, commits the ledger, and only then settles. Once a task is
//!   counted its job may be finished, and deliveries of a finished job are discarded.
//! - It never gives up on a report, except one that it cannot understand. If the store rejects a flush, the flush is split
//!   in halves until the offending message is alone.
//! - A diverted message that can never reach its pipe, or that the store rejects, fails its task.
#![warn(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_recursion::async_recursion;
use backon::{ExponentialBuilder, Retryable};
use contract::headers::{
    INPUT_HEADER, LABEL_HEADER, REPORT_DETAILS_HEADER, RUN_HEADER, SPLIT_HEADER,
};
use contract::{
    FailedItem, FailedRun, JobTaskId, JobTrackingEvent, ReportDetails, ReportFailure, ReportStatus,
    TaskData, TaskMessage, TrackingReport, TrackingReportTask,
};
use framework::broker::{HeaderValue, Headers, PublishError};
use framework::clock::Clock;
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use framework::health::{Health, Waiting};
use futures_util::future::{OptionFuture, join_all};
use store::{EventKind, Store, StoreError, TrackingEvent};
use tracing::{info, warn};

/// The largest number of messages in a batch.
const MAX_BATCH: usize = 1000;
/// The approximate number of events in one transaction.
const EVENTS: usize = 20_000;
/// The longest message of a failure that is kept, in bytes. A job keeps a hundred, and a list shows those of many jobs.
const LONGEST_MESSAGE: usize = 64 * 1024;
/// The longest kind and the longest source of a failure that are kept, in bytes.
const LONGEST_NAME: usize = 255;
/// The header with the reason why a CAF worker has given up on a message.
const REJECTED_HEADER: &str = "x-caf-worker-rejected";
/// The header with the number of retries of a CAF worker.
const RETRY_HEADER: &str = "x-caf-worker-retry";
/// The first delay before the ledger is written again while the store is unavailable. It doubles up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(50);
/// The longest of these delays.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The degradation of a ledger that is written later, and what reports it.
const LEDGER: &str = "ledger";
const SOURCE: &str = "tracking worker";

/// Counts tracking reports into the ledger.
#[derive(Debug, Clone)]
pub struct TrackingWorker {
    store: Store,
    reports: Arc<AtomicU64>,
    /// The reports, which wait while the ledger cannot be written.
    waiting: Waiting,
}

/// What one message reports.
struct Reported {
    /// The index of the message in its batch.
    index: usize,
    events: Vec<TrackingEvent>,
    /// Why a part of the message could not be understood.
    problem: Option<String>,
}

impl Reported {
    /// Returns why the task of a diverted message fails that cannot be forwarded: because of that, and because it has
    /// failed before.
    fn reason_with(&self, error: &PublishError) -> String {
        match self.events.first().map(|event| &event.kind) {
            Some(EventKind::Failed(ReportFailure {
                failure_message: Some(message),
                ..
            })) => format!("{error}; it reports: {message}"),
            _ => error.to_string(),
        }
    }
}

impl TrackingWorker {
    /// Returns a worker that writes to the ledger of this store.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            reports: Arc::default(),
            waiting: Waiting::new(Health::default(), LEDGER, SOURCE),
        }
    }

    /// Sets what the process can do, to which the worker adds a ledger that cannot be written.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.waiting = Waiting::new(health, LEDGER, SOURCE);
        self
    }

    /// Returns the counter of the reports that this worker has written to the ledger, repeated ones included.
    pub fn reports(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reports)
    }
}

impl BatchHandler for TrackingWorker {
    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    async fn handle(&self, batch: &[Received], publisher: &Publisher) -> Vec<Disposition> {
        // Publish all of them before awaiting the first confirm.
        let forwards: Vec<_> = batch
            .iter()
            .map(|received| {
                received
                    .forwarded()
                    .filter(|_| received.is_diverted())
                    .map(|message| publisher.publish(message))
            })
            .map(OptionFuture::from)
            .collect();
        let mut reported: Vec<Reported> = batch
            .iter()
            .enumerate()
            .map(|(index, received)| read(index, received))
            .collect();
        let mut dispositions: Vec<Disposition> = join_all(forwards)
            .await
            .into_iter()
            .zip(&reported)
            .map(|(forwarded, reported)| match forwarded {
                Some(Err(error)) if error.is_permanent() => {
                    Disposition::Fail(reported.reason_with(&error))
                }
                Some(Err(error)) => Disposition::Redeliver(error.to_string()),
                Some(Ok(())) | None => Disposition::Done(Outputs::default()),
            })
            .collect();
        // A message that could not be forwarded is redelivered, and counted then.
        reported.retain(|reported| matches!(dispositions[reported.index], Disposition::Done(_)));
        let (mut messages, mut events) = (Vec::with_capacity(reported.len()), Vec::new());
        for reported in &mut reported {
            messages.push((reported.index, reported.events.len()));
            events.append(&mut reported.events);
        }
        let (mut rejected, mut rest) = (Vec::new(), &events[..]);
        for group in groups(&messages) {
            let (events, later) = rest.split_at(sum(group));
            rejected.extend(self.record(group, events).await);
            rest = later;
        }
        for reported in reported {
            if let Some(problem) = reported.problem {
                dispositions[reported.index] = Disposition::Invalid(problem);
            }
        }
        for (index, reason) in rejected {
            dispositions[index] = if batch[index].is_diverted() {
                Disposition::Fail(reason)
            } else {
                Disposition::Invalid(reason)
            };
        }
        dispositions
    }

    fn unready_reason(&self) -> Option<String> {
        let outage = self.store.availability().borrow().outage();
        outage.or_else(|| self.waiting.outage())
    }

    /// Redelivers the message, because a report is never given up.
    fn reject_poison(&self, received: &Received) -> Disposition {
        Disposition::Redeliver(format!(
            "processes crashed while they held {}",
            received.message().task_id
        ))
    }
}

impl TrackingWorker {
    /// Commits the events of these messages. Returns the index of each message that the store rejects, and the reason.
    #[async_recursion]
    async fn record(
        &self,
        messages: &[MessageEvents],
        events: &[TrackingEvent],
    ) -> Vec<(usize, String)> {
        if events.is_empty() {
            return Vec::new();
        }
        match self.record_when_available(events).await {
            Ok(()) => Vec::new(),
            Err(error) => match messages {
                [(index, _)] => vec![(*index, error.to_string())],
                many => {
                    warn!(%error, code = error.code().as_str(), messages = many.len(), "the store rejects a flush; it is split in halves");
                    let (first, second) = many.split_at(many.len() / 2);
                    let (of_first, of_second) = events.split_at(sum(first));
                    let mut rejected = self.record(first, of_first).await;
                    rejected.extend(self.record(second, of_second).await);
                    rejected
                }
            },
        }
    }

    /// Commits events and waits as long as the store is unavailable. Any other error is final.
    async fn record_when_available(&self, events: &[TrackingEvent]) -> Result<(), StoreError> {
        let delays = ExponentialBuilder::new()
            .with_min_delay(MIN_DELAY)
            .with_max_delay(MAX_DELAY)
            .without_max_times();
        let work = self.waiting.begin();
        let recorded = (|| self.store.record(events))
            .retry(delays)
            .when(|error| matches!(error, StoreError::Unavailable(_)))
            .notify(|error, delay| {
                // Once per outage.
                if delay == MIN_DELAY {
                    warn!(%error, code = error.code().as_str(), "the ledger cannot be written; the reports are kept and written later");
                }
                work.waits(format!("the ledger cannot be written: {error}"));
            })
            .await;
        drop(work);
        let recorded = recorded?;
        self.reports
            .fetch_add(events.len() as u64, Ordering::Relaxed);
        for (incarnation, status) in recorded.finished {
            info!(job = %format_args!("{}:{}", incarnation.partition, incarnation.job), incarnation = incarnation.number, %status, "a job has ended");
        }
        Ok(())
    }
}

/// A message, by its index in its batch, and how many events it has.
type MessageEvents = (usize, usize);

/// Divides messages into groups of about as many events as belong in one transaction.
fn groups(messages: &[MessageEvents]) -> Vec<&[MessageEvents]> {
    let (mut groups, mut start, mut size) = (Vec::new(), 0, 0);
    for (at, (_, events)) in messages.iter().enumerate() {
        size += events;
        if size >= EVENTS || at + 1 == messages.len() {
            groups.push(&messages[start..=at]);
            (start, size) = (at + 1, 0);
        }
    }
    groups
}

/// Returns how many events these messages have.
fn sum(messages: &[MessageEvents]) -> usize {
    messages.iter().map(|(_, events)| events).sum()
}

/// Reads the events of a message.
fn read(index: usize, received: &Received) -> Reported {
    if received.is_diverted() {
        let event = rejected_event(received).or_else(|| {
            let status = received.diverted_status()?;
            diverted_event(received.message(), received.headers(), status)
        });
        return Reported {
            index,
            events: event.into_iter().collect(),
            problem: None,
        };
    }
    let (mut events, mut problem) = (Vec::new(), None);
    match reports(received.message(), received.headers()) {
        Err(reason) => problem = Some(reason),
        Ok(reports) => {
            events.reserve(reports.len());
            for report in reports {
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
    }
}

/// Reads the reports in a message that is addressed to the tracking worker.
fn reports(message: &TaskMessage, headers: &Headers) -> Result<Vec<TrackingReport>, String> {
    let data = message
        .task_data
        .as_deref()
        .ok_or("the message has no task data")?;
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    match classifier {
        // Checked to be text once. From bytes, the parser would check each of many reports by itself.
        TrackingReportTask::CLASSIFIER => std::str::from_utf8(data)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                serde_json::from_str::<TrackingReportTask>(text).map_err(|error| error.to_string())
            })
            .map(|task| {
                let mut reports = task.tracking_reports;
                if let Some(HeaderValue::Text(details)) = headers.get(REPORT_DETAILS_HEADER) {
                    ReportDetails::add_to(details, &mut reports);
                }
                reports
            }),
        JobTrackingEvent::CLASSIFIER => {
            let event: JobTrackingEvent =
                serde_json::from_slice(data).map_err(|error| error.to_string())?;
            let report = TrackingReport::new(event.job_task_id, ReportStatus::Progress);
            Ok(vec![TrackingReport {
                estimated_percentage_completed: event.estimated_percentage_completed,
                ..report
            }])
        }
        _ => Err(format!(
            "Task of type {classifier} found on queue for {}",
            TrackingReportTask::CLASSIFIER
        )),
    }
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

/// Reads the event of a diverted message from its envelope and its headers. Returns `None` if the job task id is malformed;
/// the message is forwarded all the same.
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
            // As it is: a CAF worker that reports a failure itself also keeps the quotes of a JSON string.
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

/// Reads which item has failed from the headers of its failure, which has the classifier of the task.
fn failed_item(headers: &Headers, classifier: Option<&str>) -> Option<FailedItem> {
    let text = |name| text(headers, name);
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

/// Reads from the headers of a failure which attempt has failed. What cannot be parsed says nothing.
fn failed_run(headers: &Headers) -> Option<FailedRun> {
    let run: FailedRun = serde_json::from_str(&text(headers, RUN_HEADER)?).ok()?;
    Some(run.bounded())
}

fn text(headers: &Headers, name: &str) -> Option<String> {
    match headers.get(name)? {
        HeaderValue::Text(text) => Some(text.clone()),
        HeaderValue::Integer(number) => Some(number.to_string()),
    }
}

/// Reads the event of a message that a CAF worker has given up: it has no task status, and headers with the reason.
fn rejected_event(received: &Received) -> Option<TrackingEvent> {
    let text = |name| text(received.headers(), name);
    let message = received.message();
    let reason = text(REJECTED_HEADER).filter(|_| message.task_status.is_none())?;
    let retries = text(RETRY_HEADER).unwrap_or_else(|| "0".to_owned());
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
    match &message.source_info {
        None => "Unknown - no source info".to_owned(),
        Some(source) => source
            .name
            .clone()
            .unwrap_or_else(|| "Unknown - worker name not set".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use contract::{JobId, JobStatus, PartitionId, TaskStatus, Tracking};
    use framework::broker::memory::Memory;
    use framework::broker::{Broker, Outgoing};
    use framework::handler::REASON_HEADER;
    use framework::{Runtime, Settings};
    use store::JobRequest;
    use tokio_util::sync::CancellationToken;

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
            headers.set(RUN_HEADER, HeaderValue::Text(text));
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
    fn messages_are_grouped_by_their_number_of_events() {
        let messages = [(0, 15_000), (1, 6_000), (2, 1), (5, 0)];
        let sizes: Vec<usize> = groups(&messages).iter().map(|group| group.len()).collect();
        assert_eq!(sizes, [2, 2]);
        assert!(groups(&[]).is_empty());
    }

    /// Runs the worker on a message for a pipe that cannot exist, until it is in the invalid pipe and the job has ended.
    /// Returns the reason there, and the job's failure.
    async fn end_of_undeliverable(change: impl FnOnce(&mut TaskMessage)) -> (String, String) {
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let store = Store::open("memory:").await.unwrap();
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        store
            .create_job(&JobRequest::new(partition.clone(), job.clone()), |_| {
                ("in".to_owned(), Vec::new())
            })
            .await
            .unwrap();
        let to = "x".repeat(256);
        let mut message = TaskMessage::new("t", &to, &contract::BatchTask::default()).unwrap();
        message.tracking = Some(Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            tracking_pipe: Some("tracking".to_owned()),
            track_to: Some(to),
            ..Tracking::default()
        });
        change(&mut message);
        broker
            .publish(Outgoing::new("tracking", message.encode()))
            .await
            .unwrap();
        let settings = Settings {
            input: "tracking".to_owned(),
            ..Settings::new("tracker")
        };
        let service = Runtime::new(settings, Arc::new(broker.clone()))
            .handler(TrackingWorker::new(store.clone()));
        let until_over = async {
            let mut invalid = broker.consume("tracker-invalid", 1).await.unwrap();
            let delivery = invalid.next().await.unwrap();
            let Some(HeaderValue::Text(reason)) = delivery.headers.get(REASON_HEADER).cloned()
            else {
                panic!("{:?}", delivery.headers)
            };
            delivery.ack();
            let changes = store.job_signal(&partition, &job);
            let failure = loop {
                let job = store.job(&partition, &job).await.unwrap().unwrap();
                if job.status.is_finished() {
                    assert_eq!(job.status, JobStatus::Failed);
                    break job.failures[0].failure_message.clone().unwrap();
                }
                changes.changed().await;
            };
            stop.cancel();
            (reason, failure)
        };
        let both = async { tokio::join!(service.run_until(stop.clone()), until_over) };
        let (ended, seen) = tokio::time::timeout(Duration::from_secs(30), both)
            .await
            .unwrap();
        ended.unwrap();
        assert_eq!(broker.depth("tracking").await.unwrap(), 0);
        seen
    }

    #[tokio::test]
    async fn diverted_message_for_a_pipe_that_cannot_exist_fails_its_task() {
        let cannot = "cannot exist: the name has 256 bytes; the limit is 255";
        let (reason, failure) = end_of_undeliverable(|_| {}).await;
        assert!(reason.ends_with(cannot), "{reason}");
        assert_eq!(failure, reason);
        // A task that has failed before keeps its own reason, too.
        let (reason, failure) = end_of_undeliverable(|message| {
            message.task_status = Some(TaskStatus::ResultException);
            message.task_data = Some(b"\"the page is torn\"".to_vec());
        })
        .await;
        assert!(
            reason.ends_with(&format!("{cannot}; it reports: \"the page is torn\"")),
            "{reason}"
        );
        assert_eq!(failure, reason);
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
