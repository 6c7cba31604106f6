//! The state of one pipe: which messages are in memory and which only on disk, the consumers, and the unsettled messages.
//!
//! Pure: it does no I/O. The writer reports what was committed and read.
//!
//! What must stay true:
//! - `ready` holds the oldest messages. The messages that are only on disk have higher ids than `loaded_to`, the highest
//!   id that is or was in memory.
//! - No message is delivered beyond the committed watermark. So after a crash, only messages up to the watermark can have
//!   been delivered.
//! - Memory is bounded by [`Bounds`] and the unsettled messages, not by the length of the pipe.
//!
//! # The watermark, by example
//!
//! After a crash, the messages that were delivered and not settled must come again with a higher delivery count, and no
//! others. Recording each delivery on disk would cost as much as publishing a message. Instead, each pipe has one number
//! on disk, the watermark: messages up to this id may have been delivered. It is raised ahead of the deliveries, as far
//! as the consumers have room, so that one commit serves many of them.
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
//! [`Disk::open`](super::disk::Disk::open) then raises the delivery count of every message up to 5 that still exists: 3,
//! 4 and 5 come again with a count of 1, and 6 comes with a count of 0. If the process dies before the second commit, the
//! watermark is 3 and the acknowledgements are lost: 1, 2 and 3 come again with a count of 1, the others with 0. A message
//! that is covered by the watermark and was not delivered yet is counted, too; there are never more of those than the
//! consumers had room for.
//!
//! A message that is published while a consumer waits needs no second commit: the commit that stores it also raises the
//! watermark to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::{Headers, Settlement};

/// The id of a message, which is also its row: the number of its pipe in the high bits, its position in the pipe in the
/// low ones.
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
    pub headers: Headers,
    pub body: Bytes,
}

/// How much of a pipe is kept in memory at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub messages: usize,
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            messages: 20_000,
            bytes: 32 << 20,
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

/// Identifies a consumer.
pub type ConsumerKey = u64;

/// The state of one pipe; see the module's documentation.
#[derive(Debug)]
pub struct Pipe {
    pub name: Arc<str>,
    bounds: Bounds,
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
    consumers: VecDeque<Registration>,
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
    pub fn new(name: &str, number: i64, bounds: Bounds) -> Self {
        let first = rows_of(number).0;
        Self::from_disk(
            StoredPipe {
                number,
                name: name.to_owned(),
                last: first,
                stored: 0,
            },
            bounds,
        )
    }

