//! The task that owns the file and all pipes.
//!
//! While one batch is being committed, the task collects commands into the next, so that neither waits for the other.
//! After a commit it reports the result (messages stored, watermarks raised) to the pipes, delivers messages, and resolves
//! the confirms.
//!
//! What must stay true:
//! - There is one commit at a time. A batch that the disk refuses is committed again until it succeeds; nothing of it is
//!   confirmed, delivered or forgotten before.
//! - A batch that contains only acknowledgements is written within [`ACK_PATIENCE`].

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::disk::{Batch, Delayed, Disk, Recovered};
use super::pipe::{Bounds, ConsumerKey, Id, Message, Pipe, Settled, pipe_of};
use super::{Command, WriterSettler};
use crate::broker::{
    BrokerState, Confirmer, Consumer, Delivery, Headers, Outgoing, Settlement, Settler,
};
use crate::clock::Clock;

/// The largest batch.
const BATCH_MESSAGES: usize = 4096;
const BATCH_SETTLED: usize = 16_384;
const BATCH_BYTES: usize = 16 << 20;
/// The most that is read from a pipe at a time.
const PAGE_MESSAGES: usize = 4096;
const PAGE_BYTES: usize = 8 << 20;
/// How many delayed messages are moved to their pipes at a time.
const DUE_MESSAGES: i64 = 1000;

/// How long acknowledgements wait for a commit with other changes.
const ACK_PATIENCE: Duration = Duration::from_millis(5);
/// The delay before a refused batch is committed again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The longest sleep. Delays are measured by the wall clock, which may jump, so it is read again after this time.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// The state of the task.
pub struct Writer {
    state: watch::Sender<BrokerState>,
    settler: Arc<dyn Settler>,
    bounds: Bounds,
    /// All pipes. The index is the number of the pipe less one.
    pipes: Vec<Pipe>,
    /// The index of each pipe in `pipes`.
    names: HashMap<Arc<str>, usize>,
    consumers: HashMap<ConsumerKey, mpsc::Sender<Delivery>>,
    last_consumer: ConsumerKey,
    /// The indexes of pipes that have changed since the last commit began.
    touched: BTreeSet<usize>,
    /// The next batch.
    next: PendingBatch,
    /// When the oldest acknowledgement of the next batch was received.
    settled_since: Option<Instant>,
    last_delayed: i64,
    /// When the next delayed message is due, in milliseconds since 1970.
    next_due: Option<i64>,
    closing: bool,
}

/// A batch, and the confirms to resolve when it is committed.
#[derive(Default)]
struct PendingBatch {
    batch: Batch,
    /// The total size of the published bodies.
    bytes: usize,
    confirmers: Vec<Confirmer>,
}

/// A commit, and what to read after it.
struct Work {
    pending: PendingBatch,
    touched: BTreeSet<usize>,
    /// The pages to read: the number of the pipe, and the id after which the page starts.
    pages: Vec<(i64, Id)>,
    /// Read the delayed messages that are due at this time, in milliseconds since 1970.
    due: Option<i64>,
    /// Whether the batch is committed. If a later read fails, only the reads are repeated.
    committed: bool,
}

/// What was read after a commit.
#[derive(Default)]
struct Read {
    pages: Vec<(i64, Vec<Message>)>,
    due: Vec<Delayed>,
    next_due: Option<i64>,
}

