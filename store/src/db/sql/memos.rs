//! The tables `memo` and `memo_sum`.
//!
//! What must stay true: a transaction that adds memos holds the lock of the job.

use super::session::{Session, columns};
use super::statement::Statement;
use crate::db::Result;

/// Where a memo is: the incarnation of the job, the path of the task, and the name.
pub type MemoKey = (i64, String, String);

/// The number of memos of a job, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoSums {
    pub memos: i64,
    pub bytes: i64,
}

columns! { MemoSums { memos, bytes } }

/// A job that has memos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobWithMemos {
    pub incarnation: i64,
    /// Whether it is deleted, or has ended and can never be taken up again.
    pub is_over: bool,
}

/// Returns how many memos the task of this one has, and the sums of its job.
pub async fn counts(db: &mut Session, key: &MemoKey) -> Result<(u64, MemoSums)> {
    let of_task = count(db, key).await?;
    let statement = db.statement(format!(
        "select {} from memo_sum where incarnation = $1",
        MemoSums::COLUMNS
    ));
    let found = db
        .fetch_first(statement.bind(key.0), MemoSums::read)
        .await?;
    Ok((of_task, found.unwrap_or_default()))
}

/// Returns jobs with memos whose incarnations follow this one, in their order. A job can be taken
/// up again as long as it exists, something of it is not done, and its task table is listed for the
/// sweeper.
pub async fn jobs_with_memos(
    db: &mut Session,
    after: i64,
    limit: u32,
) -> Result<Vec<JobWithMemos>> {
    let statement = db.statement(
        "select memo_sum.incarnation, case when job.incarnation is null \
         or (job.status = 'Completed' and job.failed_tasks = 0) \
         or (job.finish_time is not null and job.task_table and retired_table.incarnation is null) then 1 else 0 end as is_over \
         from memo_sum left join job on job.incarnation = memo_sum.incarnation \
         left join retired_table on retired_table.incarnation = memo_sum.incarnation \
         where memo_sum.incarnation > $1 order by memo_sum.incarnation limit $2",
    );
    db.fetch(statement.bind(after).bind(i64::from(limit)), |row| {
        let is_over: i32 = row.get("is_over")?;
        Ok(JobWithMemos {
            incarnation: row.get("incarnation")?,
            is_over: is_over != 0,
        })
    })
    .await
}

/// Binds the whole key of a memo.
fn bind(statement: Statement, (incarnation, path, name): &MemoKey) -> Statement {
    let statement = statement.bind(*incarnation);
    statement.bind(path.as_str()).bind(name.as_str())
}

/// Returns the result of a memo, as JSON.
pub async fn find(db: &mut Session, key: &MemoKey) -> Result<Option<String>> {
    let statement =
        db.statement("select result from memo where incarnation = $1 and path = $2 and name = $3");
    db.fetch_first(bind(statement, key), |row| row.get(0)).await
}

/// Returns how many memos the task of this one has.
pub async fn count(db: &mut Session, (incarnation, path, _): &MemoKey) -> Result<u64> {
    let statement = db.statement("select count(*) from memo where incarnation = $1 and path = $2");
    let statement = statement.bind(*incarnation).bind(path.as_str());
    db.fetch_count(statement).await
}

/// Adds to the sums of a job and returns them.
pub async fn add_to_sums(db: &mut Session, incarnation: i64, change: MemoSums) -> Result<MemoSums> {
    let statement = db
        .statement(
            "insert into memo_sum (incarnation, memos, bytes) values ($1, $2, $3) on conflict (incarnation) \
             do update set memos = memo_sum.memos + excluded.memos, bytes = memo_sum.bytes + excluded.bytes \
             returning memos, bytes",
        )
        .bind(incarnation)
        .bind(change.memos)
        .bind(change.bytes);
    Ok(db
        .fetch_first(statement, MemoSums::read)
        .await?
        .unwrap_or_default())
}

/// Adds a memo.
pub async fn insert(db: &mut Session, key: &MemoKey, result: &str) -> Result<()> {
    let statement =
        db.statement("insert into memo (incarnation, path, name, result) values ($1, $2, $3, $4)");
    let statement = bind(statement, key).bind(result);
    db.run(statement).await
}

/// Deletes memos of a job, and with the last of them its sums. Returns how many.
pub async fn delete(db: &mut Session, incarnation: i64, limit: u32) -> Result<u64> {
    let statement = db.statement(
        "delete from memo where incarnation = $1 and (path, name) in \
         (select path, name from memo where incarnation = $1 order by path, name limit $2) returning 1",
    );
    let statement = statement.bind(incarnation).bind(i64::from(limit));
    let gone = db.fetch(statement, |_| Ok(())).await?.len() as u64;
    if gone < u64::from(limit) {
        let statement = db.statement("delete from memo_sum where incarnation = $1");
        db.execute(statement.bind(incarnation)).await?;
    }
    Ok(gone)
}
