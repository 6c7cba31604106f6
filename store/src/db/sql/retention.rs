//! What the sweeper removes: task tables that are listed in `retired_table`, and jobs whose time is
//! over.

use std::time::Duration;

use super::millis;
use super::session::Session;
use super::statement::Dialect;
use crate::db::{KeptTimes, Result};

/// Lists a task table to be dropped after `delay` milliseconds. If it is listed already, the
/// earlier time counts.
pub async fn retire_table(db: &mut Session, incarnation: i64, delay: u64) -> Result<()> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "insert into retired_table (incarnation, droppable_at) values ($1, {now} + $2) \
         on conflict (incarnation) do update set droppable_at = \
         case when excluded.droppable_at < retired_table.droppable_at then excluded.droppable_at \
         else retired_table.droppable_at end"
    ));
    db.run(statement.bind(incarnation).bind(millis(delay)))
        .await
}

/// Locks the entry of a listed task table, so that no sweeper drops it until this transaction ends.
/// Returns false if there is no entry, or a sweeper has it.
pub async fn hold_retired_table(db: &mut Session, incarnation: i64) -> Result<bool> {
    let lock = db.dialect().lock("for update skip locked");
    let statement = db.statement(format!(
        "select 1 from retired_table where incarnation = $1 {lock}"
    ));
    db.finds(statement.bind(incarnation)).await
}

/// Returns and locks some task tables that are due, or that are more than `most` and due the
/// soonest. PostgreSQL skips those that another sweeper has locked, and tables that somebody reads.
pub async fn due_tables(db: &mut Session, limit: u32, most: u32) -> Result<Vec<i64>> {
    let now = db.dialect().now();
    let (is_free, lock) = match db.dialect() {
        Dialect::Postgres => (
            "and not exists (select 1 from pg_locks where granted and relation = to_regclass('task_' || incarnation) \
             and database = (select oid from pg_database where datname = current_database()))",
            "for update skip locked",
        ),
        Dialect::Sqlite => ("", ""),
    };
    let statement = db.statement(format!(
        "select incarnation from retired_table where (droppable_at <= {now} or incarnation in \
         (select incarnation from retired_table order by droppable_at desc, incarnation desc limit {} offset $2)) {is_free} \
         order by droppable_at limit $1 {lock}",
        i64::MAX
    ));
    let statement = statement.bind(i64::from(limit)).bind(i64::from(most));
    db.fetch(statement, |row| row.get(0)).await
}

/// Drops a task table and takes it off the list. Returns false if it did not exist.
pub async fn drop_table(db: &mut Session, incarnation: i64) -> Result<bool> {
    let table = format!("task_{incarnation}");
    let find = match db.dialect() {
        Dialect::Postgres => "select 1 where to_regclass($1) is not null",
        Dialect::Sqlite => "select 1 from sqlite_schema where name = $1",
    };
    let find = db.statement(find).bind(table.as_str());
    let exists = db.finds(find).await?;
    if exists {
        db.execute(db.statement(format!("drop table {table}")))
            .await?;
    }
    let statement = db.statement("delete from retired_table where incarnation = $1");
    db.execute(statement.bind(incarnation)).await?;
    Ok(exists)
}

/// Returns some jobs (partition, id, expiry time) that have expired, the longest overdue first.
/// PostgreSQL locks them, and skips those that are locked.
pub async fn due_jobs(db: &mut Session, limit: u32) -> Result<Vec<(String, String, i64)>> {
    let now = db.dialect().now();
    let lock = db.dialect().lock("for update skip locked");
    let statement = db.statement(format!(
        "select partition_id, job_id, expiry_time from job where expiry_time <= {now} order by expiry_time limit $1 {lock}"
    ));
    db.fetch(statement.bind(i64::from(limit)), |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
    .await
}

/// Returns the time until something can be removed.
pub async fn next_due(db: &mut Session, kept: KeptTimes) -> Result<Option<Duration>> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select min(due) - {now} from (select min(droppable_at) as due from retired_table \
         union all select min(expiry_time) from job where expiry_time is not null \
         union all select min(deleted_at) + $1 from past_life \
         union all select min(created_at) + $2 from request_key \
         union all select (select time from event where id > up_to order by id limit 1) + $3 from swept_events \
         union all select min(time) + $4 from dead_letter) as things"
    ));
    let statement = statement
        .bind(millis(kept.past_incarnations))
        .bind(millis(kept.request_keys))
        .bind(millis(kept.events))
        .bind(millis(kept.letters));
    db.fetch_wait(statement).await
}
