//! The task that owns the file and all pipes.
//!
//! While one batch is being committed, the task collects commands into the next, so that neither
//! waits for the other. After a commit it reports the result (messages stored, watermarks raised)
//! to the pipes, begins the next commit, delivers messages, and resolves the confirms.
//!
//! What must stay true:
//! - There is one commit at a time. A batch that the disk refuses is committed again until it
//!   succeeds; nothing of it is confirmed, delivered or forgotten before.
//! - Messages for which the disk has no room wait ([`space`](super::space)), and the rest of their
//!   batch is committed without them. So what consumers settle is always deleted, which makes room.
//! - A batch that contains only acknowledgements is written within [`ACK_PATIENCE`].

mod finished;
mod refused;
#[cfg(feature = "embedded")]
mod task;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::growth::Growth;
use super::pipe::{Bounds, ConsumerKey, Id, Memory, Message, Pipe, Settled, pipe_of};
use super::space::Space;
use super::storage::{Delayed, Recovered, Storage};
use super::wall_clock::{Due, WallClock};
use super::work::{Asked, Looked, Page, PendingBatch, Published, Read, Work, attempt};
use super::{Command, Commands, Size, WriterSettler};
use crate::broker::{
    BrokerState, Confirmer, Consumer, Delivery, Headers, Outgoing, Settlement, Settler,
};
use crate::health::Health;

/// The name of this task in the log and in the health checks.
pub const SOURCE: &str = "embedded broker";
/// The prefetch to which every consumer can be resized. All consumers are in this process, so none
/// keeps messages from another, and with more messages on their way, each commit is for more of
/// them. What they need of the memory is bounded ([`Memory`]).
pub const RESIZABLE_TO: u32 = 8000;
/// The largest batch. Measured: with twice as many messages, items one by one are a little slower.
const BATCH_MESSAGES: usize = 2048;
const BATCH_SETTLED: usize = 16_384;
const BATCH_BYTES: usize = 16 << 20;
/// The most that is read from a pipe at a time, and how much is read at least although all memory
/// is in use.
const PAGE_BYTES: usize = 2 << 20;
const LEAST_PAGE_BYTES: usize = 256 << 10;

/// How long acknowledgements wait for a commit with other changes.
const ACK_PATIENCE: Duration = Duration::from_millis(5);
/// The delay before a refused batch is committed again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long after a deletion unused space is given back to the file system. Until then, new
/// messages may need it.
const GIVE_BACK_DELAY: Duration = Duration::from_secs(5);
/// How many unused bytes the file keeps for new messages.
const KEPT_BYTES: i64 = 16 << 20;
/// The longest sleep. Delays are measured by the wall clock, which may jump, so it is read again
/// after this time. If it was set back, due times that are further away than their delay are
/// brought back.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// The state of the task.
pub struct Writer {
    state: watch::Sender<BrokerState>,
    health: Health,
    commands: Weak<dyn Commands>,
    bounds: Bounds,
    memory: Arc<Memory>,
    /// All pipes. The index is the number of the pipe less one.
    pipes: Vec<Pipe>,
    /// The index of each pipe in `pipes`.
    names: HashMap<Arc<str>, usize>,
    consumers: HashMap<ConsumerKey, Receiver>,
    /// The number of the latest consumer.
    last_consumer: u32,
    /// The indexes of pipes that have changed since the last commit began.
    touched: BTreeSet<usize>,
    /// The indexes of pipes that may have something to deliver.
    deliverable: BTreeSet<usize>,
    /// The indexes of pipes that read from disk once there is memory.
    wait_for_memory: BTreeSet<usize>,
    /// Whether the health says so.
    is_short_of_memory: bool,
    /// What others want to know, for the next time that the disk is read.
    asked: Vec<Asked>,
    /// The next batch.
    next: PendingBatch,
    /// The confirms of what is stored.
    stored: Vec<Confirmer>,
    /// When the oldest acknowledgement of the next batch was received.
    settled_since: Option<Instant>,
    last_delayed: i64,
    /// When the next delayed message is due, in milliseconds since 1970.
    next_due: Option<i64>,
    clock: WallClock,
    space: Space,
    growth: Growth,
    /// Messages that wait for space, in the order in which they were published.
    waiting: VecDeque<Published>,
    /// The numbers of their pipes.
    waiting_for: HashSet<i64>,
    /// When to look at the free space again.
    look_at: Option<Instant>,
    /// When to give unused space back to the file system.
    give_back_at: Option<Instant>,
    closing: bool,
}

