//! Runs a [`Worker`]: the batch handler that takes one delivery at a time.
//!
//! It decodes the task data, runs the author's code, and turns the reply or the error into outputs.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use contract::{
    FailedItem, FailedRun, ReportFailure, ReportStatus, TaskData, TaskMessage, TaskStatus,
    TrackingReport,
};
use futures_util::FutureExt;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::broker::{Headers, Outgoing, PublishError};
use crate::context::{Context, Dispatched, Shared, check_result_pipe, undispatched};
use crate::current;
use crate::handler::{BatchHandler, Disposition, Outputs, Publisher, Received, explain};
use crate::pipeline::busy_threads;
use crate::steps::attempts::Attempts;
use crate::steps::output::{Output, OutputSpec, TaskPart, describe, label_in};
use crate::steps::routing::{failure_pipe, reply_pipe};
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
    /// Why the worker's dependencies are unavailable, while they are. The runtime starts no new tasks meanwhile.
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
            PublishError::Refused { pipe, .. } => {
                (pipe, self.give_up(received, &reason, run, nothing))
            }
            PublishError::Unacceptable { .. } => {
                // The pipe takes others, so it takes the result.
                let failed = self.fail(received, &reason, run, nothing);
                return Disposition::Done(failed);
            }
            PublishError::Impossible { pipe, .. } | PublishError::Unroutable { pipe, .. } => {
                (pipe, self.fail(received, &reason, run, nothing))
            }
            PublishError::Closed => return Disposition::Redeliver(error.to_string()),
        };
        if outputs
            .messages
            .iter()
            .any(|message| *message.pipe == **pipe)
        {
            // The result cannot be published either. Keep a copy of the task for people.
            outputs.messages = vec![self.reject_copy(received, &reason)];
        }
        Disposition::Done(outputs)
    }

    fn unready_reason(&self) -> Option<String> {
        self.unavailable.borrow().clone()
    }

    fn reject_poison(&self, received: &Received) -> Disposition {
        let reason = format!("{} could not process the item.", self.shared.identity.name);
        // It did not run here.
        Disposition::Done(self.give_up(received, &reason, None, Dispatched::default()))
    }
}

