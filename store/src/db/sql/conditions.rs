//! The tables `wait_condition` and `blocked_task`.
//!
//! What must stay true: a transaction that changes tasks holds the lock of their job, and takes it
//! before those of conditions, which it takes in the order of their keys.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::{Condition, ConditionCode, ConditionKey};

use super::jobs::{job_id, partition_id};
use super::parking::write_headers;
use super::session::{Row, Session};
use super::statement::{StatementBuilder, singles};
use super::{millis, number};
use crate::condition::{
    ClaimedCondition, ConditionPhase, ConditionQuery, ConditionRow, ConditionStep, FullCondition,
    Heard, WaitingJob,
};
use crate::db::{DbError, JobKey, LONGEST_LEASE, Result};
use crate::model::{Headers, ParkedTask};
use crate::waits::JobWaits;

const COLUMNS: &str = "condition_key, condition, code, since, tests, tested_time, result, phase, pace, next_time, heard, news, lease";
const BLOCK_COLUMNS: &str = "path, identity, round, blocks, condition_key, state";
/// How many tasks one statement writes.
const ROWS_AT_ONCE: usize = 100;

/// By what a task that waits is known: its path and the identity of its message.
pub type BlockKey = (String, Vec<u8>);

/// What is known of a task that waits or was let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    pub path: String,
    pub identity: Vec<u8>,
    pub round: u32,
    pub number: u32,
    pub condition: String,
    pub state: BlockState,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// It waits in the store.
    Waiting,
    /// It was let go to test its condition.
    Canary,
    /// It was let go because its condition has passed.
    Released,
}

impl BlockState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Canary => "canary",
            Self::Released => "released",
        }
    }

    pub fn from_name(name: &str) -> Self {
        match name {
            "waiting" => Self::Waiting,
            "canary" => Self::Canary,
            _ => Self::Released,
        }
    }
}

/// A task that waits, and its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTask {
    pub id: i64,
    pub job: JobKey,
    pub incarnation: i64,
    pub path: String,
}

pub async fn find(db: &mut Session, key: &str) -> Result<Option<ConditionRow>> {
    let statement = db.statement(format!(
        "select {COLUMNS} from wait_condition where condition_key = $1"
    ));
    let Some(row) = db.fetch_first(statement.bind(key), read).await? else {
        return Ok(None);
    };
    Ok(Some(with_tasks(db, row).await?))
}

/// Returns the jobs with the most tasks that wait for a condition.
pub async fn waiting_jobs(db: &mut Session, key: &str, limit: u32) -> Result<Vec<WaitingJob>> {
    let statement = db.statement(
        "select partition_id, job_id, count(*) from blocked_task join job using (incarnation) \
         where condition_key = $1 and state = 'waiting' group by partition_id, job_id \
         order by count(*) desc, partition_id, job_id limit $2",
    );
    let statement = statement.bind(key).bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok(WaitingJob {
            partition: partition_id(row.get(0)?)?,
            job: job_id(row.get(1)?)?,
            tasks: row.unsigned(2)?,
        })
    })
    .await
}

/// Returns for which conditions tasks of a job wait, and how many for each, most first.
pub async fn blocked_by(
    db: &mut Session,
    incarnation: i64,
    limit: u32,
) -> Result<Vec<(String, u64)>> {
    let statement = db.statement(
        "select condition_key, count(*) from blocked_task where incarnation = $1 and state = 'waiting' \
         group by condition_key order by count(*) desc, condition_key limit $2",
    );
    let statement = statement.bind(incarnation).bind(i64::from(limit));
    db.fetch(statement, |row| Ok((row.get(0)?, row.unsigned(1)?)))
        .await
}

/// Returns the conditions for which at least so many tasks of one pipe wait.
pub async fn full(db: &mut Session, tasks: u64, limit: u32) -> Result<Vec<FullCondition>> {
    let statement = db.statement(
        "select condition_key, pipe, count(*) from blocked_task where state = 'waiting' \
         group by condition_key, pipe having count(*) >= $1 order by count(*) desc limit $2",
    );
    let statement = statement.bind(millis(tasks)).bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok(FullCondition {
            key: key_of(row.get(0)?)?,
            pipe: row.get(1)?,
            tasks: row.unsigned(2)?,
        })
    })
    .await
}

