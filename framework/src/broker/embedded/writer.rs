//! The task that owns the file and all pipes.
//!
//! It gathers commands into a batch while the batch before is being committed, so the disk never waits for the gathering
//! nor the other way round. What the commit makes true (messages stored, watermarks raised) is told to the pipes after it,
//! then messages are handed out and publishers get their confirms.
//!
//! What must stay true:
//! - One commit at a time. A batch that the disk refuses is tried again until it is taken; nothing is confirmed, handed out
//!   or forgotten before.
//! - Acknowledgements alone are written within [`ACK_PATIENCE`].

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::disk::{Batch, Delayed, Disk, Recovered};
use super::pipe::{Bounds, Id, Key, Message, Pipe, Settled, pipe_of};
use super::{Command, WriterSettler};
use crate::broker::{
    BrokerState, Confirmer, Consumer, Delivery, Headers, Outgoing, Settlement, Settler,
};

/// What one commit takes at most.
const BATCH_MESSAGES: usize = 4096;
const BATCH_SETTLED: usize = 16_384;
const BATCH_BYTES: usize = 16 << 20;
/// What one reading takes at most.
const PAGE_MESSAGES: usize = 4096;
const PAGE_BYTES: usize = 8 << 20;
const DUE_MESSAGES: i64 = 1000;

/// How long acknowledgements wait for a commit that is due for another reason.
const ACK_PATIENCE: Duration = Duration::from_millis(5);
/// How long a refused batch waits to be tried again.
const RETRY: Duration = Duration::from_millis(500);
/// A wall clock may jump, so a long sleep looks at it now and then.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

pub struct Writer {
    state: watch::Sender<BrokerState>,
    settler: Arc<dyn Settler>,
    bounds: Bounds,
    /// By number, which begins with 1.
    pipes: Vec<Pipe>,
    names: HashMap<Arc<str>, usize>,
    consumers: HashMap<Key, mpsc::Sender<Delivery>>,
    last_consumer: Key,
    /// Pipes at which something may have to be done before the next commit.
    touched: BTreeSet<usize>,
    next: Gathered,
    settled_since: Option<Instant>,
    last_delayed: i64,
    next_due: Option<i64>,
    closing: bool,
}

/// A batch and whom to tell when it is committed.
#[derive(Default)]
struct Gathered {
    batch: Batch,
    bytes: usize,
    confirmers: Vec<Confirmer>,
}

/// A commit and what is read after it.
struct Work {
    gathered: Gathered,
    touched: BTreeSet<usize>,
    pages: Vec<(i64, Id)>,
    /// Read the delayed messages that are due at this time.
    due: Option<i64>,
    committed: bool,
}

#[derive(Default)]
struct Read {
    pages: Vec<(i64, Vec<Message>)>,
    due: Vec<Delayed>,
    next_due: Option<i64>,
}

type Running = BoxFuture<'static, (Disk, Work, Result<Read, sqlx::Error>)>;

impl Writer {
    pub fn new(
        commands: mpsc::WeakUnboundedSender<Command>,
        state: watch::Sender<BrokerState>,
        recovered: Recovered,
        bounds: Bounds,
    ) -> Self {
        let Recovered {
            pipes,
            last_delayed,
            next_due,
        } = recovered;
        let pipes: Vec<Pipe> = pipes
            .into_iter()
            .map(|found| Pipe::found(found, bounds))
            .collect();
        let names = pipes
            .iter()
            .enumerate()
            .map(|(index, pipe)| (Arc::clone(&pipe.name), index))
            .collect();
        Self {
            state,
            settler: Arc::new(WriterSettler(commands)),
            bounds,
            pipes,
            names,
            consumers: HashMap::new(),
            last_consumer: 0,
            touched: BTreeSet::new(),
            next: Gathered::default(),
            settled_since: None,
            last_delayed,
            next_due,
            closing: false,
        }
    }

