//! What follows the decision of a handler: the outputs of a delivery are published and confirmed,
//! then it is reported, and settled once its reports are confirmed.
//!
//! ```text
//! take → publish → confirm → report → settle
//! ```
//!
//! Most deliveries cause nothing or a single output, and need no task of their own: the confirms of
//! such outputs are awaited one after the other, by one task for those that go to the same pipe.
//! Any other delivery has a task of its own, and so has one whose output the broker does not take.
//! Nothing waits for reports: the report buffer keeps the delivery and says when they are
//! confirmed, together with those of many others.
//!
//! What must stay true:
//! - No output waits for a task that runs later in the same slot, for a refused output, or for an
//!   output to another pipe.
//! - An isolated delivery is settled before anything else runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::TrackingReport;
use contract::rest::LetterCause::{NotUnderstood, Unroutable};
use futures_util::FutureExt as _;
use futures_util::future::Either;
use tokio::sync::mpsc;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::warn;

use super::{Pipeline, REDELIVERY_DELAY, Unsettled, tell_of_panic, unless_it_panics};
use crate::broker::{Delivery, HeaderValue, Outgoing, PublishError};
use crate::current::CurrentMessage;
use crate::handler::{BatchHandler, Disposition, Outputs, Received};
use crate::steps::attempts::Attempts;
use crate::steps::bundles::results::InBundle;
use crate::steps::full_pipe::FullPipe;
use crate::steps::open_deliveries::KeptOpen;
use crate::steps::publish::{PendingPublish, await_confirms};
use crate::steps::quarantine::Standing;
use crate::steps::report_buffer::{AwaitsConfirm, Reports};

/// How many confirms are awaited together at most.
const CONFIRMED_TOGETHER: usize = 128;

/// A delivery about which the handler has decided.
pub(crate) struct Decided {
    pub(super) received: Received,
    pub(super) disposition: Disposition,
    /// It is open until it is settled.
    pub(super) open: Arc<KeptOpen>,
}

/// The way of the deliveries about which a handler decides one after the other, or in one batch.
pub(crate) struct Road<H> {
    pipeline: Arc<Pipeline<H>>,
    lane: Option<Lane>,
}

/// Where outputs to one pipe wait for their confirms.
struct Lane {
    pipe: Arc<str>,
    sender: mpsc::UnboundedSender<Box<UnconfirmedDelivery>>,
    /// How many wait.
    waiting: Arc<AtomicUsize>,
}

/// A delivery whose only output is published and not confirmed.
struct UnconfirmedDelivery {
    /// The message is not kept until the confirm: that would be most of what the delivery takes in
    /// memory.
    delivery: Delivery,
    standing: Standing,
    is_diverted: bool,
    output: Output,
    reports: Option<Reports>,
    /// The message, if it is part of a trace.
    traced: Option<Arc<CurrentMessage>>,
    open: Arc<KeptOpen>,
}

enum Output {
    Alone(PendingPublish),
    InBundle(InBundle),
}

impl Output {
    /// Waits until the broker has accepted or refused it.
    async fn wait(&mut self) {
        match self {
            // Whether it is refused is seen again when it is asked for.
            Self::Alone(output) => drop(output.response().await),
            Self::InBundle(output) => output.wait().await,
        }
    }
}

/// A delivery that has caused everything but its reports, which are on their way. It comes again if
/// it is dropped.
struct Reporting<H> {
    delivery: Delivery,
    standing: Standing,
    pipeline: Arc<Pipeline<H>>,
    /// It is open, and the runtime waits for it, until it is settled.
    open: Arc<KeptOpen>,
    running: TaskTrackerToken,
}

/// What a delivery needs next.
enum NextStep {
    Nothing,
    /// To await the confirm of its output, which goes to this pipe.
    Confirm(Arc<str>, Box<UnconfirmedDelivery>),
    /// To carry out the decision in a task of its own.
    CarryOut(Box<Decided>),
}

