//! The tables `job`, `label` and `past_life`.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use contract::{JobId, JobShare, JobStatus, OnFailure, PartitionId, TaskTimeLimit};
use serde::{Deserialize, Serialize};

use super::session::{Row, Session};
use super::statement::{Dialect, Statement, json};
use super::{millis, number};
use crate::curve::CurveState;
use crate::db::{DbError, JobKey, JobRow, JobTexts, Label, LongText, Part, Result};
use crate::ledger::{Counts, JobTotals};
use crate::model::{JobOfPipe, StuckJob};
use crate::pace::Pace;

/// The columns that [`read_job`] reads.
pub const COLUMNS: &str = "incarnation, partition_id, job_id, first_life, round, name, \
    (description is not null or external_data is not null) as has_texts, content_hash, \
    on_failure, tolerance, status, percentage, completed_items, failed_tasks, failed_splits, failed_attempts, failure_counts, own_task, delay, task_table, create_time, \
    last_update_time, finish_time, expiry, expiry_time, without_target, correlation_id, progress, output_pipe, items_pipe, retry_policy, \
    task_time_limit, share, owner, blocked_tasks, life_key";

/// The content of the column `progress`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Progress {
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Counts>,
    pace: Pace,
    #[serde(skip_serializing_if = "is_new")]
    curve: CurveState,
}

fn is_new(curve: &CurveState) -> bool {
    *curve == CurveState::default()
}

pub async fn find(db: &mut Session, partition: &str, job: &str) -> Result<Option<JobRow>> {
    let statement = db.statement(format!(
        "select {COLUMNS} from job where partition_id = $1 and job_id = $2"
    ));
    db.fetch_first(statement.bind(partition).bind(job), read_job)
        .await
}

/// Returns those of these jobs that exist, in any order.
pub async fn numbered(db: &mut Session, incarnations: &[i64]) -> Result<Vec<JobRow>> {
    let select = format!("select {COLUMNS} from job");
    let statement = db.dialect().select_of_jobs(&select, incarnations, "")?;
    db.fetch(statement, read_job).await
}

/// Returns a part of each long text of these jobs.
pub async fn texts(
    db: &mut Session,
    incarnations: &[i64],
    part: Part,
) -> Result<Vec<(i64, JobTexts)>> {
    let select = "select incarnation, substr(description, $2, $3) as description, \
        substr(external_data, $2, $3) as external_data from job";
    let statement = db.dialect().select_of_jobs(select, incarnations, "")?;
    db.fetch(bind_part(statement, part), |row| {
        let texts = JobTexts {
            description: row.get("description")?,
            external_data: row.get("external_data")?,
        };
        Ok((row.get("incarnation")?, texts))
    })
    .await
}

/// Returns a part of one long text of a job; `None` if the job is gone, or has no such text.
pub async fn text(
    db: &mut Session,
    incarnation: i64,
    which: LongText,
    part: Part,
) -> Result<Option<String>> {
    let column = match which {
        LongText::Description => "description",
        LongText::ExternalData => "external_data",
    };
    let statement = db.statement(format!(
        "select substr({column}, $2, $3) from job where incarnation = $1"
    ));
    let statement = bind_part(statement.bind(incarnation), part);
    let found: Option<Option<String>> = db.fetch_first(statement, |row| row.get(0)).await?;
    Ok(found.flatten())
}

fn bind_part(statement: Statement, Part { first, chars }: Part) -> Statement {
    statement.bind(number(first)).bind(number(chars))
}

/// Returns how many jobs people are shown with each status. Reads the index of the statuses, and
/// the jobs of which tasks wait.
pub async fn count_by_status(db: &mut Session) -> Result<BTreeMap<&'static str, u64>> {
    let statement = db.statement("select status, count(*) from job group by status");
    let counts = db.fetch(statement, |row| {
        Ok((status(row.get(0)?)?.name(), row.unsigned(1)?))
    });
    let mut counts: BTreeMap<_, _> = counts.await?.into_iter().collect();
    let shown_as_blocked = shown_as_blocked(db.dialect());
    let blocked = db.statement(format!("select count(*) from job where {shown_as_blocked}"));
    let blocked = db.fetch_count(blocked).await?;
    if let (Some(active), true) = (counts.get_mut(JobStatus::Active.name()), blocked > 0) {
        *active = active.saturating_sub(blocked);
        counts.insert(JobStatus::Blocked.name(), blocked);
    }
    Ok(counts)
}

