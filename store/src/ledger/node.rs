//! The nodes of the ledger: open splits and active tasks, and the rows of the task table that store
//! them.

use contract::ReportFailure;
use serde::{Deserialize, Serialize};

use super::bitmap::{Bits, position};
use super::counts::{Counts, SplitCounts};
use super::kept::{failure_json, parse_failure};

/// The chunk number of an active task's row.
pub const ACTIVE_TASK: i32 = -1;

/// Percentages inside the ledger: millionths of a percent.
pub const PERCENT: i64 = 1_000_000;

/// The highest percentage of a split that is not done.
const HIGHEST_OF_SPLIT: i64 = 997 * PERCENT / 10;

/// Flag of a split: reports disagree about the number of its subtasks, so that it stays failed.
pub const CONFLICT: i32 = 1;
/// Flag of a split: the split itself was reported failed or found contradictory, not only its
/// subtasks.
pub const REPORTED_FAILED: i32 = 2;
/// Flag of an active task: an attempt has failed.
pub const RETRYING: i32 = 4;

/// The key of a row of a task table: a path (`3.17`, empty for the job's own split) and a chunk.
pub type NodeKey = (String, i32);

/// A row of a task table, as the databases store it.
///
/// Chunk 0 of a path is a split, with the bits of its first subtasks. A higher chunk has further
/// bits only. Chunk -1 is an active task; it uses `percent`, `flags`, `attempts`, `since` and
/// `detail`, `counted` for one more than `started`, and `items` for `next`, 0 where there is none.
/// The fields of a split are those of [`Split`]; its `detail` has the [`SplitCounts`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRow {
    pub path: String,
    pub chunk: i32,
    pub size: Option<i32>,
    pub top: i32,
    pub done_count: i32,
    pub failed_count: i32,
    pub kept: i32,
    pub counted: i32,
    pub percent: i32,
    pub flags: i32,
    pub items: i64,
    pub open_sum: i64,
    pub done: Vec<u8>,
    pub failed: Option<Vec<u8>>,
    pub attempts: Option<i32>,
    pub since: Option<i64>,
    /// JSON: the last failure of an active task; the counts of a split.
    pub detail: Option<String>,
}

impl NodeRow {
    pub fn bits(&self) -> Bits {
        Bits(self.done.clone())
    }

    /// Returns whether the split itself was reported failed, or is contradictory.
    pub const fn is_reported_failed(&self) -> bool {
        self.flags & REPORTED_FAILED != 0
    }

    /// Returns what is known about the items of a split.
    pub fn counts_seen_from_above(&self) -> Counts {
        self.counts().seen_from_above()
    }

    fn counts(&self) -> SplitCounts {
        let counts = self.detail.as_deref().map(serde_json::from_str);
        counts.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the number of the final subtask of a split, once it is known: one more than the
    /// number of the others.
    pub fn final_number(&self) -> Option<u32> {
        self.size.map(unsigned)
    }

    /// Returns the row of a split that must be read for the bit of its final subtask: another one
    /// than this, or this one if it was read without its bits.
    pub fn row_of_final(&self) -> Option<NodeKey> {
        let (chunk, _) = position(self.final_number()?);
        let is_bare = self.done_count > 0 && self.done.is_empty();
        (self.chunk == 0 && (chunk > 0 || is_bare)).then(|| (self.path.clone(), chunk))
    }

    /// Returns how many subtasks of a split are done besides the final one. `with_final` is the row
    /// that [`row_of_final`](Self::row_of_final) names.
    pub fn parts_done(&self, with_final: Option<&Self>) -> i64 {
        let is_done = self.final_number().is_some_and(|number| {
            let (chunk, bit) = position(number);
            let rows = [Some(self), with_final].into_iter().flatten();
            rows.filter(|row| row.chunk == chunk)
                .any(|row| row.bits().get(bit))
        });
        i64::from(self.done_count) - i64::from(is_done)
    }

    /// Returns the percentage of a split of known size: the mean of its subtasks besides the final
    /// one, which is nobody's work.
    pub fn parts_percent(&self, parts_done: i64) -> Option<i64> {
        let parts = i64::from(self.final_number()?) - 1;
        (parts > 0).then(|| {
            let sum = parts_done * 100 * PERCENT + self.open_sum;
            (sum / parts).min(HIGHEST_OF_SPLIT)
        })
    }

    pub fn failed_bits(&self) -> Bits {
        Bits(self.failed.clone().unwrap_or_default())
    }
}

/// The bits of up to [`CHUNK`](super::bitmap::CHUNK) subtasks.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    pub done: Bits,
    pub failed: Bits,
    /// Whether the bits differ from those in the database.
    pub dirty: bool,
}

impl Chunk {
    /// Reads the bits of a row.
    fn of_row(row: &NodeRow) -> Self {
        Self {
            done: row.bits(),
            failed: row.failed_bits(),
            dirty: false,
        }
    }

