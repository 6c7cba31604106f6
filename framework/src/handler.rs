//! The seam below [`Worker`](crate::Worker): code that takes many deliveries at once and decides
//! about each one.
//!
//! A [`BatchHandler`] gets [`Received`] deliveries and returns one [`Disposition`] per delivery.
//! The framework runs a worker as a handler that takes one delivery at a time. The tracking worker
//! is a handler that takes a thousand.
//!
//! What must stay true: a handler never settles a delivery. It says what must happen; the pipeline
//! publishes, reports and settles in an order that loses nothing.

use std::sync::Arc;
use std::time::Duration;

use contract::headers::JOB_HEADER;
pub use contract::headers::{ORIGIN_HEADER, REASON_HEADER};
use contract::{ReportStatus, TaskMessage, TrackingReport, patch_tracking};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::broker::{Broker, Confirm, Delivery, HeaderValue, Headers, Outgoing, PublishError};
use crate::current::CurrentMessage;
use crate::steps::bundles::results::Unsent;
use crate::steps::output::describe;
use crate::steps::publish::PendingPublish;
use crate::steps::quarantine::Standing;
use crate::steps::routing::{diverted_report, tracking_ends};

/// The kind of the failure (`failureId`) of a task whose message can never get where it belongs.
pub const UNDELIVERABLE: &str = "UNDELIVERABLE";

/// Decides about deliveries, up to [`BatchHandler::max_batch`] at a time.
pub trait BatchHandler: Send + Sync + 'static {
    /// Returns the largest number of deliveries that [`Self::handle`] takes at a time. Batches may
    /// be smaller.
    fn max_batch(&self) -> usize;

    /// Returns the largest number of bytes that the bodies of a batch have together, unless a
    /// single body has more. The worker then holds about twice as many bytes, however large the
    /// deliveries are. By default, only their number is limited.
    fn max_bytes(&self) -> Option<usize> {
        None
    }

    /// Decides about a batch. Returns one disposition per delivery, in the same order.
    ///
    /// A delivery without a disposition (the handler panicked, or returned too few) is redelivered.
    fn handle(
        &self,
        batch: &[Received],
        publisher: &Publisher,
    ) -> impl Future<Output = Vec<Disposition>> + Send;

    /// Decides about a delivery whose outputs the broker did not accept: their pipe cannot be
    /// declared, it stayed full for as long as the retry policy allows, or the broker never takes
    /// them. The default redelivers it, or fails it if that can never help.
    ///
    /// Only the outputs of [`Disposition::Done`] are published. With any other disposition but
    /// [`Disposition::Fail`] the delivery is redelivered.
    fn on_undeliverable(&self, _delivery: &Received, error: &PublishError) -> Disposition {
        if error.is_permanent() {
            Disposition::Fail(error.to_string())
        } else {
            Disposition::Redeliver(error.to_string())
        }
    }

    /// Returns whether the handler also gets deliveries of jobs that have ended, which are dropped
    /// otherwise. Those of deleted jobs always are.
    fn handles_ended_jobs(&self) -> bool {
        false
    }

    /// Returns whether the handler also takes the members of bundles. Then it consumes the pipe of
    /// bundles, too.
    fn takes_bundles(&self) -> bool {
        false
    }

    /// Returns why the handler cannot work at the moment, for the readiness check; `None` if it
    /// can.
    fn unready_reason(&self) -> Option<String> {
        None
    }

    /// Returns whether a message is given up as poison once it has crashed several processes.
    ///
    /// A handler that runs no code of an author returns `false`: its messages are not why a process
    /// dies. Those that several processes held when they died are handled until they are done, each
    /// as a batch of one beside the other batches, whatever the
    /// [concurrency](crate::Settings::concurrency).
    fn gives_up(&self) -> bool {
        true
    }

    /// Decides about a poison message: one that crashed several processes while it was the only
    /// delivery they had. Not called if the handler never [gives up](Self::gives_up).
    ///
    /// The implementation must not process the message again. The default sends it to the invalid
    /// pipe.
    fn reject_poison(&self, delivery: &Received) -> Disposition {
        Disposition::Invalid(format!(
            "the process crashed each time it was given this message ({})",
            delivery.message().task_id
        ))
    }
}

