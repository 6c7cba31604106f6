//! What PostgreSQL and SQLite have in common: how rows are read, what errors mean, and the steps that are spelled alike.
//!
//! The macros are expanded in `postgres.rs` and `sqlite.rs`, where `sqlx::query` takes on the database's types. There the type
//! has the methods `execute(query)`, which answers how many rows it touched, and `fetch(query)`, which answers the rows.

pub mod job_query;
pub mod parking;
pub mod scheduling;

use crate::db::DbError;

/// The columns of a job, in every statement that reads one with `read_job!`.
macro_rules! job_columns {
    () => {
        "incarnation, partition_id, job_id, first_life, name, description, external_data, content_hash, on_failure, status, \
         percentage, completed_items, failed_tasks, failure_counts, own_task, delay, task_table, create_time, last_update_time, finish_time, \
         expiry, expiry_time, without_target"
    };
}
pub(crate) use job_columns;

/// The columns of a row of a task table.
pub const NODE_COLUMNS: &str = "path, chunk, size, top, done_count, failed_count, kept, counted, percent, flags, items, \
    open_sum, done, failed, attempts, since, detail";

/// What to do where a row of a task table is there already.
pub const NODE_UPDATE: &str = "on conflict (path, chunk) do update set size = excluded.size, top = excluded.top, \
    done_count = excluded.done_count, failed_count = excluded.failed_count, kept = excluded.kept, counted = excluded.counted, \
    percent = excluded.percent, flags = excluded.flags, items = excluded.items, open_sum = excluded.open_sum, \
    done = excluded.done, failed = excluded.failed, attempts = excluded.attempts, since = excluded.since, \
    detail = excluded.detail";

macro_rules! read_job {
    ($row:expr) => {{
        let row = $row;
        let own_task: Option<String> = row.try_get("own_task")?;
        let expiry: Option<String> = row.try_get("expiry")?;
        let on_failure: String = row.try_get("on_failure")?;
        let totals = crate::ledger::JobTotals {
            on_failure: if on_failure == "continue" {
                contract::OnFailure::Continue
            } else {
                contract::OnFailure::Stop
            },
            percentage: row.try_get("percentage")?,
            completed_items: row.try_get("completed_items")?,
            failed_tasks: row.try_get("failed_tasks")?,
            failure_counts: serde_json::from_str(row.try_get("failure_counts")?)?,
            own_task: own_task.as_deref().map(serde_json::from_str).transpose()?,
        };
        crate::db::JobRow {
            partition: crate::db::sql::partition_id(row.try_get("partition_id")?)?,
            job: crate::db::sql::job_id(row.try_get("job_id")?)?,
            incarnation: row.try_get("incarnation")?,
            first_life: row.try_get("first_life")?,
            name: row.try_get("name")?,
            description: row.try_get("description")?,
            external_data: row.try_get("external_data")?,
            content_hash: row.try_get("content_hash")?,
            status: crate::db::sql::status(row.try_get("status")?)?,
            totals,
            delay: row.try_get("delay")?,
            task_table: row.try_get("task_table")?,
            create_time: row.try_get("create_time")?,
            last_update_time: row.try_get("last_update_time")?,
            finish_time: row.try_get("finish_time")?,
            expiry: expiry
                .as_deref()
                .map(serde_json::from_str)
                .transpose()?
                .unwrap_or_default(),
            expiry_time: row.try_get("expiry_time")?,
            without_target: row.try_get("without_target")?,
        }
    }};
}
pub(crate) use read_job;

macro_rules! read_node {
    ($row:expr) => {{
        let row = $row;
        crate::ledger::NodeRow {
            path: row.try_get(0)?,
            chunk: row.try_get(1)?,
            size: row.try_get(2)?,
            top: row.try_get(3)?,
            done_count: row.try_get(4)?,
            failed_count: row.try_get(5)?,
            kept: row.try_get(6)?,
            counted: row.try_get(7)?,
            percent: row.try_get(8)?,
            flags: row.try_get(9)?,
            items: row.try_get(10)?,
            open_sum: row.try_get(11)?,
            done: row.try_get(12)?,
            failed: row.try_get(13)?,
            attempts: row.try_get(14)?,
            since: row.try_get(15)?,
            detail: row.try_get(16)?,
        }
    }};
}
pub(crate) use read_node;

macro_rules! read_failure {
    ($row:expr) => {{
        let row = $row;
        crate::ledger::KeptFailure {
            path: row.try_get("path")?,
            since: row.try_get("since")?,
            attempts: row.try_get("attempts")?,
            failure: serde_json::from_str(row.try_get("failure")?)?,
        }
    }};
}
pub(crate) use read_failure;

