//! The state of one pipe: which messages are in memory and which only on disk, the consumers, and
//! the unsettled messages.
//!
//! Pure: it does no I/O. The writer reports what was committed and read.
//!
//! What must stay true:
//! - `ready` holds the oldest messages. The messages that are only on disk have higher ids than
//!   `loaded_to`, the highest id that is or was in memory.
//! - No message is delivered beyond the committed watermark. So after a crash, only messages up to
//!   the watermark can have been delivered.
//! - The memory of all pipes together is bounded by [`Memory`], not by the length or the number of
//!   the pipes. A pipe without consumers keeps no messages in memory.
//!
//! # The watermark, by example
//!
//! After a crash, the messages that were delivered and not settled must come again with a higher
//! delivery count, and no others. Recording each delivery on disk would cost as much as publishing
//! a message. Instead, each pipe has one number on disk, the watermark: messages up to this id may
//! have been delivered. It is raised ahead of the deliveries, as far as the consumers have room, so
//! that one commit serves many of them.
//!
//! A pipe contains the messages 1 to 6. A consumer with a prefetch of 3 joins:
//!
//! | step | watermark in memory | on disk | delivered, unsettled |
//! |---|---|---|---|
//! | the consumer joins; [`raise_watermark`](Pipe::raise_watermark) covers the next 3 messages | 3 | 0 | |
//! | commit: the disk has the new watermark ([`marked`](Pipe::marked)) | 3 | 3 | 1, 2, 3 |
//! | the consumer acknowledges 1 and 2, so there is room for 2 more | 5 | 3 | 3 |
//! | commit: 1 and 2 are deleted, and the watermark is written with them | 5 | 5 | 3, 4, 5 |
//! | `kill -9` | | 5 | |
//!
//! `Disk::open` in `embedded` then raises the delivery count of every message up to 5
//! that still exists: 3, 4 and 5 come again with a count of 1, and 6 comes with a count of 0. If
//! the process dies before the second commit, the watermark is 3 and the acknowledgements are lost:
//! 1, 2 and 3 come again with a count of 1, the others with 0. A message that is covered by the
//! watermark and was not delivered yet is counted, too; there are never more of those than the
//! consumers had room for.
//!
//! A message that is published while a consumer waits needs no second commit: the commit that
//! stores it also raises the watermark to it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::broker::{Flow, Headers, PipeState, Settlement};

/// The id of a message, which is also its row: the number of its pipe in the high bits, its
/// position in the pipe in the low ones.
pub type Id = i64;

const POSITION_BITS: u32 = 40;

/// Returns the number of the pipe that a message belongs to.
pub fn pipe_of(id: Id) -> i64 {
    id >> POSITION_BITS
}

/// Returns the id before the first possible message of a pipe, and the last possible one.
pub fn rows_of(number: i64) -> (Id, Id) {
    (number << POSITION_BITS, ((number + 1) << POSITION_BITS) - 1)
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: Id,
    pub delivery_count: u32,
    /// When it was appended to its pipe, in seconds since 1970.
    pub sent: i64,
    pub headers: Headers,
    pub body: Bytes,
}

impl Message {
    /// Returns about how much memory it needs, in bytes.
    fn weight(&self) -> usize {
        self.body.len() + 200
    }
}

/// How much of a pipe is kept ready in memory at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub messages: usize,
    pub bytes: usize,
}

/// The memory that the messages of all pipes share. It counts the unsettled ones, too.
#[derive(Debug)]
pub struct Memory {
    used: AtomicUsize,
    bound: usize,
    /// What a pipe may use although all memory is in use, so that none stands still.
    minimum: usize,
}

impl Memory {
    pub const fn new(bound: usize, minimum: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            bound,
            minimum,
        }
    }

    /// Returns how many bytes can be read into memory for one pipe now.
    pub fn left(&self) -> usize {
        self.bound
            .saturating_sub(self.used.load(Ordering::Relaxed))
            .max(self.minimum)
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn has_room(&self, own: usize) -> bool {
        own < self.minimum || self.used.load(Ordering::Relaxed) < self.bound
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(64 << 20, 1 << 20)
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            messages: 4000,
            bytes: 4 << 20,
        }
    }
}

/// The row of a pipe, and its last message, as read from disk at the start.
#[derive(Debug, Clone)]
pub struct StoredPipe {
    pub number: i64,
    pub name: String,
    /// The highest id of a message, or the id before the first.
    pub last: Id,
    /// How many messages it contains.
    pub stored: u64,
}

/// The pipe's own row on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub number: i64,
    /// The watermark: messages up to this id may have been delivered.
    pub handed_out: Id,
    /// How many messages it contains.
    pub stored: u64,
}

