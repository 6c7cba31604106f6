//! The table `curve`: how the items of each job ended over time.

use super::session::Session;
use crate::db::Result;

/// Appends points to the curve of a job.
pub async fn extend(db: &mut Session, incarnation: i64, points: &str) -> Result<()> {
    let statement = db
        .statement(
            "insert into curve (incarnation, points) values ($1, $2) \
             on conflict (incarnation) do update set points = curve.points || excluded.points",
        )
        .bind(incarnation)
        .bind(points);
    db.run(statement).await
}

/// Replaces the points of the curve of a job.
pub async fn replace(db: &mut Session, incarnation: i64, points: &str) -> Result<()> {
    let statement = db.statement("update curve set points = $2 where incarnation = $1");
    db.run(statement.bind(incarnation).bind(points)).await
}

/// Returns the points of the curve of a job.
pub async fn find(db: &mut Session, incarnation: i64) -> Result<Option<String>> {
    let statement = db.statement("select points from curve where incarnation = $1");
    db.fetch_first(statement.bind(incarnation), |row| row.get(0))
        .await
}