/// What deliveries are sent to.
struct Receiver {
    deliveries: mpsc::Sender<Delivery>,
    settler: Arc<dyn Settler>,
}

impl Writer {
    pub fn new(
        commands: Weak<dyn Commands>,
        state: watch::Sender<BrokerState>,
        recovered: Recovered,
        bounds: Bounds,
        reserve: u64,
        clock: WallClock,
        health: Health,
    ) -> Self {
        let Recovered {
            pipes,
            last_delayed,
            next_due,
            free,
        } = recovered;
        let now = Instant::now();
        let memory = Arc::new(Memory::default());
        let pipes: Vec<Pipe> = pipes
            .into_iter()
            .map(|stored| Pipe::from_disk(stored, bounds, &memory))
            .collect();
        let names = pipes
            .iter()
            .enumerate()
            .map(|(index, pipe)| (Arc::clone(&pipe.name), index))
            .collect();
        Self {
            state,
            health,
            commands,
            bounds,
            memory,
            pipes,
            names,
            consumers: HashMap::new(),
            last_consumer: 0,
            touched: BTreeSet::new(),
            deliverable: BTreeSet::new(),
            wait_for_memory: BTreeSet::new(),
            is_short_of_memory: false,
            asked: Vec::new(),
            next: PendingBatch::default(),
            stored: Vec::new(),
            settled_since: None,
            last_delayed,
            next_due,
            clock,
            space: Space::new(reserve, free),
            growth: Growth::default(),
            waiting: VecDeque::new(),
            waiting_for: HashSet::new(),
            look_at: Some(now),
            give_back_at: Some(now + GIVE_BACK_DELAY),
            closing: false,
        }
    }

