//! Knows how far every job is: feeds the ledger with what workers report.
//!
//! A [`BatchHandler`]: it takes what waits, thousands of messages at a time. Two kinds come along:
//! - *tracking reports* of workers whose outputs travel straight to their pipes,
//! - *diverted messages*, which are for somebody else and travel through here to be recorded (reroute).
//!
//! What must stay true:
//! - It forwards first, waits for the confirms, then commits the ledger, then settles: from the moment a task is counted
//!   its job may be finished, and whatever of a finished job comes again is discarded.
//! - It never gives up on a report, except one that cannot be understood. A flush that the store refuses for a reason of
//!   its own is halved until the guilty message stands alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_recursion::async_recursion;
use contract::{
    JobTaskId, JobTrackingEvent, ReportFailure, ReportStatus, TaskData, TaskMessage,
    TrackingReport, TrackingReportTask,
};
use framework::broker::HeaderValue;
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use futures_util::future::{OptionFuture, join_all};
use store::{Availability, EventKind, Store, StoreError, TrackingEvent};
use tracing::{info, warn};

/// Messages at a time.
const LIMIT: usize = 1000;
/// Events in one transaction, about.
const EVENTS: usize = 20_000;
/// Why a worker of CAF's has given a message up, and how often it had been tried by then.
const REJECTED_HEADER: &str = "x-caf-worker-rejected";
const RETRY_HEADER: &str = "x-caf-worker-retry";
/// Between attempts to reach the store.
const DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The collector of tracking reports.
#[derive(Debug, Clone)]
pub struct TrackingWorker {
    store: Store,
    reports: Arc<AtomicU64>,
}

/// What one arrival tells.
struct Told {
    /// Its place among the arrivals.
    place: usize,
    events: Vec<TrackingEvent>,
    /// Parts of it that could not be understood.
    flaw: Option<String>,
}

impl TrackingWorker {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            reports: Arc::default(),
        }
    }

    /// How many reports this worker has counted in, repeated ones included.
    pub fn reports(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reports)
    }
}

impl BatchHandler for TrackingWorker {
    fn max_batch(&self) -> usize {
        LIMIT
    }

    async fn handle(&self, arrivals: &[Received], courier: &Publisher) -> Vec<Disposition> {
        // All are on their way before the first confirm is awaited.
        let forwards: Vec<_> = arrivals
            .iter()
            .map(|arrival| {
                arrival
                    .forwarded()
                    .filter(|_| arrival.is_diverted())
                    .map(|message| courier.publish(message))
            })
            .map(OptionFuture::from)
            .collect();
        let mut told: Vec<Told> = arrivals
            .iter()
            .enumerate()
            .map(|(place, arrival)| listen(place, arrival))
            .collect();
        let mut verdicts: Vec<Disposition> = join_all(forwards)
            .await
            .into_iter()
            .map(|forwarded| match forwarded {
                Some(Err(error)) => Disposition::Redeliver(error.to_string()),
                Some(Ok(())) | None => Disposition::Done(Outputs::default()),
            })
            .collect();
        // What could not be forwarded comes again, and is counted then.
        told.retain(|told| matches!(verdicts[told.place], Disposition::Done(_)));
        let mut guilty = Vec::new();
        for group in groups(&told) {
            guilty.extend(self.record(group).await);
        }
        for told in told {
            if let Some(flaw) = told.flaw {
                verdicts[told.place] = Disposition::Invalid(flaw);
            }
        }
        for (place, reason) in guilty {
            verdicts[place] = Disposition::Invalid(reason);
        }
        verdicts
    }

    fn unready_reason(&self) -> Option<String> {
        match &*self.store.availability().borrow() {
            Availability::Available => None,
            Availability::Unavailable(reason) => {
                Some(format!("the database is not available: {reason}"))
            }
            Availability::Unusable(error) => Some(error.to_string()),
        }
    }

    /// A report is never given up, whatever died while it was there.
    fn reject_poison(&self, arrival: &Received) -> Disposition {
        Disposition::Redeliver(format!(
            "processes have died while they had {}",
            arrival.message().task_id
        ))
    }
}

impl TrackingWorker {
    /// Commits what these messages tell; answers which of them the store refuses, and why.
    #[async_recursion]
    async fn record(&self, told: &[Told]) -> Vec<(usize, String)> {
        let events: Vec<TrackingEvent> = told
            .iter()
            .flat_map(|told| told.events.iter().cloned())
            .collect();
        if events.is_empty() {
            return Vec::new();
        }
        match self.record_when_possible(&events).await {
            Ok(()) => Vec::new(),
            Err(reason) => match told {
                [alone] => vec![(alone.place, reason)],
                many => {
                    warn!(
                        reason,
                        messages = many.len(),
                        "the store refuses a flush; it is halved"
                    );
                    let (first, second) = many.split_at(many.len() / 2);
                    let mut guilty = self.record(first).await;
                    guilty.extend(self.record(second).await);
                    guilty
                }
            },
        }
    }

