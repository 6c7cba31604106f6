//! Runs a [`Worker`]: the batch handler that takes one delivery at a time.
//!
//! It decodes the task data, runs the author's code, and turns the reply or the error into outputs.

mod blocking;
mod failing;

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use contract::rest::LetterCause::{Poison, Unroutable};
use contract::{FailedRun, TaskData, TaskMessage, TaskStatus};
use futures_util::FutureExt;
use tokio::sync::watch;
use tracing::warn;

use self::failing::Tried;
use crate::announcement::job_of;
use crate::broker::PublishError;
use crate::context::{Context, Dispatched, Shared, check_result_pipe, undispatched};
use crate::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use crate::pipeline::breaker::{CircuitBreaker, Place, Verdict};
use crate::pipeline::busy_threads;
use crate::steps::attempts::Attempts;
use crate::steps::bundles::results::Unsent;
use crate::steps::output::{Made, Output, OutputSpec, TaskPart, label_in};
use crate::steps::quarantine::crash_count;
use crate::steps::resumption::Resumption;
use crate::steps::routing::reply_pipe;
use crate::steps::{task_data, time_limit};
use crate::supervision::panic_text;
use crate::worker::{ReplyKind, TaskErrorKind};
use crate::{Reply, RetryPolicy, TaskError, Worker};

/// How long a task runs before that is reported. Shorter tasks cost no report.
const LONG_RUN: Duration = Duration::from_secs(1);

/// The delays between runs of a task whose dependencies are unavailable.
static UNAVAILABLE_DELAYS: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(30)).forever();

/// Runs one worker.
pub(crate) struct TaskExecutor<W> {
    pub worker: W,
    pub shared: Arc<Shared>,
    pub pipes: WorkerPipes,
    /// How long one attempt may take.
    pub time_limit: Option<Duration>,
    /// How long a task runs before the log says so.
    pub stuck_task: Duration,
    /// Trips when tasks fail in a row in the same way; `None` if it is off.
    pub breaker: Option<CircuitBreaker>,
    /// Why the worker's dependencies are unavailable, while they are. The runtime starts no new
    /// tasks meanwhile.
    pub unavailable: watch::Sender<Option<String>>,
}

/// The pipes of a worker.
#[derive(Debug, Clone)]
pub(crate) struct WorkerPipes {
    pub input: String,
    pub output: Option<String>,
    pub reject: String,
}

impl<W: Worker> BatchHandler for TaskExecutor<W> {
    fn max_batch(&self) -> usize {
        1
    }

    fn takes_bundles(&self) -> bool {
        W::TAKES_BUNDLES
    }

    async fn handle(&self, batch: &[Received], _: &Publisher) -> Vec<Disposition> {
        let mut dispositions = Vec::with_capacity(batch.len());
        for received in batch {
            dispositions.push(if received.is_diverted() {
                Disposition::Forward
            } else {
                self.execute(received).await
            });
        }
        dispositions
    }

    fn on_undeliverable(&self, received: &Received, error: &PublishError) -> Disposition {
        if error.is_permanent() && received.is_diverted() {
            // The message is not this worker's: it has no result of this worker.
            return Disposition::Fail(error.to_string());
        }
        let nothing = Dispatched::default();
        // When the attempt began is not known any more.
        let (run, reason) = (None, error.to_string());
        let (pipe, mut outputs) = match error {
            PublishError::Unacceptable { .. } => {
                // The pipe takes others, so it takes the result.
                let failed = self.fail(received, &reason, run, nothing);
                return Disposition::Done(failed);
            }
            PublishError::Refused { pipe, .. }
            | PublishError::Impossible { pipe, .. }
            | PublishError::Unroutable { pipe, .. } => (
                pipe,
                self.give_up(received, Unroutable, &reason, run, nothing),
            ),
            PublishError::Closed => return Disposition::Redeliver(error.to_string()),
        };
        if outputs
            .messages
            .iter()
            .any(|message| *message.pipe == **pipe)
        {
            // The result cannot be published either. What is left is the copy of the task, for
            // people.
            let copy = outputs.messages.pop();
            outputs.messages = copy.into_iter().collect();
        }
        Disposition::Done(outputs)
    }

