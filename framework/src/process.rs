//! The journey of deliveries through a process, from arrival to settlement. Read this first.
//!
//! ```text
//! decode → status check → admit → collect (run) → publish, confirmed → report, confirmed → acknowledge
//! ```
//!
//! What must stay true:
//! - Nothing is acknowledged before everything it caused is confirmed, dead ends included. Work may repeat; it may not
//!   vanish.
//! - A report is the last thing that a delivery causes: from the moment it is counted the job may be finished, and
//!   whatever of a finished job comes again is discarded.
//! - No delivery can kill the loop: what cannot be understood goes to the invalid pipe, once, with the reason.
//! - The broker's delivery count tells of processes, not of messages: it rises for every neighbour of a crash. It makes a
//!   message a suspect, which is handed over to a pipe of its own and run alone. There, and only there, it condemns.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use contract::{TaskMessage, patch_tracking, same_pipe};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, debug_span, warn};

use crate::RetryPolicy;
use crate::answer::tracking_pipe;
use crate::broker::{Broker, Delivery, HeaderValue, Outgoing, PublishError};
use crate::collector::{Arrival, Collector, Courier, Effects, Verdict};
use crate::metrics::Metrics;
use crate::reports::{OpenDeliveries, ReportBuffer, Reports};
use crate::routing::{Admission, admit, diverted_report};
use crate::sending::{Sent, all_confirmed};
use crate::status::StatusChecker;
use crate::suspects::Suspects;

/// Says on a message in the invalid pipe why it is there.
pub const REASON_HEADER: &str = "x-batchwright-reason";
/// Says on a message in the invalid pipe from which pipe it came.
pub const ORIGIN_HEADER: &str = "x-batchwright-origin";
/// Before a delivery that could not be dealt with comes again.
const BEFORE_AGAIN: Duration = Duration::from_secs(1);

/// What carries deliveries through this process.
#[derive(Debug)]
pub(crate) struct Process<C> {
    pub collector: C,
    pub pipes: ProcessPipes,
    pub max_body: usize,
    pub broker: Arc<dyn Broker>,
    pub status: StatusChecker,
    pub reports: ReportBuffer,
    pub open: Arc<OpenDeliveries>,
    pub suspects: Suspects,
    /// What becomes of outputs that the broker refuses.
    pub retry: RetryPolicy,
    pub metrics: Metrics,
    /// Trips when the process gives up on its running tasks, and when it drops them.
    pub shutdown: CancellationToken,
    pub abort: CancellationToken,
}

#[derive(Debug, Clone)]
pub(crate) struct ProcessPipes {
    pub input: String,
    pub invalid: String,
    pub paused: Option<String>,
}

/// Why a delivery is not settled: it goes back.
#[derive(Debug, thiserror::Error)]
enum Unsettled {
    #[error(transparent)]
    NotTaken(#[from] PublishError),
    #[error("{0}")]
    Again(String),
    #[error("it is not its time")]
    Later(Duration),
    #[error("its reports cannot be sent: {0}")]
    Unreportable(PublishError),
}

impl<C: Collector> Process<C> {
    /// Carries deliveries from arrival to settlement. The slot, if it is one, is free again when the collector has decided.
    pub async fn process<S: Send>(&self, deliveries: Vec<Delivery>, slot: S) {
        let count = deliveries.len();
        let arrivals: Vec<Arrival> = each(deliveries, |delivery| self.arrive(delivery))
            .await
            .into_iter()
            .flatten()
            .collect();
        if !arrivals.is_empty() {
            let verdicts = self.collect(&arrivals).await;
            drop(slot);
            each(
                arrivals.into_iter().zip(verdicts).collect(),
                |(arrival, verdict)| self.carry_out(arrival, verdict),
            )
            .await;
        }
        self.open.remove(count);
    }

