//! The steps of `db::scheduling` that both databases spell alike.
//!
//! Lists go to the database as one JSON text: an array of arrays, of which a statement reads `k.value ->> 0`, `k.value ->> 1`, …
//! `$each` is the database's way to take it apart, `$now` its clock in milliseconds.

use crate::db::DbError;

pub fn rows<T: serde::Serialize>(rows: impl Iterator<Item = T>) -> Result<String, DbError> {
    Ok(serde_json::to_string(&rows.collect::<Vec<_>>())?)
}

macro_rules! scheduling_reads {
    ($now:literal, $each:literal) => {
        fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select id, pipe, body, headers from outbox where due_time <= (select ",
                    $now,
                    ") and not suspended and not paused order by due_time, id limit $1"
                ));
                let mut messages = Vec::new();
                for row in &self.fetch(query.bind(i64::from(limit))).await? {
                    let headers = crate::db::sql::parking::headers(row.try_get(3)?)?;
                    messages.push(OutboxMessage { id: row.try_get(0)?, pipe: row.try_get(1)?, body: row.try_get(2)?, headers });
                }
                Ok(messages)
            })
        }
        fn prerequisites<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, String, Option<JobStatus>)>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select p.incarnation, p.prerequisite_id, j.status from ",
                    $each,
                    " cross join prerequisite p left join job j on j.partition_id = p.partition_id and j.job_id = p.prerequisite_id \
                     where p.incarnation = cast(k.value ->> 0 as bigint) order by p.incarnation, p.prerequisite_id"
                ));
                let mut found = Vec::new();
                for row in &self.fetch(query.bind(rows(incarnations.iter().map(|n| (n,)))?)).await? {
                    let status: Option<String> = row.try_get(2)?;
                    found.push((row.try_get(0)?, row.try_get(1)?, status.as_deref().map(crate::db::sql::status).transpose()?));
                }
                Ok(found)
            })
        }
        fn unsent_starts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<UnsentStart>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select o.incarnation, min(o.due_time), count(case when o.suspended then 1 end) from ",
                    $each,
                    " cross join outbox o where o.incarnation = cast(k.value ->> 0 as bigint) group by o.incarnation"
                ));
                let mut found = Vec::new();
                for row in &self.fetch(query.bind(rows(incarnations.iter().map(|n| (n,)))?)).await? {
                    let suspended: i64 = row.try_get(2)?;
                    found.push(UnsentStart { incarnation: row.try_get(0)?, due_time: row.try_get(1)?, suspended: suspended > 0 });
                }
                Ok(found)
            })
        }
    };
}
pub(crate) use scheduling_reads;

