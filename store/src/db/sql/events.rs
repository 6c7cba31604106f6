//! The tables `event` and `swept_events`: what has happened to jobs. There is an event for each row
//! of history, and one for each job that is deleted.
//!
//! Only triggers write the events, so that no version of the service can forget to.
//!
//! What must stay true: an event gets its id while its transaction is open, so that an event with a
//! later id may be seen earlier. [`EventMarks`] says which ids may still appear.

use std::collections::BTreeSet;

use super::jobs::status;
use super::millis;
use super::session::{Row, Session};
use super::statement::Dialect;
use crate::db::{Deletion, JobKey, Result};
use crate::model::{Events, JobEvent};

/// The number of events that one transaction deletes.
const SWEPT: i64 = 10_000;

/// What is known of the ids of events at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventMarks {
    /// The last id that was given to an event. It was read before `writers`.
    pub last: i64,
    /// The open transactions that may have been given ids, by names that no two transactions share.
    pub writers: BTreeSet<String>,
}

/// Returns the first event that happened at this time or later.
pub async fn first_since(db: &mut Session, time: i64) -> Result<Option<i64>> {
    let first = db.statement("select min(id) from event where time >= $1");
    let id = db.fetch_first(first.bind(time), |row| row.get(0)).await?;
    Ok(id.flatten())
}

/// Returns the marks. In PostgreSQL a transaction locks the table before it takes an id, and holds
/// the lock until its rows can be seen; so whoever has taken one of the ids up to `last` is among
/// the holders, which are read afterwards, or has ended. The one writer of SQLite commits its ids
/// in their order.
pub async fn marks(db: &mut Session) -> Result<EventMarks> {
    let last = db.statement(match db.dialect() {
        Dialect::Postgres => {
            "select case when is_called then last_value else 0 end from event_id_seq"
        }
        Dialect::Sqlite => "select seq from sqlite_sequence where name = 'event'",
    });
    let last: Option<i64> = db.fetch_first(last, |row| row.get(0)).await?;
    let writers = match db.dialect() {
        Dialect::Postgres => {
            let holders = db.statement(
                "select virtualtransaction from pg_locks where locktype = 'relation' and relation = 'event'::regclass \
                 and database = (select oid from pg_database where datname = current_database()) \
                 and mode = 'RowExclusiveLock' and granted",
            );
            db.fetch(holders, |row| row.get(0)).await?
        }
        Dialect::Sqlite => Vec::new(),
    };
    Ok(EventMarks {
        last: last.unwrap_or_default(),
        writers: writers.into_iter().collect(),
    })
}

/// Reads the events and what was swept in one statement: a sweep in between would leave a gap that
/// nobody sees.
pub async fn page(
    db: &mut Session,
    partition: Option<&str>,
    after: i64,
    up_to: i64,
    limit: u32,
) -> Result<Events> {
    let of_partition = if partition.is_some() {
        "and partition_id = $4"
    } else {
        ""
    };
    let statement = db
        .statement(format!(
            "select up_to, e.* from swept_events left join (select * from event where id > $1 and id <= $2 {of_partition} \
             order by id limit $3) as e on true order by e.id"
        ))
        .bind(after)
        .bind(up_to)
        .bind(i64::from(limit));
    let statement = match partition {
        Some(partition) => statement.bind(partition),
        None => statement,
    };
    let rows = db
        .fetch(statement, |row| Ok((row.get::<i64, _>(0)?, event(row)?)))
        .await?;
    Ok(Events {
        swept: rows.first().map_or(0, |(swept, _)| *swept),
        events: rows.into_iter().filter_map(|(_, event)| event).collect(),
    })
}

fn event(row: Row<'_>) -> Result<Option<JobEvent>> {
    let Some(id) = row.get("id")? else {
        return Ok(None);
    };
    let (from, to): (Option<&str>, Option<&str>) = (row.get("from_status")?, row.get("to_status")?);
    Ok(Some(JobEvent {
        id,
        time: row.get("time")?,
        partition: row.get("partition_id")?,
        job: row.get("job_id")?,
        from: from.map(status).transpose()?,
        to: to.map(status).transpose()?,
        round: row.small("round")?,
        actor: row.get("actor")?,
        reason: row.get("reason")?,
        correlation_id: row.get("correlation_id")?,
        prerequisite: row.get("prerequisite_id")?,
    }))
}

/// Completes the event of a job that this transaction has just deleted: its trigger knows neither
/// who nor why. It is the latest event of the job.
pub async fn complete_deletion(
    db: &mut Session,
    (partition, job): &JobKey,
    why: Deletion<'_>,
) -> Result<()> {
    db.note_events();
    let latest = match db.dialect() {
        // The last id that was given in this session.
        Dialect::Postgres => "(select currval('event_id_seq'))",
        Dialect::Sqlite => "(select max(id) from event)",
    };
    let update = db
        .statement(format!(
            "update event set actor = $3, reason = $4, correlation_id = $5 \
             where id = {latest} and partition_id = $1 and job_id = $2 and to_status is null"
        ))
        .bind(partition.as_str())
        .bind(job.as_str())
        .bind(why.actor)
        .bind(why.reason)
        .bind(why.correlation_id);
    db.run(update).await
}

/// Deletes the oldest events that are older than this many milliseconds, or more than `most`.
/// Returns whether there may be more of them.
pub async fn sweep(db: &mut Session, older_than: u64, most: u64) -> Result<bool> {
    let now = db.dialect().now();
    let lock = match db.dialect() {
        // Another sweeper does it.
        Dialect::Postgres => "for update skip locked",
        Dialect::Sqlite => "",
    };
    let is_due = format!("time <= {now} - $1 or id <= (select max(id) from event) - $2");
    let (older_than, most) = (millis(older_than), i64::try_from(most).unwrap_or(i64::MAX));
    // Most sweeps find nothing, which the oldest event shows.
    let swept = db
        .statement(format!(
            "select up_to from swept_events where (select {is_due} from event where id > up_to order by id limit 1) {lock}"
        ))
        .bind(older_than)
        .bind(most);
    let Some(swept) = db.fetch_first(swept, |row| row.get::<i64, _>(0)).await? else {
        return Ok(false);
    };
    let due = db
        .statement(format!(
            "select count(*), max(case when {is_due} then id end) \
             from (select id, time from event where id > $3 order by id limit {SWEPT}) as oldest"
        ))
        .bind(older_than)
        .bind(most)
        .bind(swept);
    let due = db
        .fetch_first(due, |row| {
            Ok((row.get::<i64, _>(0)?, row.get::<Option<i64>, _>(1)?))
        })
        .await?;
    let Some((seen, Some(up_to))) = due else {
        return Ok(false);
    };
    let delete = db.statement("delete from event where id <= $1").bind(up_to);
    let deleted = db.execute(delete).await?;
    let update = db
        .statement("update swept_events set up_to = $1")
        .bind(up_to);
    db.execute(update).await?;
    Ok(seen == SWEPT && deleted >= SWEPT.unsigned_abs())
}
