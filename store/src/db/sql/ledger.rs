//! The task tables (`task_<incarnation>`, a row for each node of the ledger).

use sqlx::AssertSqlSafe;

use super::session::{Session, columns};
use super::statement::{Dialect, Statement, json};
use crate::db::{DbError, Result};
use crate::ledger::{NodeChanges, NodeKey, NodeRow};

/// The columns of a node, in the order in which it is read.
pub const NODE_COLUMNS: &str = NodeRow::COLUMNS;

columns! {
    NodeRow {
        path, chunk, size, top, done_count, failed_count, kept, counted, percent, flags, items,
        open_sum, done, failed, attempts, since, detail
    }
}

/// The types of the columns in PostgreSQL.
const TYPES: [&str; 17] = [
    "text", "int4", "int4", "int4", "int4", "int4", "int4", "int4", "int4", "int4", "int8", "int8",
    "bytea", "bytea", "int4", "int8", "text",
];

/// Replaces a row that exists.
const NODE_UPDATE: &str = "on conflict (path, chunk) do update set size = excluded.size, top = excluded.top, \
    done_count = excluded.done_count, failed_count = excluded.failed_count, kept = excluded.kept, counted = excluded.counted, \
    percent = excluded.percent, flags = excluded.flags, items = excluded.items, open_sum = excluded.open_sum, \
    done = excluded.done, failed = excluded.failed, attempts = excluded.attempts, since = excluded.since, \
    detail = excluded.detail";

/// Creates the task table of a job.
pub async fn create_task_table(db: &mut Session, incarnation: i64) -> Result<()> {
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
pub async fn nodes(db: &mut Session, incarnation: i64, keys: &[NodeKey]) -> Result<Vec<NodeRow>> {
    let statement = select_nodes(db.dialect(), incarnation, keys, "")?;
    db.fetch(statement, NodeRow::read)
        .await
        .or_else(none_if_swept)
}

/// Locks and reads rows of a task table, in the order of their keys.
///
/// The lock is a statement of its own: an update alone keeps no order, and two of them deadlock.
pub async fn load_nodes(
    db: &mut Session,
    incarnation: i64,
    keys: &[NodeKey],
) -> Result<Vec<NodeRow>> {
    let statement = select_nodes(db.dialect(), incarnation, keys, "for update")?;
    db.fetch(statement, NodeRow::read).await
}

fn select_nodes(
    dialect: Dialect,
    incarnation: i64,
    keys: &[NodeKey],
    lock: &str,
) -> Result<Statement> {
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
pub fn none_if_swept<T>(error: DbError) -> Result<Vec<T>> {
    if error.is_missing_table() {
        Ok(Vec::new())
    } else {
        Err(error)
    }
}

/// Writes and deletes nodes.
pub async fn change_nodes(db: &mut Session, incarnation: i64, changes: &NodeChanges) -> Result<()> {
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
    let rows = || changes.rows.iter();
    let new = db.dialect().rows(&TYPES);
    let statement = db
        .statement(format!(
            "insert into task_{incarnation} ({NODE_COLUMNS}) select * from {new} where true {NODE_UPDATE}"
        ))
        .bind_each(rows().map(|row| row.path.as_str()))
        .bind_each(rows().map(|row| row.chunk))
        .bind_each(rows().map(|row| row.size))
        .bind_each(rows().map(|row| row.top))
        .bind_each(rows().map(|row| row.done_count))
        .bind_each(rows().map(|row| row.failed_count))
        .bind_each(rows().map(|row| row.kept))
        .bind_each(rows().map(|row| row.counted))
        .bind_each(rows().map(|row| row.percent))
        .bind_each(rows().map(|row| row.flags))
        .bind_each(rows().map(|row| row.items))
        .bind_each(rows().map(|row| row.open_sum))
        .bind_each(rows().map(|row| row.done.as_slice()))
        .bind_each(rows().map(|row| row.failed.as_deref()))
        .bind_each(rows().map(|row| row.attempts))
        .bind_each(rows().map(|row| row.since))
        .bind_each(rows().map(|row| row.detail.as_deref()));
    db.run(statement).await
}
