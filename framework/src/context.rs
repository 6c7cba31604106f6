//! What a running task can do besides replying: dispatch subtasks, report progress, and check for
//! cancellation.

mod about;
mod bundling;
mod cancellation;
mod once;
mod repeat;
mod room;
mod running;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use contract::{
    Announced, NestingError, ReportStatus, ReservedPipe, ReservedPipes, SourceDigest, TaskData,
    TaskMessage, TaskStatus, TaskTimeLimit, TrackingReport, check_nesting,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) use self::bundling::Bundling;
use self::cancellation::{Cancellation, LOOK_INTERVAL};
pub(crate) use self::once::MemosHere;
use self::once::{OnceError, OpenParts};
pub use self::repeat::Source;
use self::repeat::{Announcement, Repeat, RepeatError};
pub(crate) use self::running::RunningTasks;
use crate::broker::gauges::Gauges;
use crate::broker::{Broker, Outgoing, PublishError};
use crate::current::CurrentMessage;
use crate::job_service::JobServiceClient;
use crate::meters::{Counters, LongRun};
use crate::steps::bundles::gathering::Gathering;
use crate::steps::output::{Output, OutputSpec, TaskPart, WorkerIdentity};
use crate::steps::publish::PendingPublish;
use crate::steps::report_buffer::{ReportBuffer, Reports};
use crate::steps::resumption::Resumption;
use crate::{RetryPolicy, TaskError};

/// The largest number of subtasks of one task that are published and not yet confirmed.
const WINDOW: u32 = 1000;
/// How many bytes of them there may be before the next one waits.
const WINDOW_BYTES: usize = 4 << 20;

/// The environment of one running task. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    input: Arc<CurrentMessage>,
    shared: Arc<Shared>,
    attempt: u32,
    /// How often the task was blocked.
    blocks: u32,
    /// The time limit that the job sets for its tasks.
    job_limit: Option<TaskTimeLimit>,
    /// Where the task goes on; `None` if it begins.
    resumption: Option<Resumption>,
    split: tokio::sync::Mutex<Split>,
    announcement: Mutex<Announcement>,
    /// How many subtasks the task has, which may be none, as it has first said.
    expected: OnceLock<u32>,
    /// It is reported that the task runs.
    is_told_running: AtomicBool,
    /// Why a subtask was not dispatched. Whatever the author's code does about it, the task is not
    /// done.
    refusal: Mutex<Option<DispatchError>>,
    cancellation: Cancellation,
    open_parts: OpenParts,
}

/// What all tasks of a runtime share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub identity: Arc<WorkerIdentity>,
    pub broker: Arc<dyn Broker>,
    pub reports: ReportBuffer,
    pub job_service: JobServiceClient,
    pub gauges: Arc<Gauges>,
    pub bundling: Arc<Bundling>,
    /// The pipes that no message may be addressed to.
    pub reserved: Arc<ReservedPipes>,
    /// Whether tasks of paused jobs go to a pipe of their own. Otherwise they run.
    pub has_paused_pipe: bool,
    pub retry: RetryPolicy,
    pub counters: Counters,
    pub running: Arc<RunningTasks>,
    /// Where the results of parts are kept, if no job service keeps them.
    pub memos: Option<MemosHere>,
    /// Cancelled when the runtime stops waiting for its running tasks.
    pub shutdown: CancellationToken,
}

/// What a task has dispatched so far.
#[derive(Default)]
struct Split {
    count: u32,
    /// Messages without a confirm, oldest first, each with the number of its subtasks.
    pending: VecDeque<(u32, PendingPublish)>,
    /// The number of subtasks in them; at most [`WINDOW`], and a bundle more.
    unconfirmed: u32,
    /// The bytes of these messages.
    unconfirmed_bytes: usize,
    /// The bundle that is being gathered.
    gathering: Option<Box<Gathering>>,
    /// When the dispatch of the latest subtask ended.
    latest: Option<Instant>,
    /// Something sends the bundle when its members have waited long enough.
    is_timed: bool,
    reports: Vec<TrackingReport>,
    /// The pipe of the latest subtask, which has been checked.
    checked_pipe: Option<String>,
    /// How the split is made again; `None` if it does not say from what it is made.
    repeat: Option<Box<Repeat>>,
}

impl Split {
    /// Publishes a message with this number of subtasks.
    fn send(&mut self, subtasks: u32, message: Outgoing, broker: &dyn Broker) {
        self.push(subtasks, PendingPublish::new(broker, message));
    }

