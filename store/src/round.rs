//! The beginning of a round: what happens to a job that is taken up again, in one transaction under
//! its lock.
//!
//! - Its task table leaves the list of the sweeper. If a sweeper has it, the job cannot be taken up
//!   again.
//! - What the earlier round knew of tasks that are not done is cleared: that they failed, waited or
//!   ran. The failures are kept as those of the earlier round.
//! - The time of the end and the expiry are cleared. The percentage stays.
//! - Parked tasks of the earlier round are dropped, and the start message goes to the outbox.
//! - If nothing is left to do, the job is Completed at once.
//! - A job that never started is Waiting again, with its prerequisites and its delay.
//!
//! What must stay true: what is done stays done, and is never counted twice.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::{JobId, JobStatus};

use crate::blocked::forget_blocked;
use crate::db::run_tx::Tx;
use crate::db::{DbError, DueTime, JobRow, Result, Signal, sql};
use crate::definition::PackedDefinition;
use crate::dependents::EndedJob;
use crate::ledger::{Ledger, NodeChanges, keys_of, steps_of};
use crate::model::{Definition, Incarnation, Prerequisite, Retry};
use crate::prerequisites::{refusal, to_wait_for};
use crate::transition::{Actor, StatusChange, finish_job, reopen_job};

/// The number of rows of a task table that are cleared at a time.
const PAGE: u32 = 500;
/// The number of earlier rounds whose failures are kept.
const ROUNDS_KEPT: u32 = 10;

/// Makes the start message of a round from what the job was created from.
pub(crate) type MakeStart<'f> =
    &'f (dyn Fn(&Incarnation, &Definition) -> Result<Vec<u8>, String> + Send + Sync);

/// A locked job that has ended, and what it needs to begin a round.
pub(crate) struct Ended {
    pub job: JobRow,
    pub definition: PackedDefinition,
    /// Whether its start message was never sent, as far as is known.
    pub unstarted: bool,
}

/// How the beginning of a round ends.
pub(crate) enum Beginning {
    /// The round has begun.
    Begun,
    /// The round has begun and nothing was left to do.
    Completed(EndedJob),
    /// No round has begun.
    Refused(Retry),
}

impl Ended {
    /// Reads what the job needs. Returns why no round can begin otherwise.
    pub async fn read(tx: &mut Tx<'_>, job: JobRow) -> Result<Result<Self, Retry>> {
        if !job.can_go_on() {
            return Ok(Err(Retry::WrongStatus(job.status)));
        }
        let definition = sql::rounds::definition(tx, job.incarnation).await?;
        // A message that was sent may have been in the outbox still.
        let unstarted =
            has_no_trace(&job) && sql::rounds::is_unstarted(tx, job.incarnation).await?;
        Ok(Ok(Self {
            job,
            definition,
            unstarted,
        }))
    }

    /// Returns the prerequisites that decide when the job starts; none once it has started, also if
    /// nothing was reported of it.
    pub fn prerequisites(&self) -> &[Prerequisite] {
        if self.unstarted {
            &self.definition.prerequisites
        } else {
            &[]
        }
    }

    /// Begins a round. `existing` has the statuses of the prerequisites, which are locked.
    pub async fn begin_round(
        &mut self,
        tx: &mut Tx<'_>,
        existing: &BTreeMap<JobId, JobStatus>,
        start: MakeStart<'_>,
    ) -> Result<Beginning> {
        let own = &self.job.job;
        if let Some(refusal) = refusal(own, self.prerequisites(), &known(self, existing)) {
            return Ok(Beginning::Refused(Retry::Refused(refusal)));
        }
        let waits_for: Vec<String> = to_wait_for(self.prerequisites(), existing)
            .into_iter()
            .map(ToString::to_string)
            .collect();
        if self.job.task_table && !sql::rounds::unretire_table(tx, self.job.incarnation).await? {
            return Ok(Beginning::Refused(Retry::Forgotten));
        }
        self.clear_earlier_round(tx).await?;
        let now = tx.now();
        let reason = format!(
            "taken up again: round {} after {}",
            self.job.round, self.job.status
        );
        let change = StatusChange {
            to: if self.unstarted {
                JobStatus::Waiting
            } else {
                JobStatus::Active
            },
            actor: Actor::Client,
            reason: &reason,
            time: now,
        };
        reopen_job(tx, &mut self.job, change).await?;
        if let Some(reason) = self.conclude(tx, now).await? {
            let change = StatusChange {
                to: JobStatus::Completed,
                actor: Actor::Tracking,
                reason: &reason,
                time: now,
            };
            let ended = finish_job(tx, &mut self.job, change, Duration::ZERO).await?;
            return Ok(Beginning::Completed(ended));
        }
        if !waits_for.is_empty() {
            sql::prerequisites::insert(tx, &self.job, &waits_for).await?;
        }
        let delay = if self.unstarted { self.job.delay } else { 0 };
        let due = DueTime {
            after: waits_for
                .is_empty()
                .then(|| u64::try_from(delay).unwrap_or(0) * 1000),
            suspended: self.unstarted && self.definition.suspended,
        };
        let definition = self.definition.clone().unpack()?;
        let body = start(&self.job.to_incarnation(), &definition)
            .map_err(|reason| DbError::Refused(reason.into()))?;
        let Definition { pipe, headers, .. } = definition;
        sql::outbox::push(tx, Some(self.job.incarnation), &pipe, &body, &headers, due).await?;
        tx.notify(Signal::Outbox);
        Ok(Beginning::Begun)
    }

