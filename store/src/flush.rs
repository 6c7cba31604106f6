//! A flush: one transaction that counts the events of many tasks of many jobs in their ledgers.
//!
//! For each job it loads the nodes that the events touch, applies the events (see
//! [`ledger`](crate::ledger)), and saves what has changed. Then it moves the job to the status that
//! the ledger has decided on.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::metrics::{FLUSH_EVENTS, FLUSH_SECONDS};
use contract::{JobStatus, JobTaskId, Step};
use metrics::histogram;
use tokio::time::Instant;

use crate::blocked::forget_ended;
use crate::curve::{Moment, points_of, text_of};
use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, sql};
use crate::dependents::EndedJob;
use crate::job_row::JobRow;
use crate::ledger::{Ledger, Outcome, counts_in, keys_of, path_of};
use crate::model::{EventKind, Recorded, TrackingEvent};
use crate::outputs::supersede_failures;
use crate::transition::{Actor, StatusChange, Writes, resolve_dependents};
use crate::{Result, Store, StoreOptions};

/// The events of one job, in the order of arrival.
type Events<'a> = Vec<&'a TrackingEvent>;
/// The events of a flush by (partition, job), which is the order of locks.
type EventsByJob<'a> = BTreeMap<(&'a str, &'a str), Events<'a>>;

impl Store {
    /// Counts these events: on an error none of them, otherwise all but those of jobs that another
    /// transaction keeps locked, which the result names.
    ///
    /// Events of unknown jobs, past incarnations and finished jobs are ignored, but for those of
    /// failed and cancelled jobs whose task table is kept: they mark tasks as done and add
    /// failures. Of the events of past rounds, only those count that report a task complete.
    /// Recording an event again changes nothing.
    pub async fn record(&self, events: &[TrackingEvent]) -> Result<Recorded> {
        if events.is_empty() {
            return Ok(Recorded::default());
        }
        let groups = &by_job(events);
        let locks: JobLocks = groups
            .keys()
            .map(|(partition, job)| ((*partition).to_owned(), (*job).to_owned()))
            .collect();
        let (options, begun) = (&self.options, Instant::now());
        let flushed =
            self.run_tx_on_free_jobs("record", locks, |tx| Box::pin(flush(tx, groups, options)));
        let (mut recorded, left_out) = flushed.await?;
        for (partition, job) in left_out.keys() {
            let events = groups.get(&(partition.as_str(), job.as_str()));
            recorded.ignored -= events.map_or(0, Vec::len) as u64;
        }
        recorded.left_out = left_out;
        histogram!(FLUSH_SECONDS).record(begun.elapsed());
        histogram!(FLUSH_EVENTS).record(u32::try_from(events.len()).unwrap_or(u32::MAX));
        Ok(recorded)
    }
}

async fn flush(
    tx: &mut Tx<'_>,
    groups: &EventsByJob<'_>,
    options: &StoreOptions,
) -> Result<End<Recorded>, DbError> {
    let mut recorded = Recorded {
        ignored: groups.values().map(|events| events.len() as u64).sum(),
        ..Recorded::default()
    };
    let now = tx.now();
    let (mut ended, mut writes) = (Vec::new(), Writes::default());
    for mut job in tx.lock_known_jobs().await? {
        let Some(events) = groups.get(&(job.partition.as_str(), job.job.as_str())) else {
            // A job that waits for one of these.
            continue;
        };
        tx.set_at_hand(Some(&job));
        let events = that_count(&job, events);
        if events.is_empty() || !takes_reports(tx, &job).await? {
            continue;
        }
        let (counted, outcome) = apply(tx, &job, &events, options, now).await?;
        recorded.ignored -= counted;
        let blocked = job.blocked_tasks;
        if blocked > 0 {
            forget_ended(tx, &mut job, &ended_among(&events)).await?;
        }
        if job.round > 1 && job.output_pipe.is_some() {
            // A task that failed in an earlier round may end without a result now.
            supersede_failures(tx, job.incarnation, &done_among(&events)).await?;
        }
        let keep = options.failed_tables_kept;
        let saved = save(tx, &mut job, outcome, keep, now, &mut writes).await?;
        if let Saved::Ended(end) = saved {
            recorded.finished.push((job.to_incarnation(), job.status));
            ended.push(end);
        } else if job.blocked_tasks == blocked && matches!(saved, Saved::Unchanged) {
            continue;
        }
        writes.add(job);
    }
    tx.set_at_hand(None);
    writes.write(tx).await?;
    let Some(dependents) = resolve_dependents(tx, &ended, now).await? else {
        return Ok(End::Rerun);
    };
    recorded.finished.extend(dependents);
    Ok(End::Commit(recorded))
}

/// Returns whether reports of a locked job count. Those of a job that can begin another round do
/// while its task table is kept, so that the round knows what is done.
async fn takes_reports(tx: &mut Tx<'_>, job: &JobRow) -> Result<bool, DbError> {
    if job.can_go_on() && job.task_table {
        return sql::retention::hold_retired_table(tx, job.incarnation).await;
    }
    Ok(!job.status.is_finished())
}

