//! The path of a delivery through a worker. Read this first.
//!
//! ```text
//! receive → check → admit → handle → publish → report → settle
//! ```
//!
//! - **receive**: decode the message.
//! - **check**: ask the job service, when a check is due, whether the job still runs
//!   ([`job_service`](crate::job_service)).
//! - **admit**: decide whether it is handled here, by the status of the job and by the pipe that
//!   the message is addressed to ([`routing`](crate::steps::routing)).
//! - **handle**: let the handler decide ([`BatchHandler`]; a [`Worker`](crate::Worker) runs in the
//!   [`executor`]).
//! - **publish**: publish the outputs and await their confirms ([`settling`], where the rest of the
//!   path is).
//! - **report**: send the reports, with those of other deliveries
//!   ([`report_buffer`](crate::steps::report_buffer)).
//! - **settle**: acknowledge the delivery when its reports are confirmed, or let it come again.
//!
//! A delivery goes alone or in a batch, and the quarantine's one at a time, all on this path.
//!
//! What must stay true:
//! - Nothing is acknowledged before everything it caused is confirmed, including what goes to the
//!   invalid and reject pipes. Work may be repeated; it must not be lost.
//! - A report is the last thing that a delivery causes. Once it is counted the job may be finished,
//!   and deliveries of a finished job are discarded.
//! - No delivery can stop the loop. A message that cannot be understood goes to the invalid pipe,
//!   once, with the reason.
//! - The broker's delivery count is about processes, not about messages: it rises for every
//!   delivery that a crashed process had. A high count only moves a message to the quarantine,
//!   where it runs alone ([`quarantine`](crate::steps::quarantine)).
//! - The handler decides about no delivery that came back five times: the message is published anew
//!   before, because brokers give up on one that comes back ever more often.

pub(crate) mod breaker;
pub(crate) mod busy_threads;
pub(crate) mod byte_window;
pub(crate) mod executor;
pub(crate) mod in_flight;
pub(crate) mod intake;
pub(crate) mod quarantine_loop;
pub(crate) mod settling;
pub(crate) mod unpacked;
mod waiting;
pub(crate) mod window;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use contract::rest::LetterCause::{self, NotUnderstood, Unroutable};
use contract::{
    ReportFailure, ReportStatus, ReservedPipes, TaskMessage, TrackingReport, patch_tracking,
    same_pipe,
};
use futures_util::FutureExt;
use futures_util::future::{MaybeDone, join_all, maybe_done};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use self::settling::Decided;
use crate::RetryPolicy;
use crate::announcement::announce_quarantine;
use crate::broker::{Broker, Content, Delivery, HeaderValue, Headers, Outgoing, PublishError};
use crate::current::CurrentMessage;
use crate::handler::{BatchHandler, Disposition, Publisher, Received, UNDELIVERABLE};
use crate::job_service::JobServiceClient;
use crate::meters::Counters;
use crate::steps::attempts::Attempts;
use crate::steps::bundles::results::Results;
use crate::steps::discards::Discards;
use crate::steps::explanation::Explanation;
use crate::steps::open_deliveries::{KeptOpen, OpenDeliveries};
use crate::steps::output::{WorkerIdentity, failed_item, tracking_pipe};
use crate::steps::quarantine::{Quarantine, Standing, back_off};
use crate::steps::report_buffer::ReportBuffer;
use crate::steps::routing::{Admission, JobKnowledge, admit, check_forward, diverted_report};
use crate::supervision::panic_text;
use crate::trace::{Span, TraceContext};

/// The pause before a delivery that could not be processed comes again.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);