macro_rules! scheduling_steps {
    ($now:literal, $each:literal) => {
        fn push_outbox<'a>(&'a mut self, incarnation: i64, pipe: &'a str, body: &'a [u8], due: DueTime) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into outbox (incarnation, pipe, body, suspended, due_time) values ($1, $2, $3, $4, ",
                    $now,
                    " + $5)"
                ));
                let after = due.after.map(crate::db::sql::millis);
                self.execute(query.bind(incarnation).bind(pipe).bind(body).bind(due.suspended).bind(after)).await.map(drop)
            })
        }
        fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "select min(due) - ",
                    $now,
                    " from (select min(due_time) as due from outbox where not suspended and not paused \
                     and (leased_until is null or leased_until <= (select ",
                    $now,
                    ")) union all select min(leased_until) from outbox where leased_until > (select ",
                    $now,
                    ") and not suspended and not paused) as times"
                ));
                let rows = self.fetch(query).await?;
                let left: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
                Ok(left.map(|left| u64::try_from(left).unwrap_or(0)))
            })
        }
        fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "update outbox set leased_until = ",
                    $now,
                    " + cast(k.value ->> 1 as bigint) from ",
                    $each,
                    " where outbox.id = cast(k.value ->> 0 as bigint)"
                ));
                let leases = leases.iter().map(|(id, lease)| (id, crate::db::sql::millis(*lease)));
                self.execute(query.bind(rows(leases)?)).await.map(drop)
            })
        }
        fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!("delete from outbox where id in (select cast(k.value ->> 0 as bigint) from ", $each, ")"));
                self.execute(query.bind(rows(ids.iter().map(|id| (id,)))?)).await.map(drop)
            })
        }
        fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()> {
            Box::pin(async move {
                let query = sqlx::query("update outbox set paused = $2 where incarnation = $1");
                self.execute(query.bind(incarnation).bind(paused)).await.map(drop)
            })
        }
        fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64> {
            Box::pin(async move {
                let query = sqlx::query(
                    "update outbox set suspended = false where suspended \
                     and incarnation in (select incarnation from job where partition_id = $1) returning incarnation",
                );
                let mut jobs = std::collections::BTreeSet::new();
                for row in &self.fetch(query.bind(partition)).await? {
                    jobs.insert(row.try_get::<i64, _>(0)?);
                }
                Ok(jobs.len() as u64)
            })
        }

        fn insert_prerequisites<'a>(&'a mut self, job: &'a JobRow, prerequisites: &'a [String]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into prerequisite (incarnation, partition_id, job_id, prerequisite_id) \
                     select $2, $3, $4, k.value ->> 0 from ",
                    $each
                ));
                let query = query.bind(rows(prerequisites.iter().map(|id| (id,)))?).bind(job.incarnation);
                self.execute(query.bind(job.partition.as_str()).bind(job.job.as_str())).await.map(drop)
            })
        }
        fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Wait>> {
            Box::pin(async move {
                let direct = concat!(
                    "select p.partition_id, p.job_id, p.incarnation, p.prerequisite_id from ",
                    $each,
                    " cross join prerequisite p where p.partition_id = k.value ->> 0 and p.prerequisite_id = k.value ->> 1"
                );
                let recursive = concat!(
                    "with recursive waiting (partition_id, job_id, incarnation, prerequisite_id) as (\
                     select p.partition_id, p.job_id, p.incarnation, p.prerequisite_id from ",
                    $each,
                    " cross join prerequisite p where p.partition_id = k.value ->> 0 and p.prerequisite_id = k.value ->> 1 union \
                     select p.partition_id, p.job_id, p.incarnation, p.prerequisite_id from waiting w \
                     join prerequisite p on p.partition_id = w.partition_id and p.prerequisite_id = w.job_id) \
                     select partition_id, job_id, incarnation, prerequisite_id from waiting"
                );
                let query = sqlx::query(if all { recursive } else { direct });
                let mut waits = Vec::new();
                for row in &self.fetch(query.bind(rows(of.iter())?)).await? {
                    waits.push(Wait {
                        partition: row.try_get(0)?,
                        job: row.try_get(1)?,
                        incarnation: row.try_get(2)?,
                        prerequisite: row.try_get(3)?,
                    });
                }
                Ok(waits)
            })
        }
        fn prerequisite_edges<'a>(&'a mut self, partition: &'a str, jobs: &'a [String]) -> DbFuture<'a, Vec<(String, String)>> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "with recursive way (job_id, prerequisite_id) as (select p.job_id, p.prerequisite_id from ",
                    $each,
                    " cross join prerequisite p where p.partition_id = $2 and p.job_id = k.value ->> 0 union \
                     select p.job_id, p.prerequisite_id from way w join prerequisite p \
                     on p.partition_id = $2 and p.job_id = w.prerequisite_id) select job_id, prerequisite_id from way"
                ));
                let mut ways = Vec::new();
                for row in &self.fetch(query.bind(rows(jobs.iter().map(|id| (id,)))?).bind(partition)).await? {
                    ways.push((row.try_get(0)?, row.try_get(1)?));
                }
                Ok(ways)
            })
        }
        fn release<'a>(&'a mut self, completed: &'a [JobKey], waiting: &'a [i64]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "delete from prerequisite where (partition_id, prerequisite_id) in (select k.value ->> 0, k.value ->> 1 from ",
                    $each,
                    ")"
                ));
                self.execute(query.bind(rows(completed.iter())?)).await?;
                let query = sqlx::query(concat!(
                    "update outbox set due_time = ",
                    $now,
                    " + 1000 * (select delay from job where job.incarnation = outbox.incarnation) where due_time is null \
                     and incarnation in (select cast(k.value ->> 0 as bigint) from ",
                    $each,
                    ") and not exists (select 1 from prerequisite p where p.incarnation = outbox.incarnation)"
                ));
                self.execute(query.bind(rows(waiting.iter().map(|n| (n,)))?)).await.map(drop)
            })
        }
        fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let list = rows(incarnations.iter().map(|n| (n,)))?;
                let outbox = concat!("delete from outbox where incarnation in (select cast(k.value ->> 0 as bigint) from ", $each, ")");
                let prerequisites =
                    concat!("delete from prerequisite where incarnation in (select cast(k.value ->> 0 as bigint) from ", $each, ")");
                self.execute(sqlx::query(outbox).bind(list.as_str())).await?;
                self.execute(sqlx::query(prerequisites).bind(list.as_str())).await.map(drop)
            })
        }

        fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>> {
            Box::pin(async move {
                let query = sqlx::query("select failure from failure where incarnation = $1 order by since, path limit 1");
                let found = self.fetch(query.bind(incarnation)).await?;
                let Some(row) = found.first() else { return Ok(None) };
                Ok(Some(serde_json::from_str(row.try_get(0)?)?))
            })
        }
        fn save_ended<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "update job set status = k.value ->> 1, failed_tasks = cast(k.value ->> 2 as bigint), \
                     failure_counts = k.value ->> 3, last_update_time = cast(k.value ->> 4 as bigint), \
                     finish_time = cast(k.value ->> 5 as bigint), expiry_time = cast(k.value ->> 6 as bigint) from ",
                    $each,
                    " where job.incarnation = cast(k.value ->> 0 as bigint)"
                ));
                let mut list = Vec::with_capacity(jobs.len());
                for job in jobs {
                    let counts = serde_json::to_string(&job.totals.failure_counts)?;
                    let status = job.status.name();
                    let times = (job.last_update_time, job.finish_time, job.expiry_time);
                    list.push((job.incarnation, status, job.totals.failed_tasks, counts, times.0, times.1, times.2));
                }
                self.execute(query.bind(rows(list.iter())?)).await.map(drop)
            })
        }
        fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into history (incarnation, time, from_status, to_status, actor, reason) \
                     select cast(k.value ->> 0 as bigint), cast(k.value ->> 1 as bigint), k.value ->> 2, k.value ->> 3, \
                     k.value ->> 4, k.value ->> 5 from ",
                    $each
                ));
                let list =
                    steps.iter().map(|(n, step)| (n, step.time, step.from.map(JobStatus::name), step.to.name(), &step.actor, &step.reason));
                self.execute(query.bind(rows(list)?)).await.map(drop)
            })
        }
        fn insert_failures<'a>(&'a mut self, failures: &'a [(i64, KeptFailure)]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                let query = sqlx::query(concat!(
                    "insert into failure (incarnation, path, since, attempts, failure) \
                     select cast(k.value ->> 0 as bigint), k.value ->> 1, cast(k.value ->> 2 as bigint), \
                     cast(k.value ->> 3 as integer), k.value ->> 4 from ",
                    $each,
                    " where true on conflict (incarnation, path) do nothing"
                ));
                let mut list = Vec::with_capacity(failures.len());
                for (n, kept) in failures {
                    list.push((n, &kept.path, kept.since, kept.attempts, serde_json::to_string(&kept.failure)?));
                }
                self.execute(query.bind(rows(list.iter())?)).await.map(drop)
            })
        }
    };
}
pub(crate) use scheduling_steps;