/// Returns jobs that have started and not ended, and that have not changed for this many
/// milliseconds. Reads the index of the jobs that have not ended: one of their last changes would
/// cost each flush.
pub async fn stuck(db: &mut Session, idle: u64, limit: u32) -> Result<Vec<StuckJob>> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "select partition_id, job_id, incarnation, last_update_time from job \
             where finish_time is null and status in ('Active', 'Waiting') and last_update_time <= {now} - $1 \
             and not exists (select 1 from outbox where outbox.incarnation = job.incarnation) order by incarnation limit $2"
        ))
        .bind(millis(idle))
        .bind(i64::from(limit));
    let read = |row: Row<'_>| {
        Ok(StuckJob {
            partition: partition_id(row.get(0)?)?,
            job: job_id(row.get(1)?)?,
            incarnation: row.get(2)?,
            since: row.get(3)?,
        })
    };
    db.fetch(statement, read).await
}

/// Returns how many items of unfinished jobs wait, by the pipe to which their batches send them:
/// the fullest first, at most `limit` pipes. Reads the index of the jobs that have not ended.
pub async fn waiting_items(db: &mut Session, limit: u32) -> Result<Vec<(String, u64)>> {
    let (counts, larger) = match db.dialect() {
        Dialect::Postgres => ("progress::jsonb -> 'counts'", "greatest"),
        Dialect::Sqlite => ("progress -> '$.counts'", "max"),
    };
    let count = |name| format!("coalesce(cast(counts ->> '{name}' as bigint), 0)");
    let (total, retrying, running) = (count("total"), count("retrying"), count("running"));
    let waiting = format!(
        "{larger}({larger}({total}, completed_items) - completed_items - failed_tasks - {retrying} - {running} - blocked_tasks, 0)"
    );
    let statement = db.statement(format!(
        "select items_pipe, cast(sum(case when status = 'Paused' or counts is null then 0 else {waiting} end) as bigint) as items \
         from (select items_pipe, status, completed_items, failed_tasks, blocked_tasks, {counts} as counts \
         from job where finish_time is null and items_pipe is not null) as open \
         group by items_pipe order by items desc, items_pipe limit $1"
    ));
    let read = |row: Row<'_>| Ok((row.get(0)?, row.unsigned(1)?));
    db.fetch(statement.bind(i64::from(limit)), read).await
}

/// Returns the partitions with jobs that follow this one, in order: looks up the first job behind
/// each, by an index. Costs by their number, not by that of the jobs.
pub async fn partitions(db: &mut Session, after: &str, limit: u32) -> Result<Vec<String>> {
    let statement = db
        .statement(
            "with recursive found (id) as (select min(partition_id) from job where partition_id > $1 union all \
             select (select min(partition_id) from job where partition_id > found.id) from found where found.id is not null) \
             select id from found where id is not null limit $2",
        )
        .bind(after)
        .bind(i64::from(limit));
    db.fetch(statement, |row| row.get(0)).await
}

/// Locks these jobs in (partition, job) order, and returns those that exist. The one writer of
/// SQLite has every lock.
pub async fn lock(db: &mut Session, keys: &[JobKey]) -> Result<Vec<JobRow>> {
    let statement = among(db, COLUMNS, keys, "for update")?;
    db.fetch(statement, read_job).await
}