    /// Tells this how much is published to pipes without consumers.
    pub fn telling(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Does all work that there is.
    pub fn do_all<S: Storage>(&mut self, storage: &mut S) -> Result<(), S::Error> {
        loop {
            if let Some(mut work) = self.work(Duration::ZERO) {
                let read = attempt(storage, &mut work)?;
                self.finished(work, read);
            } else if !self.deliver() {
                self.confirm();
                return Ok(());
            }
        }
    }

    pub fn take(&mut self, command: Command) {
        match command {
            Command::Publish(message, confirmer) => self.publish(message, confirmer),
            Command::Settle(consumer, id, settlement) => self.settle(consumer, id, settlement),
            Command::Consume {
                pipe,
                prefetch,
                process,
                reply,
            } => {
                let index = self.index(pipe);
                let (deliveries, stream) = mpsc::channel(prefetch.max(RESIZABLE_TO as usize));
                self.last_consumer += 1;
                let number = self.last_consumer;
                let consumer = ConsumerKey { process, number };
                let commands = Weak::clone(&self.commands);
                let settler = Arc::new(WriterSettler { commands, consumer });
                let receiver = Receiver {
                    deliveries,
                    settler,
                };
                self.consumers.insert(consumer, receiver);
                self.pipes[index].join(consumer, prefetch);
                self.touched.insert(index);
                self.deliverable.insert(index);
                let resize = self.resizer(&self.pipes[index].name, consumer);
                send_reply(reply, Consumer::resizable(stream, resize));
            }
            Command::Resize {
                pipe,
                consumer,
                prefetch,
            } => {
                let index = self.index(pipe);
                if let Some(receiver) = self.consumers.get(&consumer) {
                    let most = receiver.deliveries.max_capacity();
                    self.pipes[index].resize(consumer, prefetch.min(most));
                    self.touched.insert(index);
                    self.deliverable.insert(index);
                }
            }
            Command::Depth { pipe, reply } => {
                send_reply(
                    reply,
                    self.names
                        .get(&pipe)
                        .map_or(0, |index| self.pipes[*index].depth()),
                );
            }
            Command::Measure { reply } => {
                let size = Size {
                    messages: self.pipes.iter().map(Pipe::depth).sum(),
                    memory: self.memory.used() as u64,
                };
                send_reply(reply, size);
            }
            Command::Unconsumed { reply } => {
                let unconsumed = self.pipes.iter().filter_map(Pipe::unconsumed);
                send_reply(reply, unconsumed.collect());
            }
            Command::Peek { page, reply } => self.asked.push(Asked::Page(page, reply)),
            Command::Look { reply } => {
                for pipe in &mut self.pipes {
                    pipe.retain_consumers(|key| is_there(&self.consumers, key));
                }
                let looked = self.pipes.iter().map(|pipe| Looked {
                    number: pipe.number(),
                    name: Arc::clone(&pipe.name),
                    state: pipe.state(),
                });
                self.asked.push(Asked::Look(looked.collect(), reply));
            }
            Command::Discard { ids, joined, reply } => {
                send_reply(reply, self.discard(&ids, joined));
            }
            Command::Leave(process) => {
                for (index, pipe) in self.pipes.iter_mut().enumerate() {
                    let returned = pipe.leave(|key| key.process == process);
                    self.next.batch.returned.extend(returned);
                    self.touched.insert(index);
                }
                self.consumers.retain(|key, _| key.process != process);
            }
            Command::Wake => {}
            Command::Close => self.close(),
        }
    }

    /// Returns what changes the prefetch of a consumer.
    fn resizer(
        &self,
        pipe: &Arc<str>,
        consumer: ConsumerKey,
    ) -> impl Fn(u32) + Send + Sync + 'static {
        let (commands, pipe) = (Weak::clone(&self.commands), Arc::clone(pipe));
        move |prefetch| {
            if let Some(commands) = commands.upgrade() {
                let pipe = Arc::clone(&pipe);
                let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX);
                commands.send(Command::Resize {
                    pipe,
                    consumer,
                    prefetch,
                });
            }
        }
    }

    /// Deletes messages that were read when `joined` consumers had joined their pipe. Returns how
    /// many are deleted.
    fn discard(&mut self, ids: &[Id], joined: u64) -> u64 {
        let before = self.next.batch.settled.len();
        for id in ids {
            let index = index_of(pipe_of(*id));
            if self.pipes[index].discard(*id, joined) {
                self.next.batch.settled.push(*id);
                self.touched.insert(index);
                self.settled_since.get_or_insert_with(Instant::now);
            }
        }
        (self.next.batch.settled.len() - before) as u64
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
        let due = delay.map(|delay| Due::after(delay, self.clock.now()));
        self.store_or_wait(Published {
            pipe: number_of(index),
            headers,
            body,
            due,
            confirmer,
        });
    }

    /// Adds a message to the next batch if the disk has room for it and no older message of its
    /// pipe waits for room.
    fn store_or_wait(&mut self, message: Published) {
        let index = index_of(message.pipe);
        let bytes = size(&message.body);
        let is_consumed = self.pipes[index].is_consumed();
        if self.waiting_for.contains(&message.pipe)
            || !self
                .space
                .admit(index, is_consumed, bytes as u64, Instant::now())
        {
            self.waiting_for.insert(message.pipe);
            self.waiting.push_back(message);
            self.look_at.get_or_insert_with(Instant::now);
            return;
        }
        self.next.bytes += bytes;
        if !is_consumed {
            self.growth.add(bytes);
        }
        let Published {
            pipe,
            headers,
            body,
            due,
            confirmer,
        } = message;
        let Some(due) = due else {
            self.next.confirmers.push(Some(confirmer));
            return self.append(index, headers, body);
        };
        // It may have waited for room while the clock was set back.
        let due = due.brought_back(self.clock.now());
        self.last_delayed += 1;
        self.next_due = Some(self.next_due.map_or(due.at, |next| next.min(due.at)));
        self.next.delayed_confirmers.push(confirmer);
        self.next.batch.delayed.push(Delayed {
            id: self.last_delayed,
            due,
            pipe,
            headers,
            body,
        });
    }

    /// Stores the messages that wait, as far as there is room for them now.
    fn store_waiting(&mut self) {
        self.waiting_for.clear();
        for message in std::mem::take(&mut self.waiting) {
            if self.is_full() {
                self.waiting_for.insert(message.pipe);
                self.waiting.push_back(message);
            } else {
                self.store_or_wait(message);
            }
        }
    }

    /// Adds a message to the next batch, at the tail of its pipe.
    fn append(&mut self, index: usize, headers: Headers, body: Bytes) {
        let id = self.pipes[index].assign();
        self.next.batch.messages.push(Message {
            id,
            delivery_count: 0,
            sent: self.clock.now() / 1000,
            headers,
            body,
        });
        self.touched.insert(index);
    }

    fn settle(&mut self, consumer: ConsumerKey, id: Id, settlement: Settlement) {
        let index = index_of(pipe_of(id));
        let Some(pipe) = self.pipes.get_mut(index) else {
            return;
        };
        match pipe.settle(consumer, id, settlement) {
            Settled::Unknown => return,
            Settled::Done => {
                self.space.settled(index);
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
        let pipe = Pipe::new(&name, number_of(index), self.bounds, &self.memory);
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
        self.waiting.clear();
        for (index, pipe) in self.pipes.iter_mut().enumerate() {
            self.next.batch.returned.extend(pipe.close());
            self.touched.insert(index);
        }
    }

    /// Takes the next batch, if it must be committed now or if something must be read from disk.
    /// Acknowledgements wait for other changes for as long as the patience lasts.
    fn work(&mut self, patience: Duration) -> Option<Work> {
        let mut pages = Vec::new();
        let mut urgent =
            self.next.batch.is_urgent() || self.closing && !self.next.batch.settled.is_empty();
        urgent |= self
            .settled_since
            .is_some_and(|since| since.elapsed() >= patience);
        let mut left = self.memory.left();
        self.touched.append(&mut self.wait_for_memory);
        for index in &self.touched {
            let pipe = &mut self.pipes[*index];
            pipe.retain_consumers(|key| is_there(&self.consumers, key));
            urgent |= pipe.raise_watermark() || self.closing && pipe.unwritten_mark().is_some();
            if let Some(after) = pipe.wants_page() {
                let bytes = left.clamp(LEAST_PAGE_BYTES, PAGE_BYTES);
                left = left.saturating_sub(bytes);
                pages.push(Page {
                    number: pipe.number(),
                    after,
                    bytes,
                });
            } else if pipe.waits_for_memory() {
                self.wait_for_memory.insert(*index);
            }
        }
        self.show_memory();
        let now = Instant::now();
        let due = self
            .next_due
            .map(|next| (next, self.clock.look()))
            .filter(|(next, now)| next <= now || self.clock.was_set_back())
            .filter(|_| !self.closing && !self.space.is_refusing(now))
            .map(|(_, now)| now);
        let looks = self.look_at.is_some_and(|at| at <= now) && !self.closing;
        let may_give_back = self.give_back_at.is_some_and(|at| at <= now) && !self.closing;
        let reads = !pages.is_empty() || !self.asked.is_empty() || due.is_some();
        let is_needed = urgent || reads;
        if !is_needed && !looks && !may_give_back {
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
        self.look_at = None;
        // Space is given back when there is nothing else to do, or when other work would have to
        // wait for space.
        let is_short = self.space.shortage().is_some();
        let give_back = (may_give_back && (!is_needed || is_short)).then_some(if is_short {
            0
        } else {
            KEPT_BYTES
        });
        if !self.next.batch.settled.is_empty() {
            let delay = if is_short {
                RETRY_DELAY
            } else {
                GIVE_BACK_DELAY
            };
            self.give_back_at.get_or_insert(now + delay);
        }
        Some(Work {
            pending: std::mem::take(&mut self.next),
            touched,
            pages,
            asked: std::mem::take(&mut self.asked),
            due,
            bring_back: due.is_some() && self.clock.take_set_back(),
            give_back,
            committed: false,
        })
    }

    /// Returns when there will be work even if no command is received.
    fn wake(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.next_due.map(|due| {
            let wait = Duration::from_millis((due - self.clock.now()).max(0).unsigned_abs());
            let due = now + wait.min(LONGEST_SLEEP);
            due.max(self.space.refuses_until().unwrap_or(due))
        });
        let acks = self.settled_since.map(|since| since + ACK_PATIENCE);
        [due, acks, self.look_at, self.give_back_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn is_full(&self) -> bool {
        let batch = &self.next.batch;
        batch.messages.len() + batch.delayed.len() >= BATCH_MESSAGES
            || batch.settled.len() + batch.returned.len() >= BATCH_SETTLED
            || self.next.bytes >= BATCH_BYTES
    }
}

/// Returns whether a consumer was not dropped.
fn is_there(consumers: &HashMap<ConsumerKey, Receiver>, key: ConsumerKey) -> bool {
    consumers
        .get(&key)
        .is_some_and(|receiver| !receiver.deliveries.is_closed())
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

/// Returns about how many bytes of the disk a message needs.
fn size(body: &Bytes) -> usize {
    body.len() + body.len() / 8 + 128
}

#[cfg(test)]
mod tests;
