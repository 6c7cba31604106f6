//! `GET …/sources/{sourceId}/content`: reads a range of an uploaded source.
//!
//! What must stay true: nothing is read without the key, and how long the comparison takes says
//! nothing of it.

use std::io;
use std::ops::Range as Bounds;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::UPLOAD_KEY_HEADER;
use contract::rest::{ErrorBody, ErrorCode};
use futures_util::stream;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::http::{ApiError, ApiResult, Client, Place, SourcePath, StoreErrors, no_source};
use crate::sources::uploads::{Range, unreadable};
use crate::state::AppState;

/// Read a source
///
/// Returns the bytes of a committed source, or the range of them that the header `Range` names. A
/// response breaks off before the end of a stored piece that is not as it was written. Batch
/// workers read sources with a key that they ask the service for over the broker; clients do not
/// get it.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/sources/{sourceId}/content",
    operation_id = "readSource",
    tag = "sources",
    params(
        SourcePath,
        ("X-Batchwright-Source-Key" = String, Header, description = "The key of the source"),
        ("Range" = Option<String>, Header, description = "The bytes: `bytes=FIRST-LAST`", example = "bytes=0-4194303")
    ),
    responses(
        (status = 200, description = "All bytes"),
        (status = 206, description = "The bytes of the range"),
        (status = 400, description = "Invalid partition id or range", body = ErrorBody,
            example = json!({"message": "The header 'Range' must be bytes=FIRST-LAST, within the 38888896 bytes of the source."})),
        (status = 404, description = "There is no such source, or the key is not its key", body = ErrorBody,
            example = json!({"message": "The partition 'acme' has no source 'x'."})),
        (status = 409, description = "The first piece of the range is not as it was written", body = ErrorBody,
            example = json!({"message": "The source 'x' is damaged: its piece 0000000004194304-1c9b is not as it was written. Restore the piece, or send the source again."})),
        StoreErrors
    )
)]
pub async fn read_source(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
    client: Client,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let uploads = state.upload_place().await?;
    let source = state.find_upload(&partition, &id).await?;
    let key = headers.get(UPLOAD_KEY_HEADER).map(HeaderValue::as_bytes);
    // A request without the key learns nothing, not even whether there is such a source.
    if source.digest.is_none() || !key.is_some_and(|key| is_same(key, source.key.as_bytes())) {
        return Err(no_source(&partition, &id));
    }
    let range = range(&headers, source.bytes)?;
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let Bounds { start, end } = range.unwrap_or(0..source.bytes);
    let place = state.sources.readers.take(&client);
    let place = place.ok_or(ApiError::Busy("as many readers of sources as it may have"))?;
    let mut reader = Range::new(state.store.clone(), uploads, &source, start, end);
    // What is wrong from the beginning on is an error of the request.
    let first = reader
        .next()
        .await
        .map_err(|error| unreadable(&id, error))?;
    let streamed = Streamed {
        reader,
        first,
        stop: state.http.shutting_down.clone(),
        _place: place,
    };
    let content_type = "application/octet-stream".to_owned();
    let mut fields = vec![
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_LENGTH, (end - start).to_string()),
    ];
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {start}-{}/{}", end - 1, source.bytes);
        fields.push((header::CONTENT_RANGE, range));
    }
    let pieces = stream::try_unfold(streamed, Streamed::next);
    let mut response = (status, Body::from_stream(pieces)).into_response();
    for (name, value) in fields {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn is_same(one: &[u8], other: &[u8]) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// Returns the range that a request asks for; `None` for all of it.
fn range(headers: &HeaderMap, bytes: u64) -> ApiResult<Option<Bounds<u64>>> {
    let Some(range) = headers.get(header::RANGE) else {
        return Ok(None);
    };
    let bounds = || {
        let (first, last) = range
            .to_str()
            .ok()?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < bytes).then(|| first..last + 1)
    };
    let bounds = bounds().ok_or_else(|| {
        ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!(
                "The header 'Range' must be bytes=FIRST-LAST, within the {bytes} bytes of the source."
            ),
        )
    })?;
    Ok(Some(bounds))
}

/// The body of a response.
struct Streamed {
    reader: Range,
    /// The bytes that are read already.
    first: Option<Bytes>,
    stop: CancellationToken,
    _place: Place,
}

impl Streamed {
    /// Returns the next bytes. An error breaks the connection, so that the reader knows that more
    /// follow.
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        if let Some(first) = self.first.take() {
            return Ok(Some((first, self)));
        }
        let next = self.reader.next();
        let bytes = match self.stop.run_until_cancelled(next).await {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                tracing::warn!(%error, "a stream of a source breaks off");
                return Err(error);
            }
            None => return Err(io::Error::other("the service is shutting down")),
        };
        Ok(bytes.map(|bytes| (bytes, self)))
    }
}
