//! The tables `dead_letter` and `dead_letter_sum`.
//!
//! What must stay true: a transaction that adds or deletes letters changes the sums of all of them
//! first, and so waits for any other one that does.

use super::parking::write_headers;
use super::session::{Row, Session, columns};
use super::statement::{Dialect, StatementBuilder, singles};
use super::{millis, number};
use crate::db::{JobKey, Result};
use crate::letter::{Letter, LetterQuery, LetterTask, NewLetter};

const COLUMNS: &str = "id, time, cause, reason, pipe, origin, worker, attempts, partition_id, job_id, incarnation, path, label, \
                       headers, body_bytes, length(body) < body_bytes as cut";

const SUMS: &str = LetterSums::COLUMNS;

/// The number of letters and their bytes: of a job, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LetterSums {
    pub letters: i64,
    pub bytes: i64,
    /// Above the bound of the job.
    pub overflowed: i64,
    /// Deleted because they were too old.
    pub expired: i64,
}

columns! { LetterSums { letters, bytes, overflowed, expired } }

/// The key of the sums of all letters. No partition has an empty id.
pub fn all_letters() -> JobKey {
    (String::new(), String::new())
}

/// What a letter that is gone counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneLetter {
    pub job: Option<JobKey>,
    pub bytes: i64,
}

pub async fn find(db: &mut Session, id: i64) -> Result<Option<Letter>> {
    let statement = db.statement(format!(
        "select {COLUMNS}, body from dead_letter where id = $1"
    ));
    db.fetch_first(statement.bind(id), with_body).await
}

/// Returns the sums of a job or, with the key [`all_letters`], of all.
pub async fn sums_of(db: &mut Session, key: &JobKey) -> Result<LetterSums> {
    let statement = db.statement(format!(
        "select {SUMS} from dead_letter_sum where partition_id = $1 and job_id = $2"
    ));
    let statement = statement.bind(key.0.as_str()).bind(key.1.as_str());
    Ok(db
        .fetch_first(statement, LetterSums::read)
        .await?
        .unwrap_or_default())
}

/// Returns letters without their bodies, the latest first.
pub async fn page(db: &mut Session, query: &LetterQuery) -> Result<Vec<Letter>> {
    let mut select = StatementBuilder::new(
        db.dialect(),
        format!("select {COLUMNS} from dead_letter where id < "),
    );
    select.push_bind(query.before.unwrap_or(i64::MAX))?;
    let texts = [
        ("partition_id", &query.partition),
        ("job_id", &query.job),
        ("cause", &query.cause.map(|cause| cause.name().to_owned())),
    ];
    for (column, value) in texts {
        if let Some(value) = value {
            select.push(format_args!(" and {column} = "));
            select.push_bind(value.as_str())?;
        }
    }
    if let Some(pipe) = &query.pipe {
        select.push(" and (pipe = ").push_bind(pipe.as_str())?;
        select.push(" or origin = ").push_bind(pipe.as_str())?;
        select.push(")");
    }
    if let Some(reason) = &query.reason {
        select.push(match db.dialect() {
            Dialect::Postgres => " and strpos(reason, ",
            Dialect::Sqlite => " and instr(reason, ",
        });
        select.push_bind(reason.as_str())?.push(") > 0");
    }
    if let Some(since) = query.since {
        select.push(" and time >= ").push_bind(since)?;
    }
    if let Some(until) = query.until {
        select.push(" and time < ").push_bind(until)?;
    }
    select.push(" order by id desc limit ");
    select.push_bind(i64::from(query.limit))?;
    db.fetch(select.build(), read).await
}

fn read(row: Row<'_>) -> Result<Letter> {
    let (partition, job): (Option<String>, Option<String>) =
        (row.get("partition_id")?, row.get("job_id")?);
    let path: Option<String> = row.get("path")?;
    let task = match (partition, job, path) {
        (Some(partition), Some(job), Some(path)) => Some(LetterTask {
            partition,
            job,
            incarnation: row.get("incarnation")?,
            path,
        }),
        _ => None,
    };
    let attempts: Option<i32> = row.get("attempts")?;
    Ok(Letter {
        id: row.get("id")?,
        time: row.get("time")?,
        cut: row.get("cut")?,
        content: NewLetter {
            identity: Vec::new(),
            cause: NewLetter::cause_of(row.get("cause")?),
            reason: row.get("reason")?,
            pipe: row.get("pipe")?,
            origin: row.get("origin")?,
            worker: row.get("worker")?,
            attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()),
            task,
            label: row.get("label")?,
            headers: row.json("headers")?,
            body: Vec::new(),
            body_bytes: row.unsigned("body_bytes")?,
        },
    })
}

fn with_body(row: Row<'_>) -> Result<Letter> {
    let mut letter = read(row)?;
    letter.content.body = row.get("body")?;
    Ok(letter)
}

