//! The table `tracking_shards`.

use super::session::Session;
use crate::db::Result;

/// Returns over how many shards of a tracking pipe jobs have been spread at the most, if that
/// is noted.
pub async fn find(db: &mut Session, pipe: &str) -> Result<Option<i32>> {
    let statement = db.statement("select shards from tracking_shards where pipe = $1");
    db.fetch_first(statement.bind(pipe), |row| row.get(0)).await
}

/// Notes that jobs are spread over so many shards of a tracking pipe, unless they have been
/// over as many. Returns whether that is new.
pub async fn raise(db: &mut Session, pipe: &str, shards: i32) -> Result<bool> {
    let statement = db.statement(
        "insert into tracking_shards (pipe, shards) values ($1, $2) on conflict (pipe) \
         do update set shards = excluded.shards where tracking_shards.shards < excluded.shards returning 1",
    );
    db.finds(statement.bind(pipe).bind(shards)).await
}