/// Returns what is known of the tasks of these jobs that wait or were let go, without counting
/// those that wait. Both numbers are found by an index, however many tasks wait.
pub async fn job_waits(db: &mut Session, incarnations: &[i64]) -> Result<Vec<JobWaits>> {
    let statement = db.dialect().select_of_jobs(
        "select incarnation, (select count(*) from blocked_task as task where task.incarnation = job.incarnation \
         and state in ('canary', 'released')), (select time from blocked_task as task where task.incarnation = job.incarnation \
         and state = 'waiting' order by time limit 1) from job",
        incarnations,
        "",
    )?;
    db.fetch(statement, |row| {
        Ok(JobWaits {
            incarnation: row.get(0)?,
            let_go: row.unsigned(1)?,
            since: row.get(2)?,
        })
    })
    .await
}

/// Returns conditions in the order of their keys.
pub async fn page(db: &mut Session, query: &ConditionQuery) -> Result<Vec<ConditionRow>> {
    let of_condition = "blocked_task.condition_key = wait_condition.condition_key";
    let waiting = format!("{of_condition} and state = 'waiting'");
    let mut select = StatementBuilder::new(
        db.dialect(),
        format!(
            "select {COLUMNS}, (select count(*) from blocked_task where {waiting}) as waiting, \
             (select count(*) from blocked_task where {of_condition} and state = 'canary') as canaries \
             from wait_condition where condition_key > "
        ),
    );
    select.push_bind(query.after.as_ref().map_or("", ConditionKey::as_str))?;
    if let Some(code) = &query.code {
        select.push(" and code = ").push_bind(code.as_str())?;
    }
    if query.partition.is_some() || query.job.is_some() {
        select.push(format_args!(
            " and exists (select 1 from blocked_task join job using (incarnation) where {waiting}"
        ));
        if let Some(partition) = &query.partition {
            select
                .push(" and partition_id = ")
                .push_bind(partition.as_str())?;
        }
        if let Some(job) = &query.job {
            select.push(" and job_id = ").push_bind(job.as_str())?;
        }
        select.push(")");
    }
    select.push(" order by condition_key limit ");
    select.push_bind(i64::from(query.limit))?;
    db.fetch(select.build(), |row| {
        Ok(ConditionRow {
            waiting: row.unsigned("waiting")?,
            canaries: row.unsigned("canaries")?,
            ..read(row)?
        })
    })
    .await
}

/// Adds to a condition how many tasks wait for it, and how many test it.
async fn with_tasks(db: &mut Session, row: ConditionRow) -> Result<ConditionRow> {
    let canaries = db.statement(
        "select count(*) from blocked_task where condition_key = $1 and state = 'canary'",
    );
    Ok(ConditionRow {
        waiting: count_waiting(db, row.key.as_str()).await?,
        canaries: db.fetch_count(canaries.bind(row.key.as_str())).await?,
        ..row
    })
}

/// Reads a condition without the numbers of its tasks.
fn read(row: Row<'_>) -> Result<ConditionRow> {
    let (condition, code): (&str, &str) = (row.get("condition")?, row.get("code")?);
    let (phase, heard): (&str, Option<&str>) = (row.get("phase")?, row.get("heard")?);
    Ok(ConditionRow {
        key: key_of(row.get("condition_key")?)?,
        condition: condition_of(condition, code),
        since: row.get("since")?,
        tests: row.small("tests")?,
        tested: row.get("tested_time")?,
        result: row.get("result")?,
        phase: ConditionPhase::from_name(phase),
        pace: row.small("pace")?,
        next_time: row.get("next_time")?,
        heard: heard.and_then(Heard::from_name),
        waiting: 0,
        canaries: 0,
        news: row.get("news")?,
        lease: row.get("lease")?,
    })
}

/// Returns a stored condition. What another version has stored and this one does not understand is
/// tested by a canary.
fn condition_of(json: &str, code: &str) -> Condition {
    let unknown = || {
        let code = code.parse();
        Condition::new(code.unwrap_or(ConditionCode::SYSTEM_NOT_AVAILABLE))
    };
    Condition::from_json(json).unwrap_or_else(|_| unknown())
}

fn key_of(text: &str) -> Result<ConditionKey> {
    text.parse()
        .map_err(|error: contract::InvalidCondition| DbError::Refused(error.to_string().into()))
}

fn read_block(row: Row<'_>) -> Result<BlockRow> {
    Ok(BlockRow {
        path: row.get("path")?,
        identity: row.get("identity")?,
        round: row.small("round")?,
        number: row.small("blocks")?,
        condition: row.get("condition_key")?,
        state: BlockState::from_name(row.get("state")?),
    })
}

/// Returns how many conditions there are besides this one.
pub async fn count(db: &mut Session, besides: &str) -> Result<u64> {
    let statement = db.statement("select count(*) from wait_condition where condition_key <> $1");
    db.fetch_count(statement.bind(besides)).await
}

