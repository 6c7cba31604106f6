//! Everything that crosses a wire: task messages, tracking, reports, batch tasks and the bodies of
//! the REST API.
//!
//! The crate contains data types, their formats, and the rules that several processes must apply
//! alike: delays of retries, reserved pipes, tolerances, the names of metrics, and which parts of
//! texts are secrets. No broker, no database, no HTTP. Every other crate depends on it, and it
//! depends on none of them. A client needs nothing else to talk to a Batchwright system.
//!
//! The formats are those of the [CAF] worker framework and job service, so that Java workers and
//! existing clients can share queues and jobs with ours. The doc comments of additions to CAF's
//! formats say so.
//!
//! What must stay true:
//! - Names on the wire are CAF's (`taskId`, `trackTo`, …). Every field of a [`TaskMessage`] is
//!   always written, even if it is null.
//! - Reading is lenient and writing is strict: [`TaskMessage::decode`] accepts every message that a
//!   Java worker accepts.
//! - The payload of a [`TrackingReportTask`] has exactly CAF's fields, because CAF's tracking
//!   worker rejects others.
//!
//! [CAF]: https://github.com/CAFDataProcessing

#![warn(missing_docs)]

mod batch;
mod bundle;
mod condition;
mod decode;
mod explain;
mod gathered_reports;
pub mod headers;
mod ids;
mod job_share;
mod job_task_id;
mod memo;
pub mod metrics;
mod on_failure;
mod outputs;
mod pipe_message;
mod problem;
mod report;
mod reserved_pipes;
pub mod rest;
mod retry;
mod secrets;
mod sight;
mod split;
mod status_url;
mod task_message;
mod time_limit;
mod tracking_pipes;
mod uploads;
mod whole_number;

pub use batch::{BatchResult, BatchTask, FileItem, LineRange, ListItem, RangeItem, RecordItem};
pub use bundle::{
    Bundle, BundleError, BundleMember, BundleWriter, MAX_BUNDLE_MEMBERS, MAX_UNPACKED_BYTES,
    bundle_message,
};
pub use condition::{Condition, ConditionCode, ConditionKey, InvalidCondition, Tester};
pub use explain::{
    BatchAnswer, BatchQuery, ExplainedItem, Explanation, Question, Refusal as BatchRefusal,
};
pub use gathered_reports::{CompleteTasks, GatheredReports, GatheredReportsError};
pub use ids::{IdError, JobId, PartitionId};
pub use job_share::{InvalidJobShare, JobShare, SHARE_HEADER};
pub use job_task_id::{JobTaskId, JobTaskIdError, NestingError, Step, check_nesting, subtask_id};
pub use memo::{InvalidMemoKey, MAX_MEMO_BYTES, MAX_MEMO_KEY_BYTES, Memo, MemoKey, NewMemo};
pub use pipe_message::{
    MAX_PIPE_MESSAGES, PipeHeader, PipeMessage, PipeMessageError, PutMessages, PutRequest,
    TakeRequest, TakenMessages,
};
pub use report::{
    Announced, FailedItem, FailedRun, JobTrackingEvent, ReportDetails, ReportFailure, ReportStatus,
    TrackingReport, TrackingReportTask,
};
pub use reserved_pipes::{
    PipePurpose, ReservedPipe, ReservedPipes, blocked_pipe, bundle_pipe, delay_pipe,
    has_bundle_pipe, input_of_bundles, input_of_quarantine, is_bundle_pipe, is_delay_pipe,
    kept_outputs_pipe, kept_track_to, overflow_pipe, quarantine_pipe, queries_pipe,
};
pub use rest::{JobStatus, OnFailure};
pub use retry::{Anchor, InvalidPolicy, PRESETS, Preset, RETRY_HEADER, RetryPolicy};
pub use secrets::{shown_url, without_secrets};
pub use sight::{
    BesideKind, JobSlots, LongestTask, Pipe, PipeBeside, PipeSpeed, Pipes, RunningTask, SignOfLife,
    Worker, Workers,
};
pub use split::{SourceDigest, SourceDigestError, SplitState, SubtaskRange};
pub use status_url::{LifeKey, StatusUrl, without_key};
pub use task_message::{
    ContextData, DecodeError, SourceInfo, TaskMessage, TaskStatus, Tracking, patch_tracking,
    same_pipe,
};
pub use time_limit::{InvalidTaskTimeLimit, TaskTimeLimit};
pub use tracking_pipes::{TrackingShards, is_tracking_pipe, reports_pipe, rounds_pipe, shard_pipe};
pub use uploads::{
    UPLOAD_KEY_HEADER, UPLOAD_OFFSET_HEADER, UPLOAD_SCHEME, UPLOADS_PIPE, UploadAnswer, UploadQuery,
};

/// The default name of the paused pipe, to which workers send the tasks of paused jobs.
pub const PAUSED_PIPE: &str = "worker-paused-in";

/// The default name of the pipe of the outputs that the service keeps. Its output worker takes them
/// from there.
pub const OUTPUTS_PIPE: &str = "worker-output-in";

/// The maximum length of a pipe name, in bytes. AMQP sets the limit; every broker accepts names of
/// this length.
pub const MAX_PIPE_BYTES: usize = 255;

/// A typed payload: the content of `taskData` in a task message, as JSON.
///
/// The classifier names the type on the wire. The API version is sent with it; a worker rejects
/// messages with a newer version than its own, because it may misunderstand them.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct CountWords { path: String }
///
/// impl batchwright_contract::TaskData for CountWords {
///     const CLASSIFIER: &'static str = "CountWords";
///     const API_VERSION: i32 = 1;
/// }
/// ```
pub trait TaskData: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static {
    /// The name of the type on the wire (`taskClassifier`).
    const CLASSIFIER: &'static str;
    /// The version of the type on the wire (`taskApiVersion`), from 1.
    const API_VERSION: i32;

    /// Returns whether task data of this classifier is read as this type. By default only its own
    /// is; a worker for items of several batch plugins reads those of others, too.
    fn reads(classifier: &str) -> bool {
        classifier == Self::CLASSIFIER
    }

    /// Says in a few words which item this is, e.g. `lines 100..200 of a.txt`. The failure of the
    /// task shows it, cut to 256 bytes. By default it shows only the beginning of the task data.
    fn label(&self) -> Option<String> {
        None
    }
}