/// Applies the events of one locked job to its ledger. Returns the number of events that counted,
/// and what to save.
pub(crate) async fn apply(
    tx: &mut Tx<'_>,
    job: &JobRow,
    events: &[&TrackingEvent],
    options: &StoreOptions,
    now: i64,
) -> Result<(u64, Outcome), DbError> {
    let incarnation = job.incarnation;
    let mut ledger = Ledger::new(job.totals.clone(), options.max_failures, now)
        .in_round(job.round)
        .with_failed_attempts(job.failed_attempts);
    if job.status.is_finished() {
        ledger = ledger.of_ended_job(job.status);
    }
    if job.task_table {
        ledger.load(sql::ledger::load_nodes(tx, incarnation, &keys_of(steps(events))).await?);
        let more = ledger.also_needed(steps(events));
        if !more.is_empty() {
            ledger.load(sql::ledger::load_nodes(tx, incarnation, &more).await?);
        }
    }
    let failed = ledger.failed_among(steps(events));
    if !failed.is_empty() {
        ledger.load_kept(sql::failures::kinds(tx, incarnation, &failed).await?);
    }
    let counted = events
        .iter()
        .filter(|event| ledger.apply(&event.task.steps, &event.kind))
        .count() as u64;
    ledger.limit_items(options.max_items);
    Ok((counted, ledger.finish()))
}

/// What the outcome of a ledger has made of a job.
pub(crate) enum Saved {
    Unchanged,
    Changed,
    Ended(EndedJob),
}

/// Saves the outcome of a locked job's ledger. The caller adds the job to the writes, if it has
/// changed.
pub(crate) async fn save(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    outcome: Outcome,
    keep_failed_table: Duration,
    now: i64,
    writes: &mut Writes,
) -> Result<Saved, DbError> {
    let incarnation = job.incarnation;
    let mut changed =
        job.totals != outcome.totals || job.failed_attempts != outcome.failed_attempts;
    let is_first_report = job.has_no_reports();
    (job.totals, job.failed_attempts) = (outcome.totals, outcome.failed_attempts);
    job.pace
        .record(now, job.totals.ended_items(), is_first_report);
    if !outcome.nodes.is_empty() {
        if !job.task_table {
            sql::ledger::create_task_table(tx, incarnation).await?;
            (job.task_table, changed) = (true, true);
        }
        sql::ledger::change_nodes(tx, incarnation, &outcome.nodes).await?;
    }
    if !outcome.new_failures.is_empty() || !outcome.gone_failures.is_empty() {
        sql::failures::change(
            tx,
            incarnation,
            &outcome.new_failures,
            &outcome.gone_failures,
        )
        .await?;
    }
    if !outcome.new_attempts.is_empty() {
        sql::attempts::insert(tx, incarnation, job.round, &outcome.new_attempts).await?;
    }
    let by_tracking = |to, reason| StatusChange {
        to,
        actor: Actor::Tracking,
        reason,
        time: now,
    };
    // Only what is saved.
    if changed || outcome.decision.is_some() {
        extend_curve(tx, job, now).await?;
    }
    if let Some((status, reason)) = &outcome.decision {
        // A later round goes on with what is not done.
        let keep_table = if *status == JobStatus::Completed && job.totals.failed_tasks == 0 {
            Duration::ZERO
        } else {
            keep_failed_table
        };
        let change = by_tracking(*status, reason);
        let left = outcome.leaves_work;
        let ended = writes.finish(tx, job, change, keep_table, left).await?;
        return Ok(Saved::Ended(ended));
    }
    if outcome.active && job.status == JobStatus::Waiting {
        let begun = by_tracking(JobStatus::Active, "the first report of a task");
        writes.begin(tx, job, begun)?;
    } else if changed {
        job.last_update_time = now;
    } else {
        return Ok(Saved::Unchanged);
    }
    Ok(Saved::Changed)
}

/// Adds the present numbers of a locked job to its curve, if a point is due. The job is saved
/// afterwards.
async fn extend_curve(tx: &mut Tx<'_>, job: &mut JobRow, now: i64) -> Result<(), DbError> {
    let totals = &job.totals;
    let present = Moment(now, totals.completed_items, totals.failed_tasks);
    let points = job.curve.take(present);
    if points.is_empty() {
        return Ok(());
    }
    if !job.curve.is_full() {
        return sql::curve::extend(tx, job.incarnation, &text_of(&points)).await;
    }
    let stored = sql::curve::find(tx, job.incarnation).await?;
    let mut all = points_of(stored.as_deref().unwrap_or_default());
    all.extend(points);
    let kept = job.curve.thin(&all);
    sql::curve::replace(tx, job.incarnation, &text_of(&kept)).await
}

fn by_job(events: &[TrackingEvent]) -> EventsByJob<'_> {
    let mut groups = EventsByJob::new();
    // Most often, successive events belong to the same job.
    for run in
        events.chunk_by(|a, b| a.task.job == b.task.job && a.task.partition == b.task.partition)
    {
        let JobTaskId { partition, job, .. } = &run[0].task;
        groups.entry((partition, job)).or_default().extend(run);
    }
    groups
}

/// Returns the events that count for this incarnation of the job in its round.
fn that_count<'a>(job: &JobRow, events: &[&'a TrackingEvent]) -> Events<'a> {
    let counts = |event: &&TrackingEvent| {
        job.matches(event.task.incarnation) && counts_in(&event.kind, event.task.round, job.round)
    };
    events.iter().copied().filter(counts).collect()
}

/// Returns the paths of the tasks that have ended.
fn ended_among(events: &[&TrackingEvent]) -> Vec<String> {
    let has_ended =
        |event: &&&TrackingEvent| matches!(event.kind, EventKind::Complete | EventKind::Failed(_));
    let ended = events.iter().filter(has_ended);
    ended
        .map(|event| path_of(event.task.steps.iter().map(|step| step.number)))
        .collect()
}

/// Returns the paths of the tasks that are done.
fn done_among(events: &[&TrackingEvent]) -> Vec<Vec<u32>> {
    let done = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Complete));
    done.map(|event| event.task.steps.iter().map(|step| step.number).collect())
        .collect()
}

fn steps<'a>(events: &'a [&TrackingEvent]) -> impl Iterator<Item = &'a [Step]> {
    events.iter().map(|event| event.task.steps.as_slice())
}