    fn push(&mut self, subtasks: u32, publish: PendingPublish) {
        self.unconfirmed += subtasks;
        self.unconfirmed_bytes += publish.bytes();
        self.pending.push_back((subtasks, publish));
    }

    fn pop(&mut self) -> Option<PendingPublish> {
        let (subtasks, publish) = self.pending.pop_front()?;
        self.unconfirmed -= subtasks;
        self.unconfirmed_bytes -= publish.bytes();
        Some(publish)
    }

    const fn is_full(&self) -> bool {
        self.unconfirmed >= WINDOW || self.unconfirmed_bytes >= WINDOW_BYTES
    }

    /// Publishes the bundle that is being gathered, if one is.
    fn send_gathered(&mut self, shared: &Shared) {
        if let Some(gathered) = self.gathering.take() {
            shared.gauges.add_bundle(&gathered.pipe, gathered.len());
            self.send(gathered.len(), gathered.message(), &*shared.broker);
        }
    }

    /// Returns the digest of what the subtasks are made from, if the task has said that.
    fn digest(&self) -> Option<SourceDigest> {
        let repeat = self.repeat.as_ref();
        repeat.map(|repeat| repeat.source.digest())
    }
}

/// The last number of a subtask, less the one of the report of their number.
const MOST_SUBTASKS: u32 = 0x7fff_fffe;

/// Why a subtask is not dispatched, or whether a part of the task is done is not known.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum DispatchError {
    /// The broker did not accept a subtask.
    #[error(transparent)]
    Unpublished(#[from] PublishError),
    #[error(transparent)]
    Reserved(#[from] ReservedPipe),
    #[error(transparent)]
    Nesting(#[from] NestingError),
    /// The report of their number would have an id that nothing counts.
    #[error(
        "a task of {0} subtasks cannot be counted; at most {MOST_SUBTASKS} are possible. Make sub-batches of them"
    )]
    TooMany(u32),
    #[error(transparent)]
    Repeat(#[from] RepeatError),
    #[error(transparent)]
    Once(#[from] OnceError),
}

impl DispatchError {
    /// Returns whether no later run of the task can dispatch the subtask either.
    pub(crate) const fn is_permanent(&self) -> bool {
        match self {
            Self::Unpublished(error) => error.is_permanent(),
            Self::Repeat(error) => error.is_permanent(),
            Self::Once(error) => error.is_permanent(),
            Self::Reserved(_) | Self::Nesting(_) | Self::TooMany(_) => true,
        }
    }
}

/// What a task has dispatched when it ends. It must be confirmed and reported before the delivery
/// is settled.
#[derive(Debug, Default)]
pub(crate) struct Dispatched {
    /// The number of the last subtask.
    pub count: u32,
    /// The digest of what they are made from, if the task has said that.
    pub digest: Option<SourceDigest>,
    pub is_split: bool,
    /// Why a subtask was not dispatched.
    pub refusal: Option<DispatchError>,
    pub pending: Vec<PendingPublish>,
    pub reports: Vec<TrackingReport>,
}

/// Task data without a Rust type, for code that dispatches what others define.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// The type name on the wire, as in [`TaskData::CLASSIFIER`].
    pub classifier: String,
    /// The version of the type, as in [`TaskData::API_VERSION`].
    pub api_version: i32,
    /// The serialized task data, usually JSON.
    pub data: Vec<u8>,
    /// What the task is about in a few words ([`Context::dispatch_labelled`]); `None` leaves it to
    /// the worker that runs it.
    pub label: Option<String>,
}

impl Payload {
    /// Serializes task data.
    pub fn of<T: TaskData>(task: &T) -> Result<Self, TaskError> {
        let data = serde_json::to_vec(task).map_err(TaskError::failed)?;
        Ok(Self {
            classifier: T::CLASSIFIER.to_owned(),
            api_version: T::API_VERSION,
            data,
            label: None,
        })
    }

    /// Adds a label ([`Context::dispatch_labelled`]).
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }
}

impl Context {
    pub(crate) fn new(
        input: Arc<CurrentMessage>,
        (attempt, blocks): (u32, u32),
        job_limit: Option<TaskTimeLimit>,
        resumption: Option<Resumption>,
        shared: Arc<Shared>,
    ) -> Self {
        let cancellation = Cancellation::new(&shared.job_service);
        Self(Arc::new(Inner {
            input,
            shared,
            attempt,
            blocks,
            job_limit,
            resumption,
            split: tokio::sync::Mutex::default(),
            announcement: Mutex::default(),
            expected: OnceLock::new(),
            is_told_running: AtomicBool::new(false),
            refusal: Mutex::default(),
            cancellation,
            open_parts: OpenParts::default(),
        }))
    }

