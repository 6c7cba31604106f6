//! Reads one task of a job from the ledger: the nodes on the path to it, from the job down.

use contract::{JobId, JobStatus, PartitionId, rest};

use crate::db::sql;
use crate::job_row::JobRow;
use crate::ledger::{
    ACTIVE_TASK, ActiveTask, KeptAttempt, KeptFailure, NodeRow, extend, path_of, position,
};
use crate::{Result, Store};

/// What is known about a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAnswer {
    /// The task, with a remark if it is not certain that it existed.
    Task(Box<rest::Task>),
    /// There is no such job.
    NoJob,
    /// The job has no such task, or did not have it when it ended.
    NoTask,
    /// The job has ended, and its tasks are no longer stored. Whether it had this one is not known.
    NotKnown,
}

impl Store {
    /// Returns what is known about one task, named by the numbers of the subtasks on the path from
    /// the job to it. An empty path names the job's own task.
    pub async fn task(
        &self,
        partition: &PartitionId,
        job: &JobId,
        path: &[u32],
    ) -> Result<TaskAnswer> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(TaskAnswer::NoJob);
        };
        let mut keys = vec![];
        let mut id = String::new();
        for number in path {
            keys.extend([(id.clone(), 0), (id.clone(), position(*number).0)]);
            extend(&mut id, *number);
        }
        keys.extend([(id.clone(), 0), (id.clone(), ACTIVE_TASK)]);
        keys.dedup();
        let mut nodes = if row.task_table && !is_all_done(&row) {
            sql::ledger::nodes(&mut self.database.reader().await?, row.incarnation, &keys).await?
        } else {
            Vec::new()
        };
        let mut own = nodes.iter().filter(|node| node.path == id);
        if let Some(mark) = own.find_map(NodeRow::row_of_final) {
            nodes.extend(
                sql::ledger::nodes(&mut self.database.reader().await?, row.incarnation, &[mark])
                    .await?,
            );
        }
        let failure = if row.totals.failed_tasks > 0 {
            sql::failures::find(&mut self.database.reader().await?, row.incarnation, &id).await?
        } else {
            None
        };
        let earlier_failures = self.earlier_failures(&row, &id).await?;
        let attempts = if row.failed_attempts > 0 {
            sql::attempts::of_task(&mut self.database.reader().await?, row.incarnation, &id).await?
        } else {
            Vec::new()
        };
        Ok(match describe(&row, path, id, &nodes, failure) {
            Some(task) => TaskAnswer::Task(Box::new(with_attempts(
                rest::Task {
                    earlier_failures,
                    ..task
                },
                row.round,
                attempts,
            ))),
            None if is_forgotten(&row, path, &nodes) => TaskAnswer::NotKnown,
            None => TaskAnswer::NoTask,
        })
    }
}

impl Store {
    async fn earlier_failures(
        &self,
        job: &JobRow,
        path: &str,
    ) -> Result<Vec<rest::EarlierFailure>> {
        if job.round == 1 {
            return Ok(Vec::new());
        }
        let db = &mut self.database.reader().await?;
        let failures = sql::rounds::past_failures(db, job.incarnation, path).await?;
        let earlier = |(round, kept): (u32, KeptFailure)| rest::EarlierFailure {
            round,
            since: kept.since,
            attempts: kept.attempts(),
            failure: rest::Failure::of_task(kept.path, kept.failure),
        };
        Ok(failures.into_iter().map(earlier).collect())
    }
}

/// Adds the failed attempts of a task: those that are kept, and the last one of each round, by
/// which it failed or after which it waits.
fn with_attempts(task: rest::Task, round: u32, kept: Vec<(u32, KeptAttempt)>) -> rest::Task {
    let shown = |(round, kept): (u32, KeptAttempt)| rest::FailedAttempt {
        round,
        attempt: Some(kept.attempt),
        next_attempt_time: kept.next,
        failure: rest::Failure::of_task(kept.path, kept.failure),
    };
    let mut attempts: Vec<_> = kept.into_iter().map(shown).collect();
    let last_of = |earlier: &rest::EarlierFailure| rest::FailedAttempt {
        round: earlier.round,
        attempt: earlier.attempts,
        next_attempt_time: None,
        failure: earlier.failure.clone(),
    };
    attempts.extend(task.earlier_failures.iter().map(last_of));
    if let Some(failure) = &task.failure
        && (task.status == rest::TaskState::Failed || !has(&attempts, round, task.attempts))
    {
        attempts.push(rest::FailedAttempt {
            round,
            attempt: task.attempts,
            next_attempt_time: task.next_attempt_time,
            failure: failure.clone(),
        });
    }
    // Of a round, what has no number is the last.
    attempts.sort_by_key(|it| (it.round, it.attempt.unwrap_or(i32::MAX)));
    rest::Task {
        failed_attempts: attempts,
        ..task
    }
}

