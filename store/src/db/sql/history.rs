//! The table `history`: the transitions of each job.

use contract::JobStatus;

use super::jobs::status;
use super::number;
use super::session::{Row, Session};
use super::statement::json;
use crate::db::{Result, TransitionRow};
use crate::model::Transition;

/// The columns of a transition, in the order in which they are written.
const COLUMNS: &str = "incarnation, time, from_status, to_status, actor, reason, round, correlation_id, prerequisite_id";

/// Adds a transition to the history of a job.
pub async fn append(db: &mut Session, incarnation: i64, transition: &Transition) -> Result<()> {
    db.note_events();
    let statement = db
        .statement(format!(
            "insert into history ({COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        ))
        .bind(incarnation)
        .bind(transition.time)
        .bind(transition.from.map(JobStatus::name))
        .bind(transition.to.name())
        .bind(transition.actor.as_str())
        .bind(transition.reason.as_str())
        .bind(number(transition.round))
        .bind(transition.correlation_id.as_deref())
        .bind(transition.prerequisite.as_deref());
    db.run(statement).await
}

/// Adds transitions to the histories of many jobs.
pub async fn append_all(db: &mut Session, transitions: &[(i64, Transition)]) -> Result<()> {
    db.note_events();
    let rows: Vec<_> = transitions
        .iter()
        .map(|(n, step)| {
            let from = step.from.map(JobStatus::name);
            (
                n,
                step.time,
                from,
                step.to.name(),
                &step.actor,
                &step.reason,
                step.round,
                &step.correlation_id,
                &step.prerequisite,
            )
        })
        .collect();
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "insert into history ({COLUMNS}) \
         select cast(k.value ->> 0 as bigint), cast(k.value ->> 1 as bigint), k.value ->> 2, k.value ->> 3, \
         k.value ->> 4, k.value ->> 5, cast(k.value ->> 6 as integer), k.value ->> 7, k.value ->> 8 from {each}"
    ));
    db.run(statement.bind(json(&rows)?)).await
}

/// Deletes all transitions of a job but the first one and the latest `keep`, and counts them in the
/// first.
pub async fn shorten(db: &mut Session, incarnation: i64, keep: u32) -> Result<()> {
    let delete = db
        .statement(
            "delete from history where incarnation = $1 and from_status is not null and id <= \
             (select id from history where incarnation = $1 order by id desc limit 1 offset $2)",
        )
        .bind(incarnation)
        .bind(i64::from(keep));
    let deleted = db.execute(delete).await?;
    if deleted == 0 {
        return Ok(());
    }
    let count = db
        .statement(
            "update history set left_out = coalesce(left_out, 0) + $2 where incarnation = $1 and from_status is null",
        )
        .bind(incarnation)
        .bind(i64::try_from(deleted).unwrap_or(i64::MAX));
    db.run(count).await
}

/// Returns transitions of a job that follow the one with this id, oldest first.
pub async fn read(
    db: &mut Session,
    incarnation: i64,
    after: i64,
    limit: u32,
) -> Result<Vec<TransitionRow>> {
    let statement = db
        .statement(format!(
            "select id, left_out, {COLUMNS} from history where incarnation = $1 and id > $2 order by id limit $3"
        ))
        .bind(incarnation)
        .bind(after)
        .bind(i64::from(limit));
    db.fetch(statement, read_row).await
}

fn read_row(row: Row<'_>) -> Result<TransitionRow> {
    let from: Option<&str> = row.get("from_status")?;
    let left_out: Option<i64> = row.get("left_out")?;
    let transition = Transition {
        time: row.get("time")?,
        from: from.map(status).transpose()?,
        to: status(row.get("to_status")?)?,
        actor: row.get("actor")?,
        reason: row.get("reason")?,
        round: row.small("round")?,
        correlation_id: row.get("correlation_id")?,
        prerequisite: row.get("prerequisite_id")?,
    };
    Ok(TransitionRow {
        id: row.get("id")?,
        transition,
        left_out: left_out.unwrap_or(0),
    })
}
