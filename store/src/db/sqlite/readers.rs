//! The connections that read.
//!
//! What must stay true: SQLite interrupts a read that takes too long or that nobody waits for any
//! more, so that a few expensive reads do not hold the connections of all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connection::{Connection, ConnectionOptions};
use crate::db::{DbError, Result};

/// How long a session waits for a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// After how many instructions SQLite asks whether a read goes on.
const INSTRUCTIONS: i32 = 1000;

/// Up to a number of connections, opened when they are needed.
#[derive(Debug)]
pub struct Readers {
    options: ConnectionOptions,
    /// How long the reads of one session may take.
    limit: Duration,
    places: Arc<Semaphore>,
    most: u32,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// A connection for one session. It goes back when the reader is dropped.
pub struct Reader {
    /// `Some` until then.
    connection: Option<Connection>,
    limit: Duration,
    end: Instant,
    is_dropped: Arc<AtomicBool>,
    idle: Arc<Mutex<Vec<Connection>>>,
    _place: OwnedSemaphorePermit,
}

impl Readers {
    pub fn new(options: ConnectionOptions, most: u32, limit: Duration) -> Self {
        Self {
            options,
            limit,
            places: Arc::new(Semaphore::new(most as usize)),
            most,
            idle: Arc::default(),
        }
    }

    pub async fn acquire(&self) -> Result<Reader> {
        let place = timeout(PATIENCE, Arc::clone(&self.places).acquire_owned()).await;
        let place = place.map_err(|_| DbError::Unavailable("other reads take too long".into()))?;
        let place = place.map_err(|_| DbError::Unavailable("the store is closed".into()))?;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.options).await?,
        };
        Ok(Reader {
            connection: Some(connection),
            limit: self.limit,
            end: Instant::now() + self.limit,
            is_dropped: Arc::default(),
            idle: Arc::clone(&self.idle),
            _place: place,
        })
    }

    /// Waits for the sessions that read, and closes all connections.
    pub async fn close(&self) {
        let all = self.places.acquire_many(self.most).await;
        self.places.close();
        drop(all);
        let idle = std::mem::take(&mut *self.idle.lock());
        for connection in idle {
            connection.close().await;
        }
    }
}

impl Reader {
    /// Runs this at the connection.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (end, is_dropped) = (self.end, Arc::clone(&self.is_dropped));
        let is_over = move || is_dropped.load(Ordering::Relaxed) || Instant::now() >= end;
        let closed = || DbError::Unavailable("the connection was closed".into());
        let connection = self.connection.as_mut().ok_or_else(closed)?;
        let done = connection.run(move |sqlite| {
            sqlite.progress_handler(INSTRUCTIONS, Some(is_over))?;
            work(sqlite)
        });
        // SQLite says only that it was interrupted.
        done.await?
            .map_err(|error| match error.sqlite_error_code() {
                Some(ErrorCode::OperationInterrupted) => {
                    let limit = self.limit.as_secs();
                    DbError::Unavailable(format!("a read took longer than {limit} s").into())
                }
                _ => error.into(),
            })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
        if let Some(connection) = self.connection.take().filter(|it| !it.is_lost()) {
            let mut idle = self.idle.lock();
            idle.push(connection);
        }
    }
}
