//! The table `failure`: the failures that are kept, thousands of a job at most.

use std::collections::HashMap;

use contract::ReportFailure;

use super::session::{Row, Session};
use super::statement::{Dialect, Statement, StatementBuilder, json};
use crate::db::Result;
use crate::ledger::{KeptFailure, failure_kind, parse_failure};

/// The bytes of the failures of a job that come before a row.
const BYTES_BEFORE: &str =
    "sum(octet_length(failure)) over (order by since, path) - octet_length(failure)";

/// The bytes of texts from which on a page of failures, or of dead letters, is full.
pub const PAGE_BYTES: usize = 256 * 1024;
/// How many bytes of their messages the failures of a group share. Less than what is kept of a
/// message that is cut.
pub const GROUPED_BYTES: usize = 1000;

/// Failures of a job that are kept, of the same kind, with the same beginning of the message.
#[derive(Debug, Clone)]
pub struct KeptGroup {
    /// The one that happened first.
    pub first: KeptFailure,
    pub count: i64,
    /// When the last one happened, in milliseconds since 1970.
    pub last: i64,
}

/// Returns the first failures of these jobs, oldest first: at most `limit` of each, and fewer if
/// they are large.
pub async fn first_of_each(
    db: &mut Session,
    incarnations: &[i64],
    limit: usize,
) -> Result<Vec<(i64, KeptFailure)>> {
    let read = |row: Row<'_>| Ok((row.get("incarnation")?, read_failure(row)?));
    if db.dialect() == Dialect::Postgres {
        let text = format!(
            "select f.* from unnest($1::int8[]) as job(incarnation) cross join lateral \
             (select incarnation, path, since, attempts, failure, {BYTES_BEFORE} as bytes_before from \
             (select * from failure where incarnation = job.incarnation order by since, path limit $2) as first) as f \
             where f.bytes_before < $3 order by f.incarnation, f.since, f.path"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(text));
        let query = query
            .bind(incarnations)
            .bind(number(limit))
            .bind(number(PAGE_BYTES));
        return db.fetch(Statement::Postgres(query), read).await;
    }
    // SQLite cannot limit the rows of each job without reading all of them.
    let mut found = Vec::new();
    let mut sorted = incarnations.to_vec();
    sorted.sort_unstable();
    for incarnation in sorted {
        let statement = db
            .statement(format!(
                "select path, since, attempts, failure from (select path, since, attempts, failure, {BYTES_BEFORE} as bytes_before from \
                 (select * from failure where incarnation = $1 order by since, path limit $2)) \
                 where bytes_before < $3 order by since, path"
            ))
            .bind(incarnation)
            .bind(number(limit))
            .bind(number(PAGE_BYTES));
        let rows = db.fetch(statement, read_failure).await?;
        found.extend(rows.into_iter().map(|kept| (incarnation, kept)));
    }
    Ok(found)
}

/// Returns the kept failures of a job that follow this time and path, oldest first.
pub async fn after(
    db: &mut Session,
    incarnation: i64,
    (since, path): (i64, &str),
    limit: usize,
) -> Result<Vec<KeptFailure>> {
    let statement = db
        .statement(
            "select path, since, attempts, failure from failure \
             where incarnation = $1 and (since, path) > ($2, $3) order by since, path limit $4",
        )
        .bind(incarnation)
        .bind(since)
        .bind(path)
        .bind(number(limit));
    db.fetch(statement, read_failure).await
}

/// Returns the failures of a job that are kept in groups of the same kind and the same beginning of
/// the message, at most `limit` of these: the largest first, and of two of the same size the one
/// that began first.
pub async fn groups(db: &mut Session, incarnation: i64, limit: u32) -> Result<Vec<KeptGroup>> {
    // What is grouped by is a key only, which nobody sees: PostgreSQL cannot read an escaped
    // U+0000.
    let (as_json, bytes) = match db.dialect() {
        Dialect::Postgres => ("::json", "substring(convert_to(message, 'UTF8') from 1 for"),
        Dialect::Sqlite => ("", "substr(cast(message as blob), 1,"),
    };
    let statement = db
        .statement(format!(
            "with parsed as (select path, since, replace(failure, '\\u0000', '\\u2400'){as_json} as failure from failure where incarnation = $1), \
             texts as (select path, since, failure ->> 'failureId' as kind, failure ->> 'failureMessage' as message from parsed), \
             keys as (select path, since, kind, {bytes} {GROUPED_BYTES}) as message from texts), \
             places as (select path, count(*) over same as number, max(since) over same as last, \
             row_number() over (partition by kind, message order by since, path) as place \
             from keys window same as (partition by kind, message)) \
             select f.path, f.since, f.attempts, f.failure, p.number, p.last from places as p \
             join failure as f on f.incarnation = $1 and f.path = p.path where p.place = 1 \
             order by p.number desc, f.since, f.path limit $2"
        ))
        .bind(incarnation)
        .bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok(KeptGroup {
            count: row.get("number")?,
            last: row.get("last")?,
            first: read_failure(row)?,
        })
    })
    .await
}

