//! What follows the decision of a handler: the outputs of a delivery are published and confirmed,
//! and then it is reported and settled.
//!
//! Most deliveries cause nothing or a single output, and need no task of their own for it: one
//! without outputs is finished at once, and the confirms of single outputs are awaited one after
//! the other, by one task for those of a turn that go to the same pipe. Any other delivery is
//! finished by itself, and so is one whose output the broker does not take.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contract::TrackingReport;
use contract::rest::LetterCause::NotUnderstood;
use tokio::sync::mpsc;

use super::reporting::again;
use super::{Pipeline, Unsettled, tell_of_panic, unless_it_panics};
use crate::broker::{Delivery, PublishError};
use crate::current::CurrentMessage;
use crate::handler::{BatchHandler, Disposition, Outputs, Received};
use crate::steps::bundles::results::InBundle;
use crate::steps::open_deliveries::KeptOpen;
use crate::steps::publish::{PendingPublish, await_confirms};
use crate::steps::quarantine::Standing;
use crate::steps::report_buffer::Reports;

/// How many confirms are awaited together at most.
const CONFIRMED_TOGETHER: usize = 128;

/// A delivery about which the handler has decided.
pub(crate) struct Decided {
    pub(super) received: Received,
    pub(super) disposition: Disposition,
    /// It is open until it is settled.
    pub(super) open: Arc<KeptOpen>,
}

/// A delivery whose only output is published and not confirmed.
pub(crate) struct Publishing {
    /// The pipe of the output.
    pub pipe: Arc<str>,
    /// The message is not kept until the confirm: that would be most of what the delivery takes in
    /// memory.
    delivery: Delivery,
    standing: Standing,
    output: Published,
    reports: Option<Reports>,
    /// The message, if it is part of a trace.
    traced: Option<Arc<CurrentMessage>>,
    open: Arc<KeptOpen>,
}

enum Published {
    Alone(PendingPublish),
    InBundle(InBundle),
}

impl Published {
    /// Waits until the broker has accepted or refused it.
    async fn wait(&mut self) {
        match self {
            // Whether it is refused is seen again when it is asked for.
            Self::Alone(output) => drop(output.response().await),
            Self::InBundle(output) => output.wait().await,
        }
    }
}

/// What is left to do for a delivery.
pub(crate) enum Left {
    Nothing,
    /// To await the confirm of its output.
    Confirm(Box<Publishing>),
    /// To finish it by itself.
    Finish(Box<Decided>),
}

impl<H: BatchHandler> Pipeline<H> {
    /// Does what was decided about a delivery, as far as nothing must be waited for. Returns what
    /// is left to do.
    pub fn finish_now(self: &Arc<Self>, decided: Decided) -> Left {
        let content = decided.received.delivery.content().clone();
        let finished = catch_unwind(AssertUnwindSafe(|| self.begin_to_finish(decided)));
        finished.unwrap_or_else(|panic| {
            tell_of_panic(&content, &*panic);
            Left::Nothing
        })
    }

    fn begin_to_finish(self: &Arc<Self>, decided: Decided) -> Left {
        let Decided {
            received,
            disposition,
            open,
        } = decided;
        let mut outputs = match disposition {
            Disposition::Done(outputs)
                if outputs.are_one_at_most()
                    // That one is confirmed by another queue.
                    && outputs.messages.iter().all(|message| message.delay.is_none())
                    && !received.is_diverted
                    && !received.standing.is_isolated() =>
            {
                outputs.in_trace(&received.message)
            }
            disposition => {
                return Left::Finish(Box::new(Decided {
                    received,
                    disposition,
                    open,
                }));
            }
        };
        let output = match outputs.result.take() {
            None => outputs.messages.pop().map(Err),
            Some(result) if self.results.knows_readers(&result) => {
                Some(self.results.begin(*result))
            }
            // The broker must be asked.
            result => {
                let disposition = Disposition::Done(Outputs { result, ..outputs });
                return Left::Finish(Box::new(Decided {
                    received,
                    disposition,
                    open,
                }));
            }
        };
        let reports = Reports::of(&received.message, outputs.reports);
        let Received {
            delivery,
            standing,
            message,
            ..
        } = received;
        let (pipe, output) = match output {
            None => {
                self.counters.done.increment(1);
                self.report_then_settle((delivery, standing), reports, open);
                return Left::Nothing;
            }
            Some(Ok(output)) => (Arc::clone(output.pipe()), Published::InBundle(output)),
            Some(Err(message)) => {
                let pipe = Arc::clone(&message.pipe);
                let output = PendingPublish::new(&*self.broker, message);
                (pipe, Published::Alone(output))
            }
        };
        Left::Confirm(Box::new(Publishing {
            pipe,
            delivery,
            standing,
            output,
            reports,
            traced: message.span.context().is_some().then_some(message),
            open,
        }))
    }

