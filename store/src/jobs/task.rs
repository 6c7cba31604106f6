//! Reads one task of a job from the ledger: the nodes on the path to it, from the job down.

use contract::{JobId, JobStatus, PartitionId, rest};

use crate::job_row::JobRow;
use crate::ledger::{ACTIVE_TASK, ActiveTask, KeptFailure, NodeRow, extend, path_of, position};
use crate::{Store, StoreError};

impl Store {
    /// Returns one task, named by the numbers of the subtasks on the path from the job to it. An empty path names the job's
    /// own task. Returns `None` if there is no such job, or if its ledger shows that there is no such task.
    pub async fn task(
        &self,
        partition: &PartitionId,
        job: &JobId,
        path: &[u32],
    ) -> Result<Option<rest::Task>, StoreError> {
        let Some(row) = self.backend.job(partition.as_str(), job.as_str()).await? else {
            return Ok(None);
        };
        let mut keys = vec![];
        let mut id = String::new();
        for number in path {
            keys.extend([(id.clone(), 0), (id.clone(), position(*number).0)]);
            extend(&mut id, *number);
        }
        keys.extend([(id.clone(), 0), (id.clone(), ACTIVE_TASK)]);
        keys.dedup();
        let nodes = if row.task_table {
            self.backend.nodes(row.incarnation, &keys).await?
        } else {
            Vec::new()
        };
        let failures = if row.totals.failed_tasks > 0 {
            self.backend.failures(&[row.incarnation]).await?
        } else {
            Vec::new()
        };
        let failure = failures
            .into_iter()
            .map(|(_, failure)| failure)
            .find(|failure| failure.path == id);
        Ok(describe(&row, path, id, &nodes, failure))
    }
}

fn describe(
    job: &JobRow,
    path: &[u32],
    id: String,
    nodes: &[NodeRow],
    failure: Option<KeptFailure>,
) -> Option<rest::Task> {
    let find = |path: &str, chunk: i32| {
        nodes
            .iter()
            .find(|row| row.path == path && row.chunk == chunk)
    };
    let mut task = rest::Task {
        id,
        status: rest::TaskState::Waiting,
        since: None,
        attempts: None,
        failure: None,
        subtasks: None,
        completed_subtasks: None,
    };
    if path.is_empty() {
        return Some(describe_job_task(job, task, find("", 0), failure));
    }
    if job.status == JobStatus::Completed {
        task.status = rest::TaskState::Completed;
        return Some(task);
    }
    let mut has_failed = false;
    for (depth, number) in path.iter().enumerate() {
        let above = path_of(path[..depth].iter().copied());
        let (chunk, bit) = position(*number);
        let Some(header) = find(&above, 0) else {
            // The table is gone; of a failed task the failure may be kept.
            return failure.map(|kept| describe_failed(task, Some(kept)));
        };
        if header
            .size
            .is_some_and(|size| i64::from(*number) > i64::from(size))
        {
            return None;
        }
        let bits = find(&above, chunk);
        if bits.is_some_and(|row| row.bits().get(bit)) {
            task.status = rest::TaskState::Completed;
            return Some(task);
        }
        has_failed = bits.is_some_and(|row| row.failed_bits().get(bit));
    }
    if let Some(split) = find(&task.id, 0) {
        describe_split(&mut task, split);
    }
    if has_failed {
        return Some(describe_failed(task, failure));
    }
    if let Some(active) = find(&task.id, ACTIVE_TASK).map(ActiveTask::of_row) {
        describe_active(&mut task, active);
    }
    Some(task)
}

/// Describes the job's own task, from the row of the job and the split of that task.
fn describe_job_task(
    job: &JobRow,
    mut task: rest::Task,
    split: Option<&NodeRow>,
    failure: Option<KeptFailure>,
) -> rest::Task {
    if let Some(split) = split {
        describe_split(&mut task, split);
    }
    task.since = job.finish_time;
    task.status = match job.status {
        JobStatus::Completed => rest::TaskState::Completed,
        JobStatus::Failed => rest::TaskState::Failed,
        JobStatus::Waiting => rest::TaskState::Waiting,
        JobStatus::Active | JobStatus::Blocked | JobStatus::Cancelled | JobStatus::Paused => {
            rest::TaskState::Active
        }
    };
    if let Some(kept) = failure {
        task.attempts = kept.attempts;
        task.failure = Some(rest::Failure::of_task(kept.path, kept.failure));
    } else if let Some(active) = &job.totals.own_task
        && !job.status.is_finished()
    {
        describe_active(&mut task, active.clone());
    }
    task
}

fn describe_split(task: &mut rest::Task, split: &NodeRow) {
    task.status = rest::TaskState::Active;
    task.subtasks = split.size.map(i64::from);
    task.completed_subtasks = Some(i64::from(split.done_count));
}

fn describe_failed(mut task: rest::Task, failure: Option<KeptFailure>) -> rest::Task {
    task.status = rest::TaskState::Failed;
    if let Some(kept) = failure {
        task.since = Some(kept.since);
        task.attempts = kept.attempts;
        task.failure = Some(rest::Failure::of_task(kept.path, kept.failure));
    }
    task
}

fn describe_active(task: &mut rest::Task, active: ActiveTask) {
    task.status = if active.retrying {
        rest::TaskState::Retrying
    } else {
        rest::TaskState::Active
    };
    task.since = Some(active.since);
    task.attempts = active.attempts;
    task.failure = active
        .failure
        .map(|failure| rest::Failure::of_task(task.id.clone(), failure));
}
