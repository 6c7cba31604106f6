//! Reads the body of a request within bounds: its own size and time, and the bytes of all bodies
//! together.
//!
//! What must stay true: the bytes of all bodies in memory are bounded, however many clients
//! send requests.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::error::{ApiError, ApiResult};
use crate::http::notes::Unknown;
use crate::state::AppState;
use contract::rest::ErrorCode;

/// The body of a request. Its bytes count as in flight until it is dropped.
#[derive(Debug)]
pub struct RequestBody {
    /// The bytes of the body.
    pub bytes: Vec<u8>,
    _in_flight: Option<OwnedSemaphorePermit>,
}

impl RequestBody {
    /// Returns the body as the JSON that an operation reads. An empty body counts as an empty
    /// object.
    pub fn parsed<T: DeserializeOwned>(&self) -> ApiResult<T> {
        serde_json::from_slice(self.or_empty_object()).map_err(not_understood)
    }

    /// Returns the body as [`parsed`](Self::parsed) does, and notes the fields that the operation
    /// does not know.
    pub fn parsed_noting<T: DeserializeOwned>(&self, unknown: &mut Unknown) -> ApiResult<T> {
        let body = self.or_empty_object();
        // serde's derived types would accept an array instead of an object.
        serde_json::from_slice::<HashMap<String, &RawValue>>(body).map_err(not_understood)?;
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = serde_ignored::deserialize(&mut json, |path| {
            unknown.add("field", &path.to_string().replace(".?", ""));
        });
        parsed.map_err(not_understood)
    }

    fn or_empty_object(&self) -> &[u8] {
        if self.bytes.is_empty() {
            b"{}"
        } else {
            &self.bytes
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn not_understood(error: serde_json::Error) -> ApiError {
    let message = format!("The body cannot be understood: {error}.");
    ApiError::bad_request(ErrorCode::InvalidJson, message)
}

impl FromRequest<Arc<AppState>> for RequestBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<AppState>) -> ApiResult<Self> {
        let most = state.options.max_body_bytes;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > most) {
            return Err(ApiError::TooLarge(most));
        }
        let limit = state.options.limits.body_time;
        let read = read(request.into_body(), most, &state.http.body_bytes);
        tokio::time::timeout(limit, read)
            .await
            .unwrap_or(Err(ApiError::TooSlow(limit)))
    }
}

/// Reads a body. Reserves its bytes as they arrive, so that a client cannot reserve what it does
/// not send.
async fn read(body: Body, most: usize, budget: &Arc<Semaphore>) -> ApiResult<RequestBody> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut in_flight: Option<OwnedSemaphorePermit> = None;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::bad_request(
                ErrorCode::InvalidRequest,
                format!("The body could not be read: {error}"),
            )
        })?;
        if bytes.len() + chunk.len() > most {
            return Err(ApiError::TooLarge(most));
        }
        let reserved = u32::try_from(chunk.len())
            .ok()
            .and_then(|length| Arc::clone(budget).try_acquire_many_owned(length).ok())
            .ok_or(ApiError::Busy(
                "as many bytes of request bodies as it may hold",
            ))?;
        match &mut in_flight {
            Some(permit) => permit.merge(reserved),
            None => in_flight = Some(reserved),
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(RequestBody {
        bytes,
        _in_flight: in_flight,
    })
}
