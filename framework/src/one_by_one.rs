//! How a [`Worker`] is run: the collector that takes one delivery at a time.
//!
//! Decodes the payload, runs the author's code, and says what its answer or its error causes.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use contract::{TaskData, TaskMessage, TaskStatus, TrackingReport};
use futures_util::FutureExt;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::answer::{Draft, Part, Produced};
use crate::broker::{HeaderValue, Headers, Outgoing, PublishError};
use crate::clock::now_millis;
use crate::collector::{Arrival, Collector, Courier, Effects, Verdict};
use crate::context::{Context, Dispatched, Surroundings, not_taken};
use crate::worker::{Answer, TaskErrorKind};
use crate::{Reply, RetryPolicy, TaskError, Worker};

/// How many attempts have failed. Ours alone: a broker's count tells of processes.
pub(crate) const ATTEMPTS_HEADER: &str = "x-batchwright-attempts";
/// When the first attempt began, milliseconds since 1970.
const FIRST_ATTEMPT_HEADER: &str = "x-batchwright-first-attempt";
/// Between two attempts of a task whose surroundings are down.
const UNAVAILABLE_DELAYS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(30));

pub(crate) struct OneByOne<W> {
    pub worker: W,
    pub surroundings: Surroundings,
    pub pipes: Pipes,
    /// What is missing around the worker, while it is: no new tasks are taken.
    pub unavailable: watch::Sender<Option<String>>,
}

/// The pipes of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Pipes {
    pub input: String,
    pub output: Option<String>,
    pub reject: String,
}

impl<W: Worker> Collector for OneByOne<W> {
    fn limit(&self) -> usize {
        1
    }

    async fn collect(&self, arrivals: &[Arrival], _: &Courier) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            verdicts.push(if arrival.is_diverted() {
                Verdict::PassOn
            } else {
                self.attend(arrival).await
            });
        }
        verdicts
    }

    fn undeliverable(&self, arrival: &Arrival, error: &PublishError) -> Verdict {
        let (pipe, verdict) = match error {
            PublishError::Refused { pipe, .. } => (
                pipe,
                self.given_up(arrival, &error.to_string(), Dispatched::default()),
            ),
            PublishError::Unroutable { pipe, .. } => (
                pipe,
                self.failed(arrival.message(), &error.to_string(), Dispatched::default()),
            ),
            PublishError::Closed => return Verdict::Again(error.to_string()),
        };
        let Verdict::Done(mut effects) = verdict else {
            return verdict;
        };
        if effects
            .messages
            .iter()
            .any(|message| *message.pipe == **pipe)
        {
            // The result cannot be told there either; a copy of the task is kept for people.
            effects.messages = vec![self.copy(arrival)];
        }
        Verdict::Done(effects)
    }

    fn missing(&self) -> Option<String> {
        self.unavailable.borrow().clone()
    }

    fn condemn(&self, arrival: &Arrival) -> Verdict {
        let reason = format!(
            "{} could not process the item.",
            self.surroundings.author.name
        );
        self.given_up(arrival, &reason, Dispatched::default())
    }
}

impl<W: Worker> OneByOne<W> {
    async fn attend(&self, arrival: &Arrival) -> Verdict {
        let mut attempts = Attempts::of(arrival.headers());
        // What earlier attempts have dispatched is dispatched again, under the same names, and must be safe all the same.
        let mut earlier = Vec::new();
        loop {
            let ctx = Context::new(
                arrival.message.clone(),
                attempts.failed + 1,
                self.surroundings.clone(),
            );
            let answered = self.run(arrival.message(), &ctx).await;
            let mut dispatched = ctx.finish().await;
            let answered = match &dispatched.not_taken {
                Some(error) => answered.and(Err(not_taken(error))),
                None => answered,
            };
            if let Err(error) = &answered
                && let Some(next) = self.next_in_place(error, attempts, &ctx)
            {
                warn!(task = ctx.task_id(), job = ctx.job_task_id(), attempt = next.failed, reason = %error, "a task is tried again at once");
                ctx.tell(self.retry_report(arrival, &error.chain(), next));
                earlier.append(&mut dispatched.unconfirmed);
                attempts = next;
                continue;
            }
            dispatched.unconfirmed.append(&mut earlier);
            return match answered {
                Ok(reply) => self.answered(arrival.message(), &reply.0, dispatched),
                Err(error) => self.erred(arrival, &error, attempts, dispatched),
            };
        }
    }