/// Adds to the sums of a job or, with the key [`all_letters`], of all, locks them, and returns
/// them.
pub async fn add_to_sums(
    db: &mut Session,
    (partition, job): &JobKey,
    change: LetterSums,
) -> Result<LetterSums> {
    let statement = db
        .statement(format!(
            "insert into dead_letter_sum (partition_id, job_id, {SUMS}) values ($1, $2, $3, $4, $5, $6) \
             on conflict (partition_id, job_id) do update set letters = dead_letter_sum.letters + excluded.letters, \
             bytes = dead_letter_sum.bytes + excluded.bytes, overflowed = dead_letter_sum.overflowed + excluded.overflowed, \
             expired = dead_letter_sum.expired + excluded.expired returning {SUMS}"
        ))
        .bind(partition.as_str())
        .bind(job.as_str())
        .bind(change.letters)
        .bind(change.bytes)
        .bind(change.overflowed)
        .bind(change.expired);
    Ok(db
        .fetch_first(statement, LetterSums::read)
        .await?
        .unwrap_or_default())
}

/// Deletes the sums of jobs without letters.
pub async fn forget_sums(db: &mut Session) -> Result<()> {
    let statement =
        db.statement("delete from dead_letter_sum where letters <= 0 and partition_id <> ''");
    db.run(statement).await
}

/// Returns whether there is a letter with this identity.
pub async fn exists(db: &mut Session, identity: &[u8]) -> Result<bool> {
    let statement = db.statement("select 1 from dead_letter where identity = $1");
    db.finds(statement.bind(identity)).await
}

/// Adds a letter that has so many `bytes`.
pub async fn insert(db: &mut Session, letter: &NewLetter, bytes: i64) -> Result<()> {
    let now = db.dialect().now();
    let task = letter.task.as_ref();
    let statement = db
        .statement(format!(
            "insert into dead_letter (identity, time, cause, reason, pipe, origin, worker, attempts, partition_id, job_id, \
             incarnation, path, label, headers, body, body_bytes, bytes) \
             values ($1, {now}, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
        ))
        .bind(&letter.identity[..])
        .bind(letter.cause.name())
        .bind(letter.reason.as_str())
        .bind(letter.pipe.as_str())
        .bind(letter.origin.as_deref())
        .bind(letter.worker.as_deref())
        .bind(letter.attempts.and_then(|attempts| i32::try_from(attempts).ok()))
        .bind(task.map(|task| task.partition.as_str()))
        .bind(task.map(|task| task.job.as_str()))
        .bind(task.and_then(|task| task.incarnation))
        .bind(task.map(|task| task.path.as_str()))
        .bind(letter.label.as_deref())
        .bind(write_headers(&letter.headers)?)
        .bind(&letter.body[..])
        .bind(i64::try_from(letter.body_bytes).unwrap_or(i64::MAX))
        .bind(bytes);
    db.run(statement).await
}

/// Returns those of these letters that exist, with their bodies, in the order of their numbers.
pub async fn to_replay(db: &mut Session, ids: &[i64]) -> Result<Vec<Letter>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "select {COLUMNS}, body from dead_letter \
         where id in (select cast(k.value ->> 0 as bigint) from {each}) order by id"
    ));
    db.fetch(statement.bind(singles(ids)?), with_body).await
}

/// Deletes letters and returns what they counted for.
pub async fn delete(db: &mut Session, ids: &[i64]) -> Result<Vec<GoneLetter>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "delete from dead_letter where id in (select cast(k.value ->> 0 as bigint) from {each}) \
         returning partition_id, job_id, bytes"
    ));
    db.fetch(statement.bind(singles(ids)?), |row| {
        let (partition, job): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        Ok(GoneLetter {
            job: partition.zip(job),
            bytes: row.get(2)?,
        })
    })
    .await
}

/// Returns the oldest letters that are older than this many milliseconds.
pub async fn old(db: &mut Session, older_than: u64, limit: u32) -> Result<Vec<i64>> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "select id from dead_letter where time <= {now} - $1 order by time limit $2"
        ))
        .bind(millis(older_than))
        .bind(i64::from(limit));
    db.fetch(statement, |row| row.get(0)).await
}

/// Moves the failures at these paths to those of the earlier rounds, as those of this `round`.
pub async fn archive_failures_at(
    db: &mut Session,
    incarnation: i64,
    round: u32,
    paths: &[String],
) -> Result<()> {
    let each = db.dialect().each();
    let at = format!("incarnation = $2 and path in (select k.value ->> 0 from {each})");
    let statement = db.statement(format!(
        "insert into past_failure (incarnation, round, path, since, attempts, failure) \
         select incarnation, $3, path, since, attempts, failure from failure where {at} \
         on conflict (incarnation, path, round) do nothing"
    ));
    let rows = singles(paths)?;
    db.execute(
        statement
            .bind(rows.as_str())
            .bind(incarnation)
            .bind(number(round)),
    )
    .await?;
    let statement = db.statement(format!("delete from failure where {at}"));
    db.run(statement.bind(rows).bind(incarnation)).await
}
