//! What the requests of all features share.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::http::error::{ApiError, ApiResult};
use crate::http::places::{Client, Place, Places};
use crate::options::Limits;

/// How many pieces of long bodies are read at the same time.
const PIECES_AT_ONCE: usize = 8;

/// What the requests of all features share.
#[derive(Debug)]
pub struct HttpState {
    /// Cancelled when the service shuts down. Ends the event streams, which would otherwise stay
    /// open.
    pub shutting_down: CancellationToken,
    /// The bytes that further request bodies may have.
    pub body_bytes: Arc<Semaphore>,
    /// The number of further pieces of long bodies that may be read at the same time.
    pub pieces_at_once: Semaphore,
    /// The number of further event streams. They take at most half of the connections.
    event_streams: Arc<Places>,
}

impl HttpState {
    pub fn new(limits: &Limits) -> Self {
        Self {
            shutting_down: CancellationToken::new(),
            body_bytes: Arc::new(Semaphore::new(limits.body_bytes)),
            pieces_at_once: Semaphore::new(PIECES_AT_ONCE),
            event_streams: Places::new(limits.connections.div_ceil(2), limits.patience()),
        }
    }

    /// Returns the number of clients that watch a job or all of them.
    pub fn open_event_streams(&self) -> usize {
        self.event_streams.taken()
    }

    /// Takes the place of an event stream, or of a list that is streamed, for a client.
    pub fn event_stream(&self, client: &Client) -> ApiResult<Place> {
        let place = self.event_streams.take(client);
        place.ok_or(ApiError::Busy("as many event streams as it may have"))
    }
}
