//! ★ The status of a job: which changes are legal, who may make each, and everything that a change
//! entails.
//!
//! No other module writes a status. A change consists of, in one transaction and under the lock of
//! the job:
//!
//! - the status, the time of the change, and one row of history, which says who, why, in which
//!   round and by which request;
//! - to Paused: the messages of the job in the outbox wait, and parked tasks stay where they are;
//! - from Paused to Active: both may leave again;
//! - from the end ([`reopen_job`], a new round): there is no end and no expiry any more;
//! - to the end ([`finish_job`]): the time of the end and of the expiry; parked tasks are marked
//!   for removal; the task table is listed for the sweeper; the jobs that wait for this one are
//!   released, or end as well ([`resolve_dependents`]);
//! - an announcement to all workers, if they may hold tasks of the job that must not run any more,
//!   or may run now ([`is_announced`]);
//! - waking those who watch jobs, the outbox, parked tasks or the sweeper's work, after the commit.
//!
//! A job is created Waiting; its creation (`jobs/create.rs`) writes that first row of history.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::JobStatus::{self, Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting};
use contract::ReportFailure;

use crate::db::run_tx::Tx;
use crate::db::{DbError, JobRow, Result, Signal, end_of, millis, sql};
use crate::dependents::{self, Cascade, EndedJob};
use crate::ledger::{KeptFailure, failure_kind};
use crate::model::{Incarnation, Transition};
use crate::outbox::announce;
use crate::retention;

/// Who moves a job from one status to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    /// A person or a program, through the API.
    Client,
    /// The ledger, from reports of workers.
    Tracking,
    /// The end of a job that this one waited for.
    Prerequisite,
    /// The service itself.
    Service,
}

impl Actor {
    /// Returns the name that the history shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Tracking => "tracking",
            Self::Prerequisite => "prerequisite",
            Self::Service => "service",
        }
    }
}

/// Every legal change. None leads to Blocked: an active job is only shown so
/// ([`contract::rest::Job`]). Only a client takes a job up again that has ended; reports never
/// change an outcome.
const LEGAL: &[(JobStatus, JobStatus, Actor)] = &[
    (Waiting, Active, Actor::Tracking),
    (Waiting, Paused, Actor::Client),
    (Waiting, Cancelled, Actor::Client),
    (Waiting, Completed, Actor::Tracking),
    (Waiting, Failed, Actor::Tracking),
    (Waiting, Cancelled, Actor::Prerequisite),
    (Waiting, Failed, Actor::Prerequisite),
    (Active, Paused, Actor::Client),
    (Active, Cancelled, Actor::Client),
    (Active, Completed, Actor::Tracking),
    (Active, Failed, Actor::Tracking),
    (Active, Cancelled, Actor::Prerequisite),
    (Active, Failed, Actor::Prerequisite),
    (Paused, Active, Actor::Client),
    (Paused, Cancelled, Actor::Client),
    (Paused, Completed, Actor::Tracking),
    (Paused, Failed, Actor::Tracking),
    (Paused, Cancelled, Actor::Prerequisite),
    (Paused, Failed, Actor::Prerequisite),
    (Cancelled, Active, Actor::Client),
    (Cancelled, Waiting, Actor::Client),
    (Completed, Active, Actor::Client),
    (Failed, Active, Actor::Client),
    (Failed, Waiting, Actor::Client),
];

fn is_legal(from: JobStatus, to: JobStatus, actor: Actor) -> bool {
    LEGAL.contains(&(from, to, actor))
}

/// Returns whether a change is announced to all workers. A failure is announced only if it leaves
/// work, that is, tasks of the job that may run or wait. Completing a job and beginning it never
/// is, so that an ordinary job costs nothing.
const fn is_announced(from: JobStatus, to: JobStatus, leaves_work: bool) -> bool {
    match to {
        Paused | Cancelled => true,
        Failed => leaves_work,
        Active | Waiting => matches!(from, Paused) || from.is_finished(),
        Completed | Blocked => false,
    }
}