/// A pipe that contains messages and has no consumer.
#[derive(Debug)]
pub struct UnconsumedPipe {
    pub number: i64,
    pub name: Arc<str>,
    /// How many consumers have joined it so far.
    pub joined: u64,
}

/// Identifies a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConsumerKey {
    pub process: u32,
    pub number: u32,
}

/// The state of one pipe; see the module's documentation.
#[derive(Debug)]
pub struct Pipe {
    pub name: Arc<str>,
    bounds: Bounds,
    memory: Arc<Memory>,
    /// How much of it this pipe uses.
    own_memory: usize,
    /// The row that the next commit writes.
    mark: Mark,
    /// The row on disk.
    written: Mark,
    /// The highest id that was assigned.
    last: Id,
    /// How many assigned messages are not committed yet. They have the highest ids.
    incoming: u64,
    /// Messages in memory that wait for a consumer, by id.
    ready: VecDeque<Message>,
    /// The total size of their bodies.
    ready_bytes: usize,
    /// The highest id that is or was in memory.
    loaded_to: Id,
    /// How many messages are only on disk.
    only_on_disk: u64,
    unsettled: BTreeMap<Id, (ConsumerKey, Message)>,
    /// How many messages are requeued and not back in their position yet.
    returning: u64,
    consumers: VecDeque<Registration>,
    /// How many consumers have joined so far.
    joined: u64,
}

/// A consumer of the pipe.
#[derive(Debug)]
struct Registration {
    key: ConsumerKey,
    prefetch: usize,
    unsettled: usize,
}

impl Pipe {
    /// Returns a new, empty pipe.
    pub fn new(name: &str, number: i64, bounds: Bounds, memory: &Arc<Memory>) -> Self {
        let first = rows_of(number).0;
        Self::from_disk(
            StoredPipe {
                number,
                name: name.to_owned(),
                last: first,
                stored: 0,
            },
            bounds,
            memory,
        )
    }

    /// Returns a pipe whose messages are all on disk. None of them is delivered until the watermark
    /// is raised and committed.
    pub fn from_disk(pipe: StoredPipe, bounds: Bounds, memory: &Arc<Memory>) -> Self {
        let StoredPipe {
            number,
            name,
            last,
            stored,
        } = pipe;
        let first = rows_of(number).0;
        let mark = Mark {
            number,
            handed_out: first,
            stored,
        };
        Self {
            name: name.into(),
            bounds,
            memory: Arc::clone(memory),
            own_memory: 0,
            mark,
            written: mark,
            last,
            incoming: 0,
            ready: VecDeque::new(),
            ready_bytes: 0,
            loaded_to: first,
            only_on_disk: stored,
            unsettled: BTreeMap::new(),
            returning: 0,
            consumers: VecDeque::new(),
            joined: 0,
        }
    }

    pub fn number(&self) -> i64 {
        self.mark.number
    }

    /// Returns how many messages wait for a consumer.
    pub fn depth(&self) -> u64 {
        self.ready.len() as u64 + self.only_on_disk
    }

    /// Returns whether the pipe has consumers.
    pub fn is_consumed(&self) -> bool {
        !self.consumers.is_empty()
    }

    /// Describes the pipe if it contains messages and has no consumer.
    pub fn unconsumed(&self) -> Option<UnconsumedPipe> {
        (!self.is_consumed() && self.depth() > 0).then(|| UnconsumedPipe {
            number: self.number(),
            name: Arc::clone(&self.name),
            joined: self.joined(),
        })
    }

    /// Returns what is known about the pipe, except for its delayed messages.
    pub fn state(&self) -> PipeState {
        let came = (self.last - rows_of(self.number()).0).unsigned_abs();
        PipeState {
            messages: self.depth(),
            consumers: Some(self.consumers.len() as u64),
            delayed: None,
            flow: Some(Flow {
                came,
                left: came.saturating_sub(self.mark.stored),
            }),
        }
    }

    /// Returns how many consumers have joined so far.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Adds a consumer.
    pub fn join(&mut self, key: ConsumerKey, prefetch: usize) {
        self.joined += 1;
        self.consumers.push_back(Registration {
            key,
            prefetch,
            unsettled: 0,
        });
    }

    /// Changes the prefetch of a consumer.
    pub fn resize(&mut self, key: ConsumerKey, prefetch: usize) {
        for consumer in &mut self.consumers {
            if consumer.key == key {
                consumer.prefetch = prefetch;
            }
        }
    }

    /// Removes the consumers for which `keep` returns false. Their deliveries stay unsettled.
    pub fn retain_consumers(&mut self, mut keep: impl FnMut(ConsumerKey) -> bool) {
        let before = self.consumers.len();
        self.consumers.retain(|consumer| keep(consumer.key));
        if self.consumers.len() < before {
            self.leave_memory();
        }
    }

