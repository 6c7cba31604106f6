//! Collects the reports of many deliveries and sends them to the tracking pipe in one message.
//!
//! The buffer sends its reports when it holds 500 of them, after 20 ms, or as soon as every open delivery waits for its
//! reports, whichever comes first. So batching never delays a process that has nothing else to do. A delivery is
//! settled only after the message with its reports is confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::headers::REPORT_DETAILS_HEADER;
use contract::{ReportDetails, TaskMessage, TrackingReport, TrackingReportTask};
use futures_util::future::{Either, try_join_all};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Broker, HeaderValue, Outgoing, PublishError};
use crate::health::Health;
use crate::steps::output::new_message;
use crate::supervision::supervise;
use crate::trace::TraceContext;

/// The largest number of reports in one message.
const MAX_REPORTS: usize = 500;
/// How many bytes of ids and failure reasons one message takes. Escaped and encoded they may be eight times as many, which is
/// far below what a broker takes.
const MAX_TEXT_BYTES: usize = 512 * 1024;
/// The longest time that a report waits for others.
const MAX_DELAY: Duration = Duration::from_millis(20);

/// Counts the deliveries that this runtime has received and not settled yet.
#[derive(Debug, Default)]
pub(crate) struct OpenDeliveries {
    count: AtomicUsize,
    decreased: Notify,
}

impl OpenDeliveries {
    pub fn add(&self, n: usize) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns a guard that removes these deliveries, however their processing ends.
    pub fn until_done(&self, n: usize) -> impl Drop {
        struct Done<'a>(&'a OpenDeliveries, usize);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.remove(self.1);
            }
        }
        Done(self, n)
    }

    pub fn remove(&self, n: usize) {
        self.count.fetch_sub(n, Ordering::Relaxed);
        self.decreased.notify_one();
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// The reports of one delivery, all for the same tracking pipe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reports {
    pub pipe: Arc<str>,
    pub correlation_id: Option<String>,
    /// The span that they are about.
    pub trace: Option<TraceContext>,
    pub list: Vec<TrackingReport>,
}

/// A handle to the buffer. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReportBuffer(mpsc::UnboundedSender<Entry>);

#[derive(Debug)]
struct Entry {
    reports: Reports,
    /// Set if an open delivery waits for the confirm.
    waiting: Option<oneshot::Sender<Result<(), PublishError>>>,
}

impl ReportBuffer {
    /// Starts the buffer's loop, which ends when the last handle is dropped and every report has been sent.
    pub fn start(
        broker: Arc<dyn Broker>,
        open: Arc<OpenDeliveries>,
        tasks: &TaskTracker,
        health: Health,
        name: String,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let buffer = Mutex::new(Buffer {
            broker,
            open,
            in_flight: Arc::default(),
            entries: receiver,
            batch: Batch::default(),
            tasks: tasks.clone(),
        });
        let never = CancellationToken::new();
        tasks.spawn(async move {
            supervise(&health, &name, &never, || async {
                buffer.lock().await.run().await;
            })
            .await
        });
        Self(sender)
    }

    /// Sends reports with the next message and waits for its confirm.
    pub async fn send(&self, reports: Reports) -> Result<(), PublishError> {
        let (sender, receiver) = oneshot::channel();
        let pipe = Arc::clone(&reports.pipe);
        self.0
            .send(Entry {
                reports,
                waiting: Some(sender),
            })
            .map_err(|_| PublishError::Closed)?;
        receiver.await.unwrap_or_else(|_| {
            Err(if self.0.is_closed() {
                PublishError::Closed
            } else {
                PublishError::refused(&*pipe, "sending the reports has panicked")
            })
        })
    }

    /// Sends reports with the next message without waiting for its confirm.
    pub fn send_later(&self, reports: Reports) {
        // The buffer is gone only when the runtime has stopped; then the delivery comes again.
        let _ = self.0.send(Entry {
            reports,
            waiting: None,
        });
    }
}

/// The entries of the next messages.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    /// The number of reports in these entries.
    size: usize,
    /// The number of these entries that a delivery waits for.
    waiting: usize,
}

impl Batch {
    fn push(&mut self, entry: Entry) {
        self.size += entry.reports.list.len();
        self.waiting += usize::from(entry.waiting.is_some());
        self.entries.push(entry);
    }
}

struct Buffer {
    broker: Arc<dyn Broker>,
    open: Arc<OpenDeliveries>,
    /// The number of deliveries whose reports are published and not confirmed.
    in_flight: Arc<AtomicUsize>,
    entries: mpsc::UnboundedReceiver<Entry>,
    /// The batch that is being gathered. It outlives a panic of the loop.
    batch: Batch,
    tasks: TaskTracker,
}

