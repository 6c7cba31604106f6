//! Bounds the outputs that nobody reads: by their size, and by their age.
//!
//! Results whose tracking has ended go to the output pipe, whether somebody reads it or not.
//! Without a bound, such a pipe would fill the disk.
//!
//! What must stay true:
//! - Only results are dropped, and only if no job tracks them any more. Tasks stay, and so do
//!   copies of failed tasks and messages that were not understood, because people look at them.
//! - A result that a consumer may have received is left to the consumer.
//! - The oldest results are dropped first.
//! - A result is looked at once when it is new, and once more when it is dropped: the cost does not
//!   depend on how many there are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use contract::TaskStatus;
use contract::headers::REASON_HEADER;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::Embedded;
use crate::broker::BrokerError;
use crate::broker::local::Command;
use crate::broker::local::pipe::{Id, Message, UnconsumedPipe, rows_of};
use crate::broker::local::work::Page;
use crate::meters;

/// How much is read at a time, and about how much is dropped at a time.
const PAGE_BYTES: usize = 1 << 20;
/// Results that were sent within this part of the greatest age count as equally old.
const STEPS_OF_AGE: u32 = 50;
/// After how many new bytes, as a part of the bound, the results are looked at.
pub const STEPS_OF_BYTES: u64 = 16;

/// How many results wait in pipes that nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadBounds {
    /// The size of all of them together, in bytes. For a while, there may be an eighth more.
    pub bytes: u64,
    /// How long each of them stays.
    pub age: Duration,
}

impl UnreadBounds {
    /// No bounds.
    pub const NONE: Self = Self {
        bytes: u64::MAX,
        age: Duration::MAX,
    };
    /// A gigabyte (GiB), and a week.
    pub const DEFAULT: Self = Self {
        bytes: 1 << 30,
        age: Duration::from_hours(7 * 24),
    };
}

impl Default for UnreadBounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Results of a pipe that were dropped because nobody reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedOutputs {
    /// The name of the pipe.
    pub pipe: Arc<str>,
    /// The number of results. A bundle counts as one.
    pub count: u64,
}

/// What is known about results in pipes without consumers.
#[derive(Debug, Default)]
pub struct Unread {
    /// By the numbers of the pipes.
    pipes: HashMap<i64, Seen>,
}

/// What was seen in one pipe.
#[derive(Debug)]
struct Seen {
    joined: u64,
    /// Everything up to this id was seen.
    to: Id,
    /// Runs of messages, the oldest first.
    runs: VecDeque<Run>,
}

/// Messages that were sent at about the same time.
#[derive(Debug, Clone, Copy)]
struct Run {
    after: Id,
    to: Id,
    /// The size of the results among them.
    bytes: u64,
    since: Instant,
}

/// The time, on both clocks.
#[derive(Debug, Clone, Copy)]
struct Now {
    instant: Instant,
    /// Since 1970.
    seconds: i64,
}

impl Now {
    /// Returns when a message was sent. One from a clock that was set back since counts as new.
    fn sent(self, message: &Message) -> Instant {
        let age = self.seconds.saturating_sub(message.sent);
        let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
        self.instant.checked_sub(age).unwrap_or(self.instant)
    }
}

impl Unread {
    /// Returns the size of all results, in bytes.
    pub fn bytes(&self) -> u64 {
        let runs = self.pipes.values().flat_map(|seen| &seen.runs);
        runs.map(|run| run.bytes).sum()
    }

    /// Forgets the pipes that have a consumer, or had one since, and those that are empty.
    fn keep(&mut self, pipes: &[UnconsumedPipe]) {
        self.pipes.retain(|number, seen| {
            pipes
                .iter()
                .any(|pipe| pipe.number == *number && pipe.joined == seen.joined)
        });
    }

    fn seen(&mut self, pipe: &UnconsumedPipe) -> &mut Seen {
        self.pipes.entry(pipe.number).or_insert_with(|| Seen {
            joined: pipe.joined,
            to: rows_of(pipe.number).0,
            runs: VecDeque::new(),
        })
    }

    /// Takes the oldest run if some of it must be dropped. Returns it with the number of its pipe
    /// and how many bytes of it are too many.
    fn take_overdue(&mut self, bounds: UnreadBounds, now: Instant) -> Option<(i64, Run, u64)> {
        let excess = self.bytes().saturating_sub(bounds.bytes);
        let oldest = self.pipes.iter_mut();
        let oldest = oldest.filter_map(|(number, seen)| Some((*number, *seen.runs.front()?, seen)));
        let (number, run, seen) = oldest.min_by_key(|(number, run, _)| (run.since, *number))?;
        let is_old = now.duration_since(run.since) >= bounds.age;
        if excess == 0 && !is_old {
            return None;
        }
        seen.runs.pop_front();
        Some((number, run, if is_old { run.bytes } else { excess }))
    }

    /// Puts back what is left of a run.
    fn put_back(&mut self, number: i64, run: Run) {
        if run.bytes > 0
            && let Some(seen) = self.pipes.get_mut(&number)
        {
            seen.runs.push_front(run);
        }
    }
}