/// Locks those of these jobs that no other transaction has locked, without waiting for any. Returns
/// them, and the keys of those that others have locked. The one writer of SQLite gets all jobs.
pub async fn lock_free(db: &mut Session, keys: &[JobKey]) -> Result<(Vec<JobRow>, Vec<JobKey>)> {
    let statement = among(db, COLUMNS, keys, "for update skip locked")?;
    let free = db.fetch(statement, read_job).await?;
    if free.len() == keys.len() {
        return Ok((free, Vec::new()));
    }
    let is_free: BTreeSet<JobKey> = free.iter().map(JobRow::key).collect();
    let others = keys.iter().filter(|key| !is_free.contains(key));
    let others: Vec<JobKey> = others.cloned().collect();
    // Those that exist.
    let statement = among(db, "partition_id, job_id", &others, "")?;
    let locked = db.fetch(statement, |row| Ok((row.get(0)?, row.get(1)?)));
    Ok((free, locked.await?))
}

/// Returns a statement that selects these jobs in (partition, job) order, and locks them in
/// PostgreSQL.
///
/// The ids may come from messages. PostgreSQL refuses a text with U+0000, even to compare with; no
/// job has such an id.
fn among(db: &Session, columns: &str, keys: &[JobKey], lock: &str) -> Result<Statement> {
    let keys: Vec<&JobKey> = keys
        .iter()
        .filter(|(partition, job)| !partition.contains('\0') && !job.contains('\0'))
        .collect();
    Ok(match db.dialect() {
        Dialect::Postgres => {
            let (partitions, ids): (Vec<&str>, Vec<&str>) =
                keys.iter().map(|(p, j)| (p.as_str(), j.as_str())).unzip();
            let few = db.dialect().of_few("id", "text");
            let text = format!(
                "select {columns} from job where (partition_id, job_id) in \
                 (select * from unnest($1::text[], $2::text[]) as key (partition, id) where {few}) \
                 order by partition_id, job_id {lock}"
            );
            Statement::Postgres(
                sqlx::query(sqlx::AssertSqlSafe(text))
                    .bind(partitions)
                    .bind(ids),
            )
        }
        Dialect::Sqlite => db
            .statement(format!(
                "select {columns} from json_each($1) as k cross join job on partition_id = k.value ->> 0 and job_id = k.value ->> 1 \
                 order by partition_id, job_id"
            ))
            .bind(json(&keys)?),
    })
}

/// Saves the columns of a job that may change.
pub async fn save_one(db: &mut Session, job: &JobRow) -> Result<()> {
    save(db, slice::from_ref(job)).await
}

/// Saves the columns of jobs that may change, in one statement.
pub async fn save(db: &mut Session, jobs: &[JobRow]) -> Result<()> {
    let mut rows = Vec::with_capacity(jobs.len());
    for job in jobs {
        let own_task = job.totals.own_task.as_ref();
        let progress = Progress {
            counts: job.totals.counts,
            pace: job.pace,
            curve: job.curve,
        };
        let ledger = (
            job.totals.percentage,
            job.totals.completed_items,
            job.totals.failed_tasks,
            job.totals.failed_splits,
            serde_json::to_string(&job.totals.failure_counts)?,
            own_task.map(serde_json::to_string).transpose()?,
            job.failed_attempts,
            serde_json::to_string(&progress)?,
        );
        let times = (job.last_update_time, job.finish_time, job.expiry_time);
        rows.push((
            job.incarnation,
            job.status.name(),
            job.task_table,
            number(job.round),
            job.blocked_tasks,
            ledger,
            times,
        ));
    }
    let each = db.dialect().each();
    let ledger = |at: u8| format!("k.value -> 5 ->> {at}");
    let time = |at: u8| format!("cast(k.value -> 6 ->> {at} as bigint)");
    let statement = db.statement(format!(
        "update job set status = k.value ->> 1, task_table = cast(k.value ->> 2 as boolean), round = cast(k.value ->> 3 as integer), \
         blocked_tasks = cast(k.value ->> 4 as bigint), percentage = cast({} as integer), completed_items = cast({} as bigint), \
         failed_tasks = cast({} as bigint), failed_splits = cast({} as bigint), failure_counts = {}, own_task = {}, \
         failed_attempts = cast({} as bigint), progress = {}, last_update_time = {}, finish_time = {}, expiry_time = {} \
         from {each} where job.incarnation = cast(k.value ->> 0 as bigint)",
        ledger(0),
        ledger(1),
        ledger(2),
        ledger(3),
        ledger(4),
        ledger(5),
        ledger(6),
        ledger(7),
        time(0),
        time(1),
        time(2),
    ));
    db.run(statement.bind(json(&rows)?)).await
}

