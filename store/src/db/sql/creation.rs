//! What the creation of a job writes, in as few statements as possible: many clients create small jobs.

use contract::OnFailure;

use super::millis;
use super::parking::write_headers;
use super::session::Session;
use super::statement::{Dialect, Statement};
use crate::db::{DbError, JobRow, NewIncarnation, NewParts};

/// Returns the new incarnation, or `None` if there is a job with this id. Takes the lock of creations first, shared.
pub async fn insert(db: &mut Session, job: &JobRow) -> Result<Option<NewIncarnation>, DbError> {
    let expiry = if job.expiry.is_empty() {
        None
    } else {
        Some(serde_json::to_string(&job.expiry)?)
    };
    let (on_failure, tolerance) = match job.totals.on_failure {
        OnFailure::Stop => ("stop", None),
        OnFailure::Continue => ("continue", None),
        // Versions that do not know the second column stop at the first failure.
        tolerating @ OnFailure::Tolerate(_) => ("stop", Some(serde_json::to_string(&tolerating)?)),
    };
    let lock = match db.dialect() {
        Dialect::Postgres => "pg_advisory_xact_lock_shared(hashtextextended($1, 2))",
        // The one writer has every lock.
        Dialect::Sqlite => "1",
    };
    let statement = db
        .statement(format!(
            "insert into job (partition_id, job_id, first_life, name, description, external_data, content_hash, on_failure, \
             status, percentage, completed_items, failed_tasks, failure_counts, task_table, create_time, last_update_time, \
             expiry, delay, without_target, correlation_id, output_pipe, tolerance, retry_policy, task_time_limit) \
             select $1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0, 0, '{{}}', false, $10, $10, $11, $12, $13, $14, $15, $16, $17, $18 \
             from (select {lock}) as locked where true on conflict (partition_id, job_id) do nothing \
             returning incarnation, exists (select 1 from past_life where partition_id = $1 and job_id = $2)"
        ))
        .bind(job.partition.as_str())
        .bind(job.job.as_str())
        .bind(job.first_life)
        .bind(job.name.as_deref())
        .bind(job.description.as_deref())
        .bind(job.external_data.as_deref())
        .bind(&job.content_hash[..])
        .bind(on_failure)
        .bind(job.status.name())
        .bind(job.create_time)
        .bind(expiry)
        .bind(job.delay)
        .bind(job.without_target)
        .bind(job.correlation_id.as_deref())
        .bind(job.output_pipe.as_deref())
        .bind(tolerance)
        .bind(job.retry.as_deref())
        .bind(
            job.task_time_limit
                .map(|limit| i64::from(limit.seconds())),
        );
    db.fetch_first(statement, |row| {
        Ok(NewIncarnation {
            number: row.get(0)?,
            recreates: row.get(1)?,
        })
    })
    .await
}

/// Inserts the first row of the history of a new job, its start message and its definition. Returns whether the store remembers a
/// deleted job with this id.
pub async fn insert_parts(
    db: &mut Session,
    job: &JobRow,
    parts: NewParts<'_>,
) -> Result<bool, DbError> {
    let history = "insert into history (incarnation, time, to_status, actor, reason, round, correlation_id) \
        values ($1, $2, $3, $4, $5, $6, $7)";
    let now = db.dialect().now();
    let outbox = format!(
        "insert into outbox (incarnation, pipe, body, suspended, due_time, headers) \
         values ($1, $8, $9, $10, {now} + $11, $12)"
    );
    let definition = "insert into definition (incarnation, request, pipe, start, headers, prerequisites, suspended) \
        values ($1, $13, $8, $14, $12, $15, $10)";
    let past = "exists (select 1 from past_life where partition_id = $16 and job_id = $17)";
    let text = match db.dialect() {
        Dialect::Postgres => format!(
            "with steps as ({history}), messages as ({outbox}), definitions as ({definition}) select {past}"
        ),
        Dialect::Sqlite => format!("{history}; {outbox}; {definition}; select {past}"),
    };
    let (step, kept) = (parts.step, parts.definition);
    let statement: Statement = db
        .statement(text)
        .bind(job.incarnation)
        .bind(step.time)
        .bind(step.to.name())
        .bind(step.actor.as_str())
        .bind(step.reason.as_str())
        .bind(i32::try_from(step.round).unwrap_or(i32::MAX))
        .bind(step.correlation_id.as_deref())
        .bind(kept.pipe.as_str())
        .bind(parts.start)
        .bind(kept.suspended)
        .bind(parts.due.after.map(millis))
        .bind(write_headers(&kept.headers)?)
        .bind(&kept.request[..])
        .bind(&kept.start[..])
        .bind(serde_json::to_string(&kept.prerequisites)?)
        .bind(job.partition.as_str())
        .bind(job.job.as_str());
    let recreates = db.fetch_first(statement, |row| row.get(0)).await?;
    Ok(recreates.unwrap_or_default())
}