    /// Works until it is told to close. The lock is let go when the file is closed.
    pub async fn run(
        mut self,
        disk: Disk,
        mut commands: mpsc::UnboundedReceiver<Command>,
        end: CancellationToken,
        lock: File,
    ) {
        let mut idle = Some(disk);
        let mut running: Option<Running> = None;
        let mut received = Vec::new();
        loop {
            if let Some(disk) = idle.take() {
                match self.work() {
                    Some(work) => running = Some(run(disk, work).boxed()),
                    None if self.closing => {
                        disk.close().await;
                        break;
                    }
                    None => idle = Some(disk),
                }
            }
            let wake = self.wake();
            tokio::select! {
                biased;
                (disk, work, done) = finish(&mut running), if running.is_some() => {
                    running = None;
                    match done {
                        Ok(read) => {
                            self.finished(work, read);
                            idle = Some(disk);
                        }
                        // Nothing of it is confirmed.
                        Err(_) if self.closing => break,
                        Err(error) => running = Some(self.again(disk, work, &error)),
                    }
                }
                count = commands.recv_many(&mut received, BATCH_MESSAGES), if !self.closing && !self.is_full() => {
                    if count == 0 {
                        self.close();
                    }
                    self.receive(&mut received);
                    if idle.is_some() {
                        // Whoever was woken by the last commit gets a moment to send all it has.
                        tokio::task::yield_now().await;
                        while let Ok(command) = commands.try_recv() {
                            self.take(command);
                            if self.is_full() {
                                break;
                            }
                        }
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if running.is_none() && wake.is_some() => {}
                () = end.cancelled(), if !self.closing => self.close(),
            }
        }
        // Whoever asks from now on finds nobody, and the state says why.
        self.state.send_replace(BrokerState::Closed);
        drop(lock);
    }

    fn receive(&mut self, commands: &mut Vec<Command>) {
        commands.drain(..).for_each(|command| self.take(command));
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Publish(message, confirmer) => self.publish(message, confirmer),
            Command::Settle(id, settlement) => self.settle(id, settlement),
            Command::Consume {
                pipe,
                prefetch,
                answer,
            } => {
                let index = self.index(pipe);
                let (sender, receiver) = mpsc::channel(prefetch);
                self.last_consumer += 1;
                self.consumers.insert(self.last_consumer, sender);
                self.pipes[index].join(self.last_consumer, prefetch);
                self.touched.insert(index);
                answer_to(answer, Consumer::new(receiver));
            }
            Command::Depth { pipe, answer } => {
                answer_to(
                    answer,
                    self.names
                        .get(&pipe)
                        .map_or(0, |index| self.pipes[*index].depth()),
                );
            }
            Command::Close => self.close(),
        }
    }

    fn publish(&mut self, message: Outgoing, confirmer: Confirmer) {
        if self.closing {
            return;
        }
        let Outgoing {
            pipe,
            body,
            headers,
            delay,
        } = message;
        let index = self.index(pipe);
        self.next.bytes += body.len();
        self.next.confirmers.push(confirmer);
        let Some(delay) = delay else {
            return self.append(index, headers, body);
        };
        self.last_delayed += 1;
        // One more, because the clock has been cut to milliseconds.
        let due = now_millis()
            .saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX))
            .saturating_add(1);
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        let pipe = self.pipes[index].number();
        self.next.batch.delayed.push(Delayed {
            id: self.last_delayed,
            due,
            pipe,
            headers,
            body,
        });
    }

    fn append(&mut self, index: usize, headers: Headers, body: Bytes) {
        let id = self.pipes[index].assign();
        self.next.batch.messages.push(Message {
            id,
            delivery_count: 0,
            headers,
            body,
        });
        self.touched.insert(index);
    }

    fn settle(&mut self, id: Id, settlement: Settlement) {
        let index = index_of(pipe_of(id));
        let Some(pipe) = self.pipes.get_mut(index) else {
            return;
        };
        match pipe.settle(id, settlement) {
            Settled::Unknown => return,
            Settled::Gone => {
                self.next.batch.settled.push(id);
                self.settled_since.get_or_insert_with(Instant::now);
            }
            Settled::Returned(message) => self.next.batch.returned.push(message),
        }
        self.touched.insert(index);
    }

    /// The pipe of this name, which is made if there is none.
    fn index(&mut self, name: Arc<str>) -> usize {
        if let Some(index) = self.names.get(&name) {
            return *index;
        }
        let index = self.pipes.len();
        let pipe = Pipe::new(&name, number_of(index), self.bounds);
        self.next
            .batch
            .pipes
            .push((pipe.number(), Arc::clone(&name)));
        self.pipes.push(pipe);
        self.names.insert(name, index);
        index
    }

    fn close(&mut self) {
        self.closing = true;
        self.consumers.clear();
        for (index, pipe) in self.pipes.iter_mut().enumerate() {
            self.next.batch.returned.extend(pipe.close());
            self.touched.insert(index);
        }
    }

    /// What is to be done on the disk now, if anything.
    fn work(&mut self) -> Option<Work> {
        let mut pages = Vec::new();
        let mut urgent =
            self.next.batch.is_urgent() || self.closing && !self.next.batch.settled.is_empty();
        urgent |= self
            .settled_since
            .is_some_and(|since| since.elapsed() >= ACK_PATIENCE);
        for index in &self.touched {
            let pipe = &mut self.pipes[*index];
            let consumers = &mut self.consumers;
            pipe.leave_unless(|key| {
                consumers
                    .get(&key)
                    .is_some_and(|sender| !sender.is_closed())
            });
            urgent |= pipe.raise_watermark() || self.closing && pipe.unwritten_mark().is_some();
            pages.extend(pipe.wants_page().map(|after| (pipe.number(), after)));
        }
        let due = self
            .next_due
            .map(|_| now_millis())
            .filter(|now| self.next_due <= Some(*now) && !self.closing);
        if !urgent && pages.is_empty() && due.is_none() {
            return None;
        }
        if due.is_some() {
            self.next_due = None;
        }
        let touched = std::mem::take(&mut self.touched);
        self.next.batch.marks.extend(
            touched
                .iter()
                .filter_map(|index| self.pipes[*index].unwritten_mark()),
        );
        self.settled_since = None;
        Some(Work {
            gathered: std::mem::take(&mut self.next),
            touched,
            pages,
            due,
            committed: false,
        })
    }

    /// When something is to be done though nobody says so.
    fn wake(&self) -> Option<Instant> {
        let due = self.next_due.map(|due| {
            let wait = Duration::from_millis((due - now_millis()).max(0).unsigned_abs());
            Instant::now() + wait.min(LONGEST_SLEEP)
        });
        let acks = self.settled_since.map(|since| since + ACK_PATIENCE);
        due.into_iter().chain(acks).min()
    }

    fn is_full(&self) -> bool {
        let batch = &self.next.batch;
        batch.messages.len() + batch.delayed.len() >= BATCH_MESSAGES
            || batch.settled.len() + batch.returned.len() >= BATCH_SETTLED
            || self.next.bytes >= BATCH_BYTES
    }

    /// The disk has taken it.
    fn finished(&mut self, work: Work, read: Read) {
        if *self.state.borrow() != BrokerState::Connected {
            tracing::info!("the broker's disk takes messages again");
            self.state.send_replace(BrokerState::Connected);
        }
        let Work {
            gathered: Gathered {
                batch, confirmers, ..
            },
            touched,
            ..
        } = work;
        for mark in batch.marks {
            self.pipes[index_of(mark.number)].marked(mark);
        }
        for message in batch.messages {
            self.pipes[index_of(pipe_of(message.id))].stored(message);
        }
        for message in batch.returned {
            self.pipes[index_of(pipe_of(message.id))].give_back(message);
        }
        for (number, page) in read.pages {
            self.pipes[index_of(number)].loaded(page);
        }
        for index in &touched {
            self.hand_out(*index);
        }
        for confirmer in confirmers {
            confirmer.resolve(Ok(()));
        }
        self.touched.extend(touched);
        self.release(read.due, read.next_due);
    }

    /// Moves delayed messages whose time has come to the tail of their pipes.
    fn release(&mut self, due: Vec<Delayed>, next_due: Option<i64>) {
        self.next_due = self.next_due.into_iter().chain(next_due).min();
        for Delayed {
            id,
            pipe,
            headers,
            body,
            ..
        } in due
        {
            self.next.batch.released.push(id);
            self.next.bytes += body.len();
            self.append(index_of(pipe), headers, body);
        }
    }

    fn hand_out(&mut self, index: usize) {
        let pipe = &mut self.pipes[index];
        while let Some((key, message)) = pipe.hand_out() {
            let Message {
                id,
                delivery_count,
                headers,
                body,
            } = message;
            let settler = Arc::clone(&self.settler);
            let delivery = Delivery::new(
                Arc::clone(&pipe.name),
                body,
                headers,
                delivery_count,
                id.cast_unsigned(),
                settler,
            );
            // There is room, because the channel is as wide as the prefetch. If the consumer has just gone, the delivery
            // is dropped here and so comes back as a command.
            if self
                .consumers
                .get(&key)
                .is_none_or(|sender| sender.try_send(delivery).is_err())
            {
                self.consumers.remove(&key);
                pipe.leave_unless(|other| other != key);
            }
        }
    }

    /// The disk did not take it: says so, and tries again after a while.
    fn again(&self, disk: Disk, work: Work, error: &sqlx::Error) -> Running {
        let reason = error.to_string();
        let is_news = *self.state.borrow() != BrokerState::Blocked(reason.clone());
        if is_news {
            tracing::error!(error = %reason, "the broker's disk does not take messages; trying again until it does");
            self.state.send_replace(BrokerState::Blocked(reason));
        }
        async move {
            tokio::time::sleep(RETRY).await;
            run(disk, work).await
        }
        .boxed()
    }
}