    /// The attempt that follows here and now, if one does.
    fn next_in_place(
        &self,
        error: &TaskError,
        attempts: Attempts,
        ctx: &Context,
    ) -> Option<Attempts> {
        let retry = &self.surroundings.retry;
        // Whoever is to stop hands the task over to others.
        let is_here = error.kind == TaskErrorKind::Retry
            && retry.is_immediate()
            && ctx.check_cancelled().is_ok();
        if is_here {
            attempts.next(retry).map(|(_, next)| next)
        } else {
            None
        }
    }

    /// Runs the author's code; in place again and again while its surroundings are down.
    async fn run(
        &self,
        message: &TaskMessage,
        ctx: &Context,
    ) -> Result<Reply<W::Output>, TaskError> {
        let mut delay = UNAVAILABLE_DELAYS.0;
        loop {
            let task = decode::<W::Input>(message)?;
            let run = AssertUnwindSafe(self.worker.run(task, ctx.clone()))
                .catch_unwind()
                .await;
            let answered = run.unwrap_or_else(|panic| {
                Err(TaskError::retry(format!(
                    "the worker panicked: {}",
                    panic_text(&*panic)
                )))
            });
            match answered {
                Err(error) if error.kind == TaskErrorKind::Unavailable => {
                    self.wait_for_surroundings(&error, delay).await?;
                    delay = (delay * 2).min(UNAVAILABLE_DELAYS.1);
                    // What was dispatched is dispatched again, under the same names.
                    ctx.finish().await;
                }
                answered => {
                    self.unavailable
                        .send_if_modified(|what| what.take().is_some());
                    return answered;
                }
            }
        }
    }

    async fn wait_for_surroundings(
        &self,
        error: &TaskError,
        delay: Duration,
    ) -> Result<(), TaskError> {
        warn!(what = %error, ?delay, "the worker's surroundings are down; the task is kept");
        self.unavailable.send_replace(Some(error.chain()));
        tokio::select! {
            () = tokio::time::sleep(delay) => Ok(()),
            () = self.surroundings.shutdown.cancelled() => Err(TaskError::unavailable("the process is shutting down")),
        }
    }

    fn answered(
        &self,
        input: &TaskMessage,
        answer: &Answer<W::Output>,
        dispatched: Dispatched,
    ) -> Verdict {
        let part = dispatched.answer();
        let draft = match answer {
            Answer::PassOn => return Verdict::Done(effects(dispatched, Produced::default())),
            Answer::None => Draft {
                ends_tracking: true,
                ..success::<W::Output>(part, None, Vec::new(), None)
            },
            Answer::Send {
                output,
                to,
                is_failure,
                ends_tracking,
                context,
            } => {
                let Some(to) = to.as_deref().or(self.pipes.output.as_deref()) else {
                    return self.failed(
                        input,
                        "the worker sends output, but no output pipe is configured",
                        dispatched,
                    );
                };
                let data = match serde_json::to_vec(output) {
                    Ok(data) => data,
                    Err(error) => {
                        return self.failed(
                            input,
                            &format!("the output is no JSON: {error}"),
                            dispatched,
                        );
                    }
                };
                let status = if *is_failure {
                    TaskStatus::ResultFailure
                } else {
                    TaskStatus::ResultSuccess
                };
                Draft {
                    status,
                    ends_tracking: *ends_tracking,
                    ..success::<W::Output>(part, Some(to), data, context.clone())
                }
            }
        };
        let produced = self.surroundings.author.produce(input, draft);
        Verdict::Done(effects(dispatched, produced))
    }

    fn erred(
        &self,
        arrival: &Arrival,
        error: &TaskError,
        attempts: Attempts,
        dispatched: Dispatched,
    ) -> Verdict {
        let input = arrival.message();
        debug!(task = %input.task_id, job = input.job_task_id(), ?error, "a task was not done");
        match error.kind {
            TaskErrorKind::Cancelled => Verdict::Discard,
            TaskErrorKind::Unavailable => Verdict::Again(error.chain()),
            TaskErrorKind::Later(delay) => Verdict::Later(delay),
            TaskErrorKind::Invalid => self.invalid(input, &error.chain(), dispatched),
            TaskErrorKind::Failed => self.failed(input, &error.chain(), dispatched),
            TaskErrorKind::Retry => {
                if let Some((delay, attempts)) = attempts.next(&self.surroundings.retry) {
                    return self.retried(arrival, &error.chain(), delay, attempts, dispatched);
                }
                let reason = format!(
                    "{} (given up after {} attempts)",
                    error.chain(),
                    attempts.failed + 1
                );
                self.given_up(arrival, &reason, dispatched)
            }
        }
    }

