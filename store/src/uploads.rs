//! Uploads: sources of items that clients have sent to the service. Which blobs have which bytes;
//! the blobs themselves are not in the database.
//!
//! What must stay true:
//! - A piece is in a blob that was complete before the transaction that adds it began. A blob
//!   without a piece is an orphan.
//! - What is committed never changes, and only that is read.
//! - An upload stays as long as a job that names it. One that no job names, and that nobody
//!   touches, goes after a time.
//! - The sums are those of the uploads that are not deleted, and no upload takes them above the
//!   limits. They count the room that uploads take ([`upload_room`]), and not their bytes alone.

use std::time::Duration;

use contract::PartitionId;

use crate::db::run_tx::{End, Tx};
use crate::db::sql::uploads::{ALL_UPLOADS, UploadRow, UploadSum};
use crate::db::{DbError, Signal, millis, sql};
use crate::upload::{
    Appended, Committed, DeletedUpload, Piece, Quota, Upload, UploadLimits, UploadRefusal,
    upload_room,
};
use crate::{Result, Store};

/// The largest number of pieces of an upload.
const PIECES: i64 = 200_000;
/// How many uploads one transaction deletes, and how many pieces.
const DOOMED: u32 = 50;
const ROWS: u32 = 10_000;

impl Store {
    /// Begins an upload.
    pub async fn create_upload(
        &self,
        partition: &PartitionId,
        (id, key): (&str, &str),
        limits: UploadLimits,
    ) -> Result<Result<Upload, Quota>> {
        self.run_tx("create_upload", |tx| {
            Box::pin(async move {
                let now = tx.now();
                let row = UploadRow {
                    number: 0,
                    id: id.to_owned(),
                    partition: partition.to_string(),
                    key: key.to_owned(),
                    created_time: now,
                    touched_time: now,
                    bytes: 0,
                    pieces: 0,
                    digest: None,
                    doomed: false,
                };
                sql::uploads::insert(tx, &row).await?;
                let change = UploadSum {
                    uploads: 1,
                    room: row.room(),
                };
                if let Some(quota) = add_within(tx, partition, change, limits).await? {
                    return Ok(End::Rollback(Err(quota)));
                }
                // The sweeper has to come when it is too old.
                tx.notify(Signal::Sweep);
                Ok(End::Commit(Ok(row.into_upload(Vec::new()))))
            })
        })
        .await
    }

    /// Adds a piece whose blob is written to an upload.
    pub async fn append_to_upload(
        &self,
        partition: &PartitionId,
        id: &str,
        piece: &Piece,
        limits: UploadLimits,
    ) -> Result<Appended> {
        self.run_tx("append_to_upload", |tx| {
            Box::pin(append(tx, partition, id, piece, limits))
        })
        .await
    }

    /// Commits an upload that has so many bytes, with this digest, by which it is read from now on.
    pub async fn commit_upload(
        &self,
        partition: &PartitionId,
        id: &str,
        (bytes, digest): (u64, &str),
    ) -> Result<Committed> {
        self.run_tx("commit_upload", |tx| {
            Box::pin(async move {
                let Some(mut row) = lock(tx, partition, id).await? else {
                    return Ok(End::Rollback(Committed::Gone));
                };
                if row.bytes.unsigned_abs() != bytes {
                    let found = row.bytes.unsigned_abs();
                    return Ok(End::Rollback(Committed::OtherBytes(found)));
                }
                if let Some(known) = &row.digest {
                    return Ok(End::Rollback(if known == digest {
                        Committed::Committed(row.into_upload(Vec::new()))
                    } else {
                        Committed::OtherDigest(known.clone())
                    }));
                }
                row.digest = Some(digest.to_owned());
                row.touched_time = tx.now();
                sql::uploads::save(tx, &row).await?;
                Ok(End::Commit(Committed::Committed(
                    row.into_upload(Vec::new()),
                )))
            })
        })
        .await
    }

    /// Deletes an upload that no job names. Its blobs are still to be deleted
    /// ([`Self::doomed_uploads`]).
    pub async fn delete_upload(&self, partition: &PartitionId, id: &str) -> Result<DeletedUpload> {
        self.run_tx("delete_upload", |tx| {
            Box::pin(async move {
                let Some(row) = lock(tx, partition, id).await? else {
                    return Ok(End::Rollback(DeletedUpload::Gone));
                };
                if let (_, Some(job)) = sql::uploads::users(tx, row.number).await? {
                    return Ok(End::Rollback(DeletedUpload::Used(job)));
                }
                doom(tx, row).await?;
                Ok(End::Commit(DeletedUpload::Deleted))
            })
        })
        .await
    }