    /// Awaits the confirms of outputs, one after the other, and reports and settles their
    /// deliveries. Those whose output the broker does not take are given to `finish`.
    pub async fn confirm(
        self: Arc<Self>,
        mut published: mpsc::UnboundedReceiver<Box<Publishing>>,
        waiting: Arc<AtomicUsize>,
        finish: impl Fn(Decided),
    ) {
        let mut group = Vec::new();
        while published.recv_many(&mut group, CONFIRMED_TOGETHER).await > 0 {
            // Brokers confirm in this order, so waiting for the last one wakes this task once for
            // all of them.
            if let Some(last) = group.last_mut() {
                unless_it_panics(last.delivery.content().clone(), last.output.wait()).await;
            }
            for publishing in group.drain(..) {
                let content = publishing.delivery.content().clone();
                unless_it_panics(content, self.end(*publishing, &finish)).await;
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Reports and settles a delivery when its output is confirmed. Gives it to `finish` if the
    /// broker does not take the output.
    async fn end(self: &Arc<Self>, publishing: Publishing, finish: &impl Fn(Decided)) {
        let Publishing {
            delivery,
            standing,
            output,
            reports,
            traced,
            open,
            ..
        } = publishing;
        let refused = match output {
            Published::Alone(mut output) => match output.response().await {
                Ok(()) => None,
                Err(_) => Some(output),
            },
            Published::InBundle(output) => match output.confirmed().await {
                Ok(()) => None,
                // Nobody waits for confirms any more.
                Err(_) if self.abort.is_cancelled() => return,
                Err(alone) => Some(PendingPublish::new(&*self.broker, alone)),
            },
        };
        let Some(refused) = refused else {
            self.counters.done.increment(1);
            return self.report_then_settle((delivery, standing), reports, open);
        };
        // If the message cannot be read any more, which cannot be, it comes again.
        if let Some(message) = traced.or_else(|| again(&delivery)) {
            let outputs = Outputs {
                pending: vec![refused],
                reports: reports.map_or_else(Vec::new, |reports| reports.list),
                ..Outputs::default()
            };
            finish(Decided {
                received: Received::new(delivery, message, false, standing),
                disposition: Disposition::Done(outputs),
                open,
            });
        }
    }

    /// Does what was decided about a delivery: publishes, and reports or settles.
    pub fn finish(
        self: &Arc<Self>,
        decided: Decided,
    ) -> impl Future<Output = Option<()>> + Send + use<H> {
        let Decided {
            received,
            disposition,
            open,
        } = decided;
        let (content, message) = (
            received.delivery.content().clone(),
            Arc::clone(&received.message),
        );
        let pipeline = Arc::clone(self);
        unless_it_panics(
            content,
            message.scope(pipeline.apply(received, disposition, open)),
        )
    }

    /// Applies the decision of the handler: publishes, reports and settles.
    async fn apply(
        self: Arc<Self>,
        received: Received,
        disposition: Disposition,
        open: Arc<KeptOpen>,
    ) {
        let without_reports = |()| Vec::new();
        let published = match disposition {
            Disposition::Done(outputs) => {
                self.counters.done.increment(1);
                self.publish_or_fail(&received, outputs).await
            }
            Disposition::Forward => {
                self.counters.forwarded.increment(1);
                let outputs = Outputs {
                    messages: received.forwarded().into_iter().collect(),
                    reports: received.final_report().into_iter().collect(),
                    ..Outputs::default()
                };
                self.publish_or_fail(&received, outputs).await
            }
            // Few deliveries take these ways, and each has the memory of what is not boxed.
            Disposition::Invalid(reason) => {
                let moved = self.move_to_invalid(&received.delivery, NotUnderstood, &reason);
                Box::pin(moved).await.map(without_reports)
            }
            Disposition::Fail(reason) => {
                let failed = Box::pin(self.fail(&received, &reason)).await;
                failed.map(without_reports)
            }
            Disposition::Redeliver(reason) => Err(Unsettled::Redeliver(reason)),
            Disposition::Snooze(delay) => Err(Unsettled::Snooze(delay)),
            Disposition::Discard => {
                let Received {
                    delivery, message, ..
                } = received;
                let job = self.status.last_known(message.tracking.as_ref()).await;
                return self.discard(delivery, &message, job);
            }
        };
        match published {
            Ok(reports) => self.report_and_settle(received, reports, open).await,
            Err(reason) => {
                let Received {
                    delivery, standing, ..
                } = received;
                Box::pin(self.settle(delivery, standing, Err(reason))).await;
            }
        }
    }

    /// Publishes outputs, and returns the reports to send now. If the broker does not accept an
    /// output, the handler decides once more; if it never takes what the handler then publishes
    /// either, the task fails.
    async fn publish_or_fail(
        &self,
        received: &Received,
        outputs: Outputs,
    ) -> Result<Vec<TrackingReport>, Unsettled> {
        let error = match self.publish_outputs(&received.message, outputs).await {
            Err(Unsettled::Unpublished(error)) if !matches!(error, PublishError::Closed) => error,
            published => return published,
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
}
