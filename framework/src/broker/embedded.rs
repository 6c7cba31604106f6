//! A durable broker that needs no server: it runs inside this process and stores its messages in
//! one SQLite file.
//!
//! One task, the `writer`, owns the file and all state; every other call sends it a `Command`. The
//! submodule `pipe` models a pipe in memory, and `disk` contains the SQL.
//!
//! What must stay true:
//! - A message is confirmed and delivered only after the commit that contains it.
//! - A folder belongs to one process at a time. Its lock also protects other files that callers
//!   keep in the folder.
//! - No caller waits for an acknowledgement to be written. If the process dies first, the message
//!   is delivered again.
//! - If the writer panics, the process ends: nobody knows what the state in memory is worth then.
//!   The file is what counts, and the next process reads it.

mod disk;
mod pipe;
mod space;
mod stored_headers;
mod sweep;
mod thread;
mod unread;
mod wall_clock;
mod work;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use contract::metrics::{
    EMBEDDED_DISK_FREE, EMBEDDED_DISK_RESERVE, EMBEDDED_FILE, EMBEDDED_MEMORY, EMBEDDED_MESSAGES,
    EMBEDDED_UNREAD,
};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use metrics::gauge;
use tokio::sync::{Mutex, Notify, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::disk::{Disk, Probe};
use self::pipe::{Bounds, ConsumerKey, Id, Message, UnconsumedPipe, rows_of};
pub use self::sweep::{Fate, MessageJob};
use self::thread::Thread;
pub use self::unread::{DroppedOutputs, UnreadBounds};
use self::unread::{Growth, Unread};
use self::wall_clock::WallClock;
use self::work::{Looked, Page};
use self::writer::Writer;
use super::local_fanout::LocalFanout;
use super::queries::LocalQueries;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Confirmer, Consumer, Outgoing,
    Peeked, PipeState, PublishError, Queries, Settlement, Settler, Unanswered,
};
use crate::clock::Clock;
use crate::health::Health;
use crate::meters::set_broker_state;
use crate::supervision::run_or_give_up;

/// The name of the file with the messages.
const FILE: &str = "broker.db";
/// The name of the lock file. It contains the id of the process that holds the lock.
const LOCK: &str = "lock";

/// A durable [`Broker`] in a folder of this machine.
pub struct Embedded {
    folder: PathBuf,
    reserve: u64,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<BrokerState>,
    tasks: TaskTracker,
    announcements: LocalFanout,
    signs: LocalFanout,
    queries: LocalQueries,
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
        let (state_sender, state) = watch::channel(BrokerState::Connected);
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let growth = Arc::new(Notify::new());
        let writer = Writer::new(
            commands.downgrade(),
            state_sender,
            recovered,
            Bounds::default(),
            options.reserve,
            clock,
            options.health.clone(),
        )
        .telling(Growth::new(options.unread, Arc::clone(&growth)));
        let running = writer.run(thread, disk, received, end.clone());
        let health = options.health.clone();
        tasks.spawn(async move { run_or_give_up(&health, writer::SOURCE, running).await });
        tasks.close();
        Ok(Self {
            folder: folder.to_owned(),
            reserve: options.reserve,
            commands,
            state,
            tasks,
            announcements: LocalFanout::new(options.health.clone()),
            signs: LocalFanout::new(options.health),
            queries: LocalQueries::default(),
            sweep: Mutex::new(()),
            clock: options.clock,
            bounds: options.unread,
            unread: Mutex::default(),
            unread_bytes: AtomicU64::new(0),
            growth,
            _end: end.drop_guard(),
        })
    }

    /// Sends the writer a command and waits for its reply.
    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, BrokerError> {
        let (reply, received) = oneshot::channel();
        self.commands
            .send(command(reply))
            .map_err(|_| BrokerError::Closed)?;
        received.await.map_err(|_| BrokerError::Closed)
    }
}