impl<H: BatchHandler> Road<H> {
    pub fn new(pipeline: &Arc<Pipeline<H>>) -> Self {
        Self {
            pipeline: Arc::clone(pipeline),
            lane: None,
        }
    }

    /// Takes a delivery. Returns without waiting for its confirms, unless it is isolated.
    pub async fn take(&mut self, decided: Decided) {
        if decided.received.standing.is_isolated() {
            return Box::pin(self.pipeline.carry_out(decided)).await;
        }
        let content = decided.received.delivery.content().clone();
        let published = catch_unwind(AssertUnwindSafe(|| self.pipeline.publish_one(decided)));
        let left = published.unwrap_or_else(|panic| {
            tell_of_panic(&content, &*panic);
            NextStep::Nothing
        });
        match left {
            NextStep::Nothing => return,
            NextStep::Confirm(pipe, published) => {
                if !self.confirm_later(pipe, published) {
                    return;
                }
            }
            NextStep::CarryOut(decided) => {
                self.pipeline.spawn(self.pipeline.carry_out(*decided));
            }
        }
        // What was just spawned or woken would otherwise wait for this thread: also while the next
        // task computes for minutes.
        tokio::task::yield_now().await;
    }

    /// Lets the confirm of an output be awaited after those that are in the lane. If that is for
    /// another pipe, begins a new one, so that no pipe keeps the outputs of others waiting. Returns
    /// whether nothing was in the lane.
    fn confirm_later(&mut self, pipe: Arc<str>, published: Box<UnconfirmedDelivery>) -> bool {
        let lane = match self.lane.take() {
            Some(lane) if lane.pipe == pipe => lane,
            _ => {
                let (sender, receiver) = mpsc::unbounded_channel();
                let (waiting, pipeline) = (Arc::default(), Arc::clone(&self.pipeline));
                let confirms = pipeline.confirm_all(receiver, Arc::clone(&waiting));
                self.pipeline.spawn(confirms);
                Lane {
                    pipe,
                    sender,
                    waiting,
                }
            }
        };
        let lane = self.lane.insert(lane);
        let was_idle = lane.waiting.fetch_add(1, Ordering::Relaxed) == 0;
        // Fails once its task was dropped on `abort`. Then the delivery goes back, too.
        let _ = lane.sender.send(published);
        was_idle
    }
}

