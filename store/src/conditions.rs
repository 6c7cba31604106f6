//! What a job service does to a condition: claims one that is due, and takes a step with it, in one
//! transaction.
//!
//! What a step is, others decide; this module takes it. How tasks come to wait:
//! [`blocked`](crate::blocked).
//!
//! What must stay true:
//! - One job service at a time has a condition. A step of one whose claim has passed to another
//!   does nothing.
//! - What a task that was let go has done in the meantime is not lost: the condition is due at once
//!   then.
//! - The tasks that a step lets go leave the store in the transaction that puts their messages into
//!   the outbox.
//! - A condition for which tasks wait is not deleted.
//! - A job that is paused, cancelled or deleted holds up no other job that waits for the same
//!   condition.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::headers::LABEL_HEADER;
use contract::{ConditionKey, FailedItem, JobStatus, JobTaskId, ReportFailure};
use tokio::sync::watch;

use crate::blocked::{forget_blocked, forget_ended};
use crate::condition::{
    ClaimedCondition, ConditionAct, ConditionPhase, ConditionQuery, ConditionRow, ConditionStep,
    FullCondition, Stepped, WaitingJob,
};
use crate::db::run_tx::{End, Tx};
use crate::db::sql::conditions::{BlockState, WaitingTask};
use crate::db::{DbError, JobRow, OF_CONDITIONS, Signal, millis, sql};
use crate::dependents::EndedJob;
use crate::flush::{Saved, apply, save};
use crate::ledger::steps_of;
use crate::model::{EventKind, Header, Headers, TrackingEvent};
use crate::transition::{Writes, resolve_dependents};
use crate::{Result, Store, StoreOptions};

impl Store {
    /// Claims the condition that is overdue the longest, for this long. Returns `None` if none is
    /// due.
    pub async fn claim_condition(&self, lease: Duration) -> Result<Option<ClaimedCondition>> {
        self.bring_times_back().await?;
        let lease = millis(lease);
        self.run_tx("claim_condition", |tx| {
            Box::pin(async move {
                let claimed = sql::conditions::claim(tx, lease).await?;
                Ok(End::commit_if(claimed.is_some(), claimed))
            })
        })
        .await
    }

    /// Returns the time until a condition can be claimed; `None` if there is none.
    pub async fn next_condition(&self) -> Result<Option<Duration>> {
        self.bring_times_back().await?;
        self.run_tx("next_condition", |tx| {
            Box::pin(async move { Ok(End::Rollback(sql::conditions::next(tx).await?)) })
        })
        .await
    }

    /// Returns a receiver that changes whenever a condition may be due earlier. A new receiver
    /// counts as changed.
    pub fn condition_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Conditions)
    }

    /// Takes a step with a condition that was claimed. Returns `None`, and does nothing, if the
    /// claim counts no more.
    pub async fn step_condition(
        &self,
        claimed: &ConditionRow,
        step: &ConditionStep,
    ) -> Result<Option<Stepped>> {
        let options = &self.options;
        self.run_tx("step_condition", |tx| {
            Box::pin(take(tx, claimed, step, options))
        })
        .await
    }

    /// Puts a condition into this phase, and makes it due: as a person asks. Returns false if there
    /// is none with this key.
    pub async fn command_condition(
        &self,
        key: &ConditionKey,
        phase: ConditionPhase,
    ) -> Result<bool> {
        self.run_tx("command_condition", |tx| {
            Box::pin(async move {
                let found = sql::conditions::command(tx, key.as_str(), phase).await?;
                tx.notify_job(OF_CONDITIONS, key.as_str());
                tx.notify(Signal::Conditions);
                Ok(End::Commit(found))
            })
        })
        .await
    }

    /// Returns conditions in the order of their keys.
    pub async fn conditions(&self, query: &ConditionQuery) -> Result<Vec<ConditionRow>> {
        Ok(sql::conditions::page(&mut self.database.lister().await?, query).await?)
    }

    /// Returns a condition; `None` if there is none with this key.
    pub async fn condition(&self, key: &ConditionKey) -> Result<Option<ConditionRow>> {
        Ok(sql::conditions::find(&mut self.database.reader().await?, key.as_str()).await?)
    }

    /// Returns the jobs of which tasks wait for a condition, those with the most tasks first.
    pub async fn waiting_jobs(&self, key: &ConditionKey, limit: u32) -> Result<Vec<WaitingJob>> {
        let db = &mut self.database.reader().await?;
        Ok(sql::conditions::waiting_jobs(db, key.as_str(), limit).await?)
    }

    /// Returns the conditions for which at least so many `tasks` of one pipe wait.
    pub async fn full_conditions(&self, tasks: u64, limit: u32) -> Result<Vec<FullCondition>> {
        Ok(sql::conditions::full(&mut self.database.reader().await?, tasks, limit).await?)
    }
}

