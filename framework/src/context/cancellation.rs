//! Whether a task should stop: its job has ended, the process is about to stop, or its time is
//! over.

use std::sync::OnceLock;
use std::time::Duration;

use contract::{JobStatus, Tracking};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Context, Inner};
use crate::job_service::JobServiceClient;
use crate::steps::routing::JobKnowledge;
use crate::steps::time_limit::TimeLimit;
use crate::{TaskError, Worker};

/// How long [`Context::check_cancelled`] uses the result of its last status check.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Context {
    /// Returns an error once the job has ended, the process is about to stop, or the task has
    /// exceeded its [time limit](crate::Settings::time_limit), or the one that its job sets.
    /// Propagate it with `?`.
    ///
    /// Cheap enough for an inner loop: it asks the job service in the background, and at most once
    /// a second unless an announcement says that its job has changed.
    pub fn check_cancelled(&self) -> Result<(), TaskError> {
        let Inner {
            input,
            shared,
            cancellation,
            ..
        } = &*self.0;
        if let Some(limit) = cancellation.exceeded.get() {
            return Err(exceeded(*limit));
        }
        if shared.shutdown.is_cancelled() {
            return Err(TaskError::unavailable("the process is shutting down"));
        }
        if let Some(tracking) = &input.tracking {
            cancellation.look(tracking, &shared.job_service);
        }
        if cancellation.ended.is_cancelled() {
            Err(TaskError::cancelled())
        } else {
            Ok(())
        }
    }

    /// Waits until [`Self::check_cancelled`] returns an error, and returns that error. Use it
    /// beside something that takes long and can be dropped:
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// # use batchwright::{Context, TaskError};
    /// # use tokio::process::Command;
    /// # async fn convert(ctx: Context) -> Result<(), TaskError> {
    /// let mut child = Command::new("convert").arg("in.tif").arg("out.png").kill_on_drop(true).spawn()?;
    /// let status = tokio::select! {
    ///     status = child.wait() => status?,
    ///     error = ctx.cancelled() => return Err(error),
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe: nothing is lost if the future is dropped.
    pub async fn cancelled(&self) -> TaskError {
        let Inner {
            input,
            shared,
            cancellation,
            ..
        } = &*self.0;
        loop {
            // Before the look, so that no announcement is missed in between.
            let announced = shared.job_service.announced(input.tracking.as_ref());
            if let Err(error) = self.check_cancelled() {
                return error;
            }
            tokio::select! {
                () = announced => {}
                () = shared.shutdown.cancelled() => {}
                () = cancellation.ended.cancelled() => {}
                () = sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Waits until the job is paused. A task that takes long and can begin anew may then give its
    /// slot back with
    /// [`TaskError::snooze`]: it comes again, and is kept until the job is resumed. Without a
    /// [paused pipe](crate::Settings::paused), where tasks of paused jobs run, this waits forever.
    ///
    /// Cancel safe: nothing is lost if the future is dropped.
    pub async fn paused(&self) {
        let Inner {
            input,
            shared,
            cancellation,
            ..
        } = &*self.0;
        let Some(tracking) = input.tracking.as_ref().filter(|_| shared.has_paused_pipe) else {
            return std::future::pending().await;
        };
        let paused = cancellation
            .paused
            .get_or_init(|| watch::Sender::new(false));
        let mut paused = paused.subscribe();
        loop {
            // Before the look, so that no announcement is missed in between.
            let announced = shared.job_service.announced(Some(tracking));
            cancellation.look(tracking, &shared.job_service);
            tokio::select! {
                Ok(_) = paused.wait_for(|is_paused| *is_paused) => return,
                () = announced => {}
                () = sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Says that the job has ended.
    pub(crate) fn end(&self) {
        self.0.cancellation.ended.cancel();
    }

    /// Awaits a run for as long as it may take, by the smaller limit of the worker and the job.
    /// After that it is dropped, and what it has left behind on other threads can see that it must
    /// stop.
    pub(crate) async fn within_limit<W: Worker, T>(
        &self,
        worker: Option<Duration>,
        run: impl Future<Output = T>,
    ) -> Result<T, TaskError> {
        let job = self.0.job_limit.filter(|_| W::IS_LIMITED_BY_JOB);
        let Some(limit) = TimeLimit::smaller(worker, job) else {
            return Ok(run.await);
        };
        timeout(limit.span, run).await.map_err(|_| {
            let cancellation = &self.0.cancellation;
            let limit = *cancellation.exceeded.get_or_init(|| limit);
            cancellation.ended.cancel();
            exceeded(limit)
        })
    }

    /// Returns whether the task has exceeded its time limit. It cannot run again with this context.
    pub(crate) fn is_over_time(&self) -> bool {
        self.0.cancellation.exceeded.get().is_some()
    }

    /// Returns whether the task may begin another attempt: its job goes on, as far as this process
    /// knows, and so does the process.
    pub(crate) fn may_go_on(&self) -> bool {
        let cancellation = &self.0.cancellation;
        cancellation.exceeded.get().is_some() || self.check_cancelled().is_ok()
    }
}

fn exceeded(limit: TimeLimit) -> TaskError {
    TaskError::retry(limit.to_string())
}

/// Watches, in the background, whether the job of a task has ended or is paused.
pub(super) struct Cancellation {
    /// Cancelled when the job has ended, or the time of the task is over.
    ended: CancellationToken,
    /// Whether the job is paused, by the last look. Few tasks ask, and a channel for each of
    /// thousands in a bundle takes 20 MB.
    paused: OnceLock<watch::Sender<bool>>,
    /// The time limit that the task has exceeded.
    exceeded: OnceLock<TimeLimit>,
    last_look: Mutex<Look>,
}

struct Look {
    at: Instant,
    /// How many announcements there had been.
    announcements: u64,
}

impl Cancellation {
    /// Begins with the task, whose message has just been admitted: that was the first look. So a
    /// short task, such as the split of a small batch, costs the job service nothing.
    pub fn new(job_service: &JobServiceClient) -> Self {
        Self {
            ended: CancellationToken::new(),
            paused: OnceLock::new(),
            exceeded: OnceLock::new(),
            last_look: Mutex::new(Look {
                at: Instant::now(),
                announcements: job_service.announcements(),
            }),
        }
    }

    /// Starts a status check in the background if the job was announced since the last one, or a
    /// second has passed. The last status is used while it is valid.
    fn look(&self, tracking: &Tracking, job_service: &JobServiceClient) {
        let mut last_look = self.last_look.lock();
        let announcements = job_service.announcements();
        if last_look.at.elapsed() < LOOK_INTERVAL
            && (last_look.announcements == announcements
                || !job_service.has_changed_since(tracking, last_look.at))
        {
            last_look.announcements = announcements;
            return;
        }
        *last_look = Look {
            at: Instant::now(),
            announcements,
        };
        let (tracking, client) = (tracking.clone(), job_service.clone());
        let (ended, paused) = (self.ended.clone(), self.paused.get().cloned());
        job_service.in_background(async move {
            let job = client.job_now(&tracking).await;
            if let Some(paused) = paused {
                let is_paused = job == JobKnowledge::Is(JobStatus::Paused);
                paused.send_if_modified(|was_paused| {
                    std::mem::replace(was_paused, is_paused) != is_paused
                });
            }
            if job.has_ended() {
                ended.cancel();
            }
        });
    }
}
