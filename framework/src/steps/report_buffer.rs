//! Collects the reports of many deliveries and sends them to the tracking pipe in one message.
//!
//! The buffer sends its reports when it holds 500 of them, after 20 ms, or as soon as every open
//! delivery waits for its reports, whichever comes first. So batching never delays a process that
//! has nothing else to do, with one exception: shortly after another message, the reports of a few
//! deliveries wait until [`PACE`] has passed. Otherwise a process that is faster than the broker
//! sends many small messages. A delivery is settled only after the message with its reports is
//! confirmed.
//!
//! Reports have CAF's form, or go as [`GatheredReports`] to a pipe beside the tracking pipe while
//! somebody reads that.
//!
//! What must stay true: gathered reports that the broker does not take are sent again in CAF's
//! form.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::headers::{GATHERED_HEADER, REPORT_DETAILS_HEADER};
use contract::{
    GatheredReports, ReportDetails, TaskData, TaskMessage, TrackingReport, TrackingReportTask,
    reports_pipe,
};
use futures_util::future::{Either, try_join_all};
use serde::Serialize;
use smol_str::SmolStr;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::broker::{Broker, HeaderValue, Outgoing, PublishError};
use crate::current::CurrentMessage;
use crate::health::Health;
use crate::steps::bundles::readers::PipeReaders;
use crate::steps::open_deliveries::OpenDeliveries;
use crate::steps::output::{new_message, tracking_pipe};
use crate::supervision::supervise;

/// The largest number of reports in one message.
const MAX_REPORTS: usize = 500;
/// How many bytes of ids and failure reasons one message takes. Escaped and encoded they may be
/// eight times as many, which is far below what a broker takes.
const MAX_TEXT_BYTES: usize = 512 * 1024;
/// The longest time that a report waits for others.
const MAX_DELAY: Duration = Duration::from_millis(20);
/// The pause before the broker is asked again to take what splits announce, and how often that is
/// done.
const PAUSE: Duration = Duration::from_secs(1);
const MOST_ANNOUNCEMENTS: u32 = 600;
/// The shortest time between two messages with the reports of few deliveries
/// ([`OpenDeliveries::few`]).
const PACE: Duration = Duration::from_millis(5);

/// The reports that a message causes, all for the same tracking pipe.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    pub pipe: Arc<str>,
    /// That of the message. The message itself is not kept until the confirm: that would be most of
    /// what a delivery takes in memory.
    pub correlation_id: Option<SmolStr>,
    /// The message, if it is part of a trace. Its span ends with it.
    pub traced: Option<Arc<CurrentMessage>>,
    pub list: Vec<TrackingReport>,
}

impl Reports {
    /// Returns these reports, or `None` if there are none or the message is not tracked.
    pub fn of(about: &Arc<CurrentMessage>, list: Vec<TrackingReport>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        Some(Self {
            pipe: tracking_pipe(about)?,
            correlation_id: about.correlation_id.clone(),
            traced: about.span.context().map(|_| Arc::clone(about)),
            list,
        })
    }
}

/// A delivery that is settled when its reports are confirmed. It comes again if it is dropped.
pub(crate) trait AwaitsConfirm: Send {
    /// Settles it.
    fn confirmed(self: Box<Self>);

    /// Handles it and its reports, which the broker has not taken. Must not block.
    fn unconfirmed(self: Box<Self>, reports: Reports, error: PublishError);
}

/// A handle to the buffer. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReportBuffer(mpsc::UnboundedSender<Entry>);

struct Entry {
    reports: Reports,
    waiting: Waiting,
}

/// What waits for the confirm of reports.
enum Waiting {
    Nothing,
    Delivery(Box<dyn AwaitsConfirm>),
    /// A task that has a delivery.
    Task(oneshot::Sender<Result<(), PublishError>>),
}

