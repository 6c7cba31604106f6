//! The bytes of uploads: the pieces of a body that is received, and ranges of what is stored.
//!
//! What must stay true:
//! - The memory of a request is that of one piece, however large the upload is.
//! - The last bytes that a request gets of a piece are sent when the whole piece is as it was
//!   written.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use blobs::{BlobError, BlobName, BlobReader, Blobs, Fingerprint, Fingerprinter};
use contract::rest::ErrorCode;
use futures_util::StreamExt as _;
use store::{Piece, Store, Upload};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, Take};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::http::{ApiError, ApiResult};

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
    /// Returns the place of all uploads of this database. It is not that of outputs, whose groups
    /// have the numbers of incarnations.
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

/// Returns the error for what the state of a source does not allow.
pub fn conflict(message: String) -> ApiError {
    ApiError::Conflict(ErrorCode::SourceConflict, message)
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
/// Returns the error for stored bytes of a source that cannot be read.
pub fn unreadable(id: &str, error: io::Error) -> ApiError {
    let of_blob = error
        .get_ref()
        .and_then(|it| it.downcast_ref::<BlobError>());
    match of_blob.and_then(BlobError::damaged_blob) {
        Some(piece) => {
            // The client need not know where the pieces are.
            tracing::warn!(source = id, %error, "a source is damaged");
            conflict(format!(
                "The source '{id}' is damaged: its piece {piece} is not as it was written. Restore the piece, or send the source again."
            ))
        }
        None => ApiError::SourcesUnusable(error.to_string()),
    }
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
    open: Option<OpenPiece>,
}

/// A piece that is being read.
struct OpenPiece {
    piece: Piece,
    reader: Take<BlobReader>,
    read: Fingerprinter,
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
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.next_piece().await?,
        };
        let end = self.end.min(open.piece.first_byte + open.piece.bytes);
        let most = (READ as u64).min(end - self.next);
        let mut bytes = Vec::with_capacity(READ);
        let mut part = (&mut open.reader).take(most);
        let is_short = (part.read_to_end(&mut bytes).await? as u64) < most;
        open.read.add(&bytes);
        self.next += most;
        if self.next < end && !is_short {
            self.open = Some(open);
        } else {
            self.compare(open).await?;
        }
        Ok(Some(bytes.into()))
    }

    /// Opens the piece with the next byte, at that byte.
    async fn next_piece(&mut self) -> io::Result<OpenPiece> {
        if self.pieces.is_empty() {
            let pieces = self.store.upload_pieces(self.number, self.next, PIECES);
            self.pieces = pieces.await.map_err(io::Error::other)?.into();
        }
        let broken = || io::Error::other("a piece is missing");
        let piece = self.pieces.pop_front().ok_or_else(broken)?;
        let before = self.next.checked_sub(piece.first_byte).ok_or_else(broken)?;
        if before >= piece.bytes {
            return Err(broken());
        }
        let name = self.place.name(self.number, &piece.name);
        let opened = self.place.blobs.open(&name).await;
        let mut open = OpenPiece {
            // One that has become longer is not read to its end.
            reader: opened.map_err(io::Error::other)?.take(piece.bytes + 1),
            piece,
            read: Fingerprinter::default(),
        };
        open.skip(before).await?;
        Ok(open)
    }

    /// Reads the rest of a piece, and checks that it is as it was written.
    async fn compare(&mut self, mut open: OpenPiece) -> io::Result<()> {
        open.skip(u64::MAX).await?;
        let written = Fingerprint {
            bytes: open.piece.bytes,
            crc32: open.piece.crc32,
        };
        let compared = written.check(open.read.finish(), &self.place.blobs, &open.piece.name);
        compared.map_err(io::Error::other)
    }
}

impl OpenPiece {
    /// Reads so many bytes, as far as they are there.
    async fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            let there = self.reader.fill_buf().await?;
            let length = there
                .len()
                .min(usize::try_from(bytes).unwrap_or(usize::MAX));
            if length == 0 {
                break;
            }
            self.read.add(&there[..length]);
            self.reader.consume(length);
            bytes -= length as u64;
        }
        Ok(())
    }
}
