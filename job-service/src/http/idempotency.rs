//! The key of a request that creates a job, so that sending the request twice creates one job.

use axum::http::HeaderMap;
use contract::rest::ErrorCode;
use sha2::{Digest as _, Sha256};
use store::RequestKey;

use crate::http::error::{ApiError, ApiResult};

/// The header with the key of a request that creates a job.
pub const KEY_HEADER: &str = "idempotency-key";
/// The longest key, in characters.
const MAX_KEY_CHARS: usize = 255;
/// The key that a client gave to a request.
#[derive(Debug)]
pub struct Key {
    pub text: String,
    /// What the request asks for beside the definition of the job.
    asks_for: String,
}

impl Key {
    /// Returns the key in these headers, if there is one. `asks_for` is what the request asks for
    /// beside the definition of the job.
    ///
    /// # Errors
    /// Returns 400 for more than one key, and for an impossible one.
    pub fn of(headers: &HeaderMap, asks_for: String) -> ApiResult<Option<Self>> {
        let mut keys = headers.get_all(KEY_HEADER).iter();
        let Some(key) = keys.next() else {
            return Ok(None);
        };
        match (key.to_str(), keys.next()) {
            (Ok(text), None) => Self::new(text, asks_for).map(Some),
            _ => Err(impossible_key()),
        }
    }

    /// Returns the key with this text, which the page or a client made.
    ///
    /// # Errors
    /// Returns 400 for an impossible text.
    pub fn new(text: &str, asks_for: String) -> ApiResult<Self> {
        let text = text.trim();
        let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
        if text.is_empty() || text.len() > MAX_KEY_CHARS || !text.bytes().all(is_visible) {
            return Err(impossible_key());
        }
        Ok(Self {
            text: text.to_owned(),
            asks_for,
        })
    }

    /// Returns the key as the store keeps it.
    pub fn stored(self, content_hash: &[u8; 32]) -> RequestKey {
        RequestKey {
            fingerprint: self.fingerprint(content_hash),
            key: self.text,
        }
    }

    /// Returns the fingerprint of the request, if it creates a job with this content.
    pub fn fingerprint(&self, content_hash: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.asks_for.as_bytes());
        hash.update([0]);
        hash.update(content_hash);
        hash.finalize().into()
    }
}

fn impossible_key() -> ApiError {
    ApiError::bad_request(
        ErrorCode::InvalidParameter,
        format!(
            "The header 'Idempotency-Key' must be there once, with 1 to {MAX_KEY_CHARS} visible ASCII characters."
        ),
    )
}