    /// Decodes, checks and admits one delivery. What does not come through is settled here.
    async fn arrive(&self, delivery: Delivery) -> Option<Arrival> {
        self.metrics.received.increment(1);
        let mut message = match self.decode(&delivery) {
            Ok(message) => message,
            Err(reason) => {
                let caused = self.to_invalid(&delivery, &reason).await;
                self.settle(delivery, caused).await;
                return None;
            }
        };
        let job = self.status.check(message.tracking.as_mut()).await;
        let caused = match admit(
            job,
            message.to.as_deref(),
            &self.pipes.input,
            self.pipes.paused.is_some(),
        ) {
            Admission::Execute if self.suspects.suspects(&delivery) => {
                warn!(pipe = %delivery.pipe, task = %message.task_id, count = delivery.delivery_count, "a suspect: it will be run alone");
                let caused = self
                    .hand_over(&delivery, &self.suspects.pipe, &message)
                    .await;
                self.suspects.added.notify_one();
                caused
            }
            Admission::Execute => {
                return Some(Arrival {
                    delivery,
                    message,
                    is_diverted: false,
                });
            }
            Admission::Divert => {
                return Some(Arrival {
                    delivery,
                    message,
                    is_diverted: true,
                });
            }
            Admission::Discard => {
                self.discard(delivery, &message);
                return None;
            }
            Admission::Pause => {
                self.metrics.paused.increment(1);
                self.hand_over(
                    &delivery,
                    self.pipes.paused.as_deref().unwrap_or_default(),
                    &message,
                )
                .await
            }
            Admission::Stray => {
                match tracking_pipe(&message).filter(|pipe| !same_pipe(pipe, &self.pipes.input)) {
                    Some(pipe) => self.hand_over(&delivery, &pipe, &message).await,
                    // It has come to the tracking worker to be counted, and has nowhere to go from here.
                    None if diverted_report(&message).is_some() => {
                        return Some(Arrival {
                            delivery,
                            message,
                            is_diverted: true,
                        });
                    }
                    None => {
                        self.to_invalid(
                            &delivery,
                            "the message names no pipe (`to`) and is not tracked",
                        )
                        .await
                    }
                }
            }
        };
        self.settle(delivery, caused).await;
        None
    }

    fn decode(&self, delivery: &Delivery) -> Result<TaskMessage, String> {
        if delivery.body.len() > self.max_body {
            return Err(format!(
                "the body has {} bytes; the limit is {}",
                delivery.body.len(),
                self.max_body
            ));
        }
        TaskMessage::decode(&delivery.body).map_err(|error| error.to_string())
    }

    /// The collector decides; when it panics, the deliveries come again.
    async fn collect(&self, arrivals: &[Arrival]) -> Vec<Verdict> {
        let span = match arrivals {
            [one] => {
                debug_span!("delivery", pipe = %one.delivery.pipe, task = %one.message.task_id, job = one.message.job_task_id())
            }
            many => debug_span!("deliveries", pipe = %self.pipes.input, count = many.len()),
        };
        let courier = Courier(Arc::clone(&self.broker));
        let collecting = AssertUnwindSafe(self.collector.collect(arrivals, &courier))
            .catch_unwind()
            .instrument(span);
        let collected = match arrivals {
            [suspect] if self.suspects.condemns(&suspect.delivery) => {
                return vec![self.collector.condemn(suspect)];
            }
            [suspect] if self.suspects.is_one(&suspect.delivery) => {
                match self.abort.run_until_cancelled(collecting).await {
                    Some(collected) => collected,
                    // Others are dropped with all that they are in the middle of, and go back; but that would count against it.
                    None => return vec![Verdict::Again("the process is shutting down".to_owned())],
                }
            }
            _ => collecting.await,
        };
        let mut verdicts = collected.unwrap_or_else(|_| Vec::new());
        verdicts.resize_with(arrivals.len(), || {
            Verdict::Again("the collector did not decide".to_owned())
        });
        verdicts
    }

    async fn carry_out(&self, arrival: Arrival, verdict: Verdict) {
        let caused = match verdict {
            Verdict::Done(effects) => {
                self.metrics.done.increment(1);
                self.cause_or_fail(&arrival, effects).await
            }
            Verdict::PassOn => {
                self.metrics.passed_on.increment(1);
                let messages = arrival.onward().into_iter().collect();
                let effects = Effects {
                    messages,
                    reports: arrival.last_report().into_iter().collect(),
                    ..Effects::default()
                };
                self.cause_or_fail(&arrival, effects).await
            }
            Verdict::Invalid(reason) => self.to_invalid(&arrival.delivery, &reason).await,
            Verdict::Again(reason) => Err(Unsettled::Again(reason)),
            Verdict::Later(delay) => Err(Unsettled::Later(delay)),
            Verdict::Discard => return self.discard(arrival.delivery, &arrival.message),
        };
        self.settle(arrival.delivery, caused).await;
    }

    /// What a delivery causes; where the broker does not take that, now or ever, what the collector makes of it. A delivery whose
    /// reports nobody can take is bad input.
    async fn cause_or_fail(&self, arrival: &Arrival, effects: Effects) -> Result<(), Unsettled> {
        let caused = match self.cause(&arrival.message, effects).await {
            Err(Unsettled::NotTaken(
                error @ (PublishError::Unroutable { .. } | PublishError::Refused { .. }),
            )) => match self.collector.undeliverable(arrival, &error) {
                Verdict::Done(effects) => self.cause(&arrival.message, effects).await,
                _ => Err(error.into()),
            },
            caused => caused,
        };
        match caused {
            Err(reason @ Unsettled::Unreportable(_)) => {
                self.to_invalid(&arrival.delivery, &reason.to_string())
                    .await
            }
            caused => caused,
        }
    }