    fn unready_reason(&self) -> Option<String> {
        self.unavailable.borrow().clone()
    }

    fn reject_poison(&self, received: &Received) -> Disposition {
        let reason = format!("{} could not process the item.", self.shared.identity.name);
        // It did not run here.
        let failed = self.fail(received, &reason, None, Dispatched::default());
        let deaths = FailedRun {
            attempt: Some(crash_count(&received.delivery)),
            ..FailedRun::default()
        };
        let copy = self.reject_copy(received, Poison, &reason, Some(&deaths));
        Disposition::Done(failed.with_message(copy))
    }
}

impl<W: Worker> TaskExecutor<W> {
    /// Executes a task: one attempt, or several if the retry policy has no delays.
    async fn execute(&self, received: &Received) -> Disposition {
        let mut began = self.now();
        let mut attempts = Attempts::of(received.headers(), began);
        // Earlier attempts dispatched the same subtasks under the same ids. Their confirms are
        // awaited all the same.
        let mut earlier = Vec::new();
        let job_limit = time_limit::of_job_or_warning(received.headers());
        let resumption = Resumption::of(received.headers(), received.message().job_task_id());
        loop {
            let ctx = Context::new(
                Arc::clone(&received.message),
                (
                    attempts.failed.saturating_add(1),
                    blocking::blocks(received.headers()),
                ),
                job_limit,
                resumption,
                Arc::clone(&self.shared),
            );
            let mut label = None;
            let result = self.run(received, &ctx, &mut label).await;
            let mut dispatched = ctx.finish().await;
            let result = match &dispatched.refusal {
                Some(error)
                    if needs_all(&result) || error.is_permanent() && comes_again(&result) =>
                {
                    Err(undispatched(error))
                }
                _ => result,
            };
            let brought = match &result {
                Err(error) if error.kind == TaskErrorKind::Retry => {
                    let tracking = received.message().tracking.as_ref();
                    self.shared.job_service.job_policy(tracking).await
                }
                _ => None,
            };
            let policy = brought.as_deref().unwrap_or(&self.shared.retry);
            if let Err(error) = &result
                && let Some(next) = self.next_in_place(error, attempts, policy, &ctx)
            {
                warn!(
                    reason = error.chain(),
                    "an attempt failed; the task runs again at once"
                );
                self.shared.counters.retried.increment(1);
                let run = self.failed_run(attempts, began);
                ctx.send_report(self.retry_report(received, &error.chain(), run, label));
                earlier.append(&mut dispatched.pending);
                (attempts, began) = (next, self.now());
                received
                    .message
                    .set_attempt(attempts.failed.saturating_add(1));
                continue;
            }
            dispatched.pending.append(&mut earlier);
            return match result {
                Ok(reply) => {
                    let label = label.as_deref();
                    let run = || self.failed_run(attempts, began);
                    self.on_reply(received, &reply.0, label, run, dispatched)
                }
                Err(error) => {
                    let run = self.failed_run(attempts, began);
                    let tried = Tried {
                        attempts,
                        policy,
                        run,
                        label,
                    };
                    self.on_error(received, &error, tried, dispatched)
                }
            };
        }
    }

    /// Returns the count for an attempt that follows at once, if one does. When the job has ended
    /// or the process stops, none does.
    fn next_in_place(
        &self,
        error: &TaskError,
        attempts: Attempts,
        policy: &RetryPolicy,
        ctx: &Context,
    ) -> Option<Attempts> {
        let runs_in_place =
            error.kind == TaskErrorKind::Retry && policy.is_immediate() && ctx.may_go_on();
        if runs_in_place {
            attempts.next(policy, self.now(), 0).map(|(_, next)| next)
        } else {
            None
        }
    }

