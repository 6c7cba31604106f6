//! Counts the messages that a worker discards, by reason, and logs the jobs that they belong to.
//!
//! A discarded message leaves no other trace. The log has a line for the first one of a job, and
//! then for the 10th, the 100th, and so on.

use std::collections::HashMap;

use contract::{JobStatus, TaskMessage};
use metrics::Counter;
use parking_lot::Mutex;
use tracing::info;

use crate::announcement::job_of;
use crate::meters;
use crate::steps::routing::JobKnowledge;

/// The largest number of jobs whose discarded messages are counted for the log. With more, the
/// counts begin again.
const CAPACITY: usize = 10_000;
/// How much of the id of a job is kept, in bytes.
const LONGEST_JOB: usize = 200;

/// The discarded messages of one worker.
#[derive(Debug)]
pub(crate) struct Discards {
    counters: [Counter; Reason::ALL.len()],
    /// How many messages of each job were discarded.
    jobs: Mutex<HashMap<String, u64>>,
}

/// Why a message is discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The job service has no such job.
    Gone,
    Completed,
    Failed,
    Cancelled,
    /// The task itself noticed that its job had ended, and how is not known any more.
    Ended,
}

impl Discards {
    pub fn of(worker: &str) -> Self {
        Self {
            counters: Reason::ALL.map(|reason| meters::discarded(worker, reason.name())),
            jobs: Mutex::default(),
        }
    }

    /// Counts a message that is discarded because of what is known about its job.
    pub fn note(&self, message: &TaskMessage, job: JobKnowledge) {
        let reason = Reason::of(job);
        self.counters[reason as usize].increment(1);
        let job = message.job_task_id().map_or("", job_of);
        let so_far = self.count(&job[..job.floor_char_boundary(LONGEST_JOB)]);
        if is_power_of_ten(so_far) {
            info!(
                job,
                so_far,
                reason = reason.name(),
                "messages of a job are discarded: {}",
                reason.why()
            );
        }
    }

    /// Returns how many messages of this job were discarded so far.
    fn count(&self, job: &str) -> u64 {
        let mut jobs = self.jobs.lock();
        if let Some(count) = jobs.get_mut(job) {
            *count += 1;
            return *count;
        }
        if jobs.len() >= CAPACITY {
            jobs.clear();
        }
        jobs.insert(job.to_owned(), 1);
        1
    }
}

impl Reason {
    const ALL: [Self; 5] = [
        Self::Gone,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Ended,
    ];

    const fn of(job: JobKnowledge) -> Self {
        match job {
            JobKnowledge::Gone => Self::Gone,
            JobKnowledge::Is(JobStatus::Completed) => Self::Completed,
            JobKnowledge::Is(JobStatus::Failed) => Self::Failed,
            JobKnowledge::Is(JobStatus::Cancelled) => Self::Cancelled,
            JobKnowledge::Is(_) | JobKnowledge::Presumed => Self::Ended,
        }
    }

    /// Returns the value of the metric's label.
    const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Ended => "ended",
        }
    }

    const fn why(self) -> &'static str {
        match self {
            Self::Gone => "the job service says that the job does not exist (any more)",
            Self::Completed => "the job is completed",
            Self::Failed => "the job has failed",
            Self::Cancelled => "the job is cancelled",
            Self::Ended => "the job has ended",
        }
    }
}

const fn is_power_of_ten(number: u64) -> bool {
    number > 0 && 10_u64.pow(number.ilog10()) == number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_messages_are_counted_per_job_within_a_bound() {
        let discards = Discards::of("w");
        assert_eq!([1, 2, 3].map(|_| discards.count("p:j")), [1, 2, 3]);
        for job in 0..CAPACITY * 2 {
            discards.count(&format!("p:{job}"));
            assert!(discards.jobs.lock().len() <= CAPACITY);
        }
        assert_eq!(discards.count("p:j"), 1);
    }

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn log_tells_the_first_message_and_each_tenfold() {
        let told: Vec<u64> = (0..=1000).filter(|n| is_power_of_ten(*n)).collect();
        assert_eq!(told, [1, 10, 100, 1000]);
    }
}