    /// Everything that a delivery causes, in order: outputs, then reports.
    async fn cause(&self, message: &TaskMessage, effects: Effects) -> Result<(), Unsettled> {
        let Effects {
            unconfirmed: mut sent,
            messages,
            reports,
        } = effects;
        sent.extend(
            messages
                .into_iter()
                .map(|message| Sent::new(&*self.broker, message)),
        );
        if let Err(error) = all_confirmed(sent, &*self.broker, &self.retry, &self.shutdown).await {
            return Err(if self.shutdown.is_cancelled() {
                Unsettled::Again(error.to_string())
            } else {
                error.into()
            });
        }
        match tracking_pipe(message).filter(|_| !reports.is_empty()) {
            Some(pipe) => {
                self.report(Reports {
                    pipe,
                    correlation_id: message.correlation_id.clone(),
                    list: reports,
                })
                .await
            }
            None => Ok(()),
        }
    }

    /// A tracking pipe that is full will have room again: what has been done is not done again because of it.
    async fn report(&self, reports: Reports) -> Result<(), Unsettled> {
        loop {
            match self.reports.send(reports.clone()).await {
                Ok(()) => return Ok(()),
                Err(error @ PublishError::Unroutable { .. }) => {
                    return Err(Unsettled::Unreportable(error));
                }
                Err(error @ PublishError::Closed) => return Err(error.into()),
                Err(error @ PublishError::Refused { .. }) => {
                    warn!(reason = %error, "reports are refused; they are sent again");
                    if self
                        .shutdown
                        .run_until_cancelled(tokio::time::sleep(BEFORE_AGAIN))
                        .await
                        .is_none()
                    {
                        return Err(Unsettled::Again(error.to_string()));
                    }
                }
            }
        }
    }

    /// Acknowledges a delivery whose consequences are safe; lets any other come again later.
    async fn settle(&self, delivery: Delivery, caused: Result<(), Unsettled>) {
        let delay = match caused {
            Ok(()) => return delivery.ack(),
            Err(Unsettled::NotTaken(PublishError::Closed)) => return delivery.requeue(),
            Err(Unsettled::Later(delay)) => delay,
            Err(reason) => {
                warn!(pipe = %delivery.pipe, %reason, "a delivery was not dealt with and comes again");
                BEFORE_AGAIN
            }
        };
        // Not requeued: that would count against it, and it has killed nobody.
        let headers = self.suspects.headers(&delivery);
        let again = Outgoing {
            headers,
            delay: Some(delay),
            ..Outgoing::new(Arc::clone(&delivery.pipe), delivery.body.clone())
        };
        if self.publish(again).await.is_ok() {
            return delivery.ack();
        }
        self.shutdown
            .run_until_cancelled(tokio::time::sleep(BEFORE_AGAIN))
            .await;
        delivery.requeue();
    }

    fn discard(&self, delivery: Delivery, message: &TaskMessage) {
        debug!(task = %message.task_id, job = message.job_task_id(), "discarded: the job has ended");
        self.metrics.discarded.increment(1);
        delivery.reject();
    }

    /// The message as it came, with the refreshed time of its status check.
    async fn hand_over(
        &self,
        delivery: &Delivery,
        pipe: &str,
        message: &TaskMessage,
    ) -> Result<(), Unsettled> {
        let body = patch_tracking(&delivery.body, message.tracking.as_ref())
            .unwrap_or_else(|_| delivery.body.to_vec());
        self.publish(Outgoing {
            headers: delivery.headers.clone(),
            ..Outgoing::new(pipe, body)
        })
        .await
    }

    async fn to_invalid(&self, delivery: &Delivery, reason: &str) -> Result<(), Unsettled> {
        warn!(pipe = %delivery.pipe, reason, "a message could not be understood; it goes to {}", self.pipes.invalid);
        self.metrics.invalid.increment(1);
        let mut headers = delivery.headers.clone();
        headers.set(REASON_HEADER, HeaderValue::Text(reason.to_owned()));
        headers.set(ORIGIN_HEADER, HeaderValue::Text(delivery.pipe.to_string()));
        self.publish(Outgoing {
            headers,
            ..Outgoing::new(self.pipes.invalid.as_str(), delivery.body.clone())
        })
        .await
    }

    async fn publish(&self, message: Outgoing) -> Result<(), Unsettled> {
        Ok(self.broker.publish(message).await?)
    }
}

/// Does the same with each of these, all at once. Most often there is one only, and that one is not made to pay for others.
async fn each<T, F: Future>(mut these: Vec<T>, mut act: impl FnMut(T) -> F) -> Vec<F::Output> {
    match these.pop() {
        Some(only) if these.is_empty() => vec![act(only).await],
        last => join_all(these.into_iter().chain(last).map(act)).await,
    }
}