    /// Writes the bits to a row.
    fn fill(&self, row: &mut NodeRow) {
        row.done.clone_from(&self.done.0);
        row.failed = self.failed.any().then(|| self.failed.0.clone());
    }
}

/// An open split: a task with subtasks that are not all done. The module head of the ledger has an
/// example of how the counters move.
#[derive(Debug, Clone, Default)]
pub struct Split {
    pub path: String,
    /// The index of the parent among the ledger's splits; `None` for the job's own split.
    pub parent: Option<usize>,
    /// The number of the task among its siblings.
    pub number: u32,
    pub depth: usize,
    /// The number of subtasks, including the final one; `None` until a report shows it.
    pub size: Option<u32>,
    /// The highest number of a subtask that was reported.
    pub top: u32,
    /// The number of subtasks that are done.
    pub done: u32,
    /// The number of subtasks that have failed.
    pub failed: u32,
    /// The number of subtasks with rows of their own, as open splits or active tasks.
    pub kept: u32,
    /// The highest subtask that was counted as an item before the size was known. If it turns out
    /// to be the final one, it is subtracted again.
    pub counted: u32,
    /// The percentage of this split that is part of its parent's `open_sum`.
    pub percent: i64,
    /// The sum of the percentages of the subtasks that are not done.
    pub open_sum: i64,
    /// The number of items done below.
    pub items: i64,
    /// What is known about all items below.
    pub counts: SplitCounts,
    pub flags: i32,
    pub chunks: Vec<(i32, Chunk)>,
    /// Whether the database has a row of the split.
    pub stored: bool,
    /// Whether the split differs from its row in the database.
    pub dirty: bool,
    /// Whether the split, or one above it, is done: reports no longer change it.
    pub closed: bool,
}

impl Split {
    pub fn is_done(&self, number: u32) -> bool {
        let (chunk, bit) = position(number);
        self.chunk(chunk).is_some_and(|chunk| chunk.done.get(bit))
    }

    pub fn is_failed(&self, number: u32) -> bool {
        let (chunk, bit) = position(number);
        self.chunk(chunk).is_some_and(|chunk| chunk.failed.get(bit))
    }

    fn chunk(&self, number: i32) -> Option<&Chunk> {
        let at = self
            .chunks
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()?;
        Some(&self.chunks[at].1)
    }

    pub fn chunk_mut(&mut self, number: i32) -> &mut Chunk {
        let at = match self
            .chunks
            .binary_search_by_key(&number, |(number, _)| *number)
        {
            Ok(at) => at,
            Err(at) => {
                self.chunks.insert(at, (number, Chunk::default()));
                at
            }
        };
        &mut self.chunks[at].1
    }

    /// Returns whether the split was made from different sources.
    pub fn is_contradictory(&self) -> bool {
        self.counts.is_contradictory()
    }

    pub fn set_done(&mut self, number: u32) {
        let (chunk, bit) = position(number);
        let chunk = self.chunk_mut(chunk);
        chunk.done.set(bit);
        chunk.dirty = true;
        self.done += 1;
        self.dirty = true;
    }

    pub fn set_failed(&mut self, number: u32) {
        let (chunk, bit) = position(number);
        let chunk = self.chunk_mut(chunk);
        chunk.failed.set(bit);
        chunk.dirty = true;
        self.failed += 1;
        self.dirty = true;
    }

    pub fn clear_failed(&mut self, number: u32) {
        let (chunk, bit) = position(number);
        let chunk = self.chunk_mut(chunk);
        chunk.failed.clear(bit);
        chunk.dirty = true;
        self.failed -= 1;
        self.dirty = true;
    }

    /// Returns the number of subtasks besides the final one, as far as they are known.
    pub fn slots(&self) -> u32 {
        self.size.map_or(self.top, |size| size - 1)
    }

    /// Returns the percentage by CAF's formula: the mean of the subtasks, at most 99.7. Until the
    /// size is known, one subtask more than the highest reported one is assumed.
    pub fn formula(&self) -> i64 {
        let children = i64::from(self.size.unwrap_or(self.top.saturating_add(1))).max(1);
        ((i64::from(self.done) * 100 * PERCENT + self.open_sum) / children).min(HIGHEST_OF_SPLIT)
    }

    /// Loads a row of this split. The rows may come in any order.
    pub fn load(&mut self, row: &NodeRow) {
        *self.chunk_mut(row.chunk) = Chunk::of_row(row);
        if row.chunk == 0 {
            self.size = row.size.map(unsigned);
            self.top = unsigned(row.top);
            self.done = unsigned(row.done_count);
            self.failed = unsigned(row.failed_count);
            self.kept = unsigned(row.kept);
            self.counted = unsigned(row.counted);
            self.percent = i64::from(row.percent);
            self.flags = row.flags;
            self.items = row.items;
            self.open_sum = row.open_sum;
            self.counts = row.counts();
            self.stored = true;
        }
    }