/// Returns those of these conditions that are there, by their keys.
pub async fn known(db: &mut Session, keys: &[String]) -> Result<Vec<String>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "select condition_key from wait_condition where condition_key in (select k.value ->> 0 from {each})"
    ));
    db.fetch(statement.bind(singles(keys)?), |row| row.get(0))
        .await
}

/// Adds a condition that is looked at after so many milliseconds, if it is not there. Locks it.
pub async fn meet(
    db: &mut Session,
    key: &ConditionKey,
    condition: &Condition,
    next: u64,
) -> Result<()> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "insert into wait_condition (condition_key, condition, code, since, tests, phase, pace, next_time, news, lease) \
             values ($1, $2, $3, {now}, 0, 'testing', 0, {now} + $4, 0, 0) on conflict (condition_key) do update \
             set next_time = case when wait_condition.phase = 'idle' then {now} else wait_condition.next_time end"
        ))
        .bind(key.as_str())
        .bind(condition.to_json())
        .bind(condition.code().as_str())
        .bind(millis(next));
    db.run(statement).await
}

/// Notes what a task has done that was let go, and makes the condition due.
pub async fn hear(db: &mut Session, key: &str, heard: Heard) -> Result<()> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "update wait_condition set heard = $2, news = news + 1, next_time = {now} where condition_key = $1"
    ));
    db.run(statement.bind(key).bind(heard.name())).await
}

/// Returns what is known of these tasks of a locked job.
pub async fn blocks(db: &mut Session, incarnation: i64, paths: &[String]) -> Result<Vec<BlockRow>> {
    let statement = db.statement(format!(
        "select {BLOCK_COLUMNS} from blocked_task where {}",
        of_paths(db)
    ));
    let statement = statement.bind(singles(paths)?).bind(incarnation);
    db.fetch(statement, read_block).await
}

/// Deletes what is known of these tasks of a locked job, and returns it.
pub async fn forget_blocks(
    db: &mut Session,
    incarnation: i64,
    paths: &[String],
) -> Result<Vec<BlockRow>> {
    let statement = db.statement(format!(
        "delete from blocked_task where {} returning {BLOCK_COLUMNS}",
        of_paths(db)
    ));
    let statement = statement.bind(singles(paths)?).bind(incarnation);
    db.fetch(statement, read_block).await
}

fn of_paths(db: &Session) -> String {
    let each = db.dialect().each();
    format!("incarnation = $2 and path in (select k.value ->> 0 from {each})")
}

/// Deletes some of what is known of the tasks of a locked job, and returns it.
pub async fn drop_blocks(db: &mut Session, incarnation: i64, limit: u32) -> Result<Vec<BlockRow>> {
    let statement = db.statement(format!(
        "delete from blocked_task where id in (select id from blocked_task where incarnation = $1 order by id limit $2) \
         returning {BLOCK_COLUMNS}"
    ));
    let statement = statement.bind(incarnation).bind(i64::from(limit));
    db.fetch(statement, read_block).await
}

/// Makes tasks of a locked job wait, each with its message. Their conditions must be locked.
pub async fn block(
    db: &mut Session,
    incarnation: i64,
    tasks: &[(BlockRow, &ParkedTask)],
) -> Result<()> {
    let now = db.dialect().now();
    for rows in tasks.chunks(ROWS_AT_ONCE) {
        let mut insert = StatementBuilder::new(
            db.dialect(),
            "insert into blocked_task (incarnation, path, identity, round, blocks, condition_key, state, time, pipe, body, headers) \
             values ",
        );
        for (at, (row, message)) in rows.iter().enumerate() {
            insert.push(if at == 0 { "(" } else { ", (" });
            insert.push_bind(incarnation)?.push(", ");
            insert.push_bind(row.path.as_str())?.push(", ");
            insert.push_bind(&row.identity[..])?.push(", ");
            insert.push_bind(number(row.round))?.push(", ");
            insert.push_bind(number(row.number))?.push(", ");
            insert.push_bind(row.condition.as_str())?.push(", ");
            insert.push_bind(row.state.name())?;
            insert.push(format_args!(", {now}, "));
            insert.push_bind(message.pipe.as_str())?.push(", ");
            insert.push_bind(&message.body[..])?.push(", ");
            insert
                .push_bind(write_headers(&message.headers)?)?
                .push(")");
        }
        insert.push(
            " on conflict (incarnation, path, identity) do update set round = excluded.round, blocks = excluded.blocks, \
             condition_key = excluded.condition_key, state = excluded.state, time = excluded.time, pipe = excluded.pipe, \
             body = excluded.body, headers = excluded.headers",
        );
        db.run(insert.build()).await?;
    }
    Ok(())
}

