//! The table `outbox`: messages for the broker, and announcements.
//!
//! A message has a pipe and a due time. An announcement has neither: it names the job that it
//! announces, and can be claimed at once.
//!
//! What must stay true: a message belongs to one relay at a time, until its lease ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::session::{Row, Session, columns};
use super::statement::{Dialect, Statement, json, singles};
use super::{millis, parking};
use crate::db::{DueTime, LONGEST_LEASE, Result, UnsentStart};
use crate::model::{Announcement, Headers, HeldMessage, OutboxMessage};

/// What a message is read from.
const MESSAGE: &str = "id, pipe, body, headers, incarnation, \
    (select partition_id from job where job.incarnation = outbox.incarnation) as partition_id";
/// The condition of a message that is held. Word for word that of the index.
const IS_HELD: &str = "held_for is not null and not suspended and not paused";
/// The most partitions of which a claim takes messages that are held for a pipe.
const MOST_PARTITIONS: u32 = 16;

columns! { Announcement { id, job: announces } }

/// Returns the messages that are due, oldest first, whether a relay has them or not.
pub async fn due_messages(db: &mut Session, limit: u32) -> Result<Vec<OutboxMessage>> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select due_time, {MESSAGE} from outbox where due_time <= (select {now}) \
         and not suspended and not paused order by due_time, id limit $1"
    ));
    let messages = db
        .fetch(statement.bind(i64::from(limit)), read_message)
        .await?;
    Ok(messages.into_iter().map(|(_, message)| message).collect())
}

/// Returns how many messages are due and announcements there are, and how long the oldest message
/// is due.
pub async fn due(db: &mut Session) -> Result<(u64, Duration)> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select count(*) + (select count(*) from outbox where announces is not null), coalesce({now} - min(due_time), 0) \
         from outbox where due_time <= (select {now}) and held_for is null and not suspended and not paused"
    ));
    let due = db.fetch_first(statement, |row| Ok((row.unsigned(0)?, row.unsigned(1)?)));
    let (count, age) = due.await?.unwrap_or_default();
    Ok((count, Duration::from_millis(age)))
}

/// Returns those of these jobs that have messages in the outbox.
pub async fn unsent_starts(db: &mut Session, incarnations: &[i64]) -> Result<Vec<UnsentStart>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "select o.incarnation, min(o.due_time), count(case when o.suspended then 1 end) from {each} \
         cross join outbox o where o.incarnation = cast(k.value ->> 0 as bigint) group by o.incarnation"
    ));
    db.fetch(statement.bind(singles(incarnations)?), |row| {
        Ok(UnsentStart {
            incarnation: row.get(0)?,
            due_time: row.get(1)?,
            suspended: row.unsigned(2)? > 0,
        })
    })
    .await
}

/// Adds a message of a job, or of none.
pub async fn push(
    db: &mut Session,
    incarnation: Option<i64>,
    pipe: &str,
    body: &[u8],
    headers: &Headers,
    due: DueTime,
) -> Result<()> {
    let now = db.dialect().now();
    let statement = db
        .statement(format!(
            "insert into outbox (incarnation, pipe, body, suspended, due_time, headers) values ($1, $2, $3, $4, {now} + $5, $6)"
        ))
        .bind(incarnation)
        .bind(pipe)
        .bind(body)
        .bind(due.suspended)
        .bind(due.after.map(millis))
        .bind(parking::write_headers(headers)?);
    db.run(statement).await
}

/// Leases the oldest messages that are due, for `lease` milliseconds, and returns them. Stops after
/// the message with which the bodies have at least this number of `bytes`. PostgreSQL skips those
/// that another relay is claiming at the moment.
pub async fn claim(
    db: &mut Session,
    limit: u32,
    bytes: u64,
    lease: u64,
) -> Result<Vec<OutboxMessage>> {
    let now = db.dialect().now();
    // The clock stands in a subquery, so that PostgreSQL can search the index by it.
    let are_due = format!(
        "due_time <= (select {now}) and held_for is null and not suspended and not paused \
         and (leased_until is null or leased_until <= (select {now}))"
    );
    let text = claim_first(db.dialect(), &are_due, "due_time", "");
    let statement = db
        .statement(text)
        .bind(i64::from(limit))
        .bind(millis(lease))
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX));
    let claimed = fetch_claimed(db, statement).await?;
    Ok(claimed.into_iter().map(|(_, message)| message).collect())
}