/// Deletes a job. The foreign keys delete its labels, failures, history, parked tasks,
/// prerequisites and messages.
pub async fn delete(db: &mut Session, incarnation: i64) -> Result<()> {
    let statement = db.statement("delete from job where incarnation = $1");
    db.run(statement.bind(incarnation)).await
}

/// Adds the labels of new jobs.
pub async fn insert_labels(
    db: &mut Session,
    of: &[(i64, &BTreeMap<String, Option<String>>)],
) -> Result<()> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into label (incarnation, name, value) \
         select cast(k.value ->> 0 as bigint), k.value ->> 1, k.value ->> 2 from {each}"
    ));
    let labels = of.iter().flat_map(|(incarnation, labels)| {
        let row = move |(name, value)| (incarnation, name, value);
        labels.iter().map(row)
    });
    let labels: Vec<_> = labels.collect();
    db.run(statement.bind(json(&labels)?)).await
}

pub async fn labels(db: &mut Session, incarnations: &[i64]) -> Result<Vec<Label>> {
    let select = "select incarnation, name, value from label";
    let statement = db.dialect().select_of_jobs(select, incarnations, "")?;
    db.fetch(statement, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .await
}

/// Remembers an incarnation that is being deleted.
pub async fn remember_incarnation(
    db: &mut Session,
    partition: &str,
    job: &str,
    incarnation: i64,
) -> Result<()> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "insert into past_life (partition_id, job_id, incarnation, deleted_at) values ($1, $2, $3, {now})"
        ))
        .bind(partition)
        .bind(job)
        .bind(incarnation);
    db.run(statement).await
}

/// Returns the owner of a job, which may have none; `None` if there is no such job.
pub async fn owner(db: &mut Session, partition: &str, job: &str) -> Result<Option<Option<String>>> {
    let statement = db.statement("select owner from job where partition_id = $1 and job_id = $2");
    db.fetch_first(statement.bind(partition).bind(job), |row| row.get(0))
        .await
}

pub async fn items_pipe(db: &mut Session, incarnation: i64) -> Result<Option<String>> {
    let statement = db.statement("select items_pipe from job where incarnation = $1");
    let found = db.fetch_first(statement.bind(incarnation), |row| row.get(0));
    Ok(found.await?.flatten())
}

/// Returns the active jobs that send items to this pipe.
pub async fn of_pipe(db: &mut Session, pipe: &str, limit: u32) -> Result<Vec<JobOfPipe>> {
    let statement = db.statement(
        "select partition_id, incarnation, share from job \
         where items_pipe = $1 and finish_time is null and status = 'Active' limit $2",
    );
    db.fetch(statement.bind(pipe).bind(i64::from(limit)), |row| {
        Ok(JobOfPipe {
            partition: partition_id(row.get(0)?)?,
            incarnation: row.get(1)?,
            share: job_share(row.get(2)?),
        })
    })
    .await
}

/// Gives a job this share.
pub async fn set_share(db: &mut Session, incarnation: i64, share: JobShare) -> Result<()> {
    let statement = db.statement("update job set share = $2 where incarnation = $1");
    db.run(statement.bind(incarnation).bind(i64::from(share.weight())))
        .await
}

/// Forgets up to 1,000 incarnations that were deleted more than this many milliseconds ago.
pub async fn forget_incarnations(db: &mut Session, older_than: u64) -> Result<()> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "delete from past_life where (partition_id, job_id, incarnation) in (select partition_id, job_id, incarnation \
         from past_life where deleted_at <= {now} - $1 order by deleted_at limit 1000)"
    ));
    db.run(statement.bind(millis(older_than))).await
}

