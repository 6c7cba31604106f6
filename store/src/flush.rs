//! The flush of the ledger: events of many tasks of many jobs, counted in by one transaction.

use std::collections::{BTreeMap, HashMap};

use contract::{JobStatus, JobTaskId, Step};

use crate::db::DbError;
use crate::db::{JobRow, Signal, Transaction};
use crate::jobs::move_job;
use crate::ledger::{Ledger, Outcome, keys_of};
use crate::parking::release;
use crate::prerequisites::{Ended, Locks, lock, settle};
use crate::transition::Actor;
use crate::{Attempts, Recorded, Store, StoreError, TrackingEvent};

/// The events of one job, in the order of arrival.
type Events<'a> = Vec<&'a TrackingEvent>;

impl Store {
    /// Counts these events in, all or none.
    pub async fn record(&self, events: &[TrackingEvent]) -> Result<Recorded, StoreError> {
        if events.is_empty() {
            return Ok(Recorded::default());
        }
        let groups = by_job(events);
        let mut locks: Locks = groups
            .keys()
            .map(|(p, j)| ((*p).to_owned(), (*j).to_owned()))
            .collect();
        let mut attempts = Attempts::default();
        loop {
            match self.record_once(&groups, &mut locks).await {
                Ok(Some(recorded)) => return Ok(recorded),
                Ok(None) => {}
                Err(fault) if attempts.again(&fault).await => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// `None` = to be made again with the locks that it turned out to need: those of jobs that wait for one that has ended.
    async fn record_once(
        &self,
        groups: &BTreeMap<(&str, &str), Events<'_>>,
        locks: &mut Locks,
    ) -> Result<Option<Recorded>, DbError> {
        let mut tx = self.backend.begin().await?;
        let mut recorded = Recorded {
            ignored: groups.values().map(|events| events.len() as u64).sum(),
            ..Recorded::default()
        };
        let now = self.now();
        let mut ended = Vec::new();
        for mut job in lock(&mut *tx, locks).await? {
            let Some(events) = groups.get(&(job.partition.as_str(), job.job.as_str())) else {
                continue;
            };
            let events = living(&job, events);
            if events.is_empty() || job.status.is_finished() {
                continue;
            }
            recorded.ignored -= self.record_job(&mut *tx, &mut job, &events, now).await?;
            if job.status.is_finished() {
                recorded.finished.push((job.to_incarnation(), job.status));
                ended.push(Ended::of(&job));
            }
        }
        let Some(dependents) = settle(&mut *tx, locks, &ended, now).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        recorded.finished.extend(dependents);
        tx.commit().await?;
        Ok(Some(recorded))
    }

    /// Counts the events of one locked job in; answers how many counted.
    async fn record_job(
        &self,
        tx: &mut dyn Transaction,
        job: &mut JobRow,
        events: &[&TrackingEvent],
        now: i64,
    ) -> Result<u64, DbError> {
        let n = job.incarnation;
        let kept = if job.totals.failed_tasks > 0 {
            tx.kept_failures(n).await?
        } else {
            HashMap::new()
        };
        let mut ledger = Ledger::new(job.totals.clone(), kept, now);
        if job.task_table {
            ledger.load(tx.load_nodes(n, &keys_of(steps(events))).await?);
            let more = ledger.also_needed(steps(events));
            if !more.is_empty() {
                ledger.load(tx.load_nodes(n, &more).await?);
            }
        }
        let counted = events
            .iter()
            .filter(|event| ledger.apply(&event.task.steps, &event.kind))
            .count() as u64;
        let outcome = ledger.finish();
        self.store_outcome(tx, job, outcome, now).await?;
        Ok(counted)
    }

    async fn store_outcome(
        &self,
        tx: &mut dyn Transaction,
        job: &mut JobRow,
        outcome: Outcome,
        now: i64,
    ) -> Result<(), DbError> {
        let n = job.incarnation;
        let Outcome {
            totals,
            active,
            decision,
            places,
            new_failures,
            gone_failures,
        } = outcome;
        let mut changed = job.totals != totals;
        job.totals = totals;
        if !places.is_empty() {
            if !job.task_table {
                tx.create_task_table(n).await?;
                (job.task_table, changed) = (true, true);
            }
            tx.change_nodes(n, &places).await?;
        }
        if !new_failures.is_empty() || !gone_failures.is_empty() {
            tx.change_failures(n, &new_failures, &gone_failures).await?;
        }
        match decision {
            Some((status, reason)) => {
                changed = true;
                move_job(tx, job, status, Actor::Tracking, &reason, now).await?;
                release(tx, job).await?;
                if job.task_table {
                    let kept = if status == JobStatus::Failed {
                        self.options.failed_tables_kept
                    } else {
                        std::time::Duration::ZERO
                    };
                    tx.retire_table(n, u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
                        .await?;
                    tx.notify(Signal::Sweep);
                }
            }
            None if active && job.status == JobStatus::Waiting => {
                changed = true;
                move_job(
                    tx,
                    job,
                    JobStatus::Active,
                    Actor::Tracking,
                    "the first report of a task",
                    now,
                )
                .await?;
            }
            None => {}
        }
        if changed {
            job.last_update_time = now;
            tx.save_job(job).await?;
            tx.notify(Signal::Jobs);
        }
        Ok(())
    }
}

/// The events by (partition, job), in the order in which jobs are locked.
fn by_job(events: &[TrackingEvent]) -> BTreeMap<(&str, &str), Events<'_>> {
    let mut groups: BTreeMap<(&str, &str), Events<'_>> = BTreeMap::new();
    // Events come in runs of one job.
    for run in
        events.chunk_by(|a, b| a.task.job == b.task.job && a.task.partition == b.task.partition)
    {
        let JobTaskId { partition, job, .. } = &run[0].task;
        groups.entry((partition, job)).or_default().extend(run);
    }
    groups
}

/// The events of this life of the job id.
fn living<'a>(job: &JobRow, events: &[&'a TrackingEvent]) -> Events<'a> {
    events
        .iter()
        .copied()
        .filter(|event| job.matches(event.task.incarnation))
        .collect()
}

fn steps<'a>(events: &'a [&TrackingEvent]) -> impl Iterator<Item = &'a [Step]> {
    events.iter().map(|event| event.task.steps.as_slice())
}