    /// Returns an upload of a partition.
    pub async fn upload(&self, partition: &PartitionId, id: &str) -> Result<Option<Upload>> {
        let row = sql::uploads::find(&mut self.database.reader().await?, id).await?;
        let Some(row) = row.filter(|row| row.is_of(partition)) else {
            return Ok(None);
        };
        let jobs = sql::uploads::jobs_of(&mut self.database.reader().await?, &[row.number]).await?;
        let jobs = jobs.into_iter().map(|(_, job)| job).collect();
        Ok(Some(row.into_upload(jobs)))
    }

    /// Returns uploads of a partition, the oldest first, that follow the one with this number.
    pub async fn uploads(
        &self,
        partition: &PartitionId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Upload>> {
        let rows = {
            let db = &mut self.database.reader().await?;
            sql::uploads::page(db, partition.as_str(), after, limit).await?
        };
        let numbers: Vec<i64> = rows.iter().map(|row| row.number).collect();
        let jobs = sql::uploads::jobs_of(&mut self.database.reader().await?, &numbers).await?;
        let with_jobs = |row: UploadRow| {
            let own = jobs.iter().filter(|(number, _)| *number == row.number);
            let own = own.map(|(_, job)| job.clone()).collect();
            row.into_upload(own)
        };
        Ok(rows.into_iter().map(with_jobs).collect())
    }

    /// Returns the room that the uploads of a partition take, and that of all.
    pub async fn upload_room(&self, partition: &PartitionId) -> Result<(u64, u64)> {
        let own =
            sql::uploads::sum_of(&mut self.database.reader().await?, partition.as_str()).await?;
        let all = sql::uploads::sum_of(&mut self.database.reader().await?, ALL_UPLOADS).await?;
        Ok((
            own.room.max(0).unsigned_abs(),
            all.room.max(0).unsigned_abs(),
        ))
    }

    /// Returns some pieces of the upload with this number, from the one with this byte on.
    pub async fn upload_pieces(&self, number: i64, byte: u64, limit: u32) -> Result<Vec<Piece>> {
        let byte = i64::try_from(byte).unwrap_or(i64::MAX);
        let db = &mut self.database.reader().await?;
        Ok(sql::uploads::pieces(db, number, byte, limit).await?)
    }

    /// Deletes uploads whose jobs are deleted, and those that no job names and nobody has touched
    /// for this time. Returns the numbers of some deleted ones whose blobs are to be deleted, and
    /// which are then forgotten ([`Self::forget_upload`]).
    pub async fn doomed_uploads(&self, unused: Duration) -> Result<Vec<i64>> {
        let unused = millis(unused);
        self.run_tx("doom_uploads", |tx| {
            Box::pin(async move {
                let found = sql::uploads::unneeded(tx, unused, DOOMED).await?;
                let before = tx.now().saturating_sub_unsigned(unused);
                for id in &found {
                    // A job may have named it meanwhile; nobody can while it is locked.
                    let row = sql::uploads::lock(tx, id).await?;
                    let Some(row) = row.filter(|row| !row.doomed) else {
                        continue;
                    };
                    let (was_used, job) = sql::uploads::users(tx, row.number).await?;
                    if job.is_none() && (was_used || row.touched_time <= before) {
                        doom(tx, row).await?;
                    }
                }
                Ok(End::commit_if(!found.is_empty(), ()))
            })
        })
        .await?;
        Ok(sql::uploads::doomed(&mut self.database.reader().await?, DOOMED).await?)
    }

    /// Forgets a deleted upload whose blobs are deleted.
    pub async fn forget_upload(&self, number: i64) -> Result<()> {
        loop {
            let is_over = self.run_tx("forget_upload", |tx| {
                Box::pin(
                    async move { Ok(End::Commit(sql::uploads::forget(tx, number, ROWS).await?)) },
                )
            });
            if is_over.await? {
                return Ok(());
            }
        }
    }
}

async fn append(
    tx: &mut Tx<'_>,
    partition: &PartitionId,
    id: &str,
    piece: &Piece,
    limits: UploadLimits,
) -> Result<End<Appended>, DbError> {
    let refused = |appended| Ok(End::Rollback(appended));
    let Some(mut row) = lock(tx, partition, id).await? else {
        return refused(Appended::Gone);
    };
    if row.digest.is_some() {
        return refused(Appended::Committed);
    }
    let next = row.bytes.unsigned_abs();
    if piece.first_byte != next {
        return refused(Appended::Elsewhere(next));
    }
    if row.pieces >= PIECES {
        return refused(Appended::Full(Quota::Pieces(PIECES.unsigned_abs())));
    }
    let bytes = i64::try_from(piece.bytes).unwrap_or(i64::MAX);
    let change = UploadSum {
        uploads: 0,
        room: i64::try_from(upload_room(piece.bytes, 1)).unwrap_or(i64::MAX),
    };
    if let Some(quota) = add_within(tx, partition, change, limits).await? {
        return refused(Appended::Full(quota));
    }
    sql::uploads::insert_piece(tx, &row, piece).await?;
    row.bytes += bytes;
    row.pieces += 1;
    row.touched_time = tx.now();
    sql::uploads::save(tx, &row).await?;
    Ok(End::Commit(Appended::Added(row.into_upload(Vec::new()))))
}

/// Notes that a new job reads these uploads of its partition. Returns why it cannot.
pub(crate) async fn use_uploads(
    tx: &mut Tx<'_>,
    partition: &PartitionId,
    incarnation: i64,
    ids: &[String],
) -> Result<Option<UploadRefusal>, DbError> {
    let mut ids: Vec<&String> = ids.iter().collect();
    ids.sort();
    ids.dedup();
    for id in ids {
        let Some(mut row) = lock(tx, partition, id).await? else {
            return Ok(Some(UploadRefusal::Unknown(id.clone())));
        };
        if row.digest.is_none() {
            return Ok(Some(UploadRefusal::Uncommitted(id.clone())));
        }
        row.touched_time = tx.now();
        sql::uploads::save(tx, &row).await?;
        sql::uploads::insert_use(tx, row.number, incarnation).await?;
    }
    Ok(None)
}

/// Locks an upload of a partition that is not deleted.
async fn lock(
    tx: &mut Tx<'_>,
    partition: &PartitionId,
    id: &str,
) -> Result<Option<UploadRow>, DbError> {
    let row = sql::uploads::lock(tx, id).await?;
    Ok(row.filter(|row| row.is_of(partition)))
}

/// Deletes a locked upload except for its blobs.
async fn doom(tx: &mut Tx<'_>, mut row: UploadRow) -> Result<(), DbError> {
    row.doomed = true;
    sql::uploads::save(tx, &row).await?;
    let change = UploadSum {
        uploads: -1,
        room: -row.room(),
    };
    add_to_sums(tx, &row.partition, change).await?;
    tx.notify(Signal::Sweep);
    Ok(())
}

/// Adds to the sums of a partition and of all. Returns which limit stands in the way of that.
async fn add_within(
    tx: &mut Tx<'_>,
    partition: &PartitionId,
    change: UploadSum,
    limits: UploadLimits,
) -> Result<Option<Quota>, DbError> {
    let (own, all) = add_to_sums(tx, partition.as_str(), change).await?;
    // What is added to an upload makes no further one.
    let number = |sum: UploadSum| sum.uploads.max(0).unsigned_abs() * change.uploads.unsigned_abs();
    let taken = |sum: UploadSum| sum.room.max(0).unsigned_abs();
    let before = |sum: UploadSum| (sum.room - change.room).max(0).unsigned_abs();
    let quotas = [
        (
            number(own),
            limits.number_of_partition,
            Quota::Number(limits.number_of_partition),
        ),
        (
            number(all),
            limits.number_of_all,
            Quota::NumberOfAll(limits.number_of_all),
        ),
        (
            taken(own),
            limits.of_partition,
            Quota::Partition(before(own)),
        ),
        (taken(all), limits.of_all, Quota::All(before(all))),
    ];
    let exceeded = quotas.into_iter().find(|(now, limit, _)| now > limit);
    Ok(exceeded.map(|(_, _, quota)| quota))
}

/// Adds to the sums of a partition and of all. Returns both.
async fn add_to_sums(
    tx: &mut Tx<'_>,
    partition: &str,
    change: UploadSum,
) -> Result<(UploadSum, UploadSum), DbError> {
    let own = sql::uploads::add_to_sum(tx, partition, change).await?;
    Ok((
        own,
        sql::uploads::add_to_sum(tx, ALL_UPLOADS, change).await?,
    ))
}

impl UploadRow {
    fn is_of(&self, partition: &PartitionId) -> bool {
        self.partition == partition.as_str() && !self.doomed
    }

    fn room(&self) -> i64 {
        let pieces = self.pieces.unsigned_abs() + 1;
        i64::try_from(upload_room(self.bytes.unsigned_abs(), pieces)).unwrap_or(i64::MAX)
    }

    fn into_upload(self, jobs: Vec<String>) -> Upload {
        Upload {
            id: self.id,
            number: self.number,
            bytes: self.bytes.unsigned_abs(),
            digest: self.digest,
            key: self.key,
            created_time: self.created_time,
            touched_time: self.touched_time,
            jobs,
        }
    }
}