impl Broker for Embedded {
    fn publish(&self, message: Outgoing) -> Confirm {
        if let Some(error) = PublishError::of_name(&message.pipe) {
            return Confirm::ready(Err(error));
        }
        let (confirmer, confirm) = Confirm::pair();
        // If the writer has ended, the confirmer is dropped here, which resolves the confirm to
        // `Closed`.
        drop(self.commands.send(Command::Publish(message, confirmer)));
        confirm
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX).max(1);
        self.request(move |reply| Command::Consume {
            pipe: pipe.into(),
            prefetch,
            reply,
        })
        .boxed()
    }

    fn largest_prefetch(&self) -> u32 {
        writer::RESIZABLE_TO
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.announcements.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.announcements.subscribe())).boxed()
    }

    fn carries_signs(&self) -> bool {
        true
    }

    fn tell(&self, sign: Bytes) -> Confirm {
        self.signs.announce(sign)
    }

    fn signs(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.signs.subscribe())).boxed()
    }

    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        self.queries.ask(pipe, question, limit).boxed()
    }

    fn carries_queries(&self) -> bool {
        true
    }

    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        ready(Ok(self.queries.listen(pipe))).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.request(|reply| Command::Depth {
            pipe: pipe.into(),
            reply,
        })
        .boxed()
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        async move {
            let all = self.request(|reply| Command::Look { reply }).await?;
            let own = all.into_iter().find(|looked| *looked.name == *pipe);
            Ok(own.map(|looked| looked.state))
        }
        .boxed()
    }

    fn look_at_all(
        &self,
    ) -> BoxFuture<'_, Result<Option<BTreeMap<String, PipeState>>, BrokerError>> {
        async move {
            let all = self.request(|reply| Command::Look { reply }).await?;
            let all = all.into_iter();
            Ok(Some(
                all.map(|looked| (looked.name.to_string(), looked.state))
                    .collect(),
            ))
        }
        .boxed()
    }

    fn peek<'a>(
        &'a self,
        pipe: &'a str,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<Peeked>>, BrokerError>> {
        async move {
            let all = self.request(|reply| Command::Look { reply }).await?;
            let Some(looked) = all.into_iter().find(|looked| *looked.name == *pipe) else {
                return Ok(Some(Vec::new()));
            };
            let page = Page {
                number: looked.number,
                after: rows_of(looked.number).0,
                bytes,
            };
            let messages = self.request(|reply| Command::Peek { page, reply }).await?;
            let messages = messages.into_iter().take(limit);
            let peeked = messages.map(|Message { headers, body, .. }| Peeked { headers, body });
            Ok(Some(peeked.collect()))
        }
        .boxed()
    }

    fn state(&self) -> BrokerState {
        if self.commands.is_closed() {
            BrokerState::Closed
        } else {
            self.state.borrow().clone()
        }
    }

    fn measure(&self) -> BoxFuture<'_, ()> {
        async {
            set_broker_state(self.state().name());
            if let Ok(size) = self.request(|reply| Command::Measure { reply }).await {
                gauge!(EMBEDDED_MESSAGES).set(number(size.messages));
                gauge!(EMBEDDED_MEMORY).set(number(size.memory));
            }
            gauge!(EMBEDDED_UNREAD).set(number(self.unread_bytes.load(Ordering::Relaxed)));
            let bytes = |file: &str| {
                let file = std::fs::metadata(self.folder.join(file));
                file.map_or(0, |file| file.len())
            };
            let log = format!("{FILE}-wal");
            gauge!(EMBEDDED_FILE).set(number(bytes(FILE) + bytes(&log)));
            gauge!(EMBEDDED_DISK_RESERVE).set(number(self.reserve));
            let free = Probe::of(&self.folder).free();
            gauge!(EMBEDDED_DISK_FREE).set(free.map_or(f64::NAN, number));
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            // Fails in a second call; it then waits like the first.
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

/// What the broker holds.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// The messages that wait in all pipes.
    messages: u64,
    /// The bytes of the messages in memory.
    memory: u64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}

/// A request to the writer. Requests are processed in order.
enum Command {
    Publish(Outgoing, Confirmer),
    Settle(Id, Settlement),
    Consume {
        pipe: Arc<str>,
        prefetch: usize,
        reply: oneshot::Sender<Consumer>,
    },
    /// Changes the prefetch of a consumer.
    Resize {
        pipe: Arc<str>,
        consumer: ConsumerKey,
        prefetch: usize,
    },
    Depth {
        pipe: Arc<str>,
        reply: oneshot::Sender<u64>,
    },
    Measure {
        reply: oneshot::Sender<Size>,
    },
    /// Returns the pipes that contain messages and have no consumer.
    Unconsumed {
        reply: oneshot::Sender<Vec<UnconsumedPipe>>,
    },
    /// Returns what is known about all pipes.
    Look {
        reply: oneshot::Sender<Vec<Looked>>,
    },
    Peek {
        page: Page,
        reply: oneshot::Sender<Vec<Message>>,
    },
    /// Deletes messages of a pipe unless more than `joined` consumers have joined it.
    Discard {
        ids: Vec<Id>,
        joined: u64,
        reply: oneshot::Sender<u64>,
    },
    Close,
}

/// Sends settlements to the writer. The tag of a delivery is the id of its message.
struct WriterSettler(mpsc::WeakUnboundedSender<Command>);

impl Settler for WriterSettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        if let Some(commands) = self.0.upgrade() {
            // Fails if the writer has ended; the next process then delivers the message again.
            drop(commands.send(Command::Settle(tag.cast_signed(), settlement)));
        }
    }
}

/// A locked file, until this is dropped.
#[derive(Debug)]
struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is being started has it, too, for a
        // moment.
        drop(self.0.unlock());
    }
}

/// Locks the folder for this process. The operating system releases the lock when the file is
/// closed, however the process ends.
fn lock(folder: &Path) -> Result<FolderLock, BrokerError> {
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
