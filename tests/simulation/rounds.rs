//! Rounds of the simulated job: the client takes it up again, and everything is dispatched again.

use batch_worker::{Batch, BatchPlugin, Part, Range, SplitError};
use contract::{JobStatus, JobTaskId, TaskMessage, Tracking};
use store::{Begun, Definition, Incarnation, Retry};

use crate::simulation::{Expected, Put, Simulation, job_id, partition};

impl Simulation {
    /// Takes the job up again, if it has failed or was cancelled.
    pub async fn retry(&self, put: &mut Put) -> Result<(), String> {
        let retried = self
            .insist(|| {
                let store = &self.0.store;
                store.retry_job(partition(), job_id(), true, start_message)
            })
            .await?;
        match retried {
            Retry::Begun(Begun { job, .. }) if job.round > 1 => put.expected = Expected::Outcome,
            // The answer to an earlier attempt may have been lost.
            Retry::WrongStatus(status) if !status.is_finished() => put.expected = Expected::Outcome,
            Retry::WrongStatus(JobStatus::Completed) | Retry::NotFound => {}
            other => return Err(format!("the job cannot be taken up again: {other:?}")),
        }
        Ok(())
    }
}

/// Splits a range without saying from what, so that each round dispatches all of it again. There is
/// no HTTP under a paused clock, by which the batch worker would ask what is done.
pub struct WholeRange;

impl BatchPlugin for WholeRange {
    const NAME: &'static str = Range::NAME;

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        Range.split(batch).await
    }

    fn reads(&self, batch: Batch<'_>) -> bool {
        Range.reads(batch)
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        Range.count_items(definition)
    }
}

/// Returns the start message of another round, made of that of the first one as the job service
/// makes it.
fn start_message(incarnation: &Incarnation, definition: &Definition) -> Result<Vec<u8>, String> {
    let first = TaskMessage::decode(&definition.start).map_err(|error| error.to_string())?;
    let tracking = Tracking {
        job_task_id: Some(incarnation.job_task_id()),
        ..first.tracking.unwrap_or_default()
    };
    let message = TaskMessage {
        task_id: start_id(&first.task_id, incarnation.round),
        tracking: Some(tracking),
        ..first
    };
    Ok(message.encode())
}

/// Returns the id of the task that starts a round.
pub fn start_id(first: &str, round: u32) -> String {
    match round {
        1 => first.to_owned(),
        round => format!("{first}-r{round}"),
    }
}

/// Returns the round of a task; 1 for one that is not tracked.
pub fn round_of(job_task_id: Option<&str>) -> u32 {
    job_task_id
        .and_then(|id| JobTaskId::parse(id).ok())
        .map_or(1, |id| id.round)
}