macro_rules! read_transition {
    ($row:expr) => {{
        let row = $row;
        let from: Option<String> = row.try_get("from_status")?;
        crate::Transition {
            time: row.try_get("time")?,
            from: from.as_deref().map(crate::db::sql::status).transpose()?,
            to: crate::db::sql::status(row.try_get("to_status")?)?,
            actor: row.try_get("actor")?,
            reason: row.try_get("reason")?,
        }
    }};
}
pub(crate) use read_transition;

/// The steps of a transaction that both databases spell alike; `$now` is their own clock, in milliseconds.
macro_rules! common_steps {
    ($now:literal) => {
        fn insert_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, Option<i64>> {
            Box::pin(async move {
                let expiry = if job.expiry.is_empty() { None } else { Some(serde_json::to_string(&job.expiry)?) };
                let query = sqlx::query(
                    "insert into job (partition_id, job_id, first_life, name, description, external_data, content_hash, on_failure, \
                     status, percentage, completed_items, failed_tasks, failure_counts, task_table, create_time, last_update_time, \
                     expiry, delay, without_target) \
                     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0, 0, '{}', false, $10, $10, $11, $12, $13) \
                     on conflict (partition_id, job_id) do nothing returning incarnation",
                )
                .bind(job.partition.as_str())
                .bind(job.job.as_str())
                .bind(job.first_life)
                .bind(job.name.as_deref())
                .bind(job.description.as_deref())
                .bind(job.external_data.as_deref())
                .bind(&job.content_hash[..])
                .bind(job.totals.on_failure.name())
                .bind(job.status.name())
                .bind(job.create_time)
                .bind(expiry)
                .bind(job.delay)
                .bind(job.without_target);
                let rows = self.fetch(query).await?;
                Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
            })
        }
        fn save_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let own_task = job.totals.own_task.as_ref().map(serde_json::to_string).transpose()?;
                let query = sqlx::query(
                    "update job set status = $2, percentage = $3, completed_items = $4, failed_tasks = $5, failure_counts = $6, \
                     own_task = $7, task_table = $8, last_update_time = $9, finish_time = $10, expiry_time = $11 \
                     where incarnation = $1",
                )
                .bind(job.incarnation)
                .bind(job.status.name())
                .bind(job.totals.percentage)
                .bind(job.totals.completed_items)
                .bind(job.totals.failed_tasks)
                .bind(serde_json::to_string(&job.totals.failure_counts)?)
                .bind(own_task)
                .bind(job.task_table)
                .bind(job.last_update_time)
                .bind(job.finish_time)
                .bind(job.expiry_time);
                self.execute(query).await.map(drop)
            })
        }
        fn delete_job(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
            // Labels, failures, history and outbox go with it.
            Box::pin(async move { self.execute(sqlx::query("delete from job where incarnation = $1").bind(incarnation)).await.map(drop) })
        }
        fn insert_labels<'a>(&'a mut self, incarnation: i64, labels: &'a BTreeMap<String, Option<String>>) -> DbFuture<'a, ()> {
            Box::pin(async move {
                for (name, value) in labels {
                    let query = sqlx::query("insert into label (incarnation, name, value) values ($1, $2, $3)");
                    self.execute(query.bind(incarnation).bind(name.as_str()).bind(value.as_deref())).await?;
                }
                Ok(())
            })
        }
        fn insert_samples<'a>(&'a mut self, partition: &'a str, count: u32) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let jobs = sqlx::query(crate::db::samples::INSERT_JOBS).bind(partition).bind(i64::from(count)).bind(&[0_u8; 32][..]);
                self.execute(jobs).await?;
                self.execute(sqlx::query(crate::db::samples::INSERT_LABELS).bind(partition)).await?;
                // What a server would do by itself before long: its plans depend on it.
                self.execute(sqlx::query("analyze job")).await?;
                self.execute(sqlx::query("analyze label")).await.map(drop)
            })
        }
        fn append_history<'a>(&'a mut self, incarnation: i64, transition: &'a Transition) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(
                    "insert into history (incarnation, time, from_status, to_status, actor, reason) values ($1, $2, $3, $4, $5, $6)",
                )
                .bind(incarnation)
                .bind(transition.time)
                .bind(transition.from.map(contract::JobStatus::name))
                .bind(transition.to.name())
                .bind(transition.actor.as_str())
                .bind(transition.reason.as_str());
                self.execute(query).await.map(drop)
            })
        }

        fn has_past_incarnation<'a>(&'a mut self, partition: &'a str, job: &'a str) -> DbFuture<'a, bool> {
            Box::pin(async move {
                let query = sqlx::query("select 1 from past_life where partition_id = $1 and job_id = $2 limit 1");
                Ok(!self.fetch(query.bind(partition).bind(job)).await?.is_empty())
            })
        }
        fn mark_recreated(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
            Box::pin(async move {
                let query = sqlx::query("update job set first_life = false where incarnation = $1");
                self.execute(query.bind(incarnation)).await.map(drop)
            })
        }
        fn remember_incarnation<'a>(&'a mut self, partition: &'a str, job: &'a str, incarnation: i64) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into past_life (partition_id, job_id, incarnation, deleted_at) values ($1, $2, $3, ",
                    $now,
                    ")"
                ));
                self.execute(query.bind(partition).bind(job).bind(incarnation)).await.map(drop)
            })
        }
        fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "delete from past_life where (partition_id, job_id, incarnation) in (select partition_id, job_id, incarnation \
                     from past_life where deleted_at <= ",
                    $now,
                    " - $1 order by deleted_at limit 1000)"
                ));
                self.execute(query.bind(crate::db::sql::millis(older_than))).await.map(drop)
            })
        }

        fn kept_failures(&mut self, incarnation: i64) -> DbFuture<'_, HashMap<String, String>> {
            Box::pin(async move {
                let query = sqlx::query("select path, since, attempts, failure from failure where incarnation = $1");
                let mut kinds = HashMap::new();
                for row in &self.fetch(query.bind(incarnation)).await? {
                    let kept = read_failure!(row);
                    kinds.insert(kept.path, kept.failure.failure_id.unwrap_or_else(|| UNNAMED_FAILURE.to_owned()));
                }
                Ok(kinds)
            })
        }
        fn change_failures<'a>(&'a mut self, incarnation: i64, new: &'a [KeptFailure], gone: &'a [String]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                for path in gone {
                    let query = sqlx::query("delete from failure where incarnation = $1 and path = $2");
                    self.execute(query.bind(incarnation).bind(path.as_str())).await?;
                }
                for kept in new {
                    let query = sqlx::query(
                        "insert into failure (incarnation, path, since, attempts, failure) values ($1, $2, $3, $4, $5) \
                         on conflict (incarnation, path) do update set since = excluded.since, attempts = excluded.attempts, \
                         failure = excluded.failure",
                    );
                    let failure = serde_json::to_string(&kept.failure)?;
                    let query = query.bind(incarnation).bind(kept.path.as_str()).bind(kept.since).bind(kept.attempts);
                    self.execute(query.bind(failure)).await?;
                }
                Ok(())
            })
        }

        fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into retired_table (incarnation, droppable_at) values ($1, ",
                    $now,
                    " + $2) on conflict (incarnation) do update set droppable_at = \
                     case when excluded.droppable_at < retired_table.droppable_at then excluded.droppable_at \
                     else retired_table.droppable_at end"
                ));
                self.execute(query.bind(incarnation).bind(crate::db::sql::millis(delay))).await.map(drop)
            })
        }
        fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select partition_id, job_id, expiry_time from job where expiry_time <= ",
                    $now,
                    " order by expiry_time limit $1"
                ));
                let mut due = Vec::new();
                for row in &self.fetch(query.bind(i64::from(limit))).await? {
                    due.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
                }
                Ok(due)
            })
        }
        fn next_due(&mut self, lives_kept: u64) -> DbFuture<'_, Option<u64>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select min(due) - ",
                    $now,
                    " from (select min(droppable_at) as due from retired_table \
                     union all select min(expiry_time) from job where expiry_time is not null \
                     union all select min(deleted_at) + $1 from past_life) as things"
                ));
                let rows = self.fetch(query.bind(crate::db::sql::millis(lives_kept))).await?;
                let left: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
                Ok(left.map(|left| u64::try_from(left).unwrap_or(0)))
            })
        }
    };
}
pub(crate) use common_steps;

/// A span of time as the databases count it; no longer than makes sense to add to a time.
pub fn millis(span: u64) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

pub fn partition_id(text: &str) -> Result<contract::PartitionId, DbError> {
    contract::PartitionId::parse(text)
        .map_err(|error| DbError::Refused(format!("the stored partition {text:?}: {error}").into()))
}

pub fn job_id(text: &str) -> Result<contract::JobId, DbError> {
    contract::JobId::parse(text)
        .map_err(|error| DbError::Refused(format!("the stored job {text:?}: {error}").into()))
}

pub fn status(text: &str) -> Result<contract::JobStatus, DbError> {
    contract::JobStatus::from_name(text)
        .ok_or_else(|| DbError::Refused(format!("the stored status {text:?} is none").into()))
}