/// Returns the statement that leases the first messages of which a condition holds, by this column:
/// `$1` of them, for `$2` milliseconds, as long as the bodies before one have less than `$3` bytes.
/// `also` is set with the lease.
fn claim_first(dialect: Dialect, condition: &str, column: &str, also: &str) -> String {
    let now = dialect.now();
    let (length, lock) = match dialect {
        Dialect::Postgres => ("octet_length(body)", "for update skip locked"),
        Dialect::Sqlite => ("length(body)", ""),
    };
    format!(
        "with first as (select id, {column}, {length} as bytes from outbox where {condition} \
         order by {column}, id limit $1 {lock}), \
         few as (select id, sum(bytes) over (order by {column}, id) - bytes as ahead from first) \
         update outbox set leased_until = {now} + $2{also} where id in (select id from few where ahead < $3) \
         returning {column}, {MESSAGE}"
    )
}

/// Runs a statement of [`claim_first`], and returns the messages in their order.
async fn fetch_claimed(
    db: &mut Session,
    statement: Statement,
) -> Result<Vec<(i64, OutboxMessage)>> {
    let mut claimed = db.fetch(statement, read_message).await?;
    claimed.sort_by_key(|(place, message)| (*place, message.id));
    Ok(claimed)
}

/// Holds claimed messages until there is room in their pipes: pairs of an id and a turn.
pub async fn hold(db: &mut Session, turns: &[(i64, i64)]) -> Result<()> {
    let each = db.dialect().each();
    let largest = match db.dialect() {
        Dialect::Postgres => "greatest",
        Dialect::Sqlite => "max",
    };
    let partition =
        "coalesce((select partition_id from job where job.incarnation = outbox.incarnation), '')";
    // A relay that has just started does not know which turns are over.
    let next = format!(
        "coalesce((select min(held.turn) from outbox held where held.held_for is not null \
         and not held.suspended and not held.paused and held.pipe = outbox.pipe and held.held_for = {partition}), 0)"
    );
    let statement = db.statement(format!(
        "update outbox set leased_until = null, turn = {largest}(cast(k.value ->> 1 as bigint), {next}), held_for = {partition} \
         from {each} where outbox.id = cast(k.value ->> 0 as bigint)"
    ));
    db.run(statement.bind(json(turns)?)).await
}

/// Returns the pipes for which messages are held, at most a thousand.
pub async fn held_pipes(db: &mut Session) -> Result<Vec<String>> {
    let statement = db.statement(format!(
        "with recursive p(pipe, n) as (select min(pipe), 1 from outbox where {IS_HELD} union all \
         select (select min(pipe) from outbox where {IS_HELD} and pipe > p.pipe), n + 1 from p \
         where p.pipe is not null and n < 1000) select pipe from p where pipe is not null"
    ));
    db.fetch(statement, |row| row.get(0)).await
}

/// Returns how many messages are held for each pipe, of at most `limit` pipes.
pub async fn count_held(db: &mut Session, limit: u32) -> Result<Vec<(String, u64)>> {
    let statement = db.statement(format!(
        "select pipe, count(*) from outbox where {IS_HELD} group by pipe limit $1"
    ));
    db.fetch(statement.bind(i64::from(limit)), |row| {
        Ok((row.get(0)?, row.unsigned(1)?))
    })
    .await
}

/// Returns partitions for which messages to this pipe are held: those that follow `after`.
pub async fn held_partitions(db: &mut Session, pipe: &str, after: &str) -> Result<Vec<String>> {
    let next = format!("select min(held_for) from outbox where {IS_HELD} and pipe = $1");
    let statement = db.statement(format!(
        "with recursive p(held_for, n) as (select ({next} and held_for > $2), 1 union all \
         select ({next} and held_for > p.held_for), n + 1 from p \
         where p.held_for is not null and n < {MOST_PARTITIONS}) \
         select held_for from p where held_for is not null"
    ));
    db.fetch(statement.bind(pipe).bind(after), |row| row.get(0))
        .await
}

/// Leases messages of a partition that are held for a pipe, in turn, and holds them no longer.
pub async fn claim_held(
    db: &mut Session,
    (pipe, partition): (&str, &str),
    limit: u64,
    bytes: u64,
    lease: u64,
) -> Result<Vec<HeldMessage>> {
    let also = format!(", held_for = null, due_time = {}", db.dialect().now());
    let are_held = format!("{IS_HELD} and pipe = $4 and held_for = $5");
    let text = claim_first(db.dialect(), &are_held, "turn", &also);
    let statement = db
        .statement(text)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let statement = statement
        .bind(millis(lease))
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(pipe)
        .bind(partition);
    let held = |(turn, message)| HeldMessage { turn, message };
    Ok(fetch_claimed(db, statement)
        .await?
        .into_iter()
        .map(held)
        .collect())
}

/// Returns the time until a message can be claimed; `None` if all messages wait for
/// something other than time.
pub async fn next_claim(db: &mut Session) -> Result<Option<Duration>> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select min(due) - {now} from (select min(due_time) as due from outbox where held_for is null and not suspended and not paused \
         and (leased_until is null or leased_until <= (select {now})) union all \
         select min(leased_until) from outbox where leased_until > (select {now}) and held_for is null and not suspended and not paused \
         and announces is null) as times"
    ));
    db.fetch_wait(statement).await
}

