//! When jobs start, in PostgreSQL: any number of relays and creations at a time.

use contract::{JobStatus, ReportFailure};
use sqlx::Row as _;

use super::{PostgresBackend, PostgresTransaction};
use crate::db::scheduling::{DueTime, JobKey, Scheduling, SchedulingReads, UnsentStart, Wait};
use crate::db::sql::scheduling::{rows, scheduling_reads, scheduling_steps};
use crate::db::{DbFuture, JobRow};
use crate::ledger::KeptFailure;
use crate::{OutboxMessage, Transition};

impl SchedulingReads for PostgresBackend {
    scheduling_reads!(
        "(extract(epoch from clock_timestamp()) * 1000)::bigint",
        "jsonb_array_elements($1::jsonb) as k(value)"
    );
}

impl Scheduling for PostgresTransaction {
    scheduling_steps!(
        "(extract(epoch from clock_timestamp()) * 1000)::bigint",
        "jsonb_array_elements($1::jsonb) as k(value)"
    );

    fn lock_creations<'a>(&'a mut self, partition: &'a str, shared: bool) -> DbFuture<'a, ()> {
        let lock = if shared {
            "select pg_advisory_xact_lock_shared(hashtextextended($1, 2))"
        } else {
            "select pg_advisory_xact_lock(hashtextextended($1, 2))"
        };
        Box::pin(async move {
            self.execute(sqlx::query(lock).bind(partition))
                .await
                .map(drop)
        })
    }
    fn claim_outbox(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(async move {
            // What another relay is just claiming is passed over. The clock stands in a subquery: an index can be searched by it.
            let query = sqlx::query(
                "with due as (select id from outbox where due_time <= (select (extract(epoch from clock_timestamp()) * 1000)::bigint) \
                 and not suspended and not paused \
                 and (leased_until is null or leased_until <= (select (extract(epoch from clock_timestamp()) * 1000)::bigint)) \
                 order by due_time, id limit $1 for update skip locked) \
                 update outbox set leased_until = (extract(epoch from clock_timestamp()) * 1000)::bigint + $2 \
                 from due where outbox.id = due.id returning outbox.due_time, outbox.id, pipe, body, headers",
            );
            let mut claimed = Vec::new();
            for row in &self
                .fetch(
                    query
                        .bind(i64::from(limit))
                        .bind(crate::db::sql::millis(lease)),
                )
                .await?
            {
                let due: i64 = row.try_get(0)?;
                let headers = crate::db::sql::parking::headers(row.try_get(4)?)?;
                claimed.push((
                    due,
                    OutboxMessage {
                        id: row.try_get(1)?,
                        pipe: row.try_get(2)?,
                        body: row.try_get(3)?,
                        headers,
                    },
                ));
            }
            claimed.sort_by_key(|(due, message)| (*due, message.id));
            Ok(claimed.into_iter().map(|(_, message)| message).collect())
        })
    }
}
