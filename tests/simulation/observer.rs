//! Watches the job of a simulation: what may never change in it, between any two reads.

use std::sync::Arc;

use contract::JobStatus;
use contract::rest::Job;
use store::Store;
use tokio::sync::Mutex;

use crate::simulation::{job_id, partition};

/// Reads the job and compares it with what it was before.
#[derive(Clone)]
pub struct Observer {
    store: Store,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    job: Option<Job>,
    broken: Vec<String>,
}

impl Observer {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            seen: Arc::default(),
        }
    }

    /// Returns the job; `None` also if the store is not available.
    pub async fn look(&self) -> Option<Job> {
        // One read at a time, so that the reads are in order.
        let mut seen = self.seen.lock().await;
        let job = self.store.job(partition(), job_id()).await.ok().flatten()?;
        if let Some(before) = seen
            .job
            .take()
            .filter(|before| before.incarnation == job.incarnation)
        {
            let has_gone_on = before.round != job.round;
            // What has failed of a Completed job is done anew.
            let had_failures = before.status == JobStatus::Completed && before.failed_tasks > 0;
            if job.percentage_complete < before.percentage_complete
                && !(has_gone_on && had_failures)
            {
                seen.broken
                    .push(format!("the percentage fell: {before:?}, then {job:?}"));
            }
            if has_gone_on {
                if job.completed_items < before.completed_items
                    || (before.status == JobStatus::Completed && !had_failures)
                {
                    let broken = format!("a round forgets: {before:?}, then {job:?}");
                    seen.broken.push(broken);
                }
            } else if before.status.is_finished() && !keeps_outcome(&before, &job) {
                seen.broken
                    .push(format!("an outcome changed: {before:?}, then {job:?}"));
            }
        }
        if (job.percentage_complete >= 100.0) != (job.status == JobStatus::Completed) {
            seen.broken.push(format!(
                "100 percent and Completed are not the same: {job:?}"
            ));
        }
        if let Some(kept) = &job.outputs
            && kept.done < job.completed_items
        {
            seen.broken.push(format!(
                "an item is done before its output is kept: {job:?}"
            ));
        }
        seen.job = Some(job.clone());
        Some(job)
    }

    pub async fn broken(&self) -> Vec<String> {
        self.seen.lock().await.broken.clone()
    }
}

/// Returns whether a finished job has kept what was decided. Late reports may still add items and
/// failures; of a Completed job, what has failed may be done after all.
fn keeps_outcome(before: &Job, job: &Job) -> bool {
    let decided = |job: &Job| (job.status, job.percentage_complete);
    if job.status == JobStatus::Completed {
        return decided(job) == decided(before)
            && job.completed_items + job.failed_tasks
                == before.completed_items + before.failed_tasks
            && job.failed_tasks <= before.failed_tasks;
    }
    decided(job) == decided(before)
        && job.completed_items >= before.completed_items
        && job.failed_tasks >= before.failed_tasks
        && before
            .failures
            .iter()
            .all(|failure| job.failures.contains(failure))
}
