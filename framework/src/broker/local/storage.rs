//! What keeps the messages of a local broker: a file, or memory.
//!
//! What must stay true: if [`Storage::commit`] returns `Ok`, the whole batch is kept for as long as
//! the storage can keep anything. If it returns an error, nothing of the batch is.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::pipe::{Id, Mark, Message, StoredPipe};
use super::wall_clock::Due;
use crate::broker::Headers;

/// Keeps messages.
pub trait Storage: Send + Sized + 'static {
    /// Why something could not be read or written.
    type Error: Send;

    /// Writes the whole batch or nothing.
    fn commit(&mut self, batch: &mut Batch) -> Result<(), Self::Error>;

    /// Returns the next messages of a pipe after the id `after`: at most `messages`, and none after
    /// the one whose body reaches a total of `bytes`.
    fn page(
        &self,
        number: i64,
        after: Id,
        messages: usize,
        bytes: usize,
    ) -> Result<Vec<Message>, Self::Error>;

    /// Returns the delayed messages that are due at `now` (milliseconds since 1970), the earliest
    /// first: at most `limit`, and none after the one whose body reaches a total of `bytes`.
    fn due(&self, now: i64, limit: usize, bytes: usize) -> Result<Vec<Delayed>, Self::Error>;

    /// Returns when the first delayed message is due, in milliseconds since 1970.
    fn next_due(&self) -> Result<Option<i64>, Self::Error>;

    /// Returns how many messages of each pipe are delayed; `None` if there are more than `most` and
    /// counting takes time.
    fn count_delayed(&self, most: i64) -> Result<Option<HashMap<i64, u64>>, Self::Error>;

    /// Brings back the due times that are further away than their delay, because the clock was set
    /// back.
    fn bring_back(&self, _now: i64) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns how many bytes are free for messages.
    fn free(&self) -> u64 {
        u64::MAX
    }

    /// Gives some unused space back, all but `kept` bytes. Returns whether there is more.
    fn give_back(&self, _kept: i64) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Releases what the storage holds.
    fn close(self) {}

    /// Returns what happened.
    fn reason(error: &Self::Error) -> String;
}

/// The changes of one commit.
#[derive(Debug, Default)]
pub struct Batch {
    /// New pipes: number and name.
    pub pipes: Vec<(i64, Arc<str>)>,
    /// New messages.
    pub messages: Vec<Message>,
    /// New delayed messages.
    pub delayed: Vec<Delayed>,
    /// Delayed messages to delete, because they are among `messages` now.
    pub released: Vec<i64>,
    /// Messages to delete.
    pub settled: Vec<Id>,
    /// Messages whose delivery count has changed.
    pub returned: Vec<Message>,
    /// Pipes whose row has changed.
    pub marks: Vec<Mark>,
}

impl Batch {
    /// Returns whether the batch must be committed now. Acknowledgements and pipe rows can wait a
    /// little.
    pub fn is_urgent(&self) -> bool {
        !(self.pipes.is_empty()
            && self.messages.is_empty()
            && self.delayed.is_empty()
            && self.released.is_empty()
            && self.returned.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        !self.is_urgent() && self.settled.is_empty() && self.marks.is_empty()
    }
}

/// A message that becomes visible in its pipe later.
#[derive(Debug, Clone)]
pub struct Delayed {
    pub id: i64,
    pub due: Due,
    pub pipe: i64,
    pub headers: Headers,
    pub body: Bytes,
}

/// The content of a storage when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    pub pipes: Vec<StoredPipe>,
    /// The highest id of a delayed message, or 0.
    pub last_delayed: i64,
    /// When the first delayed message is due, in milliseconds since 1970.
    pub next_due: Option<i64>,
    /// How many bytes are free for messages.
    pub free: u64,
}
