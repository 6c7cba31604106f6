//! What an attempt that has failed leads to: another one, or a failed task.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use contract::rest::LetterCause::{self, GivenUp};
use contract::{FailedItem, FailedRun, ReportFailure, ReportStatus, TaskStatus, TrackingReport};
use tracing::{debug, warn};

use super::{TaskExecutor, outputs};
use crate::broker::Outgoing;
use crate::context::{Dispatched, check_result_pipe};
use crate::current;
use crate::handler::{Disposition, Outputs, Received};
use crate::steps::attempts::Attempts;
use crate::steps::explanation::Explanation;
use crate::steps::output::{Output, OutputSpec, TaskPart, label_in};
use crate::steps::resumption::Resumption;
use crate::steps::routing::failure_pipe;
use crate::steps::task_data;
use crate::worker::TaskErrorKind;
use crate::{RetryPolicy, TaskError, Worker};

/// An attempt that has failed.
pub(super) struct Tried<'a> {
    /// Those before it.
    pub attempts: Attempts,
    /// When the task runs again: the job's, or the worker's.
    pub policy: &'a RetryPolicy,
    pub run: FailedRun,
    pub label: Option<String>,
}

impl<W: Worker> TaskExecutor<W> {
    pub(super) fn on_error(
        &self,
        received: &Received,
        error: &TaskError,
        tried: Tried<'_>,
        dispatched: Dispatched,
    ) -> Disposition {
        let Tried {
            attempts,
            policy,
            run,
            label,
        } = tried;
        // Each kind of error is logged where it is handled.
        match error.kind {
            TaskErrorKind::Cancelled => Disposition::Discard,
            TaskErrorKind::Unavailable => Disposition::Redeliver(error.chain()),
            TaskErrorKind::Blocked => self.block(received, error, dispatched),
            TaskErrorKind::Snooze(delay) => {
                debug!(?delay, "the worker snoozes a task");
                Disposition::Snooze(delay)
            }
            // It goes on where it began.
            TaskErrorKind::GoOn(delay) if dispatched.count == 0 => Disposition::Snooze(delay),
            TaskErrorKind::GoOn(delay) => {
                let (count, digest) = (dispatched.count, dispatched.digest);
                debug!(
                    ?delay,
                    count, "a task has dispatched a part, and goes on later"
                );
                let resumption = Resumption { count, digest };
                Disposition::GoOn {
                    outputs: outputs(dispatched, Output::default()),
                    header: resumption.header(received.message().job_task_id()),
                    delay,
                }
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
                let chance = chance(&received.message().task_id, attempts.failed);
                let outputs = if let Some((delay, attempts)) = attempts.next(policy, now, chance) {
                    let run = FailedRun {
                        next: (!delay.is_zero()).then(|| later(now, delay)),
                        ..run
                    };
                    let report = self.retry_report(received, &reason, run, label);
                    self.retry(received, &reason, delay, attempts, report, dispatched)
                } else {
                    let count = attempts.failed.saturating_add(1);
                    let plural = if count == 1 { "" } else { "s" };
                    let reason = format!("{reason} (given up after {count} attempt{plural})");
                    self.give_up(received, GivenUp, &reason, Some(run), dispatched)
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
            ..Outgoing::new(self.pipes.input.as_str(), received.delivery.body())
        };
        self.shared.counters.retried.increment(1);
        // Without the reports of `dispatched`: the next attempt dispatches the same subtasks and
        // reports them.
        Outputs {
            result: None,
            pending: dispatched.pending,
            messages: vec![again],
            reports: report.into_iter().collect(),
        }
    }

    pub(super) fn retry_report(
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
    pub(super) fn give_up(
        &self,
        received: &Received,
        cause: LetterCause,
        reason: &str,
        run: Option<FailedRun>,
        dispatched: Dispatched,
    ) -> Outputs {
        let copy = self.reject_copy(received, cause, reason, run.as_ref());
        self.fail(received, reason, run, dispatched)
            .with_message(copy)
    }

    /// Makes a copy of the task for the reject pipe, with the reason and its origin in headers.
    pub(super) fn reject_copy(
        &self,
        received: &Received,
        cause: LetterCause,
        reason: &str,
        run: Option<&FailedRun>,
    ) -> Outgoing {
        self.shared.counters.given_up.increment(1);
        let explanation = Explanation {
            cause,
            reason,
            worker: Some(&self.shared.identity.name),
        };
        let label = Self::label_of(received);
        let task = (received.message(), &received.delivery);
        explanation.reject_copy(&self.pipes.reject, task, label.as_deref(), run)
    }

    /// Fails the task: its result is `RESULT_EXCEPTION` with the reason as a JSON string.
    pub(super) fn fail(
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

    /// Fails a task that was not understood: its result is `INVALID_TASK` with the reason as plain
    /// text.
    pub(super) fn refuse(
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
            // The task's own id. Attempts may break off at different points of a split, so the
            // number after the last subtask of this attempt may belong to a subtask of another
            // attempt, which is complete.
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
    pub(super) fn label_of(received: &Received) -> Option<String> {
        let given = || label_in(received.headers()).map(str::to_owned);
        let task = task_data::decode::<W::Input>(received.message()).ok();
        task.and_then(|task| task_data::label(&task)).or_else(given)
    }

    /// Describes the attempt that has failed after these.
    pub(super) fn failed_run(&self, before: Attempts, began: i64) -> FailedRun {
        let process = &self.shared.identity.process;
        process.failed_run(before.failed.saturating_add(1), began)
    }
}

/// Returns a number by which tasks that fail together come back apart.
fn chance(task: &str, attempt: u32) -> u64 {
    let mut hash = DefaultHasher::new();
    (task, attempt).hash(&mut hash);
    hash.finish()
}

/// Returns the time after this delay.
fn later(now: i64, delay: Duration) -> i64 {
    now.saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX))
}