    /// Runs the author's code, and keeps what the task calls itself. While its dependencies are
    /// unavailable, runs it again and again in its slot.
    async fn run(
        &self,
        received: &Received,
        ctx: &Context,
        label: &mut Option<String>,
    ) -> Result<Reply<W::Output>, TaskError> {
        let given = label_in(received.headers());
        let mut delays = UNAVAILABLE_DELAYS.delays();
        let mut place = None;
        loop {
            let task =
                task_data::decode::<W::Input>(received.message()).map_err(TaskError::invalid)?;
            *label = task_data::label(&task).or_else(|| given.map(str::to_owned));
            let run = AssertUnwindSafe(self.worker.run(task, ctx.clone())).catch_unwind();
            let run = pin!(run);
            let run = reported_when_long(run, ctx, self.stuck_task);
            let run = ctx.within_limit::<W, _>(self.time_limit, run).await;
            let result = run.and_then(|run| {
                run.unwrap_or_else(|panic| {
                    Err(TaskError::retry(format!(
                        "the worker panicked: {}",
                        panic_text(&*panic)
                    )))
                })
            });
            match result {
                // That concerns this task alone: others go on, and it comes again.
                Err(error) if ctx.lacks_an_answer() => {
                    drop(place.take());
                    self.tell_whether_unavailable();
                    return Err(ctx.ask_again_later(&error));
                }
                Err(error)
                    if error.kind == TaskErrorKind::Unavailable && !ctx.is_refused_for_ever() =>
                {
                    self.wait_while_unavailable(&error.chain(), delays.next().unwrap_or_default())
                        .await?;
                    // The next run dispatches the same subtasks again, under the same ids.
                    ctx.finish().await;
                }
                Err(error) if error.kind == TaskErrorKind::Blocked => {
                    // It waits for something else than the circuit breaker.
                    drop(place.take());
                    let reason = error.chain();
                    // Few tasks wait for a condition, and each delivery has the memory of what is
                    // not boxed.
                    if let Some(error) = Box::pin(self.hand_over(received, error)).await {
                        self.tell_whether_unavailable();
                        return Err(error);
                    }
                    self.wait_while_unavailable(&reason, delays.next().unwrap_or_default())
                        .await?;
                    // The next run dispatches the same subtasks again, under the same ids.
                    ctx.finish().await;
                }
                result => {
                    let verdict = self.judge(&result, (received, ctx), &mut place);
                    self.tell_whether_unavailable();
                    match (verdict, &place) {
                        (Verdict::Stays, Some(place)) => {
                            let waits = self.shared.shutdown.run_until_cancelled(place.wait());
                            let stops = || TaskError::unavailable("the process is shutting down");
                            waits.await.ok_or_else(stops)?;
                            // The next run dispatches the same subtasks again, under the same ids.
                            ctx.finish().await;
                        }
                        (Verdict::MakesWay, _) => {
                            let reason = "the circuit breaker is open, and another task tries";
                            return Err(TaskError::unavailable(reason));
                        }
                        _ => return result,
                    }
                }
            }
        }
    }

