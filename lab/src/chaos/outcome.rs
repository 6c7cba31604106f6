//! The result of a run: the faults that happened, and what they cost.

use std::path::PathBuf;

use contract::JobStatus;
use serde::Serialize;

/// The faults that happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Survived {
    /// Processes that were killed.
    pub kills: u32,
    /// Restarts of servers, and faults of the network.
    pub outages: u32,
    /// Restarts of the broker.
    pub broker_restarts: u32,
    /// Restarts of the database.
    pub database_restarts: u32,
    /// Faults of the network.
    pub network_faults: u32,
    /// Times that the job was paused and resumed.
    pub pauses: u32,
    /// Times that the job was cancelled or failed and was taken up again.
    pub rounds: u32,
}

/// Where the outputs of the items go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputsIn {
    /// To a pipe. An item that runs again sends its output again.
    Pipe,
    /// To the service, which keeps each once.
    Service,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The seed that repeats the order of the faults.
    pub seed: u64,
    /// The items of the job.
    pub items: u64,
    /// The end of the job.
    pub job_status: JobStatus,
    /// Counted by the job service.
    pub completed_items: i64,
    /// Items without an effect, without an output or not counted.
    pub items_lost: u64,
    /// Items that the job service counted beyond those that there are.
    pub counted_twice: u64,
    /// Items that have waited for a condition.
    pub blocked: u64,
    /// Dead letters that were replayed.
    pub replayed: u64,
    /// Runs beyond the first of an item: the work that was repeated.
    pub run_more_than_once: u64,
    /// Where the outputs went.
    pub outputs: OutputsIn,
    /// Items without an output.
    pub outputs_lost: u64,
    /// Outputs in the pipe beyond the first of an item.
    pub sent_more_than_once: u64,
    /// Outputs that the service keeps beyond the first of an item, which there never are.
    pub outputs_twice: u64,
    /// Tasks that failed or were given up.
    pub failed: u64,
    /// Messages that were left in pipes.
    pub left_in_pipes: u64,
    /// Whether the percentage of the job ever fell.
    pub percentage_fell: bool,
    /// What happened.
    #[serde(flatten)]
    pub survived: Survived,
    /// Faults that were asked for and did not happen: the job had ended, or too much time had
    /// passed. One and the kill at the same time count once.
    pub skipped: usize,
    /// The longest time without progress, pauses not included.
    pub longest_stall_seconds: f64,
    /// The duration of the run, the start of servers not included.
    pub seconds: f64,
    /// The kind of the broker.
    pub broker: String,
    /// The kind of the database.
    pub store: String,
    /// What made the run end early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The folders that were kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<PathBuf>,
}

impl Outcome {
    /// Returns whether the faults cost nothing: the job is Completed, no item is lost or counted
    /// twice, and nothing is left.
    pub fn is_exact(&self) -> bool {
        self.trouble.is_none()
            && self.job_status == JobStatus::Completed
            && (
                self.items_lost,
                self.counted_twice,
                self.outputs_twice,
                self.failed,
                self.left_in_pipes,
            ) == (0, 0, 0, 0, 0)
            && !self.percentage_fell
    }
}
