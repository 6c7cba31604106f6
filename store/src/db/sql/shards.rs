//! The table `tracking_shards`.

use super::SqlBackend;
use super::session::Session;
use crate::db::shards::ShardReads;
use crate::db::{DbError, DbFuture};

impl ShardReads for SqlBackend {
    fn tracking_shards<'a>(&'a self, pipe: &'a str) -> DbFuture<'a, Option<i32>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let statement = db.statement("select shards from tracking_shards where pipe = $1");
            db.fetch_first(statement.bind(pipe), |row| row.get(0)).await
        })
    }
}

pub async fn raise(db: &mut Session, pipe: &str, shards: i32) -> Result<bool, DbError> {
    let statement = db.statement(
        "insert into tracking_shards (pipe, shards) values ($1, $2) on conflict (pipe) \
         do update set shards = excluded.shards where tracking_shards.shards < excluded.shards returning 1",
    );
    let raised = db.fetch_first(statement.bind(pipe).bind(shards), |_| Ok(()));
    Ok(raised.await?.is_some())
}
