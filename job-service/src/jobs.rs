//! Jobs: how they are created, listed, steered and shown.

pub mod batches;
pub mod job_list;
#[cfg(feature = "job-types")]
pub mod job_types;
#[cfg(not(feature = "job-types"))]
#[path = "jobs/no_job_types.rs"]
pub mod job_types;
pub mod new_job;
pub mod page;
pub mod partition_pattern;
pub mod routes;
mod seen_counts;
mod seen_groups;
mod sharing;
pub mod status_url;
pub mod submission;
pub mod sweeper;
mod tracking_pipes;

use tokio::sync::OnceCell;

use crate::jobs::batches::BatchQuestions;
use crate::jobs::seen_counts::SeenCounts;
use crate::jobs::seen_groups::SeenGroups;

/// What the requests of jobs share.
#[derive(Debug, Default)]
pub struct JobsState {
    pub batch_questions: BatchQuestions,
    /// The numbers of jobs that lists on the page show.
    pub seen_counts: SeenCounts,
    /// The groups of failures that pages of jobs show.
    pub seen_groups: SeenGroups,
    /// Set once the store knows over how many tracking pipes the service spreads jobs.
    pub noted_shards: OnceCell<()>,
}
