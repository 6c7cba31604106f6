//! A local broker in a folder of this machine, which stores its messages in one SQLite file.
//!
//! The writer is a task, and the thread of the disk is at work meanwhile. The submodule `disk`
//! contains the SQL.
//!
//! What must stay true:
//! - A folder belongs to one process at a time. Its lock also protects other files that callers
//!   keep in the folder.
//! - If the writer panics, the process ends: nobody knows what the state in memory is worth then.
//!   The file is what counts, and the next process reads it.

pub(super) mod disk;
mod stored_headers;
mod sweep;
mod unread;

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use contract::metrics::{
    EMBEDDED_DISK_FREE, EMBEDDED_DISK_RESERVE, EMBEDDED_FILE, EMBEDDED_MEMORY, EMBEDDED_MESSAGES,
    EMBEDDED_UNREAD,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use metrics::gauge;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::disk::{Disk, Probe};
pub use self::sweep::{Fate, MessageJob};
pub use self::unread::{DroppedOutputs, UnreadBounds};
use self::unread::{STEPS_OF_BYTES, Unread};
use super::local::growth::Growth;
use super::local::pipe::Bounds;
use super::local::thread::Thread;
use super::local::wall_clock::WallClock;
use super::local::writer::{SOURCE, Writer};
use super::local::{Command, Commands, Local, Place, Size};
use super::{BrokerError, BrokerState};
use crate::clock::Clock;
use crate::health::Health;
use crate::supervision::run_or_give_up;

/// The name of the file with the messages.
const FILE: &str = "broker.db";
/// The name of the lock file. It contains the id of the process that holds the lock.
const LOCK: &str = "lock";

/// A durable [`Broker`](super::Broker) in a folder of this machine.
pub type Embedded = Local<Folder>;

/// The folder of an [`Embedded`] broker.
pub struct Folder {
    path: PathBuf,
    reserve: u64,
    state: watch::Receiver<BrokerState>,
    tasks: TaskTracker,
    /// Held by the sweep that is under way.
    sweep: Mutex<()>,
    clock: Clock,
    bounds: UnreadBounds,
    unread: Mutex<Unread>,
    unread_bytes: AtomicU64,
    /// Notified when much is new in pipes without consumers.
    growth: Arc<Notify>,
    _end: DropGuard,
}

/// The settings of an [`Embedded`] broker.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// The number of bytes of the file system that stay free: with less, published messages wait
    /// unconfirmed, and the state is [`BrokerState::Blocked`]. Half of them are for messages that
    /// consumers take soon, so that work can go on.
    pub reserve: u64,
    /// How many results wait in pipes without consumers; [`Embedded::drop_unread`] bounds them.
    pub unread: UnreadBounds,
    /// The clock that delays are measured by. If it is set back, a message becomes visible within
    /// its delay all the same.
    pub clock: Clock,
    /// What the process can do. Everything in a process shares one.
    pub health: Health,
}

impl EmbeddedOptions {
    /// The default reserve, in bytes. It has room for the log of the file.
    pub const DEFAULT_RESERVE: u64 = 64 << 20;
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            reserve: Self::DEFAULT_RESERVE,
            unread: UnreadBounds::default(),
            clock: Clock::system(),
            health: Health::default(),
        }
    }
}

impl Embedded {
    /// Opens the broker in a folder, and creates both if they do not exist. Messages that were
    /// delivered to an earlier process and not settled are delivered again, with a higher count.
    ///
    /// # Errors
    /// [`BrokerError::FolderInUse`] if another process has opened the folder,
    /// [`BrokerError::Unusable`] if the folder or its files cannot be created or read.
    pub async fn open(folder: &Path) -> Result<Self, BrokerError> {
        Self::open_with(folder, EmbeddedOptions::default()).await
    }