    /// Dispatches a subtask to a pipe.
    ///
    /// Returns once the subtask is published. It waits while 1,000 subtasks, or 4 MiB of them, are
    /// unconfirmed, but not for this one's confirm: the framework awaits all confirms before it
    /// settles the task.
    ///
    /// Cancel safe: if the future is dropped, the subtask is either dispatched or not, and no
    /// earlier one is forgotten.
    ///
    /// # Errors
    ///
    /// Returns an error, and the task then fails whatever the author's code makes of it, if
    /// - the pipe is reserved for the system ([`Self::check_pipe`]);
    /// - this task is on level 64 of its job, or the id of the subtask would become too long:
    ///   nothing would count it;
    /// - the broker does not accept an earlier subtask. If the broker was closed, the task runs
    ///   again.
    ///
    /// Returns the error of [`Self::check_cancelled`] if the job has ended and the broker does not
    /// confirm.
    pub async fn dispatch<T: TaskData>(&self, pipe: &str, task: &T) -> Result<(), TaskError> {
        self.dispatch_payload(pipe, Payload::of(task)?).await
    }

    /// Dispatches a subtask, and says in a few words what it is about, e.g. `"page 7 of scan.tif"`.
    /// Failures and outputs of the subtask show this label if its own type has none
    /// ([`TaskData::label`]). It is cut to 256 bytes. See [`Self::dispatch`].
    pub async fn dispatch_labelled<T: TaskData>(
        &self,
        pipe: &str,
        task: &T,
        label: &str,
    ) -> Result<(), TaskError> {
        let payload = Payload::of(task)?.labelled(label);
        self.dispatch_payload(pipe, payload).await
    }

    /// Dispatches a subtask whose type this worker does not know; see [`Self::dispatch`].
    pub async fn dispatch_payload(&self, pipe: &str, payload: Payload) -> Result<(), TaskError> {
        let called = Instant::now();
        let Inner { shared, split, .. } = &*self.0;
        let mut split = split.lock().await;
        if split.checked_pipe.as_deref() != Some(pipe) {
            self.check_dispatch(pipe)
                .map_err(|error| self.refuse(error))?;
            split.checked_pipe = Some(pipe.to_owned());
        }
        if split.repeat.is_some() && self.pass_over(&mut split).await? {
            return Ok(());
        }
        self.confirm_while(&mut split, Split::is_full).await?;
        let goes_in_bundle = self
            .goes_in_bundle(&mut split, called, pipe, &payload)
            .await;
        // From here on there is no `await`: number, message and report belong together.
        split.count += 1;
        if goes_in_bundle {
            self.gather(&mut split, &payload);
        } else {
            self.send_alone(&mut split, pipe, payload);
            shared.gauges.add(pipe);
        }
        split.latest = Some(Instant::now());
        Ok(())
    }

    /// Waits for confirms as long as too many subtasks are without. The caller may drop the future:
    /// the oldest message stays until it is confirmed.
    async fn confirm_while(
        &self,
        split: &mut Split,
        too_many: impl Fn(&Split) -> bool,
    ) -> Result<(), TaskError> {
        let shared = &self.0.shared;
        while too_many(split)
            && let Some((_, oldest)) = split.pending.front_mut()
        {
            let confirmed = oldest.confirmed(&*shared.broker, &shared.retry, &shared.shutdown);
            // A broker that does not respond must not keep the task of a job that has ended.
            let Ok(confirmed) = timeout(LOOK_INTERVAL, confirmed).await else {
                self.check_cancelled()?;
                continue;
            };
            let Some(oldest) = split.pop() else {
                return Ok(());
            };
            if let Err(error) = confirmed {
                let Some(members) = oldest.apart(&*shared.broker, &error) else {
                    return Err(self.refuse(error.into()));
                };
                shared.bundling.not_taken(oldest.pipe(), &error);
                for member in members {
                    split.push(1, member);
                }
            }
        }
        Ok(())
    }

    /// Sends the subtask whose turn it is as a message of its own.
    fn send_alone(&self, split: &mut Split, pipe: &str, payload: Payload) {
        let Inner { input, shared, .. } = &*self.0;
        let part = TaskPart::Subtask(split.count);
        let spec = OutputSpec {
            data: payload.data,
            label: payload.label.as_deref(),
            ..self.subtask_spec(part, pipe, &payload.classifier, payload.api_version)
        };
        let Output {
            mut message,
            report,
        } = shared.identity.output(input, spec);
        if let (Some(message), Some(context)) = (&mut message, input.span.context()) {
            context.set_on(&mut message.headers);
        }
        if let Some(message) = message {
            split.send(1, message, &*shared.broker);
        }
        split.reports.extend(report);
    }

