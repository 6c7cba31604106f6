//! The types of uploads.

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The id, unique in the store.
    pub id: String,
    /// The number of the group of its blobs.
    pub number: i64,
    /// The bytes that are there.
    pub bytes: u64,
    /// The SHA-256 of all bytes in hexadecimal; `None` as long as further ones may follow.
    pub digest: Option<String>,
    /// Without which nobody reads it.
    pub key: String,
    /// The time of its creation, in milliseconds since 1970.
    pub created_time: i64,
    /// When it last got bytes, was committed, or was named by a new job.
    pub touched_time: i64,
    /// The jobs that are there and name it.
    pub jobs: Vec<String>,
}

/// A part of an upload, which is one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The position of its first byte.
    pub first_byte: u64,
    /// The number of its bytes.
    pub bytes: u64,
    /// The name of the blob.
    pub name: String,
    /// The CRC-32 of its bytes.
    pub crc32: u32,
}

/// The room that an upload takes beside its pieces, and a piece beside its bytes: the rest of its
/// last block on the disk, and what the file system and the database know of it.
const ENTRY: u64 = 5 * 1024;

/// Returns the room that so many bytes in so many pieces take.
pub const fn upload_room(bytes: u64, pieces: u64) -> u64 {
    bytes.saturating_add(pieces.saturating_mul(ENTRY))
}

/// How much room uploads may take, and how many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// The bytes of a partition.
    pub of_partition: u64,
    /// The bytes of all.
    pub of_all: u64,
    /// The number of uploads of a partition.
    pub number_of_partition: u64,
    /// The number of all uploads.
    pub number_of_all: u64,
}

impl UploadLimits {
    /// Returns the limits of these bytes, of a partition and of all.
    pub const fn of_bytes(of_partition: u64, of_all: u64) -> Self {
        Self {
            of_partition,
            of_all,
            number_of_partition: 10_000,
            number_of_all: 100_000,
        }
    }
}

/// A limit that stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// The room of the partition, of which so much is taken.
    Partition(u64),
    /// The room of all partitions.
    All(u64),
    /// The number of uploads of the partition.
    Number(u64),
    /// The number of uploads of all partitions.
    NumberOfAll(u64),
    /// The number of pieces of the upload.
    Pieces(u64),
}

/// The result of adding a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// It is added.
    Added(Upload),
    /// There is no such upload.
    Gone,
    /// The upload is committed.
    Committed,
    /// The next byte has another position.
    Elsewhere(u64),
    /// There is no room for it.
    Full(Quota),
}

/// The result of committing an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// It is committed, now or before.
    Committed(Upload),
    /// There is no such upload.
    Gone,
    /// It has so many bytes.
    OtherBytes(u64),
    /// It is committed with this digest.
    OtherDigest(String),
}

/// The result of deleting an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletedUpload {
    /// It is deleted.
    Deleted,
    /// There is no such upload.
    Gone,
    /// This job names it.
    Used(String),
}

/// Why a job cannot read an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadRefusal {
    /// The partition has no upload with this id.
    Unknown(String),
    /// This upload is not committed.
    Uncommitted(String),
}