/// Adds an announcement of each of these jobs, given as `partition:job`. It is no message of the
/// job: nothing holds it back or deletes it with the job.
pub async fn push_announcements(db: &mut Session, jobs: &[String]) -> Result<()> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into outbox (pipe, body, announces) select '', $2, k.value ->> 0 from {each}"
    ));
    let none: &[u8] = &[];
    db.run(statement.bind(singles(jobs)?).bind(none)).await
}

/// Leases the oldest announcements for `lease` milliseconds, and returns them. PostgreSQL skips
/// those that another relay is claiming at the moment.
pub async fn claim_announcements(
    db: &mut Session,
    limit: u32,
    lease: u64,
) -> Result<Vec<Announcement>> {
    let now = db.dialect().now();
    let lock = db.dialect().lock("for update skip locked");
    let statement = db.statement(format!(
        "update outbox set leased_until = {now} + $2 where id in (select id from outbox \
         where announces is not null and (leased_until is null or leased_until <= (select {now})) \
         order by id limit $1 {lock}) returning {}",
        Announcement::COLUMNS
    ));
    let statement = statement.bind(i64::from(limit)).bind(millis(lease));
    let mut claimed = db.fetch(statement, Announcement::read).await?;
    claimed.sort_by_key(|announcement| announcement.id);
    Ok(claimed)
}

/// Returns the time until an announcement can be claimed; `None` if there is none.
pub async fn next_announcement(db: &mut Session) -> Result<Option<Duration>> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "select min(coalesce(leased_until, 0)) - {now} from outbox where announces is not null"
    ));
    db.fetch_wait(statement).await
}

/// Sets the leases of messages and announcements: pairs of an id and the milliseconds from now.
pub async fn lease(db: &mut Session, leases: &[(i64, u64)]) -> Result<()> {
    let rows: Vec<_> = leases
        .iter()
        .map(|(id, lease)| (id, millis(*lease)))
        .collect();
    let (now, each) = (db.dialect().now(), db.dialect().each());
    let statement = db.statement(format!(
        "update outbox set leased_until = {now} + cast(k.value ->> 1 as bigint) from {each} \
         where outbox.id = cast(k.value ->> 0 as bigint)"
    ));
    db.run(statement.bind(json(&rows)?)).await
}

/// Brings back the due times and leases that are further away than they can be: the clock was set
/// back. Returns how many messages it concerns.
pub async fn bring_back(db: &mut Session) -> Result<u64> {
    let now = db.dialect().now();
    let longest = LONGEST_LEASE.as_millis();
    let ended = db.statement(format!(
        "update outbox set leased_until = null where leased_until > {now} + {longest}"
    ));
    let leases = db.execute(ended).await?;
    let delay =
        "1000 * (select cast(delay as bigint) from job where job.incarnation = outbox.incarnation)";
    let due = db.statement(format!(
        "update outbox set due_time = {now} + {delay} where due_time > {now} + {delay}"
    ));
    Ok(leases + db.execute(due).await?)
}

/// Deletes messages and announcements that the broker has.
pub async fn delete_sent(db: &mut Session, ids: &[i64]) -> Result<()> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "delete from outbox where id in (select cast(k.value ->> 0 as bigint) from {each})"
    ));
    db.run(statement.bind(singles(ids)?)).await
}

/// Holds the messages of a job back, or lets them be claimed again.
pub async fn set_paused(db: &mut Session, incarnation: i64, paused: bool) -> Result<()> {
    let statement = db.statement("update outbox set paused = $2 where incarnation = $1");
    db.run(statement.bind(incarnation).bind(paused)).await
}

/// Ends the suspension of the messages of a partition. Returns how many jobs had some.
pub async fn dispatch_partition(db: &mut Session, partition: &str) -> Result<u64> {
    let statement = db.statement(
        "update outbox set suspended = false where suspended \
         and incarnation in (select incarnation from job where partition_id = $1) returning incarnation",
    );
    let jobs: Vec<i64> = db
        .fetch(statement.bind(partition), |row| row.get(0))
        .await?;
    Ok(jobs.into_iter().collect::<BTreeSet<_>>().len() as u64)
}

fn read_message(row: Row<'_>) -> Result<(i64, OutboxMessage)> {
    let message = OutboxMessage {
        id: row.get(1)?,
        pipe: row.get(2)?,
        body: row.get(3)?,
        headers: row.json(4)?,
        incarnation: row.get(5)?,
        partition: row.get::<Option<String>, _>(6)?.unwrap_or_default(),
    };
    Ok((row.get(0)?, message))
}
