//! The steps of a transaction that stow tasks and send them on; PostgreSQL and SQLite spell them alike.

use crate::Headers;
use crate::db::DbError;

/// How many rows one statement writes.
pub const ROWS_AT_ONCE: usize = 100;

/// `$now` is the database's own clock, in milliseconds.
macro_rules! parking_steps {
    ($database:ty, $now:literal) => {
        fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a crate::ParkedTask)]) -> DbFuture<'a, ()> {
            Box::pin(async move {
                for rows in tasks.chunks(crate::db::sql::parking::ROWS_AT_ONCE) {
                    let headers = rows.iter().map(|(_, task)| crate::db::sql::parking::written(&task.headers)).collect::<Result<Vec<_>, _>>()?;
                    let mut insert = sqlx::QueryBuilder::<$database>::new("insert into stowed_task (incarnation, pipe, body, headers) ");
                    insert.push_values(rows.iter().zip(headers), |mut values, ((incarnation, task), headers)| {
                        values.push_bind(*incarnation).push_bind(task.pipe.as_str()).push_bind(&task.body[..]).push_bind(headers);
                    });
                    self.execute(insert.build()).await?;
                }
                Ok(())
            })
        }
        fn mark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
            Box::pin(async move {
                let query = sqlx::query(
                    "insert into unstowing (incarnation) select $1 where exists (select 1 from stowed_task where incarnation = $1) \
                     on conflict (incarnation) do nothing",
                );
                Ok(self.execute(query.bind(incarnation)).await? > 0)
            })
        }
        fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
            Box::pin(
                async move { self.execute(sqlx::query("delete from unstowing where incarnation = $1").bind(incarnation)).await.map(drop) },
            )
        }
        fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>> {
            Box::pin(async move {
                let query = sqlx::query(
                    "select partition_id, job_id, incarnation from unstowing join job using (incarnation) order by incarnation limit 1",
                );
                let rows = self.fetch(query).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                Ok(Some((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
            })
        }
        fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
            Box::pin(async move {
                // Nobody else touches the job's stowed tasks, so both statements mean the same ones.
                let query = sqlx::query(concat!(
                    "insert into outbox (incarnation, pipe, body, headers, due_time) select incarnation, pipe, body, headers, ",
                    $now,
                    " from stowed_task where incarnation = $1 order by id limit $2"
                ));
                self.execute(query.bind(incarnation).bind(i64::from(limit))).await?;
                self.drop_parked(incarnation, limit).await
            })
        }
        fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
            Box::pin(async move {
                let query = sqlx::query(
                    "delete from stowed_task where id in (select id from stowed_task where incarnation = $1 order by id limit $2)",
                );
                self.execute(query.bind(incarnation).bind(i64::from(limit))).await
            })
        }
    };
}
pub(crate) use parking_steps;

/// Headers as they are stored; nothing where there are none.
pub fn written(headers: &Headers) -> Result<Option<String>, DbError> {
    if headers.is_empty() {
        Ok(None)
    } else {
        Ok(Some(serde_json::to_string(headers)?))
    }
}

pub fn headers(text: Option<&str>) -> Result<Headers, DbError> {
    Ok(text
        .map(serde_json::from_str)
        .transpose()?
        .unwrap_or_default())
}