/// A delivery that is decoded and admitted: as far as this process knows, its job has not ended.
#[derive(Debug)]
pub struct Received {
    pub(crate) delivery: Delivery,
    pub(crate) message: Arc<CurrentMessage>,
    pub(crate) is_diverted: bool,
    pub(crate) standing: Standing,
}

impl Received {
    pub(crate) const fn new(
        delivery: Delivery,
        message: Arc<CurrentMessage>,
        is_diverted: bool,
        standing: Standing,
    ) -> Self {
        Self {
            delivery,
            message,
            is_diverted,
            standing,
        }
    }

    /// Returns the decoded message.
    pub fn message(&self) -> &TaskMessage {
        &self.message
    }

    /// Returns the number of bytes of the body.
    pub fn bytes(&self) -> usize {
        self.delivery.bytes()
    }

    /// Returns whether the message is addressed to another pipe and only passes through here.
    pub const fn is_diverted(&self) -> bool {
        self.is_diverted
    }

    /// Returns the headers that the message came with.
    pub const fn headers(&self) -> &Headers {
        &self.delivery.headers
    }

    /// Returns the status that a diverted message reports for its task: `Failed` for a failure,
    /// `Complete` where its tracking ends, otherwise `None`.
    pub fn diverted_status(&self) -> Option<ReportStatus> {
        diverted_report(&self.message)
    }

    /// Returns the report for a message that is forwarded to the pipe where its tracking ends. No
    /// later worker reports it, because the forwarded message carries no tracking.
    pub(crate) fn final_report(&self) -> Option<TrackingReport> {
        let tracking = self.message.tracking.as_ref()?;
        let ends = tracking_ends(self.message.to.as_deref(), tracking);
        Some(TrackingReport::new(
            self.message.job_task_id()?,
            self.diverted_status().filter(|_| ends)?,
        ))
    }

    /// Returns what is caused by passing the message on.
    pub(crate) fn forward(&self) -> Outputs {
        Outputs {
            messages: self.forwarded().into_iter().collect(),
            reports: self.final_report().into_iter().collect(),
            ..Outputs::default()
        }
    }

    /// Returns the message to publish to its `to` pipe, or `None` if it has no `to`.
    ///
    /// Body and headers stay as they came, except for the tracking: it is refreshed, or removed if
    /// it ends there. A result of a worker that sets no headers gets those that tell its job and
    /// its task.
    pub fn forwarded(&self) -> Option<Outgoing> {
        let to = self.message.to.as_deref()?;
        let tracking = self
            .message
            .tracking
            .as_ref()
            .filter(|tracking| !tracking_ends(Some(to), tracking));
        // Patching fails only for a body that is not a JSON object, and this one has been decoded.
        let body = self.delivery.body();
        let body = patch_tracking(&body, tracking).unwrap_or_else(|_| body.to_vec());
        let mut headers = self.delivery.headers.clone();
        if let Some(tracking) = &self.message.tracking
            && let Some(status) = self.message.task_status
            && headers.get(JOB_HEADER).is_none()
        {
            describe(&mut headers, tracking.job_task_id.as_deref(), status, None);
        }
        Some(Outgoing {
            headers,
            ..Outgoing::new(to, body)
        })
    }

    /// Returns the message as it came, for the pipe that it came from, where it is delivered after
    /// this delay.
    pub fn again(&self, delay: Duration) -> Outgoing {
        Outgoing {
            headers: self.standing.redelivery_headers(&self.delivery),
            delay: Some(delay),
            ..Outgoing::new(Arc::clone(&self.delivery.pipe), self.delivery.body())
        }
    }