/// Returns the number of failures of a job that are kept.
pub async fn count(db: &mut Session, incarnation: i64) -> Result<i64> {
    let statement = db.statement("select count(*) from failure where incarnation = $1");
    let count = db.fetch_first(statement.bind(incarnation), |row| row.get(0));
    Ok(count.await?.unwrap_or_default())
}

/// Returns the failure of a task, if it is kept.
pub async fn find(db: &mut Session, incarnation: i64, path: &str) -> Result<Option<KeptFailure>> {
    let statement = db
        .statement(
            "select path, since, attempts, failure from failure where incarnation = $1 and path = $2",
        )
        .bind(incarnation)
        .bind(path);
    db.fetch_first(statement, read_failure).await
}

/// Returns the kinds of the failures of these tasks, by path, as far as they are kept.
pub async fn kinds(
    db: &mut Session,
    incarnation: i64,
    paths: &[String],
) -> Result<HashMap<String, String>> {
    let mut select = StatementBuilder::new(
        db.dialect(),
        "select path, since, attempts, failure from failure where incarnation = ",
    );
    select.push_bind(incarnation)?.push(" and path");
    select.push_one_of(paths, false)?;
    let kept = db.fetch(select.build(), read_failure).await?;
    Ok(kept
        .into_iter()
        .map(|kept| (kept.path, failure_kind(&kept.failure)))
        .collect())
}

/// Returns the failure of a job that happened first, of those that are kept.
pub async fn first(db: &mut Session, incarnation: i64) -> Result<Option<ReportFailure>> {
    let first = after(db, incarnation, (i64::MIN, ""), 1).await?;
    Ok(first.into_iter().next().map(|kept| kept.failure))
}

/// Adds or replaces the `new` failures of a job and deletes those at the paths that are `gone`.
pub async fn change(
    db: &mut Session,
    incarnation: i64,
    new: &[KeptFailure],
    gone: &[String],
) -> Result<()> {
    if !gone.is_empty() {
        let mut delete =
            StatementBuilder::new(db.dialect(), "delete from failure where incarnation = ");
        delete.push_bind(incarnation)?.push(" and path");
        delete.push_one_of(gone, false)?;
        db.execute(delete.build()).await?;
    }
    if new.is_empty() {
        return Ok(());
    }
    let replace = "do update set since = excluded.since, attempts = excluded.attempts, failure = excluded.failure";
    upsert(db, new.iter().map(|kept| (incarnation, kept)), replace).await
}

/// Adds failures of many jobs. A failure whose path is there already is left out.
pub async fn insert(db: &mut Session, failures: &[(i64, KeptFailure)]) -> Result<()> {
    let failures = failures.iter().map(|(n, kept)| (*n, kept));
    upsert(db, failures, "do nothing").await
}

async fn upsert(
    db: &mut Session,
    failures: impl Iterator<Item = (i64, &KeptFailure)>,
    conflict: &str,
) -> Result<()> {
    let mut rows = Vec::new();
    for (n, kept) in failures {
        // JSON within JSON: PostgreSQL takes no escaped U+0000 of a message, but takes its escape.
        rows.push((n, &kept.path, kept.since, kept.attempts, kept.json()?));
    }
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into failure (incarnation, path, since, attempts, failure) \
         select cast(k.value ->> 0 as bigint), k.value ->> 1, cast(k.value ->> 2 as bigint), \
         cast(k.value ->> 3 as integer), k.value ->> 4 from {each} \
         where true on conflict (incarnation, path) {conflict}"
    ));
    db.run(statement.bind(json(&rows)?)).await
}

fn number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub fn read_failure(row: Row<'_>) -> Result<KeptFailure> {
    Ok(KeptFailure {
        path: row.get("path")?,
        since: row.get("since")?,
        attempts: row.get("attempts")?,
        failure: parse_failure(row.get("failure")?)?,
    })
}
