//! Parts of a job: nodes and failures by the number of a subtask.
//!
//! Paths are texts. Those below `3` are between `3.` and `3/`, because `/` follows `.`; those below
//! the empty path begin with a digit, so that they are before `:`. Which subtask a path belongs to
//! is computed from its text.

use super::failures::read_failure;
use super::ledger::{NODE_COLUMNS, none_if_swept};
use super::session::Session;
use super::statement::{Dialect, StatementBuilder};
use crate::db::Result;
use crate::ledger::{KeptFailure, NodeRow};

/// The most paths in one statement.
const PATHS: usize = 1000;

/// Subtasks of one task: their parent, and the numbers of the first and the last one.
#[derive(Debug, Clone, Copy)]
pub struct Siblings<'a> {
    pub incarnation: i64,
    /// The path of the task whose subtasks they are; empty for the job's own task.
    pub parent: &'a str,
    pub first: u32,
    pub last: u32,
}

/// A subtask that has failed, or with failures below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedBelow {
    pub number: u32,
    /// Whether its own failure is kept.
    pub own: bool,
    /// How many failures below are kept.
    pub below: i64,
}

/// The paths below a parent.
struct Below {
    after: String,
    before: String,
    /// The place of the number of the subtask in such a path, from 1.
    at: i32,
}

impl Below {
    fn of(parent: &str) -> Self {
        let (after, before) = if parent.is_empty() {
            (String::new(), ":".to_owned())
        } else {
            (format!("{parent}."), format!("{parent}/"))
        };
        let at = i32::try_from(after.len()).unwrap_or(i32::MAX - 1) + 1;
        Self { after, before, at }
    }

    /// Returns the expression for the number of the subtask, and the one for whether the path goes
    /// on below it.
    fn expressions(&self, dialect: Dialect) -> (String, String) {
        let at = self.at;
        match dialect {
            Dialect::Postgres => (
                format!("cast(split_part(substr(path, {at}), '.', 1) as bigint)"),
                format!("strpos(substr(path, {at}), '.') > 0"),
            ),
            // A cast takes the digits in front.
            Dialect::Sqlite => (
                format!("cast(substr(path, {at}) as integer)"),
                format!("instr(substr(path, {at}), '.') > 0"),
            ),
        }
    }
}

/// Returns the nodes of subtasks in the order of their numbers, at most `limit`, and without
/// their bitmaps. A task table that has been swept has none.
pub async fn child_nodes(db: &mut Session, of: Siblings<'_>, limit: u32) -> Result<Vec<NodeRow>> {
    let below = Below::of(of.parent);
    let (number, is_below) = below.expressions(db.dialect());
    let no_bits = match db.dialect() {
        Dialect::Postgres => "open_sum, ''::bytea, null::bytea,",
        Dialect::Sqlite => "open_sum, x'', null,",
    };
    let columns = NODE_COLUMNS.replace("open_sum, done, failed,", no_bits);
    let incarnation = of.incarnation;
    let statement = db
        .statement(format!(
            "select {columns} from task_{incarnation} where path > $1 and path < $2 and chunk <= 0 \
             and not ({is_below}) and {number} between $3 and $4 order by {number} limit $5"
        ))
        .bind(below.after.as_str())
        .bind(below.before.as_str())
        .bind(i64::from(of.first))
        .bind(i64::from(of.last))
        .bind(i64::from(limit))
        .uncached();
    db.fetch(statement, NodeRow::read)
        .await
        .or_else(none_if_swept)
}

/// Returns subtasks with failures that are kept, in the order of their numbers, at most
/// `limit`.
pub async fn failed_below(
    db: &mut Session,
    of: Siblings<'_>,
    limit: u32,
) -> Result<Vec<FailedBelow>> {
    let below = Below::of(of.parent);
    let (number, is_below) = below.expressions(db.dialect());
    let statement = db
        .statement(format!(
            "select {number} as child, cast(sum(case when {is_below} then 0 else 1 end) as bigint) as own, \
             cast(sum(case when {is_below} then 1 else 0 end) as bigint) as below from failure \
             where incarnation = $1 and path > $2 and path < $3 and {number} between $4 and $5 \
             group by 1 order by 1 limit $6"
        ))
        .bind(of.incarnation)
        .bind(below.after.as_str())
        .bind(below.before.as_str())
        .bind(i64::from(of.first))
        .bind(i64::from(of.last))
        .bind(i64::from(limit))
        .uncached();
    db.fetch(statement, |row| {
        Ok(FailedBelow {
            number: u32::try_from(row.get::<i64, _>("child")?).unwrap_or_default(),
            own: row.get::<i64, _>("own")? > 0,
            below: row.get("below")?,
        })
    })
    .await
}

/// Returns the failures of these tasks, as far as they are kept.
pub async fn failures_at(
    db: &mut Session,
    incarnation: i64,
    paths: &[String],
) -> Result<Vec<KeptFailure>> {
    let mut found = Vec::new();
    for paths in paths.chunks(PATHS) {
        let mut select = StatementBuilder::new(
            db.dialect(),
            "select path, since, attempts, failure from failure where incarnation = ",
        );
        select.push_bind(incarnation)?.push(" and path");
        select.push_one_of(paths, false)?;
        found.extend(db.fetch(select.build(), read_failure).await?);
    }
    Ok(found)
}

/// Returns how many failures of a task and below it are kept.
pub async fn count_failures_under(db: &mut Session, incarnation: i64, path: &str) -> Result<i64> {
    let below = Below::of(path);
    let statement = db
        .statement(
            "select count(*) from failure where incarnation = $1 and (path = $2 or (path > $3 and path < $4))",
        )
        .bind(incarnation)
        .bind(path)
        .bind(below.after.as_str())
        .bind(below.before.as_str());
    let count = db.fetch_first(statement, |row| row.get(0)).await?;
    Ok(count.unwrap_or_default())
}
