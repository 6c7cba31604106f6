//! Uploads: sources of items that clients send to the job service, and that batch workers read from
//! there.
//!
//! A batch names one as `upload://ID`. The key with which it is read is in no message of a job: a
//! batch worker asks the job service for it, over the broker.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::explain::Refusal;

/// What the name of an upload in a definition begins with.
pub const UPLOAD_SCHEME: &str = "upload://";

/// The pipe about which batch workers ask their questions about uploads. No message is ever in it.
pub const UPLOADS_PIPE: &str = "batchwright-uploads";

/// The header of a request that adds to an upload: the position of its first byte.
pub const UPLOAD_OFFSET_HEADER: &str = "upload-offset";

/// The header of a request that reads an upload: its key.
pub const UPLOAD_KEY_HEADER: &str = "x-batchwright-source-key";

/// A source that a client has sent to the service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct UploadedSource {
    /// The id. A batch names the source as `upload://ID`.
    pub id: String,
    /// The bytes that are there; also the position of the next one.
    pub bytes: u64,
    /// Whether all bytes are there. Only then a job can read them, and nothing can be added.
    pub committed: bool,
    /// The SHA-256 of all bytes, in hexadecimal. Absent before they are all there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// When it was created, in milliseconds since 1970.
    pub create_time: i64,
    /// When it is deleted if until then nothing is added to it and no job names it, in milliseconds
    /// since 1970. Absent if a job names it: it is deleted with the last one that does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<i64>,
    /// The ids of the jobs that name it.
    pub jobs: Vec<String>,
}

/// A page of the sources of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct UploadedSources {
    /// The sources, the oldest first.
    pub sources: Vec<UploadedSource>,
    /// The `after` of the next page. Absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The room that all sources of the partition take, in bytes. A source, and each piece of it,
    /// takes 5 KiB beside its bytes.
    pub bytes: u64,
    /// How much room they may take, in bytes.
    pub max_bytes: u64,
}

/// What a client says of a source of which it has sent all bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct SourceCommit {
    /// How many bytes there are.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
}

/// What a batch worker asks about an upload. Fields that are not known are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadQuery {
    /// The id of the upload.
    pub upload: String,
    /// The partition of the job that reads it.
    pub partition: String,
}

/// What a job service answers.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UploadAnswer {
    /// Why it cannot be read. Null if it can.
    pub refusal: Option<Refusal>,
    /// The number of its bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
    /// Where it is read.
    pub url: String,
    /// With which key ([`UPLOAD_KEY_HEADER`]).
    pub key: String,
}

impl fmt::Debug for UploadAnswer {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadAnswer")
            .field("refusal", &self.refusal)
            .field("bytes", &self.bytes)
            .field("sha256", &self.sha256)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