impl Seen {
    /// Adds a page. Returns whether there was anything new in it.
    fn add(&mut self, page: &[Message], bounds: UnreadBounds, now: Now) -> bool {
        let Some(last) = page.last() else {
            return false;
        };
        let results = page.iter().filter(|message| is_ended_result(message));
        let bytes: u64 = results.map(size).sum();
        // No result of the page is dropped before all of them are old.
        let since = now.sent(last);
        let joins = |run: &Run| {
            run.bytes + bytes <= PAGE_BYTES as u64
                && since.duration_since(run.since) <= bounds.age / STEPS_OF_AGE
        };
        match self.runs.back_mut() {
            Some(run) if joins(run) => {
                run.to = last.id;
                run.bytes += bytes;
            }
            _ => self.runs.push_back(Run {
                after: self.to,
                to: last.id,
                bytes,
                since,
            }),
        }
        self.to = last.id;
        true
    }
}

impl Embedded {
    /// Drops the oldest results from the pipes that nobody reads, as far as they exceed the bounds
    /// of the broker. Returns what was dropped.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](crate::broker::Broker::close).
    pub async fn drop_unread(&self) -> Result<Vec<DroppedOutputs>, BrokerError> {
        let mut unread = self.place.unread.lock().await;
        let now = Now {
            instant: Instant::now(),
            seconds: self.place.clock.now_seconds(),
        };
        let pipes = self.request(|reply| Command::Unconsumed { reply }).await?;
        unread.keep(&pipes);
        for pipe in &pipes {
            let seen = unread.seen(pipe);
            loop {
                let page = self.read_page(pipe.number, seen.to).await?;
                if !seen.add(&page, self.place.bounds, now) {
                    break;
                }
            }
        }
        let mut dropped: HashMap<i64, u64> = HashMap::new();
        while let Some((number, mut run, bytes)) =
            unread.take_overdue(self.place.bounds, now.instant)
        {
            if let Some(pipe) = pipes.iter().find(|pipe| pipe.number == number) {
                *dropped.entry(number).or_default() += self.drop_of(pipe, &mut run, bytes).await?;
                unread.put_back(number, run);
            }
        }
        let total = dropped.values().sum();
        meters::embedded_dropped().increment(total);
        self.place
            .unread_bytes
            .store(unread.bytes(), Ordering::Relaxed);
        let dropped = pipes.iter().filter_map(|pipe| {
            let count = *dropped.get(&pipe.number)?;
            let pipe = Arc::clone(&pipe.name);
            (count > 0).then_some(DroppedOutputs { pipe, count })
        });
        Ok(dropped.collect())
    }

    /// Waits until so much is new in pipes without consumers that [`Self::drop_unread`] should be
    /// called.
    pub async fn unread_grew(&self) {
        self.place.growth.notified().await;
    }

    /// Drops the first results of a run, at least so many bytes of them if there are. Returns how
    /// many, and leaves the rest in the run.
    async fn drop_of(
        &self,
        pipe: &UnconsumedPipe,
        run: &mut Run,
        bytes: u64,
    ) -> Result<u64, BrokerError> {
        let (enough, mut dropped) = (run.bytes.saturating_sub(bytes), 0);
        while run.bytes > enough {
            let page = self.read_page(pipe.number, run.after).await?;
            let mut ids = Vec::new();
            let before = run.after;
            for message in page.iter().take_while(|message| message.id <= run.to) {
                if run.bytes <= enough {
                    break;
                }
                run.after = message.id;
                if is_ended_result(message) {
                    run.bytes = run.bytes.saturating_sub(size(message));
                    ids.push(message.id);
                }
            }
            if run.after == before {
                // Somebody else has deleted the rest.
                run.bytes = 0;
            }
            if !ids.is_empty() {
                let joined = pipe.joined;
                dropped += self
                    .request(|reply| Command::Discard { ids, joined, reply })
                    .await?;
            }
        }
        Ok(dropped)
    }

    async fn read_page(&self, number: i64, after: Id) -> Result<Vec<Message>, BrokerError> {
        let bytes = PAGE_BYTES;
        let page = Page {
            number,
            after,
            bytes,
        };
        self.request(|reply| Command::Peek { page, reply }).await
    }
}

/// Returns about how much space a message takes.
fn size(message: &Message) -> u64 {
    message.body.len() as u64 + 200
}

/// The parts of a task message that are needed here. The task data is not decoded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(rename = "taskId")]
    _task_id: IgnoredAny,
    task_status: Option<TaskStatus>,
    #[serde(default)]
    tracking: Option<IgnoredAny>,
}

/// Returns whether a message is a result that no job tracks any more, or a bundle of such results.
fn is_ended_result(message: &Message) -> bool {
    let is_kept_for_people = message.headers.get(REASON_HEADER).is_some();
    // The first line of a bundle says it of all its members, so what follows the envelope does not
    // matter.
    let mut body = serde_json::Deserializer::from_slice(&message.body);
    !is_kept_for_people
        && Envelope::deserialize(&mut body).is_ok_and(|envelope| {
            envelope.tracking.is_none()
                && envelope
                    .task_status
                    .is_some_and(|status| status != TaskStatus::NewTask)
        })
}

#[cfg(test)]
mod tests;
