//! Streams a list as one JSON object on each line, for a client that accepts `application/x-ndjson`. Reads a page at a time.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// The media type of one JSON object on each line.
const NDJSON: &str = "application/x-ndjson";
/// The number of entries that a stream reads at a time.
pub const STREAM_PAGE: usize = 500;

/// The pages of a list.
pub trait Pages: Send + 'static {
    /// What is listed, for the log.
    const WHAT: &'static str;
    type Entry: Serialize;

    /// Reads the next page; `None` if there is no further one.
    fn next(
        &mut self,
        state: &AppState,
    ) -> impl Future<Output = ApiResult<Option<Vec<Self::Entry>>>> + Send;
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

/// Returns all entries of a list as lines of JSON. If a page cannot be read, the response breaks off, which tells the client that
/// it is not complete.
pub async fn stream<P: Pages>(state: Arc<AppState>, pages: P) -> ApiResult<Response> {
    // It may stay open for as long as an event stream.
    let place = Arc::clone(&state.event_streams).try_acquire_owned();
    let place = place.map_err(|_| ApiError::Busy("as many event streams as it may have"))?;
    let mut reader = Reader {
        state,
        pages,
        _place: place,
    };
    // Read before the response begins, so that it can still be an error.
    let first = reader.lines().await?;
    let further = stream::try_unfold(reader, async |mut reader| {
        let lines = reader.lines().await;
        let lines =
            lines.inspect_err(|error| warn!(%error, list = P::WHAT, "a list breaks off"))?;
        Ok::<_, ApiError>(lines.map(|lines| (lines, reader)))
    });
    let all = stream::iter(first.map(Ok)).chain(further);
    let content = [(header::CONTENT_TYPE, NDJSON)];
    Ok((content, Body::from_stream(all)).into_response())
}

struct Reader<P> {
    state: Arc<AppState>,
    pages: P,
    _place: OwnedSemaphorePermit,
}

impl<P: Pages> Reader<P> {
    /// Returns the lines of the next page; `None` if there is no further one.
    async fn lines(&mut self) -> ApiResult<Option<String>> {
        let read = self.pages.next(&self.state);
        let stop = &self.state.shutting_down;
        let Some(page) = stop.run_until_cancelled(read).await else {
            return Err(ApiError::ShuttingDown);
        };
        let Some(page) = page? else { return Ok(None) };
        let mut lines = String::new();
        for entry in page {
            let line = serde_json::to_string(&entry);
            lines.push_str(&line.map_err(|error| ApiError::Bug(error.to_string()))?);
            lines.push('\n');
        }
        Ok(Some(lines))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use framework::broker::memory::Memory;
    use store::Store;

    use super::*;
    use crate::options::ServiceOptions;

    struct Numbers(u32);

    impl Pages for Numbers {
        const WHAT: &'static str = "numbers";
        type Entry = u32;

        async fn next(&mut self, _: &AppState) -> ApiResult<Option<Vec<u32>>> {
            self.0 += 1;
            Ok((self.0 < 3).then(|| vec![self.0; 2]))
        }
    }

    #[tokio::test]
    async fn list_is_refused_as_unavailable_while_the_service_shuts_down() {
        let store = Store::open("memory:").await.unwrap();
        let options = ServiceOptions::default();
        let state = Arc::new(AppState::new(store, Arc::new(Memory::new()), options));
        let all = stream(Arc::clone(&state), Numbers(0)).await.unwrap();
        let all = axum::body::to_bytes(all.into_body(), 100).await.unwrap();
        assert_eq!(all, "1\n1\n2\n2\n");
        let broken = stream(Arc::clone(&state), Numbers(0)).await.unwrap();
        state.shutting_down.cancel();
        let refused = stream(state, Numbers(0)).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()["x-batchwright-error"], "SHUTTING_DOWN");
        // The connection breaks, so that nobody takes the list for complete.
        axum::body::to_bytes(broken.into_body(), 100)
            .await
            .unwrap_err();
    }
}
