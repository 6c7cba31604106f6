//! One pipe as the writer sees it: what is in memory, what is only on the disk, who consumes and what is unsettled.
//!
//! Pure: it neither reads nor writes anything; the writer tells it what the disk has done.
//!
//! What must stay true:
//! - `ready` holds the oldest messages. All that lie only on the disk are younger than `loaded_to`, the youngest that is
//!   or was in memory.
//! - Nothing is handed out beyond the watermark, which was committed before. So after a crash the messages up to the
//!   watermark are those that a dead process may have had.
//! - Memory is bounded by [`Bounds`] and what consumers hold, not by the length of the pipe.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::{Headers, Settlement};

/// A message's row: the number of its pipe in the high bits, its place in the pipe in the low ones.
pub type Id = i64;

const PLACE_BITS: u32 = 40;

/// Which pipe a message belongs to.
pub fn pipe_of(id: Id) -> i64 {
    id >> PLACE_BITS
}

/// The row before the first and the last one that a pipe may have.
pub fn rows_of(number: i64) -> (Id, Id) {
    (number << PLACE_BITS, ((number + 1) << PLACE_BITS) - 1)
}

#[derive(Debug, Clone)]
pub struct Message {
    pub id: Id,
    pub delivery_count: u32,
    pub headers: Headers,
    pub body: Bytes,
}

/// How much of a pipe stays in memory.
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

/// What the disk knows of a pipe when it is opened.
#[derive(Debug, Clone)]
pub struct Found {
    pub number: i64,
    pub name: String,
    /// The youngest row, or the row before the first.
    pub last: Id,
    pub stored: u64,
}

/// The pipe's own row, as the next commit is to leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub number: i64,
    /// The watermark.
    pub handed_out: Id,
    pub stored: u64,
}

/// Names a consumer.
pub type Key = u64;

#[derive(Debug)]
pub struct Pipe {
    pub name: Arc<str>,
    bounds: Bounds,
    mark: Mark,
    /// The row as the disk has it.
    written: Mark,
    /// The youngest id that was given away, and how many of the youngest are not committed yet.
    last: Id,
    incoming: u64,
    ready: VecDeque<Message>,
    ready_bytes: usize,
    loaded_to: Id,
    only_on_disk: u64,
    unsettled: BTreeMap<Id, (Key, Message)>,
    seats: VecDeque<Seat>,
}

#[derive(Debug)]
struct Seat {
    key: Key,
    prefetch: usize,
    unsettled: usize,
}

impl Pipe {
    pub fn new(name: &str, number: i64, bounds: Bounds) -> Self {
        let first = rows_of(number).0;
        Self::found(
            Found {
                number,
                name: name.to_owned(),
                last: first,
                stored: 0,
            },
            bounds,
        )
    }