    /// Adds the rows of this split that have changed.
    pub fn rows(&self, into: &mut Vec<NodeRow>) {
        let mut header = NodeRow {
            path: self.path.clone(),
            size: self.size.map(signed),
            top: signed(self.top),
            done_count: signed(self.done),
            failed_count: signed(self.failed),
            kept: signed(self.kept),
            counted: signed(self.counted),
            percent: i32::try_from(self.percent).unwrap_or(i32::MAX),
            flags: self.flags,
            items: self.items,
            open_sum: self.open_sum,
            detail: serde_json::to_string(&self.counts).ok(),
            ..NodeRow::default()
        };
        if let Some(first) = self.chunk(0) {
            first.fill(&mut header);
        }
        into.push(header);
        for (number, chunk) in self
            .chunks
            .iter()
            .filter(|(number, chunk)| *number > 0 && chunk.dirty)
        {
            let mut row = NodeRow {
                path: self.path.clone(),
                chunk: *number,
                ..NodeRow::default()
            };
            chunk.fill(&mut row);
            into.push(row);
        }
    }
}

/// A task that is neither done nor failed nor split, and that has reported progress, a failed
/// attempt, or that it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveTask {
    /// Whether an attempt has failed.
    pub retrying: bool,
    /// Millionths of a percent.
    pub percent: i64,
    /// The number of attempts that have failed.
    pub attempts: Option<i32>,
    /// The number of attempts that had failed before the latest one that is known to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i32>,
    /// Of the job's own task: the number of its subtasks. It outlives the task table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtasks: Option<u32>,
    /// Milliseconds since 1970.
    pub since: i64,
    /// The failure of the last attempt.
    pub failure: Option<ReportFailure>,
    /// When the next attempt is due, in milliseconds since 1970, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

impl ActiveTask {
    pub fn of_row(row: &NodeRow) -> Self {
        Self {
            retrying: row.flags & RETRYING != 0,
            percent: i64::from(row.percent),
            attempts: row.attempts,
            started: (row.counted > 0).then_some(row.counted - 1),
            subtasks: None,
            since: row.since.unwrap_or_default(),
            failure: row
                .detail
                .as_deref()
                .and_then(|text| parse_failure(text).ok()),
            next: (row.items > 0).then_some(row.items),
        }
    }

    pub fn row(&self, path: &str) -> NodeRow {
        NodeRow {
            path: path.to_owned(),
            chunk: ACTIVE_TASK,
            percent: i32::try_from(self.percent).unwrap_or(i32::MAX),
            flags: if self.retrying { RETRYING } else { 0 },
            attempts: self.attempts,
            counted: self.started.map_or(0, |started| started.saturating_add(1)),
            since: Some(self.since),
            detail: self
                .failure
                .as_ref()
                .and_then(|failure| failure_json(failure).ok()),
            items: self.next.unwrap_or_default(),
            ..NodeRow::default()
        }
    }

    /// Returns the number of attempts that have failed, as far as is known.
    pub fn failed_attempts(&self) -> i32 {
        // A retry without a number is the first.
        let reported = if self.retrying {
            self.attempts.unwrap_or(1)
        } else {
            0
        };
        reported.max(0)
    }

    /// Returns the number of attempts once the task has failed for good, in the attempt after those
    /// that were reported.
    pub fn attempts_with_the_last(&self) -> Option<i32> {
        self.attempts.map(|attempts| attempts.saturating_add(1))
    }

    /// Returns whether the task itself has reported that it runs, or a failed attempt.
    pub fn is_reported(&self) -> bool {
        self.retrying || self.started.is_some()
    }

    /// Returns whether the task waits for another attempt, as far as is known.
    pub fn waits(&self) -> bool {
        // A retry without a number is the first.
        self.retrying && self.started < Some(self.attempts.unwrap_or(1))
    }

    /// Records that the attempt after this many failed ones runs.
    pub fn start(&mut self, attempts: i32, now: i64) {
        let waited = self.waits();
        self.started = self.started.max(Some(attempts.max(0)));
        if waited && !self.waits() {
            self.since = now;
        }
    }

    /// Records a failed attempt. The latest attempt is kept; which one that is does not depend on
    /// the order of arrival.
    pub fn retry(&mut self, attempts: Option<i32>, failure: Option<&ReportFailure>, now: i64) {
        let rank = |attempts: Option<i32>, failure: Option<&ReportFailure>| {
            (
                attempts,
                failure.and_then(|f| f.failure_time),
                failure.map(|f| (f.failure_id.clone(), f.failure_message.clone())),
            )
        };
        if !self.retrying || rank(attempts, failure) > rank(self.attempts, self.failure.as_ref()) {
            self.attempts = attempts;
            self.failure = failure.cloned();
            self.next = failure.and_then(ReportFailure::next_attempt);
            self.since = now;
        }
        self.retrying = true;
    }
}

/// The parser of job task ids makes sure that the number of a task fits into an `integer`.
fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}
