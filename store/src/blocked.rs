//! Tasks that wait for a condition: they are taken into the store, and leave it when the condition
//! has passed.
//!
//! A worker publishes a task that waits to the blocked pipe, and the job service hands it over to
//! this module. What happens to the conditions, and how the tasks leave again:
//! [`conditions`](crate::conditions).
//!
//! What must stay true, in whatever order tasks are blocked, let go, paused, cancelled and taken up
//! again:
//! - All of it happens under the lock of the job.
//! - A task waits in the store, or its message is in the outbox or sent: never both, and never
//!   neither. So a copy of one that waits or was let go is dropped, which its number shows: it
//!   counts how often the task was blocked.
//! - For each condition that tasks wait for there is a row, which a job service looks at.
//! - A task that has ended waits no more: the flush that counts its end removes it.
//! - Conditions are bounded in number: a task whose condition would be one too many waits for the
//!   [common one](Condition::common).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use contract::{Condition, ConditionKey, JobStatus};

use crate::condition::{Blocking, ConditionRow, Heard, NewBlock};
use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::sql::conditions::{BlockKey, BlockRow, BlockState};
use crate::db::{DbError, JobRow, Signal, millis, sql};
use crate::ledger::{Ledger, keys_of, path_of};
use crate::model::ParkedTask;
use crate::transition::{Actor, StatusChange, change_status};
use crate::{Result, Store};

/// The number of conditions that are shown of a job.
const SHOWN: u32 = 10;

impl Store {
    /// Takes tasks that wait for conditions, in one transaction. Returns what became of each.
    pub async fn block_tasks(&self, tasks: &[NewBlock]) -> Result<Vec<Blocking>> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let key = |block: &NewBlock| (block.task.partition.clone(), block.task.job.clone());
        let locks: JobLocks = tasks.iter().map(key).collect();
        let most = self.options.max_conditions;
        let blocked = self.run_tx_on_free_jobs("block_tasks", locks, |tx| {
            Box::pin(block_all(tx, tasks, most))
        });
        let (mut outcomes, left_out) = blocked.await?;
        for (block, outcome) in tasks.iter().zip(&mut outcomes) {
            if let Some(delay) = left_out.get(&key(block)) {
                *outcome = Blocking::Locked(*delay);
            }
        }
        Ok(outcomes)
    }

    /// Returns some of the conditions that block a job, each with the number of its tasks that wait
    /// for it, most first.
    pub async fn blocked_by(&self, incarnation: i64) -> Result<Vec<(ConditionRow, u64)>> {
        let mut shown = Vec::new();
        let blocked_by =
            sql::conditions::blocked_by(&mut self.database.reader().await?, incarnation, SHOWN)
                .await?;
        for (key, tasks) in blocked_by {
            // It may have gone in between.
            let condition = sql::conditions::find(&mut self.database.reader().await?, &key).await?;
            shown.extend(condition.map(|condition| (condition, tasks)));
        }
        Ok(shown)
    }
}

async fn block_all(
    tx: &mut Tx<'_>,
    tasks: &[NewBlock],
    most: u64,
) -> Result<End<Vec<Blocking>>, DbError> {
    let mut outcomes = vec![Blocking::Over; tasks.len()];
    let locked = tx.lock_known_jobs().await?;
    let waits_for = choose_conditions(tx, tasks, most).await?;
    let mut news = Conditions::default();
    let mut waiting = Vec::new();
    for job in locked {
        let of_job: Vec<usize> = (0..tasks.len())
            .filter(|at| is_of(&tasks[*at], &job))
            .collect();
        if of_job.is_empty() {
            continue;
        }
        let ledger = load_tasks(tx, &job, tasks, &of_job).await?;
        let mut known = known_blocks(tx, &job, tasks, &of_job).await?;
        let before = known.len();
        let mut rows: BTreeMap<BlockKey, (BlockRow, &ParkedTask)> = BTreeMap::new();
        for at in of_job {
            let block = &tasks[at];
            if ledger
                .as_ref()
                .is_some_and(|it| it.has_ended(&block.task.steps))
            {
                continue;
            }
            let condition = &waits_for[at];
            let row = new_row(block, condition);
            let key = (row.path.clone(), row.identity.clone());
            if let Some(earlier) = known.get(&key) {
                if earlier.number >= row.number {
                    outcomes[at] = Blocking::Known;
                    continue;
                }
                news.hear(earlier, &row);
            }
            news.meet(condition);
            outcomes[at] = Blocking::Waits;
            known.insert(key.clone(), row.clone());
            rows.insert(key, (row, &block.message));
        }
        let new = i64::try_from(known.len() - before).unwrap_or(i64::MAX);
        waiting.push((job, rows, new));
    }
    if waiting.iter().all(|(_, rows, _)| rows.is_empty()) {
        return Ok(End::Rollback(outcomes));
    }
    // The conditions after all jobs, in the order of their keys.
    news.store(tx).await?;
    for (mut job, rows, new) in waiting {
        if !rows.is_empty() {
            let rows: Vec<_> = rows.into_values().collect();
            sql::conditions::block(tx, job.incarnation, &rows).await?;
            job.blocked_tasks += new;
            note(tx, &mut job).await?;
        }
    }
    tx.notify(Signal::Conditions);
    Ok(End::Commit(outcomes))
}