impl Buffer {
    async fn run(&mut self) {
        while !self.batch.entries.is_empty() || self.receive().await {
            self.gather().await;
            let batch = std::mem::take(&mut self.batch);
            self.send(batch.entries);
        }
    }

    /// Waits for the first entry of a batch. Returns false if there will be none.
    async fn receive(&mut self) -> bool {
        let first = self.entries.recv().await;
        first.map(|first| self.batch.push(first)).is_some()
    }

    async fn gather(&mut self) {
        let deadline = Instant::now() + MAX_DELAY;
        let batch = &mut self.batch;
        // Deliveries end in bursts. Let the other tasks of the burst add their reports first.
        tokio::task::yield_now().await;
        loop {
            while batch.size < MAX_REPORTS
                && let Ok(entry) = self.entries.try_recv()
            {
                batch.push(entry);
            }
            if batch.size >= MAX_REPORTS
                || batch.waiting + self.in_flight.load(Ordering::Relaxed) >= self.open.count()
            {
                return;
            }
            tokio::select! {
                entry = self.entries.recv() => match entry {
                    Some(entry) => batch.push(entry),
                    None => return,
                },
                () = self.open.decreased.notified() => {}
                () = tokio::time::sleep_until(deadline) => return,
            }
        }
    }

    /// Publishes a batch, and passes the confirms on to the waiting deliveries.
    fn send(&self, batch: Vec<Entry>) {
        let mut by_pipe: BTreeMap<Arc<str>, Vec<Entry>> = BTreeMap::new();
        for entry in batch {
            by_pipe
                .entry(Arc::clone(&entry.reports.pipe))
                .or_default()
                .push(entry);
        }
        for (pipe, entries) in by_pipe {
            for entries in groups(entries) {
                self.send_group(&pipe, entries);
            }
        }
    }

    /// Publishes the reports of a group in one message. A single delivery may have more than fit into one.
    fn send_group(&self, pipe: &Arc<str>, mut entries: Vec<Entry>) {
        // A message has one context: that of the first span that it reports about.
        let trace = entries.iter().find_map(|entry| entry.reports.trace.clone());
        let (correlation_id, mut reports) = merge(&mut entries);
        let mut confirms = Vec::with_capacity(1);
        while !reports.is_empty() {
            let rest = reports.split_off(fitting(&reports));
            let details = ReportDetails::of(&reports);
            let message = report_message(
                pipe,
                correlation_id.clone(),
                std::mem::replace(&mut reports, rest),
            );
            let mut message = Outgoing::new(Arc::clone(pipe), message.encode());
            if let Some(trace) = &trace {
                trace.set_on(&mut message.headers);
            }
            confirms.push(publish(Arc::clone(&self.broker), message, details));
        }
        let waiting: Vec<_> = entries
            .into_iter()
            .filter_map(|entry| entry.waiting)
            .collect();
        let (in_flight, count) = (Arc::clone(&self.in_flight), waiting.len());
        in_flight.fetch_add(count, Ordering::Relaxed);
        self.tasks.spawn(async move {
            let confirmed = try_join_all(confirms).await.map(drop);
            in_flight.fetch_sub(count, Ordering::Relaxed);
            for waiting in waiting {
                // A delivery that no longer waits was dropped at shutdown.
                let _ = waiting.send(confirmed.clone());
            }
        });
    }
}

/// Publishes a message of reports with their details. A report counts also where the broker takes no headers of this size:
/// then it goes without details.
fn publish(
    broker: Arc<dyn Broker>,
    mut message: Outgoing,
    details: Option<String>,
) -> impl Future<Output = Result<(), PublishError>> {
    let Some(details) = details else {
        return Either::Left(broker.publish(message));
    };
    let without = message.clone();
    message
        .headers
        .set(REPORT_DETAILS_HEADER, HeaderValue::Text(details));
    // Published now, not when the confirm is awaited.
    let confirm = broker.publish(message);
    Either::Right(async move {
        match confirm.await {
            Err(PublishError::Unacceptable { .. }) => broker.publish(without).await,
            confirmed => confirmed,
        }
    })
}

/// How much of a message some reports take.
#[derive(Clone, Copy, Default)]
struct Size {
    reports: usize,
    /// The bytes of ids and reasons, which may be of any length.
    text: usize,
    /// The bytes of the details, which travel in a header.
    details: usize,
}

