//! The table `attempt`: failed attempts that another one follows, thousands of a job at most.

use super::number;
use super::session::{Row, Session};
use super::statement::json;
use crate::db::Result;
use crate::ledger::{KeptAttempt, failure_json, parse_failure};

/// Adds failed attempts of a round of a job. One that is there already stays as it is.
pub async fn insert(
    db: &mut Session,
    incarnation: i64,
    round: u32,
    attempts: &[KeptAttempt],
) -> Result<()> {
    let mut rows = Vec::with_capacity(attempts.len());
    for kept in attempts {
        // JSON within JSON: PostgreSQL takes no escaped U+0000 of a message, but takes its escape.
        let failure = failure_json(&kept.failure)?;
        rows.push((&kept.path, kept.attempt, kept.since, kept.next, failure));
    }
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into attempt (incarnation, round, path, attempt, since, next_time, failure) \
         select $2, $3, k.value ->> 0, cast(k.value ->> 1 as integer), cast(k.value ->> 2 as bigint), \
         cast(k.value ->> 3 as bigint), k.value ->> 4 from {each} where true on conflict do nothing"
    ));
    let statement = statement
        .bind(json(&rows)?)
        .bind(incarnation)
        .bind(number(round));
    db.run(statement).await
}

/// Returns the failed attempts of a task that are kept, each with its round, oldest first.
pub async fn of_task(
    db: &mut Session,
    incarnation: i64,
    path: &str,
) -> Result<Vec<(u32, KeptAttempt)>> {
    let statement = db.statement(
        "select round, path, attempt, since, next_time, failure from attempt \
         where incarnation = $1 and path = $2 order by round, attempt",
    );
    let read = |row: Row<'_>| {
        let kept = KeptAttempt {
            path: row.get(1)?,
            attempt: row.get(2)?,
            since: row.get(3)?,
            next: row.get(4)?,
            failure: parse_failure(row.get(5)?)?,
        };
        Ok((row.small(0)?, kept))
    };
    db.fetch(statement.bind(incarnation).bind(path), read).await
}

/// Returns of each of these jobs the earliest time to come at which a task of its round is due for
/// another attempt, as far as attempts are kept.
pub async fn next_times(db: &mut Session, incarnations: &[i64]) -> Result<Vec<(i64, i64)>> {
    let dialect = db.dialect();
    let statement = dialect.select_of_jobs(
        "select incarnation, min(next_time) from attempt join job using (incarnation, round)",
        incarnations,
        &format!("and next_time > {} group by incarnation", dialect.now()),
    )?;
    db.fetch(statement, |row| Ok((row.get(0)?, row.get(1)?)))
        .await
}