/// Makes the conditions due that wait for a canary and for which tasks of this job wait.
pub async fn wake_canaries(db: &mut Session, incarnation: i64) -> Result<u64> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "update wait_condition set next_time = {now} where phase = 'canary' and condition_key in \
         (select condition_key from blocked_task where incarnation = $1 and state = 'waiting')"
    ));
    db.execute(statement.bind(incarnation)).await
}

/// Returns the keys of the conditions that tasks of this locked job test as their canaries, in
/// their order.
pub async fn tested_by(db: &mut Session, incarnation: i64) -> Result<Vec<String>> {
    let statement = db.statement(
        "select distinct condition_key from blocked_task where incarnation = $1 and state = 'canary' order by condition_key",
    );
    db.fetch(statement.bind(incarnation), |row| row.get(0))
        .await
}

/// Claims the condition that is overdue the longest, for `lease` milliseconds. PostgreSQL skips
/// those that another service is changing at the moment.
pub async fn claim(db: &mut Session, lease: u64) -> Result<Option<ClaimedCondition>> {
    let now = db.dialect().now();
    let lock = db.dialect().lock("for update skip locked");
    let statement = db.statement(format!(
        "update wait_condition set leased_until = {now} + $1, lease = lease + 1 where condition_key = \
         (select condition_key from wait_condition where next_time <= (select {now}) \
         and (leased_until is null or leased_until <= (select {now})) order by next_time limit 1 {lock}) \
         returning {COLUMNS}, leased_until - $1 as claim_time"
    ));
    let claimed = db.fetch_first(statement.bind(millis(lease)), |row| {
        Ok((row.get("claim_time")?, read(row)?))
    });
    let Some((time, row)) = claimed.await? else {
        return Ok(None);
    };
    let row = with_tasks(db, row).await?;
    Ok(Some(ClaimedCondition { row, time }))
}

/// Brings back the times and leases of conditions that are later than they can be: the clock was
/// set back. Such conditions are due at once. Returns how many there are.
pub async fn bring_back(db: &mut Session) -> Result<u64> {
    let now = db.dialect().now();
    let longest = LONGEST_LEASE.as_millis();
    let ended = db.statement(format!(
        "update wait_condition set leased_until = null where leased_until > {now} + {longest}"
    ));
    let leases = db.execute(ended).await?;
    let earlier =
        |time: &str| format!("{time} = case when {time} > {now} then {now} else {time} end");
    let due = db.statement(format!(
        "update wait_condition set next_time = {now}, leased_until = null, {}, {} where since > {now} or tested_time > {now}",
        earlier("since"),
        earlier("tested_time"),
    ));
    Ok(leases.max(db.execute(due).await?))
}

/// Returns the time until a condition can be claimed.
pub async fn next(db: &mut Session) -> Result<Option<Duration>> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select min(due) - {now} from (select min(next_time) as due from wait_condition \
         where leased_until is null or leased_until <= (select {now}) union all \
         select min(leased_until) from wait_condition where leased_until > (select {now})) as times"
    ));
    db.fetch_wait(statement).await
}

/// Returns tasks that wait for a condition, those that have waited longest first; with `active`
/// those of jobs that are neither paused nor over. Leaves out those of jobs that other
/// transactions have locked.
pub async fn waiting_tasks(
    db: &mut Session,
    key: &str,
    active: bool,
    limit: u32,
) -> Result<Vec<WaitingTask>> {
    let lock = db.dialect().lock("for update of job skip locked");
    let select = "select id, partition_id, job_id, incarnation, path from";
    let waiting = "select id, incarnation, path from blocked_task where condition_key = $1 and state = 'waiting'";
    let all = |condition: &str| {
        format!(
            "{select} ({waiting}) as task join job using (incarnation) {condition} order by id limit $2 {lock}"
        )
    };
    let texts = if active {
        vec![all("where finish_time is null and status <> 'Paused'")]
    } else {
        // Looks up few jobs. If they are locked, the jobs of all tasks are looked up.
        let first = format!(
            "{select} ({waiting} order by id limit $2) as task join job using (incarnation) order by id {lock}"
        );
        vec![first, all("")]
    };
    for text in texts {
        let statement = db.statement(text).bind(key).bind(i64::from(limit));
        let read = |row: Row<'_>| {
            Ok(WaitingTask {
                id: row.get(0)?,
                job: (row.get(1)?, row.get(2)?),
                incarnation: row.get(3)?,
                path: row.get(4)?,
            })
        };
        let tasks = db.fetch(statement, read).await?;
        if !tasks.is_empty() {
            return Ok(tasks);
        }
    }
    Ok(Vec::new())
}

