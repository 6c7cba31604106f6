//! The tables `definition`, `unstarted` and `past_failure`, and what a new round changes in
//! `retired_table` and in task tables.
//!
//! What must stay true: a transaction that begins a round holds the lock of the job.

use contract::JobStatus;

use super::failures::read_failure;
use super::ledger::NODE_COLUMNS;
use super::session::{Row, Session};
use super::statement::{json, singles};
use super::{jobs, number};
use crate::db::{DbError, FAILURES_OF_A_ROUND, JobKey, Result};
use crate::definition::PackedDefinition;
use crate::ledger::{KeptFailure, NodeKey, NodeRow};

/// Returns the incarnation of a job and what it was created from, by one statement: between two,
/// another job could take its place.
pub async fn source(
    db: &mut Session,
    partition: &str,
    job: &str,
) -> Result<Option<(i64, PackedDefinition)>> {
    let statement = db.statement(
        "select incarnation, request, pipe, start, headers, prerequisites, suspended \
         from job join definition using (incarnation) where partition_id = $1 and job_id = $2",
    );
    db.fetch_first(statement.bind(partition).bind(job), |row| {
        Ok((row.get("incarnation")?, read_definition(row)?))
    })
    .await
}

/// Returns what a job was created from.
pub async fn definition(db: &mut Session, incarnation: i64) -> Result<PackedDefinition> {
    let statement = db.statement(
        "select request, pipe, start, headers, prerequisites, suspended from definition where incarnation = $1",
    );
    let found = db.fetch_first(statement.bind(incarnation), read_definition);
    found
        .await?
        .ok_or_else(|| DbError::Refused(format!("the job {incarnation} has no definition").into()))
}

fn read_definition(row: Row<'_>) -> Result<PackedDefinition> {
    Ok(PackedDefinition {
        request: row.get("request")?,
        pipe: row.get("pipe")?,
        start: row.get("start")?,
        headers: row.json("headers")?,
        prerequisites: row.json("prerequisites")?,
        suspended: row.get("suspended")?,
    })
}

/// Returns the pipes to which the start messages of unfinished jobs go.
pub async fn task_pipes(db: &mut Session, limit: u32) -> Result<Vec<String>> {
    let statement = db.statement(
        "select distinct pipe from definition join job using (incarnation) \
         where finish_time is null order by pipe limit $1",
    );
    db.fetch(statement.bind(i64::from(limit)), |row| row.get(0))
        .await
}

/// Notes which of the jobs that have `ended` have an unsent message, and, as pairs, the jobs that
/// end with another one.
pub async fn note_unstarted(
    db: &mut Session,
    ended: &[i64],
    fell_with: &[(i64, i64)],
) -> Result<()> {
    let each = db.dialect().each();
    if !fell_with.is_empty() {
        let statement = db.statement(format!(
            "insert into unstarted (incarnation, fell_with) \
             select cast(k.value ->> 0 as bigint), cast(k.value ->> 1 as bigint) from {each} \
             where true on conflict (incarnation) do nothing"
        ));
        db.execute(statement.bind(json(fell_with)?)).await?;
    }
    let statement = db.statement(format!(
        "insert into unstarted (incarnation) select distinct incarnation from outbox \
         where incarnation in (select cast(k.value ->> 0 as bigint) from {each}) on conflict (incarnation) do nothing"
    ));
    db.run(statement.bind(singles(ended)?)).await
}

/// Returns whether a job ended before its start message was sent.
pub async fn is_unstarted(db: &mut Session, incarnation: i64) -> Result<bool> {
    let statement = db.statement("select 1 from unstarted where incarnation = $1");
    db.finds(statement.bind(incarnation)).await
}

/// Forgets that a job ended before its start message was sent.
pub async fn forget_unstarted(db: &mut Session, incarnation: i64) -> Result<()> {
    let statement = db.statement("delete from unstarted where incarnation = $1");
    db.run(statement.bind(incarnation)).await
}

/// Returns the jobs that ended with this one before they started.
pub async fn fallen_with(db: &mut Session, incarnation: i64) -> Result<Vec<(i64, JobKey)>> {
    let statement = db.statement(
        "select incarnation, partition_id, job_id from unstarted join job using (incarnation) \
         where fell_with = $1 order by incarnation",
    );
    db.fetch(statement.bind(incarnation), |row| {
        Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
    })
    .await
}

