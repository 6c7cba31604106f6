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
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, debug_span, warn};

use crate::answer::tracking_pipe;
use crate::broker::{Broker, Delivery, HeaderValue, Outgoing, PublishError};
use crate::collector::{Arrival, Collector, Courier, Effects, Verdict};
use crate::metrics::Metrics;
use crate::reports::{OpenDeliveries, ReportBuffer, Reports};
use crate::routing::{Admission, admit, diverted_report};
use crate::status::StatusChecker;

/// Says on a message in the invalid pipe why it is there.
pub const REASON_HEADER: &str = "x-batchwright-reason";
/// Says on a message in the invalid pipe from which pipe it came.
pub const ORIGIN_HEADER: &str = "x-batchwright-origin";
/// Before a delivery that could not be dealt with comes again.
const BEFORE_AGAIN: Duration = Duration::from_secs(1);
/// A delivery that came back this often is not run beside others any more.
const SUSPECT_AT: u32 = 5;
/// A suspect that came back this often, alone each time, is condemned.
const CONDEMNED_AT: u32 = 3;

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
    pub metrics: Metrics,
    pub shutdown: CancellationToken,
}

#[derive(Debug, Clone)]
pub(crate) struct ProcessPipes {
    pub input: String,
    pub invalid: String,
    pub paused: Option<String>,
    /// Deliveries that may have killed a process, run one at a time.
    pub suspects: String,
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
}

