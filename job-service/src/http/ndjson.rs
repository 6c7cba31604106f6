//! Streams a list as one JSON object on each line, for a client that accepts
//! `application/x-ndjson`. Reads a page at a time.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;

use crate::http::error::{ApiError, ApiResult};
use crate::http::in_pieces::{self, Pieces};
use crate::http::places::{Client, Place};
use crate::state::AppState;

/// The media type of one JSON object on each line.
const NDJSON: &str = "application/x-ndjson";
/// The number of entries that a stream reads at a time. The store reads fewer if they are large.
pub const STREAM_PAGE: usize = 500;

/// The pages of a list.
pub trait Pages: Send + 'static {
    /// What is listed, for the log.
    const WHAT: &'static str;
    type Entry: Serialize;

    /// Reads the next page.
    fn next(
        &mut self,
        state: &AppState,
    ) -> impl Future<Output = ApiResult<Vec<Self::Entry>>> + Send;

    /// Returns whether there is no further page.
    fn is_over(&self) -> bool;
}

/// Returns whether the client accepts one JSON object on each line.
pub fn accepts_ndjson(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|accepted| accepted.to_str().ok())
        .flat_map(|accepted| accepted.split(','))
        .filter_map(|accepted| accepted.split(';').next())
        .any(|accepted| accepted.trim().eq_ignore_ascii_case(NDJSON))
}

/// Returns all entries of a list as lines of JSON.
pub async fn stream<P: Pages>(
    state: Arc<AppState>,
    client: &Client,
    pages: P,
) -> ApiResult<Response> {
    // It may stay open for as long as an event stream.
    let place = state.http.event_stream(client)?;
    let lines = Lines {
        pages,
        _place: place,
    };
    in_pieces::send(state, lines, NDJSON).await
}

struct Lines<P> {
    pages: P,
    _place: Place,
}

impl<P: Pages> Pieces for Lines<P> {
    const WHAT: &'static str = P::WHAT;

    async fn next(&mut self, state: &AppState) -> ApiResult<String> {
        let mut lines = String::new();
        for entry in self.pages.next(state).await? {
            lines.push_str(&json(&entry)?);
            lines.push('\n');
        }
        Ok(lines)
    }

    fn is_over(&self) -> bool {
        self.pages.is_over()
    }
}

/// Returns a value as JSON.
pub fn json(value: &impl Serialize) -> ApiResult<String> {
    serde_json::to_string(value).map_err(|error| not_json(&error))
}

/// Returns the error of a value that is no JSON, which is a bug.
pub fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::Bug(error.to_string())
}