/// Returns the jobs that ended with this one before they started, and their statuses, oldest first,
/// at most `limit`.
pub async fn fallen_jobs(
    db: &mut Session,
    incarnation: i64,
    limit: u32,
) -> Result<Vec<(String, JobStatus)>> {
    let statement = db
        .statement(
            "select job_id, status from unstarted join job using (incarnation) where fell_with = $1 order by incarnation limit $2",
        )
        .bind(incarnation)
        .bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok((row.get(0)?, jobs::status(row.get(1)?)?))
    })
    .await
}

/// Takes a task table that no sweeper has off the list. Returns false if there is no such entry.
pub async fn unretire_table(db: &mut Session, incarnation: i64) -> Result<bool> {
    if !super::retention::hold_retired_table(db, incarnation).await? {
        return Ok(false);
    }
    let statement = db.statement("delete from retired_table where incarnation = $1");
    db.execute(statement.bind(incarnation)).await?;
    Ok(true)
}

/// Deletes the nodes of active tasks, and what the nodes above count of them.
pub async fn end_active_tasks(db: &mut Session, incarnation: i64) -> Result<()> {
    // The parent of `3.17` is `3`, and that of `3` is the empty path.
    let statement = db.statement(format!(
        "update task_{incarnation} set kept = kept - active.tasks, open_sum = open_sum - active.percent from \
         (select rtrim(rtrim(path, '0123456789'), '.') as parent, cast(count(*) as integer) as tasks, \
         cast(sum(percent) as bigint) as percent from task_{incarnation} where chunk = -1 group by 1) as active \
         where task_{incarnation}.path = active.parent and task_{incarnation}.chunk = 0"
    ));
    db.execute(statement).await?;
    let statement = db.statement(format!("delete from task_{incarnation} where chunk = -1"));
    db.run(statement).await
}

/// Returns nodes of splits with anything that a new round clears, in the order of their keys, after
/// this key.
pub async fn nodes_to_clear(
    db: &mut Session,
    incarnation: i64,
    (path, chunk): &NodeKey,
    limit: u32,
) -> Result<Vec<NodeRow>> {
    let statement = db
        .statement(format!(
            "select {NODE_COLUMNS} from task_{incarnation} where (path, chunk) > ($1, $2) \
             and (failed is not null or failed_count <> 0 or flags <> 0 \
             or detail like '%retrying%' or detail like '%running%' or detail like '%retried%') order by path, chunk limit $3"
        ))
        .bind(path.as_str())
        .bind(*chunk)
        .bind(i64::from(limit));
    db.fetch(statement, NodeRow::read).await
}

/// Moves the failures of a job to those of its earlier rounds, as those of this `round`. Keeps some
/// of each of this many `rounds`.
pub async fn archive_failures(
    db: &mut Session,
    incarnation: i64,
    round: u32,
    rounds: u32,
) -> Result<()> {
    let (round, rounds) = (number(round), number(rounds));
    let statement = db.statement(format!(
        "insert into past_failure (incarnation, round, path, since, attempts, failure) \
         select incarnation, $2, path, since, attempts, failure from failure where incarnation = $1 \
         order by since, path limit {FAILURES_OF_A_ROUND} on conflict (incarnation, path, round) do nothing"
    ));
    db.execute(statement.bind(incarnation).bind(round)).await?;
    let statement = db.statement("delete from failure where incarnation = $1");
    db.execute(statement.bind(incarnation)).await?;
    let statement = db.statement("delete from past_failure where incarnation = $1 and round <= $2");
    db.run(statement.bind(incarnation).bind(round - rounds))
        .await
}

/// Returns the failures of one task in earlier rounds, each with its round, oldest first.
pub async fn past_failures(
    db: &mut Session,
    incarnation: i64,
    path: &str,
) -> Result<Vec<(u32, KeptFailure)>> {
    let statement = db.statement(
        "select round, path, since, attempts, failure from past_failure \
         where incarnation = $1 and path = $2 order by round",
    );
    let read = |row: Row<'_>| Ok((row.small("round")?, read_failure(row)?));
    db.fetch(statement.bind(incarnation).bind(path), read).await
}
