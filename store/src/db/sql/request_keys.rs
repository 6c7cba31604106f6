//! The table `request_key`: the keys that clients gave to requests that create jobs.

use super::jobs::job_id;
use super::millis;
use super::session::{Row, Session};
use crate::db::{KeyState, Result};
use crate::model::{KeyedRequest, RequestKey};

/// Gives a key to the request that creates this job. If the partition has the key already, changes
/// nothing and returns what the key belongs to. Waits for the end of another transaction that gives
/// the same key.
pub async fn give(
    db: &mut Session,
    partition: &str,
    RequestKey { key, fingerprint }: &RequestKey,
    job: &str,
) -> Result<KeyState> {
    let now = db.dialect().now();
    // Waits for the end of a transaction that has inserted the same key.
    let statement = db
        .statement(format!(
            "insert into request_key (partition_id, key, fingerprint, job_id, created_at) \
             values ($1, $2, $3, $4, {now}) on conflict (partition_id, key) do nothing"
        ))
        .bind(partition)
        .bind(key.as_str())
        .bind(&fingerprint[..])
        .bind(job);
    if db.execute(statement).await? > 0 {
        return Ok(KeyState::Given);
    }
    let statement = db.statement(
        "select fingerprint, job_id from request_key where partition_id = $1 and key = $2",
    );
    let read = |row: Row<'_>| Ok(KeyState::Taken(row.get(0)?, job_id(row.get(1)?)?));
    let taken = db.fetch_first(statement.bind(partition).bind(key.as_str()), read);
    Ok(taken.await?.unwrap_or(KeyState::Lost))
}

/// Returns the fingerprint of the request that has this key, the job that it created, and the
/// digest of the job's content if the job is there.
pub async fn find(db: &mut Session, partition: &str, key: &str) -> Result<Option<KeyedRequest>> {
    let statement = db.statement(
        "select fingerprint, k.job_id, content_hash from request_key k \
         left join job j on j.partition_id = k.partition_id and j.job_id = k.job_id where k.partition_id = $1 and key = $2",
    );
    db.fetch_first(statement.bind(partition).bind(key), |row| {
        Ok(KeyedRequest {
            fingerprint: row.get(0)?,
            job: job_id(row.get(1)?)?,
            content_hash: row.get(2)?,
        })
    })
    .await
}

/// Forgets up to 1,000 keys that were given more than this many milliseconds ago.
pub async fn forget(db: &mut Session, older_than: u64) -> Result<()> {
    let now = db.dialect().now();
    let statement = db.statement(format!(
        "delete from request_key where (partition_id, key) in (select partition_id, key \
         from request_key where created_at <= {now} - $1 order by created_at limit 1000)"
    ));
    db.run(statement.bind(millis(older_than))).await
}
