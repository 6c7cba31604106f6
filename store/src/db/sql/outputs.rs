//! The tables `kept_outputs`, `kept_blob` and `kept_task`, and the name in `blob_owner`.

use std::ops::Range;

use sqlx::AssertSqlSafe;

use super::millis;
use super::session::{Row, Session, columns};
use super::statement::{Dialect, Statement, json};
use crate::db::{DbError, KeptBlobRow, KeptRow, KeptTaskRow, Result};
use crate::ledger::NodeKey;

const KEPT: &str = KeptRow::COLUMNS;
const TASK: &str = KeptTaskRow::COLUMNS;
const BLOB: &str = "incarnation, first_line, lines, bytes, failed, name, time, crc32";

columns! {
    KeptRow {
        incarnation, lines, bytes, done, failed, not_kept, reason, waiting, removed_time,
        damaged
    }
}
columns! { KeptTaskRow { path, chunk, done, failed } }

/// Returns the name of this database among others that keep blobs in the same place.
pub async fn owner(db: &mut Session) -> Result<String> {
    let statement = db.statement("select name from blob_owner limit 1");
    let name = db.fetch_first(statement, |row| row.get(0)).await?;
    name.ok_or_else(|| DbError::Refused("the table blob_owner is empty".to_owned().into()))
}

/// Returns the bytes of all outputs that are kept.
pub async fn bytes(db: &mut Session) -> Result<u64> {
    let sum = "select cast(coalesce(sum(bytes), 0) as bigint) from kept_outputs";
    db.fetch_count(db.statement(sum)).await
}

/// Returns what is kept of these jobs. A job without outputs has no row.
pub async fn kept(db: &mut Session, incarnations: &[i64]) -> Result<Vec<KeptRow>> {
    let select = format!("select {KEPT} from kept_outputs");
    let statement = db.dialect().select_of_jobs(&select, incarnations, "")?;
    db.fetch(statement, KeptRow::read).await
}

/// Locks and reads the sums of a job.
pub async fn lock_kept(db: &mut Session, incarnation: i64) -> Result<Option<KeptRow>> {
    let lock = db.dialect().lock("for update");
    let statement = db.statement(format!(
        "select {KEPT} from kept_outputs where incarnation = $1 {lock}"
    ));
    db.fetch_first(statement.bind(incarnation), KeptRow::read)
        .await
}

/// Writes the sums of a job.
pub async fn save_kept(db: &mut Session, kept: &KeptRow) -> Result<()> {
    let statement = db
        .statement(format!(
            "insert into kept_outputs ({KEPT}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict (incarnation) do update set \
             lines = excluded.lines, bytes = excluded.bytes, done = excluded.done, failed = excluded.failed, \
             not_kept = excluded.not_kept, reason = excluded.reason, waiting = excluded.waiting, \
             removed_time = excluded.removed_time, damaged = excluded.damaged"
        ))
        .bind(kept.incarnation)
        .bind(kept.lines)
        .bind(kept.bytes)
        .bind(kept.done)
        .bind(kept.failed)
        .bind(kept.not_kept)
        .bind(kept.reason.as_deref())
        .bind(kept.waiting.as_deref())
        .bind(kept.removed_time)
        .bind(kept.damaged.as_deref());
    db.run(statement).await
}

/// Returns blobs that have lines from this one on, in the order of their lines.
pub async fn blobs(
    db: &mut Session,
    incarnation: i64,
    from_line: i64,
    failed: Option<bool>,
    limit: u32,
) -> Result<Vec<KeptBlobRow>> {
    // The blob that begins before the line and has it is found by the key, too.
    let statement = db
        .statement(format!(
            "select {BLOB} from kept_blob where incarnation = $1 and first_line >= coalesce((select max(first_line) from kept_blob \
             where incarnation = $1 and first_line <= $2), 0) and first_line + lines > $2 and ($3 or failed = $4) \
             order by first_line limit $5"
        ))
        .bind(incarnation)
        .bind(from_line)
        .bind(failed.is_none())
        .bind(failed.unwrap_or_default())
        .bind(i64::from(limit));
    db.fetch(statement, read_blob).await
}

/// Adds blobs to the manifest.
pub async fn insert_blobs(db: &mut Session, blobs: &[KeptBlobRow]) -> Result<()> {
    let new = db.dialect().rows(&[
        "int8", "int8", "int4", "int8", "bool", "text", "int8", "int8",
    ]);
    let statement = db
        .statement(format!(
            "insert into kept_blob ({BLOB}) select * from {new}"
        ))
        .bind_each(blobs.iter().map(|blob| blob.incarnation))
        .bind_each(blobs.iter().map(|blob| blob.first_line))
        .bind_each(
            blobs
                .iter()
                .map(|blob| i32::try_from(blob.lines).unwrap_or(i32::MAX)),
        )
        .bind_each(blobs.iter().map(|blob| blob.bytes))
        .bind_each(blobs.iter().map(|blob| blob.failed))
        .bind_each(blobs.iter().map(|blob| blob.name.as_str()))
        .bind_each(blobs.iter().map(|blob| blob.time))
        .bind_each(blobs.iter().map(|blob| blob.crc32));
    db.run(statement).await
}

/// Returns the blobs with the last lines, in the order of their lines.
pub async fn last_blobs(
    db: &mut Session,
    incarnation: i64,
    limit: u32,
) -> Result<Vec<KeptBlobRow>> {
    let statement = db
        .statement(format!(
            "select {BLOB} from kept_blob where incarnation = $1 order by first_line desc limit $2"
        ))
        .bind(incarnation)
        .bind(i64::from(limit));
    let mut blobs = db.fetch(statement, read_blob).await?;
    blobs.reverse();
    Ok(blobs)
}