    /// The task comes back to the tail of its pipe after the delay.
    fn retried(
        &self,
        arrival: &Arrival,
        reason: &str,
        delay: Duration,
        attempts: Attempts,
        dispatched: Dispatched,
    ) -> Verdict {
        warn!(task = %arrival.message.task_id, job = arrival.message.job_task_id(), attempt = attempts.failed, ?delay, reason, "a task is tried again");
        let again = Outgoing {
            delay: (!delay.is_zero()).then_some(delay),
            headers: attempts.into_headers(arrival.headers()),
            ..Outgoing::new(self.pipes.input.as_str(), arrival.delivery.body.clone())
        };
        let report = self.retry_report(arrival, reason, attempts);
        // The parts of this attempt are dispatched again by the next one, and counted once.
        Verdict::Done(Effects {
            unconfirmed: dispatched.unconfirmed,
            messages: vec![again],
            reports: report.into_iter().collect(),
        })
    }

    fn retry_report(
        &self,
        arrival: &Arrival,
        reason: &str,
        attempts: Attempts,
    ) -> Option<TrackingReport> {
        arrival.message().job_task_id().map(|id| TrackingReport {
            retries: i32::try_from(attempts.failed).ok(),
            failure: Some(self.surroundings.author.failure("RETRY", reason)),
            ..TrackingReport::new(id, contract::ReportStatus::Retry)
        })
    }

    /// The last attempt has failed: a copy goes to the reject pipe, for people.
    fn given_up(&self, arrival: &Arrival, reason: &str, dispatched: Dispatched) -> Verdict {
        match self.failed(arrival.message(), reason, dispatched) {
            Verdict::Done(mut effects) => {
                effects.messages.push(self.copy(arrival));
                Verdict::Done(effects)
            }
            other => other,
        }
    }

    /// A copy of a task for the reject pipe.
    fn copy(&self, arrival: &Arrival) -> Outgoing {
        let copy = TaskMessage {
            task_id: uuid::Uuid::new_v4().to_string(),
            task_status: Some(TaskStatus::ResultException),
            context: std::collections::BTreeMap::new(),
            to: Some(self.pipes.reject.clone()),
            priority: None,
            ..arrival.message().clone()
        };
        Outgoing::new(self.pipes.reject.as_str(), copy.encode())
    }

    fn failed(&self, input: &TaskMessage, reason: &str, dispatched: Dispatched) -> Verdict {
        warn!(task = %input.task_id, job = input.job_task_id(), reason, "a task has failed");
        let data = serde_json::to_vec(reason).unwrap_or_default();
        self.negative(input, TaskStatus::ResultException, data, reason, dispatched)
    }

    fn invalid(&self, input: &TaskMessage, reason: &str, dispatched: Dispatched) -> Verdict {
        warn!(task = %input.task_id, job = input.job_task_id(), reason, "a task was not understood");
        self.negative(
            input,
            TaskStatus::InvalidTask,
            reason.as_bytes().to_vec(),
            reason,
            dispatched,
        )
    }

    fn negative(
        &self,
        input: &TaskMessage,
        status: TaskStatus,
        data: Vec<u8>,
        reason: &str,
        dispatched: Dispatched,
    ) -> Verdict {
        let draft = Draft {
            // Its own name: where a split breaks off differs from attempt to attempt, and the number after the last subtask of
            // this one may be that of a subtask of another, which is done.
            part: Part::Whole,
            to: self.pipes.output.as_deref(),
            status,
            classifier: input.task_classifier.as_deref().unwrap_or_default(),
            api_version: input.task_api_version,
            data,
            note: None,
            failure: Some(reason),
            ends_tracking: false,
        };
        let produced = self.surroundings.author.produce(input, draft);
        Verdict::Done(effects(dispatched, produced))
    }
}

fn success<T: TaskData>(
    part: Part,
    to: Option<&str>,
    data: Vec<u8>,
    note: Option<Vec<u8>>,
) -> Draft<'_> {
    Draft {
        part,
        to,
        status: TaskStatus::ResultSuccess,
        classifier: T::CLASSIFIER,
        api_version: T::API_VERSION,
        data,
        note,
        failure: None,
        ends_tracking: false,
    }
}