    pub fn found(found: Found, bounds: Bounds) -> Self {
        let Found {
            number,
            name,
            last,
            stored,
        } = found;
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
            seats: VecDeque::new(),
        }
    }

    pub fn number(&self) -> i64 {
        self.mark.number
    }

    /// How many messages wait for a consumer.
    pub fn depth(&self) -> u64 {
        self.ready.len() as u64 + self.only_on_disk
    }

    pub fn join(&mut self, key: Key, prefetch: usize) {
        self.seats.push_back(Seat {
            key,
            prefetch,
            unsettled: 0,
        });
    }

    /// Forgets consumers that are gone. What they have unsettled stays so.
    pub fn leave_unless(&mut self, mut is_there: impl FnMut(Key) -> bool) {
        self.seats.retain(|seat| is_there(seat.key));
    }

    /// Gives a new message its id. It is in the pipe when it is [`stored`](Self::stored).
    pub fn assign(&mut self) -> Id {
        self.last += 1;
        self.incoming += 1;
        self.mark.stored += 1;
        self.last
    }

    /// The disk has the message. It is kept in memory, too, when there is room and nothing older lies outside.
    pub fn stored(&mut self, message: Message) {
        self.incoming -= 1;
        if self.only_on_disk == 0 && self.has_room() {
            self.load(message);
        } else {
            self.only_on_disk += 1;
        }
    }

    /// After which message the disk should be read, if at all.
    pub fn wants_page(&self) -> Option<Id> {
        let low =
            self.ready.len() < self.bounds.messages / 2 && self.ready_bytes < self.bounds.bytes / 2;
        (self.only_on_disk > 0 && low && !self.seats.is_empty()).then_some(self.loaded_to)
    }

    /// The disk was read.
    pub fn loaded(&mut self, messages: Vec<Message>) {
        if messages.is_empty() {
            // The count was wrong; the rows are right.
            self.only_on_disk = 0;
        }
        for message in messages {
            self.only_on_disk = self.only_on_disk.saturating_sub(1);
            self.load(message);
        }
    }

    /// Raises the watermark as far as the consumers have room now, counting in what is being stored. True when that
    /// must be committed before anything more can be handed out.
    pub fn raise_watermark(&mut self) -> bool {
        let room: usize = self
            .seats
            .iter()
            .map(|seat| seat.prefetch.saturating_sub(seat.unsettled))
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

    /// The pipe's row, if the disk has another one.
    pub fn unwritten_mark(&self) -> Option<Mark> {
        (self.mark != self.written).then_some(self.mark)
    }

    /// The row is on the disk.
    pub fn marked(&mut self, mark: Mark) {
        self.written = mark;
    }

    /// The next message for the consumer whose turn it is.
    pub fn hand_out(&mut self) -> Option<(Key, Message)> {
        self.ready
            .front()
            .filter(|message| message.id <= self.written.handed_out)?;
        let index = self
            .seats
            .iter()
            .position(|seat| seat.unsettled < seat.prefetch)?;
        let mut seat = self.seats.remove(index)?;
        let message = self.ready.pop_front()?;
        self.ready_bytes -= message.body.len();
        seat.unsettled += 1;
        let key = seat.key;
        self.seats.push_back(seat);
        self.unsettled.insert(message.id, (key, message.clone()));
        Some((key, message))
    }

    /// A delivery was settled. A message that is to come again is answered with its new count; it is in the pipe when it
    /// has been [given back](Self::give_back). Unknown ids are ignored: their delivery belongs to an earlier life.
    pub fn settle(&mut self, id: Id, settlement: Settlement) -> Settled {
        let Some((key, mut message)) = self.unsettled.remove(&id) else {
            return Settled::Unknown;
        };
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.key == key) {
            seat.unsettled -= 1;
        }
        if settlement == Settlement::Requeue {
            message.delivery_count += 1;
            return Settled::Returned(message);
        }
        self.mark.stored -= 1;
        Settled::Gone
    }

    /// A returned message takes its old place again.
    pub fn give_back(&mut self, message: Message) {
        self.ready_bytes += message.body.len();
        let index = self
            .ready
            .iter()
            .position(|other| other.id > message.id)
            .unwrap_or(self.ready.len());
        self.ready.insert(index, message);
    }

    /// All consumers end, and what they had comes back. Nothing is handed out any more.
    pub fn close(&mut self) -> Vec<Message> {
        self.seats.clear();
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

/// What became of a delivery.
#[derive(Debug)]
pub enum Settled {
    Unknown,
    Gone,
    Returned(Message),
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

    fn place(id: Id) -> i64 {
        id - rows_of(3).0
    }

    /// Assigns and stores some messages with one commit.
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
            .map(|(_, message)| place(message.id))
            .collect()
    }

    #[test]
    fn a_message_for_a_waiting_consumer_needs_one_commit() {
        let mut pipe = pipe();
        pipe.join(1, 2);
        store(&mut pipe, 3);
        assert_eq!(handed_out(&mut pipe), [1, 2]);
        assert_eq!((pipe.depth(), pipe.raise_watermark()), (1, false));
    }

    #[test]
    fn nothing_is_handed_out_beyond_the_committed_watermark() {
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
    fn what_does_not_fit_stays_on_the_disk_and_is_read_in_order() {
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
        assert_eq!(place(after), 4);
        pipe.loaded((5..=7).map(|place| message(rows_of(3).0 + place)).collect());
        assert!(pipe.raise_watermark());
        commit(&mut pipe);
        assert_eq!(handed_out(&mut pipe), [5, 6, 7]);
        assert_eq!(pipe.depth(), 0);
    }

    #[test]
    fn returned_messages_take_their_old_places() {
        let mut pipe = pipe();
        pipe.join(1, 3);
        store(&mut pipe, 4);
        assert_eq!(handed_out(&mut pipe), [1, 2, 3]);
        for place in [3, 1] {
            let Settled::Returned(message) = pipe.settle(rows_of(3).0 + place, Settlement::Requeue)
            else {
                panic!("{place}")
            };
            assert_eq!(message.delivery_count, 1);
            pipe.give_back(message);
        }
        assert_eq!(handed_out(&mut pipe), [1, 3]);
    }

    #[test]
    fn consumers_take_turns() {
        let mut pipe = pipe();
        pipe.join(1, 2);
        pipe.join(2, 1);
        store(&mut pipe, 4);
        let keys: Vec<Key> = std::iter::from_fn(|| pipe.hand_out())
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys, [1, 2, 1]);
    }
}