/// Deletes the blobs that begin with one of these lines, and returns them in the order of their
/// lines.
pub async fn take_blobs(
    db: &mut Session,
    incarnation: i64,
    lines: Range<i64>,
) -> Result<Vec<KeptBlobRow>> {
    let statement = db
        .statement(format!(
            "delete from kept_blob where incarnation = $1 and first_line >= $2 and first_line < $3 returning {BLOB}"
        ))
        .bind(incarnation)
        .bind(lines.start)
        .bind(lines.end);
    let mut blobs = db.fetch(statement, read_blob).await?;
    blobs.sort_unstable_by_key(|blob| blob.first_line);
    Ok(blobs)
}

/// Reads bitmaps of tasks that have outputs, in the order of their keys; locks them, too, if asked
/// to.
pub async fn tasks(
    db: &mut Session,
    incarnation: i64,
    keys: &[NodeKey],
    locked: bool,
) -> Result<Vec<KeptTaskRow>> {
    let statement = match db.dialect() {
        Dialect::Postgres => {
            let lock = if locked { "for update" } else { "" };
            let text = format!(
                "select {TASK} from kept_task where incarnation = $1 \
                 and (path, chunk) in (select * from unnest($2::text[], $3::int4[])) order by path, chunk {lock}"
            );
            let (paths, chunks): (Vec<&str>, Vec<i32>) = keys
                .iter()
                .map(|(path, chunk)| (path.as_str(), *chunk))
                .unzip();
            let query = sqlx::query(AssertSqlSafe(text)).bind(incarnation);
            Statement::Postgres(query.bind(paths).bind(chunks))
        }
        Dialect::Sqlite => db
            .statement(
                "select t.path, t.chunk, t.done, t.failed from json_each($1) as k cross join kept_task as t \
                 on t.incarnation = $2 and t.path = k.value ->> 0 and t.chunk = k.value ->> 1 order by t.path, t.chunk",
            )
            .bind(json(keys)?)
            .bind(incarnation),
    };
    db.fetch(statement, KeptTaskRow::read).await
}

/// Writes bitmaps of tasks.
pub async fn save_tasks(db: &mut Session, incarnation: i64, rows: &[KeptTaskRow]) -> Result<()> {
    let new = db
        .dialect()
        .rows(&["int8", "text", "int4", "bytea", "bytea"]);
    let statement = db
        .statement(format!(
            "insert into kept_task (incarnation, {TASK}) select * from {new} where true \
             on conflict (incarnation, path, chunk) do update set done = excluded.done, failed = excluded.failed"
        ))
        .bind_each(rows.iter().map(|_| incarnation))
        .bind_each(rows.iter().map(|row| row.path.as_str()))
        .bind_each(rows.iter().map(|row| row.chunk))
        .bind_each(rows.iter().map(|row| row.done.as_slice()))
        .bind_each(rows.iter().map(|row| row.failed.as_slice()));
    db.run(statement).await
}

/// Marks as removed what is kept of jobs that have ended this many milliseconds ago. Returns how
/// many jobs that concerns.
pub async fn expire(db: &mut Session, keep: u64) -> Result<u64> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "update kept_outputs set removed_time = {now}, waiting = null, damaged = null where removed_time is null and lines > 0 and exists \
         (select 1 from job where job.incarnation = kept_outputs.incarnation and job.finish_time <= {now} - $1)"
    ));
    db.execute(statement.bind(millis(keep))).await
}

/// Returns incarnations whose blobs are to be deleted: their job is gone, or their outputs are
/// removed.
pub async fn doomed(db: &mut Session, limit: u32) -> Result<Vec<i64>> {
    let statement = db.statement(
        "select k.incarnation from kept_outputs as k left join job as j on j.incarnation = k.incarnation \
         where j.incarnation is null or (k.removed_time is not null and k.bytes > 0) limit $1",
    );
    db.fetch(statement.bind(i64::from(limit)), |row| row.get(0))
        .await
}

/// Deletes up to `limit` rows of each table. Returns whether none are left; then the sums are
/// deleted, too, or have no bytes any more if the job is there.
pub async fn forget(db: &mut Session, incarnation: i64, limit: u32) -> Result<bool> {
    for (table, key) in [("kept_blob", "first_line"), ("kept_task", "path, chunk")] {
        let statement = db.statement(format!(
            "delete from {table} where incarnation = $1 and ({key}) in (select {key} from {table} where incarnation = $1 limit $2)"
        ));
        let statement = statement.bind(incarnation).bind(i64::from(limit));
        if db.execute(statement).await? >= u64::from(limit) {
            return Ok(false);
        }
    }
    for statement in [
        "delete from kept_outputs where incarnation = $1 and not exists (select 1 from job where incarnation = $1)",
        "update kept_outputs set bytes = 0 where incarnation = $1",
    ] {
        db.execute(db.statement(statement).bind(incarnation))
            .await?;
    }
    Ok(true)
}

fn read_blob(row: Row<'_>) -> Result<KeptBlobRow> {
    Ok(KeptBlobRow {
        incarnation: row.get(0)?,
        first_line: row.get(1)?,
        lines: i64::from(row.get::<i32, _>(2)?),
        bytes: row.get(3)?,
        failed: row.get(4)?,
        name: row.get(5)?,
        time: row.get(6)?,
        crc32: row.get(7)?,
    })
}