impl<H: BatchHandler> Pipeline<H> {
    /// Spawns work, which is dropped on `abort`.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) {
        let work = self.abort.clone().run_until_cancelled_owned(work);
        // In a box, because the tracker and the runtime move it several times.
        self.running.spawn(Box::pin(work));
    }

    /// Publishes the only output of a delivery, and reports a delivery without one. Returns what is
    /// left to do: all, if there are other outputs, or another decision.
    fn publish_one(self: &Arc<Self>, decided: Decided) -> NextStep {
        let Decided {
            received,
            disposition,
            open,
        } = decided;
        let carry_out = |received, disposition, open| {
            NextStep::CarryOut(Box::new(Decided {
                received,
                disposition,
                open,
            }))
        };
        let (mut outputs, counter) = match disposition {
            Disposition::Forward => (received.forward(), &self.counters.forwarded),
            Disposition::Done(outputs)
                if outputs.are_one_at_most()
                    // That one is confirmed by another queue.
                    && outputs.messages.iter().all(|message| message.delay.is_none()) =>
            {
                (outputs, &self.counters.done)
            }
            disposition => return carry_out(received, disposition, open),
        };
        outputs = outputs.in_trace(&received.message);
        let output = match outputs.result.take() {
            None => outputs.messages.pop().map(Err),
            Some(result) if self.results.knows_readers(&result) => {
                Some(self.results.begin(*result))
            }
            // The broker must be asked.
            result => {
                let disposition = Disposition::Done(Outputs { result, ..outputs });
                return carry_out(received, disposition, open);
            }
        };
        counter.increment(1);
        let reports = Reports::of(&received.message, outputs.reports);
        let Received {
            delivery,
            standing,
            message,
            is_diverted,
        } = received;
        let (pipe, output) = match output {
            None => {
                self.report_then_settle((delivery, standing), reports, open);
                return NextStep::Nothing;
            }
            Some(Ok(output)) => (Arc::clone(output.pipe()), Output::InBundle(output)),
            Some(Err(message)) => {
                let pipe = Arc::clone(&message.pipe);
                let output = PendingPublish::new(&*self.broker, message);
                (pipe, Output::Alone(output))
            }
        };
        let published = UnconfirmedDelivery {
            delivery,
            standing,
            is_diverted,
            output,
            reports,
            traced: message.span.context().is_some().then_some(message),
            open,
        };
        NextStep::Confirm(pipe, Box::new(published))
    }

    /// Awaits the confirms of outputs, one after the other, and reports and settles their
    /// deliveries.
    async fn confirm_all(
        self: Arc<Self>,
        mut published: mpsc::UnboundedReceiver<Box<UnconfirmedDelivery>>,
        waiting: Arc<AtomicUsize>,
    ) {
        let mut group = Vec::new();
        while published.recv_many(&mut group, CONFIRMED_TOGETHER).await > 0 {
            // Brokers confirm in this order, so waiting for the last one wakes this task once for
            // all of them.
            if let Some(last) = group.last_mut() {
                unless_it_panics(last.delivery.content().clone(), last.output.wait()).await;
            }
            for published in group.drain(..) {
                let content = published.delivery.content().clone();
                unless_it_panics(content, self.confirm_one(*published)).await;
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Reports and settles a delivery when its output is confirmed. Gives it a task of its own if
    /// the broker does not take the output.
    async fn confirm_one(self: &Arc<Self>, published: UnconfirmedDelivery) {
        let UnconfirmedDelivery {
            delivery,
            standing,
            is_diverted,
            output,
            reports,
            traced,
            open,
        } = published;
        let refused = match output {
            Output::Alone(mut output) => match output.response().await {
                Ok(()) => None,
                Err(_) => Some(output),
            },
            Output::InBundle(output) => match output.confirmed().await {
                Ok(()) => None,
                // Nobody waits for confirms any more.
                Err(_) if self.abort.is_cancelled() => return,
                Err(alone) => Some(PendingPublish::new(&*self.broker, alone)),
            },
        };
        let Some(refused) = refused else {
            return self.report_then_settle((delivery, standing), reports, open);
        };
        // If the message cannot be read any more, which cannot be, it comes again.
        if let Some(message) = traced.or_else(|| again(&delivery)) {
            let outputs = Outputs {
                pending: vec![refused],
                reports: reports.map_or_else(Vec::new, |reports| reports.list),
                ..Outputs::default()
            };
            let received = Received::new(delivery, message, is_diverted, standing);
            self.spawn(self.in_its_scope(received, |pipeline, received| {
                pipeline.publish_then_settle(received, outputs, open)
            }));
        }
    }

    /// Carries out the decision of the handler: publishes, reports and settles.
    pub(super) fn carry_out(
        self: &Arc<Self>,
        decided: Decided,
    ) -> impl Future<Output = ()> + Send + use<H> {
        let Decided {
            received,
            disposition,
            open,
        } = decided;
        self.in_its_scope(received, |pipeline, received| {
            pipeline.apply(received, disposition, open)
        })
    }

    /// Runs a step whose log lines have the ids of this message. If it panics, the delivery comes
    /// again.
    fn in_its_scope<F, S>(
        self: &Arc<Self>,
        received: Received,
        step: S,
    ) -> impl Future<Output = ()> + Send + use<H, F, S>
    where
        F: Future<Output = ()> + Send,
        S: FnOnce(Arc<Self>, Received) -> F,
    {
        let content = received.delivery.content().clone();
        let message = Arc::clone(&received.message);
        let step = unless_it_panics(content, message.scope(step(Arc::clone(self), received)));
        step.map(drop)
    }

    async fn apply(
        self: Arc<Self>,
        received: Received,
        disposition: Disposition,
        open: Arc<KeptOpen>,
    ) {
        let settled = match disposition {
            Disposition::Done(outputs) => {
                self.counters.done.increment(1);
                return self.publish_then_settle(received, outputs, open).await;
            }
            Disposition::Forward => {
                self.counters.forwarded.increment(1);
                let outputs = received.forward();
                return self.publish_then_settle(received, outputs, open).await;
            }
            // Few deliveries take these ways, and each has the memory of what is not boxed.
            Disposition::Invalid(reason) => {
                let moved = self.move_to_invalid(&received.delivery, NotUnderstood, &reason);
                Box::pin(moved).await
            }
            Disposition::Fail(reason) => Box::pin(self.fail(&received, &reason)).await,
            Disposition::Redeliver(reason) => Err(Unsettled::Redeliver(reason)),
            Disposition::Snooze(delay) => Err(Unsettled::Snooze(delay)),
            Disposition::GoOn {
                outputs,
                header,
                delay,
            } => {
                let going_on = self.publish_then_go_on(&received, outputs, delay, header);
                Box::pin(going_on).await
            }
            Disposition::Discard => {
                let Received {
                    delivery, message, ..
                } = received;
                let job = self.job_service.last_known(message.tracking.as_ref()).await;
                return self.discard(delivery, &message, job);
            }
        };
        Box::pin(self.settle(received.delivery, received.standing, settled)).await;
    }

    /// Publishes outputs, waits for their confirms, and reports them. Says that the delivery comes
    /// again then.
    async fn publish_then_go_on(
        &self,
        received: &Received,
        outputs: Outputs,
        delay: Duration,
        header: (&'static str, HeaderValue),
    ) -> Result<(), Unsettled> {
        let (reports, then) = match self.publish_outputs(&received.message, outputs).await {
            Ok(reports) => (reports, Err(Unsettled::GoOn(delay, header))),
            // The task ends with that.
            Err(error) => (self.after_refusal(received, error).await?, Ok(())),
        };
        match self.report(&received.message, reports).await {
            Ok(()) => then,
            Err(reason @ Unsettled::Unreportable(_)) => {
                self.move_to_invalid(&received.delivery, Unroutable, &reason.to_string())
                    .await
            }
            unreported => unreported,
        }
    }

    /// Publishes outputs and waits for their confirms. Then reports and settles their delivery.
    async fn publish_then_settle(
        self: Arc<Self>,
        received: Received,
        outputs: Outputs,
        open: Arc<KeptOpen>,
    ) {
        let published = self.publish_or_fail(&received, outputs).await;
        let Received {
            delivery,
            message,
            standing,
            ..
        } = received;
        let list = match published {
            Ok(list) => list,
            Err(reason) => {
                return Box::pin(self.settle(delivery, standing, Err(reason))).await;
            }
        };
        let reports = Reports::of(&message, list);
        if !standing.is_isolated() {
            return self.report_then_settle((delivery, standing), reports, open);
        }
        let Some(reports) = reports else {
            return delivery.ack();
        };
        // Nothing else may run before it is settled.
        let sent = self.reports.send(reports.clone()).await;
        self.settle_reported(delivery, standing, reports, sent)
            .await;
    }

    /// Publishes outputs, and returns the reports to send now. If the broker does not accept an
    /// output, the handler decides once more; if it never takes what the handler then publishes
    /// either, the task fails.
    async fn publish_or_fail(
        &self,
        received: &Received,
        outputs: Outputs,
    ) -> Result<Vec<TrackingReport>, Unsettled> {
        match self.publish_outputs(&received.message, outputs).await {
            Err(error) => self.after_refusal(received, error).await,
            published => published,
        }
    }

    /// Lets the handler decide once more after an output was not published. Returns the reports to
    /// send now.
    async fn after_refusal(
        &self,
        received: &Received,
        error: Unsettled,
    ) -> Result<Vec<TrackingReport>, Unsettled> {
        let error = match error {
            Unsettled::Unpublished(error) if !matches!(error, PublishError::Closed) => error,
            other => return Err(other),
        };
        let reason = match self.handler.on_undeliverable(received, &error) {
            Disposition::Done(outputs) => {
                match self.publish_outputs(&received.message, outputs).await {
                    Err(Unsettled::Unpublished(error)) if error.is_permanent() => error.to_string(),
                    published => return published,
                }
            }
            Disposition::Fail(reason) => reason,
            _ => return Err(error.into()),
        };
        let failed = Box::pin(self.fail(received, &reason)).await;
        failed.map(|()| Vec::new())
    }

    /// Publishes the outputs of a message and waits for their confirms, and for those of outputs
    /// that are published already. Returns the reports.
    async fn publish_outputs(
        &self,
        message: &CurrentMessage,
        outputs: Outputs,
    ) -> Result<Vec<TrackingReport>, Unsettled> {
        let Outputs {
            mut pending,
            mut messages,
            result,
            reports,
        } = outputs.in_trace(message);
        if let Some(result) = result {
            messages.extend(self.results.send(*result).await.err());
        }
        pending.extend(
            messages
                .into_iter()
                .map(|message| PendingPublish::new(&*self.broker, message)),
        );
        let confirmed =
            await_confirms(&mut pending, &*self.broker, &self.retry, &self.shutdown).await;
        confirmed.map(|()| reports).map_err(|error| {
            if self.shutdown.is_cancelled() {
                Unsettled::Redeliver(error.to_string())
            } else {
                error.into()
            }
        })
    }

    /// Sends the reports of a delivery beside which others run. It is settled once they are
    /// confirmed, after this has returned; at once if there are none.
    fn report_then_settle(
        self: &Arc<Self>,
        (delivery, standing): (Delivery, Standing),
        reports: Option<Reports>,
        open: Arc<KeptOpen>,
    ) {
        let Some(reports) = reports else {
            return delivery.ack();
        };
        let reporting = Reporting {
            delivery,
            standing,
            pipeline: Arc::clone(self),
            open,
            running: self.running.token(),
        };
        self.reports.send_for(reports, Box::new(reporting));
    }

    /// Sends reports to the tracking pipe of the message and waits for their confirm.
    pub(super) async fn report(
        &self,
        message: &Arc<CurrentMessage>,
        list: Vec<TrackingReport>,
    ) -> Result<(), Unsettled> {
        match Reports::of(message, list) {
            Some(reports) => {
                let sent = self.reports.send(reports.clone()).await;
                self.until_sent(reports, sent).await
            }
            None => Ok(()),
        }
    }

    /// Settles a delivery whose reports were sent with this result. One whose reports cannot be
    /// sent goes to the invalid pipe.
    async fn settle_reported(
        &self,
        delivery: Delivery,
        standing: Standing,
        reports: Reports,
        sent: Result<(), PublishError>,
    ) {
        let settled = match self.until_sent(reports, sent).await {
            Err(reason @ Unsettled::Unreportable(_)) => {
                self.move_to_invalid(&delivery, Unroutable, &reason.to_string())
                    .await
            }
            reported => reported,
        };
        self.settle(delivery, standing, settled).await;
    }

    /// Sends reports again while the broker refuses them, because the tracking pipe will have room
    /// again and the task must not run again meanwhile. `sent` is the result of the first time.
    async fn until_sent(
        &self,
        reports: Reports,
        mut sent: Result<(), PublishError>,
    ) -> Result<(), Unsettled> {
        let mut full_pipe = None;
        loop {
            match sent {
                Ok(()) => return Ok(()),
                Err(error @ PublishError::Closed) => return Err(error.into()),
                Err(
                    error @ (PublishError::Impossible { .. }
                    | PublishError::Unacceptable { .. }
                    | PublishError::Unroutable { .. }),
                ) => return Err(Unsettled::Unreportable(error)),
                Err(error @ PublishError::Refused { .. }) => {
                    warn!(reason = %error, "the broker refuses reports; they are sent again");
                    full_pipe.get_or_insert_with(|| FullPipe::named(&reports.pipe));
                    let pause = tokio::time::sleep(REDELIVERY_DELAY);
                    if self.shutdown.run_until_cancelled(pause).await.is_none() {
                        return Err(Unsettled::Redeliver(error.to_string()));
                    }
                }
            }
            sent = self.reports.send(reports.clone()).await;
        }
    }

    /// Acknowledges a delivery if everything it caused is safe. Otherwise makes it come again after
    /// a delay.
    pub(super) async fn settle(
        &self,
        delivery: Delivery,
        standing: Standing,
        published: Result<(), Unsettled>,
    ) {
        let mut header = None;
        let delay = match published {
            Ok(()) => return delivery.ack(),
            Err(Unsettled::Unpublished(PublishError::Closed)) => return delivery.requeue(),
            Err(Unsettled::Snooze(delay)) => {
                self.counters.snoozed.increment(1);
                delay
            }
            Err(Unsettled::GoOn(delay, goes_on)) => {
                self.counters.snoozed.increment(1);
                header = Some(goes_on);
                delay
            }
            Err(reason) => {
                self.counters.redelivered.increment(1);
                warn!(pipe = %delivery.pipe, %reason, "a delivery could not be processed; it comes again");
                match reason {
                    Unsettled::Crashed(delay) => delay,
                    _ => REDELIVERY_DELAY,
                }
            }
        };
        let mut headers = standing.redelivery_headers(&delivery);
        if let Some((name, value)) = header {
            headers.set(name, value);
        }
        // Publish it again instead of requeueing it: a requeue counts like a crash, and nothing has
        // crashed.
        let again = |delay| Outgoing {
            headers: headers.clone(),
            delay,
            ..delivery.anew()
        };
        if self.publish(again(Some(delay))).await.is_ok() {
            return delivery.ack();
        }
        // The queue for this delay may be full or unusable, which the pipe itself need not be.
        let pause = tokio::time::sleep(REDELIVERY_DELAY);
        if self.shutdown.run_until_cancelled(pause).await.is_some()
            && self.publish(again(None)).await.is_ok()
        {
            return delivery.ack();
        }
        delivery.requeue();
    }
}

impl<H: BatchHandler> AwaitsConfirm for Reporting<H> {
    fn confirmed(self: Box<Self>) {
        self.delivery.ack();
    }

    fn unconfirmed(self: Box<Self>, reports: Reports, error: PublishError) {
        let Self {
            delivery,
            standing,
            pipeline,
            open,
            running,
        } = *self;
        let about = reports.traced.clone().or_else(|| again(&delivery));
        let content = delivery.content().clone();
        running.task_tracker().clone().spawn(async move {
            let settled = pipeline.settle_reported(delivery, standing, reports, Err(error));
            let settled = match about {
                Some(about) => Either::Left(about.scope(settled)),
                None => Either::Right(settled),
            };
            let settled = unless_it_panics(content, settled);
            // Dropped on `abort`, it goes back to the broker.
            pipeline.abort.run_until_cancelled(settled).await;
            drop((open, running));
        });
    }
}

/// Returns the message of a delivery once more, for what is logged about it.
fn again(delivery: &Delivery) -> Option<Arc<CurrentMessage>> {
    let message = delivery.content().decode().ok()?;
    let attempt = Attempts::of(&delivery.headers, 0).failed.saturating_add(1);
    let pipe = Arc::clone(&delivery.pipe);
    Some(CurrentMessage::new(pipe, message, attempt, None, false))
}
