//! What the service does with uploads: receives their bytes, each piece a blob, and shows them.
//!
//! What must stay true:
//! - A piece counts when its blob is safe and its row is committed. What a request had not stored
//!   when it broke off, its client sends again.
//! - No response, log or error shows a key.

use axum::body::Body;
use blobs::Fingerprint;
use contract::PartitionId;
use contract::rest::{ErrorCode, UploadedSource, UploadedSources};
use sha2::{Digest as _, Sha256};
use store::{Appended, DeletedUpload, Piece, Quota, Upload, upload_room};
use uuid::Uuid;

use crate::http::{ApiError, ApiResult, Client, no_source};
use crate::sources::uploads::{PIECE, Pieces, Place, Range, Received, conflict, unreadable};
use crate::state::AppState;

impl AppState {
    /// Returns where uploads are.
    ///
    /// # Errors
    /// Returns 400 if there is no place for them.
    pub async fn upload_place(&self) -> ApiResult<Place> {
        let Some(blobs) = &self.options.outputs.blobs else {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidRequest,
                "This service takes no sources, because it has no place for them: its operator sets it with --outputs-folder.",
            ));
        };
        Ok(Place::of(&self.store, blobs).await?)
    }

    /// Returns a source of a partition.
    ///
    /// # Errors
    /// Returns 404 if there is none with this id.
    pub async fn find_upload(&self, partition: &PartitionId, id: &str) -> ApiResult<Upload> {
        let found = self.store.upload(partition, id).await?;
        found.ok_or_else(|| no_source(partition, id))
    }

    /// Returns a page of the sources of a partition, the oldest first, that follow the one with
    /// this number.
    pub async fn uploaded_sources(
        &self,
        partition: &PartitionId,
        after: i64,
        limit: u32,
    ) -> ApiResult<UploadedSources> {
        let mut found = self.store.uploads(partition, after, limit + 1).await?;
        let has_more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| last.number.to_string());
        let (bytes, _) = self.store.upload_room(partition).await?;
        let sources = found.into_iter().map(|it| self.shown_upload(it));
        Ok(UploadedSources {
            sources: sources.collect(),
            next,
            bytes,
            max_bytes: self.options.uploads.limits.of_partition,
        })
    }

    /// Deletes a source.
    ///
    /// # Errors
    /// Returns 404 if there is none with this id, and 409 if a job names it.
    pub async fn delete_uploaded_source(&self, partition: &PartitionId, id: &str) -> ApiResult<()> {
        match self.store.delete_upload(partition, id).await? {
            DeletedUpload::Deleted => Ok(()),
            DeletedUpload::Gone => Err(no_source(partition, id)),
            DeletedUpload::Used(job) => Err(conflict(format!(
                "The job '{job}' names the source '{id}'. Delete the job: the source is deleted with the last one that names it."
            ))),
        }
    }

    /// Returns an upload as clients see it.
    pub fn shown_upload(&self, upload: Upload) -> UploadedSource {
        let keep = i64::try_from(self.options.uploads.keep.as_millis()).unwrap_or(i64::MAX);
        UploadedSource {
            id: upload.id,
            bytes: upload.bytes,
            committed: upload.digest.is_some(),
            sha256: upload.digest,
            create_time: upload.created_time,
            expiry_time: upload
                .jobs
                .is_empty()
                .then(|| upload.touched_time.saturating_add(keep)),
            jobs: upload.jobs,
        }
    }

    /// Adds the bytes of a body to an upload, from this position on. `length` is how many there
    /// are, as far as the client says it.
    ///
    /// # Errors
    /// Returns 404 and 409 if that is impossible, 408 if the client sends nothing any more, 503 if
    /// the bytes cannot be stored, and 507 if there are too many. What was stored before stays.
    pub async fn append_to_upload(
        &self,
        partition: &PartitionId,
        id: &str,
        (offset, length): (u64, Option<u64>),
        body: Body,
        client: &Client,
    ) -> ApiResult<Upload> {
        let place = self.upload_place().await?;
        let taken = self.sources.writers.take(client);
        let _taken = taken.ok_or(ApiError::Busy("as many uploads as it may take at once"))?;
        let mut upload = self.find_upload(partition, id).await?;
        if upload.digest.is_some() {
            return Err(committed(id));
        }
        if upload.bytes != offset {
            return Err(elsewhere(id, upload.bytes, offset));
        }
        self.check_room(partition, length.unwrap_or(0)).await?;
        let mut pieces = Pieces::new(body, &self.http.body_bytes);
        loop {
            // What has arrived before a body breaks off is worth storing.
            let Received {
                bytes,
                ended,
                reserved,
            } = pieces.next().await;
            if !bytes.is_empty() {
                upload = self.store_piece(partition, &upload, &place, bytes).await?;
            }
            drop(reserved);
            match ended {
                Some(Ok(())) => return Ok(upload),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
    }

    async fn store_piece(
        &self,
        partition: &PartitionId,
        upload: &Upload,
        place: &Place,
        bytes: Vec<u8>,
    ) -> ApiResult<Upload> {
        let id = &upload.id;
        let piece = Piece {
            first_byte: upload.bytes,
            bytes: bytes.len() as u64,
            // Two requests may write the same piece at the same time.
            name: format!("{:016}-{}", upload.bytes, Uuid::new_v4().simple()),
            crc32: Fingerprint::of(&bytes).crc32,
        };
        let name = place.name(upload.number, &piece.name);
        let written = place.blobs.write(&name, bytes.into()).await;
        written.map_err(|error| ApiError::SourcesUnusable(error.to_string()))?;
        let limits = self.options.uploads.limits;
        let appended = self
            .store
            .append_to_upload(partition, id, &piece, limits)
            .await?;
        let refusal = match appended {
            Appended::Added(upload) => return Ok(upload),
            Appended::Gone => no_source(partition, id),
            Appended::Committed => committed(id),
            Appended::Elsewhere(next) => elsewhere(id, next, piece.first_byte),
            Appended::Full(quota) => self.full(partition, quota),
        };
        if let Err(error) = place.blobs.delete(&name).await {
            tracing::debug!(%error, "a piece that is not used is left to the sweeper");
        }
        Err(refusal)
    }

    /// Refuses more bytes than there is room for.
    async fn check_room(&self, partition: &PartitionId, more: u64) -> ApiResult<()> {
        let limits = self.options.uploads.limits;
        let more = upload_room(more, more.div_ceil(PIECE as u64));
        let (own, all) = self.store.upload_room(partition).await?;
        if own.saturating_add(more) > limits.of_partition {
            return Err(self.full(partition, Quota::Partition(own)));
        }
        if all.saturating_add(more) > limits.of_all {
            return Err(self.full(partition, Quota::All(all)));
        }
        Ok(())
    }

    /// Returns the error for an upload that there is no room for.
    pub fn full(&self, partition: &PartitionId, quota: Quota) -> ApiError {
        let limits = self.options.uploads.limits;
        ApiError::SourcesFull(match quota {
            Quota::Partition(bytes) => format!(
                "The sources of the partition '{partition}' take {bytes} bytes of room, and with this one they would take more than {}. Delete \
                 sources, or jobs that name some, or let the operator raise --uploads-size-per-partition.",
                limits.of_partition
            ),
            Quota::All(bytes) => format!(
                "All sources take {bytes} bytes of room, and with this one they would take more than {}. Delete sources, or jobs that name some, or \
                 let the operator raise --uploads-size.",
                limits.of_all
            ),
            Quota::Number(most) => format!(
                "The partition '{partition}' has {most} sources, as many as it may have. Delete sources, or jobs that name some."
            ),
            Quota::NumberOfAll(most) => format!(
                "The service has {most} sources, as many as it may have. Delete sources, or jobs that name some."
            ),
            Quota::Pieces(most) => format!(
                "The source has {most} pieces, as many as it may have. Send it again in larger ones: a request stores a piece for each {PIECE} \
                 bytes."
            ),
        })
    }

    /// Returns the SHA-256 of the bytes that are stored, in hexadecimal.
    pub async fn digest_of(&self, upload: &Upload) -> ApiResult<String> {
        let place = self.upload_place().await?;
        let mut reader = Range::new(self.store.clone(), place, upload, 0, upload.bytes);
        let mut hash = Sha256::new();
        while let Some(bytes) = reader
            .next()
            .await
            .map_err(|error| unreadable(&upload.id, error))?
        {
            hash.update(&bytes);
        }
        Ok(format!("{:x}", hash.finalize()))
    }
}

fn committed(id: &str) -> ApiError {
    conflict(format!(
        "The source '{id}' is committed, and nothing can be added to it. Create another one."
    ))
}

fn elsewhere(id: &str, next: u64, sent: u64) -> ApiError {
    conflict(format!(
        "The source '{id}' has {next} bytes: go on with Upload-Offset {next}, and not {sent}."
    ))
}
