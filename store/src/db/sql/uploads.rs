//! The tables `upload`, `upload_piece`, `upload_use` and `upload_sum`.
//!
//! What must stay true: a transaction locks uploads in the order of their ids, and changes the sum
//! of all of them last but that of the partition.

use super::millis;
use super::session::{Session, columns};
use super::statement::singles;
use crate::db::Result;
use crate::upload::Piece;

const COLUMNS: &str = UploadRow::COLUMNS;
const SUM: &str = UploadSum::COLUMNS;

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRow {
    /// The number, which is also that of the group of its blobs; 0 before it is stored.
    pub number: i64,
    pub id: String,
    pub partition: String,
    pub key: String,
    pub created_time: i64,
    pub touched_time: i64,
    pub bytes: i64,
    pub pieces: i64,
    /// The SHA-256 of all bytes, once they are all there.
    pub digest: Option<String>,
    /// Whether it is deleted except for its blobs.
    pub doomed: bool,
}

/// How many uploads there are, and the room that they take in bytes: of a partition, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UploadSum {
    pub uploads: i64,
    pub room: i64,
}

columns! {
    UploadRow {
        number, id, partition: partition_id, key: read_key, created_time, touched_time, bytes,
        pieces, digest, doomed
    }
}
columns! { UploadSum { uploads, room: bytes } }

/// The key of the sum of all uploads. No partition has an empty id.
pub const ALL_UPLOADS: &str = "";

/// Returns uploads of a partition that follow this number, in order, without those that are
/// deleted.
pub async fn page(
    db: &mut Session,
    partition: &str,
    after: i64,
    limit: u32,
) -> Result<Vec<UploadRow>> {
    let statement = db.statement(format!(
        "select {COLUMNS} from upload where partition_id = $1 and number > $2 and not doomed order by number limit $3"
    ));
    let statement = statement.bind(partition).bind(after).bind(i64::from(limit));
    db.fetch(statement, UploadRow::read).await
}

/// Returns the pieces of an upload from the one with this byte on.
pub async fn pieces(db: &mut Session, number: i64, byte: i64, limit: u32) -> Result<Vec<Piece>> {
    let statement = db.statement(
        "select first_byte, bytes, name, crc32 from upload_piece where number = $1 and first_byte >= coalesce((select \
         max(first_byte) from upload_piece where number = $1 and first_byte <= $2), 0) order by first_byte limit $3",
    );
    let statement = statement.bind(number).bind(byte).bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok(Piece {
            first_byte: row.unsigned(0)?,
            bytes: row.unsigned(1)?,
            name: row.get(2)?,
            crc32: u32::try_from(row.get::<i64, _>(3)?).unwrap_or_default(),
        })
    })
    .await
}

/// Returns the jobs that are there and read one of these uploads.
pub async fn jobs_of(db: &mut Session, numbers: &[i64]) -> Result<Vec<(i64, String)>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "select u.number, j.job_id from upload_use as u join job as j on j.incarnation = u.incarnation \
         where u.number in (select cast(k.value ->> 0 as bigint) from {each}) order by u.number, u.incarnation"
    ));
    db.fetch(statement.bind(singles(numbers)?), |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
    .await
}

/// Returns the sum of a partition or, with the key [`ALL_UPLOADS`], of all.
pub async fn sum_of(db: &mut Session, partition: &str) -> Result<UploadSum> {
    let statement = db.statement(format!(
        "select {SUM} from upload_sum where partition_id = $1"
    ));
    let found = db.fetch_first(statement.bind(partition), UploadSum::read);
    Ok(found.await?.unwrap_or_default())
}

/// Returns uploads that are deleted except for their blobs.
pub async fn doomed(db: &mut Session, limit: u32) -> Result<Vec<i64>> {
    let statement = db.statement("select number from upload where doomed order by number limit $1");
    db.fetch(statement.bind(i64::from(limit)), |row| row.get(0))
        .await
}

/// Returns an upload.
pub async fn find(db: &mut Session, id: &str) -> Result<Option<UploadRow>> {
    select(db, id, "").await
}

/// Locks and returns an upload.
pub async fn lock(db: &mut Session, id: &str) -> Result<Option<UploadRow>> {
    select(db, id, "for update").await
}

async fn select(db: &mut Session, id: &str, lock: &'static str) -> Result<Option<UploadRow>> {
    let lock = db.dialect().lock(lock);
    let statement = db.statement(format!("select {COLUMNS} from upload where id = $1 {lock}"));
    db.fetch_first(statement.bind(id), UploadRow::read).await
}