    /// Tells the circuit breaker how a run has ended, and returns what follows.
    fn judge<'a>(
        &'a self,
        result: &Result<Reply<W::Output>, TaskError>,
        (received, ctx): (&Received, &Context),
        place: &mut Option<Place<'a>>,
    ) -> Verdict {
        let Some(breaker) = &self.breaker else {
            return Verdict::Fails;
        };
        match result {
            Ok(_) => breaker.succeed(),
            Err(error) if error.kind == TaskErrorKind::Retry && !ctx.is_over_time() => {
                let job = received.message().job_task_id().map(job_of);
                return breaker.fail(error, job, place);
            }
            Err(error) => {
                let is_result =
                    matches!(error.kind, TaskErrorKind::Failed | TaskErrorKind::Invalid);
                if let Some(place) = place.take().filter(|_| is_result) {
                    place.end_otherwise();
                }
            }
        }
        Verdict::Fails
    }

    /// Tells the runtime why it takes nothing, if it does not.
    fn tell_whether_unavailable(&self) {
        self.unavailable.send_if_modified(|told| {
            let reason = self.breaker.as_ref().and_then(CircuitBreaker::reason);
            let is_news = *told != reason;
            *told = reason;
            is_news
        });
    }

    async fn wait_while_unavailable(&self, reason: &str, delay: Duration) -> Result<(), TaskError> {
        let stops = || TaskError::unavailable("the process is shutting down");
        // A task that stops with its process says the same of itself, and lacks nothing.
        if self.shared.shutdown.is_cancelled() {
            return Err(stops());
        }
        warn!(
            reason,
            ?delay,
            "the worker's dependencies are unavailable; the task waits"
        );
        self.unavailable.send_replace(Some(reason.to_owned()));
        let pause = tokio::time::sleep(delay);
        let waited = self.shared.shutdown.run_until_cancelled(pause).await;
        waited.ok_or_else(stops)
    }

    fn on_reply(
        &self,
        received: &Received,
        reply: &ReplyKind<W::Output>,
        label: Option<&str>,
        run: impl FnOnce() -> FailedRun,
        dispatched: Dispatched,
    ) -> Disposition {
        let (input, part) = (received.message(), dispatched.reply_part());
        let spec = match reply {
            ReplyKind::PassOn => {
                return Disposition::Done(outputs(dispatched, Output::default()));
            }
            ReplyKind::None => OutputSpec {
                ends_tracking: true,
                ..success::<W::Output>(part, None, Vec::new(), None)
            },
            ReplyKind::Send {
                output,
                to,
                is_failure,
                ends_tracking,
                note,
                if_wanted,
            } => {
                let configured = self.pipes.output.as_deref();
                let to = to.as_deref();
                let Some(to) = to.or_else(|| reply_pipe(configured, input.tracking.as_ref()))
                else {
                    if *if_wanted {
                        return self.on_reply(received, &ReplyKind::None, label, run, dispatched);
                    }
                    let reason = "the worker sends output, but it has no output pipe, and the job names no target pipe";
                    return self.no_reply(received, reason, run(), dispatched);
                };
                if Some(to) != configured
                    && let Err(refusal) = check_result_pipe(&self.shared.reserved, input, to)
                {
                    return self.no_reply(received, &refusal.to_string(), run(), dispatched);
                }
                let data = match serde_json::to_vec(output) {
                    Ok(data) => data,
                    Err(error) => {
                        let reason = format!("the output cannot be serialized to JSON: {error}");
                        return self.no_reply(received, &reason, run(), dispatched);
                    }
                };
                let status = if *is_failure {
                    TaskStatus::ResultFailure
                } else {
                    TaskStatus::ResultSuccess
                };
                OutputSpec {
                    status,
                    label,
                    time_limit: time_limit::of_job(received.headers()),
                    ends_tracking: *ends_tracking,
                    ..success::<W::Output>(part, Some(to), data, note.clone())
                }
            }
        };
        if spec.part == TaskPart::Whole && self.shared.bundling.most > 1 {
            return Disposition::Done(self.with_result(input, spec, dispatched));
        }
        let output = self.shared.identity.output(input, spec);
        Disposition::Done(outputs(dispatched, output))
    }

    /// Returns the outputs of a task whose result may go with those of others.
    fn with_result(
        &self,
        input: &TaskMessage,
        mut spec: OutputSpec<'_>,
        dispatched: Dispatched,
    ) -> Outputs {
        let data = std::mem::take(&mut spec.data);
        let Made { message, report } = self.shared.identity.make(input, &spec);
        let result = message.map(|made| {
            Box::new(Unsent {
                pipe: made.pipe.into(),
                headers: made.headers,
                message: TaskMessage {
                    task_data: Some(data),
                    ..made.message
                },
            })
        });
        let message = None;
        Outputs {
            result,
            ..outputs(dispatched, Output { message, report })
        }
    }

    /// Fails a task whose reply cannot be sent.
    fn no_reply(&self, of: &Received, why: &str, run: FailedRun, had: Dispatched) -> Disposition {
        Disposition::Done(self.fail(of, why, Some(run), had))
    }

    fn now(&self) -> i64 {
        self.shared.identity.clock.now_millis()
    }
}

