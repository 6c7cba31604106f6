//! What a running task can do besides answering: dispatch subtasks, tell its progress, ask whether it is still wanted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::{ReportStatus, TaskData, TaskMessage, TaskStatus, Tracking, TrackingReport};
use tokio_util::sync::CancellationToken;

use crate::answer::{Author, Draft, Part, Produced, tracking_pipe};
use crate::broker::depth_cache::DepthCache;
use crate::broker::{Broker, PublishError};
use crate::reports::{ReportBuffer, Reports};
use crate::sending::all_confirmed;
use crate::status::StatusChecker;
use crate::{RetryPolicy, Sent, TaskError};

/// Subtasks of one task that are published and not yet confirmed, at most.
const WINDOW: usize = 1000;

/// The surroundings of one running task. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    input: TaskMessage,
    surroundings: Surroundings,
    attempt: u32,
    split: tokio::sync::Mutex<Split>,
    /// The task has said that it is a split, if only into nothing.
    announced: AtomicBool,
    wanted: Wanted,
}

/// What all tasks of a process share.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub author: Arc<Author>,
    pub broker: Arc<dyn Broker>,
    pub reports: ReportBuffer,
    pub status: StatusChecker,
    pub depths: Arc<DepthCache>,
    pub retry: RetryPolicy,
    /// Trips when the process gives up on its running tasks.
    pub shutdown: CancellationToken,
}

/// What a task has dispatched so far.
#[derive(Default)]
struct Split {
    count: u32,
    in_flight: VecDeque<Sent>,
    reports: Vec<TrackingReport>,
    /// A subtask was not taken: whatever the author makes of it, the task is not done.
    not_taken: Option<PublishError>,
}

/// What a task leaves behind when it has run: what must be confirmed and reported before it is settled.
#[derive(Debug, Default)]
pub(crate) struct Dispatched {
    pub count: u32,
    pub is_split: bool,
    /// Why a subtask was not taken.
    pub not_taken: Option<PublishError>,
    pub unconfirmed: Vec<Sent>,
    pub reports: Vec<TrackingReport>,
}

/// A payload without a Rust type, for those who pass on what others define.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    pub classifier: String,
    pub api_version: i32,
    /// The task data, usually JSON.
    pub data: Vec<u8>,
}

impl Payload {
    /// The payload of typed task data.
    pub fn of<T: TaskData>(task: &T) -> Result<Self, TaskError> {
        let data = serde_json::to_vec(task).map_err(TaskError::failed)?;
        Ok(Self {
            classifier: T::CLASSIFIER.to_owned(),
            api_version: T::API_VERSION,
            data,
        })
    }
}

impl Context {
    pub(crate) fn new(input: TaskMessage, attempt: u32, surroundings: Surroundings) -> Self {
        let wanted = Wanted::default();
        Self(Arc::new(Inner {
            input,
            surroundings,
            attempt,
            split: tokio::sync::Mutex::default(),
            announced: AtomicBool::new(false),
            wanted,
        }))
    }

    /// Splits off a subtask and sends it to a pipe. Waits for room among the unconfirmed, not for the confirm: all are
    /// confirmed before this task is settled.
    pub async fn dispatch<T: TaskData>(&self, pipe: &str, task: &T) -> Result<(), TaskError> {
        self.dispatch_payload(pipe, Payload::of(task)?).await
    }

    /// As [`Self::dispatch`], for a payload whose type this worker does not know.
    pub async fn dispatch_payload(&self, pipe: &str, payload: Payload) -> Result<(), TaskError> {
        let Inner {
            input,
            surroundings,
            split,
            ..
        } = &*self.0;
        let mut split = split.lock().await;
        while split.in_flight.len() >= WINDOW {
            if let Some(oldest) = split.in_flight.pop_front()
                && let Err(error) = all_confirmed(
                    vec![oldest],
                    &*surroundings.broker,
                    &surroundings.retry,
                    &surroundings.shutdown,
                )
                .await
            {
                split.not_taken = Some(error.clone());
                return Err(not_taken(&error));
            }
        }
        split.count += 1;
        let draft = Draft {
            part: Part::Subtask(split.count),
            to: Some(pipe),
            status: TaskStatus::NewTask,
            classifier: &payload.classifier,
            api_version: payload.api_version,
            data: payload.data,
            note: None,
            failure: None,
            ends_tracking: false,
        };
        let Produced { message, report } = surroundings.author.produce(input, draft);
        split
            .in_flight
            .extend(message.map(|message| Sent::new(&*surroundings.broker, message)));
        split.reports.extend(report);
        surroundings.depths.add(pipe);
        Ok(())
    }

    /// Announces how many subtasks are about to be dispatched, so that the progress of the job is exact from the start.
    ///
    /// With 0 it says that there is nothing to split: the task is done, and counts as no item.
    pub fn announce(&self, subtasks: u32) {
        self.0.announced.store(true, Ordering::Relaxed);
        self.tell(Author::size(&self.0.input, subtasks));
    }