    /// Assigns an id to a new message. After its commit, the message must be passed to
    /// [`stored`](Self::stored).
    pub fn assign(&mut self) -> Id {
        self.last += 1;
        self.incoming += 1;
        self.mark.stored += 1;
        self.last
    }

    /// Forgets the messages that are assigned and not committed. Returns whether there are any.
    pub fn withdraw(&mut self) -> bool {
        let incoming = std::mem::take(&mut self.incoming);
        // The watermark may stay above them: the messages that get their ids are then covered by it
        // already.
        self.last -= incoming.cast_signed();
        self.mark.stored -= incoming;
        incoming > 0
    }

    /// Adds a committed message. It is kept in memory if consumers will receive it, there is room,
    /// and no older message is only on disk.
    pub fn stored(&mut self, message: Message) {
        self.incoming -= 1;
        if self.is_consumed() && self.only_on_disk == 0 && self.has_room() {
            self.load(message);
        } else {
            self.only_on_disk += 1;
        }
    }

    /// Returns the id after which messages must be read from disk, if consumers will soon need more
    /// and there is memory.
    pub fn wants_page(&self) -> Option<Id> {
        (self.runs_low() && self.memory.has_room(self.own_memory)).then_some(self.loaded_to)
    }

    /// Returns whether messages must be read from disk once other pipes use less memory.
    pub fn waits_for_memory(&self) -> bool {
        self.runs_low() && !self.memory.has_room(self.own_memory)
    }

    /// What is delivered at once is not counted: the disk may be at work before it is.
    fn runs_low(&self) -> bool {
        if !self.is_consumed() || self.only_on_disk == 0 {
            return false;
        }
        let handed_out = self.written.handed_out;
        let committed = self
            .ready
            .partition_point(|message| message.id <= handed_out);
        let delivered = self.ready.range(..committed.min(self.room()));
        let left = self.ready.len() - delivered.len();
        let left_bytes =
            self.ready_bytes - delivered.map(|message| message.body.len()).sum::<usize>();
        left < self.bounds.messages / 2 && left_bytes < self.bounds.bytes / 2
    }

    /// Returns for how many more messages the consumers have room.
    fn room(&self) -> usize {
        let rooms = self
            .consumers
            .iter()
            .map(|consumer| consumer.prefetch.saturating_sub(consumer.unsettled));
        rooms.sum()
    }

    /// Adds messages that were read from disk after the id `after`. Ignores them if the messages
    /// after it have left the memory since: they are read again.
    pub fn loaded(&mut self, after: Id, messages: Vec<Message>) {
        if after != self.loaded_to || !self.is_consumed() {
            return;
        }
        if messages.is_empty() {
            // The stored count was too high. The rows are authoritative.
            self.only_on_disk = 0;
        }
        for message in messages {
            self.only_on_disk = self.only_on_disk.saturating_sub(1);
            self.load(message);
        }
    }

    /// Raises the watermark over the next messages for which the consumers have room, including
    /// those that the next commit stores. Returns whether the watermark must be committed before
    /// more messages can be delivered.
    pub fn raise_watermark(&mut self) -> bool {
        let room = self.room();
        let target =
            if let Some(message) = room.checked_sub(1).and_then(|index| self.ready.get(index)) {
                message.id
            } else if room > 0 {
                let beyond = self
                    .incoming
                    .min((room - self.ready.len()).min(self.bounds.messages) as u64);
                let oldest_incoming = self.last - self.incoming.cast_signed() + 1;
                match self.ready.back() {
                    _ if self.only_on_disk == 0 && beyond > 0 => {
                        oldest_incoming + beyond.cast_signed() - 1
                    }
                    Some(youngest) => youngest.id,
                    None => return false,
                }
            } else {
                return false;
            };
        self.mark.handed_out = self.mark.handed_out.max(target);
        self.mark.handed_out > self.written.handed_out
    }

    /// Returns the pipe's row if it differs from the one on disk.
    pub fn unwritten_mark(&self) -> Option<Mark> {
        (self.mark != self.written).then_some(self.mark)
    }

    /// Records that the row was committed.
    pub fn marked(&mut self, mark: Mark) {
        self.written = mark;
    }

    /// Takes the next message that may be delivered, and the consumer that receives it. Consumers
    /// take turns.
    pub fn hand_out(&mut self) -> Option<(ConsumerKey, Message)> {
        self.ready
            .front()
            .filter(|message| message.id <= self.written.handed_out)?;
        let index = self
            .consumers
            .iter()
            .position(|consumer| consumer.unsettled < consumer.prefetch)?;
        let mut consumer = self.consumers.remove(index)?;
        let message = self.ready.pop_front()?;
        self.ready_bytes -= message.body.len();
        consumer.unsettled += 1;
        let key = consumer.key;
        self.consumers.push_back(consumer);
        self.unsettled.insert(message.id, (key, message.clone()));
        Some((key, message))
    }