/// The number of transitions of a job that are kept, besides the first one. Only pausing and taking
/// up again repeat themselves, so only these shorten the history.
const TRANSITIONS_KEPT: u32 = 500;

/// A requested change of status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatusChange<'a> {
    pub to: JobStatus,
    pub actor: Actor,
    /// The reason that the history shows.
    pub reason: &'a str,
    /// Milliseconds since 1970.
    pub time: i64,
}

/// Moves a locked job to a status in which it is not finished, and saves the job.
pub(crate) async fn change_status(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    change: StatusChange<'_>,
) -> Result<()> {
    let from = job.status;
    let was_paused = from == Paused;
    let step = apply(job, change, tx.request())?;
    if was_paused {
        job.pace.restart(change.time, job.totals.ended_items());
    }
    if change.to == Paused {
        sql::parking::unmark(tx, job.incarnation).await?;
        sql::outbox::set_paused(tx, job.incarnation, true).await?;
    } else if was_paused {
        sql::outbox::set_paused(tx, job.incarnation, false).await?;
        tx.notify(Signal::Outbox);
        // The parked tasks leave. Those of a job that has ended are dropped instead.
        if sql::parking::mark(tx, &[job.incarnation], false).await? {
            tx.notify(Signal::Unpark);
        }
        if job.blocked_tasks > 0 && sql::conditions::wake_canaries(tx, job.incarnation).await? > 0 {
            tx.notify(Signal::Conditions);
        }
    }
    if is_announced(from, change.to, true) {
        announce(tx, &[job.qualified_id()]).await?;
    }
    sql::history::append(tx, job.incarnation, &step).await?;
    if change.to == Paused {
        sql::history::shorten(tx, job.incarnation, TRANSITIONS_KEPT).await?;
    }
    sql::jobs::save_one(tx, job).await?;
    tx.notify_job(job.partition.as_str(), job.job.as_str());
    Ok(())
}

/// Moves a locked job that has ended to a status in which it is not finished, and saves the job.
pub(crate) async fn reopen_job(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    change: StatusChange<'_>,
) -> Result<()> {
    let step = apply(job, change, tx.request())?;
    sql::history::append(tx, job.incarnation, &step).await?;
    sql::history::shorten(tx, job.incarnation, TRANSITIONS_KEPT).await?;
    announce(tx, &[job.qualified_id()]).await?;
    sql::jobs::save_one(tx, job).await?;
    tx.notify(Signal::Outbox);
    tx.notify_job(job.partition.as_str(), job.job.as_str());
    Ok(())
}

/// Moves a locked job to an outcome other than Failed, and saves the job. Its task table is kept
/// for `keep_table` from now.
///
/// Does not update the jobs that wait for this one: pass the returned value to
/// [`resolve_dependents`].
pub(crate) async fn finish_job(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    change: StatusChange<'_>,
    keep_table: Duration,
) -> Result<EndedJob> {
    let mut writes = Writes::default();
    let ended = writes.finish(tx, job, change, keep_table, false).await?;
    writes.add(job.clone());
    writes.write(tx).await?;
    Ok(ended)
}

/// What a transaction writes of the locked jobs that it changes: a few statements for all of them.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    jobs: Vec<JobRow>,
    steps: Vec<(i64, Transition)>,
    /// The jobs that have ended without tasks that wait for a condition.
    ended: Vec<i64>,
    /// Those that have ended with such tasks, which leave the store only then.
    blocked: Vec<i64>,
    /// The names of the jobs to announce.
    announced: Vec<String>,
}

impl Writes {
    /// Moves a job to a status in which it is neither finished nor paused, and in which it was not
    /// before.
    pub fn begin(
        &mut self,
        tx: &mut Tx<'_>,
        job: &mut JobRow,
        change: StatusChange<'_>,
    ) -> Result<()> {
        let step = apply(job, change, tx.request())?;
        self.steps.push((job.incarnation, step));
        Ok(())
    }

