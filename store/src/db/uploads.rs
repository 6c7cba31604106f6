//! The steps on uploads, and the reads of them.

use super::DbFuture;

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

/// A part of an upload, which is one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceRow {
    pub number: i64,
    pub first_byte: i64,
    pub bytes: i64,
    pub name: String,
    pub crc32: i64,
}

/// How many uploads there are, and the room that they take in bytes: of a partition, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UploadSum {
    pub uploads: i64,
    pub room: i64,
}

/// The key of the sum of all uploads. No partition has an empty id.
pub const ALL_UPLOADS: &str = "";

/// Steps on uploads. A transaction locks uploads in the order of their ids, and changes the sum of
/// all of them last but that of the partition.
pub trait UploadSteps {
    /// Locks and returns an upload.
    fn lock_upload<'a>(&'a mut self, id: &'a str) -> DbFuture<'a, Option<UploadRow>>;

    fn insert_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()>;

    /// Saves the fields of a locked upload that may change.
    fn save_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()>;

    fn insert_piece<'a>(&'a mut self, piece: &'a PieceRow) -> DbFuture<'a, ()>;

    /// Adds to the sum of a partition or, with the key [`ALL_UPLOADS`], of all, locks it, and
    /// returns it.
    fn add_to_upload_sum<'a>(
        &'a mut self,
        partition: &'a str,
        change: UploadSum,
    ) -> DbFuture<'a, UploadSum>;

    /// Notes that a job reads an upload.
    fn insert_upload_use(&mut self, number: i64, incarnation: i64) -> DbFuture<'_, ()>;

    /// Returns whether jobs were created that read an upload, and the id of one that is there.
    fn upload_users(&mut self, number: i64) -> DbFuture<'_, (bool, Option<String>)>;

    /// Returns the ids of uploads that nobody needs any more: their jobs are deleted, or no job has
    /// named them for so many milliseconds.
    fn unneeded_uploads(&mut self, unused: u64, limit: u32) -> DbFuture<'_, Vec<String>>;

    /// Deletes up to `limit` pieces of an upload; if none are left, the upload. Returns whether it
    /// is deleted.
    fn forget_upload(&mut self, number: i64, limit: u32) -> DbFuture<'_, bool>;
}

/// Reads of uploads, outside transactions.
pub trait UploadReads {
    fn upload<'a>(&'a self, id: &'a str) -> DbFuture<'a, Option<UploadRow>>;

    /// Returns uploads of a partition that follow this number, in order, without those that are
    /// deleted.
    fn uploads<'a>(
        &'a self,
        partition: &'a str,
        after: i64,
        limit: u32,
    ) -> DbFuture<'a, Vec<UploadRow>>;

    /// Returns the pieces of an upload from the one with this byte on.
    fn pieces(&self, number: i64, byte: i64, limit: u32) -> DbFuture<'_, Vec<PieceRow>>;

    /// Returns the jobs that are there and read one of these uploads.
    fn jobs_of_uploads<'a>(&'a self, numbers: &'a [i64]) -> DbFuture<'a, Vec<(i64, String)>>;

    fn upload_sum<'a>(&'a self, partition: &'a str) -> DbFuture<'a, UploadSum>;

    /// Returns uploads that are deleted except for their blobs.
    fn doomed_uploads(&self, limit: u32) -> DbFuture<'_, Vec<i64>>;
}