/// Returns whether these have the attempt with this number. A retry without a number is the first.
fn has(attempts: &[rest::FailedAttempt], round: u32, attempt: Option<i32>) -> bool {
    let number = Some(attempt.unwrap_or(1).max(1));
    attempts
        .iter()
        .any(|it| it.round == round && it.attempt == number)
}

/// Returns whether a task that is not found may have existed, because its job has ended and its
/// nodes are gone.
fn is_forgotten(job: &JobRow, path: &[u32], nodes: &[NodeRow]) -> bool {
    job.status.is_finished() && job.task_table && nodes.is_empty() && !is_beyond(job, path)
}

/// Returns whether each task of the job is done. Its table may be gone.
fn is_all_done(job: &JobRow) -> bool {
    job.status == JobStatus::Completed && job.totals.failed_tasks == 0
}

/// Returns whether the job's own task is known to have fewer subtasks than this path needs.
fn is_beyond(job: &JobRow, path: &[u32]) -> bool {
    let subtasks = job.totals.own_task.as_ref().and_then(|own| own.subtasks);
    path.first()
        .zip(subtasks)
        .is_some_and(|(first, subtasks)| *first > subtasks)
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
        remark: None,
        earlier_failures: Vec::new(),
        next_attempt_time: None,
        failed_attempts: Vec::new(),
    };
    if path.is_empty() {
        return Some(describe_job_task(job, task, nodes, failure));
    }
    if is_beyond(job, path) {
        return None;
    }
    let has_failures = job.totals.failed_tasks > 0;
    if job.status == JobStatus::Completed && (!has_failures || nodes.is_empty()) {
        if failure.is_some() {
            return Some(describe_failed(task, failure));
        }
        let own = job.totals.own_task.as_ref();
        let is_split = own.is_some_and(|own| own.subtasks.is_some());
        let may_be_split = is_split || job.task_table;
        let is_certain = is_split && path.len() == 1 && !has_failures;
        let remark = (!is_certain).then(|| remark("the job"));
        return may_be_split.then(|| completed(task, remark));
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
            let above = path_of(path[..=depth].iter().copied());
            let remark = (depth + 1 < path.len()).then(|| remark(&format!("task {above}")));
            return Some(completed(task, remark));
        }
        has_failed = bits.is_some_and(|row| row.failed_bits().get(bit));
    }
    if let Some(split) = find(&task.id, 0) {
        describe_split(&mut task, split, nodes);
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
    nodes: &[NodeRow],
    failure: Option<KeptFailure>,
) -> rest::Task {
    if let Some(split) = nodes
        .iter()
        .find(|row| row.path.is_empty() && row.chunk == 0)
    {
        describe_split(&mut task, split, nodes);
    } else if is_all_done(job) {
        // Without the final mark.
        let subtasks = job.totals.own_task.as_ref().and_then(|own| own.subtasks);
        task.subtasks = subtasks.map(|subtasks| i64::from(subtasks) - 1);
        task.completed_subtasks = task.subtasks;
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
        task.attempts = kept.attempts();
        task.failure = Some(rest::Failure::of_task(kept.path, kept.failure));
    } else if let Some(active) = &job.totals.own_task
        && active.is_reported()
        && !job.status.is_finished()
    {
        describe_active(&mut task, active.clone());
    }
    task
}

fn completed(task: rest::Task, remark: Option<String>) -> rest::Task {
    rest::Task {
        status: rest::TaskState::Completed,
        remark,
        ..task
    }
}

fn remark(above: &str) -> String {
    format!(
        "All that is stored is that {above} is completed. It is not known whether this task existed."
    )
}

/// Returns a remark on the subtasks of a task that is done, which are not stored.
pub(crate) fn remark_of_done(remark: Option<String>) -> String {
    remark.unwrap_or_else(|| "The task is done. Its subtasks are no longer stored.".to_owned())
}

fn describe_split(task: &mut rest::Task, split: &NodeRow, nodes: &[NodeRow]) {
    let of_final = split.row_of_final();
    let with_final = of_final.and_then(|(path, chunk)| {
        let mut rows = nodes.iter();
        rows.find(|row| row.path == path && row.chunk == chunk)
    });
    task.status = rest::TaskState::Active;
    task.subtasks = split.final_number().map(|mark| i64::from(mark) - 1);
    task.completed_subtasks = Some(split.parts_done(with_final));
}

fn describe_failed(mut task: rest::Task, failure: Option<KeptFailure>) -> rest::Task {
    task.status = rest::TaskState::Failed;
    if let Some(kept) = failure {
        task.since = Some(kept.since);
        task.attempts = kept.attempts();
        task.failure = Some(rest::Failure::of_task(kept.path, kept.failure));
    }
    task
}

fn describe_active(task: &mut rest::Task, active: ActiveTask) {
    task.status = if active.waits() {
        rest::TaskState::Retrying
    } else {
        rest::TaskState::Active
    };
    task.next_attempt_time = active.next.filter(|_| active.waits());
    task.since = Some(active.since);
    task.attempts = active.attempts;
    task.failure = active
        .failure
        .map(|failure| rest::Failure::of_task(task.id.clone(), failure));
}