/// Locks a condition. Returns false if this claim on it counts no more.
pub async fn hold(db: &mut Session, key: &str, lease: i64) -> Result<bool> {
    let lock = db.dialect().lock("for update");
    let statement = db.statement(format!(
        "select 1 from wait_condition where condition_key = $1 and lease = $2 {lock}"
    ));
    db.finds(statement.bind(key).bind(lease)).await
}

/// Which of these tasks of a job still wait for a condition.
fn still_there(db: &Session) -> String {
    let each = db.dialect().each();
    format!(
        "id in (select cast(k.value ->> 0 as bigint) from {each}) and incarnation = $2 and condition_key = $3 and state = 'waiting'"
    )
}

/// Lets those of these tasks go that belong to this locked job and still wait for the
/// condition: their messages move to the outbox, where they wait if `paused`. Returns how many.
pub async fn let_go(
    db: &mut Session,
    incarnation: i64,
    key: &str,
    tasks: &[i64],
    to: BlockState,
    paused: bool,
) -> Result<u64> {
    // The lock of the job protects its tasks, so both statements select the same ones.
    let (now, which, ids) = (db.dialect().now(), still_there(db), singles(tasks)?);
    let send = db.statement(format!(
        "insert into outbox (incarnation, pipe, body, headers, due_time, paused) \
         select incarnation, pipe, body, headers, {now}, $4 from blocked_task where {which} order by id"
    ));
    let send = send.bind(ids.as_str()).bind(incarnation).bind(key);
    db.execute(send.bind(paused)).await?;
    let note = db.statement(format!(
        "update blocked_task set state = $4, body = null, headers = null where {which}"
    ));
    let note = note.bind(ids).bind(incarnation).bind(key);
    db.execute(note.bind(to.name())).await
}

/// Returns the paths of those of these tasks that belong to this locked job and still wait for
/// the condition, each once, with the headers of a message of it.
pub async fn still_waiting(
    db: &mut Session,
    incarnation: i64,
    key: &str,
    tasks: &[i64],
) -> Result<BTreeMap<String, Headers>> {
    let which = still_there(db);
    let statement = db.statement(format!(
        "select path, headers from blocked_task where {which}"
    ));
    let statement = statement.bind(singles(tasks)?).bind(incarnation).bind(key);
    let rows = db.fetch(statement, |row| Ok((row.get(0)?, row.json(1)?)));
    Ok(rows.await?.into_iter().collect())
}

/// Changes a condition that is held, and ends the claim. If anything was heard since the claim,
/// it is due at once.
pub async fn change(db: &mut Session, row: &ConditionRow, step: &ConditionStep) -> Result<()> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "update wait_condition set phase = $2, tests = $3, since = case when $4 then {now} else since end, \
             tested_time = case when $5 then {now} else tested_time end, result = case when $5 then $6 else result end, pace = $7, \
             next_time = case when news = $8 then {now} + $9 else {now} end, heard = case when news = $8 then null else heard end, \
             leased_until = null where condition_key = $1"
        ))
        .bind(row.key.as_str())
        .bind(step.phase.name())
        .bind(number(step.tests))
        .bind(step.restarts)
        .bind(step.result.is_some())
        .bind(step.result.as_deref())
        .bind(number(step.pace))
        .bind(row.news)
        .bind(millis(step.next));
    db.run(statement).await
}

/// Deletes a condition that is held, unless tasks wait for it. Returns whether it is gone.
pub async fn forget(db: &mut Session, key: &str) -> Result<bool> {
    let statement = db.statement(
        "delete from wait_condition where condition_key = $1 and not exists \
         (select 1 from blocked_task where blocked_task.condition_key = $1 and state = 'waiting')",
    );
    Ok(db.execute(statement.bind(key)).await? > 0)
}

/// Returns how many tasks wait for a condition.
pub async fn count_waiting(db: &mut Session, key: &str) -> Result<u64> {
    let statement = db.statement(
        "select count(*) from blocked_task where condition_key = $1 and state = 'waiting'",
    );
    db.fetch_count(statement.bind(key)).await
}

/// Puts a condition into this phase and makes it due. Claims on it count no more. Returns false
/// if there is none.
pub async fn command(db: &mut Session, key: &str, phase: ConditionPhase) -> Result<bool> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "update wait_condition set phase = $2, pace = 0, heard = null, lease = lease + 1, leased_until = null, next_time = {now} \
         where condition_key = $1"
    ));
    Ok(db.execute(statement.bind(key).bind(phase.name())).await? > 0)
}
