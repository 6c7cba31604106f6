//! The tables `upload`, `upload_piece`, `upload_use` and `upload_sum`.

use super::session::{Row, Session};
use super::statement::{Dialect, singles};
use super::{SqlBackend, millis};
use crate::db::uploads::{PieceRow, UploadReads, UploadRow, UploadSum};
use crate::db::{DbError, DbFuture};

const COLUMNS: &str =
    "number, id, partition_id, read_key, created_time, touched_time, bytes, pieces, digest, doomed";

impl UploadReads for SqlBackend {
    fn upload<'a>(&'a self, id: &'a str) -> DbFuture<'a, Option<UploadRow>> {
        Box::pin(async move { find(&mut self.reader().await?, id, "").await })
    }
    fn uploads<'a>(
        &'a self,
        partition: &'a str,
        after: i64,
        limit: u32,
    ) -> DbFuture<'a, Vec<UploadRow>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let statement = db.statement(format!(
                "select {COLUMNS} from upload where partition_id = $1 and number > $2 and not doomed order by number limit $3"
            ));
            let statement = statement.bind(partition).bind(after).bind(i64::from(limit));
            db.fetch(statement, read).await
        })
    }
    fn pieces(&self, number: i64, byte: i64, limit: u32) -> DbFuture<'_, Vec<PieceRow>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let statement = db.statement(
                "select number, first_byte, bytes, name, crc32 from upload_piece where number = $1 and first_byte >= coalesce((select \
                 max(first_byte) from upload_piece where number = $1 and first_byte <= $2), 0) order by first_byte limit $3",
            );
            let statement = statement.bind(number).bind(byte).bind(i64::from(limit));
            db.fetch(statement, |row| {
                Ok(PieceRow {
                    number: row.get(0)?,
                    first_byte: row.get(1)?,
                    bytes: row.get(2)?,
                    name: row.get(3)?,
                    crc32: row.get(4)?,
                })
            })
            .await
        })
    }
    fn jobs_of_uploads<'a>(&'a self, numbers: &'a [i64]) -> DbFuture<'a, Vec<(i64, String)>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let each = db.dialect().each();
            let statement = db.statement(format!(
                "select u.number, j.job_id from upload_use as u join job as j on j.incarnation = u.incarnation \
                 where u.number in (select cast(k.value ->> 0 as bigint) from {each}) order by u.number, u.incarnation"
            ));
            db.fetch(statement.bind(singles(numbers)?), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .await
        })
    }
    fn upload_sum<'a>(&'a self, partition: &'a str) -> DbFuture<'a, UploadSum> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let statement =
                db.statement("select uploads, bytes from upload_sum where partition_id = $1");
            let found = db.fetch_first(statement.bind(partition), read_sum);
            Ok(found.await?.unwrap_or_default())
        })
    }
    fn doomed_uploads(&self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move {
            let db = &mut self.reader().await?;
            let statement =
                db.statement("select number from upload where doomed order by number limit $1");
            db.fetch(statement.bind(i64::from(limit)), |row| row.get(0))
                .await
        })
    }
}

async fn find(
    db: &mut Session,
    id: &str,
    suffix: &'static str,
) -> Result<Option<UploadRow>, DbError> {
    let statement = db.statement(format!(
        "select {COLUMNS} from upload where id = $1 {suffix}"
    ));
    db.fetch_first(statement.bind(id), read).await
}

pub async fn lock(db: &mut Session, id: &str) -> Result<Option<UploadRow>, DbError> {
    let suffix = match db.dialect() {
        Dialect::Postgres => "for update",
        Dialect::Sqlite => "",
    };
    find(db, id, suffix).await
}

pub async fn insert(db: &mut Session, upload: &UploadRow) -> Result<(), DbError> {
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
    db.execute(statement).await.map(drop)
}

pub async fn save(db: &mut Session, upload: &UploadRow) -> Result<(), DbError> {
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
    db.execute(statement).await.map(drop)
}

pub async fn insert_piece(db: &mut Session, piece: &PieceRow) -> Result<(), DbError> {
    let statement = db
        .statement(
            "insert into upload_piece (number, first_byte, bytes, name, crc32) values ($1, $2, $3, $4, $5)",
        )
        .bind(piece.number)
        .bind(piece.first_byte)
        .bind(piece.bytes)
        .bind(piece.name.as_str())
        .bind(piece.crc32);
    db.execute(statement).await.map(drop)
}

pub async fn add_to_sum(
    db: &mut Session,
    partition: &str,
    change: UploadSum,
) -> Result<UploadSum, DbError> {
    let statement = db
        .statement(
            "insert into upload_sum (partition_id, uploads, bytes) values ($1, $2, $3) on conflict (partition_id) do update set \
             uploads = upload_sum.uploads + excluded.uploads, bytes = upload_sum.bytes + excluded.bytes returning uploads, bytes",
        )
        .bind(partition)
        .bind(change.uploads)
        .bind(change.room);
    Ok(db
        .fetch_first(statement, read_sum)
        .await?
        .unwrap_or_default())
}

pub async fn insert_use(db: &mut Session, number: i64, incarnation: i64) -> Result<(), DbError> {
    let statement = db.statement("insert into upload_use (number, incarnation) values ($1, $2)");
    db.execute(statement.bind(number).bind(incarnation))
        .await
        .map(drop)
}

pub async fn users(db: &mut Session, number: i64) -> Result<(bool, Option<String>), DbError> {
    let statement = db.statement(
        "select j.job_id from upload_use as u left join job as j on j.incarnation = u.incarnation where u.number = $1 \
         order by j.job_id is null, u.incarnation limit 1",
    );
    let found: Option<Option<String>> = db
        .fetch_first(statement.bind(number), |row| row.get(0))
        .await?;
    Ok((found.is_some(), found.flatten()))
}

pub async fn unneeded(db: &mut Session, unused: u64, limit: u32) -> Result<Vec<String>, DbError> {
    let now = db.dialect().now();
    let has_job = "exists (select 1 from upload_use as u join job as j on j.incarnation = u.incarnation where u.number = upload.number)";
    let statement = db.statement(format!(
        "select id from upload where not doomed and not {has_job} and (touched_time <= {now} - $1 or exists (select 1 from \
         upload_use as u where u.number = upload.number)) order by id limit $2"
    ));
    let statement = statement.bind(millis(unused)).bind(i64::from(limit));
    db.fetch(statement, |row| row.get(0)).await
}

pub async fn forget(db: &mut Session, number: i64, limit: u32) -> Result<bool, DbError> {
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

fn read(row: Row<'_>) -> Result<UploadRow, DbError> {
    Ok(UploadRow {
        number: row.get(0)?,
        id: row.get(1)?,
        partition: row.get(2)?,
        key: row.get(3)?,
        created_time: row.get(4)?,
        touched_time: row.get(5)?,
        bytes: row.get(6)?,
        pieces: row.get(7)?,
        digest: row.get(8)?,
        doomed: row.get(9)?,
    })
}

fn read_sum(row: Row<'_>) -> Result<UploadSum, DbError> {
    Ok(UploadSum {
        uploads: row.get(0)?,
        room: row.get(1)?,
    })
}