    /// Returns a pipe whose messages are all on disk. None of them is delivered until the watermark is raised and
    /// committed.
    pub fn from_disk(pipe: StoredPipe, bounds: Bounds) -> Self {
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
            mark,
            written: mark,
            last,
            incoming: 0,
            ready: VecDeque::new(),
            ready_bytes: 0,
            loaded_to: first,
            only_on_disk: stored,
            unsettled: BTreeMap::new(),
            consumers: VecDeque::new(),
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

    /// Adds a consumer.
    pub fn join(&mut self, key: ConsumerKey, prefetch: usize) {
        self.consumers.push_back(Registration {
            key,
            prefetch,
            unsettled: 0,
        });
    }

    /// Removes the consumers for which `keep` returns false. Their deliveries stay unsettled.
    pub fn retain_consumers(&mut self, mut keep: impl FnMut(ConsumerKey) -> bool) {
        self.consumers.retain(|consumer| keep(consumer.key));
    }

    /// Assigns an id to a new message. After its commit, the message must be passed to [`stored`](Self::stored).
    pub fn assign(&mut self) -> Id {
        self.last += 1;
        self.incoming += 1;
        self.mark.stored += 1;
        self.last
    }

    /// Forgets the messages that are assigned and not committed. Returns whether there are any.
    pub fn withdraw(&mut self) -> bool {
        let incoming = std::mem::take(&mut self.incoming);
        // The watermark may stay above them: the messages that get their ids are then covered by it already.
        self.last -= incoming.cast_signed();
        self.mark.stored -= incoming;
        incoming > 0
    }

    /// Adds a committed message. It is kept in memory if there is room and no older message is only on disk.
    pub fn stored(&mut self, message: Message) {
        self.incoming -= 1;
        if self.only_on_disk == 0 && self.has_room() {
            self.load(message);
        } else {
            self.only_on_disk += 1;
        }
    }

    /// Returns the id after which messages must be read from disk, if consumers will soon need more.
    pub fn wants_page(&self) -> Option<Id> {
        let low =
            self.ready.len() < self.bounds.messages / 2 && self.ready_bytes < self.bounds.bytes / 2;
        (self.only_on_disk > 0 && low && !self.consumers.is_empty()).then_some(self.loaded_to)
    }

    /// Adds messages that were read from disk.
    pub fn loaded(&mut self, messages: Vec<Message>) {
        if messages.is_empty() {
            // The stored count was too high. The rows are authoritative.
            self.only_on_disk = 0;
        }
        for message in messages {
            self.only_on_disk = self.only_on_disk.saturating_sub(1);
            self.load(message);
        }
    }

    /// Raises the watermark over the next messages for which the consumers have room, including those that the next commit
    /// stores. Returns whether the watermark must be committed before more messages can be delivered.
    pub fn raise_watermark(&mut self) -> bool {
        let room: usize = self
            .consumers
            .iter()
            .map(|consumer| consumer.prefetch.saturating_sub(consumer.unsettled))
            .sum();
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

    /// Takes the next message that may be delivered, and the consumer that receives it. Consumers take turns.
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

    /// Settles a delivery. A requeued message is returned with its new count; after that count is committed, it must be
    /// passed to [`requeue`](Self::requeue). Ids that are not unsettled are ignored.
    pub fn settle(&mut self, id: Id, settlement: Settlement) -> Settled {
        let Some((key, mut message)) = self.unsettled.remove(&id) else {
            return Settled::Unknown;
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
            return Settled::Requeued(message);
        }
        self.mark.stored -= 1;
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
    }

    /// Removes all consumers and returns their unsettled messages with their new counts. Resets the watermark, so that the
    /// next start does not count them again.
    pub fn close(&mut self) -> Vec<Message> {
        self.consumers.clear();
        self.mark.handed_out = rows_of(self.number()).0;
        let unsettled = std::mem::take(&mut self.unsettled);
        unsettled
            .into_values()
            .map(|(_, message)| Message {
                delivery_count: message.delivery_count + 1,
                ..message
            })
            .collect()
    }

    fn load(&mut self, message: Message) {
        self.ready_bytes += message.body.len();
        self.loaded_to = message.id;
        self.ready.push_back(message);
    }

    fn has_room(&self) -> bool {
        self.ready.len() < self.bounds.messages && self.ready_bytes < self.bounds.bytes
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
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        messages: 4,
        bytes: 1 << 20,
    };

    fn pipe() -> Pipe {
        Pipe::new("p", 3, BOUNDS)
    }

    fn message(id: Id) -> Message {
        Message {
            id,
            delivery_count: 0,
            headers: Headers::default(),
            body: Bytes::from_static(b"body"),
        }
    }

    fn position(id: Id) -> i64 {
        id - rows_of(3).0
    }

    /// Assigns and stores messages in one commit.
    fn store(pipe: &mut Pipe, count: u64) {
        let ids: Vec<Id> = (0..count).map(|_| pipe.assign()).collect();
        pipe.raise_watermark();
        commit(pipe);
        for id in ids {
            pipe.stored(message(id));
        }
    }

    fn commit(pipe: &mut Pipe) {
        if let Some(mark) = pipe.unwritten_mark() {
            pipe.marked(mark);
        }
    }

    fn handed_out(pipe: &mut Pipe) -> Vec<i64> {
        std::iter::from_fn(|| pipe.hand_out())
            .map(|(_, message)| position(message.id))
            .collect()
    }

    #[test]
    fn message_for_a_waiting_consumer_needs_one_commit() {
        let mut pipe = pipe();
        pipe.join(1, 2);
        store(&mut pipe, 3);
        assert_eq!(handed_out(&mut pipe), [1, 2]);
        assert_eq!((pipe.depth(), pipe.raise_watermark()), (1, false));
    }

    #[test]
    fn no_message_is_delivered_beyond_the_committed_watermark() {
        let mut pipe = pipe();
        store(&mut pipe, 3);
        pipe.join(1, 2);
        assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
        assert!(pipe.raise_watermark());
        assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
        commit(&mut pipe);
        assert_eq!(handed_out(&mut pipe), [1, 2]);
    }

    #[test]
    fn watermark_moves_as_in_the_example_of_the_module_documentation() {
        let bounds = Bounds {
            messages: 10,
            ..BOUNDS
        };
        let mut pipe = Pipe::new("p", 3, bounds);
        let watermarks = |pipe: &Pipe| {
            (
                position(pipe.mark.handed_out),
                position(pipe.written.handed_out),
            )
        };
        store(&mut pipe, 6);
        pipe.join(1, 3);
        assert!(pipe.raise_watermark());
        assert_eq!(watermarks(&pipe), (3, 0));
        commit(&mut pipe);
        assert_eq!(watermarks(&pipe), (3, 3));
        assert_eq!(handed_out(&mut pipe), [1, 2, 3]);
        for position in [1, 2] {
            pipe.settle(rows_of(3).0 + position, Settlement::Ack);
        }
        assert!(pipe.raise_watermark());
        assert_eq!(watermarks(&pipe), (5, 3));
        commit(&mut pipe);
        assert_eq!(watermarks(&pipe), (5, 5));
        assert_eq!(handed_out(&mut pipe), [4, 5]);
    }

    #[test]
    fn messages_that_exceed_the_bounds_are_read_from_disk_in_order() {
        let mut pipe = pipe();
        store(&mut pipe, 6);
        assert_eq!(
            (pipe.ready.len(), pipe.only_on_disk, pipe.wants_page()),
            (4, 2, None)
        );
        pipe.join(1, 10);
        assert!(pipe.raise_watermark());
        commit(&mut pipe);
        assert_eq!(handed_out(&mut pipe), [1, 2, 3, 4]);
        store(&mut pipe, 1);
        assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
        let after = pipe.wants_page().unwrap();
        assert_eq!(position(after), 4);
        pipe.loaded(
            (5..=7)
                .map(|position| message(rows_of(3).0 + position))
                .collect(),
        );
        assert!(pipe.raise_watermark());
        commit(&mut pipe);
        assert_eq!(handed_out(&mut pipe), [5, 6, 7]);
        assert_eq!(pipe.depth(), 0);
    }

    #[test]
    fn requeued_messages_return_to_their_former_positions() {
        let mut pipe = pipe();
        pipe.join(1, 3);
        store(&mut pipe, 4);
        assert_eq!(handed_out(&mut pipe), [1, 2, 3]);
        for position in [3, 1] {
            let Settled::Requeued(message) =
                pipe.settle(rows_of(3).0 + position, Settlement::Requeue)
            else {
                panic!("{position}")
            };
            assert_eq!(message.delivery_count, 1);
            pipe.requeue(message);
        }
        assert_eq!(handed_out(&mut pipe), [1, 3]);
    }

    #[test]
    fn consumers_take_turns() {
        let mut pipe = pipe();
        pipe.join(1, 2);
        pipe.join(2, 1);
        store(&mut pipe, 4);
        let keys: Vec<ConsumerKey> = std::iter::from_fn(|| pipe.hand_out())
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys, [1, 2, 1]);
    }
}