    /// Opens the broker like [`Embedded::open`], with these options.
    ///
    /// # Errors
    /// Those of [`Embedded::open`].
    pub async fn open_with(folder: &Path, options: EmbeddedOptions) -> Result<Self, BrokerError> {
        let location = || folder.display().to_string();
        std::fs::create_dir_all(folder)
            .map_err(|error| BrokerError::unusable(location(), error))?;
        let lock = lock(folder)?;
        let clock = WallClock::new(options.clock);
        let (file, probe) = (folder.join(FILE), Probe::of(folder));
        let (reserve, now) = (options.reserve, clock.now());
        let thread = Thread::start().map_err(|error| BrokerError::unusable(location(), error))?;
        let opening = thread.run(move || {
            let (disk, recovered) = Disk::open(&file, probe, reserve, now)?;
            Ok((disk.with_lock(lock), recovered))
        });
        let opened: Result<_, disk::Error> = opening.await;
        let (disk, recovered) = opened.map_err(|error| BrokerError::unusable(location(), error))?;
        let (commands, received) = mpsc::unbounded_channel();
        let commands: Arc<dyn Commands> = Arc::new(commands);
        let (state_sender, state) = watch::channel(BrokerState::Connected);
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let growth = Arc::new(Notify::new());
        let step = options.unread.bytes / STEPS_OF_BYTES;
        let writer = Writer::new(
            Arc::downgrade(&commands),
            state_sender,
            recovered,
            Bounds::default(),
            options.reserve,
            clock,
            options.health.clone(),
        )
        .telling(Growth::new(step, Arc::clone(&growth)));
        let running = writer.run(thread, disk, received, end.clone());
        let health = options.health.clone();
        tasks.spawn(async move { run_or_give_up(&health, SOURCE, running).await });
        tasks.close();
        let folder = Folder {
            path: folder.to_owned(),
            reserve: options.reserve,
            state,
            tasks,
            sweep: Mutex::new(()),
            clock: options.clock,
            bounds: options.unread,
            unread: Mutex::default(),
            unread_bytes: AtomicU64::new(0),
            growth,
            _end: end.drop_guard(),
        };
        Ok(Self::at(folder, commands, options.health))
    }
}

impl Place for Folder {
    const KIND: &'static str = "embedded";

    fn state(&self) -> BrokerState {
        self.state.borrow().clone()
    }

    fn measure(&self, size: Size) {
        gauge!(EMBEDDED_MESSAGES).set(number(size.messages));
        gauge!(EMBEDDED_MEMORY).set(number(size.memory));
        gauge!(EMBEDDED_UNREAD).set(number(self.unread_bytes.load(Ordering::Relaxed)));
        let bytes = |file: &str| {
            let file = std::fs::metadata(self.path.join(file));
            file.map_or(0, |file| file.len())
        };
        let log = format!("{FILE}-wal");
        gauge!(EMBEDDED_FILE).set(number(bytes(FILE) + bytes(&log)));
        gauge!(EMBEDDED_DISK_RESERVE).set(number(self.reserve));
        let free = Probe::of(&self.path).free();
        gauge!(EMBEDDED_DISK_FREE).set(free.map_or(f64::NAN, number));
    }

    fn close<'a>(&'a self, commands: &'a dyn Commands) -> BoxFuture<'a, ()> {
        async {
            // In a second call, nobody takes it; it then waits like the first.
            commands.send(Command::Close);
            self.tasks.wait().await;
        }
        .boxed()
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({}, {:?})", self.path.display(), self.state())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}

/// A locked file, until this is dropped.
#[derive(Debug)]
pub(super) struct FolderLock(pub(super) File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is being started has it, too, for a
        // moment.
        drop(self.0.unlock());
    }
}

/// Locks the folder for this process. The operating system releases the lock when the file is
/// closed, however the process ends.
pub(super) fn lock(folder: &Path) -> Result<FolderLock, BrokerError> {
    let unusable = |error: std::io::Error| {
        let location = folder.display().to_string();
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                let reason =
                    format!("{error}; let this user write to the folder, or choose another one");
                BrokerError::unusable(location, reason)
            }
            _ => BrokerError::unusable(location, error),
        }
    };
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
            // The other process may not have written its id yet.
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
    Ok(FolderLock(file))
}