/// Returns whether a task belongs to this incarnation of a job in its round, and the job has not
/// ended.
fn is_of(block: &NewBlock, job: &JobRow) -> bool {
    let id = &block.task;
    id.partition == job.partition.as_str()
        && id.job == job.job.as_str()
        && job.matches(id.incarnation)
        && id.round == job.round
        && !job.status.is_finished()
}

/// Saves a job with new tasks that wait. It has begun, although none of its tasks has reported
/// anything.
async fn note(tx: &mut Tx<'_>, job: &mut JobRow) -> Result<(), DbError> {
    job.last_update_time = tx.now();
    if job.status == JobStatus::Waiting {
        let begun = StatusChange {
            to: JobStatus::Active,
            actor: Actor::Tracking,
            reason: "a task is blocked",
            time: tx.now(),
        };
        return change_status(tx, job, begun).await;
    }
    sql::jobs::save_one(tx, job).await?;
    tx.notify_job(job.partition.as_str(), job.job.as_str());
    Ok(())
}

/// What a task waits for: its own condition or the common one, by its key.
type WaitsFor<'a> = (ConditionKey, Cow<'a, Condition>);

/// Returns what each of these tasks waits for: its own condition if that is known or there is room
/// for one more.
async fn choose_conditions<'a>(
    tx: &mut Tx<'_>,
    tasks: &'a [NewBlock],
    most: u64,
) -> Result<Vec<WaitsFor<'a>>, DbError> {
    let own = tasks.iter().map(|block| &block.condition);
    let mut waits_for: Vec<WaitsFor<'a>> = own
        .map(|condition| (condition.key(), Cow::Borrowed(condition)))
        .collect();
    let common = Condition::common();
    let mut keys: BTreeSet<ConditionKey> = waits_for.iter().map(|(key, _)| key.clone()).collect();
    let texts: Vec<String> = keys.iter().map(ConditionKey::to_string).collect();
    let known: BTreeSet<String> = sql::conditions::known(tx, &texts)
        .await?
        .into_iter()
        .collect();
    keys.retain(|key| !known.contains(key.as_str()) && *key != common.key());
    if keys.is_empty() {
        return Ok(waits_for);
    }
    let mut room = most.saturating_sub(sql::conditions::count(tx, common.key().as_str()).await?);
    keys.retain(|_| {
        let has_room = room > 0;
        room = room.saturating_sub(1);
        !has_room
    });
    for waits_for in &mut waits_for {
        if keys.contains(&waits_for.0) {
            *waits_for = (common.key(), Cow::Owned(common.clone()));
        }
    }
    Ok(waits_for)
}

fn path(block: &NewBlock) -> String {
    path_of(block.task.steps.iter().map(|step| step.number))
}

fn new_row(block: &NewBlock, (key, _): &WaitsFor<'_>) -> BlockRow {
    BlockRow {
        path: path(block),
        identity: block.identity.clone(),
        round: block.task.round,
        number: block.number,
        condition: key.to_string(),
        state: BlockState::Waiting,
    }
}

/// Returns the ledger of a job, which knows which of these tasks have ended; `None` if none can
/// have.
async fn load_tasks(
    tx: &mut Tx<'_>,
    job: &JobRow,
    tasks: &[NewBlock],
    which: &[usize],
) -> Result<Option<Ledger>, DbError> {
    if !job.task_table {
        return Ok(None);
    }
    let steps = which.iter().map(|at| tasks[*at].task.steps.as_slice());
    let mut ledger = Ledger::new(job.totals.clone(), 0, tx.now()).in_round(job.round);
    ledger.load(sql::ledger::load_nodes(tx, job.incarnation, &keys_of(steps)).await?);
    Ok(Some(ledger))
}

