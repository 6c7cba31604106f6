//! Below the worker: somebody who takes many deliveries at a time and decides about each.

use std::sync::Arc;

use contract::{TaskMessage, TrackingReport, patch_tracking};

use crate::Sent;
use crate::broker::{Broker, Confirm, Delivery, Headers, Outgoing, PublishError};
use crate::routing::{diverted_report, tracking_ends};

/// Takes what waits, up to [`Collector::limit`] deliveries at a time, and returns a verdict for each.
///
/// A [`crate::Worker`] is run by one that takes one delivery at a time; the tracking worker is one that takes thousands.
pub trait Collector: Send + Sync + 'static {
    /// The most deliveries at a time; it also takes fewer.
    fn limit(&self) -> usize;

    /// Decides about these deliveries: as many verdicts, in the same order.
    fn collect(
        &self,
        arrivals: &[Arrival],
        courier: &Courier,
    ) -> impl Future<Output = Vec<Verdict>> + Send;

    /// Decides about a delivery that has caused a message that the broker does not take: for a pipe that cannot be, or for one that
    /// was full for as long as the retry policy waits.
    fn undeliverable(&self, _: &Arrival, error: &PublishError) -> Verdict {
        Verdict::Again(error.to_string())
    }

    /// What is missing around this collector right now, for READY to say. It keeps the deliveries that it has until it can decide.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Decides about a delivery that has killed its process time and again, alone. It must not be looked into.
    fn condemn(&self, arrival: &Arrival) -> Verdict {
        Verdict::Invalid(format!(
            "the process died each time it was given this message ({})",
            arrival.message().task_id
        ))
    }
}

/// A delivery that was understood and whose job, as far as is known, still wants it.
#[derive(Debug)]
pub struct Arrival {
    pub(crate) delivery: Delivery,
    pub(crate) message: TaskMessage,
    pub(crate) is_diverted: bool,
}

impl Arrival {
    pub const fn message(&self) -> &TaskMessage {
        &self.message
    }

    /// The message is for somebody else and came past here.
    pub const fn is_diverted(&self) -> bool {
        self.is_diverted
    }

    pub const fn headers(&self) -> &Headers {
        &self.delivery.headers
    }

    /// What a diverted message tells about its task, if it tells any.
    pub fn report(&self) -> Option<contract::ReportStatus> {
        diverted_report(&self.message)
    }

    /// The report of a message that is passed on to where its tracking ends: nobody after this one can make it.
    pub(crate) fn last_report(&self) -> Option<TrackingReport> {
        let tracking = self.message.tracking.as_ref()?;
        let ends = tracking_ends(self.message.to.as_deref(), tracking);
        Some(TrackingReport::new(
            self.message.job_task_id()?,
            self.report().filter(|_| ends)?,
        ))
    }

    /// The message on its way to `to`, byte for byte but for its tracking, which is gone when it ends there.
    /// `None` when the message is for nobody.
    pub fn onward(&self) -> Option<Outgoing> {
        let to = self.message.to.as_deref()?;
        let tracking = self
            .message
            .tracking
            .as_ref()
            .filter(|tracking| !tracking_ends(Some(to), tracking));
        // It has been decoded, so it is an object.
        let body = patch_tracking(&self.delivery.body, tracking)
            .unwrap_or_else(|_| self.delivery.body.to_vec());
        Some(Outgoing {
            headers: self.delivery.headers.clone(),
            ..Outgoing::new(to, body)
        })
    }

    /// The message as it came, on its way to `to`: for whoever only keeps it for a while. `None` when it is for nobody.
    pub fn back(&self) -> Option<Outgoing> {
        let to = self.message.to.as_deref()?;
        Some(Outgoing {
            headers: self.delivery.headers.clone(),
            ..Outgoing::new(to, self.delivery.body.clone())
        })
    }
}

/// Publishes on behalf of a collector.
#[derive(Debug, Clone)]
pub struct Courier(pub(crate) Arc<dyn Broker>);

impl Courier {
    /// Publishes now; the delivery must not be settled before the confirm.
    pub fn publish(&self, message: Outgoing) -> Confirm {
        self.0.publish(message)
    }
}

/// What becomes of a delivery.
#[derive(Debug)]
pub enum Verdict {
    /// It has been dealt with: once everything it caused is confirmed and reported, it is acknowledged.
    Done(Effects),
    /// It goes on to whom it is for.
    PassOn,
    /// It could not be understood: it goes to the invalid pipe, with this reason.
    Invalid(String),
    /// It comes again, after a pause, with this reason in the log. It is nobody's attempt.
    Again(String),
    /// It comes again after this delay; nothing is wrong.
    Later(std::time::Duration),
    /// Nobody wants it any more.
    Discard,
}

/// What a delivery causes besides its end.
#[derive(Debug, Default)]
pub struct Effects {
    /// Already published, not yet confirmed.
    pub unconfirmed: Vec<Sent>,
    /// To be published.
    pub messages: Vec<Outgoing>,
    /// To be reported when all of that is confirmed.
    pub reports: Vec<TrackingReport>,
}