    /// Returns what the subtasks of this task for a pipe have in common.
    fn subtask_spec<'a>(
        &self,
        part: TaskPart,
        pipe: &'a str,
        classifier: &'a str,
        api_version: i32,
    ) -> OutputSpec<'a> {
        OutputSpec {
            part,
            to: Some(pipe),
            status: TaskStatus::NewTask,
            classifier,
            api_version,
            data: Vec::new(),
            note: None,
            failure: None,
            run: None,
            label: None,
            time_limit: self.0.job_limit,
            ends_tracking: false,
        }
    }

    /// Reports how many subtasks this task is about to dispatch, so that the progress of the job is
    /// exact from the start.
    ///
    /// With 0 the task is a split into nothing: it is complete, and counts as no item. More than
    /// 2147483646 fail the task.
    pub fn expect_subtasks(&self, subtasks: u32) {
        self.report_size(subtasks, None);
    }

    /// Reports how many subtasks this task is about to dispatch ([`Self::expect_subtasks`]), and
    /// states which of them are items and which are sub-batches that are split in turn. Only with
    /// such a statement of every split is the number of a job's items known before they are done.
    pub fn expect_parts(&self, subtasks: u32, announced: Announced) {
        self.report_size(subtasks, Some(announced));
    }

    fn report_size(&self, subtasks: u32, announced: Option<Announced>) {
        self.0.expected.get_or_init(|| subtasks);
        // The report is about a subtask, too: one behind the last.
        let size = if subtasks > MOST_SUBTASKS {
            Err(DispatchError::TooMany(subtasks))
        } else {
            self.check_nesting()
        };
        if let Err(error) = size {
            self.refuse(error);
            return;
        }
        let report = WorkerIdentity::size_report(&self.0.input, subtasks);
        let digest = self.announcement().send();
        self.send_report(report.map(|report| TrackingReport {
            announced,
            digest,
            ..report
        }));
    }

    /// Checks that subtasks may be addressed to a pipe, before a task does work for them;
    /// [`Self::dispatch`] checks it, too.
    ///
    /// # Errors
    ///
    /// Returns an error that fails the task if the pipe is reserved: the tracking pipe, the paused
    /// pipe, the worker's invalid and reject pipes, and every name that ends like those of delay
    /// and quarantine pipes (`.delay.<number>`, `.suspects`, `.bundles`).
    /// [`Settings::reserved_pipes`](crate::Settings::reserved_pipes) has the exceptions.
    pub fn check_pipe(&self, pipe: &str) -> Result<(), TaskError> {
        check_pipe(&self.0.shared.reserved, &self.0.input, pipe).map_err(TaskError::failed)
    }

    /// Reports the progress of this task in percent, from 0 to 100. Later reports override it. Does
    /// not wait for the report to be sent.
    pub fn progress(&self, percent: u8) {
        self.send_report(self.0.input.job_task_id().map(|id| TrackingReport {
            estimated_percentage_completed: i32::from(percent.min(100)),
            ..TrackingReport::new(id, ReportStatus::Progress)
        }));
    }

    /// Ends dispatching and takes what was dispatched.
    pub(crate) async fn finish(&self) -> Dispatched {
        let mut split = self.0.split.lock().await;
        split.send_gathered(&self.0.shared);
        let digest = split.digest();
        let Split {
            count,
            pending,
            reports,
            ..
        } = std::mem::take(&mut *split);
        *self.announcement() = Announcement::default();
        let is_split = count > 0 || self.0.expected.get().is_some();
        Dispatched {
            count,
            digest,
            is_split,
            refusal: self.refusal().take(),
            pending: pending.into_iter().map(|(_, publish)| publish).collect(),
            reports,
        }
    }

    /// Returns whether a subtask was not dispatched, and never can be.
    pub(crate) fn is_refused_for_ever(&self) -> bool {
        self.refusal()
            .as_ref()
            .is_some_and(DispatchError::is_permanent)
    }

    /// Returns whether nobody says what an earlier round or attempt has done of this task.
    pub(crate) fn lacks_an_answer(&self) -> bool {
        matches!(
            self.refusal().as_ref(),
            Some(
                DispatchError::Repeat(RepeatError::NoAnswer { .. })
                    | DispatchError::Once(OnceError::NoAnswer { .. })
            )
        )
    }

    /// Returns that the task comes again, ever more rarely as long as nobody answers.
    pub(crate) fn ask_again_later(&self, error: &TaskError) -> TaskError {
        let job_service = &self.0.shared.job_service;
        let delay = job_service.pause_after_no_answer(self.0.input.tracking.as_ref());
        warn!(
            reason = error.chain(),
            ?delay,
            "a task lacks an answer of the job service; it comes again"
        );
        TaskError::snooze(delay)
    }

    fn check_dispatch(&self, pipe: &str) -> Result<(), DispatchError> {
        check_pipe(&self.0.shared.reserved, &self.0.input, pipe)?;
        self.check_nesting()
    }

    fn check_nesting(&self) -> Result<(), DispatchError> {
        let input = &self.0.input;
        Ok(check_nesting(&input.task_id, input.job_task_id())?)
    }

    /// Remembers why a subtask is not dispatched, and returns what that means for the task.
    fn refuse(&self, error: DispatchError) -> TaskError {
        let refused = undispatched(&error);
        self.refusal().get_or_insert(error);
        refused
    }

    fn announcement(&self) -> MutexGuard<'_, Announcement> {
        self.0.announcement.lock()
    }

    fn refusal(&self) -> MutexGuard<'_, Option<DispatchError>> {
        self.0.refusal.lock()
    }

    /// Reports that this attempt of the task has been running for a while, unless that is reported
    /// already.
    pub(crate) fn report_running(&self) {
        if self.0.is_told_running.swap(true, Ordering::Relaxed) {
            return;
        }
        self.send_report(self.0.input.job_task_id().map(|id| TrackingReport {
            retries: i32::try_from(self.0.attempt.saturating_sub(1)).ok(),
            ..TrackingReport::new(id, ReportStatus::Progress)
        }));
    }

    /// Notes that this attempt of the task has been running for this time, until the returned value
    /// is dropped.
    pub(crate) fn note_long_run(&self, for_now: Duration) -> LongRun {
        /// The most characters of an id that are noted.
        const MAX_CHARS: usize = 256;
        let Inner { input, shared, .. } = &*self.0;
        let task = input.job_task_id().unwrap_or(&input.task_id);
        let now = Instant::now();
        let since = now.checked_sub(for_now).unwrap_or(now);
        let task = task.chars().take(MAX_CHARS).collect();
        shared.counters.long.note(since, task)
    }

    /// Sends a report for this task without waiting for its confirm.
    pub(crate) fn send_report(&self, report: Option<TrackingReport>) {
        let Inner { input, shared, .. } = &*self.0;
        if let Some(reports) = Reports::of(input, report.into_iter().collect()) {
            shared.reports.send_later(reports);
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
    /// Returns which part of the task its reply is.
    pub const fn reply_part(&self) -> TaskPart {
        if self.is_split {
            TaskPart::Final(self.count)
        } else {
            TaskPart::Whole
        }
    }
}

/// Checks that an output of the task `input` may be addressed to a pipe.
pub(crate) fn check_pipe(
    reserved: &ReservedPipes,
    input: &TaskMessage,
    pipe: &str,
) -> Result<(), ReservedPipe> {
    let tracking = input.tracking.as_ref();
    reserved.check(pipe, tracking.and_then(|it| it.tracking_pipe.as_deref()))
}

/// Checks that a result of this task may be addressed to a pipe.
pub(crate) fn check_result_pipe(
    reserved: &ReservedPipes,
    input: &TaskMessage,
    pipe: &str,
) -> Result<(), ReservedPipe> {
    let tracking = input.tracking.as_ref();
    reserved.check_result(pipe, tracking.and_then(|it| it.tracking_pipe.as_deref()))
}

/// Returns what a subtask that is not dispatched means for its task.
pub(crate) fn undispatched(error: &DispatchError) -> TaskError {
    match error {
        DispatchError::Unpublished(error) => undelivered(error),
        DispatchError::Repeat(error) => error.of_task(),
        DispatchError::Once(error) => error.of_task(),
        DispatchError::Reserved(_) | DispatchError::Nesting(_) | DispatchError::TooMany(_) => {
            TaskError::failed(error.to_string())
        }
    }
}

/// Returns what an unpublished output means for its task. A pipe that cannot be declared, or that
/// stays full, fails the task. If the broker is closed, the task runs again without counting an
/// attempt.
pub(crate) fn undelivered(error: &PublishError) -> TaskError {
    match error {
        PublishError::Closed => TaskError::unavailable(error.to_string()),
        PublishError::Impossible { .. }
        | PublishError::Unacceptable { .. }
        | PublishError::Unroutable { .. }
        | PublishError::Refused { .. } => TaskError::failed(error.to_string()),
    }
}
