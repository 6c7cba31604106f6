//! The broker that needs no server: durable, inside this process, one file.
//!
//! Hidden here: a task that owns the file and everything in memory ([`writer`]), what a pipe is in memory ([`pipe`]), and
//! the SQL ([`disk`]). What everybody else does is send that task a command.
//!
//! What must stay true:
//! - A message is confirmed and handed out only after the commit that holds it.
//! - A folder belongs to one process at a time. The lock guards whatever else lies in the folder, too.
//! - Nobody waits for an acknowledgement to be written; one that is lost with the process means a second delivery.

mod disk;
mod pipe;
mod writer;

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::disk::Disk;
use self::pipe::{Bounds, Id};
use self::writer::Writer;
use super::local_fanout::LocalFanout;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Confirmer, Consumer, Outgoing,
    Settlement, Settler,
};

/// The file with the messages, and the lock, in the broker's folder.
const FILE: &str = "broker.db";
const LOCK: &str = "lock";

/// A durable broker in a folder of this machine.
pub struct Embedded {
    folder: PathBuf,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<BrokerState>,
    tasks: TaskTracker,
    announcements: LocalFanout,
    _end: DropGuard,
}

impl Embedded {
    /// Opens the broker of this folder, which is made if there is none. Messages that an earlier process had been handed
    /// and had not settled are delivered again, counted.
    pub async fn open(folder: &Path) -> Result<Self, BrokerError> {
        let location = || folder.display().to_string();
        std::fs::create_dir_all(folder)
            .map_err(|error| BrokerError::unusable(location(), error))?;
        let lock = lock(folder)?;
        let (disk, recovered) = Disk::open(&folder.join(FILE))
            .await
            .map_err(|error| BrokerError::unusable(location(), error))?;
        let (commands, received) = mpsc::unbounded_channel();
        let (state_sender, state) = watch::channel(BrokerState::Connected);
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let writer = Writer::new(
            commands.downgrade(),
            state_sender,
            recovered,
            Bounds::default(),
        );
        tasks.spawn(writer.run(disk, received, end.clone(), lock));
        tasks.close();
        Ok(Self {
            folder: folder.to_owned(),
            commands,
            state,
            tasks,
            announcements: LocalFanout::default(),
            _end: end.drop_guard(),
        })
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, BrokerError> {
        let (sender, answer) = oneshot::channel();
        self.commands
            .send(command(sender))
            .map_err(|_| BrokerError::Closed)?;
        answer.await.map_err(|_| BrokerError::Closed)
    }
}

impl Broker for Embedded {
    fn publish(&self, message: Outgoing) -> Confirm {
        let (confirmer, confirm) = Confirm::pair();
        // When the writer is gone, so is the confirmer, which says that the broker is closed.
        drop(self.commands.send(Command::Publish(message, confirmer)));
        confirm
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX).max(1);
        self.ask(move |answer| Command::Consume {
            pipe: pipe.into(),
            prefetch,
            answer,
        })
        .boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.announcements.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.announcements.subscribe())).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.ask(|answer| Command::Depth {
            pipe: pipe.into(),
            answer,
        })
        .boxed()
    }

    fn state(&self) -> BrokerState {
        if self.commands.is_closed() {
            BrokerState::Closed
        } else {
            self.state.borrow().clone()
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            // A second call finds nobody to tell, and waits like the first.
            drop(self.commands.send(Command::Close));
            self.tasks.wait().await;
        }
        .boxed()
    }

    fn kind(&self) -> &'static str {
        "embedded"
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({}, {:?})", self.folder.display(), self.state())
    }
}

/// What the writer is told, in order.
enum Command {
    Publish(Outgoing, Confirmer),
    Settle(Id, Settlement),
    Consume {
        pipe: Arc<str>,
        prefetch: usize,
        answer: oneshot::Sender<Consumer>,
    },
    Depth {
        pipe: Arc<str>,
        answer: oneshot::Sender<u64>,
    },
    Close,
}

/// Settles by telling the writer; the tag is the message's row.
struct WriterSettler(mpsc::WeakUnboundedSender<Command>);

impl Settler for WriterSettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        if let Some(commands) = self.0.upgrade() {
            // A writer that is gone has left the delivery to the next process.
            drop(commands.send(Command::Settle(tag.cast_signed(), settlement)));
        }
    }
}

/// Takes the folder for this process. The system gives it back when the file is closed, however the process ends.
fn lock(folder: &Path) -> Result<File, BrokerError> {
    let unusable =
        |error: std::io::Error| BrokerError::unusable(folder.display().to_string(), error);
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Who holds it may not have written its name yet.
            if file.read_to_string(&mut pid).is_err() || pid.trim().is_empty() {
                pid = "of unknown number".into();
            }
            return Err(BrokerError::FolderInUse {
                folder: folder.display().to_string(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(unusable)?;
    Ok(file)
}
