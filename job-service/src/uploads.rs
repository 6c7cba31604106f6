//! The bytes of uploads: the pieces of a body that is received, and ranges of what is stored.
//!
//! What must stay true: the memory of a request is that of one piece, however large the upload is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use blobs::{BlobName, BlobReader, Blobs};
use contract::PartitionId;
use contract::rest::ErrorCode;
use futures_util::StreamExt as _;
use store::{Piece, Store, Upload};
use tokio::io::AsyncReadExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::{ApiError, ApiResult};

/// The bytes of a piece.
pub const PIECE: usize = 4 * 1024 * 1024;
/// How long a client may send nothing in the middle of a body.
const SILENCE: Duration = Duration::from_secs(30);
/// The bytes that are read at a time.
const READ: usize = 64 * 1024;
/// How many pieces are looked up at a time.
const PIECES: u32 = 100;

/// Where the pieces of uploads are.
#[derive(Clone)]
pub struct Place {
    pub blobs: Blobs,
    owner: Arc<str>,
}

impl Place {
    /// Returns the place of all uploads of this database. It is not that of outputs, whose groups have the numbers of incarnations.
    pub async fn of(store: &Store, blobs: &Blobs) -> Result<Self, store::StoreError> {
        let owner = format!("{}uploads", store.blob_owner().await?).into();
        let blobs = blobs.clone();
        Ok(Self { blobs, owner })
    }

    /// Returns the name of a piece.
    pub fn name(&self, number: i64, name: &str) -> BlobName {
        BlobName {
            owner: self.owner.to_string(),
            group: number,
            name: name.to_owned(),
        }
    }

    /// Deletes all blobs of an upload.
    pub async fn delete(&self, number: i64) -> Result<(), blobs::BlobError> {
        self.blobs.delete_group(&self.owner, number).await
    }
}

/// Returns the error for a source that is not there.
pub fn no_source(partition: &PartitionId, id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    ApiError::NotFound(
        ErrorCode::SourceNotFound,
        format!("The partition '{partition}' has no source '{id}'."),
    )
}

/// Returns the error for what the state of a source does not allow.
pub fn conflict(message: String) -> ApiError {
    ApiError::Conflict(ErrorCode::SourceConflict, message)
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
/// Returns the error for stored bytes that cannot be read.
pub fn unreadable(error: io::Error) -> ApiError {
    ApiError::SourcesUnusable(error.to_string())
}

/// The pieces of a body, as they arrive.
pub struct Pieces {
    body: BodyDataStream,
    budget: Arc<Semaphore>,
    /// What the chunk that filled the last piece had beyond it.
    rest: Bytes,
}

/// The next bytes of a body.
#[derive(Default)]
pub struct Received {
    /// At most a piece.
    pub bytes: Vec<u8>,
    /// How the body ends, if it does.
    pub ended: Option<Result<(), ApiError>>,
    /// The bytes of all bodies are bounded.
    pub reserved: Option<OwnedSemaphorePermit>,
}

impl Pieces {
    /// Returns the pieces of a body. The bytes of all bodies are taken from the budget.
    pub fn new(body: Body, budget: &Arc<Semaphore>) -> Self {
        Self {
            body: body.into_data_stream(),
            budget: Arc::clone(budget),
            rest: Bytes::new(),
        }
    }

    /// Returns the next bytes: a piece, or what there is before the end.
    pub async fn next(&mut self) -> Received {
        let mut received = Received::default();
        loop {
            let room = PIECE - received.bytes.len();
            let taken = self.rest.split_to(self.rest.len().min(room));
            received.bytes.extend_from_slice(&taken);
            if received.bytes.len() == PIECE {
                return received;
            }
            match self.chunk(&mut received.reserved).await {
                Ok(Some(chunk)) => self.rest = chunk,
                Ok(None) => received.ended = Some(Ok(())),
                Err(error) => received.ended = Some(Err(error)),
            }
            if received.ended.is_some() {
                return received;
            }
        }
    }

    /// Returns what arrives next, and reserves its bytes.
    async fn chunk(
        &mut self,
        reserved: &mut Option<OwnedSemaphorePermit>,
    ) -> ApiResult<Option<Bytes>> {
        let arrived = timeout(SILENCE, self.body.next()).await;
        let arrived = arrived.map_err(|_| ApiError::TooSlow(SILENCE))?;
        let Some(chunk) = arrived else {
            return Ok(None);
        };
        let chunk = chunk.map_err(|error| {
            let message = format!("The body could not be read: {error}");
            ApiError::bad_request(ErrorCode::InvalidRequest, message)
        })?;
        let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.budget).try_acquire_many_owned(length);
        let more =
            more.map_err(|_| ApiError::Busy("as many bytes of request bodies as it may hold"))?;
        match reserved {
            Some(permit) => permit.merge(more),
            None => *reserved = Some(more),
        }
        Ok(Some(chunk))
    }
}

/// Reads a range of an upload.
pub struct Range {
    store: Store,
    place: Place,
    number: i64,
    next: u64,
    end: u64,
    /// The pieces that follow the open one.
    pieces: std::collections::VecDeque<Piece>,
    open: Option<(BlobReader, u64)>,
}

impl Range {
    /// Returns a reader of the bytes `from..end`.
    pub fn new(store: Store, place: Place, upload: &Upload, from: u64, end: u64) -> Self {
        Self {
            store,
            place,
            number: upload.number,
            next: from,
            end,
            pieces: std::collections::VecDeque::new(),
            open: None,
        }
    }

    /// Returns the next bytes; `None` behind the last one.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let (mut reader, left) = match self.open.take() {
            Some(open) => open,
            None => self.next_piece().await?,
        };
        let most = (READ as u64).min(left).min(self.end - self.next);
        let mut bytes = vec![0; usize::try_from(most).map_err(io::Error::other)?];
        reader.read_exact(&mut bytes).await?;
        self.next += most;
        if left > most {
            self.open = Some((reader, left - most));
        }
        Ok(Some(bytes.into()))
    }

    /// Opens the piece with the next byte, at that byte. Returns it with the number of bytes that follow.
    async fn next_piece(&mut self) -> io::Result<(BlobReader, u64)> {
        if self.pieces.is_empty() {
            let pieces = self.store.upload_pieces(self.number, self.next, PIECES);
            self.pieces = pieces.await.map_err(io::Error::other)?.into();
        }
        let broken = || io::Error::other("a piece is missing");
        let piece = self.pieces.pop_front().ok_or_else(broken)?;
        let before = self.next.checked_sub(piece.first_byte).ok_or_else(broken)?;
        let left = piece.bytes.checked_sub(before).filter(|left| *left > 0);
        let left = left.ok_or_else(broken)?;
        let name = self.place.name(self.number, &piece.name);
        let opened = self.place.blobs.open(&name).await;
        let mut reader = opened.map_err(io::Error::other)?;
        let (mut skipped, mut nowhere) = ((&mut reader).take(before), tokio::io::sink());
        if tokio::io::copy(&mut skipped, &mut nowhere).await? < before {
            return Err(broken());
        }
        Ok((reader, left))
    }
}