    /// Waits for the store as long as it takes. An error is the store's own, and final.
    async fn record_when_possible(&self, events: &[TrackingEvent]) -> Result<(), String> {
        let mut delay = DELAYS.0;
        loop {
            match self.store.record(events).await {
                Ok(recorded) => {
                    self.reports
                        .fetch_add(events.len() as u64, Ordering::Relaxed);
                    for (life, status) in recorded.finished {
                        info!(partition = %life.partition, job = %life.job, incarnation = life.number, %status, "a job has ended");
                    }
                    return Ok(());
                }
                Err(StoreError::Unavailable(reason)) => {
                    if delay == DELAYS.0 {
                        warn!(
                            %reason,
                            "the ledger cannot be written; the reports are kept and tried again until it can"
                        );
                    }
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(DELAYS.1);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Messages whose events together are about as many as one transaction should have.
fn groups(told: &[Told]) -> Vec<&[Told]> {
    let (mut groups, mut start, mut size) = (Vec::new(), 0, 0);
    for (place, one) in told.iter().enumerate() {
        size += one.events.len();
        if size >= EVENTS || place + 1 == told.len() {
            groups.push(&told[start..=place]);
            (start, size) = (place + 1, 0);
        }
    }
    groups
}

/// What an arrival tells about tasks.
fn listen(place: usize, arrival: &Received) -> Told {
    if arrival.is_diverted() {
        let events = match rejected(arrival) {
            Some(rejected) => Some(rejected),
            None => arrival
                .diverted_status()
                .and_then(|status| diverted_event(arrival.message(), status)),
        };
        return Told {
            place,
            events: events.into_iter().collect(),
            flaw: None,
        };
    }
    match reports(arrival.message()) {
        Err(flaw) => Told {
            place,
            events: Vec::new(),
            flaw: Some(flaw),
        },
        Ok(reports) => {
            let (mut events, mut flaw) = (Vec::with_capacity(reports.len()), None);
            for report in reports {
                match event(report) {
                    Ok(event) => events.push(event),
                    Err(reason) => flaw = Some(reason),
                }
            }
            Told {
                place,
                events,
                flaw,
            }
        }
    }
}

/// The reports in a message to the tracking worker itself.
fn reports(message: &TaskMessage) -> Result<Vec<TrackingReport>, String> {
    let data = message
        .task_data
        .as_deref()
        .ok_or("the message has no task data")?;
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    match classifier {
        TrackingReportTask::CLASSIFIER => serde_json::from_slice::<TrackingReportTask>(data)
            .map(|task| task.tracking_reports)
            .map_err(|error| error.to_string()),
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
        ReportStatus::Failed => EventKind::Failed(report.failure.unwrap_or_default()),
        ReportStatus::Retry => EventKind::Retry {
            attempts: report.retries,
            failure: report.failure,
        },
        ReportStatus::Progress => EventKind::Progress(
            u8::try_from(report.estimated_percentage_completed.clamp(0, 100)).unwrap_or(0),
        ),
    };
    Ok(TrackingEvent { task, kind })
}

/// What a diverted message tells by its envelope. An id that is no id is nobody's task; the message goes on all the same.
fn diverted_event(message: &TaskMessage, status: ReportStatus) -> Option<TrackingEvent> {
    let id = message.job_task_id()?;
    let task = JobTaskId::parse(id)
        .inspect_err(|error| warn!(%error, "a diverted message cannot be tracked"))
        .ok()?;
    let kind = match status {
        ReportStatus::Failed => EventKind::Failed(ReportFailure {
            failure_id: message.task_status.map(|status| status.name().to_owned()),
            // The envelope does not tell when; it has just come.
            failure_time: Some(now_millis()),
            failure_source: Some(source_of(message)),
            failure_message: message.task_data.as_deref().map(reason_of),
        }),
        _ => EventKind::Complete,
    };
    Some(TrackingEvent { task, kind })
}

/// A message without a status that a worker of CAF's has given up: its headers say why.
fn rejected(arrival: &Received) -> Option<TrackingEvent> {
    let text = |name| match arrival.headers().get(name)? {
        HeaderValue::Text(text) => Some(text.clone()),
        HeaderValue::Integer(number) => Some(number.to_string()),
    };
    let message = arrival.message();
    let reason = text(REJECTED_HEADER).filter(|_| message.task_status.is_none())?;
    let retries = text(RETRY_HEADER).unwrap_or_else(|| "0".to_owned());
    let task = JobTaskId::parse(message.job_task_id()?).ok()?;
    let failure = ReportFailure {
        failure_id: Some(REJECTED_HEADER.to_owned()),
        failure_time: Some(now_millis()),
        failure_source: Some(source_of(message)),
        failure_message: Some(format!(
            "{reason}. Execution of this job task was retried {retries} times."
        )),
    };
    Some(TrackingEvent {
        task,
        kind: EventKind::Failed(failure),
    })
}

/// Milliseconds since 1970, UTC.
fn now_millis() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
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

/// The reason of a failure is the task data: plain text, or text as a JSON string.
fn reason_of(data: &[u8]) -> String {
    serde_json::from_slice::<String>(data)
        .unwrap_or_else(|_| String::from_utf8_lossy(data).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_plain_text_however_it_was_written() {
        assert_eq!(reason_of(br#""class X boom""#), "class X boom");
        assert_eq!(
            reason_of(b"Task failed validation"),
            "Task failed validation"
        );
    }

    #[test]
    fn messages_are_grouped_by_the_number_of_their_events() {
        let event = TrackingEvent {
            task: JobTaskId::parse("p:j.1").unwrap(),
            kind: EventKind::Complete,
        };
        let told: Vec<Told> = [15_000, 6_000, 1, 0]
            .iter()
            .enumerate()
            .map(|(place, n)| Told {
                place,
                events: vec![event.clone(); *n],
                flaw: None,
            })
            .collect();
        let sizes: Vec<usize> = groups(&told).iter().map(|group| group.len()).collect();
        assert_eq!(sizes, [2, 2]);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn what_is_no_report_is_named() {
        let message = TaskMessage::new("t", "in", &contract::BatchTask::default()).unwrap();
        assert_eq!(
            reports(&message).unwrap_err(),
            "Task of type BatchWorker found on queue for TrackingReportTask"
        );
    }
}