impl Size {
    fn of(reports: &[TrackingReport]) -> Self {
        let text = |report: &TrackingReport| {
            let failure = report.failure.as_ref();
            let reason = failure.and_then(|failure| failure.failure_message.as_deref());
            report.job_task_id.len() + reason.map_or(0, str::len)
        };
        Self {
            reports: reports.len(),
            text: reports.iter().map(text).sum(),
            details: reports.iter().map(ReportDetails::bytes_of).sum(),
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            reports: self.reports + other.reports,
            text: self.text + other.text,
            details: self.details + other.details,
        }
    }

    const fn fits(self) -> bool {
        self.reports <= MAX_REPORTS
            && self.text <= MAX_TEXT_BYTES
            && self.details <= ReportDetails::MAX_BYTES
    }
}

/// Divides entries into groups for one message each. Deliveries that share a message share its fate, so one whose reports
/// fill a message shares none: the broker may never take it.
fn groups(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut groups = Vec::with_capacity(1);
    let (mut group, mut size) = (Vec::with_capacity(entries.len()), Size::default());
    for entry in entries {
        let with_entry = size.plus(Size::of(&entry.reports.list));
        if with_entry.fits() || group.is_empty() {
            size = with_entry;
        } else {
            groups.push(std::mem::take(&mut group));
            size = Size::of(&entry.reports.list);
        }
        group.push(entry);
    }
    groups.push(group);
    groups
}

/// Takes the reports out of these entries. Returns their correlation id, if they all have the same, and the reports.
fn merge(entries: &mut [Entry]) -> (Option<String>, Vec<TrackingReport>) {
    let correlation_id = entries
        .first()
        .and_then(|entry| entry.reports.correlation_id.clone());
    let same = entries
        .iter()
        .all(|entry| entry.reports.correlation_id == correlation_id);
    let reports = entries
        .iter_mut()
        .flat_map(|entry| std::mem::take(&mut entry.reports.list))
        .collect();
    (correlation_id.filter(|_| same), reports)
}

/// Returns how many of these reports, at least one, go into the next message.
fn fitting(reports: &[TrackingReport]) -> usize {
    let mut size = Size::default();
    let fits = |report: &&TrackingReport| {
        size = size.plus(Size::of(std::slice::from_ref(*report)));
        size.fits()
    };
    let count = reports.iter().take_while(fits).count();
    count.max(1).min(reports.len())
}

fn report_message(
    pipe: &str,
    correlation_id: Option<String>,
    tracking_reports: Vec<TrackingReport>,
) -> TaskMessage {
    let task = TrackingReportTask { tracking_reports };
    let id = uuid::Uuid::new_v4().to_string();
    let data = serde_json::to_vec(&task).unwrap_or_default();
    TaskMessage {
        correlation_id,
        ..new_message::<TrackingReportTask>(id, pipe, data)
    }
}

#[cfg(test)]
mod tests {
    use contract::{FailedItem, ReportFailure, ReportStatus};

    use super::*;

    #[test]
    fn message_has_a_limited_number_of_reports_and_of_bytes() {
        let failed = |bytes: usize| TrackingReport {
            failure: Some(ReportFailure {
                // Takes six bytes each in JSON.
                failure_message: Some("\u{1}".repeat(bytes)),
                ..ReportFailure::default()
            }),
            ..TrackingReport::new("p:j.1", ReportStatus::Failed)
        };
        let long = vec![failed(8 * 1024); 600];
        assert_eq!(fitting(&long), 63);
        assert!(
            report_message("tracking", None, long[..63].to_vec())
                .encode()
                .len()
                < 5_000_000
        );
        assert_eq!(fitting(&vec![failed(1); 600]), 500);
        assert_eq!(fitting(&[failed(1_000_000), failed(1)]), 1);
        assert_eq!(fitting(&[]), 0);
    }

    #[test]
    fn header_of_details_fits_into_a_frame_of_every_broker() {
        let failed = |input: &str| TrackingReport {
            failure: Some(ReportFailure {
                item: Some(FailedItem::new(Some(input), input.as_bytes())),
                ..ReportFailure::default()
            }),
            ..TrackingReport::new("p:j.1", ReportStatus::Failed)
        };
        // Takes six bytes each in JSON.
        for input in ["x", "\u{1}"] {
            let failed = vec![failed(&input.repeat(5000)); 600];
            let fitting = fitting(&failed);
            let details = ReportDetails::of(&failed[..fitting]).unwrap();
            let limit = ReportDetails::MAX_BYTES;
            assert!(
                (limit * 3 / 4..=limit).contains(&details.len()),
                "{input:?}: {}",
                details.len()
            );
        }
        let complete = vec![TrackingReport::new("p:j.1", ReportStatus::Complete); 600];
        assert_eq!(ReportDetails::of(&complete), None);
        assert_eq!(fitting(&complete), 500);
    }
}