    /// Returns the message exactly as it came, addressed to its `to` pipe, or `None` if it has no
    /// `to`.
    pub fn unchanged(&self) -> Option<Outgoing> {
        let to = self.message.to.as_deref()?;
        Some(Outgoing {
            headers: self.delivery.headers.clone(),
            ..Outgoing::new(to, self.delivery.body())
        })
    }
}

/// Publishes messages for a [`BatchHandler`], and has the slot in which a batch is handled.
#[derive(Debug)]
pub struct Publisher {
    broker: Arc<dyn Broker>,
    slot: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Publisher {
    pub(crate) fn new(broker: Arc<dyn Broker>, slot: Option<OwnedSemaphorePermit>) -> Self {
        let slot = Mutex::new(slot);
        Self { broker, slot }
    }

    /// Lets the next batch begin, because the handler only waits for something. By default it
    /// begins when the handler has decided.
    pub fn let_next_begin(&self) {
        drop(self.slot.lock().take());
    }

    /// Publishes a message at once. The handler must await the confirm before it returns
    /// [`Disposition::Done`] for the delivery that caused the message.
    pub fn publish(&self, message: Outgoing) -> Confirm {
        self.broker.publish(message)
    }
}

/// What happens to a delivery.
#[derive(Debug)]
pub enum Disposition {
    /// The delivery is done. It is acknowledged once its outputs are confirmed and its reports are
    /// sent.
    Done(Outputs),
    /// The message goes to the pipe that it is addressed to.
    Forward,
    /// The message could not be understood. It goes to the invalid pipe with this reason.
    Invalid(String),
    /// The message can never get where it belongs. It goes to the invalid pipe with this reason,
    /// and its task is reported as failed.
    Fail(String),
    /// The message comes again after a short pause, and the log records this reason. The broker
    /// counts no attempt.
    Redeliver(String),
    /// The message comes again after this delay. Nothing is wrong, and no attempt is counted.
    Snooze(Duration),
    /// The outputs are confirmed and the reports sent. Then the message comes again after this
    /// delay, with this header. No attempt is counted.
    GoOn {
        /// What the message has caused so far.
        outputs: Outputs,
        /// Tells the next delivery where to go on.
        header: (&'static str, HeaderValue),
        /// When that is.
        delay: Duration,
    },
    /// The message is dropped, because its job has ended.
    Discard,
}

/// What a delivery causes before it is acknowledged: messages to publish, and reports to send after
/// their confirms.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Already published, not yet confirmed.
    pub(crate) pending: Vec<PendingPublish>,
    pub(crate) messages: Vec<Outgoing>,
    /// A result that may go with those of other deliveries.
    pub(crate) result: Option<Box<Unsent>>,
    pub(crate) reports: Vec<TrackingReport>,
}

impl Outputs {
    /// Adds a message to publish.
    #[must_use]
    pub fn with_message(mut self, message: Outgoing) -> Self {
        self.messages.push(message);
        self
    }

    /// Returns whether they are one message at most, which is not published yet.
    pub(crate) fn are_one_at_most(&self) -> bool {
        let results = usize::from(self.result.is_some());
        self.pending.is_empty() && self.messages.len() + results <= 1
    }

    /// Makes these the outputs of a message that may be part of a trace. If that is exported, each
    /// output belongs to a span of its own and goes by itself.
    pub(crate) fn in_trace(mut self, message: &CurrentMessage) -> Self {
        if message.span.is_exported() {
            self.messages
                .extend(self.result.take().map(|result| result.alone()));
        }
        if let Some(context) = message.span.context() {
            for message in &mut self.messages {
                context.set_on(&mut message.headers);
            }
            if let Some(result) = &mut self.result {
                context.set_on(&mut result.headers);
            }
        }
        self
    }

    /// Adds a report to send to the tracking pipe of the delivery once every message is confirmed.
    /// It is dropped if the message is not tracked.
    #[must_use]
    pub fn with_report(mut self, report: TrackingReport) -> Self {
        self.reports.push(report);
        self
    }
}