impl ReportBuffer {
    /// Starts the buffer's loop, which ends when the last handle is dropped and every report has
    /// been sent. When `abort` is cancelled, the buffer drops the deliveries whose reports are not
    /// confirmed.
    pub fn start(
        broker: Arc<dyn Broker>,
        open: Arc<OpenDeliveries>,
        (tasks, abort): (&TaskTracker, &CancellationToken),
        health: Health,
        name: String,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let buffer = Mutex::new(Buffer {
            broker,
            readers: Arc::new(PipeReaders::of_pipes()),
            open,
            in_flight: Arc::default(),
            entries: receiver,
            batch: Batch::default(),
            sent: None,
            tasks: tasks.clone(),
            abort: abort.clone(),
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

    /// Sends reports with the next message. The delivery is settled when it is confirmed.
    pub fn send_for(&self, reports: Reports, delivery: Box<dyn AwaitsConfirm>) {
        self.add(reports, Waiting::Delivery(delivery));
    }

    /// Sends reports with the next message and waits for its confirm.
    pub async fn send(&self, reports: Reports) -> Result<(), PublishError> {
        let (sender, receiver) = oneshot::channel();
        let pipe = Arc::clone(&reports.pipe);
        self.add(reports, Waiting::Task(sender));
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
        self.add(reports, Waiting::Nothing);
    }

    fn add(&self, reports: Reports, waiting: Waiting) {
        // The buffer is gone only when the runtime has stopped; then the delivery comes again.
        let _ = self.0.send(Entry { reports, waiting });
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
        self.waiting += usize::from(entry.waiting.is_delivery());
        self.entries.push(entry);
    }
}

struct Buffer {
    broker: Arc<dyn Broker>,
    /// Who reads gathered reports.
    readers: Arc<PipeReaders>,
    open: Arc<OpenDeliveries>,
    /// The number of deliveries whose reports are published and not confirmed.
    in_flight: Arc<AtomicUsize>,
    entries: mpsc::UnboundedReceiver<Entry>,
    /// The batch that is being gathered. It outlives a panic of the loop.
    batch: Batch,
    /// When the last one was sent.
    sent: Option<Instant>,
    tasks: TaskTracker,
    abort: CancellationToken,
}

impl Buffer {
    async fn run(&mut self) {
        while !self.batch.entries.is_empty() || self.receive().await {
            self.gather().await;
            let batch = std::mem::take(&mut self.batch);
            self.sent = Some(Instant::now());
            self.send(batch.entries);
        }
    }

    /// Waits for the first entry of a batch. Returns false if there will be none.
    async fn receive(&mut self) -> bool {
        let first = self.entries.recv().await;
        first.map(|first| self.batch.push(first)).is_some()
    }

    async fn gather(&mut self) {
        let begun = Instant::now();
        let deadline = begun + MAX_DELAY;
        let paced = self.sent.map_or(begun, |sent| sent + PACE);
        let batch = &mut self.batch;
        // Deliveries end in bursts. Let the other tasks of the burst add their reports first.
        tokio::task::yield_now().await;
        loop {
            while batch.size < MAX_REPORTS
                && let Ok(entry) = self.entries.try_recv()
            {
                batch.push(entry);
            }
            if batch.size >= MAX_REPORTS {
                return;
            }
            let all_wait =
                batch.waiting + self.in_flight.load(Ordering::Relaxed) >= self.open.count();
            if all_wait && (Instant::now() >= paced || batch.waiting >= self.open.few()) {
                return;
            }
            tokio::select! {
                entry = self.entries.recv() => match entry {
                    Some(entry) => batch.push(entry),
                    None => return,
                },
                () = self.open.decreased() => {}
                () = tokio::time::sleep_until(paced), if all_wait => {}
                () = tokio::time::sleep_until(deadline) => return,
            }
        }
    }

    /// Publishes a batch, and settles its deliveries when it is confirmed.
    fn send(&self, batch: Vec<Entry>) {
        let mut by_pipe: BTreeMap<Arc<str>, Vec<Entry>> = BTreeMap::new();
        for entry in batch {
            by_pipe
                .entry(Arc::clone(&entry.reports.pipe))
                .or_default()
                .push(entry);
        }
        for (pipe, entries) in by_pipe {
            let form = self.form(pipe);
            for entries in groups(entries) {
                self.send_group(&form, entries);
            }
        }
    }

    /// Returns how reports for this tracking pipe are sent now.
    fn form(&self, tracking: Arc<str>) -> Form {
        let is_read = |pipe: &String| self.readers.lately(pipe, &self.broker, &self.tasks);
        match reports_pipe(&tracking).filter(is_read) {
            Some(pipe) => Form::Gathered(pipe.into()),
            None => Form::Listed(tracking),
        }
    }

    /// Publishes the reports of a group in one message. A single delivery may have more than fit
    /// into one.
    fn send_group(&self, form: &Form, mut entries: Vec<Entry>) {
        let mut confirms = Vec::with_capacity(1);
        for message in messages(form, &entries) {
            confirms.push(publish(Arc::clone(&self.broker), message));
        }
        let waiting = entries.iter().filter(|entry| entry.waiting.is_delivery());
        let in_flight = InFlight::add(&self.in_flight, waiting.count());
        let gathered_for = match form {
            Form::Gathered(pipe) => Some(Arc::clone(pipe)),
            Form::Listed(_) => None,
        };
        let (broker, readers) = (Arc::clone(&self.broker), Arc::clone(&self.readers));
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            let mut confirmed = all_confirmed(confirms, &mut entries, &abort).await;
            if let (Err(reason), Some(gathered)) = (&confirmed, gathered_for)
                && !matches!(reason, PublishError::Closed)
            {
                readers.not_taken(&gathered, reason);
                let confirms = publish_listed(&broker, &entries);
                confirmed = all_confirmed(confirms, &mut entries, &abort).await;
            }
            drop(in_flight);
            let announced = if confirmed.is_err() {
                entries
                    .extract_if(.., |entry| entry.is_announcement())
                    .collect()
            } else {
                Vec::new()
            };
            for Entry { reports, waiting } in entries {
                waiting.end(reports, confirmed.as_ref().map(drop));
            }
            if let Err(reason) = confirmed {
                announce_again(&broker, announced, reason, &abort).await;
            }
        });
    }
}

/// Waits until these messages are confirmed. On `abort`, drops the deliveries that wait for it.
async fn all_confirmed(
    confirms: Vec<impl Future<Output = Result<(), PublishError>>>,
    entries: &mut Vec<Entry>,
    abort: &CancellationToken,
) -> Result<(), PublishError> {
    let mut confirms = pin!(try_join_all(confirms));
    if let Some(confirmed) = abort.run_until_cancelled(&mut confirms).await {
        return confirmed.map(drop);
    }
    // A task that still waits knows itself when it must end.
    entries.retain(|entry| matches!(entry.waiting, Waiting::Task(_)));
    confirms.await.map(drop)
}

/// Publishes the reports of a group in CAF's form.
fn publish_listed(
    broker: &Arc<dyn Broker>,
    entries: &[Entry],
) -> Vec<impl Future<Output = Result<(), PublishError>> + use<>> {
    let tracking = entries.first().map(|entry| &entry.reports.pipe);
    let messages = tracking.map(|pipe| messages(&Form::Listed(Arc::clone(pipe)), entries));
    let messages = messages.into_iter().flatten();
    messages
        .map(|message| publish(Arc::clone(broker), message))
        .collect()
}

/// Sends what splits have announced again while the broker refuses it, for this reason. Nothing
/// else says how many items their jobs have, and from what they were made.
async fn announce_again(
    broker: &Arc<dyn Broker>,
    announced: Vec<Entry>,
    mut reason: PublishError,
    abort: &CancellationToken,
) {
    if announced.is_empty() {
        return;
    }
    for _ in 0..MOST_ANNOUNCEMENTS {
        if !matches!(reason, PublishError::Refused { .. }) {
            break;
        }
        warn!(%reason, "the broker refuses what splits announce; it is sent again");
        let pause = tokio::time::sleep(PAUSE);
        if abort.run_until_cancelled(pause).await.is_none() {
            return;
        }
        let confirms = publish_listed(broker, &announced);
        match try_join_all(confirms).await {
            Ok(_) => return,
            Err(error) => reason = error,
        }
    }
    warn!(%reason, "what splits announce cannot be reported; the number of items of their jobs stays unknown");
}

impl Entry {
    /// Returns whether these reports say what a split is made of, and nothing waits for them.
    fn is_announcement(&self) -> bool {
        let announces =
            |report: &TrackingReport| report.announced.is_some() || report.digest.is_some();
        matches!(self.waiting, Waiting::Nothing) && self.reports.list.iter().any(announces)
    }
}

impl Waiting {
    /// Returns whether a delivery is open until the confirm.
    const fn is_delivery(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    fn end(self, reports: Reports, confirmed: Result<(), &PublishError>) {
        match (self, confirmed) {
            (Self::Nothing, Ok(())) => {}
            (Self::Nothing, Err(reason)) => {
                warn!(%reason, "a report of progress cannot be sent; a later one counts");
            }
            (Self::Delivery(delivery), Ok(())) => delivery.confirmed(),
            (Self::Delivery(delivery), Err(error)) => delivery.unconfirmed(reports, error.clone()),
            (Self::Task(task), confirmed) => {
                // A task that no longer waits was dropped at shutdown.
                let _ = task.send(confirmed.map_err(Clone::clone));
            }
        }
    }
}

/// Counts deliveries as in flight until it is dropped.
struct InFlight(Arc<AtomicUsize>, usize);

impl InFlight {
    fn add(all: &Arc<AtomicUsize>, count: usize) -> Self {
        all.fetch_add(count, Ordering::Relaxed);
        Self(Arc::clone(all), count)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The form in which reports are sent, and the pipe.
enum Form {
    /// A [`TrackingReportTask`] for the tracking pipe, as CAF's workers send it.
    Listed(Arc<str>),
    /// [`GatheredReports`] for the pipe beside it.
    Gathered(Arc<str>),
}

/// A message of reports, and their details for its headers.
struct Message {
    message: Outgoing,
    details: Option<String>,
}

/// Publishes a message of reports with their details. A report counts also where the broker takes
/// no headers of this size: then it goes without details.
fn publish(
    broker: Arc<dyn Broker>,
    Message {
        mut message,
        details,
    }: Message,
) -> impl Future<Output = Result<(), PublishError>> {
    let Some(details) = details else {
        return Either::Left(broker.publish(message));
    };
    let without = message.clone();
    message
        .headers
        .set(REPORT_DETAILS_HEADER, HeaderValue::Text(details.into()));
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
    fn of(report: &TrackingReport) -> Self {
        let failure = report.failure.as_ref();
        let reason = failure.and_then(|failure| failure.failure_message.as_deref());
        Self {
            reports: 1,
            text: report.job_task_id.len() + reason.map_or(0, str::len),
            details: ReportDetails::bytes_of(report),
        }
    }

    fn of_all(reports: &[TrackingReport]) -> Self {
        reports
            .iter()
            .map(Self::of)
            .fold(Self::default(), Self::plus)
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

/// Divides entries into groups for one message each. Deliveries that share a message share its
/// fate, so one whose reports fill a message shares none: the broker may never take it.
fn groups(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut groups = Vec::with_capacity(1);
    let (mut group, mut size) = (Vec::with_capacity(entries.len()), Size::default());
    for entry in entries {
        let with_entry = size.plus(Size::of_all(&entry.reports.list));
        if with_entry.fits() || group.is_empty() {
            size = with_entry;
        } else {
            groups.push(std::mem::take(&mut group));
            size = Size::of_all(&entry.reports.list);
        }
        group.push(entry);
    }
    groups.push(group);
    groups
}

/// Returns the messages with the reports of a group. They have a correlation id if all the reports
/// have the same.
fn messages(form: &Form, entries: &[Entry]) -> Vec<Message> {
    let mut ids = entries.iter().map(|entry| &entry.reports.correlation_id);
    let first = ids.next().and_then(Option::as_ref);
    let correlation_id = first.filter(|id| ids.all(|other| other.as_ref() == Some(*id)));
    // A message has one context: that of the first span that it reports about.
    let trace = entries
        .iter()
        .find_map(|entry| entry.reports.traced.as_ref()?.span.context());
    let reports: Vec<_> = entries
        .iter()
        .flat_map(|entry| &entry.reports.list)
        .collect();
    let (mut left, mut messages) = (reports.as_slice(), Vec::with_capacity(1));
    while !left.is_empty() {
        let (now, later) = left.split_at(fitting(left));
        let mut message = message_of(form, correlation_id, now);
        let gathered = HeaderValue::Text("true".into());
        message.message.headers.set(GATHERED_HEADER, gathered);
        if let Some(trace) = trace {
            trace.set_on(&mut message.message.headers);
        }
        messages.push(message);
        left = later;
    }
    messages
}

/// Returns how many of these reports, at least one, go into the next message.
fn fitting(reports: &[&TrackingReport]) -> usize {
    let mut size = Size::default();
    let fits = |report: &&&TrackingReport| {
        size = size.plus(Size::of(report));
        size.fits()
    };
    let count = reports.iter().take_while(fits).count();
    count.max(1).min(reports.len())
}

fn message_of(
    form: &Form,
    correlation_id: Option<&SmolStr>,
    reports: &[&TrackingReport],
) -> Message {
    let (pipe, task, details) = match form {
        Form::Listed(pipe) => {
            let tracking_reports = reports.to_vec();
            let task =
                new_task::<TrackingReportTask>(pipe, &TrackingReportTask { tracking_reports });
            (pipe, task, ReportDetails::of(reports.iter().copied()))
        }
        Form::Gathered(pipe) => {
            let gathered = GatheredReports::of(reports);
            let task = new_task::<GatheredReports>(pipe, &gathered);
            (pipe, task, ReportDetails::of(gathered.others))
        }
    };
    let task = TaskMessage {
        correlation_id: correlation_id.cloned(),
        ..task
    };
    Message {
        message: Outgoing::new(Arc::clone(pipe), task.encode()),
        details,
    }
}

fn new_task<T: TaskData>(pipe: &str, data: &impl Serialize) -> TaskMessage {
    let id = uuid::Uuid::new_v4().to_string();
    let data = serde_json::to_vec(data).unwrap_or_default();
    new_message::<T>(id, pipe, data)
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
        let long = failed(8 * 1024);
        assert_eq!(fitting(&[&long; 600]), 63);
        for form in [Form::Listed, Form::Gathered] {
            let message = message_of(&form("tracking".into()), None, &[&long; 63]);
            assert!(message.message.body.len() < 5_000_000);
        }
        assert_eq!(fitting(&[&failed(1); 600]), 500);
        assert_eq!(fitting(&[&failed(1_000_000), &failed(1)]), 1);
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
            let failed = failed(&input.repeat(5000));
            let failed = [&failed; 600];
            let fitting = fitting(&failed);
            let details = ReportDetails::of(failed[..fitting].iter().copied()).unwrap();
            let limit = ReportDetails::MAX_BYTES;
            assert!(
                (limit * 3 / 4..=limit).contains(&details.len()),
                "{input:?}: {}",
                details.len()
            );
        }
        let complete = TrackingReport::new("p:j.1", ReportStatus::Complete);
        let complete = [&complete; 600];
        assert_eq!(ReportDetails::of(complete), None);
        assert_eq!(fitting(&complete), 500);
    }
}