    /// Moves a job to its outcome, as [`finish_job`] does. `leaves_work` says whether tasks of it
    /// may still run or wait. The caller adds the job.
    pub async fn finish(
        &mut self,
        tx: &mut Tx<'_>,
        job: &mut JobRow,
        change: StatusChange<'_>,
        keep_table: Duration,
        leaves_work: bool,
    ) -> Result<EndedJob> {
        let from = job.status;
        let step = apply(job, change, tx.request())?;
        self.steps.push((job.incarnation, step));
        if is_announced(from, job.status, leaves_work) {
            self.announced.push(job.qualified_id());
        }
        if job.blocked_tasks > 0 {
            self.blocked.push(job.incarnation);
        } else {
            self.ended.push(job.incarnation);
        }
        retire_table(tx, job, keep_table).await?;
        tx.notify_job(job.partition.as_str(), &end_of(job.job.as_str()));
        Ok(EndedJob::of(job))
    }

    /// Adds a job to those that are saved.
    pub fn add(&mut self, job: JobRow) {
        self.jobs.push(job);
    }

    /// Saves the jobs, their transitions and their announcements, and tells those who watch them.
    pub async fn write(self, tx: &mut Tx<'_>) -> Result<()> {
        for (jobs, always) in [(&self.ended, false), (&self.blocked, true)] {
            if !jobs.is_empty() && sql::parking::mark(tx, jobs, always).await? {
                tx.notify(Signal::Unpark);
            }
        }
        if !self.steps.is_empty() {
            sql::history::append_all(tx, &self.steps).await?;
        }
        if !self.jobs.is_empty() {
            sql::jobs::save(tx, &self.jobs).await?;
        }
        announce(tx, &self.announced).await?;
        for job in &self.jobs {
            tx.notify_job(job.partition.as_str(), job.job.as_str());
        }
        Ok(())
    }
}

/// Applies the end of these jobs to the jobs that wait for them: releases those whose prerequisites
/// are complete, and ends those whose prerequisites did not complete, as these ended.
///
/// Returns the jobs that have ended because of this, with their outcomes, or `None` if the attempt
/// has to end with [`End::Rerun`](crate::db::run_tx::End::Rerun), because it needs locks that it
/// cannot take in order any more.
pub(crate) async fn resolve_dependents(
    tx: &mut Tx<'_>,
    ended: &[EndedJob],
    now: i64,
) -> Result<Option<Vec<(Incarnation, JobStatus)>>> {
    if ended.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let Some(dependents) = dependents::find(tx, ended).await? else {
        return Ok(None);
    };
    let finished = finish_dependents(tx, &dependents.cascades, now).await?;
    let gone: Vec<i64> = ended
        .iter()
        .map(|job| job.incarnation)
        .chain(finished.iter().map(|(job, _)| job.number))
        .collect();
    let stopped: Vec<i64> = ended
        .iter()
        .filter(|job| job.outcome != Completed)
        .map(|job| job.incarnation)
        .collect();
    if !stopped.is_empty() {
        sql::rounds::note_unstarted(tx, &stopped, &fell_with(&dependents.cascades)).await?;
    }
    sql::prerequisites::forget_starts(tx, &gone).await?;
    let released: Vec<i64> = dependents
        .released
        .iter()
        .map(|wait| wait.incarnation)
        .filter(|incarnation| !gone.contains(incarnation))
        .collect();
    if !released.is_empty() {
        sql::prerequisites::release(tx, &dependents.completed, &released).await?;
        tx.notify(Signal::Outbox);
    }
    for wait in &dependents.released {
        tx.notify_job(&wait.partition, &wait.job);
    }
    for (job, _) in &finished {
        for watched in [job.job.as_str(), &end_of(job.job.as_str())] {
            tx.notify_job(job.partition.as_str(), watched);
        }
    }
    Ok(Some(finished))
}

