//! When jobs start, in SQLite: the one writer has every lock.

use contract::{JobStatus, ReportFailure};
use sqlx::Row as _;

use super::{SqliteBackend, SqliteTransaction};
use crate::db::scheduling::{DueTime, JobKey, Scheduling, SchedulingReads, UnsentStart, Wait};
use crate::db::sql::scheduling::{rows, scheduling_reads, scheduling_steps};
use crate::db::{DbFuture, JobRow};
use crate::ledger::KeptFailure;
use crate::{OutboxMessage, Transition};

impl SchedulingReads for SqliteBackend {
    scheduling_reads!(
        "cast(unixepoch('subsec') * 1000 as integer)",
        "json_each($1) as k"
    );
}

impl Scheduling for SqliteTransaction {
    scheduling_steps!(
        "cast(unixepoch('subsec') * 1000 as integer)",
        "json_each($1) as k"
    );

    fn lock_creations<'a>(&'a mut self, _partition: &'a str, _shared: bool) -> DbFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn claim_outbox(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(async move {
            let query = sqlx::query(
                "update outbox set leased_until = cast(unixepoch('subsec') * 1000 as integer) + $2 where id in (\
                 select id from outbox where due_time <= cast(unixepoch('subsec') * 1000 as integer) \
                 and not suspended and not paused \
                 and (leased_until is null or leased_until <= cast(unixepoch('subsec') * 1000 as integer)) \
                 order by due_time, id limit $1) returning due_time, id, pipe, body, headers",
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