fn effects(dispatched: Dispatched, produced: Produced) -> Effects {
    let mut reports = dispatched.reports;
    reports.extend(produced.report);
    Effects {
        unconfirmed: dispatched.unconfirmed,
        messages: produced.message.into_iter().collect(),
        reports,
    }
}

/// The payload of a message for this worker.
fn decode<T: TaskData>(message: &TaskMessage) -> Result<T, TaskError> {
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    if classifier != T::CLASSIFIER {
        return Err(TaskError::invalid(format!(
            "Task of type {classifier} found on queue for {}",
            T::CLASSIFIER
        )));
    }
    let version = message.task_api_version;
    if version > T::API_VERSION {
        let own = T::API_VERSION;
        return Err(TaskError::invalid(format!(
            "the task has version {version} of {classifier}; this worker understands up to {own}"
        )));
    }
    let data = message
        .task_data
        .as_deref()
        .ok_or_else(|| TaskError::invalid("the message has no task data"))?;
    serde_json::from_slice(data)
        .map_err(|error| TaskError::invalid(format!("Invalid input message: {error}")))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// The attempts of a task so far, as its headers tell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempts {
    failed: u32,
    first_began: i64,
}

impl Attempts {
    fn of(headers: &Headers) -> Self {
        let number = |name| match headers.get(name)? {
            HeaderValue::Integer(n) => Some(*n),
            HeaderValue::Text(text) => text.parse().ok(),
        };
        let failed = number(ATTEMPTS_HEADER)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0);
        Self {
            failed,
            first_began: number(FIRST_ATTEMPT_HEADER).unwrap_or_else(now_millis),
        }
    }

    /// This attempt has failed too: the delay before the next one, if there is to be one.
    fn next(self, policy: &RetryPolicy) -> Option<(Duration, Self)> {
        let failed = self.failed + 1;
        let elapsed =
            Duration::from_millis(u64::try_from(now_millis() - self.first_began).unwrap_or(0));
        Some((
            policy.delay_after(failed, elapsed)?,
            Self { failed, ..self },
        ))
    }

    fn into_headers(self, others: &Headers) -> Headers {
        let mut headers = others.clone();
        headers.set(
            ATTEMPTS_HEADER,
            HeaderValue::Integer(i64::from(self.failed)),
        );
        headers.set(FIRST_ATTEMPT_HEADER, HeaderValue::Integer(self.first_began));
        headers
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::{BatchTask, ReportStatus, Tracking, TrackingReportTask};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::broker::Broker;
    use crate::broker::memory::Memory;
    use crate::{NoOutput, Runtime, Settings, TaskError};

    /// Splits, and fails before it is through.
    struct Splitter;

    impl Worker for Splitter {
        type Input = BatchTask;
        type Output = NoOutput;

        async fn run(&self, task: BatchTask, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
            ctx.dispatch("items", &task).await?;
            ctx.dispatch("items", &task).await?;
            Err(TaskError::failed("the rest cannot be read"))
        }
    }

    /// What is reported of a message for this pipe that arrives in the splitter's input.
    async fn report_of(to: &str) -> (String, ReportStatus) {
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let tracking = Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            last_status_check_time: Some(now_millis()),
            tracking_pipe: Some("tracking".to_owned()),
            track_to: Some("end".to_owned()),
            ..Tracking::default()
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", to, &BatchTask::default()).unwrap()
        };
        broker
            .publish(Outgoing::new("splitter-in", message.encode()))
            .await
            .unwrap();
        let mut reports = broker.consume("tracking", 1).await.unwrap();
        let ready =
            Runtime::new(Settings::new("splitter"), Arc::new(broker.clone())).worker(Splitter);
        let report = async {
            let delivery = reports.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body).unwrap();
            delivery.ack();
            stop.cancel();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            let [report] = task.tracking_reports.as_slice() else {
                panic!("{task:?}")
            };
            (report.job_task_id.clone(), report.status)
        };
        let both = async { tokio::join!(ready.run_until(stop.clone()), report).1 };
        tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_split_that_fails_is_reported_by_its_own_name_and_not_by_that_of_a_subtask() {
        assert_eq!(
            report_of("splitter-in").await,
            ("p:j.1".to_owned(), ReportStatus::Failed)
        );
    }

    #[tokio::test]
    async fn a_message_that_is_passed_on_to_where_its_tracking_ends_is_reported() {
        assert_eq!(
            report_of("end").await,
            ("p:j.1".to_owned(), ReportStatus::Complete)
        );
    }
}
