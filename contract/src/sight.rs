//! Signs of life, by which workers describe themselves, and the bodies by which the API shows
//! workers and pipes.

use serde::{Deserialize, Serialize};

use crate::PipeMessage;

/// A sign of life of a worker, as it goes over the exchange that only job services bind. Times are
/// ages, because clocks differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SignOfLife {
    /// The id of this run of the worker.
    pub id: String,
    /// The name of the worker.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The machine.
    pub host: String,
    /// The number of the process on the machine.
    pub process: u32,
    /// The pipe from which it takes messages.
    pub input: Option<String>,
    /// The pipe of its outputs.
    pub output: Option<String>,
    /// The pipe of the tasks that it gives up.
    pub reject: Option<String>,
    /// The pipe of the messages that it does not understand.
    pub invalid: Option<String>,
    /// How many tasks, or batches of them, it runs at the same time.
    pub slots: Option<u32>,
    /// How many run.
    pub slots_in_use: Option<u32>,
    /// How many messages it has taken and not settled.
    pub open: Option<u64>,
    /// How many items run, by job, without those that a report has counted as running or retried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobSlots>,
    /// For how long it runs, in milliseconds.
    pub age: u64,
    /// The task that runs longest, if one runs for a while.
    pub longest: Option<RunningTask>,
    /// How fast the pipes are to which it dispatches, as it has measured: at most
    /// [`Self::MOST_SPEEDS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<PipeSpeed>,
    /// Why it takes no tasks, if its dependencies are unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// Whether this is the last sign: the worker ends.
    pub ended: bool,
}

/// Slots of a worker that run items of one job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSlots {
    /// The job, `partition:job`.
    pub job: String,
    /// The number of items.
    pub tasks: u32,
}

/// How fast the workers of a pipe are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PipeSpeed {
    /// The pipe.
    pub pipe: String,
    /// How many items a second leave it while some wait in it.
    pub items: u64,
}

/// A task that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningTask {
    /// The job task id; the id of the task if no job tracks it. Cut if it is long.
    pub task: String,
    /// For how long it runs, in milliseconds.
    pub age: u64,
}

impl SignOfLife {
    /// The most bytes of a sign.
    pub const MAX_BYTES: usize = 8 * 1024;
    /// The most pipes whose speeds it tells.
    pub const MOST_SPEEDS: usize = 8;
}

/// The workers that have told of themselves lately.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// The workers, by name, then the longest running first.
    pub workers: Vec<Worker>,
    /// How many more told of themselves than the service remembers. Absent if none did.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// A worker in a process. A process may have several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Worker {
    /// The id of this run of the worker.
    pub id: String,
    /// The name of the worker.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The machine.
    pub host: String,
    /// The number of the process on the machine.
    pub process: u32,
    /// The pipe from which it takes messages. Null for a job service.
    pub input: Option<String>,
    /// The pipe of its outputs, if it has one of its own.
    pub output: Option<String>,
    /// How many tasks, or batches of them, it runs at the same time. Null for a job service.
    pub slots: Option<u32>,
    /// How many run.
    pub slots_in_use: Option<u32>,
    /// How many messages it has taken and not settled.
    pub open_deliveries: Option<u64>,
    /// The task that runs longest, of those that run for more than a second.
    pub longest: Option<LongestTask>,
    /// Why it takes no tasks: what it depends on is unavailable, or its circuit breaker is open.
    /// Absent if it takes tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// When it started, in milliseconds since 1970.
    pub start_time: i64,
    /// When it told of itself last, in milliseconds since 1970.
    pub last_sign_time: i64,
}

/// The task of a worker that runs longest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LongestTask {
    /// The job task id; the id of the task if no job tracks it.
    pub task: String,
    /// When it began, in milliseconds since 1970.
    pub since: i64,
}

/// The pipes that the service knows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Pipes {
    /// The pipes, by name.
    pub pipes: Vec<Pipe>,
    /// Whether these are all pipes of the broker. `RabbitMQ` does not tell which queues exist, and
    /// at most 500 are listed.
    pub complete: bool,
}

/// A pipe and what waits in it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Pipe {
    /// The name.
    pub name: String,
    /// Whether the pipe exists. Pipes come into being when they are used first. With `RabbitMQ`, it
    /// may take a minute until a list knows.
    pub exists: bool,
    /// How many items wait: the larger of what the broker counts, its messages and their bundles,
    /// and what the unfinished jobs whose batches send items there have announced, less what has
    /// ended, runs, or waits for another attempt. An item that passes through several pipes counts
    /// for the first of them.
    pub items: u64,
    /// How many seconds of work that is for its workers, as fast as they are while something waits.
    /// Null if nobody who dispatches to the pipe has told how fast that is.
    pub seconds: Option<f64>,
    /// How many messages wait.
    pub messages: u64,
    /// How many of the items wait in the job service until there is room in the pipe. Absent if
    /// none do.
    #[serde(skip_serializing_if = "is_zero")]
    pub held: u64,
    /// How many consumers take messages from it. Null if the broker does not tell.
    pub consumers: Option<u64>,
    /// How many messages come back to it after a delay. Null if the broker does not tell.
    pub delayed: Option<u64>,
    /// How many messages are put into it per second, over the last seconds. Null if the broker does
    /// not tell.
    pub in_per_second: Option<f64>,
    /// How many messages leave it per second.
    pub out_per_second: Option<f64>,
    /// How many messages wait in its quarantine. Null if no worker has told of the pipe and the
    /// broker does not tell which pipes exist.
    pub quarantined: Option<u64>,
    /// How many messages its workers did not understand. Null if no worker has told of its invalid
    /// pipe.
    pub invalid: Option<u64>,
    /// How many tasks its workers gave up. Null if no worker has told of its reject pipe.
    pub rejected: Option<u64>,
    /// Its quarantine, its invalid pipes and its reject pipes in which messages wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<PipeBeside>,
    /// The names of the workers that take messages from it, as they told.
    pub workers: Vec<String>,
    /// The first messages, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peeked: Option<Vec<PipeMessage>>,
}

impl Pipe {
    /// Returns the work that waits, in milliseconds, if that is known.
    #[must_use]
    pub fn work_millis(&self) -> Option<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "a time saturates")]
        self.seconds.map(|seconds| (seconds * 1000.0) as i64)
    }
}

/// A pipe with messages that were put aside from another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct PipeBeside {
    /// The name.
    pub name: String,
    /// What it holds.
    pub kind: BesideKind,
    /// How many messages wait in it. They may belong to any job.
    pub messages: u64,
}

/// Why messages were put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum BesideKind {
    /// Processes died while they held them; each runs alone.
    Quarantine,
    /// The workers did not understand them.
    Invalid,
    /// The workers gave them up.
    Reject,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