impl<C: Collector> Process<C> {
    /// Carries deliveries from arrival to settlement. The slot is free again when the collector has decided.
    pub async fn process(&self, deliveries: Vec<Delivery>, slot: OwnedSemaphorePermit) {
        let count = deliveries.len();
        let arrivals: Vec<Arrival> = each(deliveries, |delivery| self.arrive(delivery)).await.into_iter().flatten().collect();
        if !arrivals.is_empty() {
            let verdicts = self.collect(&arrivals).await;
            drop(slot);
            each(arrivals.into_iter().zip(verdicts).collect(), |(arrival, verdict)| self.carry_out(arrival, verdict)).await;
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
        let caused = match admit(job, message.to.as_deref(), &self.pipes.input, self.pipes.paused.is_some()) {
            Admission::Execute if self.is_suspect(&delivery) => {
                warn!(pipe = %delivery.pipe, task = %message.task_id, count = delivery.delivery_count, "a suspect: it is run alone");
                self.hand_over(&delivery, &self.pipes.suspects, &message).await
            }
            Admission::Execute => return Some(Arrival { delivery, message, is_diverted: false }),
            Admission::Divert => return Some(Arrival { delivery, message, is_diverted: true }),
            Admission::Discard => {
                self.discard(delivery, &message);
                return None;
            }
            Admission::Pause => {
                self.metrics.paused.increment(1);
                self.hand_over(&delivery, self.pipes.paused.as_deref().unwrap_or_default(), &message).await
            }
            Admission::Stray => match tracking_pipe(&message).filter(|pipe| !same_pipe(pipe, &self.pipes.input)) {
                Some(pipe) => self.hand_over(&delivery, &pipe, &message).await,
                // It has come to the tracking worker to be counted, and has nowhere to go from here.
                None if diverted_report(&message).is_some() => return Some(Arrival { delivery, message, is_diverted: true }),
                None => self.to_invalid(&delivery, "the message names no pipe (`to`) and is not tracked").await,
            },
        };
        self.settle(delivery, caused).await;
        None
    }

    fn is_suspect(&self, delivery: &Delivery) -> bool {
        delivery.delivery_count >= SUSPECT_AT && *delivery.pipe != *self.pipes.suspects
    }

    fn is_condemned(&self, delivery: &Delivery) -> bool {
        delivery.delivery_count >= CONDEMNED_AT && *delivery.pipe == *self.pipes.suspects
    }

    fn decode(&self, delivery: &Delivery) -> Result<TaskMessage, String> {
        if delivery.body.len() > self.max_body {
            return Err(format!("the body has {} bytes; the limit is {}", delivery.body.len(), self.max_body));
        }
        TaskMessage::decode(&delivery.body).map_err(|error| error.to_string())
    }

    /// The collector decides; when it panics, the deliveries come again.
    async fn collect(&self, arrivals: &[Arrival]) -> Vec<Verdict> {
        let span = match arrivals {
            [one] => debug_span!("delivery", pipe = %one.delivery.pipe, task = %one.message.task_id, job = one.message.job_task_id()),
            many => debug_span!("deliveries", pipe = %self.pipes.input, count = many.len()),
        };
        if let [suspect] = arrivals
            && self.is_condemned(&suspect.delivery)
        {
            return vec![self.collector.condemn(suspect)];
        }
        let courier = Courier(Arc::clone(&self.broker));
        let collected = AssertUnwindSafe(self.collector.collect(arrivals, &courier)).catch_unwind().instrument(span).await;
        let mut verdicts = collected.unwrap_or_else(|_| Vec::new());
        verdicts.resize_with(arrivals.len(), || Verdict::Again("the collector did not decide".to_owned()));
        verdicts
    }

    async fn carry_out(&self, arrival: Arrival, verdict: Verdict) {
        let caused = match verdict {
            Verdict::Done(effects) => {
                self.metrics.done.increment(1);
                match self.cause(&arrival.message, effects).await {
                    Err(Unsettled::NotTaken(error @ PublishError::Unroutable { .. })) => {
                        match self.collector.undeliverable(&arrival, error.to_string()) {
                            Verdict::Done(effects) => self.cause(&arrival.message, effects).await,
                            _ => Err(error.into()),
                        }
                    }
                    caused => caused,
                }
            }
            Verdict::PassOn => {
                self.metrics.passed_on.increment(1);
                let messages = arrival.onward().into_iter().collect();
                let effects = Effects { messages, reports: arrival.last_report().into_iter().collect(), ..Effects::default() };
                self.cause(&arrival.message, effects).await
            }
            Verdict::Invalid(reason) => self.to_invalid(&arrival.delivery, &reason).await,
            Verdict::Again(reason) => Err(Unsettled::Again(reason)),
            Verdict::Later(delay) => Err(Unsettled::Later(delay)),
            Verdict::Discard => return self.discard(arrival.delivery, &arrival.message),
        };
        self.settle(arrival.delivery, caused).await;
    }

    /// Everything that a delivery causes, in order: outputs, then reports.
    async fn cause(&self, message: &TaskMessage, effects: Effects) -> Result<(), Unsettled> {
        let Effects { unconfirmed, messages, reports } = effects;
        let published: Vec<_> = messages.into_iter().map(|message| self.broker.publish(message)).collect();
        for confirm in unconfirmed.into_iter().chain(published) {
            confirm.await?;
        }
        if let (false, Some(pipe)) = (reports.is_empty(), tracking_pipe(message)) {
            self.reports.send(Reports { pipe, correlation_id: message.correlation_id.clone(), list: reports }).await?;
        }
        Ok(())
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
        let headers = delivery.headers.clone();
        let again = Outgoing { headers, delay: Some(delay), ..Outgoing::new(self.pipes.input.as_str(), delivery.body.clone()) };
        if self.publish(again).await.is_ok() {
            return delivery.ack();
        }
        self.shutdown.run_until_cancelled(tokio::time::sleep(BEFORE_AGAIN)).await;
        delivery.requeue();
    }

    fn discard(&self, delivery: Delivery, message: &TaskMessage) {
        debug!(task = %message.task_id, job = message.job_task_id(), "discarded: the job has ended");
        self.metrics.discarded.increment(1);
        delivery.reject();
    }

    /// The message as it came, with the refreshed time of its status check.
    async fn hand_over(&self, delivery: &Delivery, pipe: &str, message: &TaskMessage) -> Result<(), Unsettled> {
        let body = patch_tracking(&delivery.body, message.tracking.as_ref()).unwrap_or_else(|_| delivery.body.to_vec());
        self.publish(Outgoing { headers: delivery.headers.clone(), ..Outgoing::new(pipe, body) }).await
    }

    async fn to_invalid(&self, delivery: &Delivery, reason: &str) -> Result<(), Unsettled> {
        warn!(pipe = %delivery.pipe, reason, "a message could not be understood; it goes to {}", self.pipes.invalid);
        self.metrics.invalid.increment(1);
        let mut headers = delivery.headers.clone();
        headers.set(REASON_HEADER, HeaderValue::Text(reason.to_owned()));
        headers.set(ORIGIN_HEADER, HeaderValue::Text(delivery.pipe.to_string()));
        self.publish(Outgoing { headers, ..Outgoing::new(self.pipes.invalid.as_str(), delivery.body.clone()) }).await
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use contract::{RangeItem, Tracking, TrackingReportTask};

    use super::*;
    use crate::broker::memory::Memory;
    use crate::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};

    /// Notes which items it is given.
    struct Noting(Arc<Mutex<Vec<u64>>>);

    impl Worker for Noting {
        type Input = RangeItem;
        type Output = NoOutput;

        async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
            self.0.lock().unwrap().push(item.number);
            Ok(Reply::none())
        }
    }