/// Processes the deliveries of one runtime.
#[derive(Debug)]
pub(crate) struct Pipeline<H> {
    pub handler: H,
    pub pipes: Pipes,
    /// What the failures of messages say about this process.
    pub identity: Arc<WorkerIdentity>,
    /// The largest body that is decoded, in bytes.
    pub max_body: usize,
    /// The pipes that no message may be addressed to.
    pub reserved: Arc<ReservedPipes>,
    pub broker: Arc<dyn Broker>,
    pub job_service: JobServiceClient,
    pub reports: ReportBuffer,
    pub results: Results,
    pub open: Arc<OpenDeliveries>,
    pub quarantine: Quarantine,
    /// Applies to outputs that the broker refuses.
    pub retry: RetryPolicy,
    pub counters: Counters,
    pub discards: Discards,
    /// What the runtime waits for when it stops: the deliveries that are processed, and those whose
    /// reports are on their way.
    pub running: TaskTracker,
    /// Cancelled when the runtime stops waiting for running tasks.
    pub shutdown: CancellationToken,
    /// Cancelled when the runtime drops whatever still runs.
    pub abort: CancellationToken,
}

/// The pipes of a pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Pipes {
    pub input: String,
    pub invalid: String,
    pub paused: Option<String>,
}

/// Why a delivery cannot be acknowledged. It comes again.
#[derive(Debug, thiserror::Error)]
enum Unsettled {
    #[error(transparent)]
    Unpublished(#[from] PublishError),
    #[error("{0}")]
    Redeliver(String),
    #[error("the worker snoozed it")]
    Snooze(Duration),
    #[error("the worker goes on with it later")]
    GoOn(Duration, (&'static str, HeaderValue)),
    #[error("processes crashed while they held it")]
    Crashed(Duration),
    #[error("its reports cannot be sent: {0}")]
    Unreportable(PublishError),
}

impl<H: BatchHandler> Pipeline<H> {
    /// Lets the handler decide about deliveries. Returns those that are not settled yet: a delivery
    /// that is not admitted is settled at once, or comes again. Drops the slot once the handler has
    /// decided, so that other deliveries are handled while the outputs of these are published.
    pub async fn decide(
        &self,
        deliveries: impl IntoIterator<Item = Delivery, IntoIter: ExactSizeIterator + Send> + Send,
        open: KeptOpen,
        slot: Option<OwnedSemaphorePermit>,
    ) -> impl Iterator<Item = Decided> + Send {
        let receive = |delivery: Delivery| {
            unless_it_panics(delivery.content().clone(), self.receive(delivery))
        };
        let mut deliveries = deliveries.into_iter();
        let received: Vec<Received> = if deliveries.len() == 1
            && let Some(one) = deliveries.next()
        {
            let received = receive(one).await.flatten();
            received.map_or_else(Vec::new, |one| vec![one])
        } else {
            let received = concurrently(deliveries, receive).await;
            received.into_iter().flatten().flatten().collect()
        };
        let dispositions = match &received[..] {
            [] => Vec::new(),
            [one] => {
                let message = Arc::clone(&one.message);
                message.scope(self.handle(&received, slot)).await
            }
            // What the handler logs is about all of them.
            _ => self.handle(&received, slot).await,
        };
        let open = Arc::new(open);
        let decided = received.into_iter().zip(dispositions);
        decided.map(move |(received, disposition)| Decided {
            received,
            disposition,
            open: Arc::clone(&open),
        })
    }

    /// Decodes, checks and admits a delivery. Returns it if the handler must decide about it;
    /// settles it otherwise.
    async fn receive(&self, delivery: Delivery) -> Option<Received> {
        self.counters.received.increment(1);
        if let Some(sent) = delivery.sent {
            let now = self.identity.clock.now_seconds();
            #[expect(clippy::cast_precision_loss, reason = "seconds are fewer")]
            self.counters.in_pipe.record((now - sent).max(0) as f64);
        }
        let standing = self.quarantine.judge(&delivery);
        let mut message = match self.decode(&delivery) {
            Ok(message) => message,
            Err(reason) => {
                let moved = self
                    .move_to_invalid(&delivery, NotUnderstood, &reason)
                    .await;
                self.settle(delivery, standing, moved).await;
                return None;
            }
        };
        let job = self.job_service.check(message.tracking.as_mut()).await;
        let attempt = Attempts::of(&delivery.headers, 0).failed.saturating_add(1);
        let message = CurrentMessage::new(
            Arc::clone(&delivery.pipe),
            message,
            attempt,
            TraceContext::of(&delivery.headers),
            self.handler.max_batch() == 1,
        );
        let received = Received::new(delivery, Arc::clone(&message), false, standing);
        message.scope(self.admit(received, job)).await
    }

    /// Returns a delivery about which the handler must decide. Settles any other.
    async fn admit(&self, received: Received, job: JobKnowledge) -> Option<Received> {
        let Received {
            delivery,
            message,
            standing,
            ..
        } = received;
        let admission = admit(
            self.as_handled(job),
            message.to.as_deref(),
            &self.pipes.input,
            self.pipes.paused.is_some(),
        );
        let moved = match admission {
            Admission::Execute => {
                let received = Received::new(delivery, message, false, standing);
                return self.unless_it_came_back(received).await;
            }
            Admission::Divert => {
                let received = Received::new(delivery, message, true, standing);
                let Err(refusal) = check_forward(&self.reserved, &received.message) else {
                    return self.unless_it_came_back(received).await;
                };
                let failed = self.fail(&received, &refusal.to_string()).await;
                self.settle(received.delivery, standing, failed).await;
                return None;
            }
            Admission::Discard => {
                self.discard(delivery, &message, job);
                return None;
            }
            Admission::Pause => {
                self.counters.paused.increment(1);
                let paused = self.pipes.paused.as_deref().unwrap_or_default();
                self.move_to(paused, &delivery, &message).await
            }
            Admission::Stray => match self.stray_pipe(&message) {
                Some(pipe) => match self.move_to(&pipe, &delivery, &message).await {
                    Err(Unsettled::Unpublished(error)) if error.is_permanent() => {
                        self.move_to_invalid(&delivery, Unroutable, &error.to_string())
                            .await
                    }
                    moved => {
                        self.counters.forwarded.increment(u64::from(moved.is_ok()));
                        moved
                    }
                },
                // It has reached the tracking worker, which counts it, and goes no further.
                None if diverted_report(&message).is_some() => {
                    let received = Received::new(delivery, message, true, standing);
                    return self.unless_it_came_back(received).await;
                }
                None => {
                    let reason = "the message names no pipe (`to`) and is not tracked";
                    self.move_to_invalid(&delivery, Unroutable, reason).await
                }
            },
        };
        self.settle(delivery, standing, moved).await;
        None
    }

    /// Returns a delivery that the handler decides about now. Publishes the message anew if too
    /// many processes crashed while they held it.
    async fn unless_it_came_back(&self, received: Received) -> Option<Received> {
        let delay = match received.standing {
            Standing::Ordinary | Standing::Isolated { .. } | Standing::Poison { .. } => {
                return Some(received);
            }
            Standing::MustWait { crash_count } => Some(back_off(crash_count)),
            // A worker only passes it on: there is no author's code that would have to run alone.
            Standing::MustQuarantine if received.is_diverted && self.handler.gives_up() => {
                Some(REDELIVERY_DELAY)
            }
            Standing::MustQuarantine => None,
        };
        let Received {
            delivery,
            message,
            standing,
            ..
        } = received;
        // Few deliveries take this way, and each has the memory of what is not boxed.
        Box::pin(async {
            let published = match delay {
                Some(delay) => Err(Unsettled::Crashed(delay)),
                None => self.move_to_quarantine(&delivery, &message).await,
            };
            self.settle(delivery, standing, published).await;
        })
        .await;
        None
    }

    /// Returns what is known about a job as far as the handler wants to know.
    fn as_handled(&self, job: JobKnowledge) -> JobKnowledge {
        match job {
            JobKnowledge::Is(status)
                if status.is_finished() && self.handler.handles_ended_jobs() =>
            {
                JobKnowledge::Presumed
            }
            known => known,
        }
    }

    fn decode(&self, delivery: &Delivery) -> Result<TaskMessage, String> {
        let bytes = delivery.bytes();
        if bytes > self.max_body {
            return Err(format!(
                "the body has {bytes} bytes; the limit is {}",
                self.max_body
            ));
        }
        delivery.content().decode()
    }

    /// Returns the tracking pipe of a message without a `to`, unless the message has arrived there.
    fn stray_pipe(&self, message: &TaskMessage) -> Option<Arc<str>> {
        tracking_pipe(message).filter(|pipe| !same_pipe(pipe, &self.pipes.input))
    }

    /// Lets the handler decide about deliveries, and drops the slot once it has. Those without a
    /// decision, for example after a panic, are redelivered.
    async fn handle(
        &self,
        received: &[Received],
        slot: Option<OwnedSemaphorePermit>,
    ) -> Vec<Disposition> {
        // Deliveries that are handled one by one have spans of their own.
        let _span = (self.handler.max_batch() > 1).then(|| {
            let contexts = received.iter().filter_map(|one| one.message.span.context());
            Span::begin_batch(contexts, || {
                let pipe = self.pipes.input.clone();
                let count = received.len().to_string();
                let attributes = vec![
                    ("messaging.destination.name", pipe),
                    ("messaging.batch.message_count", count),
                ];
                (format!("process {}", self.pipes.input), attributes)
            })
        });
        let publisher = Publisher::new(Arc::clone(&self.broker), slot);
        let begun = Instant::now();
        // Pinned where it is made: each move would be room for another copy of it in the memory of
        // the delivery.
        let mut handling = pin!(
            AssertUnwindSafe(async {
                match received {
                    [poison] if matches!(poison.standing, Standing::Poison { .. }) => {
                        vec![self.handler.reject_poison(poison)]
                    }
                    _ => self.handler.handle(received, &publisher).await,
                }
            })
            .catch_unwind()
        );
        let handled = if let [only] = received
            && let Standing::Isolated { crash_count } = only.standing
        {
            warn!(crashes = crash_count, "a quarantined message runs alone");
            tokio::select! {
                biased;
                () = self.abort.cancelled() => {
                    // Other deliveries are dropped on `abort`, which requeues them. An isolated one
                    // must be published again instead, because a requeue would count against it.
                    let reason = "the process is shutting down".to_owned();
                    return vec![Disposition::Redeliver(reason)];
                }
                handled = &mut handling => handled,
            }
        } else {
            handling.await
        };
        self.counters.handling.record(begun.elapsed());
        let mut dispositions = handled.unwrap_or_else(|panic| {
            let panic = panic_text(&*panic);
            match received {
                // The lines about a single message have its ids.
                [_] => error!(panic, "handling a delivery has panicked; it comes again"),
                many => {
                    for Received { message, .. } in many {
                        error!(task = %message.task_id, job = message.job_task_id(), panic, "handling a delivery has panicked; it comes again");
                    }
                }
            }
            Vec::new()
        });
        dispositions.resize_with(received.len(), || {
            Disposition::Redeliver("the handler made no decision".to_owned())
        });
        dispositions
    }

    /// Moves a message that can never get where it belongs to the invalid pipe, and reports its
    /// task as failed.
    async fn fail(&self, received: &Received, reason: &str) -> Result<(), Unsettled> {
        self.move_to_invalid(&received.delivery, Unroutable, reason)
            .await?;
        let report = received.message.job_task_id().map(|id| TrackingReport {
            failure: Some(ReportFailure {
                item: Some(failed_item(&received.message, None)),
                ..self.identity.failure(UNDELIVERABLE, reason)
            }),
            ..TrackingReport::new(id, ReportStatus::Failed)
        });
        let reported = self.report(&received.message, report.into_iter().collect());
        match reported.await {
            Err(reason @ Unsettled::Unreportable(_)) => {
                warn!(%reason, "a task has failed unseen");
                Ok(())
            }
            reported => reported,
        }
    }

    /// Drops a delivery. Acknowledges it, because brokers forget whole runs of acknowledged
    /// deliveries at once, and rejected ones singly: the million messages of a cancelled job would
    /// keep other jobs waiting.
    fn discard(&self, delivery: Delivery, message: &TaskMessage, job: JobKnowledge) {
        debug!(task = %message.task_id, job = message.job_task_id(), ?job, "a message is discarded");
        self.discards.note(message, job);
        delivery.ack();
    }

    async fn move_to_quarantine(
        &self,
        delivery: &Delivery,
        message: &TaskMessage,
    ) -> Result<(), Unsettled> {
        warn!(
            deliveries = delivery.delivery_count,
            "several processes crashed while they held this message; it will run alone"
        );
        self.counters.quarantined.increment(1);
        let moved = self.move_to(&self.quarantine.pipe, delivery, message).await;
        self.quarantine.added.notify_one();
        if moved.is_ok() {
            // Not awaited: a process that does not receive it looks later.
            drop(announce_quarantine(&*self.broker, &self.quarantine.pipe));
        }
        moved
    }

    /// Publishes the message to another pipe as it came, except for the refreshed time of its
    /// status check.
    async fn move_to(
        &self,
        pipe: &str,
        delivery: &Delivery,
        message: &TaskMessage,
    ) -> Result<(), Unsettled> {
        let body = delivery.body();
        let body =
            patch_tracking(&body, message.tracking.as_ref()).unwrap_or_else(|_| body.to_vec());
        self.publish(Outgoing {
            headers: delivery.headers.clone(),
            ..Outgoing::new(pipe, body)
        })
        .await
    }

    /// Publishes the message to the invalid pipe, with the reason and its origin in headers.
    async fn move_to_invalid(
        &self,
        delivery: &Delivery,
        cause: LetterCause,
        reason: &str,
    ) -> Result<(), Unsettled> {
        warn!(pipe = %delivery.pipe, reason, "a message cannot be handled; it goes to {}", self.pipes.invalid);
        self.counters.invalid.increment(1);
        let invalid = |mut headers: Headers| {
            let explanation = Explanation {
                cause,
                reason,
                worker: Some(&self.identity.name),
            };
            explanation.set_on_invalid(&mut headers, delivery);
            Outgoing {
                headers,
                ..Outgoing::new(self.pipes.invalid.as_str(), delivery.body())
            }
        };
        match self.publish(invalid(delivery.headers.clone())).await {
            // Its own headers leave no room for ours.
            Err(Unsettled::Unpublished(PublishError::Unacceptable { .. })) => {
                self.publish(invalid(Headers::default())).await
            }
            moved => moved,
        }
    }

    async fn publish(&self, message: Outgoing) -> Result<(), Unsettled> {
        Ok(self.broker.publish(message).await?)
    }
}

/// Takes a step with a delivery that has this content. If the step panics, this logs the task and
/// returns `None`. The delivery was dropped then, which lets it come again.
fn unless_it_panics<T>(
    content: Content,
    step: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    let stepped = AssertUnwindSafe(step).catch_unwind();
    stepped.map(move |result| match result {
        Ok(result) => Some(result),
        Err(panic) => {
            tell_of_panic(&content, &*panic);
            None
        }
    })
}

fn tell_of_panic(content: &Content, panic: &(dyn Any + Send)) {
    // Decoding it may be what has panicked.
    let message = catch_unwind(AssertUnwindSafe(|| content.decode())).ok();
    let message = message.and_then(Result::ok);
    let task = message.as_ref().map(|message| message.task_id.as_str());
    let job = message.as_ref().and_then(TaskMessage::job_task_id);
    error!(
        task,
        job,
        panic = panic_text(panic),
        "processing a delivery has panicked; it comes again"
    );
}

/// Runs `act` on all items concurrently and returns the results in order. What ends without waiting
/// takes the memory of one: a batch of deliveries that need nothing but the handler's decision
/// would take megabytes otherwise.
async fn concurrently<T, F: Future>(
    items: impl Iterator<Item = T>,
    mut act: impl FnMut(T) -> F,
) -> Vec<F::Output> {
    let mut begun: Vec<_> = items
        .map(|item| {
            let mut future = maybe_done(Box::pin(act(item)));
            // Whatever waits is polled again below, together with the others.
            let _ = (&mut future).now_or_never();
            future
        })
        .collect();
    let waiting = begun
        .iter_mut()
        .filter(|future| matches!(future, MaybeDone::Future(_)));
    join_all(waiting).await;
    let results = begun
        .iter_mut()
        .map(|future| Pin::new(future).take_output());
    results.flatten().collect()
}