/// The work in progress. Returns the disk and the work, so that failed work can be repeated.
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
            .map(|stored| Pipe::from_disk(stored, bounds))
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
            next: PendingBatch::default(),
            settled_since: None,
            last_delayed,
            next_due,
            closing: false,
        }
    }

    /// Runs until the broker is closed, then closes the file and releases the lock.
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
                        // Dropping the work resolves its confirms to `Closed`.
                        Err(_) if self.closing => break,
                        Err(error) => running = Some(self.retry(disk, work, &error)),
                    }
                }
                count = commands.recv_many(&mut received, BATCH_MESSAGES), if !self.closing && !self.is_full() => {
                    if count == 0 {
                        self.close();
                    }
                    self.receive(&mut received);
                    if idle.is_some() {
                        // Let the tasks that were woken by the last commit send more commands for this batch.
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
        // Commands are no longer received; the state shows why.
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
                reply,
            } => {
                let index = self.index(pipe);
                let (sender, receiver) = mpsc::channel(prefetch);
                self.last_consumer += 1;
                self.consumers.insert(self.last_consumer, sender);
                self.pipes[index].join(self.last_consumer, prefetch);
                self.touched.insert(index);
                send_reply(reply, Consumer::new(receiver));
            }
            Command::Depth { pipe, reply } => {
                send_reply(
                    reply,
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
        // The clock has a resolution of milliseconds. Without one more, the message could be delivered too early.
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

    /// Adds a message to the next batch, at the tail of its pipe.
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
            Settled::Done => {
                self.next.batch.settled.push(id);
                self.settled_since.get_or_insert_with(Instant::now);
            }
            Settled::Requeued(message) => self.next.batch.returned.push(message),
        }
        self.touched.insert(index);
    }

    /// Returns the index of the pipe with this name. Creates the pipe if it does not exist.
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

    /// Ends all consumers. The last batch returns their unsettled messages to their pipes.
    fn close(&mut self) {
        self.closing = true;
        self.consumers.clear();
        for (index, pipe) in self.pipes.iter_mut().enumerate() {
            self.next.batch.returned.extend(pipe.close());
            self.touched.insert(index);
        }
    }

    /// Takes the next batch, if it must be committed now or if something must be read from disk.
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
            pipe.retain_consumers(|key| {
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
            pending: std::mem::take(&mut self.next),
            touched,
            pages,
            due,
            committed: false,
        })
    }

    /// Returns when there will be work even if no command is received.
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

    /// Applies completed work: informs the pipes, delivers messages and resolves confirms.
    fn finished(&mut self, work: Work, read: Read) {
        if *self.state.borrow() != BrokerState::Connected {
            tracing::info!("the embedded broker can write to its disk again");
            self.state.send_replace(BrokerState::Connected);
        }
        let Work {
            pending: PendingBatch {
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
            self.pipes[index_of(pipe_of(message.id))].requeue(message);
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

    /// Appends the delayed messages whose delay is over to their pipes.
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

    /// Delivers messages of a pipe, as far as the watermark and the consumers allow it.
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
            // The channel has room, because its capacity is the prefetch. If the consumer was just dropped, dropping the
            // delivery here requeues it by a command.
            if self
                .consumers
                .get(&key)
                .is_none_or(|sender| sender.try_send(delivery).is_err())
            {
                self.consumers.remove(&key);
                pipe.retain_consumers(|other| other != key);
            }
        }
    }

    /// Reports the error in the state and the log, and repeats the work after a delay.
    fn retry(&self, disk: Disk, work: Work, error: &sqlx::Error) -> Running {
        let reason = error.to_string();
        let is_new = *self.state.borrow() != BrokerState::Blocked(reason.clone());
        if is_new {
            tracing::error!(error = %reason, "the embedded broker cannot write to its disk; retrying until it can");
            self.state.send_replace(BrokerState::Blocked(reason));
        }
        async move {
            tokio::time::sleep(RETRY_DELAY).await;
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
    let batch = &mut work.pending.batch;
    // A committed batch must not be committed again when a read after it has failed.
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
    // Due messages that were just read are still in the table. After the commit that moves them, this is read again.
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

fn send_reply<T>(reply: oneshot::Sender<T>, value: T) {
    // Fails if the caller no longer waits.
    drop(reply.send(value));
}

fn index_of(number: i64) -> usize {
    usize::try_from(number - 1).unwrap_or(usize::MAX)
}

fn number_of(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX - 1) + 1
}

fn now_millis() -> i64 {
    Clock::system().now_millis()
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::broker::Confirm;

    /// Longer than two retries of a commit.
    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn refused_commit_is_retried_until_it_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.db");
        let lock = File::create(folder.path().join("lock")).unwrap();
        let (mut disk, recovered) = Disk::open(&file).await.unwrap();
        // The disk is full for two commits, then has room.
        disk.page_limits = [1, 1, 10_000].into();
        let (commands, received) = mpsc::unbounded_channel();
        let (sender, mut state) = watch::channel(BrokerState::Connected);
        let writer = Writer::new(commands.downgrade(), sender, recovered, Bounds::default());
        let tasks = TaskTracker::new();
        tasks.spawn(writer.run(disk, received, CancellationToken::new(), lock));

        let (confirmer, confirm) = Confirm::pair();
        let message = Outgoing::new("pipe", vec![0; 100_000]);
        let publish = Command::Publish(message, confirmer);
        assert!(commands.send(publish).is_ok());
        let blocked = timeout(
            LIMIT,
            state.wait_for(|state| matches!(state, BrokerState::Blocked(_))),
        );
        assert!(matches!(blocked.await, Ok(Ok(_))), "the disk was full");
        let result = timeout(LIMIT, confirm).await.expect("no confirm");
        result.expect("the message is stored");
        assert_eq!(*state.borrow(), BrokerState::Connected);

        assert!(commands.send(Command::Close).is_ok());
        timeout(LIMIT, async {
            tasks.close();
            tasks.wait().await;
        })
        .await
        .expect("the writer did not end");
        let (_, recovered) = Disk::open(&file).await.unwrap();
        assert_eq!(recovered.pipes[0].stored, 1);
    }
}