    /// Settles a delivery of a consumer. A requeued message is returned with its new count; after
    /// that count is committed, it must be passed to [`requeue`](Self::requeue). What the consumer
    /// does not hold is ignored.
    pub fn settle(&mut self, key: ConsumerKey, id: Id, settlement: Settlement) -> Settled {
        let mut message = match self.unsettled.entry(id) {
            Entry::Occupied(entry) if entry.get().0 == key => entry.remove().1,
            _ => return Settled::Unknown,
        };
        if let Some(consumer) = self
            .consumers
            .iter_mut()
            .find(|consumer| consumer.key == key)
        {
            consumer.unsettled -= 1;
        }
        if settlement == Settlement::Requeue {
            message.delivery_count += 1;
            self.returning += 1;
            return Settled::Requeued(message);
        }
        self.mark.stored -= 1;
        self.release_memory(message.weight());
        self.leave_memory();
        Settled::Done
    }

    /// Puts a requeued message back at its former position.
    pub fn requeue(&mut self, message: Message) {
        self.ready_bytes += message.body.len();
        let index = self
            .ready
            .iter()
            .position(|other| other.id > message.id)
            .unwrap_or(self.ready.len());
        self.ready.insert(index, message);
        self.returning = self.returning.saturating_sub(1);
        if !self.is_consumed() {
            self.leave_memory();
        }
    }

    /// Forgets a message that was read from disk when `joined` consumers had joined. Returns
    /// whether it must be deleted: false if a consumer may have received it.
    pub fn discard(&mut self, id: Id, joined: u64) -> bool {
        if self.joined != joined || self.is_consumed() {
            return false;
        }
        if id > self.loaded_to {
            self.only_on_disk = self.only_on_disk.saturating_sub(1);
        } else if let Ok(index) = self.ready.binary_search_by_key(&id, |message| message.id)
            && let Some(message) = self.ready.remove(index)
        {
            self.ready_bytes -= message.body.len();
            self.release_memory(message.weight());
        } else {
            return false;
        }
        self.mark.stored -= 1;
        true
    }

    /// Removes these consumers. Returns what they have not settled, as [`settle`](Self::settle)
    /// does.
    pub fn leave(&mut self, leaves: impl Fn(ConsumerKey) -> bool) -> Vec<Message> {
        let returned = self.unsettled.extract_if(.., |_, (key, _)| leaves(*key));
        let returned = returned.map(|(_, (_, message))| Message {
            delivery_count: message.delivery_count + 1,
            ..message
        });
        let returned: Vec<_> = returned.collect();
        self.returning += returned.len() as u64;
        self.retain_consumers(|key| !leaves(key));
        returned
    }

    /// Removes all consumers, as [`leave`](Self::leave) does. Resets the watermark, so that the
    /// next start does not count their messages again.
    pub fn close(&mut self) -> Vec<Message> {
        self.mark.handed_out = rows_of(self.number()).0;
        self.leave(|_| true)
    }

    /// Drops the ready messages of a pipe without consumers from memory: all of them once none is
    /// unsettled, and before that only those that were never delivered. The next consumer reads
    /// them from disk.
    fn leave_memory(&mut self) {
        if self.is_consumed() {
            return;
        }
        let nothing_is_out = self.unsettled.is_empty() && self.returning == 0;
        while let Some(message) = self
            .ready
            .pop_back_if(|message| nothing_is_out || message.id > self.mark.handed_out)
        {
            self.ready_bytes -= message.body.len();
            self.only_on_disk += 1;
            self.loaded_to = message.id - 1;
            self.release_memory(message.weight());
        }
    }

    fn release_memory(&mut self, weight: usize) {
        self.own_memory -= weight;
        self.memory.used.fetch_sub(weight, Ordering::Relaxed);
    }

    fn load(&mut self, message: Message) {
        self.own_memory += message.weight();
        self.memory
            .used
            .fetch_add(message.weight(), Ordering::Relaxed);
        self.ready_bytes += message.body.len();
        self.loaded_to = message.id;
        self.ready.push_back(message);
    }

    fn has_room(&self) -> bool {
        self.ready.len() < self.bounds.messages
            && self.ready_bytes < self.bounds.bytes
            && self.memory.has_room(self.own_memory)
    }
}

/// The result of a settlement.
#[derive(Debug)]
pub enum Settled {
    /// No such message is unsettled.
    Unknown,
    /// The message must be deleted.
    Done,
    /// The message comes again, with this new count.
    Requeued(Message),
}

#[cfg(test)]
mod tests;