pub async fn insert(db: &mut Session, upload: &UploadRow) -> Result<()> {
    let statement = db
        .statement(
            "insert into upload (id, partition_id, read_key, created_time, touched_time, bytes, pieces, digest, doomed) \
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(upload.id.as_str())
        .bind(upload.partition.as_str())
        .bind(upload.key.as_str())
        .bind(upload.created_time)
        .bind(upload.touched_time)
        .bind(upload.bytes)
        .bind(upload.pieces)
        .bind(upload.digest.as_deref())
        .bind(upload.doomed);
    db.run(statement).await
}

/// Saves the fields of a locked upload that may change.
pub async fn save(db: &mut Session, upload: &UploadRow) -> Result<()> {
    let statement = db
        .statement(
            "update upload set touched_time = $2, bytes = $3, pieces = $4, digest = $5, doomed = $6 where number = $1",
        )
        .bind(upload.number)
        .bind(upload.touched_time)
        .bind(upload.bytes)
        .bind(upload.pieces)
        .bind(upload.digest.as_deref())
        .bind(upload.doomed);
    db.run(statement).await
}

/// Adds a piece to a locked upload, behind all others.
pub async fn insert_piece(db: &mut Session, upload: &UploadRow, piece: &Piece) -> Result<()> {
    let statement = db
        .statement(
            "insert into upload_piece (number, first_byte, bytes, name, crc32) values ($1, $2, $3, $4, $5)",
        )
        .bind(upload.number)
        .bind(upload.bytes)
        .bind(i64::try_from(piece.bytes).unwrap_or(i64::MAX))
        .bind(piece.name.as_str())
        .bind(i64::from(piece.crc32));
    db.run(statement).await
}

/// Adds to the sum of a partition or, with the key [`ALL_UPLOADS`], of all, locks it, and
/// returns it.
pub async fn add_to_sum(db: &mut Session, partition: &str, change: UploadSum) -> Result<UploadSum> {
    let statement = db
        .statement(format!(
            "insert into upload_sum (partition_id, {SUM}) values ($1, $2, $3) on conflict (partition_id) do update set \
             uploads = upload_sum.uploads + excluded.uploads, bytes = upload_sum.bytes + excluded.bytes returning {SUM}"
        ))
        .bind(partition)
        .bind(change.uploads)
        .bind(change.room);
    Ok(db
        .fetch_first(statement, UploadSum::read)
        .await?
        .unwrap_or_default())
}

/// Notes that a job reads an upload.
pub async fn insert_use(db: &mut Session, number: i64, incarnation: i64) -> Result<()> {
    let statement = db.statement("insert into upload_use (number, incarnation) values ($1, $2)");
    db.run(statement.bind(number).bind(incarnation)).await
}

/// Returns whether jobs were created that read an upload, and the id of one that is there.
pub async fn users(db: &mut Session, number: i64) -> Result<(bool, Option<String>)> {
    let statement = db.statement(
        "select j.job_id from upload_use as u left join job as j on j.incarnation = u.incarnation where u.number = $1 \
         order by j.job_id is null, u.incarnation limit 1",
    );
    let found: Option<Option<String>> = db
        .fetch_first(statement.bind(number), |row| row.get(0))
        .await?;
    Ok((found.is_some(), found.flatten()))
}

/// Returns the ids of uploads that nobody needs any more: their jobs are deleted, or no job has
/// named them for so many milliseconds.
pub async fn unneeded(db: &mut Session, unused: u64, limit: u32) -> Result<Vec<String>> {
    let now = db.dialect().now();
    let has_job = "exists (select 1 from upload_use as u join job as j on j.incarnation = u.incarnation where u.number = upload.number)";
    let statement = db.statement(format!(
        "select id from upload where not doomed and not {has_job} and (touched_time <= {now} - $1 or exists (select 1 from \
         upload_use as u where u.number = upload.number)) order by id limit $2"
    ));
    let statement = statement.bind(millis(unused)).bind(i64::from(limit));
    db.fetch(statement, |row| row.get(0)).await
}

/// Deletes up to `limit` pieces of an upload; if none are left, the upload. Returns whether it
/// is deleted.
pub async fn forget(db: &mut Session, number: i64, limit: u32) -> Result<bool> {
    let statement = db.statement(
        "delete from upload_piece where number = $1 and first_byte in (select first_byte from upload_piece where number = $1 limit $2)",
    );
    let statement = statement.bind(number).bind(i64::from(limit));
    if db.execute(statement).await? >= u64::from(limit) {
        return Ok(false);
    }
    for statement in [
        "delete from upload_use where number = $1",
        "delete from upload where number = $1",
    ] {
        db.execute(db.statement(statement).bind(number)).await?;
    }
    let statement =
        db.statement("delete from upload_sum where uploads <= 0 and partition_id <> ''");
    db.execute(statement).await?;
    Ok(true)
}
