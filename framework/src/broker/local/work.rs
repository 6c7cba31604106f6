//! One commit and what is read after it, carried out while the writer collects the next commands.

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::pipe::{Id, Message, pipe_of};
use super::storage::{Batch, Delayed, Storage};
use super::thread::Thread;
use super::wall_clock::Due;
use crate::broker::{Confirmer, Headers, PipeState};

/// The most that is read from a pipe at a time.
const PAGE_MESSAGES: usize = 4096;
/// How many delayed messages are moved to their pipes at a time.
const DUE_MESSAGES: usize = 1000;
/// The bytes of their bodies after which no further one is.
const DUE_BYTES: usize = 4 << 20;
/// With more delayed messages than this, they are not counted.
const COUNTED_DELAYED: i64 = 10_000;

/// A batch, and the confirms to resolve when it is committed.
#[derive(Default)]
pub struct PendingBatch {
    pub batch: Batch,
    /// The total size of the published messages.
    pub bytes: usize,
    /// One for each message of the batch. A message whose delay is over has none.
    pub confirmers: Vec<Option<Confirmer>>,
    /// One for each delayed message of the batch.
    pub delayed_confirmers: Vec<Confirmer>,
}

/// A published message that is not stored yet.
pub struct Published {
    /// The number of its pipe.
    pub pipe: i64,
    pub headers: Headers,
    pub body: Bytes,
    /// When it is due, if it is delayed.
    pub due: Option<Due>,
    pub confirmer: Confirmer,
}

/// A commit, and what to read after it.
pub struct Work {
    pub pending: PendingBatch,
    /// The pipes that the commit changes, by index.
    pub touched: BTreeSet<usize>,
    /// The pages to read.
    pub pages: Vec<Page>,
    /// What somebody else wants to know.
    pub asked: Vec<Asked>,
    /// Read the delayed messages that are due at this time, in milliseconds since 1970.
    pub due: Option<i64>,
    /// Bring back first the due times that are too far away at that time.
    pub bring_back: bool,
    /// Give unused space back to the file system, except for this number of bytes.
    pub give_back: Option<i64>,
    /// Whether the batch is committed. If a later read fails, only the reads are repeated.
    pub committed: bool,
}

/// What somebody wants to know, and who.
pub enum Asked {
    /// A page of a pipe.
    Page(Page, oneshot::Sender<Vec<Message>>),
    /// The states of all pipes, whose delayed messages are not counted yet.
    Look(Vec<Looked>, oneshot::Sender<Vec<Looked>>),
}

/// What is known about a pipe.
#[derive(Debug)]
pub struct Looked {
    pub number: i64,
    pub name: Arc<str>,
    pub state: PipeState,
}

/// A part of a pipe.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// The number of the pipe.
    pub number: i64,
    /// The id after which it starts.
    pub after: Id,
    /// The total size of the bodies after which it ends.
    pub bytes: usize,
}

/// What was read after a commit.
#[derive(Default)]
pub struct Read {
    pub pages: Vec<(Page, Vec<Message>)>,
    pub due: Vec<Delayed>,
    pub next_due: Option<i64>,
    /// How many bytes are free on the disk.
    pub free: u64,
    /// Whether more space can be given back.
    pub more_to_give_back: bool,
}

/// Work that has ended: the storage and the work, so that failed work can be repeated.
pub type Done<S> = (S, Work, Result<Read, <S as Storage>::Error>);

/// The work in progress.
pub type Running<S> = BoxFuture<'static, Done<S>>;

impl PendingBatch {
    /// Takes all messages out of the batch. Messages whose delay is over are only forgotten: they
    /// are on the disk still.
    pub fn withdraw(&mut self) -> Vec<Published> {
        self.bytes = 0;
        self.batch.released.clear();
        let messages = std::mem::take(&mut self.batch.messages).into_iter();
        let confirmers = std::mem::take(&mut self.confirmers);
        let at_once = messages.zip(confirmers).filter_map(|(message, confirmer)| {
            Some(Published {
                pipe: pipe_of(message.id),
                headers: message.headers,
                body: message.body,
                due: None,
                confirmer: confirmer?,
            })
        });
        let delayed = std::mem::take(&mut self.batch.delayed).into_iter();
        let confirmers = std::mem::take(&mut self.delayed_confirmers);
        let delayed = delayed
            .zip(confirmers)
            .map(|(delayed, confirmer)| Published {
                pipe: delayed.pipe,
                headers: delayed.headers,
                body: delayed.body,
                due: Some(delayed.due),
                confirmer,
            });
        at_once.chain(delayed).collect()
    }

    /// Returns whether the batch stores messages.
    pub fn has_messages(&self) -> bool {
        !self.batch.messages.is_empty() || !self.batch.delayed.is_empty()
    }
}

/// Begins the work.
pub fn begin<S: Storage>(thread: &Thread, mut disk: S, mut work: Work) -> Running<S> {
    let done = thread.run(move || {
        let read = attempt(&mut disk, &mut work);
        (disk, work, read)
    });
    done.boxed()
}

/// Begins the work after a delay.
pub fn begin_after<S: Storage>(
    delay: Duration,
    thread: &Thread,
    disk: S,
    work: Work,
) -> Running<S> {
    if delay.is_zero() {
        return begin(thread, disk, work);
    }
    let thread = thread.clone();
    async move {
        tokio::time::sleep(delay).await;
        begin(&thread, disk, work).await
    }
    .boxed()
}

/// Does the work.
pub fn attempt<S: Storage>(disk: &mut S, work: &mut Work) -> Result<Read, S::Error> {
    let batch = &mut work.pending.batch;
    // A committed batch must not be committed again when a read after it has failed.
    if !work.committed && !batch.is_empty() {
        disk.commit(batch)?;
    }
    work.committed = true;
    let mut read = Read::default();
    for page in &work.pages {
        let messages = disk.page(page.number, page.after, PAGE_MESSAGES, page.bytes)?;
        read.pages.push((*page, messages));
    }
    for asked in std::mem::take(&mut work.asked) {
        // A reply fails if nobody waits any more.
        match asked {
            Asked::Page(page, reply) => {
                let messages = disk.page(page.number, page.after, PAGE_MESSAGES, page.bytes);
                drop(reply.send(messages?));
            }
            Asked::Look(mut pipes, reply) => {
                let delayed = disk.count_delayed(COUNTED_DELAYED)?;
                for pipe in &mut pipes {
                    let counted = delayed.as_ref();
                    pipe.state.delayed =
                        counted.map(|it| it.get(&pipe.number).copied().unwrap_or(0));
                }
                drop(reply.send(pipes));
            }
        }
    }
    if let Some(now) = work.due {
        if work.bring_back {
            disk.bring_back(now)?;
        }
        read.due = disk.due(now, DUE_MESSAGES, DUE_BYTES)?;
    }
    // Due messages that were just read are still in the table. After the commit that moves them,
    // this is read again.
    if read.due.is_empty() && (work.due.is_some() || !batch.released.is_empty()) {
        read.next_due = disk.next_due()?;
    }
    if let Some(kept) = work.give_back {
        // A full disk may refuse even this. Deletions to come give another chance.
        read.more_to_give_back = disk.give_back(kept).unwrap_or(false);
    }
    read.free = disk.free();
    Ok(read)
}

/// Waits for the work in progress, or for ever.
pub async fn finish<S: Storage>(running: &mut Option<Running<S>>) -> Done<S> {
    match running {
        Some(running) => running.await,
        None => pending().await,
    }
}
