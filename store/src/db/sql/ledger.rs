//! The task tables (`task_<incarnation>`, a row for each node of the ledger).

use sqlx::AssertSqlSafe;

use super::session::{Row, Session};
use super::statement::{Dialect, Statement, StatementBuilder, json};
use crate::db::DbError;
use crate::ledger::{NodeChanges, NodeKey, NodeRow};

/// The columns that [`read_node`] reads, in its order.
pub const NODE_COLUMNS: &str = "path, chunk, size, top, done_count, failed_count, kept, counted, percent, flags, items, \
    open_sum, done, failed, attempts, since, detail";

/// Replaces a row that exists.
const NODE_UPDATE: &str = "on conflict (path, chunk) do update set size = excluded.size, top = excluded.top, \
    done_count = excluded.done_count, failed_count = excluded.failed_count, kept = excluded.kept, counted = excluded.counted, \
    percent = excluded.percent, flags = excluded.flags, items = excluded.items, open_sum = excluded.open_sum, \
    done = excluded.done, failed = excluded.failed, attempts = excluded.attempts, since = excluded.since, \
    detail = excluded.detail";

/// How many rows one statement writes in SQLite.
const ROWS_AT_ONCE: usize = 64;

/// Creates the task table of a job.
pub async fn create_task_table(db: &mut Session, incarnation: i64) -> Result<(), DbError> {
    let table = format!("task_{incarnation}");
    db.run_script(match db.dialect() {
        // Half of every page stays free and only the key is indexed, so that an update finds room
        // beside its row. Bitmaps change all the time: they are neither compressed nor stored
        // elsewhere.
        Dialect::Postgres => format!(
            "create table {table} (items bigint not null, open_sum bigint not null, since bigint, chunk integer not null, \
             size integer, top integer not null, done_count integer not null, failed_count integer not null, \
             kept integer not null, counted integer not null, percent integer not null, flags integer not null, attempts integer, \
             path text collate \"C\" not null, done bytea not null, failed bytea, detail text) with (fillfactor = 50); \
             alter table {table} alter path set storage plain, alter done set storage plain, alter failed set storage plain, \
             add primary key (path, chunk)"
        ),
        Dialect::Sqlite => format!(
            "create table {table} (path text not null, chunk integer not null, size integer, top integer not null, \
             done_count integer not null, failed_count integer not null, kept integer not null, counted integer not null, \
             percent integer not null, flags integer not null, items integer not null, open_sum integer not null, \
             done blob not null, failed blob, attempts integer, since integer, detail text, primary key (path, chunk)) without rowid"
        ),
    })
    .await
}

/// Returns rows of a task table, in the order of their keys. A table that has been swept has none.
pub async fn nodes(
    db: &mut Session,
    incarnation: i64,
    keys: &[NodeKey],
) -> Result<Vec<NodeRow>, DbError> {
    let statement = select_nodes(db.dialect(), incarnation, keys, "")?;
    db.fetch(statement, read_node).await.or_else(none_if_swept)
}

/// Locks and reads rows of a task table, in the order of their keys.
///
/// The lock is a statement of its own: an update alone keeps no order, and two of them deadlock.
pub async fn load_nodes(
    db: &mut Session,
    incarnation: i64,
    keys: &[NodeKey],
) -> Result<Vec<NodeRow>, DbError> {
    let statement = select_nodes(db.dialect(), incarnation, keys, "for update")?;
    db.fetch(statement, read_node).await
}

fn select_nodes(
    dialect: Dialect,
    incarnation: i64,
    keys: &[NodeKey],
    lock: &str,
) -> Result<Statement, DbError> {
    match dialect {
        Dialect::Postgres => {
            let text = format!(
                "select {NODE_COLUMNS} from task_{incarnation} \
                 where (path, chunk) in (select * from unnest($1::text[], $2::int4[])) order by path, chunk {lock}"
            );
            let (paths, chunks): (Vec<&str>, Vec<i32>) = keys
                .iter()
                .map(|(path, chunk)| (path.as_str(), *chunk))
                .unzip();
            let query = sqlx::query(AssertSqlSafe(text)).bind(paths).bind(chunks);
            Ok(Statement::Postgres(query))
        }
        // The keys lead, so that no plan reads the whole table.
        Dialect::Sqlite => {
            let columns = NODE_COLUMNS.replace(", ", ", t.");
            let text = format!(
                "select t.{columns} from json_each($1) as k cross join task_{incarnation} as t \
                 on t.path = k.value ->> 0 and t.chunk = k.value ->> 1 order by t.path, t.chunk"
            );
            Ok(dialect.statement(text).bind(json(keys)?))
        }
    }
}

/// Turns the error that a table is missing into an empty result: the sweeper has dropped the table.
pub fn none_if_swept<T>(error: DbError) -> Result<Vec<T>, DbError> {
    if error.is_missing_table() {
        Ok(Vec::new())
    } else {
        Err(error)
    }
}

