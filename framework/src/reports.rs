//! The report buffer: reports wait for company, but never make anyone wait.
//!
//! One message to the tracking pipe carries the reports of many deliveries. The buffer is sent when it is full, after
//! 20 ms, or as soon as every open delivery of the process waits for it. A delivery is told when the message with its
//! reports is confirmed; only then is it settled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::{TaskMessage, TrackingReport, TrackingReportTask};
use futures_util::future::try_join_all;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::broker::{Broker, Outgoing, PublishError};

/// Reports in one message.
const FULL: usize = 500;
/// The longest that a report waits for company.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many deliveries this process has taken and not settled yet.
#[derive(Debug, Default)]
pub(crate) struct OpenDeliveries {
    count: AtomicUsize,
    fewer: Notify,
}

impl OpenDeliveries {
    pub fn add(&self, n: usize) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    pub fn remove(&self, n: usize) {
        self.count.fetch_sub(n, Ordering::Relaxed);
        self.fewer.notify_one();
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// The reports that a delivery causes, all for one tracking pipe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reports {
    pub pipe: Arc<str>,
    pub correlation_id: Option<String>,
    pub list: Vec<TrackingReport>,
}

/// The way into the buffer. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReportBuffer(mpsc::UnboundedSender<Entry>);

#[derive(Debug)]
struct Entry {
    reports: Reports,
    /// Somebody waits with an open delivery.
    waiting: Option<oneshot::Sender<Result<(), PublishError>>>,
}

impl ReportBuffer {
    /// The buffer's task ends when the last handle is dropped and everything has been sent.
    pub fn start(broker: Arc<dyn Broker>, open: Arc<OpenDeliveries>, tasks: &TaskTracker) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let buffer = Buffer {
            broker,
            open,
            in_flight: Arc::default(),
            entries: receiver,
            tasks: tasks.clone(),
        };
        tasks.spawn(buffer.run());
        Self(sender)
    }

    /// Sends reports with the next message; answers when it is confirmed.
    pub async fn send(&self, reports: Reports) -> Result<(), PublishError> {
        let (sender, receiver) = oneshot::channel();
        self.0
            .send(Entry {
                reports,
                waiting: Some(sender),
            })
            .map_err(|_| PublishError::Closed)?;
        receiver.await.unwrap_or(Err(PublishError::Closed))
    }

    /// Sends a report that nobody needs to wait for.
    pub fn announce(&self, reports: Reports) {
        // Without a buffer the process is going down, and the delivery will come again.
        let _ = self.0.send(Entry {
            reports,
            waiting: None,
        });
    }
}

/// What has been gathered.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    /// How many reports that are, and of how many entries somebody waits.
    size: usize,
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
    /// Deliveries whose reports are sent and not confirmed.
    in_flight: Arc<AtomicUsize>,
    entries: mpsc::UnboundedReceiver<Entry>,
    tasks: TaskTracker,
}

impl Buffer {
    async fn run(mut self) {
        while let Some(first) = self.entries.recv().await {
            let batch = self.gather(first).await;
            self.send(batch);
        }
    }

    async fn gather(&mut self, first: Entry) -> Vec<Entry> {
        let deadline = Instant::now() + PATIENCE;
        let mut batch = Batch::default();
        batch.push(first);
        // Whoever is about to report gets a turn first: deliveries come in bursts.
        tokio::task::yield_now().await;
        loop {
            while batch.size < FULL
                && let Ok(entry) = self.entries.try_recv()
            {
                batch.push(entry);
            }
            if batch.size >= FULL
                || batch.waiting + self.in_flight.load(Ordering::Relaxed) >= self.open.count()
            {
                return batch.entries;
            }
            tokio::select! {
                entry = self.entries.recv() => match entry {
                    Some(entry) => batch.push(entry),
                    None => return batch.entries,
                },
                () = self.open.fewer.notified() => {}
                () = tokio::time::sleep_until(deadline) => return batch.entries,
            }
        }
    }

    /// Publishes a batch, one message a tracking pipe, and tells everyone when it is confirmed.
    fn send(&self, batch: Vec<Entry>) {
        let mut by_pipe: BTreeMap<Arc<str>, Vec<Entry>> = BTreeMap::new();
        for entry in batch {
            by_pipe
                .entry(Arc::clone(&entry.reports.pipe))
                .or_default()
                .push(entry);
        }
        for (pipe, mut entries) in by_pipe {
            let (correlation_id, mut reports) = merge(&mut entries);
            let mut confirms = Vec::with_capacity(1);
            // A task may have caused more reports than one message should have.
            while !reports.is_empty() {
                let rest = reports.split_off(reports.len().min(FULL));
                let message = report_message(
                    &pipe,
                    correlation_id.clone(),
                    std::mem::replace(&mut reports, rest),
                );
                confirms.push(
                    self.broker
                        .publish(Outgoing::new(Arc::clone(&pipe), message.encode())),
                );
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
                    // One that no longer waits has been given up by the shutdown.
                    let _ = waiting.send(confirmed.clone());
                }
            });
        }
    }
}

/// All reports of these entries, and their correlation id where they have one in common.
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
        ..crate::answer::new_message::<TrackingReportTask>(id, pipe, data)
    }
}
