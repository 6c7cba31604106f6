//! Everything that crosses a wire: task messages, tracking, reports, batch tasks and the bodies of the REST API.
//!
//! The crate is data and grammar only. It knows no broker, no database and no HTTP; every other crate depends on it and
//! it depends on none of them, so that a client needs nothing else to speak to a Batchwright system.
//!
//! What must stay true:
//! - Wire names are CAF's (`taskId`, `trackTo`, …). Every field of a [`TaskMessage`] is always written, nulls included.
//! - Reading is lenient and writing is strict: what a Java worker accepts is accepted here ([`TaskMessage::decode`]).
//! - The payload of a [`TrackingReportTask`] has exactly CAF's fields, because a strict Java tracker reads it.

mod batch;
mod ids;
mod job_task_id;
mod lenient;
mod report;
pub mod rest;
mod task_message;

pub use batch::{BatchResult, BatchTask, FileItem, LineRange, ListItem, RangeItem};
pub use ids::{IdError, JobId, PartitionId};
pub use job_task_id::{JobTaskId, JobTaskIdError, Step, subtask_id};
pub use report::{
    JobTrackingEvent, ReportFailure, ReportStatus, TrackingReport, TrackingReportTask,
};
pub use rest::{JobStatus, OnFailure};
pub use task_message::{
    ContextData, DecodeError, SourceInfo, TaskMessage, TaskStatus, Tracking, patch_tracking,
    same_pipe,
};

/// The pipe to which workers hand over the tasks of paused jobs, unless they are told another.
pub const PAUSED_PIPE: &str = "worker-paused-in";

/// The longest name of a pipe that every broker accepts, in bytes. AMQP sets the limit.
pub const MAX_PIPE_BYTES: usize = 255;

/// A typed payload: what stands, as JSON, in the `taskData` of a task message.
///
/// The classifier names the type on the wire. The API version is written with it; a worker refuses a message with a
/// newer version than its own, because it cannot know what it would misunderstand.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct CountWords { path: String }
///
/// impl contract::TaskData for CountWords {
///     const CLASSIFIER: &'static str = "CountWords";
///     const API_VERSION: i32 = 1;
/// }
/// ```
pub trait TaskData: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static {
    /// The name of the type on the wire (`taskClassifier`).
    const CLASSIFIER: &'static str;
    /// The version of the type on the wire (`taskApiVersion`), from 1.
    const API_VERSION: i32;
}
