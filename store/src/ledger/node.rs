//! Places of the ledger: what is kept of a split and of an exceptional task, and the rows they are stored as.

use contract::ReportFailure;
use serde::{Deserialize, Serialize};

/// How many children one row has bits for.
pub const CHUNK: u32 = 4096;
/// The chunk number of an exceptional task's row.
pub const ACTIVE_TASK: i32 = -1;

/// Percentages inside the ledger: millionths of a percent.
pub const PERCENT: i64 = 1_000_000;

/// Splits whose parts contradict each other stay failed.
pub const CONFLICT: i32 = 1;
/// The split itself was reported failed (or found contradictory), and not only its subtasks.
pub const REPORTED_FAILED: i32 = 2;
/// The exceptional task waits to be tried again.
pub const RETRYING: i32 = 4;

/// Which row of a task table: a path (`3.17`, empty for the job's own split) and a chunk.
pub type NodeKey = (String, i32);

/// The chunk that has the bit of this child, and the bit.
pub fn position(number: u32) -> (i32, usize) {
    let at = number.saturating_sub(1);
    (
        i32::try_from(at / CHUNK).unwrap_or(i32::MAX),
        (at % CHUNK) as usize,
    )
}

/// A row of a task table, as the databases have it. Chunk 0 of a path is a split with the bits of its first children;
/// a higher chunk has bits alone; chunk -1 is an exceptional task and uses `percent`, `flags`, `attempts`, `since` and `detail`.
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
    /// The last failure of a task that is to be tried again, as JSON.
    pub detail: Option<String>,
}

impl NodeRow {
    pub fn bits(&self) -> Bits {
        Bits(self.done.clone())
    }

    pub fn failed_bits(&self) -> Bits {
        Bits(self.failed.clone().unwrap_or_default())
    }
}

/// A bitmap that is as long as its highest bit needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bits(pub Vec<u8>);

impl Bits {
    pub fn get(&self, bit: usize) -> bool {
        self.0
            .get(bit / 8)
            .is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    }

    pub fn set(&mut self, bit: usize) {
        if self.0.len() <= bit / 8 {
            self.0.resize(bit / 8 + 1, 0);
        }
        self.0[bit / 8] |= 1 << (bit % 8);
    }

    pub fn clear(&mut self, bit: usize) {
        if let Some(byte) = self.0.get_mut(bit / 8) {
            *byte &= !(1 << (bit % 8));
        }
    }

    fn any(&self) -> bool {
        self.0.iter().any(|byte| *byte != 0)
    }
}

/// The bits of up to [`CHUNK`] children.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    pub done: Bits,
    pub failed: Bits,
    pub dirty: bool,
}

impl Chunk {
    fn fill(&self, row: &mut NodeRow) {
        row.done.clone_from(&self.done.0);
        row.failed = self.failed.any().then(|| self.failed.0.clone());
    }
}

/// An open split: what is known of its children and of everything below.
#[derive(Debug, Clone, Default)]
pub struct Split {
    pub path: String,
    /// Where the parent stands in the ledger; `None` for the job's own split.
    pub parent: Option<usize>,
    /// Among its siblings.
    pub number: u32,
    pub depth: usize,
    /// How many children there are, the final one included, once that is known.
    pub size: Option<u32>,
    /// The highest child number seen.
    pub top: u32,
    pub done: u32,
    pub failed: u32,
    /// How many children have rows of their own.
    pub kept: u32,
    /// The highest child that was counted as an item by a report of its own: should it turn out to be the final one, it is taken back.
    pub counted: u32,
    /// What this split adds to the percentages of its parent.
    pub percent: i64,
    /// The sum of the percentages of the children that are not done.
    pub open_sum: i64,
    /// Items done below.
    pub items: i64,
    pub flags: i32,
    pub chunks: Vec<(i32, Chunk)>,
    /// There is a row of it in the database.
    pub stored: bool,
    pub dirty: bool,
    /// It is done, or something above it is.
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

    /// CAF's formula: the mean of the children, at most 99.7. While the size is not known, one child more is assumed.
    pub fn formula(&self) -> i64 {
        let children = i64::from(self.size.unwrap_or(self.top.saturating_add(1))).max(1);
        ((i64::from(self.done) * 100 * PERCENT + self.open_sum) / children).min(997 * PERCENT / 10)
    }

    /// Takes over what a row of this split says. Rows may come in any order.
    pub fn load(&mut self, row: &NodeRow) {
        let chunk = Chunk {
            done: row.bits(),
            failed: row.failed_bits(),
            dirty: false,
        };
        *self.chunk_mut(row.chunk) = chunk;
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
            self.stored = true;
        }
    }

    /// The rows that have changed.
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

/// A task of which more is known than whether it is done: it is under way, or it waits to be tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveTask {
    pub retrying: bool,
    /// Millionths of a percent.
    pub percent: i64,
    pub attempts: Option<i32>,
    pub since: i64,
    pub failure: Option<ReportFailure>,
}

impl ActiveTask {
    pub fn of_row(row: &NodeRow) -> Self {
        Self {
            retrying: row.flags & RETRYING != 0,
            percent: i64::from(row.percent),
            attempts: row.attempts,
            since: row.since.unwrap_or_default(),
            failure: row
                .detail
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok()),
        }
    }

    pub fn row(&self, path: &str) -> NodeRow {
        NodeRow {
            path: path.to_owned(),
            chunk: ACTIVE_TASK,
            percent: i32::try_from(self.percent).unwrap_or(i32::MAX),
            flags: if self.retrying { RETRYING } else { 0 },
            attempts: self.attempts,
            since: Some(self.since),
            detail: self
                .failure
                .as_ref()
                .and_then(|failure| serde_json::to_string(failure).ok()),
            ..NodeRow::default()
        }
    }

    /// One more attempt has failed. The latest one is told; which is the latest does not depend on the order of arrival.
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
            self.since = now;
        }
        self.retrying = true;
    }
}

/// Numbers of tasks fit into an `integer`, as the job task id sees to.
fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}