    /// Tells how far this task is, in percent. Nobody waits for it, and a later report overrides it.
    pub fn progress(&self, percent: u8) {
        self.tell(self.0.input.job_task_id().map(|id| TrackingReport {
            estimated_percentage_completed: i32::from(percent.min(100)),
            ..TrackingReport::new(id, ReportStatus::Progress)
        }));
    }

    /// An error once the job has ended or the process is to stop; return it with `?`. Cheap enough for an inner loop:
    /// the job service is asked in the background, and seldom.
    pub fn check_cancelled(&self) -> Result<(), TaskError> {
        let Inner {
            input,
            surroundings,
            wanted,
            ..
        } = &*self.0;
        if surroundings.shutdown.is_cancelled() {
            return Err(TaskError::unavailable("the process is shutting down"));
        }
        if let Some(tracking) = &input.tracking {
            wanted.look_again(tracking, &surroundings.status);
        }
        if wanted.ended.is_cancelled() {
            Err(TaskError::cancelled())
        } else {
            Ok(())
        }
    }

    /// How many messages wait in a pipe, as of a moment ago, and what this process has dispatched there since.
    /// Whoever splits faster than others work looks here first, and answers with [`TaskError::later`].
    pub async fn depth(&self, pipe: &str) -> Result<u64, TaskError> {
        let Surroundings { broker, depths, .. } = &self.0.surroundings;
        Ok(depths.depth(pipe, &**broker).await?)
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The task id, for logs.
    pub fn task_id(&self) -> &str {
        &self.0.input.task_id
    }

    /// `partition:job` and the way to this task; `None` when the task is not tracked.
    pub fn job_task_id(&self) -> Option<&str> {
        self.0.input.job_task_id()
    }

    /// The pipe that the message is for: this worker's input.
    pub fn input_pipe(&self) -> &str {
        self.0.input.to.as_deref().unwrap_or_default()
    }

    /// What an earlier visit to this service left in the message ([`crate::Reply::with_note`]).
    pub fn note(&self) -> Option<&[u8]> {
        self.0
            .input
            .context
            .get(&self.0.surroundings.author.service_path)
            .map(|note| note.0.as_slice())
    }

    /// Goes through all that the task causes.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.input.correlation_id.as_deref()
    }

    /// Ends dispatching and hands over what was dispatched.
    pub(crate) async fn finish(&self) -> Dispatched {
        let mut split = self.0.split.lock().await;
        let Split {
            count,
            in_flight,
            reports,
            not_taken,
        } = std::mem::take(&mut *split);
        let is_split = count > 0 || self.0.announced.load(Ordering::Relaxed);
        Dispatched {
            count,
            is_split,
            not_taken,
            unconfirmed: in_flight.into(),
            reports,
        }
    }

    /// Sends a report on the task's behalf; nobody waits for it.
    pub(crate) fn tell(&self, report: Option<TrackingReport>) {
        let Inner {
            input,
            surroundings,
            ..
        } = &*self.0;
        if let (Some(report), Some(pipe)) = (report, tracking_pipe(input)) {
            surroundings.reports.announce(Reports {
                pipe,
                correlation_id: input.correlation_id.clone(),
                list: vec![report],
            });
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("task_id", &self.0.input.task_id)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}

impl Dispatched {
    /// Which part of the task its answer is.
    pub const fn answer(&self) -> Part {
        if self.is_split {
            Part::Final(self.count)
        } else {
            Part::Whole
        }
    }
}

/// A pipe that cannot be is the task's fault, one that stays full fails it, and a broker that is gone is nobody's.
pub(crate) fn not_taken(error: &PublishError) -> TaskError {
    match error {
        PublishError::Closed => TaskError::unavailable(error.to_string()),
        PublishError::Unroutable { .. } | PublishError::Refused { .. } => {
            TaskError::failed(error.to_string())
        }
    }
}

/// Whether somebody still wants the task.
#[derive(Default)]
struct Wanted {
    ended: CancellationToken,
    looked: Mutex<Option<Look>>,
}

struct Look {
    at: Instant,
    /// How many announcements there had been.
    announcements: u64,
}

impl Wanted {
    /// Asks the job service in the background: when something was announced, and otherwise once a second, where an answer
    /// that still holds costs nothing.
    fn look_again(&self, tracking: &Tracking, status: &StatusChecker) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let announcements = status.announcements();
        let is_fresh = |look: &Look| {
            look.announcements == announcements && look.at.elapsed() < Duration::from_secs(1)
        };
        if looked.as_ref().is_some_and(is_fresh) {
            return;
        }
        *looked = Some(Look {
            at: Instant::now(),
            announcements,
        });
        let (tracking, checker, ended) = (tracking.clone(), status.clone(), self.ended.clone());
        status.in_background(async move {
            if checker.has_ended(&tracking).await {
                ended.cancel();
            }
        });
    }
}