async fn take(
    tx: &mut Tx<'_>,
    claimed: &ConditionRow,
    step: &ConditionStep,
    options: &StoreOptions,
) -> Result<End<Option<Stepped>>, DbError> {
    let key = claimed.key.as_str();
    let (active, limit) = match &step.act {
        ConditionAct::Nothing | ConditionAct::Forget => (false, 0),
        ConditionAct::Canary => (true, 1),
        ConditionAct::Release(limit) | ConditionAct::Fail(limit, _) => (false, *limit),
    };
    // Those that an earlier attempt has found missing, before others are locked out of their order.
    tx.lock_known_jobs().await?;
    let tasks = match limit {
        0 => Vec::new(),
        limit => sql::conditions::waiting_tasks(tx, key, active, limit).await?,
    };
    // Jobs before conditions.
    let missing = tx.not_locked(tasks.iter().map(|task| task.job.clone()));
    if !missing.is_empty() && !tx.lock_more_jobs(missing).await? {
        return Ok(End::Rerun);
    }
    let jobs = tx.lock_known_jobs().await?;
    if !sql::conditions::hold(tx, key, claimed.lease).await? {
        return Ok(End::Rollback(None));
    }
    let mut stepped = Stepped::default();
    let mut ended = Vec::new();
    for (mut job, ids) in by_job(jobs, &tasks) {
        if job.status.is_finished() {
            // Its tasks are being dropped.
            forget_blocked(tx, &mut job, limit).await?;
            sql::jobs::save_one(tx, &job).await?;
        } else if let ConditionAct::Fail(_, failure) = &step.act {
            let (failed, end) = fail(tx, &mut job, key, &ids, failure, options).await?;
            stepped.tasks += failed;
            ended.extend(end);
        } else {
            let (to, paused) = match step.act {
                ConditionAct::Canary => (BlockState::Canary, false),
                _ => (BlockState::Released, job.status == JobStatus::Paused),
            };
            if to == BlockState::Canary && job.status == JobStatus::Paused {
                continue;
            }
            stepped.tasks +=
                sql::conditions::let_go(tx, job.incarnation, key, &ids, to, paused).await?;
            tx.notify_job(job.partition.as_str(), job.job.as_str());
        }
    }
    let now = tx.now();
    if resolve_dependents(tx, &ended, now).await?.is_none() {
        return Ok(End::Rerun);
    }
    if stepped.tasks > 0 {
        tx.notify(Signal::Outbox);
    }
    stepped.waiting = sql::conditions::count_waiting(tx, key).await?;
    if step.act == ConditionAct::Forget && sql::conditions::forget(tx, key).await? {
        return Ok(End::Commit(Some(stepped)));
    }
    sql::conditions::change(tx, claimed, step).await?;
    tx.notify_job(OF_CONDITIONS, key);
    // Other services sleep until the time that they know.
    tx.notify(Signal::Conditions);
    Ok(End::Commit(Some(stepped)))
}

/// Returns each of these locked jobs that has some of these tasks, with their numbers.
fn by_job(jobs: Vec<JobRow>, tasks: &[WaitingTask]) -> Vec<(JobRow, Vec<i64>)> {
    let mut ids: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for task in tasks {
        ids.entry(task.incarnation).or_default().push(task.id);
    }
    jobs.into_iter()
        .filter_map(|job| {
            let ids = ids.remove(&job.incarnation)?;
            Some((job, ids))
        })
        .collect()
}

/// Fails tasks of a locked job that still wait for a condition. Returns how many, and the end of
/// the job if it ends by that.
async fn fail(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    key: &str,
    ids: &[i64],
    failure: &ReportFailure,
    options: &StoreOptions,
) -> Result<(u64, Option<EndedJob>), DbError> {
    let waiting = sql::conditions::still_waiting(tx, job.incarnation, key, ids).await?;
    let events: Vec<TrackingEvent> = waiting
        .iter()
        .map(|(path, headers)| TrackingEvent {
            task: JobTaskId {
                partition: job.partition.to_string(),
                job: job.job.to_string(),
                incarnation: Some(job.incarnation),
                round: job.round,
                steps: steps_of(path),
            },
            kind: EventKind::Failed(ReportFailure {
                item: label_in(headers).map(FailedItem::labelled),
                ..failure.clone()
            }),
        })
        .collect();
    let events: Vec<&TrackingEvent> = events.iter().collect();
    let now = tx.now();
    let (_, outcome) = apply(tx, job, &events, options, now).await?;
    let paths: Vec<String> = waiting.into_keys().collect();
    forget_ended(tx, job, &paths).await?;
    let (keep, mut writes) = (options.failed_tables_kept, Writes::default());
    let saved = save(tx, job, outcome, keep, now, &mut writes).await?;
    writes.add(job.clone());
    writes.write(tx).await?;
    let end = match saved {
        Saved::Ended(end) => Some(end),
        Saved::Changed | Saved::Unchanged => None,
    };
    Ok((paths.len() as u64, end))
}

/// Returns what the worker has called the item, if it has said so.
fn label_in(headers: &Headers) -> Option<&str> {
    match headers.get(LABEL_HEADER)? {
        Header::Text(label) => Some(label),
        Header::Integer(_) => None,
    }
}