pub fn read_job(row: Row<'_>) -> Result<JobRow> {
    let on_failure: &str = row.get("on_failure")?;
    let tolerance: Option<&str> = row.get("tolerance")?;
    let progress: Progress = row.json("progress")?;
    let totals = JobTotals {
        on_failure: match tolerance {
            Some(tolerance) => serde_json::from_str(tolerance)?,
            None if on_failure == "continue" => OnFailure::Continue,
            None => OnFailure::Stop,
        },
        percentage: row.get("percentage")?,
        completed_items: row.get("completed_items")?,
        failed_tasks: row.get("failed_tasks")?,
        failed_splits: row.get("failed_splits")?,
        failure_counts: row.json("failure_counts")?,
        own_task: row.json("own_task")?,
        counts: progress.counts,
    };
    Ok(JobRow {
        partition: partition_id(row.get("partition_id")?)?,
        job: job_id(row.get("job_id")?)?,
        incarnation: row.get("incarnation")?,
        first_life: row.get("first_life")?,
        round: row.small("round")?,
        name: row.get("name")?,
        has_texts: row.get("has_texts")?,
        content_hash: row.get("content_hash")?,
        status: status(row.get("status")?)?,
        totals,
        failed_attempts: row.get("failed_attempts")?,
        delay: row.get("delay")?,
        task_table: row.get("task_table")?,
        create_time: row.get("create_time")?,
        last_update_time: row.get("last_update_time")?,
        finish_time: row.get("finish_time")?,
        expiry: row.json("expiry")?,
        expiry_time: row.get("expiry_time")?,
        without_target: row.get("without_target")?,
        correlation_id: row.get("correlation_id")?,
        pace: progress.pace,
        curve: progress.curve,
        output_pipe: row.get("output_pipe")?,
        items_pipe: row.get("items_pipe")?,
        retry: row.get("retry_policy")?,
        task_time_limit: row
            .get::<Option<i64>, _>("task_time_limit")?
            .and_then(|seconds| TaskTimeLimit::of_seconds(seconds.try_into().ok()?)),
        share: job_share(row.get("share")?),
        owner: row.get("owner")?,
        blocked_tasks: row.get("blocked_tasks")?,
        life_key: row.get::<Option<&str>, _>("life_key")?.map(Into::into),
    })
}

fn job_share(weight: i64) -> JobShare {
    let share = u32::try_from(weight).ok().and_then(JobShare::of);
    share.unwrap_or_default()
}

pub fn partition_id(text: &str) -> Result<PartitionId> {
    PartitionId::parse(text)
        .map_err(|error| DbError::Refused(format!("the stored partition {text:?}: {error}").into()))
}

pub fn job_id(text: &str) -> Result<JobId> {
    JobId::parse(text)
        .map_err(|error| DbError::Refused(format!("the stored job {text:?}: {error}").into()))
}

pub fn status(text: &str) -> Result<JobStatus> {
    JobStatus::from_name(text)
        .ok_or_else(|| DbError::Refused(format!("the stored status {text:?} is none").into()))
}

/// Returns the condition that people are shown a job as Blocked, which is that of
/// `waits::is_shown_as_blocked`. It is never null.
///
/// Few jobs have tasks that wait, and an index names them.
pub fn shown_as_blocked(dialect: Dialect) -> String {
    let (progress, least, greatest) = match dialect {
        Dialect::Postgres => ("progress::json", "least", "greatest"),
        Dialect::Sqlite => ("progress", "min", "max"),
    };
    let count = |name| format!("coalesce(cast({progress} -> 'counts' ->> '{name}' as bigint), 0)");
    let (total, unsettled) = (count("total"), count("unsettled"));
    let failed_splits = format!("{least}(failed_splits, failed_tasks)");
    let tasks = "from blocked_task as task where task.incarnation = job.incarnation and state";
    format!(
        "(status = 'Active' and blocked_tasks > 0 and exists (select 1 {tasks} = 'waiting' limit 1) \
         and case when {progress} -> 'counts' is null then not task_table \
         when {failed_splits} > 0 and {unsettled} <> 0 then false \
         else {total} - completed_items - (failed_tasks - {failed_splits}) + {unsettled} \
         = {greatest}(blocked_tasks - (select count(*) {tasks} in ('canary', 'released')), 1) end)"
    )
}