/// Returns what is known of these tasks in the present round of their job.
async fn known_blocks(
    tx: &mut Tx<'_>,
    job: &JobRow,
    tasks: &[NewBlock],
    which: &[usize],
) -> Result<HashMap<BlockKey, BlockRow>, DbError> {
    if job.blocked_tasks == 0 {
        return Ok(HashMap::new());
    }
    let paths: Vec<String> = which.iter().map(|at| path(&tasks[*at])).collect();
    let known = sql::conditions::blocks(tx, job.incarnation, &paths).await?;
    let of_round = known.into_iter().filter(|row| row.round == job.round);
    Ok(of_round
        .map(|row| ((row.path.clone(), row.identity.clone()), row))
        .collect())
}

/// What a transaction says of conditions, in the order of their keys.
#[derive(Default)]
struct Conditions {
    met: BTreeMap<ConditionKey, Condition>,
    heard: BTreeMap<String, Heard>,
}

impl Conditions {
    fn meet(&mut self, (key, condition): &WaitsFor<'_>) {
        if !self.met.contains_key(key) {
            self.met.insert(key.clone(), condition.clone().into_owned());
        }
    }

    /// Notes that a task which was let go is blocked again.
    fn hear(&mut self, earlier: &BlockRow, now: &BlockRow) {
        let heard = match earlier.state {
            BlockState::Waiting => return,
            _ if earlier.condition == now.condition => Heard::Again,
            BlockState::Canary => Heard::Elsewhere,
            BlockState::Released => return,
        };
        self.heard.insert(earlier.condition.clone(), heard);
    }

    async fn store(self, tx: &mut Tx<'_>) -> Result<(), DbError> {
        let Self { met, mut heard } = self;
        for (key, condition) in &met {
            let next = condition.delay_before_test(0, Duration::ZERO);
            let next = millis(next.unwrap_or_default());
            sql::conditions::meet(tx, key, condition, next).await?;
            if let Some(heard) = heard.remove(key.as_str()) {
                sql::conditions::hear(tx, key.as_str(), heard).await?;
            }
        }
        for (key, heard) in heard {
            sql::conditions::hear(tx, &key, heard).await?;
        }
        Ok(())
    }
}

/// Removes tasks of a locked job that have ended: those at these paths. The caller saves the job
/// afterwards.
pub(crate) async fn forget_ended(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    paths: &[String],
) -> Result<(), DbError> {
    if paths.is_empty() {
        return Ok(());
    }
    let gone = sql::conditions::forget_blocks(tx, job.incarnation, paths).await?;
    tell(tx, canaries_among(&gone), Heard::Ended).await?;
    count_off(job, gone.len());
    Ok(())
}

/// Removes up to `limit` tasks of a locked job that wait or were let go. Returns how many. The
/// caller saves the job afterwards.
pub(crate) async fn forget_blocked(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    limit: u32,
) -> Result<u64, DbError> {
    if job.blocked_tasks == 0 {
        return Ok(0);
    }
    let gone = sql::conditions::drop_blocks(tx, job.incarnation, limit).await?;
    tell(tx, canaries_among(&gone), Heard::Elsewhere).await?;
    count_off(job, gone.len());
    if gone.len() < limit as usize {
        job.blocked_tasks = 0;
    }
    Ok(gone.len() as u64)
}

/// Tells the conditions whose canaries belong to these locked jobs that the canaries are lost,
/// because the jobs are deleted.
pub(crate) async fn lose_canaries(tx: &mut Tx<'_>, jobs: &[JobRow]) -> Result<(), DbError> {
    let mut keys = Vec::new();
    for job in jobs.iter().filter(|job| job.blocked_tasks > 0) {
        keys.append(&mut sql::conditions::tested_by(tx, job.incarnation).await?);
    }
    tell(tx, keys.iter().map(String::as_str), Heard::Elsewhere).await
}

fn count_off(job: &mut JobRow, gone: usize) {
    let gone = i64::try_from(gone).unwrap_or(i64::MAX);
    job.blocked_tasks = job.blocked_tasks.saturating_sub(gone).max(0);
}

/// Returns the keys of the conditions that some of these tasks test.
fn canaries_among(tasks: &[BlockRow]) -> impl Iterator<Item = &str> {
    let canaries = tasks.iter().filter(|row| row.state == BlockState::Canary);
    canaries.map(|row| row.condition.as_str())
}

/// Tells the conditions with these keys what has become of their canaries.
async fn tell<'a>(
    tx: &mut Tx<'_>,
    keys: impl Iterator<Item = &'a str>,
    heard: Heard,
) -> Result<(), DbError> {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    for key in &keys {
        sql::conditions::hear(tx, key, heard).await?;
    }
    if !keys.is_empty() {
        tx.notify(Signal::Conditions);
    }
    Ok(())
}