/// Returns whether a task with this result counts on all that it has dispatched.
fn needs_all<T>(result: &Result<T, TaskError>) -> bool {
    let error = result.as_ref().err();
    error.is_none_or(|error| matches!(error.kind, TaskErrorKind::GoOn(_)))
}

/// Returns whether a task with this result runs again.
fn comes_again<T>(result: &Result<T, TaskError>) -> bool {
    use TaskErrorKind::{Blocked, Cancelled, Failed, GoOn, Invalid, Retry, Snooze, Unavailable};
    result.as_ref().is_err_and(|error| match error.kind {
        Retry | Unavailable | Snooze(_) | GoOn(_) | Blocked => true,
        Failed | Invalid | Cancelled => false,
    })
}

/// Awaits a run. Once it has lasted [`LONG_RUN`], reports that the task runs; once it has lasted
/// `stuck`, says so in the log.
async fn reported_when_long<T>(
    run: Pin<&mut impl Future<Output = T>>,
    ctx: &Context,
    stuck: Duration,
) -> T {
    let mut run = pin!(busy_threads::shown(run, ctx));
    // In this order, a run that ends without waiting registers no timer and is not noted.
    tokio::select! {
        biased;
        result = &mut run => return result,
        () = async {
            let _noted = ctx.note_running();
            tokio::time::sleep(LONG_RUN).await;
        } => {}
    }
    ctx.report_running();
    let _long = ctx.note_long_run(LONG_RUN);
    tokio::select! {
        biased;
        result = &mut run => return result,
        () = tokio::time::sleep(stuck.saturating_sub(LONG_RUN)) => {}
    }
    warn!(
        running_for = ?stuck,
        "a task has been running for long; look whether it hangs"
    );
    run.await
}

fn success<T: TaskData>(
    part: TaskPart,
    to: Option<&str>,
    data: Vec<u8>,
    note: Option<Vec<u8>>,
) -> OutputSpec<'_> {
    OutputSpec {
        part,
        to,
        status: TaskStatus::ResultSuccess,
        classifier: T::CLASSIFIER,
        api_version: T::API_VERSION,
        data,
        note,
        failure: None,
        run: None,
        label: None,
        time_limit: None,
        ends_tracking: false,
    }
}

fn outputs(dispatched: Dispatched, output: Output) -> Outputs {
    let mut reports = dispatched.reports;
    if let Some(report) = output.report {
        // A vector that grows by itself gets room for four, and a report is large.
        reports.reserve_exact(1);
        reports.push(report);
    }
    Outputs {
        pending: dispatched.pending,
        messages: output.message.into_iter().collect(),
        result: None,
        reports,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::{BatchTask, ReportStatus, TaskMessage, Tracking, TrackingReportTask};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::broker::memory::Memory;
    use crate::broker::{Broker, Outgoing};
    use crate::clock::Clock;
    use crate::{NoOutput, Runtime, Settings, TaskError};

    /// Dispatches two subtasks, then fails.
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

    /// Returns the report on a message for the pipe `to` that arrives in the splitter's input.
    async fn report_of(to: &str) -> (String, ReportStatus) {
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        let tracking = Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            last_status_check_time: Some(Clock::system().now_millis()),
            tracking_pipe: Some("tracking".into()),
            track_to: Some("end".into()),
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
        let service =
            Runtime::new(Settings::new("splitter"), Arc::new(broker.clone())).worker(Splitter);
        let report = async {
            let delivery = reports.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            stop.cancel();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            let [report] = task.tracking_reports.as_slice() else {
                panic!("{task:?}")
            };
            (report.job_task_id.clone(), report.status)
        };
        let both = async { tokio::join!(service.run_until(stop.clone()), report).1 };
        tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn failed_split_is_reported_under_its_own_id() {
        assert_eq!(
            report_of("splitter-in").await,
            ("p:j.1".to_owned(), ReportStatus::Failed)
        );
    }

    #[tokio::test]
    async fn message_forwarded_to_its_track_to_pipe_is_reported_complete() {
        assert_eq!(
            report_of("end").await,
            ("p:j.1".to_owned(), ReportStatus::Complete)
        );
    }
}