impl<W: Worker> TaskExecutor<W> {
    /// Executes a task: one attempt, or several if the retry policy has no delays.
    async fn execute(&self, received: &Received) -> Disposition {
        let mut began = self.now();
        let mut attempts = Attempts::of(received.headers(), began);
        // Earlier attempts dispatched the same subtasks under the same ids. Their confirms are awaited all the same.
        let mut earlier = Vec::new();
        let job_limit = time_limit::of_job_or_warning(received.headers());
        loop {
            let ctx = Context::new(
                Arc::clone(&received.message),
                attempts.failed.saturating_add(1),
                job_limit,
                Arc::clone(&self.shared),
            );
            let mut label = None;
            let result = self.run(received, &ctx, &mut label).await;
            let mut dispatched = ctx.finish().await;
            let result = match &dispatched.refusal {
                Some(error) if result.is_ok() || error.is_permanent() && comes_again(&result) => {
                    Err(undispatched(error))
                }
                _ => result,
            };
            if let Err(error) = &result
                && let Some(next) = self.next_in_place(error, attempts, &ctx)
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
                    self.on_error(received, &error, attempts, run, label, dispatched)
                }
            };
        }
    }

    /// Returns the count for an attempt that follows at once, if one does. When the job has ended or the process stops,
    /// none does.
    fn next_in_place(
        &self,
        error: &TaskError,
        attempts: Attempts,
        ctx: &Context,
    ) -> Option<Attempts> {
        let retry = &self.shared.retry;
        let runs_in_place =
            error.kind == TaskErrorKind::Retry && retry.is_immediate() && ctx.may_go_on();
        if runs_in_place {
            attempts.next(retry, self.now()).map(|(_, next)| next)
        } else {
            None
        }
    }

    /// Runs the author's code, and keeps what the task calls itself. While its dependencies are unavailable, runs it again and
    /// again in its slot.
    async fn run(
        &self,
        received: &Received,
        ctx: &Context,
        label: &mut Option<String>,
    ) -> Result<Reply<W::Output>, TaskError> {
        let given = label_in(received.headers());
        let mut delays = UNAVAILABLE_DELAYS.delays();
        loop {
            let task =
                task_data::decode::<W::Input>(received.message()).map_err(TaskError::invalid)?;
            *label = task_data::label(&task).or_else(|| given.map(str::to_owned));
            let run = AssertUnwindSafe(self.worker.run(task, ctx.clone())).catch_unwind();
            let run = pin!(run);
            let run = reported_when_long(run, ctx);
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
                Err(error) if ctx.lacks_an_answer() => return Err(ctx.ask_again_later(&error)),
                Err(error)
                    if error.kind == TaskErrorKind::Unavailable && !ctx.is_refused_for_ever() =>
                {
                    self.wait_while_unavailable(&error, delays.next().unwrap_or_default())
                        .await?;
                    // The next run dispatches the same subtasks again, under the same ids.
                    ctx.finish().await;
                }
                result => {
                    self.unavailable
                        .send_if_modified(|reason| reason.take().is_some());
                    return result;
                }
            }
        }
    }

    async fn wait_while_unavailable(
        &self,
        error: &TaskError,
        delay: Duration,
    ) -> Result<(), TaskError> {
        let stops = || TaskError::unavailable("the process is shutting down");
        // A task that stops with its process says the same of itself, and lacks nothing.
        if self.shared.shutdown.is_cancelled() {
            return Err(stops());
        }
        warn!(
            reason = error.chain(),
            ?delay,
            "the worker's dependencies are unavailable; the task waits"
        );
        self.unavailable.send_replace(Some(error.chain()));
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
        let output = self.shared.identity.output(input, spec);
        Disposition::Done(outputs(dispatched, output))
    }

    /// Fails a task whose reply cannot be sent.
    fn no_reply(&self, of: &Received, why: &str, run: FailedRun, had: Dispatched) -> Disposition {
        Disposition::Done(self.fail(of, why, Some(run), had))
    }

    fn on_error(
        &self,
        received: &Received,
        error: &TaskError,
        attempts: Attempts,
        run: FailedRun,
        label: Option<String>,
        dispatched: Dispatched,
    ) -> Disposition {
        // Each kind of error is logged where it is handled.
        match error.kind {
            TaskErrorKind::Cancelled => Disposition::Discard,
            TaskErrorKind::Unavailable => Disposition::Redeliver(error.chain()),
            TaskErrorKind::Snooze(delay) => {
                debug!(?delay, "the worker snoozes a task");
                Disposition::Snooze(delay)
            }
            TaskErrorKind::Invalid => {
                Disposition::Done(self.refuse(received, &error.chain(), run, dispatched))
            }
            TaskErrorKind::Failed => {
                Disposition::Done(self.fail(received, &error.chain(), Some(run), dispatched))
            }
            TaskErrorKind::Retry => {
                let reason = error.chain();
                let now = self.now();
                let outputs =
                    if let Some((delay, attempts)) = attempts.next(&self.shared.retry, now) {
                        let run = FailedRun {
                            next: (!delay.is_zero()).then(|| later(now, delay)),
                            ..run
                        };
                        let report = self.retry_report(received, &reason, run, label);
                        self.retry(received, &reason, delay, attempts, report, dispatched)
                    } else {
                        let count = attempts.failed.saturating_add(1);
                        let reason = format!("{reason} (given up after {count} attempts)");
                        self.give_up(received, &reason, Some(run), dispatched)
                    };
                Disposition::Done(outputs)
            }
        }
    }

    /// Publishes the task to the tail of its pipe, to run again after the delay.
    fn retry(
        &self,
        received: &Received,
        reason: &str,
        delay: Duration,
        attempts: Attempts,
        report: Option<TrackingReport>,
        dispatched: Dispatched,
    ) -> Outputs {
        current::fail(reason);
        warn!(reason, ?delay, "an attempt failed; the task runs again");
        let again = Outgoing {
            delay: (!delay.is_zero()).then_some(delay),
            headers: attempts.with_headers(received.headers()),
            ..Outgoing::new(self.pipes.input.as_str(), received.delivery.body.clone())
        };
        self.shared.counters.retried.increment(1);
        // Without the reports of `dispatched`: the next attempt dispatches the same subtasks and reports them.
        Outputs {
            pending: dispatched.pending,
            messages: vec![again],
            reports: report.into_iter().collect(),
        }
    }

    fn retry_report(
        &self,
        received: &Received,
        reason: &str,
        run: FailedRun,
        label: Option<String>,
    ) -> Option<TrackingReport> {
        received.message().job_task_id().map(|id| TrackingReport {
            retries: run.attempt.and_then(|attempt| i32::try_from(attempt).ok()),
            failure: Some(ReportFailure {
                item: label.map(|label| FailedItem::labelled(&label)),
                run: Some(run),
                ..self.shared.identity.failure("RETRY", reason)
            }),
            ..TrackingReport::new(id, ReportStatus::Retry)
        })
    }

    /// Fails the task after its last attempt, with a copy for the reject pipe.
    fn give_up(
        &self,
        received: &Received,
        reason: &str,
        run: Option<FailedRun>,
        dispatched: Dispatched,
    ) -> Outputs {
        self.fail(received, reason, run, dispatched)
            .with_message(self.reject_copy(received, reason))
    }

    /// Makes a copy of the task for the reject pipe, with the reason and its origin in headers.
    fn reject_copy(&self, received: &Received, reason: &str) -> Outgoing {
        self.shared.counters.given_up.increment(1);
        let copy = TaskMessage {
            task_id: uuid::Uuid::new_v4().to_string(),
            task_status: Some(TaskStatus::ResultException),
            context: BTreeMap::new(),
            to: Some(self.pipes.reject.clone()),
            priority: None,
            ..received.message().clone()
        };
        let mut headers = Headers::default();
        if let Some(tracking) = &copy.tracking {
            let label = Self::label_of(received);
            describe(
                &mut headers,
                tracking,
                TaskStatus::ResultException,
                label.as_deref(),
            );
        }
        explain(&mut headers, reason, &received.delivery);
        Outgoing {
            headers,
            ..Outgoing::new(self.pipes.reject.as_str(), copy.encode())
        }
    }

    /// Fails the task: its result is `RESULT_EXCEPTION` with the reason as a JSON string.
    fn fail(
        &self,
        received: &Received,
        reason: &str,
        run: Option<FailedRun>,
        dispatched: Dispatched,
    ) -> Outputs {
        current::fail(reason);
        warn!(reason, "a task has failed");
        let data = serde_json::to_vec(reason).unwrap_or_default();
        let status = TaskStatus::ResultException;
        self.failure(received, status, data, reason, run, dispatched)
    }

    /// Fails a task that was not understood: its result is `INVALID_TASK` with the reason as plain text.
    fn refuse(
        &self,
        received: &Received,
        reason: &str,
        run: FailedRun,
        dispatched: Dispatched,
    ) -> Outputs {
        current::fail(reason);
        warn!(reason, "a task was not understood");
        let data = reason.as_bytes().to_vec();
        let status = TaskStatus::InvalidTask;
        self.failure(received, status, data, reason, Some(run), dispatched)
    }

    fn failure(
        &self,
        received: &Received,
        status: TaskStatus,
        data: Vec<u8>,
        reason: &str,
        run: Option<FailedRun>,
        dispatched: Dispatched,
    ) -> Outputs {
        self.shared.counters.failed.increment(1);
        let (input, label) = (received.message(), Self::label_of(received));
        let configured = self.pipes.output.as_deref();
        // The pipe comes from a message, which anybody can send.
        let to = failure_pipe(configured, input.tracking.as_ref()).filter(|to| {
            Some(*to) == configured || check_result_pipe(&self.shared.reserved, input, to).is_ok()
        });
        let spec = OutputSpec {
            // The task's own id. Attempts may break off at different points of a split, so the number after the last
            // subtask of this attempt may belong to a subtask of another attempt, which is complete.
            part: TaskPart::Whole,
            to,
            status,
            classifier: input.task_classifier.as_deref().unwrap_or_default(),
            api_version: input.task_api_version,
            data,
            note: None,
            failure: Some(reason),
            run,
            label: label.as_deref(),
            time_limit: None,
            ends_tracking: false,
        };
        let mut output = self.shared.identity.output(input, spec);
        if dispatched.is_split {
            output = output.of_split();
        }
        outputs(dispatched, output)
    }

    /// Returns what a failed task calls itself.
    fn label_of(received: &Received) -> Option<String> {
        let given = || label_in(received.headers()).map(str::to_owned);
        let task = task_data::decode::<W::Input>(received.message()).ok();
        task.and_then(|task| task_data::label(&task)).or_else(given)
    }

    /// Describes the attempt that has failed after these.
    fn failed_run(&self, before: Attempts, began: i64) -> FailedRun {
        let process = &self.shared.identity.process;
        process.failed_run(before.failed.saturating_add(1), began)
    }

    fn now(&self) -> i64 {
        self.shared.identity.clock.now_millis()
    }
}

/// Returns the time after this delay.
fn later(now: i64, delay: Duration) -> i64 {
    now.saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX))
}

/// Returns whether a task with this result runs again.
fn comes_again<T>(result: &Result<T, TaskError>) -> bool {
    use TaskErrorKind::{Cancelled, Failed, Invalid, Retry, Snooze, Unavailable};
    result.as_ref().is_err_and(|error| match error.kind {
        Retry | Unavailable | Snooze(_) => true,
        Failed | Invalid | Cancelled => false,
    })
}

/// Awaits a run. Once it has lasted [`LONG_RUN`], reports that the task runs.
async fn reported_when_long<T>(run: Pin<&mut impl Future<Output = T>>, ctx: &Context) -> T {
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
    reports.extend(output.report);
    Outputs {
        pending: dispatched.pending,
        messages: output.message.into_iter().collect(),
        reports,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::{BatchTask, Tracking, TrackingReportTask};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::broker::Broker;
    use crate::broker::memory::Memory;
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
        let service =
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
