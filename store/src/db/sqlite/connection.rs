//! One connection to the file, and where its statements run: on a thread of its own, because a
//! statement waits for the disk.
//!
//! What must stay true: work runs in the order in which it is given. So a caller that goes in the
//! middle of a statement leaves nothing behind: what it wants undone is done after the statement,
//! and before anything of the next caller.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::OpenFlags;
use tokio::sync::{mpsc, oneshot};

use crate::db::{Clock, DbError, Result};
use crate::query::collation;

/// How long a statement waits for another process that writes.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// The number of prepared statements that a connection keeps.
const STATEMENTS: usize = 100;

/// How connections to a file are opened.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    path: PathBuf,
    /// `None`: a commit waits for the disk, statements run on a thread for each connection, and
    /// SQLite asks the machine for the time. Otherwise a commit does not wait, statements run
    /// within the caller, and SQLite asks this clock.
    simulated: Option<Arc<Clock>>,
}

impl ConnectionOptions {
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            simulated: None,
        }
    }

    /// The same tasks in the same order get the same results.
    #[cfg(any(test, feature = "internals"))]
    pub fn simulated(path: impl Into<PathBuf>, clock: Arc<Clock>) -> Self {
        Self {
            path: path.into(),
            simulated: Some(clock),
        }
    }

    /// Opens a connection, on the thread on which it is used.
    fn open(&self) -> rusqlite::Result<rusqlite::Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY_LIMIT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        connection.create_collation(collation::NAME, collation::compare)?;
        let synchronous = if self.simulated.is_some() {
            "off"
        } else {
            "full"
        };
        connection.execute_batch(&format!(
            "pragma journal_mode = wal; pragma synchronous = {synchronous}; pragma foreign_keys = on"
        ))?;
        #[cfg(any(test, feature = "internals"))]
        if let Some(clock) = &self.simulated {
            set_clock(&connection, Arc::clone(clock))?;
        }
        Ok(connection)
    }
}

/// Lets statements and triggers see this clock in place of the machine's.
#[cfg(any(test, feature = "internals"))]
fn set_clock(connection: &rusqlite::Connection, clock: Arc<Clock>) -> rusqlite::Result<()> {
    use rusqlite::functions::FunctionFlags;

    // In seconds. The half of a millisecond makes up for what the fraction cannot express.
    #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52 ms")]
    let now = move |_: &rusqlite::functions::Context<'_>| Ok((clock.now() as f64 + 0.5) / 1000.0);
    connection.create_scalar_function("unixepoch", 1, FunctionFlags::SQLITE_UTF8, now)
}

type Work = Box<dyn FnOnce(&mut rusqlite::Connection) + Send>;

/// A connection to the file.
#[derive(Debug)]
pub struct Connection(Place);

#[derive(Debug)]
enum Place {
    Thread {
        work: mpsc::UnboundedSender<Work>,
        /// Ends when the connection is closed.
        closed: oneshot::Receiver<()>,
    },
    Here(Box<rusqlite::Connection>),
    /// Its thread has ended.
    Lost,
}

impl Connection {
    pub async fn open(options: &ConnectionOptions) -> Result<Self> {
        if options.simulated.is_some() {
            return Ok(Self(Place::Here(Box::new(options.open()?))));
        }
        let (work, mut todo) = mpsc::unbounded_channel::<Work>();
        let (opened, is_open) = oneshot::channel();
        let (end, closed) = oneshot::channel::<()>();
        let options = options.clone();
        let run = move || {
            let _end = end;
            match options.open() {
                Ok(mut connection) => {
                    // Nobody waits if the caller has gone.
                    let _ = opened.send(Ok(()));
                    while let Some(work) = todo.blocking_recv() {
                        work(&mut connection);
                    }
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        };
        let spawned = thread::Builder::new().name("sqlite".into()).spawn(run);
        spawned.map_err(|error| DbError::Unavailable(format!("no thread: {error}").into()))?;
        is_open.await.map_err(|_| lost())??;
        Ok(Self(Place::Thread { work, closed }))
    }

    /// Runs this at the connection. If the caller goes meanwhile, it runs to its end all the same.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut rusqlite::Connection) -> T + Send + 'static,
    ) -> Result<T> {
        match &mut self.0 {
            Place::Thread { work: thread, .. } => {
                let (done, result) = oneshot::channel();
                let work = move |connection: &mut _| drop(done.send(work(connection)));
                // If it is not received, the result is dropped.
                drop(thread.send(Box::new(work)));
                let result = result.await.map_err(|_| lost());
                if result.is_err() {
                    self.0 = Place::Lost;
                }
                result
            }
            Place::Here(connection) => {
                let result = work(connection);
                tokio::task::yield_now().await;
                Ok(result)
            }
            Place::Lost => Err(lost()),
        }
    }

    /// Rolls back a transaction that is open, without waiting for it.
    pub fn roll_back(&mut self) {
        // If it fails, it is tried again before the next transaction begins.
        let undo = |connection: &mut rusqlite::Connection| drop(roll_back(connection));
        match &mut self.0 {
            Place::Thread { work, .. } => drop(work.send(Box::new(undo))),
            Place::Here(connection) => undo(connection),
            // It was closed, and so rolled back.
            Place::Lost => {}
        }
    }

    /// Returns whether the connection can be used no more.
    pub fn is_lost(&self) -> bool {
        matches!(self.0, Place::Lost)
    }

    /// Returns once the connection is closed.
    pub async fn close(self) {
        if let Place::Thread { work, closed } = self.0 {
            drop(work);
            // It is always an error: the other side sends nothing.
            _ = closed.await;
        }
    }
}

/// Rolls back a transaction that is open.
pub fn roll_back(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    if connection.is_autocommit() {
        return Ok(());
    }
    connection.execute_batch("rollback")
}

fn lost() -> DbError {
    DbError::Unavailable("the thread of a connection has ended".into())
}