    /// Clears what the earlier round knew of tasks that are not done, and counts the new round.
    async fn clear_earlier_round(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let job = &mut self.job;
        let incarnation = job.incarnation;
        if job.totals.failed_tasks > 0 {
            sql::rounds::archive_failures(tx, incarnation, job.round, ROUNDS_KEPT).await?;
        }
        sql::parking::delete_oldest(tx, incarnation, u32::MAX).await?;
        forget_blocked(tx, job, u32::MAX).await?;
        sql::parking::unmark(tx, incarnation).await?;
        sql::rounds::forget_unstarted(tx, incarnation).await?;
        job.totals.begin_round();
        job.round += 1;
        Ok(())
    }

    /// Clears the nodes of the tasks that are not done. Returns the reason if that leaves nothing
    /// to do.
    async fn conclude(&mut self, tx: &mut Tx<'_>, now: i64) -> Result<Option<String>> {
        if !self.job.task_table {
            // Saved with the new status.
            return Ok(None);
        }
        let incarnation = self.job.incarnation;
        sql::rounds::end_active_tasks(tx, incarnation).await?;
        // The job's own split, and those that only a contradiction has kept from being done.
        let mut complete = vec![Vec::new()];
        let mut after = (String::new(), -1);
        loop {
            let mut rows = sql::rounds::nodes_to_clear(tx, incarnation, &after, PAGE).await?;
            let Some(last) = rows.last() else { break };
            after = (last.path.clone(), last.chunk);
            for row in &mut rows {
                if row.begin_round() {
                    complete.push(steps_of(&row.path));
                }
            }
            let changes = NodeChanges {
                rows,
                ..NodeChanges::default()
            };
            sql::ledger::change_nodes(tx, incarnation, &changes).await?;
        }
        let splits = || complete.iter().map(Vec::as_slice);
        let mut ledger = Ledger::new(self.job.totals.clone(), 0, now);
        ledger.load(sql::ledger::load_nodes(tx, incarnation, &with_root(keys_of(splits()))).await?);
        let more = ledger.also_needed(splits());
        if !more.is_empty() {
            ledger.load(sql::ledger::load_nodes(tx, incarnation, &more).await?);
        }
        ledger.conclude(&complete);
        let outcome = ledger.finish();
        if !outcome.nodes.is_empty() {
            sql::ledger::change_nodes(tx, incarnation, &outcome.nodes).await?;
        }
        self.job.totals = outcome.totals;
        let ended = self.job.totals.ended_items();
        self.job.pace.restart(now, ended);
        sql::jobs::save_one(tx, &self.job).await?;
        Ok(outcome.decision.map(|(_, reason)| reason))
    }
}

/// Returns whether nothing was reported of a task of the job. It may have inherited a failure.
fn has_no_trace(job: &JobRow) -> bool {
    let totals = &job.totals;
    let counted = i64::from(totals.percentage) + totals.completed_items;
    !job.task_table && counted == 0 && totals.own_task.is_none()
}

/// Returns the statuses of the prerequisites of this job among those that exist.
fn known(ended: &Ended, existing: &BTreeMap<JobId, JobStatus>) -> BTreeMap<JobId, JobStatus> {
    ended
        .prerequisites()
        .iter()
        .filter_map(|it| existing.get_key_value(&it.job))
        .map(|(id, status)| (id.clone(), *status))
        .collect()
}

fn with_root(mut keys: Vec<(String, i32)>) -> Vec<(String, i32)> {
    let root = (String::new(), 0);
    if !keys.contains(&root) {
        keys.push(root);
    }
    keys
}