    fn item() -> Vec<u8> {
        let item = RangeItem { number: 7, params: std::collections::BTreeMap::new() };
        let tracking = Tracking { job_task_id: Some("p:j.7".into()), tracking_pipe: Some("tracking".into()), ..Tracking::default() };
        TaskMessage { tracking: Some(tracking), ..TaskMessage::new("t.7", "w-in", &item).unwrap() }.encode()
    }

    /// So many processes die while they have the message of this pipe.
    async fn die(pipes: &Memory, pipe: &str, times: u32) {
        for _ in 0..times {
            let process = pipes.process();
            let mut consumer = process.consume(pipe, 1).await.unwrap();
            let _held = consumer.next().await.unwrap();
            process.crash();
        }
    }

    /// Runs the worker until there is a message for the tracking worker; answers what was run, and the report.
    async fn run_until_reported(pipes: &Memory) -> (Vec<u64>, contract::TrackingReport) {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let runtime = Runtime::new(Settings::new("w"), Arc::new(pipes.clone())).worker(Noting(Arc::clone(&ran)));
        let reported = async {
            let mut reports = pipes.consume("tracking", 1).await.unwrap();
            let delivery = reports.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body).unwrap();
            delivery.ack();
            stop.cancel();
            serde_json::from_slice::<TrackingReportTask>(&message.task_data.unwrap()).unwrap().tracking_reports.remove(0)
        };
        let (ended, report) = tokio::join!(runtime.run_until(stop.clone()), reported);
        ended.unwrap();
        let ran = ran.lock().unwrap().clone();
        (ran, report)
    }

    #[tokio::test]
    async fn a_message_that_was_there_when_five_processes_died_is_run_alone_and_not_condemned() {
        let pipes = Memory::new();
        pipes.publish(Outgoing::new("w-in", item())).await.unwrap();
        die(&pipes, "w-in", SUSPECT_AT).await;
        let (ran, report) = run_until_reported(&pipes).await;
        assert_eq!((ran, report.status), (vec![7], contract::ReportStatus::Complete));
        assert_eq!(pipes.depth("w-reject").await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_suspect_that_was_alone_when_three_processes_died_is_rejected_without_being_run() {
        let pipes = Memory::new();
        pipes.publish(Outgoing::new("w-in.suspects", item())).await.unwrap();
        die(&pipes, "w-in.suspects", CONDEMNED_AT).await;
        let (ran, report) = run_until_reported(&pipes).await;
        assert_eq!((ran, report.status), (Vec::new(), contract::ReportStatus::Failed));
        assert_eq!(report.failure.unwrap().failure_message.as_deref(), Some("w could not process the item."));
        assert_eq!(pipes.depth("w-reject").await.unwrap(), 1);
        assert_eq!(pipes.depth("w-in.suspects").await.unwrap(), 0);
    }
}
