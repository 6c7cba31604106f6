//! The tables `stowed_task` (tasks of paused jobs) and `unstowing` (jobs whose parked tasks are to
//! leave).

use super::session::{Row, Session};
use super::statement::{Dialect, StatementBuilder, singles};
use crate::db::Result;
use crate::model::{Headers, ParkedTask};

/// How many rows one statement writes.
const ROWS_AT_ONCE: usize = 100;

/// Parks tasks of locked jobs, each with the incarnation of its job.
pub async fn park(db: &mut Session, tasks: &[(i64, &ParkedTask)]) -> Result<()> {
    for rows in tasks.chunks(ROWS_AT_ONCE) {
        let mut insert = StatementBuilder::new(
            db.dialect(),
            "insert into stowed_task (incarnation, pipe, body, headers) values ",
        );
        for (at, (incarnation, task)) in rows.iter().enumerate() {
            insert.push(if at == 0 { "(" } else { ", (" });
            insert.push_bind(*incarnation)?.push(", ");
            insert.push_bind(task.pipe.as_str())?.push(", ");
            insert.push_bind(&task.body[..])?.push(", ");
            insert.push_bind(write_headers(&task.headers)?)?.push(")");
        }
        db.execute(insert.build()).await?;
    }
    Ok(())
}

/// Returns how many tasks of a job are parked.
pub async fn count(db: &mut Session, incarnation: i64) -> Result<u64> {
    let statement = db.statement("select count(*) from stowed_task where incarnation = $1");
    db.fetch_count(statement.bind(incarnation)).await
}

/// Returns how many tasks of all jobs are parked.
pub async fn count_all(db: &mut Session) -> Result<u64> {
    db.fetch_count(db.statement("select count(*) from stowed_task"))
        .await
}

/// Marks those of these jobs whose parked tasks are to leave: those that have some, or all if
/// `always`. Returns false if none is marked that was not before.
pub async fn mark(db: &mut Session, incarnations: &[i64], always: bool) -> Result<bool> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into unstowing (incarnation) select cast(k.value ->> 0 as bigint) from {each} \
         where $2 or exists (select 1 from stowed_task where stowed_task.incarnation = cast(k.value ->> 0 as bigint)) \
         on conflict (incarnation) do nothing"
    ));
    let statement = statement.bind(singles(incarnations)?).bind(always);
    Ok(db.execute(statement).await? > 0)
}

/// Removes the mark.
pub async fn unmark(db: &mut Session, incarnation: i64) -> Result<()> {
    let statement = db.statement("delete from unstowing where incarnation = $1");
    db.run(statement.bind(incarnation)).await
}

/// Returns the partition, id and incarnation of a job that is marked. PostgreSQL prefers one that
/// nobody has locked, and locks it.
pub async fn next_marked(db: &mut Session) -> Result<Option<(String, String, i64)>> {
    let locks = match db.dialect() {
        Dialect::Postgres => &["for update of job skip locked", ""][..],
        Dialect::Sqlite => &[""],
    };
    for lock in locks {
        let statement = db.statement(format!(
            "select partition_id, job_id, incarnation from unstowing join job using (incarnation) order by incarnation limit 1 {lock}"
        ));
        let read = |row: Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let next = db.fetch_first(statement, read).await?;
        if next.is_some() {
            return Ok(next);
        }
    }
    Ok(None)
}

/// Moves the oldest parked tasks of a locked job to the outbox. Returns how many.
pub async fn unpark(db: &mut Session, incarnation: i64, limit: u32) -> Result<u64> {
    // The lock of the job protects its parked tasks, so both statements select the same ones.
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "insert into outbox (incarnation, pipe, body, headers, due_time) select incarnation, pipe, body, headers, {now} \
         from stowed_task where incarnation = $1 order by id limit $2"
    ));
    db.execute(statement.bind(incarnation).bind(i64::from(limit)))
        .await?;
    delete_oldest(db, incarnation, limit).await
}

/// Deletes the oldest parked tasks of a locked job. Returns how many.
pub async fn delete_oldest(db: &mut Session, incarnation: i64, limit: u32) -> Result<u64> {
    let statement = db.statement(
        "delete from stowed_task where id in (select id from stowed_task where incarnation = $1 order by id limit $2)",
    );
    db.execute(statement.bind(incarnation).bind(i64::from(limit)))
        .await
}

/// Returns headers as they are stored: JSON, or null if there are none.
pub fn write_headers(headers: &Headers) -> Result<Option<String>> {
    if headers.is_empty() {
        Ok(None)
    } else {
        Ok(Some(serde_json::to_string(headers)?))
    }
}
