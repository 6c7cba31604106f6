//! Jobs as clients see them: create, read, list, cancel, delete.

mod bulk;

use std::collections::HashMap;

use contract::{JobId, JobStatus, PartitionId, rest};

use tokio::sync::watch;

use crate::db::DbError;
use crate::db::scheduling::{DueTime, JobKey, UnsentStart};
use crate::db::{JobRow, Signal, Transaction};
use crate::ledger::{ActiveTask, JobTotals, KeptFailure, NodeRow, extend, path_of, position};
use crate::outbox::pause_messages;
use crate::parking::release;
use crate::prerequisites::{self, Ended, Locks, NewWaits, lock, settle};
use crate::retention;
use crate::transition::{self, Actor};
use crate::{
    Attempts, Cancellation, Creation, Incarnation, JobQuery, JobRequest, Store, StoreError,
    Transition,
};

impl Store {
    /// Creates a job and, in the same transaction, puts its start message into the outbox. `start` makes the message for the new
    /// life; it may be asked more than once.
    pub async fn create_job(
        &self,
        request: &JobRequest,
        start: impl Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync,
    ) -> Result<Creation, StoreError> {
        let mut attempts = Attempts::default();
        let mut shared = true;
        loop {
            match self.create_once(request, &start, shared).await {
                Ok(Attempt::Done(creation)) => return Ok(creation),
                Ok(Attempt::InTheWay) => match self
                    .backend
                    .job(request.partition.as_str(), request.job.as_str())
                    .await?
                {
                    Some(there) if there.content_hash == request.content_hash => {
                        return Ok(Creation::AlreadyThere);
                    }
                    Some(_) => return Ok(Creation::Conflict),
                    // It was deleted in between.
                    None => {}
                },
                Ok(Attempt::NotAlone) => shared = false,
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// `shared` = other jobs of the partition may be created at the same time.
    async fn create_once(
        &self,
        request: &JobRequest,
        start: &(dyn Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync),
        shared: bool,
    ) -> Result<Attempt, DbError> {
        let now = self.now();
        let mut job = new_job(request, now);
        let mut tx = self.backend.begin().await?;
        tx.lock_creations(request.partition.as_str(), shared)
            .await?;
        let waits = match prerequisites::of_new(&mut *tx, request, shared).await? {
            NewWaits::For(waits) => waits,
            NewWaits::Not(attempt) => {
                tx.rollback().await?;
                return Ok(attempt);
            }
        };
        let Some(incarnation) = tx.insert_job(&job).await? else {
            tx.rollback().await?;
            return Ok(Attempt::InTheWay);
        };
        job.incarnation = incarnation;
        // Only now: a deletion of the life before may have been waited for.
        if tx
            .has_past_incarnation(request.partition.as_str(), request.job.as_str())
            .await?
        {
            tx.mark_recreated(incarnation).await?;
            job.first_life = false;
        }
        let life = job.to_incarnation();
        tx.insert_labels(incarnation, &request.labels).await?;
        let created = Transition {
            time: now,
            from: None,
            to: JobStatus::Waiting,
            actor: Actor::Client.name().to_owned(),
            reason: "created".to_owned(),
        };
        tx.append_history(incarnation, &created).await?;
        let after = waits
            .is_empty()
            .then(|| u64::from(request.start.delay) * 1000);
        if !waits.is_empty() {
            tx.insert_prerequisites(&job, &waits).await?;
        }
        let (pipe, body) = start(&life);
        tx.push_outbox(
            incarnation,
            &pipe,
            &body,
            DueTime {
                after,
                suspended: request.start.suspended,
            },
        )
        .await?;
        tx.notify(Signal::Outbox);
        tx.commit().await?;
        Ok(Attempt::Done(Creation::Created(life)))
    }

    pub async fn job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<rest::Job>, StoreError> {
        let row = self.backend.job(partition.as_str(), job.as_str()).await?;
        Ok(self.shown(row.into_iter().collect()).await?.pop())
    }

    /// The status alone; `None` for an unknown job and for a past incarnation.
    pub async fn job_status(
        &self,
        partition: &PartitionId,
        job: &JobId,
        incarnation: Option<i64>,
    ) -> Result<Option<JobStatus>, StoreError> {
        let row = self.backend.job(partition.as_str(), job.as_str()).await?;
        Ok(row
            .filter(|row| incarnation.is_none_or(|n| n == row.incarnation))
            .map(|row| row.status))
    }

    /// A page of jobs. Each is as it is now: the ledger rolls up what is reported when it is counted, so nothing is left to do
    /// for whoever reads, and what a query selects by is what it shows.
    pub async fn jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
    ) -> Result<Vec<rest::Job>, StoreError> {
        let rows = self.backend.jobs(partition.as_str(), query).await?;
        Ok(self.shown(rows).await?)
    }

    /// Limit, offset and order do not count.
    pub async fn count_jobs(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
    ) -> Result<u64, StoreError> {
        Ok(self.backend.count_jobs(partition.as_str(), query).await?)
    }

    pub async fn cancel_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Cancellation, StoreError> {
        let own = key(partition, job);
        let (mut attempts, mut locks) = (Attempts::default(), Locks::from([own.clone()]));
        loop {
            match self.cancel_once(&own, &mut locks).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// `None` = to be made again with the locks that it turned out to need.
    async fn cancel_once(
        &self,
        own: &JobKey,
        locks: &mut Locks,
    ) -> Result<Option<Cancellation>, DbError> {
        let mut tx = self.backend.begin().await?;
        let found = lock(&mut *tx, locks).await?;
        let answer = match found
            .into_iter()
            .find(|job| key(&job.partition, &job.job) == *own)
        {
            None => Cancellation::NotFound,
            Some(job) if job.status == JobStatus::Cancelled => Cancellation::AlreadyCancelled,
            Some(job) if job.status.is_finished() => Cancellation::Finished(job.status),
            Some(mut job) => {
                let now = self.now();
                cancel_locked(&mut *tx, &mut job, now).await?;
                let mut lives = vec![job.to_incarnation()];
                let Some(dependents) = settle(&mut *tx, locks, &[Ended::of(&job)], now).await?
                else {
                    tx.rollback().await?;
                    return Ok(None);
                };
                tx.commit().await?;
                lives.extend(dependents.into_iter().map(|(life, _)| life));
                return Ok(Some(Cancellation::Cancelled(lives)));
            }
        };
        tx.rollback().await?;
        Ok(Some(answer))
    }

    /// Wakes whenever a job has changed, in this process or another. A new receiver counts as woken.
    pub fn job_signal(&self) -> watch::Receiver<u64> {
        self.backend.signals().receiver(Signal::Jobs)
    }

    /// False when there was no such job. Those that wait for an unfinished one are cancelled.
    pub async fn delete_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<bool, StoreError> {
        let own = key(partition, job);
        let (mut attempts, mut locks) = (Attempts::default(), Locks::from([own.clone()]));
        loop {
            match self.delete_once(&own, &mut locks).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// `None` = to be made again with the locks that it turned out to need.
    async fn delete_once(&self, own: &JobKey, locks: &mut Locks) -> Result<Option<bool>, DbError> {
        let mut tx = self.backend.begin().await?;
        let found = lock(&mut *tx, locks).await?;
        let Some(row) = found
            .into_iter()
            .find(|job| key(&job.partition, &job.job) == *own)
        else {
            tx.rollback().await?;
            return Ok(Some(false));
        };
        if settle(&mut *tx, locks, &[Ended::by_deletion(&row)], self.now())
            .await?
            .is_none()
        {
            tx.rollback().await?;
            return Ok(None);
        }
        delete_locked(&mut *tx, &row).await?;
        tx.commit().await?;
        Ok(Some(true))
    }

    /// Oldest first; empty for an unknown job.
    pub async fn history(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Vec<Transition>, StoreError> {
        match self.backend.job(partition.as_str(), job.as_str()).await? {
            Some(row) => Ok(self.backend.history(row.incarnation).await?),
            None => Ok(Vec::new()),
        }
    }

    /// What is known about one task, named by the way from the job to it; `None` when the job or the task is not there.
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
        let mut way = String::new();
        for number in path {
            keys.extend([(way.clone(), 0), (way.clone(), position(*number).0)]);
            extend(&mut way, *number);
        }
        keys.extend([(way.clone(), 0), (way.clone(), -1)]);
        keys.dedup();
        let places = if row.task_table {
            self.backend.nodes(row.incarnation, &keys).await?
        } else {
            Vec::new()
        };
        let mut failures = Vec::new();
        if row.totals.failed_tasks > 0 {
            failures = self.backend.failures(&[row.incarnation]).await?;
        }
        let failure = failures
            .into_iter()
            .map(|(_, failure)| failure)
            .find(|failure| failure.path == way);
        Ok(what_is_known(&row, path, way, &places, failure))
    }

    /// Jobs as the API shows them, in this order.
    async fn shown(&self, rows: Vec<JobRow>) -> Result<Vec<rest::Job>, DbError> {
        let all: Vec<i64> = rows.iter().map(|row| row.incarnation).collect();
        let unstarted: Vec<i64> = rows
            .iter()
            .filter(|row| may_wait(row))
            .map(|row| row.incarnation)
            .collect();
        let failed: Vec<i64> = rows
            .iter()
            .filter(|row| row.totals.failed_tasks > 0)
            .map(|row| row.incarnation)
            .collect();
        let mut jobs: Vec<rest::Job> = rows.into_iter().map(shown_alone).collect();
        let at: HashMap<i64, usize> = all.iter().enumerate().map(|(at, n)| (*n, at)).collect();
        if !all.is_empty() {
            for (n, name, value) in self.backend.labels(&all).await? {
                jobs[at[&n]].labels.insert(name, value);
            }
        }
        if !failed.is_empty() {
            for (n, kept) in self.backend.failures(&failed).await? {
                jobs[at[&n]]
                    .failures
                    .push(rest::Failure::of_task(kept.path, kept.failure));
            }
        }
        if !unstarted.is_empty() {
            for (n, job_id, status) in self.backend.prerequisites(&unstarted).await? {
                jobs[at[&n]]
                    .waiting_for
                    .push(rest::AwaitedJob { job_id, status });
            }
            for UnsentStart {
                incarnation,
                due_time,
                suspended,
            } in self.backend.unsent_starts(&unstarted).await?
            {
                let job = &mut jobs[at[&incarnation]];
                // Without a delay it has hardly been read when it is over.
                (job.due_time, job.suspended) = (due_time.filter(|_| job.delay > 0), suspended);
            }
        }
        Ok(jobs)
    }
}

/// What an attempt to create a job came to.
pub(crate) enum Attempt {
    Done(Creation),
    /// There is a job with this id.
    InTheWay,
    /// No other job may be created in the partition at the same time.
    NotAlone,
}

/// Cancels a locked job that is not finished.
pub(crate) async fn cancel_locked(
    tx: &mut dyn Transaction,
    job: &mut JobRow,
    now: i64,
) -> Result<(), DbError> {
    release(tx, job).await?;
    if job.task_table {
        tx.retire_table(job.incarnation, 0).await?;
        tx.notify(Signal::Sweep);
    }
    move_job(
        tx,
        job,
        JobStatus::Cancelled,
        Actor::Client,
        "cancelled",
        now,
    )
    .await?;
    tx.save_job(job).await?;
    tx.notify(Signal::Jobs);
    Ok(())
}

/// Deletes a locked job, whatever its status.
pub(crate) async fn delete_locked(tx: &mut dyn Transaction, job: &JobRow) -> Result<(), DbError> {
    tx.remember_incarnation(job.partition.as_str(), job.job.as_str(), job.incarnation)
        .await?;
    tx.delete_job(job.incarnation).await?;
    if job.task_table {
        tx.retire_table(job.incarnation, 0).await?;
    }
    tx.notify(Signal::Sweep);
    tx.notify(Signal::Jobs);
    Ok(())
}

/// Moves a locked job to another status and writes its history.
pub(crate) async fn move_job(
    tx: &mut dyn Transaction,
    job: &mut JobRow,
    to: JobStatus,
    actor: Actor,
    reason: &str,
    now: i64,
) -> Result<(), DbError> {
    let was_paused = job.status == JobStatus::Paused;
    let step = moved(job, to, actor, reason, now)?;
    if to == JobStatus::Paused || (was_paused && !to.is_finished()) {
        pause_messages(tx, job.incarnation, to == JobStatus::Paused).await?;
    }
    if job.expiry_time.is_some() {
        tx.notify(Signal::Sweep);
    }
    tx.append_history(job.incarnation, &step).await
}

/// Moves a job to another status, and tells the step. Every transition after the creation passes here.
pub(crate) fn moved(
    job: &mut JobRow,
    to: JobStatus,
    actor: Actor,
    reason: &str,
    now: i64,
) -> Result<Transition, DbError> {
    let from = job.status;
    if !transition::is_legal(from, to, actor) {
        return Err(DbError::Refused(format!(
            "a job that is {from} cannot become {to} by {}",
            actor.name()
        )));
    }
    job.status = to;
    job.last_update_time = now;
    if to.is_finished() {
        job.finish_time = Some(now);
        job.expiry_time = retention::due(&job.expiry, to, job.create_time, now);
    }
    Ok(Transition {
        time: now,
        from: Some(from),
        to,
        actor: actor.name().to_owned(),
        reason: reason.to_owned(),
    })
}

pub(crate) fn key(partition: &PartitionId, job: &JobId) -> (String, String) {
    (partition.to_string(), job.to_string())
}

fn new_job(request: &JobRequest, now: i64) -> JobRow {
    JobRow {
        partition: request.partition.clone(),
        job: request.job.clone(),
        incarnation: 0,
        first_life: true,
        name: request.name.clone(),
        description: request.description.clone(),
        external_data: request.external_data.clone(),
        content_hash: request.content_hash.to_vec(),
        status: JobStatus::Waiting,
        totals: JobTotals::new(request.on_failure),
        delay: i64::from(request.start.delay),
        task_table: false,
        create_time: now,
        last_update_time: now,
        finish_time: None,
        expiry: request.expiry.clone(),
        expiry_time: None,
        without_target: request.without_target,
    }
}

/// Whether the start message of a job may not have left. A job that was paused while it waited is Active when it is resumed.
fn may_wait(row: &JobRow) -> bool {
    !row.status.is_finished() && !row.task_table && row.totals.percentage == 0
}

/// Said of a job whose request named no target pipe.
const WITHOUT_TARGET: &str =
    "The job names no target pipe: it completes only by workers without output.";

fn shown_alone(row: JobRow) -> rest::Job {
    rest::Job {
        id: row.job.into(),
        name: row.name,
        description: row.description,
        external_data: row.external_data,
        create_time: row.create_time,
        last_update_time: row.last_update_time,
        status: row.status,
        percentage_complete: f64::from(row.totals.percentage) / 100.0,
        failures: Vec::new(),
        labels: std::collections::BTreeMap::new(),
        on_failure: row.totals.on_failure,
        completed_items: row.totals.completed_items,
        failed_tasks: row.totals.failed_tasks,
        failure_counts: row.totals.failure_counts,
        incarnation: row.incarnation,
        expiry: row.expiry,
        waiting_for: Vec::new(),
        delay: row.delay,
        due_time: None,
        suspended: false,
        notes: if row.without_target {
            vec![WITHOUT_TARGET.to_owned()]
        } else {
            Vec::new()
        },
    }
}

/// Reads the places on the way to a task, and of the task itself, from the top down.
fn what_is_known(
    job: &JobRow,
    path: &[u32],
    way: String,
    places: &[NodeRow],
    failure: Option<KeptFailure>,
) -> Option<rest::Task> {
    let find = |path: &str, chunk: i32| {
        places
            .iter()
            .find(|row| row.path == path && row.chunk == chunk)
    };
    let mut task = rest::Task {
        id: way,
        status: rest::TaskState::Waiting,
        since: None,
        attempts: None,
        failure: None,
        subtasks: None,
        completed_subtasks: None,
    };
    if path.is_empty() {
        return Some(own_task(job, task, find("", 0), failure));
    }
    if job.status == JobStatus::Completed {
        task.status = rest::TaskState::Completed;
        return Some(task);
    }
    let failed = |mut task: rest::Task| {
        task.status = rest::TaskState::Failed;
        if let Some(kept) = failure.clone() {
            task.since = Some(kept.since);
            task.attempts = kept.attempts;
            task.failure = Some(rest::Failure::of_task(kept.path, kept.failure));
        }
        task
    };
    let mut has_failed = false;
    for (depth, number) in path.iter().enumerate() {
        let above = path_of(path[..depth].iter().copied());
        let (chunk, bit) = position(*number);
        let Some(header) = find(&above, 0) else {
            return failure.is_some().then(|| failed(task));
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
        return Some(failed(task));
    }
    if let Some(exception) = find(&task.id, -1).map(ActiveTask::of_row) {
        describe_exception(&mut task, exception);
    }
    Some(task)
}

/// The job's own task: what the job says, and its split.
fn own_task(
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
    } else if let Some(own) = job
        .totals
        .own_task
        .clone()
        .filter(|_| !job.status.is_finished())
    {
        describe_exception(&mut task, own);
    }
    task
}

fn describe_split(task: &mut rest::Task, split: &NodeRow) {
    task.status = rest::TaskState::Active;
    task.subtasks = split.size.map(i64::from);
    task.completed_subtasks = Some(i64::from(split.done_count));
}

fn describe_exception(task: &mut rest::Task, exception: ActiveTask) {
    task.status = if exception.retrying {
        rest::TaskState::Retrying
    } else {
        rest::TaskState::Active
    };
    task.since = Some(exception.since);
    task.attempts = exception.attempts;
    task.failure = exception
        .failure
        .map(|failure| rest::Failure::of_task(task.id.clone(), failure));
}