async fn run(mut disk: Disk, mut work: Work) -> (Disk, Work, Result<Read, sqlx::Error>) {
    let read = attempt(&mut disk, &mut work).await;
    (disk, work, read)
}

async fn attempt(disk: &mut Disk, work: &mut Work) -> Result<Read, sqlx::Error> {
    let batch = &mut work.gathered.batch;
    // A batch that is committed is not committed again because a reading after it has failed.
    if !work.committed && !batch.is_empty() {
        disk.commit(batch).await?;
    }
    work.committed = true;
    let mut read = Read::default();
    for (number, after) in &work.pages {
        read.pages.push((
            *number,
            disk.page(*number, *after, PAGE_MESSAGES, PAGE_BYTES)
                .await?,
        ));
    }
    if let Some(now) = work.due {
        read.due = disk.due(now, DUE_MESSAGES).await?;
    }
    // Those that were just read are still there; the commit that moves them looks again.
    if read.due.is_empty() && (work.due.is_some() || !batch.released.is_empty()) {
        read.next_due = disk.next_due().await?;
    }
    Ok(read)
}

async fn finish(running: &mut Option<Running>) -> (Disk, Work, Result<Read, sqlx::Error>) {
    match running {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

fn answer_to<T>(answer: oneshot::Sender<T>, value: T) {
    // Whoever has stopped waiting does not want it.
    drop(answer.send(value));
}

fn index_of(number: i64) -> usize {
    usize::try_from(number - 1).unwrap_or(usize::MAX)
}

fn number_of(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX - 1) + 1
}

fn now_millis() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}