/// Ends the jobs of these cascades as their roots have ended. They never ran, so a few statements
/// update all of them.
async fn finish_dependents(
    tx: &mut Tx<'_>,
    cascades: &[Cascade<'_>],
    now: i64,
) -> Result<Vec<(Incarnation, JobStatus)>> {
    let mut waiting = lock_waiting(tx, cascades).await?;
    let (mut jobs, mut steps, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let mut announced = Vec::new();
    for Cascade { root, waits } in cascades.iter().filter(|cascade| !cascade.waits.is_empty()) {
        let failure = if root.outcome == Failed {
            Some(inherited_failure(tx, root).await?)
        } else {
            None
        };
        for wait in waits {
            // A job may wait for several jobs that end; it ends once.
            let Some(mut job) = waiting
                .remove(&wait.incarnation)
                .filter(|job| !job.status.is_finished())
            else {
                continue;
            };
            let change = StatusChange {
                to: root.outcome,
                actor: Actor::Prerequisite,
                reason: &dependent_reason(root, &wait.prerequisite),
                time: now,
            };
            let step = Transition {
                prerequisite: Some(wait.prerequisite.clone()),
                ..apply(&mut job, change, tx.request())?
            };
            if step
                .from
                .is_some_and(|from| is_announced(from, job.status, false))
            {
                announced.push(job.qualified_id());
            }
            steps.push((job.incarnation, step));
            if let Some(failure) = &failure {
                job.totals.count_failure(&failure_kind(failure));
                let kept = KeptFailure {
                    path: String::new(),
                    since: now,
                    attempts: None,
                    failure: failure.clone(),
                };
                failures.push((job.incarnation, kept));
            }
            retire_table(tx, &job, Duration::ZERO).await?;
            jobs.push(job);
        }
    }
    if !jobs.is_empty() {
        sql::jobs::save(tx, &jobs).await?;
        sql::history::append_all(tx, &steps).await?;
        if !failures.is_empty() {
            sql::failures::insert(tx, &failures).await?;
        }
        announce(tx, &announced).await?;
    }
    Ok(jobs
        .iter()
        .map(|job| (job.to_incarnation(), job.status))
        .collect())
}

/// Returns the jobs that end with another one, each with that one, by their incarnations.
fn fell_with(cascades: &[Cascade<'_>]) -> Vec<(i64, i64)> {
    let pairs = cascades.iter().flat_map(|cascade| {
        let root = cascade.root.incarnation;
        cascade
            .waits
            .iter()
            .map(move |wait| (wait.incarnation, root))
    });
    // A job may wait for several jobs that end; it ends once, with the first.
    let mut first: BTreeMap<i64, i64> = BTreeMap::new();
    for (incarnation, root) in pairs {
        first.entry(incarnation).or_insert(root);
    }
    first.into_iter().collect()
}

/// Reads the jobs of these cascades, by incarnation.
async fn lock_waiting(tx: &mut Tx<'_>, cascades: &[Cascade<'_>]) -> Result<BTreeMap<i64, JobRow>> {
    let mut keys: Vec<_> = cascades
        .iter()
        .flat_map(|cascade| &cascade.waits)
        .map(|wait| (wait.partition.clone(), wait.job.clone()))
        .collect();
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    keys.sort_unstable();
    keys.dedup();
    let rows = sql::jobs::lock(tx, &keys).await?;
    Ok(rows.into_iter().map(|row| (row.incarnation, row)).collect())
}

/// Returns why a job ends that waits for `prerequisite`, which is `root` or ended because of it.
fn dependent_reason(root: &EndedJob, prerequisite: &str) -> String {
    let verb = match root.outcome {
        Failed => "has failed",
        _ if root.deleted && prerequisite == root.key.1 => "was deleted",
        _ => "was cancelled",
    };
    format!("its prerequisite {prerequisite} {verb}")
}

/// Returns the failure of a job as the jobs that wait for it inherit it: its source names the job
/// where it happened.
async fn inherited_failure(tx: &mut Tx<'_>, root: &EndedJob) -> Result<ReportFailure> {
    let failure = sql::failures::first(tx, root.incarnation)
        .await?
        .unwrap_or_default();
    let source = failure
        .failure_source
        .unwrap_or_else(|| "Unknown".to_owned());
    let (partition, job) = &root.key;
    Ok(ReportFailure {
        failure_source: Some(format!("{partition}:{job}:{source}")),
        ..failure
    })
}

/// Changes the status of a job in memory, and what depends on it alone. Returns the row for the
/// history; `request` is the correlation id of the request that causes the change.
fn apply(job: &mut JobRow, change: StatusChange<'_>, request: Option<&str>) -> Result<Transition> {
    let StatusChange {
        to,
        actor,
        reason,
        time,
    } = change;
    let from = job.status;
    if !is_legal(from, to, actor) {
        return Err(DbError::Refused(
            format!(
                "a job that is {from} cannot become {to} by {}",
                actor.name()
            )
            .into(),
        ));
    }
    job.status = to;
    job.last_update_time = time;
    if to.is_finished() {
        job.finish_time = Some(time);
        job.expiry_time = retention::due(&job.expiry, to, job.create_time, time);
    } else if from.is_finished() {
        (job.finish_time, job.expiry_time) = (None, None);
    }
    Ok(Transition {
        time,
        from: Some(from),
        to,
        actor: actor.name().to_owned(),
        reason: reason.to_owned(),
        round: job.round,
        correlation_id: request.map(str::to_owned),
        prerequisite: None,
    })
}

/// Leaves to the sweeper what a finished job no longer needs: its task table, and the job itself
/// once it expires.
async fn retire_table(tx: &mut Tx<'_>, job: &JobRow, keep: Duration) -> Result<()> {
    if job.task_table {
        sql::retention::retire_table(tx, job.incarnation, millis(keep)).await?;
    }
    if job.task_table || job.expiry_time.is_some() {
        tx.notify(Signal::Sweep);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: from; columns: to. Letters: the actors that may make the change (c client, t tracking,
    /// p prerequisite).
    const EXPECTED: &str = "\
              Active Blocked Cancelled Completed Failed Paused Waiting
    Active    -      -       cp        t         tp     c      -
    Blocked   -      -       -         -         -      -      -
    Cancelled c      -       -         -         -      -      c
    Completed c      -       -         -         -      -      -
    Failed    c      -       -         -         -      -      c
    Paused    c      -       cp        t         tp     -      -
    Waiting   t      -       cp        t         tp     c      -";

    #[test]
    fn each_change_of_status_is_legal_for_the_actors_in_the_table() {
        let mut lines = EXPECTED.lines();
        let columns: Vec<_> = lines
            .next()
            .unwrap()
            .split_whitespace()
            .map(|name| JobStatus::from_name(name).unwrap())
            .collect();
        let mut pairs = 0;
        for line in lines {
            let mut words = line.split_whitespace();
            let from = JobStatus::from_name(words.next().unwrap()).unwrap();
            for (to, letters) in columns.iter().zip(words) {
                for actor in [
                    Actor::Client,
                    Actor::Tracking,
                    Actor::Prerequisite,
                    Actor::Service,
                ] {
                    let expected = letters.contains(&actor.name()[..1]);
                    assert_eq!(
                        is_legal(from, *to, actor),
                        expected,
                        "{from} -> {to} by {}",
                        actor.name()
                    );
                    pairs += 1;
                }
            }
        }
        assert_eq!(pairs, JobStatus::ALL.len() * JobStatus::ALL.len() * 4);
    }

    #[test]
    fn pausing_resuming_cancelling_and_beginning_a_round_are_announced_and_so_is_a_failure_that_leaves_work()
     {
        for leaves_work in [false, true] {
            for (from, to, _) in LEGAL {
                let expected = match (from, to) {
                    (_, Completed) | (Waiting, Active) => false,
                    (_, Failed) => leaves_work,
                    _ => true,
                };
                let announced = is_announced(*from, *to, leaves_work);
                assert_eq!(announced, expected, "{from} -> {to}, {leaves_work}");
            }
        }
    }

    #[test]
    fn only_a_client_leaves_a_finished_status() {
        for (_, to, actor) in LEGAL.iter().filter(|(from, _, _)| from.is_finished()) {
            assert!(!to.is_finished());
            assert_eq!(*actor, Actor::Client);
        }
    }
}