/// Writes and deletes nodes.
pub async fn change_nodes(
    db: &mut Session,
    incarnation: i64,
    changes: &NodeChanges,
) -> Result<(), DbError> {
    for path in &changes.pruned {
        // '/' follows '.', so this is everything below the path.
        let statement = db.statement(format!(
            "delete from task_{incarnation} where path = $1 or (path >= $1 || '.' and path < $1 || '/')"
        ));
        db.execute(statement.bind(path.as_str())).await?;
    }
    for (paths, chunk) in [(&changes.gone, ""), (&changes.inactive, " and chunk = -1")] {
        if !paths.is_empty() {
            let delete = format!("delete from task_{incarnation} where path ");
            let statement = match db.dialect() {
                Dialect::Postgres => {
                    let text = format!("{delete}= any($1){chunk}");
                    Statement::Postgres(sqlx::query(AssertSqlSafe(text)).bind(&paths[..]))
                }
                Dialect::Sqlite => db
                    .statement(format!(
                        "{delete}in (select value from json_each($1)){chunk}"
                    ))
                    .bind(json(paths)?),
            };
            db.execute(statement).await?;
        }
    }
    if changes.rows.is_empty() {
        return Ok(());
    }
    match db.dialect() {
        Dialect::Postgres => {
            let statement = upsert_arrays(incarnation, &changes.rows);
            db.execute(statement).await?;
        }
        Dialect::Sqlite => {
            for rows in changes.rows.chunks(ROWS_AT_ONCE) {
                let statement = upsert_values(db.dialect(), incarnation, rows)?;
                db.execute(statement).await?;
            }
        }
    }
    Ok(())
}

/// Writes all rows in one statement of PostgreSQL, with an array for each column.
fn upsert_arrays(incarnation: i64, rows: &[NodeRow]) -> Statement {
    fn column<'r, T>(rows: &'r [NodeRow], value: impl Fn(&'r NodeRow) -> T) -> Vec<T> {
        rows.iter().map(value).collect()
    }
    let text = format!(
        "insert into task_{incarnation} ({NODE_COLUMNS}) select * from unnest($1::text[], $2::int4[], $3::int4[], $4::int4[], \
         $5::int4[], $6::int4[], $7::int4[], $8::int4[], $9::int4[], $10::int4[], $11::int8[], $12::int8[], $13::bytea[], \
         $14::bytea[], $15::int4[], $16::int8[], $17::text[]) {NODE_UPDATE}"
    );
    let query = sqlx::query(AssertSqlSafe(text))
        .bind(column(rows, |row| row.path.as_str()))
        .bind(column(rows, |row| row.chunk))
        .bind(column(rows, |row| row.size))
        .bind(column(rows, |row| row.top))
        .bind(column(rows, |row| row.done_count))
        .bind(column(rows, |row| row.failed_count))
        .bind(column(rows, |row| row.kept))
        .bind(column(rows, |row| row.counted))
        .bind(column(rows, |row| row.percent))
        .bind(column(rows, |row| row.flags))
        .bind(column(rows, |row| row.items))
        .bind(column(rows, |row| row.open_sum))
        .bind(column(rows, |row| row.done.as_slice()))
        .bind(column(rows, |row| row.failed.as_deref()))
        .bind(column(rows, |row| row.attempts))
        .bind(column(rows, |row| row.since))
        .bind(column(rows, |row| row.detail.as_deref()));
    Statement::Postgres(query)
}

/// Writes rows with a list of values.
fn upsert_values(
    dialect: Dialect,
    incarnation: i64,
    rows: &[NodeRow],
) -> Result<Statement, DbError> {
    let mut insert = StatementBuilder::new(
        dialect,
        format!("insert into task_{incarnation} ({NODE_COLUMNS}) values "),
    );
    for (at, row) in rows.iter().enumerate() {
        insert.push(if at == 0 { "(" } else { ", (" });
        insert.push_bind(row.path.as_str())?.push(", ");
        insert.push_bind(row.chunk)?.push(", ");
        insert.push_bind(row.size)?.push(", ");
        for number in [
            row.top,
            row.done_count,
            row.failed_count,
            row.kept,
            row.counted,
            row.percent,
            row.flags,
        ] {
            insert.push_bind(number)?.push(", ");
        }
        insert.push_bind(row.items)?.push(", ");
        insert.push_bind(row.open_sum)?.push(", ");
        insert.push_bind(&row.done[..])?.push(", ");
        insert.push_bind(row.failed.as_deref())?.push(", ");
        insert.push_bind(row.attempts)?.push(", ");
        insert.push_bind(row.since)?.push(", ");
        insert.push_bind(row.detail.as_deref())?.push(")");
    }
    insert.push(" ").push(NODE_UPDATE);
    Ok(insert.build())
}

pub fn read_node(row: Row<'_>) -> Result<NodeRow, DbError> {
    Ok(NodeRow {
        path: row.get(0)?,
        chunk: row.get(1)?,
        size: row.get(2)?,
        top: row.get(3)?,
        done_count: row.get(4)?,
        failed_count: row.get(5)?,
        kept: row.get(6)?,
        counted: row.get(7)?,
        percent: row.get(8)?,
        flags: row.get(9)?,
        items: row.get(10)?,
        open_sum: row.get(11)?,
        done: row.get(12)?,
        failed: row.get(13)?,
        attempts: row.get(14)?,
        since: row.get(15)?,
        detail: row.get(16)?,
    })
}
