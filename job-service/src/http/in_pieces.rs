//! Sends a long body in pieces, and reads each piece when the client has taken the one before.
//!
//! What must stay true: while a body waits for its client, the service holds one piece of it, and
//! no connection of the database. So clients that do not read cost memory by their number, and not
//! by the length of what they have asked for.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use tracing::warn;

use crate::http::error::{ApiError, ApiResult};
use crate::state::AppState;

/// The bytes from which on a piece is long enough.
pub const PIECE: usize = 64 * 1024;

/// A body, piece by piece.
pub trait Pieces: Send + 'static {
    /// The name of the body in the log.
    const WHAT: &'static str;

    /// Reads the next piece.
    fn next(&mut self, state: &AppState) -> impl Future<Output = ApiResult<String>> + Send;

    /// Returns whether there is no further piece.
    fn is_over(&self) -> bool;
}

/// Returns a response with all pieces. If one cannot be read, the response breaks off, which tells
/// the client that it is not complete.
pub async fn send<P: Pieces>(
    state: Arc<AppState>,
    pieces: P,
    content_type: &'static str,
) -> ApiResult<Response> {
    let mut reader = Reader { state, pieces };
    // Read before the response begins, so that it can still be an error.
    let first = Bytes::from(reader.next().await?);
    let body = if reader.pieces.is_over() {
        Body::from(first)
    } else {
        let further = stream::try_unfold(reader, Reader::further);
        Body::from_stream(stream::iter([Ok(first)]).chain(further))
    };
    Ok(([(header::CONTENT_TYPE, content_type)], body).into_response())
}

struct Reader<P> {
    state: Arc<AppState>,
    pieces: P,
}

impl<P: Pieces> Reader<P> {
    async fn next(&mut self) -> ApiResult<String> {
        let (state, pieces): (&AppState, _) = (&self.state, &mut self.pieces);
        let read = async {
            // A piece is longest while it is read.
            let _place = state.http.pieces_at_once.acquire().await;
            pieces.next(state).await
        };
        let read = state.http.shutting_down.run_until_cancelled(read).await;
        read.unwrap_or(Err(ApiError::ShuttingDown))
    }

    /// Returns the next piece, and the reader for those behind it.
    async fn further(mut self) -> ApiResult<Option<(Bytes, Self)>> {
        if self.pieces.is_over() {
            return Ok(None);
        }
        let piece = self.next().await;
        let piece =
            piece.inspect_err(|error| warn!(%error, list = P::WHAT, "a list breaks off"))?;
        Ok(Some((piece.into(), self)))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use framework::broker::memory::Memory;
    use store::{Store, StoreOptions};

    use super::*;
    use crate::options::ServiceOptions;

    struct Numbers(u32);

    impl Pieces for Numbers {
        const WHAT: &'static str = "numbers";

        async fn next(&mut self, _: &AppState) -> ApiResult<String> {
            self.0 += 1;
            Ok(format!("{0}\n{0}\n", self.0))
        }

        fn is_over(&self) -> bool {
            self.0 == 2
        }
    }

    #[tokio::test]
    async fn list_is_refused_as_unavailable_while_the_service_shuts_down() {
        let store = Store::temporary(StoreOptions::default());
        let options = ServiceOptions::default();
        let state = Arc::new(AppState::new(store, Arc::new(Memory::new()), options));
        let list = async || send(Arc::clone(&state), Numbers(0), "text/plain").await;
        let all = list().await.unwrap().into_body();
        let all = axum::body::to_bytes(all, 100).await.unwrap();
        assert_eq!(all, "1\n1\n2\n2\n");
        let broken = list().await.unwrap();
        state.http.shutting_down.cancel();
        let refused = list().await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()["x-batchwright-error"], "SHUTTING_DOWN");
        // The connection breaks, so that nobody takes the list for complete.
        axum::body::to_bytes(broken.into_body(), 100)
            .await
            .unwrap_err();
    }
}
